"""Reductions, normalisations and contractions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tessera.frontends.onnx.fold import axes_operand
from tessera.frontends.onnx.node import Node, Value, handles, handles_first
from tessera.frontends.onnx.operators.elementwise import bits, channels, emit, f, iota, number
from tessera.ops.operands import reduced, wide
from tessera.ops.reduce import logsumexp, running_product, shifted, softmax, standardised
from tessera.tensor import Tensor
from tessera.types import is_float


def _axes(node: Node, x: Tensor) -> list[int] | None:
    """The axes of a reduction; None where it is to do nothing."""
    axes = axes_operand(node)
    if not axes:
        if node.attr("noop_with_empty_axes", 0):
            return None
        axes = list(range(x.ndim))
    return sorted({node.axis(a, x.ndim) for a in axes})


def _reduction(
    op: str,
    before: Callable[[Tensor], Tensor] | None = None,
    after: Callable[[Tensor], Tensor] | None = None,
) -> Callable[[Node], Tensor]:
    def run(node: Node) -> Tensor:
        x = node.x()
        axes = _axes(node, x)
        if before is not None:
            x = before(x)
        if axes is not None:
            x = reduced(op, x, axes, bool(node.attr("keepdims", 1)))
        return x if after is None else f("astype")(after(x), node.dtype())

    return run


handles("ReduceSum")(_reduction("sum"))
handles("ReduceL1")(_reduction("sum", f("abs")))
handles("ReduceSumSquare", in_f32=True)(_reduction("sum", f("sqr")))
handles("ReduceL2", in_f32=True)(_reduction("sum", f("sqr"), f("sqrt")))
handles("ReduceLogSum", in_f32=True)(_reduction("sum", None, f("log")))


@handles("ReduceMax", "ReduceMin")
def reduce_extremum(node: Node) -> Tensor:
    op = "reduce_max" if node.proto.op_type == "ReduceMax" else "reduce_min"
    return f("astype")(_reduction(op, bits)(node), node.dtype())


@handles_first("ReduceMean")
def reduce_mean(node: Node, x: Tensor) -> Tensor:
    if is_float(x.dtype):
        return _reduction("mean")(node)
    axes = _axes(node, x)
    count = int(np.prod([x.shape[a] for a in axes or ()], dtype=np.int64))
    total = f("astype")(_reduction("sum")(node), np.float64)
    return f("astype")(f("trunc")(total / float(count)), x.dtype)


@handles_first("ReduceLogSumExp", in_f32=True)
def reduce_log_sum_exp(node: Node, x: Tensor) -> Tensor:
    axes = _axes(node, x)
    if axes is None:
        return x
    floats = x if is_float(x.dtype) else f("astype")(x, np.float64)
    return f("astype")(logsumexp(floats, axes, bool(node.attr("keepdims", 1))), x.dtype)


@handles_first("ReduceProd")
def reduce_prod(node: Node, x: Tensor) -> Tensor:
    return f("prod")(x, _axes(node, x) or (), x.dtype, bool(node.attr("keepdims", 1)))


@handles("ArgMax", "ArgMin")
def arg_extremum(node: Node) -> Tensor:
    x = node.x()
    axis, keep = node.axis(node.attr("axis", 0), x.ndim), bool(node.attr("keepdims", 1))
    best = f(node.proto.op_type.lower())
    if not node.attr("select_last_index", 0):
        return best(x, axis, keep)
    at = best(f("flip")(x, axis), axis, keep)
    return at.builder.const(x.shape[axis] - 1, np.int64) - at


@handles_first("CumSum", "CumProd")
def cumulative(node: Node, x: Tensor) -> Tensor:
    axis = node.axis(int(node.known(1, "the axis").reshape(-1)[0]), x.ndim)
    reverse = bool(node.attr("reverse", 0))
    exclusive = bool(node.attr("exclusive", 0))
    if reverse:
        x = f("flip")(x, axis)
    sums = node.proto.op_type == "CumSum"
    total = shifted(x, axis, 1, int(not sums)) if exclusive else x
    total = emit("cumsum", total, axis=axis) if sums else running_product(total, axis)
    return f("flip")(total, axis) if reverse else total


# --- softmax and its kin


def _softmax_axes(node: Node, x: Tensor) -> list[int]:
    if node.opset >= 13:
        return [node.axis(node.attr("axis", -1), x.ndim)]
    return list(range(node.axis(node.attr("axis", 1), x.ndim), x.ndim))


@handles_first("Softmax", "LogSoftmax")
def softmax_(node: Node, x: Tensor) -> Tensor:
    return softmax(x, _softmax_axes(node, x), node.proto.op_type == "LogSoftmax")


@handles_first("Hardmax")
def hardmax(node: Node, x: Tensor) -> Tensor:
    axes = _softmax_axes(node, x)
    shape = x.shape
    lead = list(shape[: axes[0]])
    if len(axes) > 1:
        x = f("reshape")(x, [*lead, int(np.prod([shape[a] for a in axes], dtype=np.int64))])
    places = iota(x.builder, axes[0], x.shape)
    hot = f("astype")(emit("eq", places, f("argmax")(x, axes[0], True)), x.dtype)
    return f("reshape")(hot, list(shape))


@handles_first("LpNormalization", in_f32=True)
def lp_normalization(node: Node, x: Tensor) -> Tensor:
    axis = node.axis(node.attr("axis", -1), x.ndim)
    if node.attr("p", 2) == 1:
        size = reduced("sum", f("abs")(x), [axis], True)
    else:
        size = f("sqrt")(reduced("sum", emit("sqr", x), [axis], True))
    zero = number(x, 0)
    return emit("where", emit("eq", size, zero), zero, x / size)


# --- normalisations


@handles("BatchNormalization", in_f32=True)
def batch_normalization(node: Node) -> Tensor | None:
    if node.attr("training_mode", 0) or node.wants(1):
        return None
    x, scale, bias, mean, variance = node.all()
    epsilon = number(variance, node.attr("epsilon", 1e-5))
    factor = scale * emit("rsqrt", variance + epsilon)  # computed once per set of weights
    shift = bias - mean * factor
    if factor.dtype != x.dtype:
        factor, shift = f("astype")(factor, x.dtype), f("astype")(shift, x.dtype)
    return x * channels(x, factor) + channels(x, shift)


def _standardised(node: Node, x: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
    """Over the axes from the first on."""
    epsilon = float(np.float32(node.attr("epsilon", 1e-5)))
    return standardised(x, list(range(first, x.ndim)), epsilon)


@handles_first("LayerNormalization")
def layer_normalization(node: Node, x: Tensor) -> list[Value]:
    axis = node.axis(node.attr("axis", -1), x.ndim)
    y, mean, inverse = _standardised(node, wide(x), axis)
    y = f("astype")(y, x.dtype) * node.x(1)
    if node.has(2):
        y = y + node.x(2)
    return [y, mean, inverse]


@handles("InstanceNormalization", in_f32=True)
def instance_normalization(node: Node) -> Tensor:
    x, scale, bias = node.all()
    y, _, _ = _standardised(node, x, 2)
    return y * channels(x, scale) + channels(x, bias)


@handles("GroupNormalization")
def group_normalization(node: Node) -> Tensor | None:
    x, scale, bias = node.all()
    groups = int(node.require_attr("num_groups"))
    n, c, *rest = x.shape
    if groups < 1 or c % groups:
        raise node.bad(f"{groups} groups do not divide {c} channels")
    if scale.shape[0] != c:
        return None  # opset 18: a value per group
    parts = f("reshape")(x, [n, groups, c // groups, *rest])
    y, _, _ = _standardised(node, wide(parts), 2)
    y = f("astype")(f("reshape")(y, [n, c, *rest]), x.dtype)
    return y * channels(x, scale) + channels(x, bias)


@handles_first("LRN", in_f32=True)
def local_response_normalization(node: Node, x: Tensor) -> Tensor:
    size = int(node.require_attr("size"))
    low = (size - 1) // 2
    n, c, *rest = x.shape
    flat = f("reshape")(emit("sqr", x), [n, c, int(np.prod(rest, dtype=np.int64))])
    sums = emit("pool_sum", flat, size=[size, 1], low=[low, 0], high=[size - 1 - low, 0])
    total, bias = f("reshape")(sums, [n, c, *rest]), number(x, node.attr("bias", 1.0))
    base = bias + total * x.builder.const(node.attr("alpha", 1e-4) / size, x.dtype)
    return x / emit("power", base, number(x, node.attr("beta", 0.75)))


# --- contractions


handles("MatMul")(lambda node: f("matmul")(*node.all()))
handles("Einsum")(
    lambda node: f("einsum")(node.require_attr("equation", str).replace(" ", ""), *node.all())
)


@handles("Gemm")
def gemm(node: Node) -> Tensor:
    a, b, dtype = node.x(0), node.x(1), node.dtype()
    if (alpha := node.attr("alpha", 1.0)) != 1:
        a, b = wide(a), wide(b)
    if node.attr("transA", 0):
        a = f("transpose")(a)
    if node.attr("transB", 0):
        b = f("transpose")(b)
    y = emit("matmul", a, b)
    if alpha != 1:
        y = f("astype")(y * number(y, alpha), dtype)
    if node.has(2) and (beta := node.attr("beta", 1.0)) != 0:
        c = node.x(2)
        y = y + (c if beta == 1 else c * number(c, beta))
    return y
