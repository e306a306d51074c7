"""Where a result jumps, rounding decides: compiled code is NumPy's to the last bit there."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import _core

RNG = np.random.default_rng(11)
A, B = (RNG.integers(0, 256, (300, 256), dtype=np.uint8) for _ in range(2))
IMAGE = RNG.integers(0, 256, (120, 160, 3), dtype=np.uint8)
X, Y = (RNG.random((300, 400), dtype=np.float32) for _ in range(2))
GRAY = np.array([0.299, 0.587, 0.114])


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda a, b: (a * 0.3 + b * 0.7).astype(np.uint8), (A, B)),
        (lambda a, b: (a * np.float32(0.3) + b * np.float32(0.7)).astype(np.uint8), (A, B)),
        (lambda i: (i[..., 0] * 0.299 + i[..., 1] * 0.587).astype(np.uint8), (IMAGE,)),
        (lambda x: np.round(x / x.max(axis=1, keepdims=True) * 127).astype(np.int8), (X,)),
        (lambda x, y: np.floor(x / y), (np.float32(A), np.float32(1 + np.arange(300)[:, None]))),
        (lambda x, y: x * y + x > y * np.float32(0.5) + x * y, (X, Y)),
        (lambda x, y: np.sqrt(x * x - y * y), (X, X.copy())),  # not NaN
        (lambda x, y: (x * 7 + y, np.floor((x * 7 + y) * 2) + x), (X, Y)),
    ],
)
def test_results_that_jump_are_numpys(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    ours = ts.optimize(budget=8)(function)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "tessera")
        result = ours(*args)
    # The kernel's own results, whoever won the contest.
    found = ours.result(*args)
    assert found is not None
    kernels = found._call.result(found._run(found._call.arrays(args, {})))
    for given in (result, kernels):
        for r, expected in zip(_all(given), _all(function(*args)), strict=True):
            if expected.dtype.kind == "f":  # the sum beside what jumps
                np.testing.assert_allclose(r, expected, rtol=1e-5)
            else:
                np.testing.assert_array_equal(r, expected)


def _all(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def test_rewrites_keep_what_jumps_at_whole_numbers() -> None:
    types = "f32[8,16]", "f32[8,1]"
    for jump in (np.floor, lambda x: x.astype(np.int32)):
        exact = ts.trace(lambda x, y, f=jump: f(x / y), *types)
        assert ts.verify(exact, exact)
        verdict = ts.verify(exact, ts.trace(lambda x, y, f=jump: f(x * (1 / y)), *types))
        assert verdict.refuted  # floor(49 * (1 / 49)) is 0


def test_large_arrays_are_asked_at_more_than_small_numbers() -> None:
    types = "f32[300,256]", "f32[300,1]"
    exact = ts.trace(lambda x, y: np.floor(x / y), *types)
    rewrite = ts.trace(lambda x, y: np.floor(x * (1 / y)), *types)
    for seed in (7, 15, 25, 37):  # whose first two draws are of small numbers
        assert ts.verify(exact, rewrite, seed=seed).refuted


def row(x: Any) -> Any:
    return x.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("exact", "rewrite", "types"),
    [
        (lambda x, y: x / y, lambda x, y: x * (1 / y), ("f32[300,256]", "f32[]")),
        (lambda x: 100 * x / x.sum(), lambda x: x / x.sum() * 100, ("f32[77,9]",)),
        (lambda x: abs(x) / row(abs(x)), lambda x: abs(x) * (1 / row(abs(x))), ("f32[64,32]",)),
        (lambda m, x: row(m * x) / row(m), lambda m, x: row(m * x) * (1 / (0.0 + row(m))),
         ("bool[9,50]", "f32[9,50]")),
        (lambda x, y: row(x) / row(y), lambda x, y: row(x) * (1 / row(y)),
         ("f32[3,20]", "f32[3,20]")),
    ],
)  # fmt: skip
def test_quotients_of_computed_numbers_are_whole(
    exact: Callable[..., Any], rewrite: Callable[..., Any], types: tuple[str, ...]
) -> None:
    one, other = (ts.trace(lambda *a, f=f: np.floor(f(*a)), *types) for f in (exact, rewrite))
    for seed in range(6):
        assert not ts.verify(one, other, seed=seed), seed
        assert ts.verify(one, one, seed=seed)


def test_rows_of_one_number_are_their_means() -> None:
    exact = ts.trace(lambda x: x >= x.mean(axis=1, keepdims=True), "f32[64,100]")
    rewrite = ts.trace(lambda x: x >= row(x / np.float32(100)), "f32[64,100]")
    assert all(ts.verify(exact, rewrite, seed=seed).refuted for seed in range(6))


def test_only_what_reaches_a_jump_is_rounded() -> None:
    def f(x: Any, w: Any, y: Any) -> Any:
        return (x * 2.5 + x) @ w, np.floor(y * 3.5 + y)

    g = ts.trace(f, "f32[8,16]", "f32[16,4]", "f32[9]")
    code = _core.emit_source(g.core, "avx2").partition("\n// t")[2].split("\n// t")
    smooth = [c for c in code if "2.5f" in c]
    jumping = [c for c in code if "3.5f" in c]
    assert smooth
    assert jumping
    assert not any("t_zero" in c for c in smooth)
    assert all("t_zero" in c for c in jumping)
