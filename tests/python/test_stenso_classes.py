"""Transformation classes: what a rewrite does to the operators decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bench import stenso_classes as classes
from tessera.frontends.trace import trace_call
from tessera.frontends.traced import Spec

SQUARE = {"x": Spec.parse("f32[8,8]"), "y": Spec.parse("f32[8,8]")}


def looping(x: Any, y: Any) -> Any:
    return np.stack([a + b for a, b in zip(x, y, strict=True)])


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (looping, lambda x, y: x + y, classes.VECTORIZATION),
        (lambda x, y: np.exp(np.log(x) - np.log(y)), lambda x, y: x / y, classes.IDENTITY),
        (lambda x, y: np.diag(x @ y), lambda x, y: (x * y.T).sum(1), classes.STRENGTH),
        (lambda x, y: x / y / y, lambda x, y: x / (y * y), classes.STRENGTH),
        (lambda x, y: x * y + x * x, lambda x, y: (x + y) * x, classes.REDUNDANCY),
        (lambda x, y: x + x + x + x - y, lambda x, y: 4 * x - y, classes.SIMPLIFICATION),
    ],
)
def test_operators_decide(
    before: Callable[..., Any], after: Callable[..., Any], expected: str
) -> None:
    original, rewrite = (trace_call(f, [], dict(SQUARE)).graph for f in (before, after))
    source = before if before is looping else np_free
    assert classes.transformation(source, original, rewrite) == expected


def np_free(x: Any, y: Any) -> Any:
    """A source without loops: those of lambdas in a list of parameters are not on their own."""
    return x + y


def test_means_are_of_each_class() -> None:
    rows = [{"class": "vectorization", "speedup_vs_original": s} for s in (2.0, 8.0)]
    assert classes.by_class([*rows, {"case": "kept"}]) == {
        "vectorization": {"programs": 2, "speedup": pytest.approx(4.0)}
    }
