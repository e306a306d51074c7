"""Arguments and functions nobody asked for: what NumPy does, with at most one warning."""

from __future__ import annotations

import copy
import platform
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from quick import QUICK

import tessera as ts

X = np.linspace(0.1, 3, 24).reshape(4, 6)
OUTSIDE = np.arange(6.0)


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The result or exception, and the arguments after the call."""
    given = tuple(
        a if isinstance(a, np.ndarray) and not a.flags.writeable else copy.deepcopy(a) for a in args
    )
    try:
        return function(*given), given
    except Exception as error:
        return error, given


def same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs), (ours, theirs)
    if isinstance(theirs, Exception):
        assert str(ours) == str(theirs)
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b)
    elif isinstance(theirs, (np.ndarray, np.generic)):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if theirs.dtype.kind in "fc":
            tolerance = 8 * float(np.finfo(theirs.dtype).eps)
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=0)
        else:
            np.testing.assert_array_equal(ours, theirs)
    else:
        assert ours == theirs


def as_numpy(function: Callable[..., Any], *args: Any) -> str:
    """Calls a function three times decorated, once without; why it is not traced, or ""."""
    expected, after = outcome(function, args)
    optimised = ts.optimize(**QUICK)(function)
    messages = []
    for _ in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result, given = outcome(optimised, args)
        same(result, expected)
        same(list(given), list(after))
        messages += [str(w.message) for w in caught if "tessera" in str(w.message)]
    assert len(messages) <= 1, messages
    return messages[0] if messages else ""


def doubled_twice(x: Any) -> Any:
    return x * 2 + x * 2


# --- dtypes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["?", "i1", "i4", "i8", "u1", "f2", "f4", "f8"])
def test_dtypes_that_are_known(dtype: str) -> None:
    assert as_numpy(doubled_twice, (X * 40).astype(np.int64).astype(dtype)) == ""


@pytest.mark.parametrize(
    "dtype",
    ["i2", "u2", "u4", "u8", "g", "F", "D", "O", "U3", "S3", "M8[s]", "m8[s]", ">f8", ">i4"],
)
def test_dtypes_that_are_not(dtype: str) -> None:
    array = (X * 10).astype(np.int64 if dtype not in ("U3", "S3") else float).astype(dtype)
    assert "dtype" in as_numpy(doubled_twice, array)


def test_structured_dtypes() -> None:
    records = np.zeros(4, [("a", "f4"), ("b", "i4")])
    assert "dtype" in as_numpy(lambda s: s["a"] * 2, records)
    assert "recarray" in as_numpy(lambda s: s.a * 2, records.view(np.recarray))
    assert "object" in as_numpy(lambda x: x + x, np.array([1, "a", None], dtype=object))


@pytest.mark.parametrize(
    ("function", "array"),
    [
        (lambda a: (a * 2) // 2, np.array([2**31 - 1, 5], np.int32)),
        (lambda a: a << 3, np.array([2**30, 5], np.int32)),
        (lambda a: a**5, np.arange(-100, 100, dtype=np.int8)),
        (lambda a: a**-1, np.arange(1, 5)),
        (lambda a: a % 3, np.array([-128, 127, -1], np.int8)),
        (lambda a: a - a, np.array([True, False])),
        (lambda a: -a, np.array([True, False])),
        (lambda a: a + a, np.array([True, False])),
        (lambda a: a**2, np.array([True, False])),
        (lambda a: a**3, np.array([True, False])),
        (lambda a: ~a, np.arange(4, dtype=np.uint8)),
        (lambda a: a + 300, np.arange(4, dtype=np.uint8)),
        (lambda a: a * -1, np.arange(4, dtype=np.uint8)),
        (lambda a: a - 1, np.arange(4, dtype=np.uint8)),
        (lambda a: a + np.uint8(250), np.arange(9, dtype=np.int8)),
        (lambda a: a / 2, np.arange(4, dtype=np.int8)),
        (lambda a: a.mean(), np.arange(4, dtype=np.int8)),
        (lambda a: np.sqrt(a), np.arange(4, dtype=np.int8)),
        (lambda a: a.prod(), np.arange(1, 40, dtype=np.int8)),
        (lambda a: a.cumsum(), np.arange(1, 40, dtype=np.int8)),
        (np.abs, np.array([-128, 5], np.int8)),
        (lambda a: a.sum(), np.full(10, 2**31 - 1, np.int32)),
        (lambda a: a @ a, np.full((4, 4), 100, np.int8)),
        (lambda a: a.astype(np.int8), np.array([300, -300, 127])),
        (lambda a: (a * 16) * 16 + a, np.arange(40, dtype=np.uint8)),
        (lambda a: np.trace(a @ a.T), np.full((5, 5), 2**31 - 7, np.int32)),
    ],
)
def test_integers_wrap_and_raise_as_numpys(function: Callable[..., Any], array: Any) -> None:
    as_numpy(function, array)


# --- arrays -----------------------------------------------------------------------------------


def read_only() -> np.ndarray[Any, Any]:
    array = X.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "array",
    [X[::-1, ::-2], X[:, ::2], X.T, read_only(), np.broadcast_to(X[0], (5, 6)), np.array(3.0),
     np.asfortranarray(X), X[1:2], X.reshape(2, 2, 2, 3)],
    ids=["negative", "strided", "transposed", "read-only", "broadcast", "0-d", "fortran", "row",
         "4-d"],
)  # fmt: skip
def test_layouts(array: Any) -> None:
    assert as_numpy(doubled_twice, array) == ""


def test_arguments_without_axes_stay_arrays() -> None:
    assert as_numpy(lambda a: (a * 2, a + 1), np.array(3.0)) == ""
    assert as_numpy(lambda a, b: (a * 2, b + 0), np.array(3.0), X) == ""
    assert "returns memory of its arguments" in as_numpy(lambda a: (a, a + 1), np.array(3.0))


def test_arguments_that_overlap() -> None:
    assert as_numpy(lambda a, b: a * b + a * b, X[:-1], X[1:]) == ""


class Sub(np.ndarray):
    pass


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.zeros((0, 3)), "positive"),
        (np.matrix([[1.0, 2.0], [3.0, 4.0]]), "matrix"),
        (X.view(Sub), "Sub"),
        (np.float32(2), "none of its arguments is an array"),
    ],
)
def test_arrays_that_run_as_plain_numpy(array: Any, why: str) -> None:
    assert why in as_numpy(doubled_twice, array)


def test_masked_arrays() -> None:
    masked = np.ma.masked_less(X, 1)
    with pytest.warns(RuntimeWarning, match="MaskedArray"):
        result = ts.optimize(**QUICK)(doubled_twice)(masked)
    assert isinstance(result, np.ma.MaskedArray)
    np.testing.assert_array_equal(result.mask, masked.mask)


@pytest.mark.parametrize("budget", [1e-9, 10.0])  # found at the call, and by the search
def test_shapes_that_no_memory_holds(budget: float) -> None:
    huge = np.broadcast_to(np.float32(1), (1 << 20, 1 << 18))
    f = ts.optimize(budget=budget)(lambda a: a[:1, :1] + 1)
    with pytest.warns(RuntimeWarning, match="memory"):  # the second call compiles what is not yet
        result = [f(huge), f(huge)][1]
    np.testing.assert_array_equal(result, [[2.0]])


def test_empty_arrays_of_reductions_raise_as_numpys() -> None:
    as_numpy(lambda a: a.max(), np.zeros(0))
    as_numpy(lambda a: a.sum(axis=0), np.zeros((0, 3)))


# --- functions --------------------------------------------------------------------------------


def writes(a: Any) -> Any:
    a[0] = 7
    return a * 2


def adds_in_place(a: Any) -> Any:
    a += 1
    return a


def writes_out(a: Any) -> Any:
    np.add(a, 1, out=a)
    return a.sum()


def recursive(a: Any, n: int = 3) -> Any:
    return a if n == 0 else recursive(a * 2, n - 1)


def endless(a: Any) -> Any:
    return endless(a)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda a: 1 / 0, "ZeroDivisionError"),
        (lambda a: a @ a, "inner dimensions"),
        (lambda a: {"b": a}["k"], "KeyError"),
        (lambda a: "hello", "returns no array"),
        (lambda a: None, "returns no array"),
        (lambda a: float(a.sum()), "value of a traced array"),
        (lambda a: (a > 1) if a.sum() > 0 else a, "branches"),
        (writes, "in place"),
        (adds_in_place, "in place"),
        (writes_out, "in place"),
        (endless, "calls itself"),
        (recursive, ""),
        (lambda a: a + OUTSIDE, ""),
        (lambda a: [a * 2, [a + 1]], ""),
        (lambda a: [v + 1 for v in a], ""),
    ],
)
def test_functions(function: Callable[..., Any], why: str) -> None:
    reason = as_numpy(function, X)
    assert why in reason
    assert why or not reason


def test_random_numbers_and_ragged_lists() -> None:
    def noisy(a: Any) -> Any:
        return a + np.random.rand(*a.shape)

    np.random.seed(5)
    expected = noisy(X)
    np.random.seed(5)
    with pytest.warns(RuntimeWarning, match="random"):
        np.testing.assert_array_equal(ts.optimize(**QUICK)(noisy)(X), expected)
    as_numpy(lambda rows: np.array(rows), [[1, 2], [3]])
    as_numpy(lambda rows, a: [np.sum(r) for r in rows] + [a], [[1.0, 2.0], [3.0]], X)
    as_numpy(lambda rows: [r.sum() for r in rows], [X, X[:2]])


def test_outer_arrays_that_change_are_seen() -> None:
    outer = np.arange(6.0)
    optimised = ts.optimize(**QUICK)(lambda a: a + outer)
    np.testing.assert_array_equal(optimised(X), X + outer)
    outer[:] = 5
    np.testing.assert_array_equal(optimised(X), X + 5)


@pytest.mark.parametrize("source", [np.float32, np.float64])
@pytest.mark.parametrize("to", [np.int8, np.uint8, np.int32, np.int64])
@pytest.mark.skipif(platform.machine() != "x86_64", reason="NumPy casts as the machine does")
def test_casts_of_what_integers_cannot_hold(source: Any, to: Any) -> None:
    values = [np.nan, np.inf, -np.inf, 1e10 + 4e3, -1e10, 1e20, 3e9 + 1e3, -3e9, 1e30, 5.5, -5.5]
    edges = [
        2.0**31,
        -(2.0**31),
        2.0**31 - 1,
        -(2.0**31) - 1,
        -(2.0**31) - 0.5,
        2.0**63,
        -(2.0**63),
    ]
    x = np.array((values + edges) * 5, source)
    f = ts.optimize(budget=1, disable=("numpy",))(lambda a: (a * 1).astype(to))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(f(x), x.astype(to))
        result = f.result(x)
        assert result is not None
        np.testing.assert_array_equal(result.original.run(x)[0], x.astype(to))


def test_names_of_dtypes_are_numpys() -> None:
    x = np.array([300, -5], np.int32)
    assert as_numpy(lambda a: a.astype("i8") * 2, x) == ""
    assert as_numpy(lambda a: np.asarray(a, dtype="i8") * 2, x) == ""
    assert "uint64" in as_numpy(lambda a: a.astype("u8"), x)
