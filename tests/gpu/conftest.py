"""A GPU for the tests of this folder, or a plain refusal; a time after which none begins.

`python -m tests.gpu` runs them, each in a process of its own (__main__.py). `pytest tests/gpu
--stand-in LIBRARY` runs what can be run without a GPU on the stand-in for CUDA's driver, whose
kernels the emulator runs: to see that the tests themselves work.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import _bench
from bench.cuda.device import driver_version
from bench.worker import die_with_parent
from tessera import _core
from tessera.cuda import find_libraries, library_folders
from tessera.errors import Error

START = time.monotonic()
# What matters most comes first, for a run that ends early.
ORDER = (
    "test_fragments", "test_streams", "test_library", "test_program", "test_workload_at_full_size",
    "test_workload_at_reduced_sizes", "test_sanitizer", "test_random_programs",
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stand-in", metavar="LIBRARY", help="instead of CUDA's driver")
    parser.addoption("--where", action="store_true", help="print the device as JSON")
    parser.addoption("--outcomes", metavar="FILE", help="JSON of what came out, after every test")


def where() -> dict[str, Any]:
    """What is tested, and on what."""
    machine = _core.cuda_machine()
    return {
        "device": machine["devices"][0]["name"],
        "arch": machine["devices"][0]["arch"],
        "driver": driver_version() or machine["driver"],
        "build": hashlib.sha256(Path(_core.__file__).read_bytes()).hexdigest()[:16],
    }


class Outcomes:
    """A file with the outcome of each test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of the test itself, or of what came before or after where that went wrong."""
        if report.when != "call" and report.passed:
            return
        test: dict[str, Any] = {"outcome": report.outcome, "seconds": round(report.duration, 2)}
        if report.skipped and isinstance(report.longrepr, tuple):
            test["why"] = report.longrepr[2].removeprefix("Skipped: ")
        elif report.failed:
            test["why"] = report.longreprtext[-2000:]
        self.tests[report.nodeid] = test
        beside = self.path.with_suffix(".part")
        beside.write_text(json.dumps(self.tests))
        beside.replace(self.path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The most important first."""

    def rank(item: pytest.Item) -> int:
        names = {item.path.stem, item.nodeid.partition("::")[2].partition("[")[0]}
        return next((i for i, name in enumerate(ORDER) if name in names), len(ORDER))

    items.sort(key=rank)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Ends at once where there is no GPU: every test would fail for that one reason."""
    library = session.config.getoption("--stand-in")
    if library:
        # One device of compute capability 9.0, 1 GB, 227 KB of shared memory for a block.
        ctypes.CDLL(library).stand_in_reset(
            1, 9, 0, ctypes.c_int64(1 << 30), ctypes.c_int64(227 << 10)
        )
        for core in (_core, _bench):
            core.use_cuda_driver(str(Path(library).resolve()))
        there = Path(library).resolve()
        _core.use_cublaslt(str(there.with_name("libtessera_stand_in_cublaslt.so")))
        _core.use_cudnn(str(there.with_name("libtessera_stand_in_cudnn.so")))
    find_libraries()
    _bench.set_cuda_folders(library_folders())
    try:
        _core.DeviceArray(0, "f32", [1])
    except Error as error:
        pytest.exit(f"these tests need an NVIDIA GPU: {error}", returncode=2)
    if session.config.getoption("--where"):
        print(json.dumps(where()))
    if told := session.config.getoption("--outcomes"):
        die_with_parent()
        session.config.pluginmanager.register(Outcomes(Path(told)))


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
