"""`make gpu-test` and `make gpu-bench` on machines that are not ready for them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from gpu import __main__ as gpu_runner  # noqa: E402
from gpu import bundle as gpu_bundle  # noqa: E402
from gpu import conftest as gpu_tests  # noqa: E402
from gpu import machine as gpu_machine  # noqa: E402

STAND_IN = (
    "int cuInit(unsigned f) { return %d; } int cuDeviceGetCount(int* n) { *n = %d; return 0; }"
)


def run(mode: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """tests/gpu/run.sh with this Python and nothing of a real GPU."""
    return subprocess.run(
        ["tests/gpu/run.sh", mode], cwd=ROOT, text=True, capture_output=True, check=False,
        timeout=60, env=os.environ | {"PYTHON": sys.executable, **environment},
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


def test_a_torch_without_cuda_and_no_nvrtc_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_machine, "MODULES", ())
    monkeypatch.setattr(gpu_machine, "TOOLKIT", tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr("ctypes.CDLL", lambda name: (tmp_path / name).open())
    monkeypatch.delenv("TESSERA_NVRTC", raising=False)
    torch = SimpleNamespace(version=SimpleNamespace(cuda=None))
    monkeypatch.setitem(sys.modules, "torch", torch)
    lines = "\n".join(gpu_machine.missing())
    assert "a torch that is built with CUDA" in lines
    assert "pip install nvidia-cuda-nvrtc" in lines
    torch.version.cuda = "13.0"
    library = tmp_path / "nvidia/cu13/lib/libnvrtc.so.13"
    library.parent.mkdir(parents=True)
    library.touch()
    lines = "\n".join(gpu_machine.missing())
    assert "torch" not in lines
    assert "NVRTC" not in lines


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


# Good and bad tests, one that hangs and one that takes its process along.
TESTS = """import os, time, pytest
@pytest.mark.parametrize("i", range(3))
def test_good(i): pass
def test_bad(): assert 1 == 2
def test_hangs(): time.sleep(600)
def test_kills(): os.kill(os.getpid(), 9)
def test_skipped(): pytest.skip("not here")
def test_last(): pass
"""


@pytest.fixture
def command(tmp_path: Path) -> Any:
    """pytest with the GPU tests' own report of outcomes, on tests that need no GPU."""
    (tmp_path / "test_streams.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(
        f"import sys; from pathlib import Path; sys.path[:0] = [{str(ROOT / 'tests')!r}]\n"
        "from gpu.conftest import Outcomes, in_time\n"
        "def pytest_addoption(parser): parser.addoption('--outcomes')\n"
        "def pytest_sessionstart(session):\n"
        "    told = Path(session.config.getoption('--outcomes'))\n"
        "    session.config.pluginmanager.register(Outcomes(told))\n"
    )

    def made(names: list[str], told: Path) -> list[str]:
        return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}",
                "-x", "--outcomes", str(told), *(f"{tmp_path}/{n}" for n in names)]  # fmt: skip

    return made


NAMES = [f"test_streams.py::test_{n}" for n in (
    "good[0]", "good[1]", "good[2]", "bad", "hangs", "kills", "skipped", "last")]  # fmt: skip
HERE = {"device": "a GPU", "arch": "sm_90a", "driver": "580.1", "build": "b1"}


def test_a_test_on_a_gpu_that_is_lost_costs_nobody_else(tmp_path: Path, command: Any) -> None:
    path = tmp_path / "cuda-test.json"
    results = gpu_runner.Results(path, HERE, resume=True)
    gpu_runner.run_all(NAMES, results, command, 2, 30.0, time.monotonic() + 400)
    kept = json.loads(path.read_text())
    assert {k: kept[k] for k in HERE} == HERE
    assert kept["date"][:2] == "20"
    assert (kept["passed"], kept["failed"], kept["skipped"]) == (4, 3, 1)
    why = {n.partition("test_")[2].partition("test_")[2]: t.get("why", "")
           for n, t in kept["tests"].items()}  # fmt: skip
    assert "assert 1 == 2" in why["bad"]
    assert "no answer in 30 s" in why["hangs"]
    assert "ended with -9" in why["kills"]
    assert why["skipped"] == "not here"
    # What has passed is known to a later run; on another GPU, or with another build, nothing is.
    again = gpu_runner.Results(path, HERE, resume=True)
    assert sorted(again.tests) == sorted([*NAMES[:3], NAMES[7]])
    for other in ({"driver": "590"}, {"build": "b2"}):
        assert gpu_runner.Results(path, HERE | other, resume=True).tests == {}


def test_one_that_is_lost_among_neighbours(command: Any) -> None:
    """Those after it run by themselves; those before it count."""
    found, rest = gpu_runner.run_job([NAMES[0], NAMES[5], NAMES[7]], command, 20.0, True)
    assert {n: t["outcome"] for n, t in found.items()} == {NAMES[0]: "passed", NAMES[5]: "failed"}
    assert rest == [NAMES[7]]
    found, rest = gpu_runner.run_job([NAMES[4], NAMES[7]], command, 3.0, True)
    assert (found, rest) == ({}, [NAMES[4], NAMES[7]])  # nobody's fault yet


def test_who_is_late_has_not_failed(command: Any) -> None:
    found, rest = gpu_runner.run_job([NAMES[4]], command, 1.0, False)
    assert found[NAMES[4]]["outcome"] == "skipped"
    assert "time is up" in found[NAMES[4]]["why"]
    results = gpu_runner.Results(None, HERE, resume=False)
    gpu_runner.run_all(NAMES, results, command, 1, 4.0, time.monotonic() + 1)
    assert results.counts() == {"passed": 0, "failed": 0, "skipped": 8}
    assert rest == []


def test_short_tests_share_a_process() -> None:
    names = [f"tests/gpu/test_fragments.py::test_fragment[{i}]" for i in range(10)]
    programs = [f"tests/gpu/test_programs.py::test_program[{i}]" for i in range(2)]
    assert [len(job) for job in gpu_runner.jobs(names + programs)] == [8, 2, 1, 1]


def test_what_matters_most_on_a_gpu_comes_first() -> None:
    names = [
        "test_programs.py::test_random_programs[0]", "test_programs.py::test_program[corpus-lora]",
        "test_sanitizer.py::test_nothing_is_found", "test_streams.py::test_two_streams_at_once",
        "test_fragments.py::test_fragment[fragment_box]", "test_library.py::test_products[plain]",
    ]  # fmt: skip
    items: list[Any] = [
        SimpleNamespace(nodeid=f"tests/gpu/{n}", path=Path(n.partition("::")[0])) for n in names
    ]
    gpu_tests.pytest_collection_modifyitems(items)
    assert [i.path.stem for i in items] == [
        "test_fragments", "test_streams", "test_library", "test_programs", "test_sanitizer",
        "test_programs",
    ]  # fmt: skip
    assert "random" in items[-1].nodeid
