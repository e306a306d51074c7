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
from tessera import background, background_process, contest, decorator, tuner
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


def test_numbers_of_arrays_that_vary_do_not_have_a_program_each() -> None:
    """Of lists, *args, **kwargs and dicts, nested ones too, three have."""
    ones = np.ones((4, 4))

    def listed(xs: Any) -> Any:
        return sum(a * 2 for a in xs)

    def given(*xs: Any, **named: Any) -> Any:
        return sum(a * 2 for a in (*xs, *named.values()))

    calls: list[tuple[Any, Callable[[Any, int], Any]]] = [
        (listed, lambda f, n: f([ones] * n)),
        (given, lambda f, n: f(*[ones] * n)),
        (given, lambda f, n: f(**{f"a{n}": ones})),
        (lambda d: listed(d.values()), lambda f, n: f({str(i): ones for i in range(n)})),
        (lambda ps: listed(ps[0]), lambda f, n: f(([ones] * n, 1))),
    ]
    for function, call in calls:
        f = optimised(function)
        for n in range(1, 9):
            np.testing.assert_array_equal(call(f, n), call(function, n))
        assert len(f._known) == 3
        f._tuner.stop()


def test_kinds_of_calls_that_vary_without_end_do_not_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decorator, "_MOST_SIZES", 4)
    f = optimised(lambda a: np.asarray(a) * 2)
    for rank in range(1, 20):
        f(np.ones((1,) * rank))
    assert len(f._sizes) == 5
    assert len(f._known) == 7
    f._tuner.stop()


def test_lengths_that_vary_do_not_have_a_program_each() -> None:
    """Three sizes have; of 1,000 others each has when it came often, few at most."""
    f = optimised(scaled)
    for n in range(1, 1001):
        a = x[:1] * np.ones((n, 1))
        assert f(a).tobytes() == scaled(a).tobytes()
    assert len(f._known) == 3
    assert len(f._others) <= 65
    assert f._tuner.jobs <= 3
    assert len(f.status()) == 4
    assert "further sizes" in f.status()[-1].why
    many = x[:1] * np.ones((2000, 1))
    for _ in range(16):
        f(many)
    assert len(f._known) == 4
    assert f.wait()
    np.testing.assert_allclose(f(many), scaled(many))
    assert f.status()[3].form == "float64[2000,48]"
    assert "background" not in f.status()[3].why


def test_an_interrupted_start_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    done = list[int]()
    queue = tuner.Tuner()

    def interrupted(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.add(lambda _: done.append(1))
    assert queue.wait(10)
    assert done == [1]


def test_profilers_see_an_end() -> None:
    """An interrupt of Python's loop that is taken back never ended under one (3.11)."""
    code = "import cProfile, numpy as np, tessera as ts; f = ts.optimize(budget=2)(np.tanh); "
    code += "cProfile.run('f(np.ones(9)); print(f.wait(100))')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert "True" in ran.stdout, ran.stderr


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


def test_what_has_changed_too_often_is_not_adopted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    rate = [0.0]
    f = optimised(lambda a: np.exp(a * 0.5) - rate[0] * a)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for n in range(16):
            rate[0] = min(n, 12) / 8
            f(x)
        assert f.wait()
        for _ in range(4):
            np.testing.assert_allclose(f(x), np.exp(x * 0.5) - 1.5 * x, rtol=1e-12)


def test_equal_results_are_arrays_of_their_own() -> None:
    f = optimised(lambda a: (np.tanh(a).max(1), np.exp(a), np.max(np.tanh(a), axis=1)))
    f(x)
    assert f.wait()
    assert f.status()[0].runs != "original", f.status()[0].why
    first, _, again = f(x)
    np.testing.assert_allclose(first, np.tanh(x).max(1), rtol=1e-12)
    first[:] = 0
    np.testing.assert_allclose(again, np.tanh(x).max(1), rtol=1e-12)


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


def test_forked_processes_have_programs_made_of_their_own() -> None:
    f = optimised(softmax)
    f(x)
    f(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, in Python 3.12
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            alone = f._tuner._thread is None and "background" in f.status()[0].why
            same = np.allclose(f(x), softmax(x), rtol=1e-12) and f._tuner._thread is not None
            made = f.wait(100) and "background" not in f.status()[0].why
            code = 0 if alone and same and made and np.allclose(f(x), softmax(x)) else 2
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
    running = f._tuner._running
    if running is not None and running[1]._child is not None:
        break
    time.sleep(0.01)
print(running[1]._child.pid, flush=True)
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
    while (child := f._tuner._running and f._tuner._running[1]._child) is None:
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
        times = Times(1e-6, 1e-6, 0.0, 1.0, 1.0, 1.0, 24, "one")
        return contest.Choice("kernel", dict.fromkeys(entrants, times))

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


def told(runs: str, **noise: Any) -> contest.Choice:
    times = Times(1e-6, 1e-6, 0.0, 1.0, 1.0, 1.0, 24, "one")
    return contest.Choice(runs, {"kernel": times, "function": times}, **noise)


def test_what_was_told_on_a_busy_machine_starts_the_next_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contest, "fastest", lambda *_: told("kernel", provisional=True))
    optimised(softmax, wait=True)(x)
    asked = []
    monkeypatch.setattr(background.Helper, "optimise", lambda *_: asked.append(1))
    f = optimised(softmax)
    f(x)
    assert f.wait()
    assert (f.status()[0].runs, f.status()[0].why) == ("kernel", "too noisy to be sure")
    assert asked  # for a better one
    monkeypatch.setattr(contest, "fastest", lambda *_: told("function"))
    waits = optimised(softmax, wait=True)
    waits(x)
    assert waits.status()[0].runs == "original"  # it raced again


def test_nothing_is_searched_again_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where noise kept the cache from keeping that nothing was found."""
    choice = contest.written(told("kernel"))
    monkeypatch.setattr(background.Helper, "optimise", lambda *_: (choice, False))
    f = ts.optimize(budget=5)(softmax)
    f(x)
    found = f.result(x)
    assert found is not None
    assert all("is disabled" in s["detail"] for s in found.details["searches"])
    assert f.status()[0].runs == "kernel"


def test_the_function_runs_where_source_of_its_trace_was_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Times(100.0, 100.0, 0.0, 1.0, 1.0, 1.0, 24, "one")
    choice = contest.Choice("kernel", {"kernel": slow, "function": slow})
    monkeypatch.setattr(background.Helper, "optimise", lambda *_: (contest.written(choice), False))
    f = optimised(softmax)
    f(x)
    assert f.wait()
    assert f(x).tobytes() == softmax(x).tobytes()
    assert f.status()[0].runs == "original"
    assert f(x).tobytes() == softmax(x).tobytes()


def test_arguments_keep_their_strides() -> None:
    for a in (x[:, ::2], x[::-1], x.T[1:, ::-3], np.broadcast_to(scale, (3, 48))):
        made = background_process._strided(np.ascontiguousarray(a), a.strides)
        assert made.strides == a.strides
        np.testing.assert_array_equal(made, a)


def test_compilers_end_with_their_process(tmp_path: Path) -> None:
    compiler, began = tmp_path / "c++", tmp_path / "pid"
    compiler.write_text(f"#!/bin/sh\necho $$ > {began}.part; mv {began}.part {began}; sleep 300\n")
    compiler.chmod(0o700)
    code = f"""
import numpy as np, os, time, tessera as ts
f = ts.optimize(budget=300)(lambda a: np.exp(a) @ np.tanh(a).T)
f(np.ones((64, 64)))
while not os.path.exists({str(began)!r}):
    time.sleep(0.01)
os.kill(os.getpid(), KILL) if KILL else None
"""
    for kill in (0, 9):
        began.unlink(missing_ok=True)
        subprocess.run(
            [sys.executable, "-c", f"KILL = {kill}\n{code}"], timeout=100, check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path),
                              "TESSERA_CXX": str(compiler)},
        )  # fmt: skip
        pid, until = int(began.read_text()), time.monotonic() + 60
        while Path(f"/proc/{pid}/exe").exists():  # of no zombie
            assert time.monotonic() < until
            time.sleep(0.05)


def test_all_are_told_to_stop_before_any_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tuner.Tuner(), tuner.Tuner()
    monkeypatch.setattr(
        tuner, "_tuners", {second: None, first: None}
    )  # the waiting one comes first
    began = threading.Event()

    def job(stop: Callable[[], bool]) -> None:
        began.set()
        while not stop():
            time.sleep(0.01)

    for t in (first, second):
        t._jobs.append((job, None))
        t._thread = threading.Thread(target=t._work, daemon=True)
        t._thread.start()
        began.wait(20)
    ended = threading.Thread(target=tuner._stop_all, daemon=True)
    ended.start()
    ended.join(60)
    assert not ended.is_alive()


@pytest.mark.parametrize("call", ["f(x)", "ts.verify(g, g)", "g.run(x)"])
def test_daemon_threads_outlive_python(call: str) -> None:
    """A thread in a call while Python shuts down ends with it, not the process by an abort."""
    code = f"""
import threading, time, numpy as np, tessera as ts
def plain(x):
    time.sleep(0.01)
    return np.tanh(x) @ x
x = np.ones((8, 8))
f, g = ts.optimize(plain), ts.trace(lambda x: np.tanh(x) @ x, x)
def serve():
    while True:
        {call}
threading.Thread(target=serve, daemon=True).start()
time.sleep(0.5)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
