"""A GPU for the tests of this folder, or a plain refusal; a time after which none begins."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

START = time.monotonic()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Ends at once where there is no GPU: every test would fail for that one reason."""
    try:
        import torch
    except ImportError as error:
        pytest.exit(f"these tests need PyTorch with CUDA: {error}", returncode=2)
    if not torch.cuda.is_available():
        pytest.exit("these tests need an NVIDIA GPU, and PyTorch sees none", returncode=2)


def seconds_left() -> float:
    """Until no further test is to begin: TESSERA_GPU_SECONDS from the start."""
    return float(os.environ.get("TESSERA_GPU_SECONDS", "560")) - (time.monotonic() - START)


@pytest.fixture(autouse=True)
def in_time() -> None:
    """Tests that do not fit any more are skipped, and so are counted."""
    if seconds_left() < 15:
        pytest.skip("time is up (TESSERA_GPU_SECONDS)")


@pytest.fixture(autouse=True, scope="session")
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nothing that an earlier run has found counts."""
    folder = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESSERA_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture
def cuda() -> Any:
    """torch, with errors of the device told where they happen."""
    import torch

    torch.cuda.synchronize()
    yield torch
    torch.cuda.synchronize()
