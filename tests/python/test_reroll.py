"""Unrolled loops over rows become one computation, which is proved equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import trace
from tessera.emit import emit
from tessera.frontends.reroll import reroll


def fills(A: Any, x: Any) -> Any:
    out = np.zeros_like(A)
    for i in range(len(A)):
        out[i] = A[i] * x + (1 - A[i]) * x.sum()
    return out


LOOPS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "lerp": (lambda A, x: np.stack([x * r + (1.0 - r) * x for r in A]), "x * A + (1 - A) * x"),
    "double": (lambda A, x: np.array([r * 2 for r in A]), "A * 2"),
    "sums": (lambda A, x: np.array([np.sum(r * x) for r in A]), "np.vecdot(A, x)"),
    "products": (lambda A, x: np.array([r @ x for r in A]), "np.dot(A, x)"),
    "means": (lambda A, x: np.array([(r - r.mean()) / r.std() for r in A]), ""),
    "neighbours": (lambda A, x: np.stack([a - b for a, b in zip(A[1:], A[:-1], strict=True)]),
                   "A[1:] - A[:-1]"),
    "every other": (lambda A, x: np.stack([np.exp(A[i]) for i in range(1, 7, 2)]),
                    "np.exp(A[1:6:2])"),
    "filled": (fills, "A * x + (1 - A) * x.sum()"),
    "outer": (lambda A, x: np.stack([np.outer(r, x) for r in A]), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_loops(name: str) -> None:
    function, expected = LOOPS[name]
    graph = trace(function, "f32[7,5]", "f32[5]")
    rolled = reroll(graph)
    rolled.validate()
    assert len(rolled.ops) < len(graph.ops) / 2
    verdict = ts.verify(graph, rolled)
    assert verdict, verdict
    if expected and name not in ("sums", "products"):
        assert emit(rolled).splitlines()[-1] == f"    return {expected}"


@pytest.mark.parametrize(
    "function",
    [
        lambda A, x: np.stack([A[0] * 2, A[2] * 2, A[1] * 2]),  # another order
        lambda A, x: np.stack([A[0] * 2, A[1] * 3, A[2] * 2]),  # another constant
        lambda A, x: np.stack([A[0] ** 3, A[1] ** 4, A[2] ** 3]),  # another attribute
        lambda A, x: np.stack([A[0] * 2, A[1] + 2, A[2] * 2]),  # another operator
        lambda A, x: np.stack([A[0, :3], A[1, 1:4], A[2, :3]]),  # other columns
        lambda A, x: np.stack([np.cumsum(A[i]) for i in range(4)]),  # no rule
        lambda A, x: np.stack([x, x, x]),  # no rows
        lambda A, x: A * x,
    ],
)
def test_what_is_no_loop_stays(function: Callable[[Any, Any], Any]) -> None:
    graph = trace(function, "f32[7,5]", "f32[5]")
    assert ts.verify(graph, reroll(graph))
    assert len(reroll(graph).ops) >= len(graph.ops) - 1
