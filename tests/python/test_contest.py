"""Who runs for a call: kernels, NumPy source, or the function; and the memory of results."""

from __future__ import annotations

import gc
import re
import threading
import time
import warnings
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import _core, contest, direct_calls
from tessera.api import optimize_traced
from tessera.contest import Choice
from tessera.frontends.trace import trace_call
from tessera.options import Options
from tessera.race import Entrant, Race, Times

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(folder))


def winner(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Has one kind of contestant win every race."""

    def decide(entrants: list[Entrant], *_: Any) -> Race:
        for entrant in entrants:
            assert entrant.run is not None
            entrant.run()
        kinds = ["kernel", "function", "source"][: len(entrants)]
        won = Times(1e-6, 1e-6, ratio=9.0, low=8.0, high=10.0)
        return Race([won if k == kind else Times(1.0, 1.0) for k in kinds])

    monkeypatch.setattr(contest, "decide", decide)
    # Whatever else runs beside the tests: what is provisional is not remembered.
    monkeypatch.setattr("tessera.race.Load.is_busy", lambda self: False)
    monkeypatch.setattr("tessera.race.asleep", lambda *_, **__: True)


def rows(a: Any, b: Any) -> Any:
    return np.stack([x * y for x, y in zip(a, b, strict=True)]).sum(axis=1)


A = np.random.default_rng(1).random((12, 40), dtype=np.float32)
B = np.random.default_rng(2).random((12, 40), dtype=np.float32)


@pytest.mark.parametrize("kind", ["kernel", "source", "function"])
def test_all_kinds_give_the_functions_results(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    winner(monkeypatch, kind)
    if kind == "source":  # whatever its gain: rows() has a shorter form
        monkeypatch.setattr("tessera.rewrite._LEAST_GAIN", 0.0)
    fast = ts.optimize(budget=10)(rows)
    for given in ((A, B), (A[::-1], B), (A, np.asfortranarray(B)), (A * 2, B)):
        np.testing.assert_allclose(fast(*given), rows(*given), rtol=1e-5)
    np.testing.assert_allclose(fast(b=B, a=A), rows(A, B), rtol=1e-5)
    result = fast.result(A, B)
    assert result is not None
    assert result.choice.runs == kind
    assert result.json()["choice"]["runs"] == kind
    if kind == "source":
        assert "def rows(a, b):" in result.source
        assert result.certificate is not None
        assert result.certificate.is_of(result.original.core, result.graph.core)
    else:
        assert 'extern "C"' in result.source
    out = np.empty(12, np.float32)
    assert result(A, B, out=out) is out
    np.testing.assert_allclose(out, rows(A, B), rtol=1e-5)
    with pytest.raises(ts.Error):
        result(A[:5], B[:5])


def test_functions_that_numpy_runs_faster_run_under_numpy() -> None:
    @ts.optimize(budget=10)
    def same(a: Any) -> Any:
        return a.T.T

    a = np.ones((200, 200), np.float32)
    result = same.result(a)
    assert result is not None
    assert result.choice.runs in ("source", "function")
    kernels = ts.optimize(budget=10, disable=("numpy",))(same.__wrapped__)
    assert kernels.result(a).choice == Choice("kernel")  # type: ignore[union-attr]
    for f in (same, kernels):  # whoever would win: a view, as NumPy's
        with pytest.warns(RuntimeWarning, match="returns memory of its arguments"):
            assert np.shares_memory(f(a), a)
        assert np.shares_memory(f(a), a)
        assert f.result(a) is None
    a.flags.writeable = False
    assert not same(a).flags.writeable


def test_races_and_results_call_whatever_is_reported_of_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a process that has called no decorated function: nobody has looked yet."""
    monkeypatch.setattr(direct_calls._Filters, "same", None)
    raced: list[Any] = []

    def decide(entrants: list[Entrant], *_: Any) -> Race:
        raced.extend(e.run() for e in entrants if e.run is not None)
        return Race([Times(1.0, 1.0) for _ in entrants])

    monkeypatch.setattr(contest, "decide", decide)
    found = ts.superoptimize(rows, A, B, budget=5)
    raced.append(found._direct(A, B))  # type: ignore[misc]
    assert len(raced) >= 3
    for value in raced:
        np.testing.assert_allclose(value, rows(A, B), rtol=1e-5)


def test_where_the_budget_left_no_time_for_code_the_function_runs() -> None:
    def sines(x: Any) -> Any:
        return np.sin(x) + x

    late = ts.superoptimize(sines, A, budget=1e-6)
    assert late.choice.runs == "function"
    np.testing.assert_allclose(late(A), sines(A), rtol=1e-6)


def test_source_that_aliases_where_the_function_does_not_takes_no_part() -> None:
    a = np.arange(6, dtype=np.float32)
    arrays = [a]
    assert contest._alike(lambda: a.copy(), lambda: a + 0, arrays)
    assert not contest._alike(lambda: a, lambda: a + 0, arrays)
    assert contest._alike(lambda: a[::2], lambda: a[::2], arrays)
    assert not contest._alike(lambda: a[::2], lambda: a[0:3], arrays)
    assert not contest._alike(lambda: a.astype(np.float64), lambda: a + 0, arrays)
    assert not contest._alike(lambda: a[None] + 0, lambda: a + 0, arrays)
    assert not contest._alike(lambda: a + 1, lambda: a + 0, arrays)
    assert not contest._alike(lambda: 1 / 0, lambda: a + 0, arrays)
    b = a + 0
    assert not contest._alike(lambda: (b, b), lambda: (a + 0, a + 0), arrays)


def test_effects_do_not_multiply(capsys: pytest.CaptureFixture[str]) -> None:
    @ts.optimize(budget=10)
    def loud(a: Any) -> Any:
        print("called")
        return a * 2 + a

    with pytest.warns(RuntimeWarning, match="it uses print"):
        loud(A)
    loud(A)
    assert capsys.readouterr().out.split() == ["called"] * 2


def test_a_choice_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    winner(monkeypatch, "source")
    monkeypatch.setattr("tessera.rewrite._LEAST_GAIN", 0.0)
    traced = trace_call(rows, (A, B), {})
    first = optimize_traced(rows, traced, Options(budget=10))
    assert first.choice.runs == "source"

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("measured again")

    monkeypatch.setattr(contest, "decide", never)
    monkeypatch.setattr(contest, "_source", never)
    second = optimize_traced(rows, traced, Options(budget=10))
    assert second.choice.source == first.choice.source
    assert second.graph == first.graph
    assert second.certificate is not None
    with pytest.raises(AssertionError, match="measured again"):
        optimize_traced(rows, traced, Options(budget=10, level="fast"))
    assert str(second.certificate) != str(first.certificate)  # proved again
    # What is written there is not believed: other source, other programs, what is no text of ours.
    options = Options(budget=10)
    key = contest.key_of(rows, traced.graph, [A, B], options)
    text = _core.find_text(key.exact)
    assert text is not None
    other = trace_call(lambda a, b: (a + b).sum(axis=1), (A, B), {})
    changed = re.sub(r"np\.vecdot\(-?\w, -?\w\)", "np.vecdot(a, a)", text)
    assert changed != text
    for planted, of, read in [
        (text, traced, True), (text, other, False), (changed, traced, False), ("[]", traced, False),
        ('{"runs": "source"}', traced, False), ("1" * 5000, traced, False),
    ]:  # fmt: skip
        assert (contest._remembered(planted, of, options) is not None) is read


def test_source_that_holds_for_other_extents_is_not_searched_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    winner(monkeypatch, "source")
    monkeypatch.setattr("tessera.rewrite._LEAST_GAIN", 0.0)
    fast = ts.optimize(budget=10)(rows)
    fast(A, B)
    first = fast.result(A, B)
    assert first is not None
    assert first.choice.runs == "source"
    searched = []
    monkeypatch.setattr(contest, "_source", lambda *args: searched.append(args))
    fast = ts.optimize(budget=10)(rows)  # of another process, say
    c, d = A[:5, :9], B[:5, :9]
    np.testing.assert_allclose(fast(c, d), rows(c, d), rtol=1e-5)
    again = fast.result(c, d)
    assert again is not None
    assert again.choice.runs == "source"
    assert again.choice.source == first.choice.source
    assert again.certificate is not None
    assert again.certificate.is_of(again.original.core, again.graph.core)
    assert not searched
    fast(A.astype(np.float64), B.astype(np.float64))  # another program
    assert searched
    # What is not proved at these extents is not taken.
    wrong = ("def rows(a, b):\n    return (a * b).sum(axis=1) + (len(a) - 5)\n", "rows")
    traced = trace_call(rows, (c, d), {})
    assert contest._at_these_extents(wrong, traced, Options()) is not None
    traced = trace_call(rows, (A, B), {})
    for planted in (wrong, [], 5, ["1", "f"], ("raise KeyError", "f"), {"source": ""}):
        assert contest._at_these_extents(planted, traced, Options()) is None


def test_slow_functions_are_not_run_often() -> None:
    count = {"slow": 0, "fast": 0}

    def slow() -> None:
        count["slow"] += 1
        time.sleep(0.06)

    def fast() -> None:
        count["fast"] += 1

    choice = contest.fastest({"kernel": Entrant(fast), "function": Entrant(slow)}, [], 9.0)
    assert count["slow"] <= 2
    assert choice.runs == "kernel"
    assert choice.seconds["kernel"] < choice.seconds["function"]

    def broken() -> None:
        raise ValueError

    choice = contest.fastest({"kernel": Entrant(broken), "function": Entrant(fast)}, [], 9.0)
    assert choice.runs == "function"
    assert choice.undecided


@pytest.mark.parametrize("kind", ["decided", "too noisy", "provisional", "noisy search"])
def test_verdicts_of_chance_are_not_remembered(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    high = 2.0 if kind == "too noisy" else 1.0
    times: list[Times | None] = [Times(1e-3, 1e-3)]
    times.append(Times(1e-3, 1e-3, 0.5, 1.0, 0.5, high, 30))
    held = Race(times, kind == "provisional")
    races = []

    def decide(*_: Any) -> Race:
        races.append(held)
        return held

    monkeypatch.setattr(contest, "decide", decide)
    none = Choice("function", undecided=kind == "noisy search")
    monkeypatch.setattr(contest, "_source", lambda *_: none)
    traced = trace_call(rows, (A, B), {})
    for _ in range(2):
        choice = optimize_traced(rows, traced, Options(budget=10)).choice
        assert choice.json()["too_noisy"] == (kind in ("too noisy", "noisy search"))
        assert choice.json()["provisional"] == (kind == "provisional")
    assert len(races) == (1 if kind == "decided" else 2)


# --- direct calls --------------------------------------------------------------------------------


def test_direct_calls_take_what_they_were_made_for_only() -> None:
    direct_calls.quiet_now()  # as the first call does
    scale = 3.0

    def f(x: Any, n: int = 2, *, name: str = "a") -> Any:
        return x * scale

    known = direct_calls.slots((A, 2), {"name": "a"}, [0, 1, "name"])
    environment = contest_environment(f)
    call = direct_calls.direct_call(known, environment)
    assert call is not None
    call.run_function(f, None, True)
    assert np.array_equal(call(A, 2, name="a"), A * 3)
    for args, kwargs in (
        ((A,), {}),
        ((A, 3), {"name": "a"}),
        ((A, 2.0), {"name": "a"}),
        ((A, True), {"name": "a"}),
        ((A, 2), {"name": "b"}),
        ((A, 2), {"other": "a"}),
        ((A[:3], 2), {"name": "a"}),
        ((A.astype(np.float64), 2), {"name": "a"}),
        ((A.T, 2), {"name": "a"}),
        ((np.ma.masked_array(A), 2), {"name": "a"}),
        ((A.tolist(), 2), {"name": "a"}),
    ):
        assert call(*args, **kwargs) is NotImplemented, (args[1:], kwargs)
    scale = 4.0
    assert call(A, 2, name="a") is NotImplemented
    assert direct_calls.slots(({1}, 2), {}, [0, 1]) is None
    assert direct_calls.slots(([OrderedDict(a=A)], 2), {}, [0, 1]) is None
    minus = direct_calls.direct_call(direct_calls.slots((0.0,), {}, [0]), None)
    assert minus is not None
    minus.run_function(lambda x: x, None, True)
    assert minus(-0.0) is NotImplemented
    assert minus(0.0) == 0.0


def contest_environment(function: Any) -> Any:
    return trace_call(function, (A,), {}).environment


def test_calls_of_several_forms_stay_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = ts.optimize(budget=10)(rows)
    forms = [(A[:n].copy(), B[:n].copy()) for n in (3, 5, 7)]
    for form in forms:
        fast(*form)
    monkeypatch.setattr(type(fast), "_call_slowly", None)
    for form in forms * 2:
        np.testing.assert_allclose(fast(*form), rows(*form), rtol=1e-5)
    assert fast.number_of_calls() == 3


def test_decorated_functions_are_collected() -> None:
    def make() -> Any:
        def inner(a: Any) -> Any:
            return a * 2 if a.ndim else own(a)

        own = ts.optimize(budget=5)(inner)
        own(A)
        return weakref.ref(own)

    gone = make()
    gc.collect()
    assert gone() is None


# --- results -------------------------------------------------------------------------------------


def doubled(budget: float = 10) -> Any:
    return ts.optimize(budget=budget, disable=("numpy",))(lambda a: a * 2 + 1)


def test_results_own_aligned_memory_that_is_used_again() -> None:
    fast = doubled()
    a = np.ones((100, 100), np.float32)
    first = fast(a)
    first = fast(a)
    assert first.flags.owndata
    assert first.base is None
    assert first.ctypes.data % 64 == 0
    address = first.ctypes.data
    second = fast(a)
    assert second.ctypes.data != address  # the first is alive
    first += 1  # and is the caller's alone
    assert np.array_equal(second, a * 3)
    view = first[3:]
    del first
    assert fast(a).ctypes.data != address
    del view
    gc.collect()
    assert address in [r.ctypes.data for r in [fast(a) for _ in range(2)]]
    # Memory that others gave: still NumPy's own.
    assert np.empty((100, 100), np.float32).flags.owndata


def test_results_can_grow_and_outlive_the_program() -> None:
    fast = doubled()
    a = np.arange(10_000, dtype=np.float64)
    result = fast(a)
    del fast
    gc.collect()
    result.resize(20_000, refcheck=False)
    assert np.array_equal(result[:10_000], a * 2 + 1)
    assert not result[10_000:].any()
    result.resize(10, refcheck=False)
    assert np.array_equal(result, a[:10] * 2 + 1)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (511,), (512,), (513,), (2**17,)])
def test_results_of_all_sizes(shape: tuple[int, ...]) -> None:
    def f(a: Any) -> Any:
        return a * 2 + 1

    fast = ts.optimize(budget=5)(f)
    a = np.full(shape, 4.0, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # zero elements may run as plain NumPy
        for _ in range(3):
            result = fast(a)
    assert type(result) is type(f(a))
    assert result.dtype == np.float32
    assert result.shape == shape
    assert np.all(result == 9)


def test_threads_do_not_share_results() -> None:
    fast = doubled()
    fast(np.zeros((64, 64), np.float32))
    wrong = []

    def work(k: int) -> None:
        a = np.full((64, 64), k, np.float32)
        kept: list[Any] = []
        for i in range(300):
            kept.append(fast(a))
            if i % 3 == 0:
                kept = kept[-2:]
        if not all(np.all(r == 2 * k + 1) for r in kept):
            wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("ratio", [2.0, 4.0])
def test_source_is_sought_where_kernels_are_not_plainly_ahead(
    monkeypatch: pytest.MonkeyPatch, ratio: float
) -> None:
    sought: list[float] = []

    def races(entrants: Any, *_: Any) -> contest.Choice:
        times = {k: Times(s, s) for k, s in zip(entrants, (1e-6, ratio * 1e-6, 3e-6), strict=False)}
        return contest.Choice("kernel", times)

    monkeypatch.setattr(contest, "fastest", races)
    monkeypatch.setattr(contest, "_source", lambda *args: sought.append(args[-1]))
    fast = ts.optimize(budget=5, wait=True, cache=False)(rows)
    np.testing.assert_allclose(fast(A, B), rows(A, B), rtol=1e-5)
    assert sought == ([1e-6] if ratio < 3 else [])


def test_a_search_for_source_that_breaks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any, **__: Any) -> None:
        raise AttributeError("no such thing")

    monkeypatch.setattr(contest, "rewrite", breaks)
    monkeypatch.setattr(contest, "_PLAINLY", np.inf)
    fast = ts.optimize(budget=5)(rows)
    with pytest.warns(
        UserWarning, match=r"rows has no NumPy source: AttributeError.*please report"
    ):
        np.testing.assert_allclose(fast(A, B), rows(A, B), rtol=1e-5)


def test_floats_as_arguments_have_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def damped(x: Any, rate: float) -> Any:
        return np.exp(np.log(np.abs(x) + 1) * rate)

    fast = ts.optimize(budget=5)(damped)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "tessera")
        for rate in (0.5, 0.25, 0.125):  # from the second on an argument
            result = fast(A, rate)
            assert result.dtype == np.float32
            np.testing.assert_allclose(result, damped(A, rate), rtol=1e-5)


def test_constants_between_results_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(x: Any) -> Any:
        y = np.exp(np.log(x + 1.0))
        return {"y": y, "order": 3, "rest": [y, None, y * x]}

    monkeypatch.setattr("tessera.rewrite._LEAST_GAIN", 0.0)  # whatever its gain
    fast = ts.optimize(budget=5)(parts)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "tessera")
        got, want = fast(A), parts(A)
    assert got["order"] == 3
    np.testing.assert_allclose(got["y"], want["y"], rtol=1e-5)
    np.testing.assert_allclose(got["rest"][2], want["rest"][2], rtol=1e-5)
