"""Examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import tessera

PACKAGE = Path(tessera.__file__).parent
MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages([str(PACKAGE)], "tessera.")
    if not m.name.endswith(("_core", "__main__"))
)


@pytest.mark.parametrize("name", ["tessera", *MODULES])
def test_docstrings(name: str) -> None:
    if name.startswith("bench.cuda.triton"):
        pytest.importorskip("triton")
    if name.startswith(("tessera.torch_", "tessera.frontends.torch.")):
        pytest.importorskip("torch")
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0
