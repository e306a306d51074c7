"""Tests keep their cache to themselves and never touch the user's."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["TESSERA_WAIT"] = "1"  # programs are what tests are about; test_background.py unsets it


@pytest.fixture(autouse=True, scope="session")
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache folder for the whole run and all its processes: nothing is compiled twice."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / "cache"
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESSERA_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture
def fresh_torch() -> Iterator[None]:
    """PyTorch with a seed, and nothing compiled before or after."""
    torch: Any = pytest.importorskip("torch")
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
