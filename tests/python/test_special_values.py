"""Every elementwise function that is traced, at NaN, infinities, zeros of both signs, subnormal and
huge numbers: what NumPy gives, from the interpreter, from emitted source and from kernels.

The special cases of the array-API standard are among them, as NumPy has them.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from quick import UNSEARCHED
from random_state import sourced

import tessera as ts
from tessera.errors import Error
from tessera.frontends.numpy import UFUNCS
from tessera.frontends.trace import trace_call
from tessera.frontends.traced import unflatten

Array = np.ndarray[Any, np.dtype[Any]]
VALUES = [
    np.nan,
    np.inf,
    -np.inf,
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.0,
    -3.0,
    0.5,
    -0.5,
    2.5,
    -2.5,
    np.pi,
    1e8,
]
WIDE = {"f8": [1e-300, 1e300, -1e300, 5e-324, 1.8e308], "f4": [1e-30, 1e38, -1e38, 1e-45, 3e38]}
WHOLE = [0, 1, -1, 2, -3, 7, 127, -128]
NAMES = [n for n in UFUNCS if hasattr(np, n) and getattr(np, n).signature is None]
CONSTANTS = [np.inf, -np.inf, 0.0, -0.0, np.nan, 2.0, -0.5]


def operands(ufunc: np.ufunc, dtype: str) -> tuple[Array, ...]:
    values = WHOLE if dtype.startswith("i") else VALUES + WIDE[dtype]
    one = np.array(values, np.float64).astype(dtype)
    return (one,) if ufunc.nin == 1 else tuple(a.ravel() for a in np.meshgrid(one, one))


def wrong(ours: Any, theirs: Any) -> Array:
    """Where two results differ by more than a little rounding; zeros and NaN must be the same."""
    a, b = np.asarray(ours), np.asarray(theirs)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return np.ones(b.shape, bool)
    if b.dtype.kind != "f":
        return np.asarray(a != b)
    with np.errstate(all="ignore"):
        info = np.finfo(b.dtype)
        near = np.isclose(a, b, rtol=64 * info.eps, atol=4 * info.tiny, equal_nan=True)
        zeros = (b != 0) | (np.signbit(a) == np.signbit(b))
    return np.asarray(~(near & zeros & (np.isfinite(a) == np.isfinite(b))))


def differences(function: Any, args: tuple[Array, ...]) -> list[str]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            expected = function(*args)
        except TypeError:
            return []
        try:
            traced = trace_call(function, args, {})
        except Error:
            return []  # runs as plain NumPy
        inputs = [*traced.arguments, *traced.extra]
        found = {"interpreter": unflatten(traced.results, traced.graph.run(*inputs))}
        kernel = ts.optimize(budget=60, cache=False, disable=(*UNSEARCHED, "numpy"))(function)
        for name, made in (("source", sourced(function)), ("kernel", kernel)):
            for _ in range(3):  # the first is the original
                found[name] = made(*args)
            assert made.result(*args) is not None, f"{name}: fell back"
    said = []
    for name, result in found.items():
        for i in np.flatnonzero(wrong(result, expected))[:4]:
            given = [a.flat[i] for a in args]
            said.append(f"{name}: {given} -> {np.ravel(result)[i]}, not {np.ravel(expected)[i]}")
    return said


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("name", NAMES)
def test_ufunc(name: str, dtype: str) -> None:
    ufunc = getattr(np, name)
    assert not differences(lambda *xs: ufunc(*xs), operands(ufunc, dtype))


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "sign", "abs", "maximum", "equal"])
def test_ufunc_of_integers(name: str) -> None:
    ufunc = getattr(np, name)
    with np.errstate(all="ignore"):
        assert not differences(lambda *xs: ufunc(*xs), operands(ufunc, "i4"))


@pytest.mark.parametrize(
    "name",
    ["arctan2", "floor_divide", "remainder", "maximum", "hypot", "multiply", "divide", "add"],
)
def test_constants(name: str) -> None:
    """All seven constants in one program, on either side."""
    ufunc, (x,) = getattr(np, name), operands(np.negative, "f8")

    def both(x: Any) -> Any:
        return np.stack([ufunc(x, c) for c in CONSTANTS] + [ufunc(c, x) for c in CONSTANTS])

    assert not differences(both, (x,))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.where(x > 1, -0.0, 1.0),
        lambda x: np.where(x > 1, x, -0.0),
        lambda x: x * -0.0,
        lambda x: np.arctan2(x, -0.0),
        lambda x: np.arctan2(-0.0, x),
        lambda x: np.full(20, -0.0) + x * 0,
        lambda x: np.maximum(x, -0.0),
        lambda x: np.array([-0.0]) * x,
        lambda x: np.zeros(20) * -1.0 + x,
        lambda x: np.nan_to_num(x),
        lambda x: np.where(np.isnan(x), 0.0, x),
        lambda x: np.where(x != x, 7.0, x),
        lambda x: np.isinf(x) & (x > 0),
        lambda x: np.where(np.isfinite(x), x, -1.0),
        lambda x: x // 2.5,
        lambda x: x % np.inf,
        lambda x: np.inf // x,
        lambda x: np.fmax(x, 0.25),
        lambda x: np.clip(x, -1.0, np.inf),
    ],
)
def test_programs_that_name_special_values(function: Any) -> None:
    assert not differences(function, operands(np.negative, "f8"))


def test_the_comparison_sees_what_it_should() -> None:
    for a, b in ((0.0, -0.0), (np.nan, 1.0), (np.inf, 1e308), (1.0, 1.0 + 1e-9), (np.inf, -np.inf)):
        assert wrong(np.array([a]), np.array([b])).all()
    assert not wrong(np.array([np.nan, -0.0, 1.0]), np.array([np.nan, -0.0, 1.0])).any()
