"""Program files that misbehave: the CLI executes them, says so, and ends in a typed error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tessera.errors import BadInputError
from tessera.source import run_file

PYTHON = Path(__file__).resolve().parents[2] / "python"
GOOD = 'import numpy as np\ndef f(x: "f64[40,40]"):\n    return x * 2 + x * 2\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "prog.py"
    path.write_text(text)
    return path


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "tessera", *args]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PYTHON)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys\nsys.exit('bye')\n", ":2: running it failed: SystemExit: bye"),
        ("class Odd(BaseException): pass\nraise Odd('odd')\n", ":2: running it failed: Odd: odd"),
        ("x = 1\nraise RuntimeError('no')\n", ":2: running it failed: RuntimeError: no"),
        ("def f(:\n", ":1:7: not valid Python"),
        ("def f(): return f()\nf()\n", ":1: running it failed: RecursionError"),
        ("import jax\narg_ranks = [2]\n@jax.jit\ndef kernel(A): return A\n", "is given jax.numpy"),
        pytest.param(
            "from jax import lax\narg_ranks = [2]\ndef kernel(A): return A\n",
            "is given jax.numpy",
            marks=pytest.mark.skipif(find_spec("jax") is not None, reason="JAX is installed"),
        ),
        ("\0", "not valid Python"),
    ],
)
def test_what_fails_at_import_is_bad_input(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadInputError) as error:
        run_file(write(tmp_path, text))
    assert message in str(error.value)


def test_the_process_is_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.getcwd(), list(sys.path), list(sys.argv), sys.stdout, sys.getrecursionlimit()
    names = run_file(
        write(
            tmp_path,
            "import os, sys\nprint('noise')\nos.chdir('/')\nsys.path[:] = []\nsys.argv[:] = []\n"
            "sys.stdout = None\nsys.setrecursionlimit(90000)\n" + GOOD,
        )
    )
    assert (
        os.getcwd(), list(sys.path), list(sys.argv), sys.stdout, sys.getrecursionlimit()
    ) == before  # fmt: skip
    assert callable(names["f"])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "noise\n"


def test_neighbours_are_imported(tmp_path: Path) -> None:
    (tmp_path / "a_neighbour_of_prog.py").write_text("factor = 3\n")
    path = write(tmp_path, "from a_neighbour_of_prog import factor\n")
    assert run_file(path)["factor"] == 3


def test_json_is_all_that_is_printed(tmp_path: Path) -> None:
    path = write(tmp_path, "print('noise')\n" + GOOD)
    done = subprocess.run(
        command("emit", str(path), "--emit", "numpy", "--json"),
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    )
    json.loads(done.stdout)
    assert "noise" in done.stderr


def test_a_file_that_ends_the_process_leaves_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, "import os\nos._exit(3)\n")
    out = tmp_path / "out.py"
    done = subprocess.run(
        command("optimize", str(path), "-o", str(out)), env=environment(), check=False
    )
    assert done.returncode == 3
    assert not out.exists()


@pytest.mark.parametrize("text", ["while True: pass\n", GOOD + "    while True: x = x + 1\n"])
def test_ctrl_c_ends_a_loop(tmp_path: Path, text: str) -> None:
    started = "import sys\nprint('started', file=sys.stderr, flush=True)\n"
    if "def" in text:
        text = 'def f(x: "f64[4]"):\n    while True: pass\n'
    path = write(tmp_path, started + text)
    with subprocess.Popen(
        command("optimize", str(path), "-o", str(tmp_path / "out.py")),
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        # Whoever runs the tests in the background may have had the signal ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "started\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        try:
            _, error = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 2
    assert "interrupted" in error
    assert not (tmp_path / "out.py").exists()


def test_the_help_says_that_files_are_executed() -> None:
    done = subprocess.run(
        command("optimize", "--help"), capture_output=True, text=True, env=environment(), check=True
    )
    assert "it is executed" in done.stdout
