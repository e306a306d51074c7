"""Other spellings of the same program, some of which a library runs faster: the clock decides.

Each idiom takes the expressions of a program to expressions of equal value; sums may be added in
another order (in f32 and f64 only). "reuse", which writes a result over an operand that nobody
else needs, is a matter of statements: layout.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from string import ascii_lowercase

import numpy as np

from tessera.emit.node import Node, operands_first

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
_DIRECT = {"sum": "add", "reduce_max": "maximum", "reduce_min": "minimum", "mean": "add"}
Make = Callable[[Node], Node]


def respelled(outputs: Sequence[Node], idioms: Collection[str]) -> list[Node]:
    """The outputs with these idioms, in the order of IDIOMS, wherever they apply."""
    result = list(outputs)
    for name, idiom in _REWRITES.items():
        if name in idioms:
            result = _everywhere(result, idiom())
    return result


def _everywhere(outputs: Sequence[Node], make: Make) -> list[Node]:
    """`make` of every node, operands first; shared nodes stay shared."""
    done: dict[Node, Node] = {}
    for node in operands_first(outputs):
        args = tuple(done[a] for a in node.args)
        same = all(a is b for a, b in zip(args, node.args, strict=True))
        done[node] = make(node if same else replace(node, args=args))
    return [done[node] for node in outputs]


def _square(node: Node) -> Node:
    """x * x in one call that reads x once: np.square(x)."""
    if node.op == "sqr" or (node.op == "mul" and node.args[0] is node.args[1]):
        return Node("square", node.args[:1], node.dtype, node.shape, {}, node.name)
    return node


def _matrix_sum(node: Node) -> bool:
    return (
        node.op == "sum"
        and node.dtype in _FLOATS
        and node.args[0].dtype == node.dtype
        and not node.attrs["keepdims"]
    )


def _ones() -> Make:
    """Sums along an axis of a matrix as its product with a vector of ones, which BLAS computes."""
    vectors: dict[Hashable, Node] = {}

    def ones(x: Node, axis: int) -> Node:
        made = Node("ones", (x,), x.dtype, (x.shape[axis],), {"axis": axis})
        return vectors.setdefault((x, axis), made)

    def make(node: Node) -> Node:
        if not _matrix_sum(node) or node.args[0].ndim != 2:
            return node
        (x,) = node.args
        axes = sorted(int(a) for a in node.attrs["axes"])
        if axes == [0]:
            return Node("dot", (ones(x, 0), x), x.dtype, node.shape, {}, node.name)
        products = Node("dot", (x, ones(x, 1)), x.dtype, x.shape[:1])
        if axes == [1]:
            return products
        return Node("sum", (products,), x.dtype, (), {"axes": [0], "keepdims": False}, node.name)

    return make


def _einsum(node: Node) -> Node:
    """Sums, of products too, in one pass without the array of what is summed."""
    if not _matrix_sum(node) or node.args[0].ndim < 2:
        return node
    (x,) = node.args
    if x.op == "mul":
        operands = x.args
    elif x.op in ("sqr", "square"):
        operands = (x.args[0], x.args[0])
    else:
        operands = (x,)
    letters = ascii_lowercase[8 : 8 + x.ndim]
    if any(a.is_literal or a.shape != x.shape[x.ndim - a.ndim :] for a in operands):
        return node
    subscripts = [letters[x.ndim - a.ndim :] for a in operands]
    kept = "".join(c for n, c in enumerate(letters) if n not in node.attrs["axes"])
    attrs = {"subscripts": f"{','.join(subscripts)}->{kept}"}
    return Node("einsum", operands, node.dtype, node.shape, attrs, node.name)


def _direct(node: Node) -> Node:
    """Reductions as methods of ufuncs and products as methods of arrays, less Python around each;
    a mean as a sum divided by the count."""
    if node.op == "dot" and node.dtype in _FLOATS:
        return Node("dot_method", node.args, node.dtype, node.shape, {}, node.name)
    if node.op not in _DIRECT or node.dtype not in _FLOATS:
        return node
    (x,) = node.args
    if x.dtype != node.dtype:
        return node
    attrs = dict(node.attrs) | {"ufunc": _DIRECT[node.op]}
    total = Node("ufunc_reduce", (x,), node.dtype, node.shape, attrs)
    if node.op != "mean":
        return replace(total, name=node.name)
    count = Node("count", (x,), node.dtype, (), {"axes": attrs["axes"]})
    return Node("div", (total, count), node.dtype, node.shape, {}, node.name)


# Makers of what rewrites a node: one has to know what it made before.
_REWRITES: dict[str, Callable[[], Make]] = {
    "ones": _ones,
    "einsum": lambda: _einsum,
    "square": lambda: _square,
    "direct": lambda: _direct,
}
IDIOMS: dict[str, tuple[str, ...]] = {
    "numpy": (*_REWRITES, "reuse"),
    "jax": ("ones", "einsum"),
    "torch": ("ones",),
}
