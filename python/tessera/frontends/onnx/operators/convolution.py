"""Convolutions and pooling."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from tessera.frontends.onnx.node import Node, handles, handles_first
from tessera.frontends.onnx.operators.elementwise import channels, emit, f
from tessera.frontends.onnx.operators.movement import extent
from tessera.tensor import Tensor
from tessera.types import Record


def _list(node: Node, name: str, n: int, default: int) -> list[int]:
    values = [int(v) for v in node.attr(name, [default] * n)]
    if len(values) != n:
        raise node.bad(f"{name} needs {n} entries, not {len(values)}")
    return values


def _extents(node: Node, x: Tensor, n: int) -> list[int]:
    if x.ndim < n:
        raise node.bad(f"a window of {n} axes slides over {x.ndim}")
    return [extent(node, x, a) for a in range(x.ndim - n, x.ndim)]


def _padding(
    node: Node, extents: list[int], size: list[int], strides: list[int], dilations: list[int]
) -> tuple[list[int], list[int]]:
    """Counts added before and behind each axis, as `pads` or `auto_pad` say."""
    n = len(extents)
    auto = node.attr("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        pads = _list(node, "pads", 2 * n, 0)
        return pads[:n], pads[n:]
    if auto == "VALID":
        return [0] * n, [0] * n
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise node.bad(f"auto_pad {auto!r} is not known")
    length, k, step, d = np.array([extents, size, strides, dilations], object)
    total = np.maximum(0, (-(-length // step) - 1) * step + (k - 1) * d + 1 - length)
    less, more = (total // 2).tolist(), (total - total // 2).tolist()
    return (less, more) if auto == "SAME_UPPER" else (more, less)


def _biased(y: Tensor, node: Node) -> Tensor:
    return y + channels(y, node.x(2)) if node.has(2) else y


def _size(node: Node, x: Tensor, w: Tensor) -> list[int]:
    """Of the window, as the weights say."""
    if x.ndim < 3 or w.ndim != x.ndim:
        raise node.bad(f"operands of {x.ndim} and {w.ndim} axes do not fit")
    return [int(d) for d in w.shape[2:]]


def _steps(node: Node, n: int, *sizes: list[int]) -> dict[str, list[int]]:
    """Strides and dilations, which are positive as the sizes have to be."""
    steps = {name: _list(node, name, n, 1) for name in ("strides", "dilations")}
    if any(v < 1 for values in (*sizes, *steps.values()) for v in values):
        raise node.bad("sizes, strides and dilations must be 1 or more")
    return steps


def convolved(node: Node, x: Tensor, w: Tensor) -> Tensor:
    size, n = _size(node, x, w), x.ndim - 2
    if node.has_attr("kernel_shape") and _list(node, "kernel_shape", n, 0) != size:
        raise node.bad(f"kernel_shape differs from the weights' {size}")
    steps = _steps(node, n)
    low, high = _padding(node, _extents(node, x, n), size, **steps)
    return emit("conv", x, w, **steps, low=low, high=high, groups=int(node.attr("group", 1)))


@handles("ConvTranspose")
def conv_transpose(node: Node) -> Tensor:
    x, w = node.x(0), node.x(1)
    size, n = _size(node, x, w), x.ndim - 2
    steps = _steps(node, n)
    extra = _list(node, "output_padding", n, 0)
    extents = _extents(node, x, n)
    auto = node.attr("auto_pad", "NOTSET")
    if node.has_attr("output_shape") or auto in ("SAME_UPPER", "SAME_LOWER"):
        length, k, step, d = np.array([extents, size, *steps.values()], object)
        wanted = length * step
        if node.has_attr("output_shape"):
            asked = node.require_attr("output_shape", list)[-n:]
            wanted = np.array([int(v) for v in asked], object)
            if wanted.shape != length.shape:
                raise node.bad(f"output_shape needs {n} entries")
        total = step * (length - 1) + extra + (k - 1) * d + 1 - wanted
        less = np.maximum(0, total) // 2
        upper = (total < 0) | (auto == "SAME_UPPER")  # of negative ones zeros are behind
        low = np.where(upper, less, total - less).tolist()
        high = np.where(upper, total - less, less).tolist()
    else:
        low, high = _padding(node, extents, size, **steps)
    high = [h - o for h, o in zip(high, extra, strict=True)]
    groups = int(node.attr("group", 1))
    return _biased(emit("conv_transpose", x, w, **steps, low=low, high=high, groups=groups), node)


# --- pooling


def _window(node: Node, x: Tensor) -> Record:
    n = x.ndim - 2
    size = [int(v) for v in node.require_attr("kernel_shape", list)]
    if len(size) != n:
        raise node.bad(f"kernel_shape needs {n} entries, not {len(size)}")
    steps = _steps(node, n, size)
    extents = _extents(node, x, n)
    low, high = _padding(node, extents, size, **steps)
    asked = list(high)
    if node.attr("ceil_mode", 0):
        begin, k, step, d = np.array([low, size, *steps.values()], object)
        room, span = begin + extents, (k - 1) * d + 1
        out = -(-(room + high - span) // step) + 1
        out -= (out - 1) * step >= room  # a window must begin before the padding behind
        high = np.maximum(high, (out - 1) * step + span - room).tolist()
    return {"size": size, **steps, "low": low, "high": high, "asked": asked}


def _pool(op: str, x: Tensor, window: Record) -> Tensor:
    return emit(op, x, **{k: v for k, v in window.items() if k != "asked"})


@handles("MaxPool")
def max_pool(node: Node) -> Tensor | None:
    if node.wants(1) or node.attr("storage_order", 0):
        return None
    x = node.x()
    return _pool("pool_max", x, _window(node, x))


@handles_first("AveragePool", in_f32=True)
def average_pool(node: Node, x: Tensor) -> Tensor:
    window = _window(node, x)
    total = _pool("pool_sum", x, window)
    padded = bool(node.attr("count_include_pad", 0))
    node.fits(np.prod(total.shape[2:], dtype=np.float64) * max(window["size"]))
    inside = []  # elements of each window, by axis
    for i, d in enumerate(total.shape[2:]):
        begin = np.arange(d) * window["strides"][i] - window["low"][i]
        taps = begin[:, None] + np.arange(window["size"][i]) * window["dilations"][i]
        extent = x.shape[2 + i]
        first, last = (-window["low"][i], extent + window["asked"][i]) if padded else (0, extent)
        inside.append(((taps >= first) & (taps < last)).sum(1, dtype=np.float64))
    counts = np.maximum(functools.reduce(np.multiply.outer, inside), 1)
    if (counts == counts.flat[0]).all():
        return total / total.builder.const(float(counts.flat[0]), x.dtype)
    return total * node.importer.tensor((1 / counts).astype(x.dtype), "average_factors")


def _whole(op: str, x: Tensor) -> Tensor:
    return emit(op, x, axes=list(range(2, x.ndim)), keepdims=True)


def _lp(node: Node, total: Callable[[Tensor], Tensor]) -> Tensor:
    x, p = node.x(), int(node.attr("p", 2))
    if p == 1:
        return total(f("abs")(x))
    if p == 2:
        return f("sqrt")(total(emit("sqr", x)))
    powers = emit("pow", f("abs")(x), exponent=p)
    return emit("power", total(powers), x.builder.const(1 / p, x.dtype))


handles.table({
    "GlobalAveragePool": lambda node: _whole("mean", node.x()),
    "GlobalMaxPool": lambda node: _whole("reduce_max", node.x()),
    "Conv": lambda node: _biased(convolved(node, node.x(0), node.x(1)), node),
})  # fmt: skip
handles.table({
    "LpPool": lambda node: _lp(node, lambda x: _pool("pool_sum", x, _window(node, x))),
    "GlobalLpPool": lambda node: _lp(node, functools.partial(_whole, "sum")),
}, in_f32=True)  # fmt: skip
