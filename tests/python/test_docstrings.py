"""Examples in docstrings run, and the stub of the core names what the core has."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import tessera
from tessera import _core

PACKAGE = Path(tessera.__file__).parent
MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages([str(PACKAGE)], "tessera.")
    if not m.name.endswith(("_core", "__main__"))
)


@pytest.mark.parametrize("name", ["tessera", *MODULES])
def test_docstrings(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_stub_matches_the_core() -> None:
    tree = ast.parse((PACKAGE / "_core.pyi").read_text())

    def names(body: list[ast.stmt]) -> set[str]:
        found = {n.name for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        return found | {
            n.target.id for n in body
            if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
        }  # fmt: skip

    def public(thing: object) -> set[str]:
        return {n for n in vars(thing) if not n.startswith("_")}

    assert public(_core) == names(tree.body)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            stub = {n for n in names(node.body) if not n.startswith("_")}
            assert public(getattr(_core, node.name)) == stub, node.name
