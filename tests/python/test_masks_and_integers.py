"""What masks pick, and integers divided, shifted and masked: traced where a program can say it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.emit import compile_source, emit
from tessera.frontends.trace import trace_call

Array = np.ndarray[Any, np.dtype[Any]]

MASKS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: x[x > 0].sum(),
    "sum along its only axis": lambda x: np.sum(x[x > 0], axis=0),
    "add.reduce": lambda x: np.add.reduce(x[x > 0]),
    "of functions": lambda x: np.sum(np.sqrt(x[x > 0]) * 2 - 1),
    "of two picks by the same mask": lambda x: (lambda m: (x[m] * (x + 1)[m]).sum())(x > 0),
    "by a number": lambda x: (x[x > 0] / x.max()).sum(),
    "mean": lambda x: x[x > 0].mean(),
    "mean of nothing": lambda x: np.mean(x[x > 99]),
    "count": lambda x: np.count_nonzero(x[x > 0] > 1),
    "any": lambda x: np.any(x[x > 0] > 1),
    "all": lambda x: (x[x > 0] > 0.01).all(),
    "integers": lambda x: x[x > 0].astype(np.int32).sum(),
    "not what is left out": lambda x: np.log(x[x > 0]).sum(),  # NaN elsewhere
    "rows": lambda x: x[0][x[0] > 0].sum(),
}


def compare(function: Callable[..., Any], *arrays: Array) -> None:
    traced = trace_call(function, arrays, {})
    made = compile_source(emit(traced.graph, name="g"), "g")
    with np.errstate(all="ignore"):
        ours, theirs = np.asarray(made(*arrays)), np.asarray(function(*arrays))
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    if theirs.dtype.kind == "f":
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    else:
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a mean of nothing
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_what_a_mask_picks(name: str, dtype: type) -> None:
    compare(MASKS[name], np.random.default_rng(3).standard_normal((7, 5)).astype(dtype))


def test_what_a_mask_picked_stays() -> None:
    def later(x: Any) -> Any:
        y = x.copy()
        picked = y[y > 0]
        y[0] = 5.0
        return picked.sum() + y.sum()

    def assigned(x: Any) -> Any:
        y = x.copy()
        mask = y > 0
        y[mask] = y[mask] * 2 + 1
        return y

    x = np.random.default_rng(3).standard_normal((7, 5))
    compare(later, x)
    compare(assigned, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[x > 0],
        lambda x: x[x > 0].max(),
        lambda x: x[x > 0][0],
        lambda x: len(x[x > 0]) * x,
        lambda x: (x[x > 0] * x[x < 0]).sum(),
        lambda x: np.concatenate([x[x > 0], x[0]]),
        lambda x: x[x[:, 0] > 0].sum(),
        lambda x: np.cumsum(x[x > 0]),
        lambda x: x[x > 0].sum(keepdims=True),
        lambda x: np.array(x[x > 0]),
        lambda x: (x[x > 0] + np.ones(3)).sum(),
    ],
)
def test_what_depends_on_how_many_a_mask_picks_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(ts.Error, match="mask"):
        trace_call(function, ["f64[7,5]"], {})


INTEGERS: dict[str, Callable[[Any], Any]] = {
    "x // 3": lambda x: x // 3,
    "x // 100": lambda x: x // 100,
    "x << 2": lambda x: x << 2,
    "x << 7": lambda x: x << 7,
    "x >> 0": lambda x: x >> 0,
    "x >> 3": lambda x: x >> 3,
    "~x": lambda x: ~x,
    "x & 7": lambda x: x & 7,
    "1 & x": lambda x: 1 & x,
    "x // 5 * 5 + x % 5": lambda x: x // 5 * 5 + x % 5,
    "x // -7": lambda x: x // -7 if x.dtype.kind == "i" else x,
    "x // -1": lambda x: x // -1 if x.dtype.kind == "i" else x,
    "x // 64": lambda x: x // 64,
    "x >> 7": lambda x: x >> 7,
    "x & 6": lambda x: x & 6,
    "x & 0x55": lambda x: x & 0x55,
    "x & 127": lambda x: x & 127,
    "x & -2": lambda x: x & -2 if x.dtype.kind == "i" else x & 254,
    "x | 9": lambda x: x | 9,
    "x ^ 0x5c": lambda x: x ^ 0x5C,
    "(x & 3) | 64": lambda x: (x & 3) | 64,
    "x // y": lambda x: x // x[::-1],
}


def every(dtype: str) -> Array:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(1)
    values = rng.integers(info.min, info.max, 300, endpoint=True, dtype=dtype)
    ends = np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1], dtype)
    return np.concatenate([ends, values, np.arange(100).astype(dtype)])


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "i8"])
def test_integers_are_divided_and_shifted_as_numpy_does(name: str, dtype: str) -> None:
    with np.errstate(all="ignore"):
        compare(INTEGERS[name], every(dtype))


def test_integers_of_64_bits_are_divided_exactly() -> None:
    info = np.iinfo(np.int64)
    ends = [info.min, info.min + 1, -(2**53) - 1, -7, -1, 0, 1, 3, 2**31, 2**53 + 1, 2**62 + 1,
            info.max - 1, info.max]  # fmt: skip
    rng = np.random.default_rng(1)
    sizes = 2 ** rng.integers(0, 63, 200)
    x = np.concatenate([np.repeat(ends, len(ends)), rng.integers(-sizes, sizes)])
    y = np.concatenate([np.tile(ends, len(ends)), rng.integers(-sizes, sizes)[::-1]])
    with np.errstate(all="ignore"):
        compare(lambda x, y: (x // y, x // 3, x // -1000, x // 2**40), x, y)
        compare(lambda x: tuple(x >> n for n in (1, 10, 11, 32, 62, 63)), x)
        compare(lambda x: (x & info.max, x | info.min, x ^ (2**62 - 4), x & ~0xF0), x)


def test_divisors_of_zero_divide_to_zero() -> None:
    with np.errstate(all="ignore"):
        compare(lambda x: x // 0, every("i4"))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x << x,
        lambda x: x << 40,
        lambda x: x >> -1,
        lambda x: x & 0x2AAAAA,
        lambda x: x & x,
        lambda x: x | x,
        lambda x: x ^ x,
    ],
)
def test_other_integer_operations_fall_back(function: Callable[..., Any]) -> None:
    with pytest.raises(ts.Error, match=r"supported|shift of|places"):
        trace_call(function, ["i32[5]"], {})
    x = np.arange(1, 6, dtype=np.int32)
    try:
        expected = function(x)
    except ValueError:
        return
    decorated = ts.optimize(function)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        np.testing.assert_array_equal(decorated(x), expected)
        np.testing.assert_array_equal(decorated(x), expected)
    assert sum("plain NumPy" in str(w.message) for w in caught) == 1
