"""The command line: every kind of bad input, exit codes, JSON, and files all or nothing."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tessera.cli import main
from tessera.graph import Graph
from tessera.rewrite import Rewrite

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "corpus"
SMALL = """graph small {
  x = input : f32[8,16]
  w = input : f32[16,8]
  y = matmul x, w : f32[8,8]
  z = exp y : f32[8,8]
  return z
}
"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.ug"
    path.write_text(SMALL)
    return str(path)


def run(*args: str) -> int:
    return main(list(args))


def as_json(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, Any]:
    code = run(*args, "--json")
    return code, json.loads(capsys.readouterr().out)


# --- what is typed wrongly: 64 ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["frobnicate"], "No such command"),
        (["optimize"], "Missing argument"),
        (["optimize", "--budget", "soon", "x.ug"], "not a valid float"),
        (["optimize", "--budget", "-1", "{small}"], "budget must be a positive"),
        (["optimize", "--target", "tpu", "{small}"], "not supported yet"),
        (["optimize", "--shape", "x", "{small}"], "write NAME=TYPE"),
        (["optimize", "--shape", "x=f32[2]", "{small}"], "has its types in the file"),
        (["optimize", "-o", "out.txt", "{small}"], "must end in"),
        (["optimize", "README.md"], "neither .py, .onnx nor .ug"),
        (["optimize", "--shape", "N=4", "{small}"], "there is no 'N' in the program"),
        (["optimize", "--shape", "N=4,K=2", "{small}"], "there is no 'N' in the program"),
        (["optimize", "--threads", "100000", "{small}"], "from 0 (all) to 1024"),
        (["optimize", "--seed", "-1", "{small}"], "from 0 to 2^64 - 1"),
        (["optimize", "--disable", "mugraph:magic", "--no-cache", "{small}"], "no rule 'magic'"),
        (["optimize", "-o", "", "{small}"], "must end in"),
        (["optimize", "-o", "out.py", "--target", "cuda", "{small}"], "--target is of kernels"),
        (["verify", "--seed", "-1", "{small}", "{small}"], "from 0 to 2^64 - 1"),
        (["verify", "--threads", "-5", "{small}", "{small}"], "from 0 (all) to 1024"),
        (["verify", "--budget", "0", "{small}", "{small}"], "positive number of seconds"),
        (["search", "--top", "-1", "{small}"], "is not in the range"),
        (["search", "--show", "1000", "{small}"], "candidates"),
        (["emit", "--target", "cpu-", "{small}"], "not supported yet"),
        (["search", "--engine", "magic", "{small}"], "'magic'"),
        (["bench", "nothing"], "is not one of"),
        (["bench", "mirage", "--peers", "abacus"], "is not one of"),
        (["bench", "search", "--case", "nothing"], "is not one of"),
        (["emit", "--target", "rocm", "{small}"], "not supported yet"),
        (["emit", "--emit", "jax", "--target", "cuda", "{small}"], "--target is of kernels"),
    ],
)
def test_usage(
    args: list[str], message: str, small: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(ROOT)
    assert run(*[a.replace("{small}", small) for a in args]) == 64
    captured = capsys.readouterr()
    assert message in " ".join(captured.err.split())
    assert "Traceback" not in captured.err


def test_names_of_folders_are_no_files(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("optimize", small, "-o", f"{tmp_path}/out.py/") == 65
    assert "out.py/: error: this is a folder" in "".join(capsys.readouterr().err.split("\n"))
    assert list(tmp_path.glob("*.py")) == []


# --- what is wrong in the input: 65, with its place ---------------------------------------------

BAD_UG = {
    "unknown op": ("graph g {\n  x = input : f32[4]\n  y = frob x\n  return y\n}\n", ":3:", "frob"),
    "wrong rank": (
        "graph g {\n  x = input : f32[4]\n  y = matmul x, x\n  return y\n}\n", ":3:", "matmul",
    ),
    "inner extents": (
        "graph g {\n  x = input : f32[4,3]\n  y = matmul x, x\n  return y\n}\n", ":3:", "matmul",
    ),
    "wrong dtype": (
        "graph g {\n  x = input : f32[4]\n  b = input : i32[4]\n  y = add x, b\n  return y\n}\n",
        ":4:", "add",
    ),
    "inconsistent": (
        "graph g {\n  x = input : f32[4]\n  y = exp x : f32[5]\n  return y\n}\n", ":3:", "f32[",
    ),
    "zero extent": ("graph g {\n  x = input : f32[0,4]\n  return x\n}\n", ":2:", ""),
    "unknown dtype": ("graph g {\n  x = input : f31[4]\n  return x\n}\n", ":2:", "f31"),
    "undefined name": ("graph g {\n  x = input : f32[4]\n  return y\n}\n", ":3:", "y"),
    "truncated": ("graph g {\n  x = input : f32[4]\n", "", ""),
    "empty": ("", "", ""),
    "binary": ("\x00\x01\x02", ":1:", ""),
}  # fmt: skip


@pytest.mark.parametrize("verb", ["optimize", "search", "emit"])
@pytest.mark.parametrize("case", BAD_UG)
def test_bad_text(case: str, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, place, word = BAD_UG[case]
    path = tmp_path / "bad.ug"
    path.write_text(text)
    assert run(verb, str(path)) == 65
    err = "".join(capsys.readouterr().err.split("\n"))
    assert f"{path}{place}" in err
    assert word in err
    assert "Traceback" not in err


BAD_PY = {
    "syntax": ("def f(x:\n", ":1", "not valid Python"),
    "raises": ("x = 1\nraise ValueError('no')\n", ":2", "ValueError: no"),
    "exits": ("import sys\nsys.exit(3)\n", ":2", "SystemExit"),
    "nothing": ("x = 1\n", "", "neither a function nor a Graph"),
    "no types": ("def f(x):\n  return x\n", ":1", "--shape x=f32[16,1024]"),
    "branches": (
        "def f(x: 'f32[4]'):\n  y = x + 1\n  if y.sum() > 0:\n    return x\n  return y\n",
        ":3", "branches on the value",
    ),
    "zero size": ("def f(x: 'f32[0,4]'):\n  return x\n", "", "every extent must be positive"),
    "unknown function": (
        "import numpy as np\ndef f(x: 'f32[4,4]'):\n  return np.linalg.inv(x)\n",
        ":3", "np.linalg.inv is not supported",
    ),
    "shapes": ("def f(x: 'f32[4,3]'):\n  return x @ x\n", ":2", "matmul"),
    "in place": ("def f(x: 'f32[4]'):\n  x += 1\n  return x\n", ":2", "in place"),
    "bad example_inputs": ("example_inputs = 3\ndef f(x):\n  return x\n", "", "must be a dict"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_PY)
def test_bad_python(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, place, word = BAD_PY[case]
    path = tmp_path / "bad.py"
    path.write_text(text)
    assert run("optimize", str(path)) == 65
    err = " ".join(capsys.readouterr().err.split())
    assert (f"{path}{place}" in err) if place else True
    assert word in err
    assert "Traceback" not in err


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("optimize", str(tmp_path / "missing.ug")) == 65
    assert "no such file" in capsys.readouterr().err
    folder = tmp_path / "folder.ug"
    folder.mkdir()
    assert run("optimize", str(folder)) == 65
    assert "folder" in capsys.readouterr().err
    latin = tmp_path / "latin.ug"
    latin.write_bytes(b"graph \xff\xfe")
    assert run("optimize", str(latin)) == 65
    assert "UTF-8" in capsys.readouterr().err
    assert run("optimize", str(tmp_path / "model.onnx")) == 65
    (tmp_path / "model.onnx").write_bytes(b"")
    assert run("optimize", str(tmp_path / "model.onnx")) == 65
    assert "not an ONNX model" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(small).chmod(0)
    assert run("optimize", small) == 65
    assert "cannot be read" in capsys.readouterr().err


def test_several_programs_need_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "two.py"
    path.write_text("def f(x: 'f32[4]'):\n  return x + 1\ndef g(x: 'f32[4]'):\n  return x + 2\n")
    assert run("emit", str(path)) == 64
    assert f"{path}:g" in "".join(capsys.readouterr().err.split())
    assert run("emit", f"{path}:g") == 0
    assert run("emit", f"{path}:h") == 65
    assert run("emit", f"{path}:f", "--shape", "y=f32[4]") == 64


def test_shapes_come_from_flag_examples_or_annotations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.py"
    path.write_text(
        "import numpy as np\n"
        "example_inputs = lambda: {'x': np.ones((3, 5), np.float32)}\n"
        "def f(x, w: 'f32[5,2]', scale=2.0):\n  return x @ w * scale\n"
    )
    code, data = as_json(capsys, "search", f"{path}:f")
    assert code in (0, 1)
    assert data["program"] == "f"
    from tessera import load

    assert repr(load(f"{path}:f")).startswith("<Graph f(x: f32[3,5], w: f32[5,2])")
    assert run("emit", f"{path}:f", "--shape", "x=f32[9,5]") == 0
    assert run("emit", f"{path}:f", "--shape", "x=f32[9,6]") == 65


def test_errors_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.ug"
    path.write_text(BAD_UG["unknown op"][0])
    code, data = as_json(capsys, "optimize", str(path))
    assert code == 65
    assert data["error"]["file"] == str(path)
    assert data["error"]["line"] == 3
    assert data["error"]["kind"] == "bad input"


# --- what works ---------------------------------------------------------------------------------


def test_optimize(small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "winner.ug"
    code, data = as_json(capsys, "optimize", small, "--budget", "10", "-o", str(out))
    assert code == 0
    assert data["program"] == "small"
    assert data["speedup"] >= 1
    assert {"search_s", "verify_s", "tune_s", "states", "pruned", "candidates"} <= data.keys()
    assert data["improved"] == (data["certificate"] is not None)
    assert run("verify", small, str(out)) == 0
    assert run("optimize", small, "--budget", "10", "-o", str(tmp_path / "k.cpp")) == 0
    assert "Generated by Tessera" in (tmp_path / "k.cpp").read_text()
    assert "small" in capsys.readouterr().out


def test_search(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = as_json(capsys, "search", small)
    assert code == 0
    assert data["stop"] == "exhausted"
    assert data["states"] == sum(data[k] for k in ("values", "edges", "graphs", "tilings"))
    assert data["candidates"][0]["rank"] == 1
    assert run("search", small, "--show", "1") == 0
    assert "kernel" in capsys.readouterr().out


def test_search_goes_on(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(folder))
    _, whole = as_json(capsys, "search", small)
    code, cut = as_json(capsys, "search", small, "--budget", "1e-6")
    assert (code, cut["stop"], cut["resumable"]) == (2, "time budget", True)
    assert run("search", small, "--budget", "1e-6") == 2
    assert "--resume goes on" in capsys.readouterr().out
    code, rest = as_json(capsys, "search", small, "--resume")
    assert code == 0
    assert rest["resumed"].startswith("resumed after")
    assert [c["graph"] for c in rest["candidates"]] == [c["graph"] for c in whole["candidates"]]
    code, again = as_json(capsys, "search", small, "--resume")
    assert code == 0
    assert again["resumed"].startswith("nothing to resume")
    assert run("search", small, "--budget", "1e-6") == 2
    (saved,) = (folder / "searches").iterdir()
    saved.write_bytes(saved.read_bytes()[:-1])
    capsys.readouterr()
    assert run("search", small, "--resume") == 0
    assert "was ignored" in capsys.readouterr().out
    assert run("search", small, "--budget", "1e-6") == 2
    assert run("cache", "clear") == 0
    assert not (folder / "searches").exists()


def test_verify(small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.ug"
    other.write_text(SMALL.replace("exp", "log"))
    certificate = tmp_path / "proof.cert"
    capsys.readouterr()
    assert run("verify", small, small, "-o", str(certificate)) == 0
    table = capsys.readouterr().out.split("error against f64")[1].splitlines()
    normal = next(line.split() for line in table if line.startswith("normal"))
    largest, mean, largest_of_rewrite, mean_of_rewrite = (float(x) for x in normal[1:5])
    assert 0 < mean <= largest < 1e-5
    assert (largest, mean) == (largest_of_rewrite, mean_of_rewrite)  # the same program
    assert run("verify", small, small, "--certificate", str(certificate)) == 0
    assert "holds" in capsys.readouterr().out
    assert run("verify", small, str(other), "--certificate", str(certificate)) == 1
    assert run("verify", small, str(other)) == 1
    capsys.readouterr()
    code, data = as_json(capsys, "verify", small, str(other))
    assert (code, data["verdict"]) == (1, "refuted")
    assert data["counterexample"]["inputs"]
    certificate.write_text("certificate 1\nnonsense\n")
    assert run("verify", small, small, "--certificate", str(certificate)) == 65


def test_emit(small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("emit", small) == 0
    assert "Generated by Tessera" in capsys.readouterr().out
    assert run("emit", small, "--target", "cpu-generic", "-o", str(tmp_path / "k.cpp")) == 0
    assert "generic" in (tmp_path / "k.cpp").read_text().splitlines()[0]
    code, data = as_json(capsys, "emit", small)
    assert code == 0
    assert "Generated by Tessera" in data["source"]


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    code, data = as_json(capsys, "doctor")
    assert code == 0
    assert data["ok"]
    assert {row["what"] for row in data["checks"]} >= {"C++ compiler", "cache folder", "processor"}


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "Exit codes" in capsys.readouterr().out
    for verb in ("optimize", "search", "verify", "emit", "bench", "doctor", "cache"):
        assert run(verb, "--help") == 0
        assert "Examples:" in capsys.readouterr().out
    assert run("--version") == 0


def test_options_of_experts_are_shown_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("optimize", "search", "bench"):
        run(verb, "--help")
        assert "--seed N" not in capsys.readouterr().out
        assert run(verb, "--help-all") == 0  # SRC is not asked for
        shown = capsys.readouterr().out
        assert "--seed N" in shown
        assert "Examples:" in shown


# --- the environment: 70, nothing half-written ---------------------------------------------------


def tessera(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tessera", *args],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        check=False,
    )


def test_missing_compiler(small: str, tmp_path: Path) -> None:
    cache = tmp_path / "fresh"
    done = tessera("optimize", small, TESSERA_CXX="/nowhere/c++", TESSERA_CACHE_DIR=str(cache))
    assert done.returncode == 70
    assert "/nowhere/c++" in done.stderr
    assert "Traceback" not in done.stderr
    assert tessera("doctor", TESSERA_CXX="/nowhere/c++").returncode == 1


def test_paths_need_not_be_text() -> None:
    done = tessera("doctor", TESSERA_CXX="/nowhere/\udcff", TESSERA_CACHE_DIR="/dev/null/\udcfe")
    assert done.returncode == 1
    assert "/nowhere/\ufffd" in done.stdout
    assert "Traceback" not in done.stderr


def test_unusable_cache_folder_is_named(small: str, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    done = tessera("optimize", small, "--budget", "5", TESSERA_CACHE_DIR=str(blocked / "cache"))
    assert done.returncode in (0, 70)
    assert str(blocked) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_cache_folder(small: str, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    done = tessera("optimize", small, "--budget", "5", TESSERA_CACHE_DIR=str(folder))
    assert done.returncode in (0, 70)
    assert str(folder) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk(small: str, tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m tessera emit {small} > /dev/full",
        shell=True, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 70
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_output_folder_that_does_not_exist(small: str, tmp_path: Path) -> None:
    done = tessera("emit", small, "-o", str(tmp_path / "missing" / "k.cpp"))
    assert done.returncode == 70
    assert "cannot be written" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["small.ug"]


@pytest.mark.parametrize("verb", ["search", "emit", "verify {small}", "doctor --json #"])
def test_reader_that_goes_away(verb: str, small: str) -> None:
    command = f"{sys.executable} -m tessera {verb.format(small=small)} {small} | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command.replace(f"# {small}", "")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == ""


def test_closed_standard_output(small: str) -> None:
    done = subprocess.run(
        f"{sys.executable} -m tessera search {small} >&-",
        shell=True, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_program_on_standard_input(small: str) -> None:
    for text, code, where in ((Path(small).read_bytes(), 0, ""), (b"graph", 65, "<stdin>:1:"),
                              (b"\xff", 65, "<stdin>: ")):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "tessera", "emit", "-"],
            input=text, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == code
        assert done.stderr.decode().startswith(where)


def test_cache_verbs(tmp_path: Path, small: str) -> None:
    folder = tmp_path / "cache"
    environment = {"TESSERA_CACHE_DIR": str(folder)}
    assert tessera("optimize", small, "--budget", "5", **environment).returncode == 0
    info = json.loads(tessera("cache", "info", "--json", **environment).stdout)
    assert info["files"] > 0
    assert info["measurements"] == 1
    keep = folder / "precious.txt"
    keep.write_text("not ours")
    added = folder / "patterns" / "mine.pattern"  # as `patterns add` keeps it
    added.parent.mkdir(exist_ok=True)
    added.write_text("one of the user's own")
    assert tessera("cache", "clear", **environment).returncode == 0
    assert keep.exists()
    assert json.loads(tessera("cache", "info", "--json", **environment).stdout)["files"] == 2
    assert tessera("cache", "clear", "--all", **environment).returncode == 0
    assert keep.exists()
    assert not added.exists()


def test_what_is_no_compiler_is_named(small: str, tmp_path: Path) -> None:
    done = tessera("optimize", small, TESSERA_CXX="/bin/ls", TESSERA_CACHE_DIR=str(tmp_path / "c"))
    assert done.returncode == 70
    assert "'/bin/ls' is not a C++ compiler" in done.stderr


def test_interrupted_while_it_loads(small: str) -> None:
    """The first moments belong to imports; nobody wants to see where they were."""
    start = "import sys; from tessera.cli import main; print('here', flush=True); sys.exit(main())"
    ends = []
    for delay in (0.01, 0.05, 0.1, 0.15, 0.2, 0.3):
        process = subprocess.Popen(
            [sys.executable, "-c", start, "search", small],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # jobs ignore it
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert "tessera" not in err or "Traceback" not in err, err
        assert process.returncode in (0, 1, 2, 130, -2)
        ends.append((process.returncode, err))
    assert (2, "interrupted\n") in ends


def test_interrupted_checks_are_no_verdict() -> None:
    command = [sys.executable, "-m", "tessera", "rules", "check"]
    start = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, timeout=300, check=True)
    took = time.monotonic() - start
    for part in (0.6, 0.7, 0.5, 0.8, 0.6, 0.4, 0.7, 0.3):  # the machine may be busy with others
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # jobs ignore it
        )  # fmt: skip
        time.sleep(part * took)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        if "interrupted; of" in err:
            break
    assert "interrupted; of" in err
    assert process.returncode == 2, err
    assert "cancelled" not in out


def test_a_missing_folder_is_noticed_before_the_work(small: str, tmp_path: Path) -> None:
    out = str(tmp_path / "missing" / "x.ug")
    for arguments in (
        ["optimize", small, "-o", out],
        ["emit", small, "-o", out.replace(".ug", ".cpp")],
        ["verify", small, small, "-o", out],
        ["bench", "mirage", "--json", out],
    ):
        assert run(*arguments) == 70, arguments


def test_terminals_without_our_letters_are_written_to() -> None:
    code = "from tessera.cli.app import run; run(['--version']); print('5 µs')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                         env=os.environ | {"PYTHONIOENCODING": "ascii"})  # fmt: skip
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "5 ?s"), ran.stderr


def test_what_is_read_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "two.py"
    source.write_text('HELPER = 3\ndef f(a: "f64[4]"): return a + a\n')
    assert run("optimize", f"{source}:f", "-o", str(source), "--budget", "2") == 65
    assert "overwrite" in capsys.readouterr().err
    assert "HELPER" in source.read_text()


def test_a_link_is_written_through(tmp_path: Path) -> None:
    source, target, link = (tmp_path / n for n in ("f.py", "target.cpp", "link.cpp"))
    source.write_text('def f(a: "f64[4]"): return a + a\n')
    target.write_text("old")
    link.symlink_to(target)
    assert run("emit", f"{source}:f", "-o", str(link)) == 0
    assert link.is_symlink()
    assert target.read_text() != "old"


STAYS = """import numpy as np


def stays(x: "f64[50]"):
    return np.log10(x)  # as it was
"""


def test_what_is_not_faster_is_saved_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "s.py", tmp_path / "fast.py"
    source.write_text(STAYS)
    assert run("optimize", f"{source}:stays", "-o", str(out), "--budget", "2") == 0
    printed = capsys.readouterr().out
    assert "# as it was" in printed
    assert "this is the program as it was" in printed
    assert f"saved {out}, a copy of {source}" in printed
    assert out.read_text() == STAYS
    out.unlink()
    args = ("optimize", f"{source}:stays", "-o", str(out), "--budget", "2", "--emit", "numpy")
    assert run(*args) == 0
    assert "this is a translation of the program, not found to be faster" in capsys.readouterr().out
    assert "# a translation of the program" in out.read_text()


def test_improved_source_of_another_call_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def improved(graph: Graph, flavour: str, **_: Any) -> Rewrite:
        search = {"values": 1, "seconds": 0.0, "stop": "exhausted", "detail": ""}
        return Rewrite("f", flavour, graph, graph, improved=True, search=search,
                       source="def f(torch): ...", unlike="no text")  # fmt: skip

    monkeypatch.setattr("tessera.cli.optimize.rewrite", improved)
    source, out = tmp_path / "s.py", tmp_path / "fast.py"
    source.write_text('def f(torch: "f64[10]"):\n    return torch + 1\n')
    assert run("optimize", str(source), "-o", str(out)) == 65
    printed = capsys.readouterr()
    assert "def f(torch): ..." in printed.out
    assert "f is not saved: no text" in printed.err
    assert not out.exists()
    assert run("emit", str(source), "--emit", "numpy") == 0
    assert "# the original's call or result has no text: its parameter torch" in (
        capsys.readouterr().out
    )
