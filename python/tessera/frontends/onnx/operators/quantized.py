"""Integers of 8 bits that stand for (q − zero point) · scale. Sums of products are exact in i32."""

from __future__ import annotations

import numpy as np

from tessera.frontends.onnx.node import Node, handles
from tessera.frontends.onnx.operators.convolution import convolved
from tessera.frontends.onnx.operators.elementwise import emit, f
from tessera.frontends.onnx.operators.movement import extent
from tessera.frontends.onnx.reader import dtype_of
from tessera.tensor import Tensor
from tessera.types import DType


def _is_single(v: Tensor) -> bool:
    """Whether it is one number for all of a tensor, of which no axis counts."""
    return v.ndim == 0 or (v.ndim == 1 and bool(v.shape[0] == 1))


def _axis(node: Node, rank: int, scale: Tensor) -> int:
    return 0 if _is_single(scale) else node.axis(node.attr("axis", 1), rank)


def _beside(node: Node, x: Tensor, v: Tensor, axis: int) -> Tensor:
    """One number for all of x, for each place of an axis, or for each block of places."""
    if v.ndim < 2:
        shape = [] if _is_single(v) else [v.shape[0], *[1] * (x.ndim - 1 - axis)]
        return f("reshape")(v, shape)
    node.fits(extent(node, x, axis))
    places = np.arange(extent(node, x, axis)) // max(1, node.attr("block_size", 0))
    return emit("gather", v, node.importer.tensor(places, "blocks"), axis=axis)


def _centred(node: Node, i: int, zero: int, axis: int) -> Tensor:
    """Operand i without its zero point, in i32."""
    x = f("astype")(node.x(i), np.int32)
    if not node.has(zero):
        return x
    return x - _beside(node, x, f("astype")(node.x(zero), np.int32), axis)


def _rounded(y: Tensor, zero: Tensor | None, to: DType) -> Tensor:
    """Halves to even, what is beyond the type at its ends."""
    y = f("astype")(f("rint")(y), np.float32)
    if zero is not None:
        y = y + f("astype")(zero, np.float32)
    ends = np.iinfo(to)
    return f("astype")(f("clip")(y, np.float32(ends.min), np.float32(ends.max)), to)


@handles("DequantizeLinear", written_out=True)
def dequantize(node: Node) -> Tensor:
    scale = node.x(1)
    axis = _axis(node, len(node.shape()), scale)
    y = _centred(node, 0, 2, axis)
    return f("astype")(y, scale.dtype) * _beside(node, y, scale, axis)


@handles("QuantizeLinear", written_out=True)
def quantize(node: Node) -> Tensor | None:
    x, scale = f("astype")(node.x(0), node.dtype(1)), node.x(1)
    axis = _axis(node, x.ndim, scale)
    to = node.dtype(2) if node.has(2) else np.dtype(np.uint8)
    if node.attr("output_dtype", 0) and not node.has(2):
        to = dtype_of(node.attr("output_dtype"), "its result")
    if to.name not in ("int8", "uint8") or node.attr("precision", 0):
        return None
    zero = _beside(node, x, node.x(2), axis) if node.has(2) else None
    return _rounded(x / _beside(node, x, scale, axis), zero, to)


def _requantized(node: Node, total: Tensor, axis: int) -> Tensor | None:
    """Sums of products of operands 0 and 3 as integers of operand 7's type."""
    if node.dtype(1) != np.float32 or node.dtype(7).name not in ("int8", "uint8"):
        return None
    a, b, y = (_beside(node, total, node.x(i), axis) for i in (1, 4, 6))
    return _rounded(f("astype")(total, np.float32) * (a * b / y), node.x(7), node.dtype(7))


@handles("QLinearMatMul", written_out=True)
def matmul(node: Node) -> Tensor | None:
    if any(node.has(i) and len(node.shape(i)) and node.shape(i) != (1,) for i in (1, 2, 6, 7)):
        return None  # by rows
    a, b = (_centred(node, i, i + 2, len(node.shape(i)) - 1) for i in (0, 3))
    total = f("matmul")(a, b)
    return _requantized(node, total, total.ndim - 1)


@handles("QLinearConv", written_out=True)
def convolution(node: Node) -> Tensor | None:
    total = convolved(node, _centred(node, 0, 2, 1), _centred(node, 3, 5, 0))
    if node.has(8):
        total = total + _beside(node, total, node.x(8), 1)
    return _requantized(node, total, 1)


@handles("MatMulInteger", written_out=True)
def matmul_of_integers(node: Node) -> Tensor:
    rows, columns = max(0, len(node.shape(0)) - 2), len(node.shape(1)) - 1
    return f("matmul")(_centred(node, 0, 2, rows), _centred(node, 1, 3, columns))


handles.table({
    "ConvInteger": lambda node: convolved(node, _centred(node, 0, 2, 1), _centred(node, 1, 3, 0)),
}, written_out=True)  # fmt: skip
