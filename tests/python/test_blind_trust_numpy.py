"""`@tessera.optimize` cannot be told from the function: state outside, memory, effects, values.

Each test calls the decorated function and the function itself side by side, on copies of the same
state, often enough that whatever is raced or compiled has taken over.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import inspect
import itertools
import math
import os
import pickle
import random
import threading
import time
import types
import warnings
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from quick import QUICK, UNSEARCHED
from test_decorator import same

import tessera as ts
from tessera.clock import Clock
from tessera.errors import UnsupportedError
from tessera.frontends.trace import trace_call

Array = np.ndarray[Any, np.dtype[Any]]
X = np.arange(6.0).reshape(2, 3) + 1
KERNEL = {**QUICK, "disable": (*UNSEARCHED, "numpy")}


def quietly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def reasons(function: Callable[..., Any], *args: Any) -> list[str]:
    """What a call warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args)
    assert all(w.filename == __file__ for w in caught)
    return [str(w.message) for w in caught]


# --- state outside ------------------------------------------------------------------------------

W = np.ones(3)
SCALE = 2.0
SIZES = {1, 2}


class Model:
    gain = 3.0

    def __init__(self) -> None:
        self.w = np.ones(3)
        self.layers = [np.ones(3), {"b": np.ones(3)}]
        self.rate = 0.5

    @property
    def half(self) -> Any:
        return self.w / 2

    @staticmethod
    def twice(x: Any) -> Any:
        return x * 2

    def inner(self, x: Any) -> Any:
        return x * self.w

    def __call__(self, x: Any) -> Any:
        return self.inner(x) + self.layers[1]["b"]


def set_global(value: Any) -> None:
    globals()["SCALE"] = value


def cases() -> dict[str, tuple[Callable[..., Any], Callable[[], None]]]:
    """Functions of X, and a change of what they read."""
    w, view_of = np.ones(3), np.ones((2, 3))
    view, table, model = view_of[0], {"w": [np.ones(3)]}, Model()
    index, items, settings = np.array([0, 1]), [1.0, 2.0], types.SimpleNamespace(eps=1e-3)
    box: dict[str, Any] = {"n": 1}
    scale = 1.0

    poly, own = np.polynomial.Polynomial([1.0, 2.0]), np.frompyfunc(lambda v: sum(items), 1, 1)
    dispatched = functools.singledispatch(lambda v: sum(items))

    def cell() -> None:
        nonlocal scale
        scale = 7.0

    def filled(array: Array, value: float = 9.0) -> Callable[[], None]:
        return lambda: array.__setitem__(Ellipsis, value)

    def default(x: Any, w: Any = w) -> Any:
        return x * w

    def keyword(x: Any, *, w: Any = w) -> Any:
        return x * np.exp(w)

    def attribute(x: Any) -> Any:
        return x * attribute.w

    attribute.w = w
    helper = functools.partial(lambda a, x: x + a, w)
    change = filled(w)
    found: dict[str, tuple[Callable[..., Any], Callable[[], None]]] = {
        name: (f, change)
        for name, f in {
            "itself": lambda x: x * w, "sqrt": lambda x: x * np.sqrt(w), "minus": lambda x: x + -w,
            "mean": lambda x: x * w.mean(), "share": lambda x: x * (w / w.sum()),
            "element": lambda x: x * w[0], "int": lambda x: x * int(w[0]),
            "float": lambda x: x * float(w.mean()),
            "branch": lambda x: x * 2 if w[0] > 5 else x * 3,
            "any": lambda x: x * (2 if (w > 5).any() else 3), "list": lambda x: x * sum(w.tolist()),
            "item": lambda x: x * w.item(0), "max": lambda x: x * max(w), "loop": lambda x: sum(
                x * v for v in w), "copy": lambda x: x * w.copy(),
            "array": lambda x: x * np.array(w),
            "asarray": lambda x: x * np.asarray(w, np.float32), "list of": lambda x: x * np.array(
                [w[0], 2.0, w[1]]), "stack": lambda x: x @ np.stack([w, w, w]),
            "reshape": lambda x: x * w.reshape(3, 1).T, "slice": lambda x: x[:, :2] * w[1:],
            "where": lambda x: np.where(w > 5, x * 2, x * 3), "outer": lambda x: x @ np.outer(w, w),
            "repr": lambda x: x * len(repr(w.tolist())), "default": default, "keyword": keyword,
            "attribute": attribute, "partial": lambda x: helper(x),
            "bytes": lambda x: x * w.tobytes()[6],
            "linalg": lambda x: x * np.linalg.norm(w), "inverse": lambda x: x @ np.linalg.inv(
                np.diag(w)), "sorted": lambda x: x * np.sort(w), "interp": lambda x: x * np.interp(
                0.5, [0.0, 1.0], w[:2]), "generator": lambda x: x * sum(float(v) for v in w),
            "equal": lambda x: x * (2 if np.array_equal(w, np.ones(3)) else 3),
            "try": lambda x: _guarded(x, w), "nested": lambda x: (lambda: x * w.sum())(),
        }.items()
    }  # fmt: skip
    found |= {
        "global": (lambda x: x * SCALE, lambda: set_global(5.0)),
        "global array": (lambda x: x * np.sqrt(W), filled(W)),
        "view": (lambda x: x * view, filled(view_of)),
        "table": (lambda x: x * table["w"][0].max(), filled(table["w"][0])),
        "table entry": (lambda x: x * table["w"][0], lambda: table.update(w=[np.full(3, 4.0)])),
        "table get": (lambda x: x * table.get("v", 2.0), lambda: table.update(v=7.0)),
        "self": (model.inner, filled(model.w)),
        "self again": (model.inner, lambda: setattr(model, "w", np.full(3, 4.0))),
        "call": (model, filled(model.layers[1]["b"])),
        "property": (lambda x: x * model.half, filled(model.w)),
        "object": (lambda x: x * model.rate, lambda: setattr(model, "rate", 4.0)),
        "shadow": (lambda x: x * model.gain, lambda: setattr(model, "gain", 4.0)),
        "method": (lambda x: model.twice(x), lambda: setattr(model, "twice", lambda x: x * 5)),
        "layers": (lambda x: x * model.layers[0].sum(), filled(model.layers[0])),
        "namespace": (lambda x: x * settings.eps, lambda: setattr(settings, "eps", 3.0)),
        "index": (lambda x: x[:, index] * 2, filled(index, 2)),
        "index value": (lambda x: x[:, index[0]] * 2, filled(index, 2)),
        "items": (lambda x: x * sum(items), lambda: items.append(9.0)),
        "items length": (lambda x: x * len(items), lambda: items.append(9.0)),
        "set length": (lambda x: x * len(SIZES), lambda: SIZES.add(len(SIZES) + 5)),
        "member": (lambda x: x * (2 if 99 in SIZES else 3), lambda: SIZES.add(99)),
        "dict": (lambda x: x * box["n"], lambda: box.update(n=5)),
        "dict length": (lambda x: x * len(box), lambda: box.update(m=5)),
        "cell": (lambda x: x * scale, cell),
        "environment": (lambda x: x * float(os.environ.get("TRUST", "2")),
                        lambda: os.environ.update(TRUST="5")),
        "deque": (lambda x, d=deque([1.0]): x * d[0], lambda: None),
        "polynomial": (lambda x: x * poly(2.0), lambda: poly.coef.__setitem__(0, 9.0)),
        "made ufunc": (lambda x: x * float(own(1.0)), lambda: items.append(9.0)),
        "vectorised": (lambda x: x * np.vectorize(lambda v: v + items[0])(np.ones(3)),
                       lambda: items.insert(0, 9.0)),
        "dispatched": (lambda x: x * dispatched(1), lambda: items.append(9.0)),
    }  # fmt: skip
    return found


def _guarded(x: Any, w: Any) -> Any:
    try:
        return x * (2 if float(w[0]) > 5 else 3)
    except Exception:
        return x * 100


@pytest.mark.parametrize("name", cases())
@pytest.mark.parametrize("options", [{"budget": 5}, KERNEL], ids=["race", "kernel"])
def test_changes_outside_are_seen(name: str, options: dict[str, Any]) -> None:
    function, change = cases()[name]
    state = SCALE, W.copy(), set(SIZES), os.environ.pop("TRUST", None)
    ours = ts.optimize(cache=False, **options)(function)
    try:
        for _ in range(3):
            same(quietly(ours, X), function(X))
            change()
            same(quietly(ours, X), function(X))
            same(quietly(ours, X), function(X))
    finally:
        set_global(state[0])
        W[...] = state[1]
        SIZES.clear()
        SIZES.update(state[2])
        os.environ.pop("TRUST", None)


def test_what_is_made_of_arrays_outside_is_compiled_not_refused() -> None:
    w = np.ones(3)
    for f in (
        lambda x: x * np.sqrt(w),
        lambda x: x * (w / w.sum()),
        lambda x: x * int(w[0]),
        lambda x: x * 2 if w[0] > 0 else x * 3,
    ):
        ours = ts.optimize(**KERNEL)(f)
        assert not reasons(ours, X)
        assert ours.result(X) is not None


def test_programs_that_read_what_changes_always_end_as_the_function() -> None:
    made = []

    def f(x: Any) -> Any:
        return x * len(made)

    ours = ts.optimize(**QUICK)(f)
    said = []
    for _ in range(12):
        made.append(0)
        said += reasons(ours, X)
        same(ours(X), f(X))
    assert len(said) == 1
    assert "changes from call to call" in said[0]


def test_arrays_that_are_replaced_need_no_new_program() -> None:
    model = Model()
    ours = ts.optimize(**KERNEL)(model.inner)
    quietly(ours, X)
    first = ours.result(X)
    for n in range(20):
        model.w = np.full(3, float(n))
        assert not reasons(ours, X)
        same(ours(X), model.inner(X))
    assert ours.result(X) is first


# --- effects ------------------------------------------------------------------------------------


class Loud:
    def __init__(self) -> None:
        self.count = 0
        self.seen: list[int] = []

    def method(self, x: Any) -> Any:
        self.count += 1
        return x * 2

    def listing(self, x: Any) -> Any:
        self.seen.append(len(self.seen))
        return x * 2


def effects() -> dict[str, tuple[Callable[..., Any], Callable[[], Any]]]:
    """Functions with an effect, and what it looks like from outside."""
    steps, count, log, loud = itertools.count(), Counter[str](), [0], Loud()
    array, rng, words = np.zeros(3), np.random.default_rng(1), deque[int]()
    gen, total = (i for i in range(10**6)), 0

    def attribute(x: Any) -> Any:
        attribute.calls += 1
        return x * 2

    attribute.calls = 0

    def closure(x: Any) -> Any:
        nonlocal total
        total += 1
        return x * total

    def module(x: Any) -> Any:
        globals()["SCALE"] = SCALE
        Model.gain += 1
        return x * 2

    def clears(x: Any) -> Any:
        count.clear()
        return x * 2

    def late(x: Any) -> Any:
        y = np.exp(x)
        log.append(1)
        return y

    def raising(x: Any) -> Any:
        log.append(2)
        if x.ndim > 1:
            raise KeyError("two")
        return x

    @functools.lru_cache
    def cached(n: int) -> int:
        log.append(n)
        return n

    def caught(x: Any) -> Any:
        try:
            log.append(float(x[0, 0]))
        except Exception:
            log.append(-1)
        return x * 2

    return {
        "iterator": (lambda x: x + next(steps), lambda: copy.copy(steps)),
        "generator": (lambda x: x + next(gen), lambda: gen.gi_frame.f_lasti and next(gen)),
        "counter": (lambda x: x * (count.update("a") or 2), lambda: dict(count)),
        "clear": (clears, lambda: dict(count)),
        "append": (lambda x: (log.append(1), x * 2)[1], lambda: len(log)),
        "pop": (lambda x: x * (log.append(5) or log.pop(0)), lambda: list(log)),
        "late": (late, lambda: len(log)),
        "raising": (raising, lambda: len(log)),
        "caught": (caught, lambda: list(log)),
        "cached": (lambda x: x * (cached(2) + 1), lambda: len(log)),
        "deque": (lambda x: (words.append(1), x * 2)[1], lambda: len(words)),
        "object": (loud.method, lambda: loud.count),
        "list of object": (loud.listing, lambda: len(loud.seen)),
        "attribute": (attribute, lambda: attribute.calls),
        "closure": (closure, lambda: total),
        "module": (module, lambda: Model.gain),
        "array": (lambda x: (array.__setitem__(0, array[0] + 1), x * 2)[1], lambda: array.copy()),
        "fill": (lambda x: (array.fill(array[1] + 1), x * 2)[1], lambda: array.copy()),
        "copyto": (lambda x: (np.copyto(array, array + 1), x * 2)[1], lambda: array.copy()),
        "out": (lambda x: np.add(array, 1, out=array) + x, lambda: array.copy()),
        "add at": (lambda x: (np.add.at(array, [0], 1), x * 2)[1], lambda: array.copy()),
        "rng": (lambda x: x * rng.random(), lambda: rng.bit_generator.state["state"]),
        "np.random": (lambda x: x * np.random.rand(), lambda: np.random.get_state()[2]),
        "random": (lambda x: x * random.random(), lambda: random.getstate()[1][:3]),
    }  # fmt: skip


@pytest.mark.parametrize("name", effects())
def test_effects_happen_as_often_as_calls(name: str) -> None:
    def observed(decorate: Callable[..., Any]) -> list[Any]:
        np.random.seed(3)
        random.seed(3)
        function, state = effects()[name]
        gain = Model.gain
        called, found = decorate(function), []
        for _ in range(4):
            try:
                found.append(np.asarray(quietly(called, X)).tolist())
            except KeyError as error:
                found.append(repr(error))
            found.append(repr(state()))
        Model.gain = gain
        return found

    assert observed(ts.optimize(**QUICK)) == observed(lambda f: f)


def test_output_comes_once(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    path = tmp_path / "log"

    def prints(x: Any) -> Any:
        y = x * 2
        print("called")
        return y

    def writes(x: Any) -> Any:
        with open(path, "a") as f:
            f.write("called\n")
        return x * 2

    def saves(x: Any) -> Any:
        (x * 2).tofile(str(path) + "2")
        return x * 2

    for function, reason in ((prints, "print"), (writes, "files"), (saves, "tofile")):
        ours = ts.optimize(**QUICK)(function)
        said = reasons(ours, X)
        ours(X)
        assert len(said) == 1
        assert reason in said[0]
    assert capsys.readouterr().out.split() == ["called"] * 2
    assert path.read_text().split() == ["called"] * 2


def test_tracing_runs_nothing_of_the_users() -> None:
    """Of a pure function the first call is the only one outside of races."""
    calls = []

    class Watched:
        @property
        def scale(self) -> float:
            calls.append(1)
            return 2.0

    watched = Watched()
    ours = ts.optimize(**QUICK)(lambda x: x * watched.scale)
    for _ in range(5):
        quietly(ours, X)
    assert len(calls) == 5


def test_long_loops_are_recorded_for_a_short_time_only() -> None:
    def f(x: Any) -> Any:
        for i in range(20_000):
            x = x * 1.0001 + i
        return x

    ours = ts.optimize(**QUICK)(f)
    start = time.thread_time()
    said = reasons(ours, X)
    took = time.thread_time() - start
    assert "too long to record" in said[0]
    start = time.thread_time()
    f(X)
    assert took < 10 * (time.thread_time() - start) + 0.5  # not the seconds of 40,000 operators


def test_long_python_code_is_traced_for_a_short_time_only() -> None:
    def f(x: Any) -> Any:
        total = 0
        for i in range(6_000_000):
            total += i % 3
        return x * total

    start = time.thread_time()
    f(X)
    plain = time.thread_time() - start
    ours = ts.optimize(cache=False, budget=0.5)(f)
    start = time.thread_time()
    said = reasons(ours, X)
    assert time.thread_time() - start < 10 * plain + 0.5  # all of it: 30 times as long
    # On a busy machine the rest of the budget may be over first, which is not warned of.
    assert not said or "its share of the budget" in said[0]
    assert threading.active_count() < 20


def test_code_that_handles_everything_is_interrupted_too() -> None:
    def f(x: Any) -> Any:
        try:
            while True:
                pass
        except:  # noqa: E722
            return x * 2

    for _ in range(10):
        with pytest.raises(UnsupportedError, match="share of the budget"):
            trace_call(f, (X,), {}, clock=Clock(0.001))
    for _ in range(50_000):
        pass  # nothing comes late


# --- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.T, lambda x: x, lambda x: x[0], lambda x: x[:, ::-1], lambda x: x.reshape(-1),
        lambda x: np.ravel(x), lambda x: np.asarray(x), lambda x: x.astype(float, copy=False),
        lambda x: (x * 2, x), lambda x: [x * 2, x[1:]], lambda x: np.broadcast_to(x, (4, 2, 3)),
        lambda x: np.real(x), lambda x: np.einsum("ij->ji", x), lambda x: np.split(x, 2),
        lambda x: x.squeeze(), lambda x: {"a": x.diagonal(), "b": x + 1}, lambda x: _halves(x + 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("options", [{"budget": 5}, KERNEL], ids=["race", "kernel"])
def test_views_stay_views(function: Callable[..., Any], options: dict[str, Any]) -> None:
    ours = ts.optimize(**options)(function)
    for _ in range(3):
        x = X.copy()
        assert shared(quietly(ours, x), x) == shared(function(x), x)


def _halves(x: Any) -> Any:
    return x[:1], x[1:], x


def shared(result: Any, x: Array) -> list[Any]:
    parts = list(result.values()) if isinstance(result, dict) else result
    parts = list(parts) if isinstance(parts, (list, tuple)) else [parts]
    arrays = [x, *parts]
    return [
        (i, j, a is b, np.shares_memory(a, b), b.flags.writeable, b.strides)
        for (i, a), (j, b) in itertools.combinations(enumerate(arrays), 2)
    ]


class Two(NamedTuple):
    a: Any
    b: Any


def test_the_same_object_twice_is_one() -> None:
    def twice(x: Any) -> Any:
        y, z = x + 1, x + 1
        return y, y, z, Two(y, z), {"y": y}

    for options in ({"budget": 5}, KERNEL):
        ours = ts.optimize(**options)(twice)
        for _ in range(3):
            a, b, c, d, e = ours(X)
            assert a is b is d.a is e["y"]
            assert c is d.b
            assert not np.shares_memory(a, c)
        assert ours.result(X) is not None


def test_results_lie_in_memory_as_numpys() -> None:
    fortran, cut = np.asfortranarray(X), np.arange(24.0).reshape(4, 6)[::2, ::2]
    for function in (lambda x, y: x * 2 + y, lambda x, y: (x @ y.T, (x + y).T, y - x)):
        for options in ({"budget": 5}, KERNEL):
            ours = ts.optimize(**options)(function)
            for _ in range(3):
                for args in ((X, X), (fortran, fortran), (X, fortran), (cut, cut), (cut, fortran),
                             (cut.T.copy().T, fortran)):  # fmt: skip
                    got, want = ours(*args), function(*args)
                    for a, b in zip(np.atleast_1d(got) if isinstance(got, np.ndarray) else got,
                                    np.atleast_1d(want) if isinstance(want, np.ndarray) else want,
                                    strict=True):  # fmt: skip
                        assert a.strides == b.strides
                        np.testing.assert_allclose(a, b)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + (1 if x.base is None else 5),
        lambda x: x * (2 if x.flags.owndata else 3),
        lambda x: x * x.strides[0],
        lambda x: x * (id(x) % 7),
        lambda x: x * len(str(x)),
        lambda x: x * len(f"{x}"),
        lambda x: x * len(f"{x!r}"),
        lambda x: x * (2 if type(x) is np.ndarray else 3),
        lambda x: x * (2 if hasattr(x, "ctypes") else 3),
        lambda x: x * (x.__array_interface__["data"][0] % 5),
        lambda x: x * (2 if hasattr(x, "builder") else 3),
        lambda x: x * (2 if isinstance(x, np.ndarray) else 3),
    ],
)
def test_questions_about_memory_and_text(function: Callable[..., Any]) -> None:
    ours = ts.optimize(**QUICK)(function)
    for x in (X, X[:], X.copy()):
        for _ in range(2):
            same(quietly(ours, x), function(x))


def test_one_array_twice_is_known_to_be_one() -> None:
    ours = ts.optimize(**QUICK)(lambda x, y: x * (2 if x is y else 3))
    for _ in range(2):
        same(quietly(ours, X, X.copy()), X * 3)
        same(quietly(ours, X, X), X * 2)


def test_an_array_that_is_made_and_written_to_has_its_values_of_then() -> None:
    def f(x: Any) -> Any:
        a = np.arange(3.0)
        y = x + a
        a[0] = 5
        return y * a

    ours = ts.optimize(**KERNEL)(f)
    for _ in range(3):
        same(quietly(ours, X), f(X))


# --- exceptions and warnings --------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"budget": 5}, KERNEL], ids=["race", "kernel"])
def test_indices_out_of_range_raise(options: dict[str, Any]) -> None:
    table = np.array([0, 1])
    good, bad = np.array([0, 1, -2]), (np.array([0, 2, 1]), np.array([0, 1, -3]))
    x = np.arange(8.0).reshape(2, 4)
    functions: list[tuple[Callable[..., Any], Callable[[Array], Array]]] = [
        (lambda x, i: x[i] * 2, lambda i: i),
        (lambda x, i: np.take(x, i + 1, axis=0) * 2, lambda i: i - 1),
        (lambda x, i: x[i, i + 1] * 2, lambda i: i),
        (lambda x, i: x.T[:, i] + 1, lambda i: i),
    ]
    for function, made in functions:
        ours = ts.optimize(cache=False, **options)(function)
        for _ in range(3):
            same(quietly(ours, x, made(good)), function(x, made(good)))
        for wrong in bad:
            with pytest.raises(IndexError) as theirs:
                function(x, made(wrong))
            with pytest.raises(IndexError) as caught:
                ours(x, made(wrong))
            assert str(caught.value) == str(theirs.value)
    outside = ts.optimize(cache=False, **options)(lambda x: x[table] * 2)
    for _ in range(3):
        same(outside(x), x[table] * 2)
    table[1] = 7
    with pytest.raises(IndexError):
        outside(x)


def test_floating_point_errors_are_raised_where_the_user_asks() -> None:
    for function, x in ((lambda x: 1 / x, np.zeros(4)), (lambda x: np.exp(x), np.full(4, 1e4)),
                        (lambda x: np.sqrt(x), np.full(4, -1.0))):  # fmt: skip
        ours = ts.optimize(**KERNEL)(function)
        for _ in range(3):
            quietly(ours, x)
        assert ours.result(x) is not None
        with np.errstate(all="raise"), pytest.raises(FloatingPointError):
            ours(x)
        told: list[Any] = []
        with np.errstate(all="call", call=lambda *a, told=told: told.append(a)):
            ours(x)
        assert told
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RuntimeWarning):
                ours(x)
        with np.errstate(all="ignore"):
            same(ours(x), quietly(function, x))
        same(quietly(ours, x), quietly(function, x))
    inside = ts.optimize(**QUICK)(_raising_inside)
    for _ in range(2):
        with pytest.raises(FloatingPointError):
            quietly(inside, np.zeros(3))


def test_filters_of_warnings_that_are_written_in_place_are_seen() -> None:
    x = np.zeros(4)
    ours = ts.optimize(**KERNEL)(lambda x: 1 / x)
    with warnings.catch_warnings():
        warnings.resetwarnings()
        for category in (ImportWarning, DeprecationWarning, ResourceWarning):
            warnings.simplefilter("default", category)
        for _ in range(3):
            quietly(ours, x)
        for _ in range(3):
            ours(x)
        kept = warnings.filters[1]
        for _ in range(2):
            warnings.filters[1] = ("error", None, RuntimeWarning, None, 0)
            with pytest.raises(RuntimeWarning):
                ours(x)
            warnings.filters[1] = kept
            assert np.isinf(ours(x)).all()


def _raising_inside(x: Any) -> Any:
    with np.errstate(divide="raise"):
        return 1 / x


def test_reasons_are_the_true_ones() -> None:
    steps, settings = iter(range(9)), deque([1])

    @dataclasses.dataclass
    class Out:
        a: Any

    for function, args, reason in (
        (lambda x: x + next(steps), (X,), "it uses steps, a range_iterator from outside"),
        (lambda x: x * settings[0], (X,), "it uses settings, a deque from outside"),
        (lambda x: x * time.time(), (X,), "time.time, which reads the clock"),
        (lambda x: x * len(os.environ), (X,), "os.environ, which asks the operating system"),
        (lambda x: x * random.random(), (X,), "draws random numbers"),
        (lambda xs: np.add(xs, 1), ([1.0, 2.0],), "none of its arguments is an array"),
        (lambda s: s * 2, (3.0,), "none of its arguments is an array"),
        (lambda x: 5, (X,), "returns no array that depends on its arguments"),
        (lambda x: Out(x * 2), (X,), "Out"),
        (lambda x: x.T, (X,), "returns memory of its arguments"),
    ):
        said = reasons(ts.optimize(**QUICK)(function), *args)
        assert len(said) == 1
        assert reason in said[0], said[0]


# --- being a function ---------------------------------------------------------------------------


@ts.optimize(**QUICK)
def decorated(x: Any, n: int = 2) -> Any:
    """Doubles."""
    return x * n


def plain(x: Any) -> Any:
    return x * 2


renamed = ts.optimize(**QUICK)(plain)


def test_decorated_functions_are_functions_to_python() -> None:
    assert inspect.isfunction(decorated)
    assert inspect.isroutine(decorated)
    assert decorated.__code__ is decorated.__wrapped__.__code__
    assert decorated.__defaults__ == (2,)
    assert decorated.__globals__ is globals()
    assert str(inspect.signature(decorated)) == "(x: 'Any', n: 'int' = 2) -> 'Any'"
    assert "return x * n" in inspect.getsource(decorated)
    assert inspect.getdoc(decorated) == "Doubles."
    assert inspect.getfile(decorated) == __file__
    assert inspect.ismethod(ts.optimize(**QUICK)(Model().inner))
    with pytest.raises(AttributeError):
        decorated.nothing  # noqa: B018


def test_decorated_functions_are_copied_and_pickled_as_functions_are() -> None:
    assert copy.copy(decorated) is decorated
    assert copy.deepcopy({"f": [decorated]})["f"][0] is decorated
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    again = pickle.loads(pickle.dumps(renamed))
    same(quietly(again, X), X * 2)
    assert again is not plain
    assert again._options == renamed._options
    local = ts.optimize(**QUICK)(lambda x: x * 2)
    assert copy.deepcopy(local) is local
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(local)
    model = pickle.loads(pickle.dumps(Bound()))
    same(quietly(pickle.loads(pickle.dumps(model.scaled)), X), X * 3)


class Bound:
    scale = 3.0

    @ts.optimize(**QUICK)
    def scaled(self, x: Any) -> Any:
        return x * self.scale


def test_constants_that_compare_equal_are_not_the_same() -> None:
    """Signs of zeros in complex numbers, in lists that are written to, and keys of dicts."""
    x = np.arange(1.0, 9.0)
    signs = ts.optimize(budget=1)(lambda x, c: x * math.copysign(1, c.real))
    for c in (0j, 0j, complex(-0.0, 0)):
        assert signs(x, c)[0] == math.copysign(1, c.real)

    def turned(x: Any, values: list[float]) -> Any:
        values[0] = -values[0]
        return x * 2

    def renamed(x: Any, values: dict[Any, float]) -> Any:
        values[True] = values.pop(1)
        return x * 2

    turn, rename = ts.optimize(budget=1)(turned), ts.optimize(budget=1)(renamed)
    for _ in range(3):
        values, named = [0.0], {1: 2.0}
        turn(x, values)
        rename(x, named)
        assert repr(values) == "[-0.0]"
        assert repr(named) == "{True: 2.0}"


def test_attributes_of_helpers_that_come_later() -> None:
    """One that was not there, another `__dict__`, another name."""
    x = np.arange(1.0, 9.0)

    def helper(x: Any) -> Any:
        return x * 1

    def scaled(x: Any) -> Any:
        try:
            scale = helper.scale
        except AttributeError:
            scale = 1.0
        return x * scale * len(helper.__name__)

    ours = ts.optimize(budget=1)(scaled)
    for _ in range(3):
        ours(x)
    helper.scale = 3.0
    same(ours(x), scaled(x))
    helper.__dict__ = {"scale": 7.0}
    same(ours(x), scaled(x))
    helper.__name__ = "other"
    same(ours(x), scaled(x))


class Mode(enum.Enum):
    FAST = 2.0


def counted(x: Any) -> Any:
    return x * getattr(counted, "k", 2.0) * counted._m * len(counted.__name__)


counted.k, counted._m = 2.0, 1.0
counted = ts.optimize(**KERNEL)(counted)


def test_attributes_of_the_optimised_function_are_the_functions() -> None:
    def check() -> None:
        for _ in range(3):
            same(counted(X), counted.__wrapped__(X))

    check()
    first = counted(X)[0, 0]
    for name, value in (("k", 3.0), ("_m", 5.0), ("__name__", "another")):
        setattr(counted, name, value)
        check()
    assert counted(X)[0, 0] == first * 7.5
    counted.__dict__["k"] = 4.0
    assert counted(X)[0, 0] == first * 10
    del counted.k
    assert quietly(counted, X)[0, 0] == first * 5  # runs as the original
    assert vars(counted) == {"_m": 5.0}
    counted.__name__ = "counted"


@pytest.mark.parametrize("what", ["object", "partial", "member", "class", "key", "argument"])
def test_dictionaries_and_members_that_change(what: str) -> None:
    class Scaled:
        k = 2.0

    class Kind(enum.Enum):
        A = 2.0

    scaled, part, table = Scaled(), functools.partial(lambda x: x * 2), {Kind.A: 1.0}

    def of_part(x: Any) -> Any:
        try:
            return part(x) * part.k
        except AttributeError:
            return part(x)

    functions: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
        "object": (lambda x, m: x * scaled.k, lambda: setattr(scaled, "__dict__", {"k": 3.0})),
        "partial": (lambda x, m: of_part(x), lambda: setattr(part, "k", 3.0)),
        "member": (lambda x, m: x * Kind.A.value, lambda: setattr(Kind.A, "_value_", 3.0)),
        "class": (lambda x, m: x * getattr(Kind, "k", 2.0), lambda: setattr(Kind, "k", 3.0)),
        "key": (lambda x, m: x * next(iter(table)).value,
                lambda: setattr(Kind.A, "_value_", 3.0)),
        "argument": (lambda x, m: x * m.value, lambda: setattr(Kind.A, "_value_", 3.0)),
    }  # fmt: skip
    function, change = functions[what]
    ours = ts.optimize(**KERNEL)(function)
    for _ in range(3):
        same(quietly(ours, X, Kind.A), function(X, Kind.A))
    change()
    for _ in range(3):
        same(quietly(ours, X, Kind.A), function(X, Kind.A))
    assert function(X, Kind.A)[0, 0] in (3.0, 6.0)


def test_members_that_stay_need_no_new_program() -> None:
    ours = ts.optimize(**KERNEL)(lambda x, m: x * m.value * Mode.FAST.value)
    for _ in range(3):
        assert not reasons(ours, X, Mode.FAST)
    assert len(ours._known) == 1


def test_dtypes_that_compare_equal_are_not_the_same() -> None:
    tagged = np.dtype(np.float64, metadata={"unit": "m"})

    def f(x: Any) -> Any:
        return x * (2 if x.dtype.metadata else 3 if x.dtype.char in "qQ" else 4)

    for of in (lambda x: x, lambda x: {"x": x}):
        g = f if of(1) == 1 else lambda d: f(d["x"])
        ours = ts.optimize(cache=False, **KERNEL)(g)
        whole = X.astype(np.int64)
        for x in (X, X.astype(tagged), X, whole, whole.astype(np.longlong), whole) * 2:
            same(quietly(ours, of(x)), g(of(x)))
    outside = X.copy()
    ours = ts.optimize(cache=False, **KERNEL)(lambda x: x * outside.dtype.num)
    for dtype in (np.int64, np.longlong, np.int64):
        outside.dtype = np.dtype(dtype)
        for _ in range(2):
            same(quietly(ours, X), X * outside.dtype.num)


def test_text_that_reads_like_a_type_is_text() -> None:
    def f(x: Any, text: str = "f32[1]") -> Any:
        return x * len(text.split("["))

    ours = ts.optimize(cache=False, **KERNEL)(f)
    for text in ("f32[3]", "f32[N]", "f32[]", "i64[2] > 0", "f32[-1]", "plain"):
        for _ in range(2):
            same(quietly(ours, X, text), f(X, text))
    assert "reads like a type" in reasons(ts.optimize(**QUICK)(f), X, "f32[3]")[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.broadcast_to(x * 2, (4, 2, 3)),
        lambda x: np.diagonal(x * 2),
        lambda x: np.diag(x @ x.T),
        lambda x: {"a": (x * 2).diagonal(), "b": x + 1},
        lambda x: np.broadcast_arrays(x * 2, np.ones((4, 1, 1))),
        lambda x: np.broadcast_to(x.sum(), ()),
        lambda x: np.broadcast_to(x.T * 2, (3, 2)),
    ],
)
@pytest.mark.parametrize("options", [{"budget": 5}, KERNEL], ids=["race", "kernel"])
def test_results_repeat_memory_and_are_written_to_as_numpys(
    function: Callable[..., Any], options: dict[str, Any]
) -> None:
    def facts(result: Any) -> list[Any]:
        parts = list(result.values()) if isinstance(result, dict) else result
        parts = list(parts) if isinstance(parts, (list, tuple)) else [parts]
        return [(p.flags.writeable, 0 in p.strides) for p in parts]

    ours = ts.optimize(cache=False, **options)(function)
    for _ in range(3):
        same(quietly(ours, X), function(X))
        assert facts(quietly(ours, X)) == facts(function(X))
