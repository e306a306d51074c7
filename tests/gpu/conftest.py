"""A GPU for the tests of this folder, or a plain refusal; a time after which none begins.

`pytest tests/gpu --stand-in LIBRARY` runs what can be run without a GPU on the stand-in for CUDA's
driver, whose kernels the emulator runs: to see that the tests themselves work.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tessera import _core
from tessera.cuda import find_libraries
from tessera.errors import Error

START = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stand-in", metavar="LIBRARY", help="instead of CUDA's driver")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Ends at once where there is no GPU: every test would fail for that one reason."""
    library = session.config.getoption("--stand-in")
    if library:
        # One device of compute capability 9.0, 1 GB, 227 KB of shared memory for a block.
        ctypes.CDLL(library).stand_in_reset(
            1, 9, 0, ctypes.c_int64(1 << 30), ctypes.c_int64(227 << 10)
        )
        _core.use_cuda_driver(str(Path(library).resolve()))
        there = Path(library).resolve()
        _core.use_cublaslt(str(there.with_name("libtessera_stand_in_cublaslt.so")))
        _core.use_cudnn(str(there.with_name("libtessera_stand_in_cudnn.so")))
    find_libraries()
    try:
        _core.DeviceArray(0, "f32", [1])
    except Error as error:
        pytest.exit(f"these tests need an NVIDIA GPU: {error}", returncode=2)


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
def real_gpu(request: pytest.FixtureRequest) -> None:
    """For tests of sizes that the emulator would need hours for."""
    if request.config.getoption("--stand-in"):
        pytest.skip("on a real GPU only")


@pytest.fixture
def torch(real_gpu: None) -> Any:
    """PyTorch with CUDA."""
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.fail("there is a GPU, but PyTorch sees none: is it a build without CUDA?")
    return module
