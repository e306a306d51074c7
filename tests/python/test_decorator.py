"""`@tessera.optimize` is unseen: results, exceptions, side effects and random numbers stay."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import warnings
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import tessera as ts
from tessera.frontends.trace import trace_call

Array = np.ndarray[Any, np.dtype[Any]]
X = np.random.default_rng(3).uniform(0.5, 2, (4, 6)).astype(np.float32)


def same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key in theirs:
            same(ours[key], theirs[key])
    elif isinstance(theirs, (np.ndarray, np.generic)):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if theirs.dtype.kind == "f":
            values = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
            np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(ours, theirs)
    else:
        assert ours == theirs


def plain_numpy(function: Callable[..., Any], *args: Any) -> str:
    """Runs the function decorated and not; returns the one warning."""
    f = ts.optimize(budget=2)(function)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            same(f(*args), function(*args))
    assert len(caught) == 1, [str(w.message) for w in caught]
    assert caught[0].filename == __file__
    return str(caught[0].message)


class Pair(NamedTuple):
    mean: Any
    spread: Any


def optimised(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    f = ts.optimize(budget=2)(function)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "tessera")
        for _ in range(2):
            same(f(*args, **kwargs), function(*args, **kwargs))
    assert f.result(*args, **kwargs) is not None


def test_structures_of_results() -> None:
    optimised(lambda x: Pair(x.mean(axis=0), {"spread": [x.std(axis=0), 3, "name", None]}), X)
    optimised(lambda x, *, k=2: (x * k, x.sum()), X, k=3)
    optimised(lambda x: np.array(2.0) * x, X)
    optimised(lambda x: x[0, 0] + 1, X)  # a NumPy scalar


def test_where_programs_depend_on_types() -> None:
    def f(x: Any) -> Any:
        y = x.sum()
        scale = 2 if isinstance(x, np.ndarray) else 3
        return x * scale * (5 if isinstance(y, np.ndarray) else 7)

    optimised(f, X)


@pytest.mark.parametrize("call", ["position", "name"])
def test_floats_that_vary_share_a_program(call: str) -> None:
    def f(x: Any, s: float, t: float = 1.0) -> Any:
        return x * (s * 2 + t) - 1 / s

    def called(g: Any, s: float) -> Any:
        return g(X, s) if call == "position" else g(X, s=s)

    ours = ts.optimize(budget=2)(f)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "tessera")
        for s in (0.5, 1.5, -2.5, 1e30, 3.5):
            same(called(ours, s), f(X, s))
        same(ours(X.T, 2.5), f(X.T, 2.5))  # not contiguous
    assert len(ours._known) <= 5
    with pytest.raises(ZeroDivisionError):
        called(ours, 0.0)


def test_floats_keep_the_dtype_of_the_array() -> None:
    f = ts.optimize(budget=2)(lambda x, s: np.where(x > s, x, s) + np.maximum(x, s * 0.5))
    half = X.astype(np.float16)
    for s in (0.75, 1.25, 1.75):
        same(f(half, s), f.__wrapped__(half, s))
        same(f(X, s), f.__wrapped__(X, s))


def test_too_many_constants() -> None:
    f = ts.optimize(budget=1)(lambda x, n: x * n)
    with pytest.warns(RuntimeWarning, match="different sets of constants"):
        results = [f(X, n) for n in range(12)]
    for n, result in enumerate(results):
        same(result, X * n)
    assert len(f._known) <= 9


COUNT = {"calls": 0}
LOG: list[int] = []
TOTAL = np.zeros(3)


def counts(x: Any) -> Any:
    COUNT["calls"] += 1
    return x * 2


def logs(x: Any) -> Any:
    LOG.append(len(LOG))
    return x * 2


def test_side_effects_happen_once_per_call() -> None:
    COUNT["calls"] = 0
    LOG.clear()
    f, g = ts.optimize(budget=2)(counts), ts.optimize(budget=2)(logs)
    with pytest.warns(RuntimeWarning, match="it changes a dict, COUNT"):
        f(X)
    with pytest.warns(RuntimeWarning, match="it changes a list, LOG"):
        g(X)
    f(X)
    g(X)
    assert COUNT == {"calls": 2}
    assert LOG == [0, 1]


def test_writes_to_arrays_from_outside() -> None:
    TOTAL[:] = 0

    def f(x: Any) -> Any:
        TOTAL[0] += 1
        return x * 2

    with pytest.warns(RuntimeWarning, match="writes into an array in place"):
        ts.optimize(budget=2)(f)(X)
    assert TOTAL[0] == 1
    TOTAL[:] = 0  # writable again


def test_random_numbers_are_those_without_us() -> None:
    rng = np.random.default_rng(5)

    def f(x: Any) -> Any:
        return x + np.random.rand() + random.random() + rng.random()

    def draw(g: Callable[..., Any]) -> Any:
        np.random.seed(1)
        random.seed(1)
        rng.bit_generator.state = np.random.default_rng(5).bit_generator.state
        return g(X)

    expected = draw(f)
    g = ts.optimize(budget=2)(f)
    with pytest.warns(RuntimeWarning, match="random numbers"):
        np.testing.assert_array_equal(draw(g), expected)


def test_changed_arguments() -> None:
    def f(xs: list[Any]) -> Any:
        xs.append(xs[0] * 2)
        return xs[0] + 1

    g = ts.optimize(budget=2)(f)
    xs = [X]
    with pytest.warns(RuntimeWarning, match="changes a list or dict among its arguments"):
        g(xs)
    assert len(xs) == 2


def factorial(x: Any, n: int) -> Any:
    return x if n == 0 else factorial(x, n - 1) * n


def test_recursion_with_constants_is_traced() -> None:
    optimised(lambda x: factorial(x, 4), X)


def endless(x: Any) -> Any:
    return endless(x)


def writes(x: Any) -> Any:
    x = x.copy()
    row = x[0]
    x[1] = 0
    return x + row


def raises(x: Any) -> Any:
    if x.shape[0] == 4:
        raise KeyError("four")
    return x


def branches(x: Any) -> Any:
    return x * 2 if x[0, 0] > 0 else x


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (branches, (X,), "branches on the value"),
        (writes, (X,), "others share"),
        (lambda x: np.linalg.svd(x), (X,), "svd"),
        (lambda x: np.sort(x), (X,), "sort"),
        (lambda x: [float(v) for v in x[0]], (X,), "value of a traced array"),
        (lambda x: x.tolist(), (X,), "value of a traced array"),
        (lambda x: x + 1j, (X,), "complex"),
        (lambda x: x * 2, (X.astype(object),), "object"),
        (lambda x: x + x, (np.array(["a", "b"]),), "<U1"),
        (lambda x: x * 2, (X.astype(">f4"),), ">f4"),
        (lambda x: x * 2, (X.astype(np.uint16),), "uint16"),
        (lambda x: x * 2, (np.zeros((0, 3), np.float32),), "positive"),
        (lambda x: x * 2, (np.ma.masked_array(X, X > 1),), "MaskedArray"),
        (
            lambda x: [np.asarray(r).sum() for r in x],
            ([[1.0], [2.0, 3.0]],),
            "none of its arguments",
        ),
        (lambda x: 5, (X,), "returns no array"),
        (lambda x: {1, 2}, (X,), "returns no array"),
        (lambda x: sum(1 for row in x if row.sum() > 4), (X,), "branches on the value"),
    ],
)
def test_plain_numpy_with_one_warning(
    function: Callable[..., Any], args: tuple[Any, ...], message: str
) -> None:
    warning = plain_numpy(function, *args)
    assert message in warning
    assert "runs as plain NumPy: " in warning
    assert "test_decorator.py:" in warning


def test_what_runs_as_plain_numpy_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    optimized = ts.optimize(lambda x: x[int(x[0, 0])])
    with pytest.warns(RuntimeWarning, match="plain NumPy"):
        first = optimized(X)
    optimized(X)  # the filters of warnings are others now

    def slowly(*_: Any) -> Any:
        raise AssertionError("a call of a known form took the slow way")

    monkeypatch.setattr(type(optimized), "_call_slowly", slowly)
    same(optimized(X), first)
    with pytest.raises(AssertionError, match="slow way"):
        optimized(X[:3])


@pytest.mark.parametrize(
    ("function", "kind"),
    [(raises, KeyError), (endless, RecursionError), (lambda x: x @ x, ValueError),
     (lambda x: x[7], IndexError), (lambda x: x.nothing, AttributeError),
     (lambda x: np.sum(x, axis=5), np.exceptions.AxisError), (lambda x: x.reshape(5), ValueError),
     (lambda: 1, TypeError)],
)  # fmt: skip
def test_exceptions_are_the_originals(function: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind) as theirs:
        function(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(kind) as ours:
            ts.optimize(budget=2)(function)(X)
    assert type(ours.value) is type(theirs.value)
    assert ours.value.args == theirs.value.args


class Layer:
    def __init__(self, scale: float) -> None:
        self.weights = np.full(4, scale, np.float32)

    @ts.optimize(budget=2)
    def apply(self, x: Any) -> Any:
        """Scales."""
        return x * self.weights + x


def test_a_method_is_optimised_for_each_object() -> None:
    x = np.ones((3, 4), np.float32)
    one, two = Layer(2), Layer(5)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "tessera")
        np.testing.assert_array_equal(one.apply(x), 3 * x)
        np.testing.assert_array_equal(two.apply(x), 6 * x)
    assert one.apply.result(x) is not None
    assert one.apply is one.apply
    assert one.apply is not two.apply
    assert one.apply.__doc__ == "Scales."
    with pytest.warns(RuntimeWarning, match="neither an array nor a plain constant"):
        np.testing.assert_array_equal(Layer.apply(two, x), 6 * x)  # the object is an argument
    one.weights = one.weights * 10
    np.testing.assert_array_equal(one.apply(x), 21 * x)
    for other in (copy.copy(two), copy.deepcopy(two), pickle.loads(pickle.dumps(two))):
        other.weights = np.zeros(4, np.float32)
        np.testing.assert_array_equal(other.apply(x), x)
        np.testing.assert_array_equal(two.apply(x), 6 * x)
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None, "an object lives no longer for its methods"


TABLE = np.arange(4.0)


def conj() -> None:
    """Nothing to do with the attribute of arrays."""


def with_constants(x: Array) -> Any:
    made = np.zeros(3)
    return np.exp(x).conj(), made, [made, {"of": np.arange(2)}], TABLE, {1, 2}


def test_constants_that_a_call_makes_are_its_own() -> None:
    f = ts.optimize(budget=1)(with_constants)
    for x in (X, np.ones((300, 400), np.float32)):
        for _ in range(2):
            _, made, (again, inner), table, numbers = f(x)
            same(made, np.zeros(3))
            same(inner["of"], np.arange(2))
            assert made is again
            assert table is TABLE
            assert numbers == {1, 2}
            made[0] = inner["of"][0] = 7
            numbers.add(3)


def test_attributes_are_not_taken_for_variables_of_their_name() -> None:
    found = [v for _, _, v in trace_call(with_constants, (X,), {}).environment.guards()]
    assert not any(v is conj for v in found)
    assert any(v is TABLE for v in found)


@pytest.mark.parametrize(
    "text", ["divide by zero encountered in log", ".*in sqrt", "invalid value"]
)
def test_filters_may_name_the_function_that_warns(text: str) -> None:
    @ts.optimize(wait=True, budget=5)
    def f(x: Any) -> Any:
        return np.log(x) / x + np.sqrt(x)

    x = np.linspace(1, 2, 50)
    for _ in range(3):
        f(x)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=text)
        with pytest.raises(RuntimeWarning):
            f(np.array([0.0, -1.0] * 25))
    np.testing.assert_allclose(f(x), np.log(x) / x + np.sqrt(x))
