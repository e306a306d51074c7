"""Loops as in textbooks: slices that pick nothing at first, counters that are written to."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from quick import QUICK

import tessera as ts

N = 6
L = np.tril(np.random.default_rng(1).random((N, N))) + 3 * np.eye(N)
B = np.random.default_rng(2).random(N)


def forward(a: Any, b: Any) -> Any:
    x = np.zeros(len(b))
    for i in range(len(b)):
        x[i] = (b[i] - a[i, :i] @ x[:i]) / a[i, i]
    return x


def backward(a: Any, b: Any) -> Any:
    x = np.zeros(len(b))
    for i in reversed(range(len(b))):
        x[i] = (b[i] - np.dot(a.T[i, i + 1 :], x[i + 1 :])) / a[i, i]
    return x


def cholesky(a: Any) -> Any:
    low = np.zeros_like(a)
    for j in range(len(a)):
        low[j, j] = np.sqrt(a[j, j] - np.sum(low[j, :j] ** 2))
        low[j + 1 :, j] = (a[j + 1 :, j] - low[j + 1 :, :j] @ low[j, :j]) / low[j, j]
    return low


def projected(a: Any) -> Any:
    q = a[:, 0:0]
    for j in range(3):
        q = np.concatenate([q, (a[:, j] - q @ np.dot(q.T, a[:, j]))[:, None]], axis=1)
    return q


def parts(x: Any) -> Any:
    sums = np.stack([x[:i].sum() * x[i] for i in range(len(x))])
    return np.concatenate([np.zeros(0), x[:0], sums, x[N:]]), x[2:2], x.astype(np.float32)[1:0:2]


def counted(x: Any) -> Any:
    t = np.linspace(0, 1, len(x))
    t -= x[0]
    t[1:] *= x[1:]
    return t


def promoted(x: Any) -> Any:
    return np.concatenate([np.zeros(0), x])  # f64, for all that it holds of them


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (forward, (L, B)),
        (backward, (L, B)),
        (cholesky, (L @ L.T,)),
        (projected, (L,)),
        (parts, (B,)),
        (counted, (B,)),
        (promoted, (B.astype(np.float32),)),
    ],
)
def test_textbook_loops(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    ours = ts.optimize(**QUICK)(function)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "tessera")
        for _ in range(2):
            found, expected = ours(*args), function(*args)
            for f, e in zip(_all(found), _all(expected), strict=True):
                assert (f.dtype, f.shape) == (e.dtype, e.shape)
                np.testing.assert_allclose(f, e, rtol=1e-9)


def _all(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
