"""`make gpu-test` and `make gpu-bench` on machines that are not ready for them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools import gpu_machine  # noqa: E402

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
