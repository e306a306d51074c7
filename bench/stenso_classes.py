"""The transformation classes of STENSO (CGO'26, §VII.C, Figs. 6 to 8), told by what a rewrite does.

The paper's authors sort their programs by hand; here the operators of both programs decide, the
first that holds:

- vectorization: the original's source loops, the rewrite's does not;
- identity replacement: roots, powers, exponentials or logarithms are gone;
- strength reduction: fewer products of matrices, divisions or maxima, others in their place;
- redundancy elimination: no operator that the original lacks: fewer of them, or on less data;
- algebraic simplification: what is left.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bench.race import geometric_mean
from tessera.graph import Graph

VECTORIZATION, IDENTITY, STRENGTH, REDUNDANCY, SIMPLIFICATION = CLASSES = (
    "vectorization", "identity replacement", "strength reduction", "redundancy elimination",
    "algebraic simplification",
)  # fmt: skip
_FUNCTIONS = {"exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "pow", "power", "sin", "cos", "tanh"}
_COSTLY = {"matmul", "div", "mod", "max", "min", "reduce_max", "reduce_min", "cumsum"}
_FREE = {"input", "const", "reshape", "unsqueeze", "squeeze", "transpose", "broadcast", "iota"}
_LOOPS = (ast.For, ast.While, ast.comprehension)


def loops(function: Callable[..., Any]) -> bool:
    """Whether a function's source has a loop."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return any(isinstance(node, _LOOPS) for node in ast.walk(tree))


def operators(graph: Graph) -> Counter[str]:
    """How often a program uses each operator that computes something."""
    return Counter(op["op"] for op in graph.ops if op["op"] not in _FREE)


def transformation(function: Callable[..., Any], original: Graph, rewrite: Graph) -> str:
    """The class of a rewrite, whose source has no loops: none of Tessera's has."""
    before, after = operators(original), operators(rewrite)

    def fewer(kinds: set[str]) -> bool:
        return sum((before - after)[k] for k in kinds) > sum((after - before)[k] for k in kinds)

    if loops(function):
        return VECTORIZATION
    if fewer(_FUNCTIONS):
        return IDENTITY
    if fewer(_COSTLY) and after - before:
        return STRENGTH
    return SIMPLIFICATION if after - before else REDUNDANCY


def by_class(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Of rows with a class: how many there are of each, and their geometric mean speedup."""
    gains: dict[str, list[float]] = {name: [] for name in CLASSES}
    for row in rows:
        if "class" in row:
            gains[row["class"]].append(row["speedup_vs_original"])
    return {name: {"programs": len(some), "speedup": geometric_mean(some)}
            for name, some in gains.items() if some}  # fmt: skip
