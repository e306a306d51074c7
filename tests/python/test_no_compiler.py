"""Without a C++ compiler: what was compiled before, the package ziglang's, else NumPy source and
the original."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# A diagonal that NumPy's source of it takes without the product, and a function that has no better.
SOURCE = """
import sys, warnings, numpy as np, tessera as ts
f = ts.optimize(wait="wait" in sys.argv, budget=60)(lambda x, y: np.diag(x @ y))
g = ts.optimize(wait="wait" in sys.argv, budget=60)(lambda x: x + 1)
x = np.linspace(0, 1, 20000).reshape(200, 100)
for _ in range(3):
    f.wait(100)
    np.testing.assert_allclose(f(x, x.T), np.diag(x @ x.T))
    g.wait(100)
    np.testing.assert_array_equal(g(x), x + 1)
print(f.status()[0].runs, len(f.status()), g.status()[0].runs)
"""
CODE = """
import sys, numpy as np, tessera as ts
unsearched = ("synth", "mugraph", "patterns", "mutate")
waiting = ts.optimize(wait="wait" in sys.argv, budget=60, disable=unsearched)
f, g = waiting(lambda x: np.exp(x) * 2), waiting(lambda x: np.log1p(x) * 2)
x = np.linspace(0, 1, 12).reshape(3, 4)
for _ in range(3):
    f.wait(100), g.wait(100)
    np.testing.assert_allclose(f(x), np.exp(x) * 2)
    np.testing.assert_allclose(g(x), np.log1p(x) * 2)
print(f.result(x) is not None)
"""


def run(
    folder: Path, *path: Path, how: str = "wait", code: str = CODE, tools: str = ""
) -> subprocess.CompletedProcess[str]:
    """The code in a process that finds no compiler but in `tools`, with these folders to import
    from."""
    cache = folder / "cache"
    cache.mkdir(mode=0o700, exist_ok=True)
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", code, how],
        capture_output=True, text=True, timeout=200, check=False,
        env={"PATH": tools or str(folder), "TESSERA_CACHE_DIR": str(cache), "HOME": str(folder),
             "PYTHONPATH": os.pathsep.join([*map(str, path), *sys.path])},
    )  # fmt: skip


@pytest.mark.parametrize("how", ["wait", "background"])
def test_the_original_runs_and_says_once_what_to_install(tmp_path: Path, how: str) -> None:
    (tmp_path / "ziglang.py").write_text("")  # no package with a compiler, whatever is installed
    ran = run(tmp_path, tmp_path, how=how)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "False\n"
    assert ran.stderr.count("RuntimeWarning") == 1
    assert ": no C++ compiler found: install one" in ran.stderr
    assert "pip install 'tessera-opt[jit]'" in ran.stderr


@pytest.mark.parametrize("how", ["wait", "background"])
def test_numpy_source_runs_and_says_so_once(tmp_path: Path, how: str) -> None:
    (tmp_path / "ziglang.py").write_text("")
    ran = run(tmp_path, tmp_path, how=how, code=SOURCE)
    assert ran.returncode == 0, ran.stderr
    # Of x + 1 the source is the original again; which of them wins is noise.
    assert ran.stdout in ("source 1 original\n", "source 1 source\n")
    assert ran.stderr.count("RuntimeWarning") == 1
    assert "runs as NumPy source" in ran.stderr
    assert ": no C++ compiler found: install one" in ran.stderr


def test_the_demo_says_what_it_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "ziglang.py").write_text("")
    ran = run(tmp_path, tmp_path, code="from tessera.cli import main; main(['demo'])")
    assert ran.returncode == 0, ran.stderr
    assert "proved equal" in ran.stdout
    assert "2, 3  fused kernels: left out, no C++ compiler found" in ran.stdout
    assert "tessera-opt[jit]" in ran.stdout


def test_the_report_is_of_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "ziglang.py").write_text("")
    (tmp_path / "p.py").write_text("import numpy as np\nexample_inputs = {'x': 'f64[30,20]'}\n"
                                   "def f(x):\n    return np.diag(x @ x.T)\n")  # fmt: skip
    order = ["report", f"{tmp_path}/p.py", "-o", f"{tmp_path}/page.html"]
    ran = run(
        tmp_path, tmp_path, code=f"from tessera.cli import main; raise SystemExit(main({order}))"
    )
    assert ran.returncode == 0, ran.stderr
    page = (tmp_path / "page.html").read_text()
    assert "Largest and mean difference from f64" in page
    assert "NumPy, rewritten" in page


def test_torch_looks_for_a_compiler_too(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from tessera import torch_backend

    asked: list[int] = []
    monkeypatch.setattr(torch_backend, "find_compiler", lambda: asked.append(1))
    fast = torch.compile(lambda x: torch.tanh(x) + 1, backend="tessera", options={"wait": True})
    torch.testing.assert_close(fast(torch.ones(4)), torch.tanh(torch.ones(4)) + 1)
    assert asked


def test_what_was_compiled_before_runs(tmp_path: Path) -> None:
    (tmp_path / "ziglang.py").write_text("")
    ran = run(tmp_path, tmp_path, tools=os.environ["PATH"])
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "True\n", "")
    kept = tmp_path / "cache" / "objects"
    before = sorted(kept.glob("*.so"))
    assert before
    for how in ("wait", "background"):
        ran = run(tmp_path, tmp_path, how=how)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "True\n", "")
    for library in kept.glob("*.so"):
        library.write_bytes(b"")
    ran = run(tmp_path, tmp_path)  # what is damaged is as good as none
    assert (ran.returncode, ran.stdout) == (0, "False\n")
    assert ": no C++ compiler found: install one" in ran.stderr


@pytest.mark.skipif(not Path("/usr/bin/g++").exists(), reason="there is no /usr/bin/g++")
def test_the_compiler_of_ziglang_is_taken(tmp_path: Path) -> None:
    package = tmp_path / "modules" / "ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    zig = package / "zig"  # a stand-in
    zig.write_text(f'#!/bin/sh\n[ "$1" = cc ] && shift && PATH=/usr/bin:/bin '
                   f'&& echo "$@" >>{tmp_path}/called && exec /usr/bin/g++ "$@"\n')  # fmt: skip
    zig.chmod(0o700)
    ran = run(tmp_path, package.parent)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "True\n", "")
    assert "-shared" in (tmp_path / "called").read_text()
