"""Scattering, turned round: each result looks for what was written to it.

Where the places are known, that is one selection. Else every place is compared with every result,
which is worth it for small tensors only; larger ones stay opaque nodes.
"""

from __future__ import annotations

import numpy as np

from tessera.frontends.onnx.fold import scatter_elements, scatter_nd
from tessera.frontends.onnx.node import Node, handles
from tessera.frontends.onnx.operators.elementwise import emit, f, iota
from tessera.frontends.onnx.operators.movement import along, axis_of, covers, extent, within
from tessera.ops.operands import row_major
from tessera.ops.scatter import scatter, scatter_along
from tessera.tensor import Tensor


def _dims(node: Node, x: Tensor) -> list[int]:
    return [extent(node, x, a) for a in range(x.ndim)]


def _selected(node: Node, x: Tensor, updates: Tensor, source: np.ndarray) -> Tensor:
    """Of the data's and then the updates' elements those of `source`, in the data's shape."""
    flat = f("concatenate")(
        [f("reshape")(t, [int(np.prod(_dims(node, t)))]) for t in (x, updates)], 0
    )
    index = node.importer.tensor(np.ascontiguousarray(source.reshape(-1)), "sources")
    return f("reshape")(emit("gather", flat, index, axis=0), list(source.shape))


def _compared(
    node: Node, x: Tensor, index: Tensor, updates: Tensor, axis: int | None = None
) -> Tensor | None:
    """`scatter`, or `scatter_along` an axis, in ONNX's words."""
    reduction = node.attr("reduction", "none")
    if reduction not in ("none", "add", "mul", "max", "min"):
        raise node.bad(f"the reduction '{reduction}' is not known")
    if reduction != "none" and x.dtype == np.bool_:
        return None
    _dims(node, updates)
    if axis is not None:
        return scatter_along(x, index, updates, axis, reduction)
    return scatter(x, index, updates, reduction)


@handles("Scatter", "ScatterElements", written_out=True)
def scatter_into(node: Node) -> Tensor | None:
    x, updates = node.x(0), node.x(2)
    axis = axis_of(node, x.ndim, 0)
    dims = _dims(node, x)
    if node.shape(1) != tuple(updates.shape) or updates.ndim != x.ndim:
        raise node.bad("needs indices of the updates' shape, with as many axes as the data")
    index = node.value(1)
    if isinstance(index, np.ndarray) and node.attr("reduction", "none") == "none":
        node.fits(np.prod(dims, dtype=np.float64))
        return _selected(node, x, updates, scatter_elements(dims, index, axis))
    places = within(x, axis, node.x(1))
    covers(node, x, updates, axis)
    return _compared(node, x, places, updates, axis)


@handles("ScatterND", written_out=True)
def scatter_slices(node: Node) -> Tensor | None:
    x, updates = node.x(0), node.x(2)
    dims = _dims(node, x)
    index = node.value(1)
    *lead, depth = (int(d) for d in index.shape)
    if depth > x.ndim or tuple(updates.shape) != (*lead, *dims[depth:]):
        raise node.bad(f"updates of shape {tuple(updates.shape)} do not fit its indices")
    if isinstance(index, np.ndarray) and node.attr("reduction", "none") == "none":
        node.fits(np.prod(dims, dtype=np.float64))
        return _selected(node, x, updates, scatter_nd(dims, index))
    count, rest = int(np.prod(lead, dtype=np.int64)), int(np.prod(dims[depth:], dtype=np.int64))
    at = f("reshape")(node.x(1), [count, depth])
    linear = row_major([within(x, k, at[:, k]) for k in range(depth)], dims[:depth])
    flat = f("transpose")(f("reshape")(x, [int(np.prod(dims[:depth], dtype=np.int64)), rest]))
    each = f("transpose")(f("reshape")(updates, [count, rest]))
    result = _compared(node, flat, f("expand_dims")(linear, 0), each)
    return None if result is None else f("reshape")(f("transpose")(result), dims)


@handles("TensorScatter", written_out=True)
def tensor_scatter(node: Node) -> Tensor:
    """A cache with new rows: each row of the result counts from where its sequence writes."""
    x, updates = node.x(0), node.x(1)
    axis = axis_of(node, x.ndim, -2)
    n, rows = extent(node, x, axis), extent(node, updates, axis)
    offset = iota(x.builder, axis, x.shape)
    if node.has(2):
        start = f("reshape")(f("astype")(node.x(2), np.int64), [x.shape[0], *[1] * (x.ndim - 1)])
        offset = offset - start
    if node.attr("mode", "linear") == "circular":
        offset = emit("mod", offset, offset.builder.const(n, np.int64))
    zero, last = (offset.builder.const(v, np.int64) for v in (0, rows - 1))
    written = emit("and", emit("ge", offset, zero), emit("le", offset, last))
    row = emit("max", zero, emit("min", last, offset))
    return emit("where", written, along(node, updates, row, axis), x)
