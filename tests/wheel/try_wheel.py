"""What an installed wheel does where there is no compiler: `python try_wheel.py`.

NumPy to NumPy, the report, `@ts.optimize` and `tessera doctor`, in a cache of its own.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ["TESSERA_CACHE_DIR"] = tempfile.mkdtemp(prefix="tessera-")
os.environ.pop("CXX", None)

import numpy as np

import tessera as ts

PROGRAM = """
import numpy as np

example_inputs = {"X": "f64[300,40]", "P": "f64[40,40]"}

def distances(X, P):
    return np.diag(X @ P @ X.T)
"""


def run(folder: Path, *arguments: str, code: int = 0) -> str:
    """What the command line prints."""
    command = [sys.executable, "-m", "tessera", *arguments]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == code, f"{arguments}: {ran.returncode} {ran.stdout}\n{ran.stderr}"
    return ran.stdout


def main() -> None:
    """Asserts, and says how long each took."""
    compilers = [c for c in ("g++", "c++", "clang++", "cc", "gcc") if shutil.which(c)]
    assert not compilers, f"there is a compiler: {compilers}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "p.py").write_text(PROGRAM)
        start = time.perf_counter()
        said = run(folder, "optimize", "p.py", "-o", "fast.py")
        assert "proved equal" in (folder / "fast.py").read_text(), said
        print(f"NumPy to NumPy: {time.perf_counter() - start:.1f} s")

        run(folder, "report", "p.py", "-o", "page.html")
        assert "distances" in (folder / "page.html").read_text()

        zig = importlib.util.find_spec("ziglang") is not None
        said = run(folder, "doctor", code=0 if zig else 1)
        assert zig or "tessera-opt[jit]" in said, said

    X, P = np.random.default_rng(0).standard_normal((2, 40, 40))

    def function(X: Any, P: Any) -> Any:
        return np.diag(X @ P @ X.T)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimised = ts.optimize(wait=True, budget=10)(function)
        for _ in range(3):
            np.testing.assert_allclose(optimised(X, P), function(X, P), rtol=1e-10)
    for w in caught:
        print(f"told: {w.message}")
    print(*optimised.status(), sep="\n")


if __name__ == "__main__":
    main()
