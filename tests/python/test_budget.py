"""Budgets hold for programs that grow: they end, with the original where nothing else is ready.

Time limits of subprocesses are guards against hanging; nothing is timed.
"""

from __future__ import annotations

import operator
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.clock import Clock, OutOfTime
from tessera.frontends.trace import trace_call
from tessera.options import Options
from tessera.rewrite import rewrite

X = np.random.default_rng(0).random(16)

_GROWING = """
import warnings
import numpy as np
import tessera as ts

def smooth(x):
    s, out = 0.0, np.empty_like(x)
    for i in range(len(x)):
        s = 0.9 * s + 0.1 * x[i]
        out[i] = s
    return out

def squares(x):
    for _ in range(200):
        x = x * x * 0.5 + 0.1
    return x

def largest(x):
    out = [x[:4]]
    for i in range(1, 150):
        out.append(np.maximum(out[-1], x[i : i + 4]))
    return np.stack(out)

def choices(x):
    for i in range(120):
        x = np.where(x > 0.5, x * 0.9, x + 0.1)
    return x

def many(x):
    return tuple(x[:3] * (i + 1) for i in range(300))

x = np.random.default_rng(0).random(200)
for function in (smooth, squares, largest, choices, many):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        fast = ts.optimize(budget=0.5)(function)
        for _ in range(2):
            np.testing.assert_allclose(fast(x), function(x))
    try:
        result = ts.superoptimize(function, x[:160], budget=0.5)
    except ts.errors.UnsupportedError as error:
        assert "too long to record" in str(error), error
    else:
        np.testing.assert_allclose(result(x[:160]), function(x[:160]))
    graph = ts.trace(function, x[:160])
    verdict = ts.verify(graph, graph, budget=0.5)
    assert verdict or "reason: time" in str(verdict), verdict
    print(function.__name__)
"""


def run(script: str, folder: Path, seconds: float = 300) -> str:
    folder.mkdir(mode=0o700, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TESSERA_CACHE_DIR": str(folder)},
        timeout=seconds,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_programs_that_grow_end(tmp_path: Path) -> None:
    assert run(_GROWING, tmp_path / "cache").split() == [
        "smooth", "squares", "largest", "choices", "many"
    ]  # fmt: skip


def test_what_load_may_have_cut_short_is_not_remembered(tmp_path: Path) -> None:
    script = """
import numpy as np
import tessera as ts
g = ts.Graph("g")
x = g.input("x", (8, 8))
for i in range(60):
    x = np.exp(x * 0.5)
g.output(x)
result = ts.superoptimize(g, budget=0.05)
print(result.improved, result.details["from_cache"])
"""
    first, second = (run(script, tmp_path / "cache") for _ in range(2))
    assert (first, second) == ("False False\n", "False False\n")


@pytest.mark.parametrize("after", [0.05, 0.3, 0.9, random.Random(4).uniform(1, 2)])
def test_ctrl_c_ends_and_leaves_nothing_running(after: float, tmp_path: Path) -> None:
    script = "import tessera as ts\nprint('ready', flush=True)\n" + (
        "import numpy as np\n"
        "def f(x):\n"
        "    for i in range(100): x = np.tanh(x * 0.5 + i)\n"
        "    return x\n"
        "ts.superoptimize(f, np.ones((8, 8)), budget=3600, cache=False)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "TESSERA_CACHE_DIR": str(tmp_path)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    time.sleep(after)
    child.send_signal(signal.SIGINT)
    child.wait(timeout=120)
    alive = ["pgrep", "--runstates", "R,S,D", "-s", str(child.pid)]  # no zombies
    assert subprocess.run(alive, capture_output=True, text=True).stdout.split() == []


# --- warnings -----------------------------------------------------------------------------------


class Setting:
    pass


def gives(x: Any) -> Any:
    yield x * 2


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        (lambda x: np.add(x, 1), ([1.0, 2.0],), ("it is called with a list", "np.asarray")),
        (lambda s: s * 2, (3.0,), ("it is called with a float", "np.asarray")),
        (lambda a, n: np.add(a, n), ([1.0], 2), ("with a list and an int", "np.asarray")),
        (lambda d: np.sum(d["a"]), ({"a": [1.0]},), ("with a dict", "np.asarray")),
        (lambda s: s + "x", ("abc",), ("with a str", "np.asarray")),
        (lambda: np.ones(3), (), ("no arguments", "reads no array from outside")),
        (lambda x: np.ones(3), (X,), ("returns no array that depends on its arguments",)),
        (gives, (X,), ("is a generator", "return a list or tuple")),
        (lambda g: sum(g), (iter([1, 2]),), ("an argument is a list_iterator", "pass the arrays")),
        (lambda x, k: x * 2, (X, Setting()), ("an argument is a Setting", "pass the arrays")),
        (lambda o: o == 1, (np.array([1, None]),), ("input o: dtype object is not supported",)),
        (lambda x: np.fft.fft(x), (X,), ("np.fft.fft is not supported",)),
        (lambda x: x if x[0] > 0 else -x, (X,), ("branches on the value", "use np.where")),
        (lambda x: x[1:], (X,), ("returns memory of its arguments", "return a copy")),
        (lambda x: (x.T, x), (X,), ("of another result (a view)", "return a copy")),
        (lambda x: (print(end=""), x * 2)[1], (X,), ("uses print", "has no effects")),
        (lambda x: operator.iadd(x, 1), (X.copy(),), ("in place", "write x = x + y")),  # type: ignore[no-untyped-call]
        (lambda x: x[x > 1], (X,), ("what a mask picks", "use np.where")),
    ],
)
def test_warnings_tell_the_true_reason(
    function: Callable[..., Any], arguments: tuple[Any, ...], words: tuple[str, ...]
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ts.optimize(budget=0.05, cache=False)(function)(*arguments)
    said = [str(w.message) for w in caught if "tessera" in str(w.message)]
    assert len(said) == 1
    assert all(word in said[0] for word in words), said[0]


def test_what_the_budget_does_not_compile_runs_as_numpy() -> None:
    def function(x: Any) -> Any:
        for i in range(120):
            x = np.tanh(x * 1.25 + i)
        return x

    fast = ts.optimize(budget=1e-3, cache=False)(function)
    with pytest.warns(
        RuntimeWarning, match=r"its budget of 0.001 s ended .* larger budget=.*steps"
    ):
        np.testing.assert_allclose(fast(X), function(X))
    np.testing.assert_array_equal(fast(X), function(X))
    assert fast.result(X) is None


# --- clocks -------------------------------------------------------------------------------------


def test_a_clock_that_is_over_says_so() -> None:
    assert Clock().left() == np.inf
    Clock(60).require(1)
    for clock in (Clock(0), Clock(-1)):
        assert clock.left() == 0
        with pytest.raises(OutOfTime):
            clock.require()
    with pytest.raises(OutOfTime):
        Clock(60).require(61)


def test_time_that_is_over_proves_nothing() -> None:
    """What was not proved is not claimed: neither a faster source nor other sizes."""

    def norm(x: Any) -> Any:
        return np.sqrt(np.sum(x * x) / len(x)) * 2 / 2

    traced = trace_call(norm, (X,), {})
    found = rewrite(traced.graph, function=norm, traced=traced, options=Options(budget=5),
                    seconds=0.0, translate=True)  # fmt: skip
    assert not found.improved
    assert found.other_sizes == 0
    with pytest.raises(ValueError, match=r"shape|sizes|extents"):
        found.function()(np.ones(7))
    kept = rewrite(traced.graph, function=norm, traced=traced, seconds=0.0)
    assert kept.function() is norm
