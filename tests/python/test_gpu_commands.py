"""`make gpu-test` and `make gpu-bench` on machines that are not ready for them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from gpu import conftest as gpu_tests  # noqa: E402
from tools import gpu_bundle, gpu_machine  # noqa: E402

STAND_IN = (
    "int cuInit(unsigned f) { return %d; } int cuDeviceGetCount(int* n) { *n = %d; return 0; }"
)


def run(mode: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """tools/gpu.sh with this Python and nothing of a real GPU."""
    return subprocess.run(
        ["tools/gpu.sh", mode], cwd=ROOT, text=True, capture_output=True, check=False, timeout=60,
        env=os.environ | {"PYTHON": sys.executable, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["test", "bench"])
def test_no_driver_is_refused_before_anything_is_built(mode: str) -> None:
    done = run(mode, TESSERA_CUDA="/nowhere/libcuda.so.1")
    assert done.returncode == 2
    assert "no NVIDIA driver" in done.stderr
    assert "--emulate" in done.stderr
    assert "building" not in done.stdout


def test_no_python_is_named() -> None:
    done = run("test", PYTHON="/nowhere/python")
    assert done.returncode == 1
    assert "set PYTHON" in done.stderr


@pytest.mark.parametrize(
    ("result", "count", "message"), [(100, 0, "error 100"), (0, 0, "finds no GPU")]
)
def test_a_driver_without_a_gpu(
    result: int, count: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libcuda.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library],
                   input=STAND_IN % (result, count), text=True, check=True)  # fmt: skip
    monkeypatch.setenv("TESSERA_CUDA", str(library))
    with pytest.raises(OSError, match=message):
        gpu_machine.gpu()


def test_everything_that_is_missing_is_listed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_machine, "MODULES", ("numpy", "no_such_module", "nor_this"))
    monkeypatch.setattr(gpu_machine, "PROGRAMS", {"no-such-program": "a-package"})
    lines = "\n".join(gpu_machine.missing())
    assert "pip install no_such_module nor_this" in lines
    assert "without a package registry" in lines
    assert "no-such-program: pip install a-package" in lines
    assert "numpy" not in lines
    assert gpu_machine.find_program("sh")


def test_bundled_packages_fill_only_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_machine, "MODULES", ("numpy", "no_such_module", "nor_this"))
    monkeypatch.setattr(gpu_machine, "REPOSITORY", tmp_path)
    native = f"nor_this-{sys.version_info[0]}.{sys.version_info[1]}"
    for name in ("numpy", "no_such_module", native, "nor_this-2.7"):
        (tmp_path / "packages" / name).mkdir(parents=True)
    want = [str(tmp_path / "packages" / name) for name in ("no_such_module", native)]
    assert gpu_machine.brought() == want
    # A package comes with what it requires, but not with those that are packed by themselves.
    assert {"rich", "pygments"} <= set(gpu_bundle.needed("rich"))
    assert set(gpu_bundle.needed("ml_dtypes")) == {"ml_dtypes"}


def reported(name: str, outcome: str, when: str = "call", why: str = "") -> Any:
    """What pytest tells of one test."""
    longrepr = ("file", 1, f"Skipped: {why}") if outcome == "skipped" else why
    return SimpleNamespace(
        nodeid=name, outcome=outcome, when=when, duration=0.5, longrepr=longrepr,
        longreprtext=str(longrepr), passed=outcome == "passed", failed=outcome == "failed",
        skipped=outcome == "skipped",
    )  # fmt: skip


def test_outcomes_on_a_gpu_are_kept_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {"device": "a GPU", "arch": "sm_90a", "driver": "580.1", "build": "b1"}
    monkeypatch.setattr(gpu_tests, "where", lambda: here)
    monkeypatch.setenv(gpu_tests.KNOWN, "")
    path = tmp_path / "cuda-test.json"
    results = gpu_tests.Results(path, resume=True)
    for when in ("setup", "call", "teardown"):
        results.pytest_runtest_logreport(reported("a::good", "passed", when))
    results.pytest_runtest_logreport(reported("a::late", "skipped", "setup", "time is up"))
    results.pytest_runtest_logreport(reported("a::bad", "failed", why="1 wrong element"))
    results.pytest_runtest_logreport(reported("a::bad", "passed", "teardown"))
    kept = json.loads(path.read_text())
    assert {k: kept[k] for k in here} == here
    assert kept["date"][:2] == "20"
    assert (kept["passed"], kept["failed"], kept["skipped"]) == (1, 1, 1)
    assert kept["tests"]["a::late"]["why"] == "time is up"
    assert kept["tests"]["a::bad"]["why"] == "1 wrong element"
    # What has passed is known to a later run; on another GPU, or with another build, nothing is.
    gpu_tests.Results(path, resume=True)
    assert json.loads(os.environ[gpu_tests.KNOWN]) == ["a::good"]
    for other in ({"driver": "590"}, {"build": "b2"}):
        monkeypatch.setattr(gpu_tests, "where", lambda more=other: here | more)
        gpu_tests.Results(path, resume=True)
        assert json.loads(os.environ[gpu_tests.KNOWN]) == []


def test_what_matters_most_on_a_gpu_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        "test_programs.py::test_random_programs[0]", "test_programs.py::test_program[corpus-lora]",
        "test_sanitizer.py::test_nothing_is_found", "test_streams.py::test_two_streams_at_once",
        "test_fragments.py::test_fragment[fragment_box]", "test_library.py::test_products[plain]",
    ]  # fmt: skip
    items: list[Any] = [
        SimpleNamespace(nodeid=f"tests/gpu/{n}", path=Path(n.partition("::")[0])) for n in names
    ]
    left_out: list[Any] = []
    config: Any = SimpleNamespace(
        hook=SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    )
    monkeypatch.setenv(gpu_tests.KNOWN, json.dumps([items[3].nodeid]))
    gpu_tests.pytest_collection_modifyitems(config, items)
    assert [i.path.stem for i in items] == [
        "test_fragments", "test_library", "test_programs", "test_sanitizer", "test_programs"
    ]  # fmt: skip
    assert "random" in items[-1].nodeid
    assert [i.path.stem for i in left_out] == ["test_streams"]
