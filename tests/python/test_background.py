"""`@ts.optimize` without waiting: the original runs until its program is proved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quick import QUICK

import tessera as ts
from tessera import background, contest
from tessera.race import Times

x = np.linspace(-3, 3, 32 * 48).reshape(32, 48)
scale = np.linspace(1, 2, 48)


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TESSERA_WAIT", "0")
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o700)


def optimised(function: Callable[..., Any], **options: Any) -> Any:
    return ts.optimize(**QUICK, **options)(function)


def softmax(a: Any) -> Any:
    e = np.exp(a - a.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def scaled(a: Any) -> Any:
    return np.tanh(a) * scale + a * scale


def shifted(a: Any, by: float) -> Any:
    return np.exp(a * by) + by


def test_the_original_runs_until_its_program_is_there() -> None:
    f = optimised(softmax)
    assert f(x).tobytes() == softmax(x).tobytes()
    (status,) = f.status()
    assert (status.form, status.runs, status.speedup) == ("float64[32,48]", "original", None)
    assert "background" in status.why
    assert f(x).tobytes() == softmax(x).tobytes()
    assert f.wait()
    for _ in range(3):
        np.testing.assert_allclose(f(x), softmax(x), rtol=1e-12)
    (status,) = f.status()
    assert status.runs in ("kernel", "source", "original")
    assert status.speedup is not None
    assert "background" not in str(status)
    assert all(entry.seen for entry in f._known.values())  # a call went through the new program
    assert f.result(x).choice.runs == status.runs.replace("original", "function")


def test_wait_is_an_option() -> None:
    f = optimised(softmax, wait=True)
    f(x)
    assert "background" not in f.status()[0].why
    assert f.wait(0)


def test_forms_have_programs_of_their_own() -> None:
    f = optimised(softmax)
    others = [x, x[:16], x.astype(np.float32)]
    for a in others:
        f(a)
    assert [s.form for s in f.status()] == ["float64[32,48]", "float64[16,48]", "float32[32,48]"]
    assert f.result(others[1]) is not None
    assert f.wait()
    for a in others * 2:
        np.testing.assert_allclose(f(a), softmax(a), rtol=1e-5)


def test_floats_become_arguments() -> None:
    f = optimised(shifted)
    for by in (0.5, 0.25, 0.125):
        np.testing.assert_array_equal(f(x, by), shifted(x, by))
    assert f.wait()
    for by in (0.5, 0.25, 1.5, 0.0, float("inf"), 1.5):
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(f(x, by), shifted(x, by), rtol=1e-12)


def test_what_is_read_from_outside_may_change_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    f = optimised(scaled)
    f(x)
    monkeypatch.setitem(scaled.__globals__, "scale", np.linspace(5, 7, 48))
    np.testing.assert_array_equal(f(x), scaled(x))
    scale[:] = 2
    assert f.wait()
    for value in (2, 3, 4):
        scale[3:] = value
        np.testing.assert_allclose(f(x), scaled(x), rtol=1e-12)
    monkeypatch.setitem(scaled.__globals__, "scale", 3.5)
    np.testing.assert_allclose(f(x), scaled(x), rtol=1e-12)


def test_errors_are_the_originals() -> None:
    def product(a: Any, b: Any) -> Any:
        return (a @ b).sum()

    f = optimised(product)
    f(x, x.T.copy())
    for _ in range(2):
        with pytest.raises(ValueError, match="matmul"):
            f(x, x)
        assert f.wait()


def test_threads_may_call_while_programs_change() -> None:
    f, wrong = optimised(softmax), list[str]()
    expected, done = softmax(x), threading.Event()

    def call() -> None:
        while not done.is_set():
            if not np.allclose(f(x), expected, rtol=1e-12):
                wrong.append("other numbers")

    threads = [threading.Thread(target=call) for _ in range(4)]
    for t in threads:
        t.start()
    time.sleep(0.05)
    f.wait()
    time.sleep(0.05)
    done.set()
    for t in threads:
        t.join()
    assert not wrong
    f(x)
    assert "background" not in f.status()[0].why


def test_forked_processes_go_on_with_the_original() -> None:
    f = optimised(softmax)
    f(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, in Python 3.12
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            same = np.allclose(f(x), softmax(x), rtol=1e-12) and f.wait(5)
            f._tuner.stop()
            code = 0 if same else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert f.wait()
    f(x)
    assert f.status()[0].speedup is not None


def test_nothing_runs_on_at_exit(tmp_path: Path) -> None:
    code = """
import numpy as np, sys, time, tessera as ts
f = ts.optimize(budget=60)(lambda a: np.exp(a) @ np.tanh(a).T)
f(np.ones((64, 64)))
for _ in range(2000):
    helper = f._tuner._helper
    if helper is not None and helper._child is not None:
        break
    time.sleep(0.01)
print(helper._child.pid, flush=True)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(ran.stdout), 0)


def test_a_lost_process_is_told_once() -> None:
    f = optimised(softmax)
    f(x)
    until = time.monotonic() + 60
    while (child := f._tuner._helper and f._tuner._helper._child) is None:
        assert time.monotonic() < until
        time.sleep(0.001)
    os.kill(child.pid, signal.SIGKILL)
    assert f.wait()
    with pytest.warns(RuntimeWarning, match="softmax runs as plain NumPy.*ended early"):
        f(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(f(x), softmax(x))
    assert "ended early" in f.status()[0].why


def test_what_is_remembered_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def decided(entrants: Any, *_: Any) -> contest.Choice:
        times = {kind: Times(1e-6, 1e-6, 0.0, "one", 24, 1.0, 1.0, 1.0) for kind in entrants}
        return contest.Choice("kernel", times)

    monkeypatch.setattr(contest, "fastest", decided)
    optimised(softmax, wait=True)(x)
    monkeypatch.setattr(background.Helper, "optimise", lambda *_: pytest.fail("a process"))
    f = optimised(softmax)
    f(x)
    assert f.wait()
    f(x)
    assert f.status()[0].runs == "kernel"


def test_source_found_elsewhere_shares_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def turned(a: Any) -> Any:
        return np.ascontiguousarray(a.T) + 0.0

    source = "import numpy as np\n\ndef program(a):\n    return np.transpose(a)\n"
    choice = contest.Choice("source", {}, source, "program")
    monkeypatch.setattr(background.Helper, "optimise", lambda *_: (contest.written(choice), False))
    f = optimised(turned)
    a = x.copy()
    f(a)
    assert f.wait()
    f(a)
    assert f.status()[0].speedup is not None
    assert not np.may_share_memory(f(a), a)


def test_bits_stay_at_level_bitwise() -> None:
    def norm(a: Any) -> Any:
        return (a - scale) / np.sqrt(a * a * a + 29) + a * 0.1

    f = optimised(norm, level="bitwise")
    before = f(x).tobytes()
    assert f.wait()
    assert all(f(x).tobytes() == before for _ in range(3))
    assert f.status()[0].speedup is not None


def test_what_cannot_be_traced_is_told_at_once() -> None:
    def counted(a: Any) -> Any:
        print("called")
        return a + 1

    f = optimised(counted)
    with pytest.warns(RuntimeWarning, match="counted runs as plain NumPy"):
        f(x)
    assert f.status()[0].runs == "original"
