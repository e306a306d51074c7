"""The elementwise functions of tessera.ops against NumPy's, in values and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tessera import Graph
from tessera.errors import Error

HALVES = np.array([-3, -2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5, 7], "f8")
WIDE = np.concatenate([np.linspace(-20, 20, 41) + 0.01, [1e-7, -1e-7, 1e-3]])
UNIT = np.linspace(-1, 1, 21)
POSITIVE = np.abs(WIDE) + 1e-3
UNARY: dict[str, np.ndarray] = {
    "floor": HALVES, "ceil": HALVES, "trunc": HALVES, "rint": HALVES, "round": HALVES,
    "log1p": POSITIVE, "expm1": WIDE, "log2": POSITIVE, "log10": POSITIVE, "exp2": WIDE,
    "tan": WIDE, "sinh": WIDE, "cosh": WIDE, "arcsin": UNIT, "arccos": UNIT, "arctan": WIDE,
}  # fmt: skip
LEFT, RIGHT = (
    a.ravel() for a in np.meshgrid([-7.5, -2, 0.0, 1, 2.25, 9], [-3, -0.5, 0, 0.5, 2, 4])
)
BINARY = {"power": "pow", "mod": "mod", "remainder": "remainder", "arctan2": "arctan2",
          "floor_divide": "floor_divide", "logaddexp": "logaddexp"}  # fmt: skip


def run(method: str, *arrays: np.ndarray, **options: Any) -> np.ndarray:
    g = Graph("g")
    inputs = [g.input(f"x{i}", a.shape, a.dtype.name) for i, a in enumerate(arrays)]
    g.output(getattr(g, method)(*inputs, **options))
    g.validate()
    (out,) = g.run(*arrays)
    return np.asarray(out)


def expect(method: str, function: Callable[..., Any], *arrays: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        theirs = function(*arrays)
    ours = run(method, *arrays)
    assert ours.dtype == theirs.dtype
    eps = np.finfo(ours.dtype).eps
    # exp2 and the angles of (1-x)(1+x) lose a little more than an operator of their own would
    np.testing.assert_allclose(ours, theirs, rtol=64 * eps, atol=8 * eps)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", UNARY)
def test_of_one(name: str, dtype: str) -> None:
    expect(name, getattr(np, name), UNARY[name].astype(dtype))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", BINARY)
def test_of_two(name: str, dtype: str) -> None:
    expect(BINARY[name], getattr(np, name), LEFT.astype(dtype), RIGHT.astype(dtype))


def test_sinh_does_not_cancel_near_zero() -> None:
    x = np.array([1e-6, -1e-5, 1e-4], "f4")
    np.testing.assert_allclose(run("sinh", x), np.sinh(x), rtol=1e-6)


def test_round_to_decimals() -> None:
    x = np.array([1.25, -2.345, 1234.5])
    for decimals in (2, 1, 0, -2):
        np.testing.assert_allclose(run("round", x, decimals=decimals), np.round(x, decimals))


@pytest.mark.parametrize("dtype", ["i4", "i8", "i1"])
def test_remainders_of_integers_have_the_divisors_sign(dtype: str) -> None:
    x, y = np.array([7, -7, 7, -7, 5], dtype), np.array([3, 3, -3, -3, 0], dtype)
    with np.errstate(all="ignore"):
        theirs = np.mod(x, y)
    ours = run("mod", x, y)
    assert ours.dtype == theirs.dtype
    assert (ours == theirs).all()


def test_whole_numbers_are_their_own_floor() -> None:
    x = np.array([1, -2, 3], "i4")
    for name in ("floor", "ceil", "trunc"):
        assert (run(name, x) == x).all()


def test_integers_are_refused_where_numpy_would_truncate() -> None:
    x = np.array([1, 2], "i4")
    with pytest.raises(Error, match="use floats"):
        run("pow", x, x)
