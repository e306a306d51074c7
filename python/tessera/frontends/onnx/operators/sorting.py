"""The largest of an axis, by counting: programs do not sort."""

from __future__ import annotations

import numpy as np

from tessera.frontends.onnx.importer import Node, Value, handles
from tessera.frontends.onnx.operators.elementwise import emit, f
from tessera.frontends.onnx.operators.movement import along, axis_of, extent
from tessera.frontends.onnx.operators.reduction import reduced
from tessera.graph import Tensor

_LARGEST = 256  # elements of the axis: each is compared with each


def _places(like: Tensor, axis: int, shape: list[int | str]) -> Tensor:
    return like.builder.emit("iota", [], {"axis": axis, "type": ("i64", shape)})


@handles("TopK", written_out=True)
def top_k(node: Node) -> list[Value] | None:
    """An element's rank is how many precede it: larger ones (NaN above all), and equal ones before
    it. The k-th result is the element whose rank is k."""
    x = node.x(0)
    axis = axis_of(node, x.ndim, -1)
    n = extent(node, x, axis)
    k = (
        int(node.require_attr("k"))
        if node.opset < 10
        else int(node.known(1, "the number of elements").reshape(-1)[0])
    )
    if not 0 < k <= n:
        raise node.bad(f"takes {k} of {n} elements")
    if n > _LARGEST or x.dtype == np.bool_:
        return None
    x = f("moveaxis")(x, axis, -1)
    lead = list(x.shape[:-1])
    this, other = f("expand_dims")(x, -1), f("expand_dims")(x, -2)  # [..., n, 1], [..., 1, n]
    larger = bool(node.attr("largest", 1))
    first = emit("gt" if larger else "lt", other, this)
    same = emit("eq", other, this)
    if x.dtype.kind == "f":
        nan, others = emit("ne", this, this), emit("ne", other, other)
        numbers = emit("and", emit("not", nan), emit("not", others))
        first = emit(
            "or", emit("and", first, numbers), emit("and", *_nan_order(nan, others, larger))
        )
        same = emit("or", same, emit("and", nan, others))
    square = [*lead, n, n]
    before = emit("lt", _places(x, x.ndim, square), _places(x, x.ndim - 1, square))
    precedes = emit("or", first, emit("and", same, before))
    rank = reduced("sum", f("astype")(precedes, np.int64), [x.ndim], False)  # [..., n]
    chosen = [*lead, k, n]
    hit = emit("eq", f("expand_dims")(rank, -2), _places(x, x.ndim - 1, chosen))
    at = emit("where", hit, _places(x, x.ndim, chosen), x.builder.const(-1, np.int64))
    index = reduced("reduce_max", at, [x.ndim], False)  # [..., k]
    value = along(node, x, index, -1)
    return [f("moveaxis")(value, -1, axis), f("moveaxis")(index, -1, axis)]


def _nan_order(this: Tensor, other: Tensor, larger: bool) -> tuple[Tensor, Tensor]:
    """What is NaN and what is not, where the first of two precedes the second."""
    return (other, emit("not", this)) if larger else (emit("not", other), this)
