"""Arguments that decide what NumPy computes: of its functions, and of decorated ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_blind_trust_numpy import KERNEL, quietly
from test_decorator import same

import tessera as ts

X = np.random.default_rng(0).standard_normal((7, 9))
I8 = np.full((6, 6), -128, np.int8)
I32 = np.full((6, 6), 2**20, np.int32)
HUNDREDS = np.full((50, 8), 100, np.float32)
WITH_NAN = np.array([1.0, np.nan, np.inf])


def _product_in(dtype: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        out = np.zeros(x.shape[1], dtype)
        np.prod(x, axis=0, out=out)
        return out

    return function


def _differences(x: Any) -> Any:
    y = x + 1
    z = np.diff(y, n=0)
    z[0] = 0
    return y * 2


def _power(x: Any) -> Any:
    y = x + 1
    z = np.linalg.matrix_power(y, 1)
    z[0] = 0
    return y * 2


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda x: np.abs(x, dtype=np.int64), [I8]),
        (lambda x: np.multiply.outer(x[0], x[1], dtype=np.int64), [I8]),
        (lambda x: np.matmul(x, x, dtype=np.int64), [I32]),
        (lambda x: np.multiply.reduce(x, dtype=np.float64), [HUNDREDS]),
        (lambda x: np.exp(x, dtype=np.float64), [HUNDREDS / 7]),
        (lambda x: np.add.reduce(x, axis=1, dtype=np.float64, initial=10.0), [HUNDREDS]),
        (lambda x: np.add(x, x, dtype=np.float64), [HUNDREDS]),
        (_product_in("f8"), [HUNDREDS]),
        (_product_in("f4"), [HUNDREDS / 100]),
        (lambda x, w: np.average(x, axis=1, weights=w), [I32, np.full(6, 100_000, np.int32)]),
        (lambda x, y: np.isclose(x, y, atol=2), [np.full(9, 10, "u1"), np.full(9, 11, "u1")]),
        (lambda x, y: np.isclose(x, y, atol=2), [I8[0], np.full(6, 127, "i1")]),
        (lambda x: np.nan_to_num(x, True) * 2, [WITH_NAN]),
        (lambda x: np.nan_to_num(x, nan=3.0) * 2, [WITH_NAN]),
        (lambda x, y: np.cross(x, y, 0), [X[:3, :3] ** 2, X[3:6, :3]]),
        (lambda x, y: np.cross(x, y, axis=0), [X[:3, :3] ** 2, X[3:6, :3]]),
        (_differences, [X]),
        (_power, [X[:7, :7].copy()]),
    ],
)
def test_what_numpys_arguments_decide(function: Callable[..., Any], args: list[Any]) -> None:
    ours = ts.optimize(cache=False, **KERNEL)(function)
    for _ in range(3):
        same(quietly(ours, *args), quietly(function, *args))


@pytest.mark.parametrize("copy", [False, 0, np.False_])
def test_nan_to_num_writes_to_its_argument(copy: Any) -> None:
    ours = ts.optimize(cache=False, **KERNEL)(lambda x: np.nan_to_num(x, copy) * 2)
    for _ in range(3):
        x = WITH_NAN.copy()
        quietly(ours, x)
        assert x[1] == 0


def test_averages_whose_weights_sum_to_zero_raise() -> None:
    ours = ts.optimize(cache=False, **KERNEL)(lambda x, w: np.average(x, weights=w))
    for _ in range(3):
        same(quietly(ours, X[0], X[1]), np.average(X[0], weights=X[1]))
    with pytest.raises(ZeroDivisionError):
        quietly(ours, X[0], np.zeros(9))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.floor(np.log10(x)),
        lambda x: np.log10(x).astype(int) + 1,
        lambda x: np.log2(x) == np.round(np.log2(x)),
        lambda x: np.floor(np.exp2(np.log2(x))),
        lambda x: np.log10(x) * 2,
    ],
)
def test_logarithms_are_exact_at_powers_where_that_decides(function: Callable[..., Any]) -> None:
    ours = ts.optimize(cache=False, **KERNEL)(function)
    for base in (2.0, 10.0):
        powers = base ** np.arange(15)
        for _ in range(3):
            same(quietly(ours, powers), function(powers))


def test_any_names_keep_their_order() -> None:
    def f(**named: Any) -> Any:
        return np.concatenate([np.exp(v) + 1 for v in named.values()])

    ours = ts.optimize(cache=False, **KERNEL)(f)
    for _ in range(3):
        same(quietly(ours, a=X, b=X + 1), f(a=X, b=X + 1))
        same(quietly(ours, b=X + 1, a=X), f(b=X + 1, a=X))


def test_layouts_count_beside_arguments_of_every_kind(tmp_path: Path) -> None:
    mapped: Any = np.memmap(tmp_path / "x", dtype="f8", mode="w+", shape=X.shape)
    mapped[:] = X
    functions: list[Callable[[Any, str], Any]] = [
        lambda x, mode: np.exp(x) * 2 + x,
        lambda x, mode: x.reshape(-1),
        lambda x, mode: x.astype("f4"),
    ]
    for function in functions:
        ours = ts.optimize(cache=False, **KERNEL)(function)
        for x in (X, np.asfortranarray(X), X.T, mapped) * 3:
            result, wanted = quietly(ours, x, "a"), function(x, "a")
            same(result, wanted)
            assert type(result) is type(wanted)
            assert result.strides == wanted.strides
            assert np.shares_memory(result, x) == np.shares_memory(wanted, x)


def test_constants_that_only_compare_equal() -> None:
    ours = ts.optimize(cache=False, **KERNEL)(lambda x, r: x * r.stop)
    for r in (range(0, 3, 2), range(0, 4, 2)) * 3:
        same(quietly(ours, X, r), X * r.stop)
    ours = ts.optimize(cache=False, **KERNEL)(lambda d: next(iter(d)) * d[1])
    whole = np.arange(6)
    dicts: list[dict[Any, Any]] = [{1: whole}, {1.0: whole}, {True: whole}]
    for d in dicts * 3:
        same(quietly(ours, d), next(iter(d)) * d[1])
