"""Arithmetic, reductions, products and normalisations of ATen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera import ops
from tessera.errors import UnsupportedError
from tessera.frontends.torch.importer import Call, dtype_of, handles
from tessera.graph import Tensor
from tessera.ops import integers, operands
from tessera.types import dtype_name, is_float, to_numpy

# A function of tensors by its NumPy name.
f: Callable[[str], Callable[..., Tensor]] = ops.function
emit, iota, reduced = operands.emit, operands.iota, operands.reduced


def cast(x: Tensor, dtype: str) -> Tensor:
    """As PyTorch converts: to bool by comparison with 0."""
    if is_float(x.dtype) and dtype in ("i8", "u8"):
        x = operands.cast(x, np.int32)
    return operands.cast(x, to_numpy(dtype))


def wide(x: Tensor) -> Tensor:
    """16-bit floats are reduced and normalised in f32."""
    return cast(x, "f32") if is_float(x.dtype) and x.dtype.itemsize == 2 else x


def operand(call: Call, value: Any, dtype: str) -> Tensor:
    return cast(value, dtype) if isinstance(value, Tensor) else call.const(value, dtype)


def _promoted(call: Call) -> str:
    """The dtype in which two operands are compared."""
    import torch

    values = [a.meta["val"] if hasattr(a, "meta") else a for a in call.node.args[:2]]
    return dtype_of(torch.result_type(*values))


def _floats(call: Call) -> None:
    if not is_float(to_numpy(call.dtype)):
        raise UnsupportedError("of integers it is left to PyTorch")


# --- element by element
for _name in ("exp", "log", "sin", "cos", "erf", "tanh", "sigmoid", "silu", "sqrt", "rsqrt",
              "log1p", "expm1"):  # fmt: skip

    @handles(f"aten.{_name}.default")
    def _unary(call: Call, x: Tensor, _op: str = _name) -> Tensor:
        return emit(_op, cast(x, call.dtype))


for _name in ("neg", "abs", "sign", "relu", "floor", "round"):

    @handles(f"aten.{_name}.default")
    def _same(call: Call, x: Tensor, _op: str = _name) -> Tensor:
        if x.dtype == np.bool_:
            raise UnsupportedError("of bool it is left to PyTorch")
        if _op in ("floor", "round") and not is_float(x.dtype):
            return x
        if _op == "sign" and is_float(x.dtype):  # 0 of NaN
            return emit("where", emit("ne", x, x), x.builder.const(0, x.dtype), emit("sign", x))
        return emit(_op, x)


for _name in ("reciprocal", "exp2", "log2", "log10", "ceil", "trunc", "sinh", "cosh", "tan"):

    @handles(f"aten.{_name}.default")
    def _derived(call: Call, x: Tensor, _function: str = _name) -> Tensor:
        _floats(call)
        if _function in ("exp2", "log2", "log10") and call.decides():
            raise UnsupportedError("it is exact at powers, and what is computed instead not")
        x = cast(x, call.dtype)
        return emit("div", call.const(1), x) if _function == "reciprocal" else f(_function)(x)


@handles("aten.gelu.default")
def gelu(call: Call, x: Tensor, *, approximate: str = "none") -> Tensor:
    return emit("gelu_tanh" if approximate == "tanh" else "gelu", x)


@handles("aten.logical_not.default", "aten.bitwise_not.default")
def logical_not(call: Call, x: Tensor) -> Tensor:
    if call.node.target.__name__.startswith("logical"):
        return emit("not", cast(x, "bool"))
    if x.dtype == np.bool_:
        return emit("not", x)
    if x.dtype == np.uint8:
        raise UnsupportedError("of u8 it is left to PyTorch")
    return emit("sub", emit("neg", x), x.builder.const(1, x.dtype))


def _scaled(call: Call, y: Any, alpha: Any) -> Tensor:
    y = operand(call, y, call.dtype)
    return y if alpha == 1 else emit("mul", y, call.const(alpha))


@handles("aten.add.Tensor", "aten.add.Scalar")
def add(call: Call, x: Any, y: Any, alpha: Any = 1) -> Tensor:
    x = operand(call, x, call.dtype)
    if call.dtype == "bool":
        return emit("or", x, operand(call, y, "bool"))
    return emit("add", x, _scaled(call, y, alpha))


@handles("aten.sub.Tensor", "aten.sub.Scalar")
def sub(call: Call, x: Any, y: Any, alpha: Any = 1) -> Tensor:
    return emit("sub", operand(call, x, call.dtype), _scaled(call, y, alpha))


@handles("aten.rsub")
def rsub(call: Call, x: Any, y: Any, alpha: Any = 1) -> Tensor:
    return emit("sub", operand(call, y, call.dtype), _scaled(call, x, alpha))


@handles("aten.mul.Tensor", "aten.mul.Scalar")
def mul(call: Call, x: Any, y: Any) -> Tensor:
    a, b = operand(call, x, call.dtype), operand(call, y, call.dtype)
    return emit("and" if call.dtype == "bool" else "mul", a, b)


@handles("aten.div", "aten.true_divide", "prims.div.default")
def div(call: Call, x: Any, y: Any, *, rounding_mode: str | None = None) -> Tensor:
    if not is_float(to_numpy(call.dtype)):
        if isinstance(y, Tensor) or int(y) == 0 or rounding_mode is None:
            raise UnsupportedError("of integers by a tensor, whose zeros are errors of PyTorch's")
        x, y = operand(call, x, call.dtype), call.const(y)
        if rounding_mode == "floor":
            return f("floor_divide")(x, y)
        return integers.trunc_divide(x, y)
    if rounding_mode == "floor":  # by C's remainder, as NumPy: 1 // 0.1 is 9
        y = operand(call, y, call.dtype) if isinstance(y, Tensor) else y
        return f("floor_divide")(operand(call, x, call.dtype), y)
    ratio = emit("div", operand(call, x, call.dtype), operand(call, y, call.dtype))
    return f("trunc")(ratio) if rounding_mode == "trunc" else ratio


def extremum(largest: bool, x: Tensor, y: Tensor) -> Tensor:
    """Of two, of truths too."""
    if x.dtype == np.bool_:
        return emit("or" if largest else "and", x, y)
    return emit("max" if largest else "min", x, y)


@handles("aten.maximum.default", "aten.minimum.default")
def maximum(call: Call, x: Any, y: Any) -> Tensor:
    largest = "maximum" in str(call.node.target)
    return extremum(largest, operand(call, x, call.dtype), operand(call, y, call.dtype))


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):

    @handles(f"aten.{_name}")
    def _compare(call: Call, x: Any, y: Any, _op: str = _name) -> Tensor:
        dtype = _promoted(call)
        if dtype == "bool":
            dtype = "i32"
        return emit(_op, operand(call, x, dtype), operand(call, y, dtype))


@handles("aten.logical_and.default", "aten.logical_or.default", "aten.logical_xor.default")
def logical(call: Call, x: Any, y: Any) -> Tensor:
    name = call.node.target.__name__.split(".")[0].split("_")[1]
    op = {"and": "and", "or": "or", "xor": "ne"}[name]
    return emit(op, operand(call, x, "bool"), operand(call, y, "bool"))


@handles("aten.bitwise_and", "aten.bitwise_or", "aten.bitwise_xor")
def bitwise(call: Call, x: Any, y: Any) -> Tensor:
    if call.dtype != "bool":
        raise UnsupportedError("of integers it is left to PyTorch")
    return logical(call, x, y)


@handles("aten.pow.Tensor_Scalar")
def pow_scalar(call: Call, x: Tensor, exponent: Any) -> Tensor:
    x = cast(x, call.dtype)
    if not is_float(x.dtype) and exponent in (2, 3):
        return emit("mul", x if exponent == 2 else emit("mul", x, x), x)
    _floats(call)
    if exponent == 2:
        return emit("sqr", x)
    if 2 * exponent == int(2 * exponent) and abs(exponent) <= 8:
        e = int(exponent) if exponent == int(exponent) else float(exponent)
        return emit("pow", x, exponent=e)
    return emit("power", x, call.const(exponent))


@handles("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def pow_tensor(call: Call, x: Any, y: Any) -> Tensor:
    _floats(call)
    return emit("power", operand(call, x, call.dtype), operand(call, y, call.dtype))


@handles("aten.clamp.default", "aten.hardtanh.default")
def clamp(call: Call, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    if low is None and "hardtanh" in str(call.node.target):
        low, high = -1.0, 1.0
    x = cast(x, call.dtype)
    x = x if low is None else emit("max", x, call.const(low))
    return x if high is None else emit("min", x, call.const(high))


@handles("aten.leaky_relu.default")
def leaky_relu(call: Call, x: Tensor, slope: Any = 0.01) -> Tensor:
    return emit("where", emit("gt", x, call.const(0)), x, emit("mul", x, call.const(slope)))


@handles("aten.where.self")
def where(call: Call, c: Tensor, x: Any, y: Any) -> Tensor:
    return emit("where", cast(c, "bool"), operand(call, x, call.dtype),
                operand(call, y, call.dtype))  # fmt: skip


@handles("aten.isnan.default")
def isnan(call: Call, x: Tensor) -> Tensor:
    return emit("ne", x, x)


@handles("aten.isinf.default")
def isinf(call: Call, x: Tensor) -> Tensor:
    if not is_float(x.dtype):
        return emit("ne", x, x)
    return emit("eq", emit("abs", x), x.builder.const(math.inf, x.dtype))


@handles("aten._to_copy.default")
def to_copy(call: Call, x: Tensor, **_: Any) -> Tensor:
    return cast(x, call.dtype)


# --- reductions
def axes_of(x: Tensor, dims: Any) -> list[int]:
    if dims is None or (isinstance(dims, list) and not dims):
        return list(range(x.ndim))
    dims = [dims] if isinstance(dims, int) else dims
    return sorted(d % max(1, x.ndim) for d in dims) if x.ndim else []


@handles("aten.sum", "prims.sum.default")
def sum_(call: Call, x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    work = "f32" if call.dtype in ("f16", "bf16") else call.dtype
    return cast(reduced("sum", cast(x, work), axes_of(x, dim), keepdim), call.dtype)


@handles("aten.mean")
def mean(call: Call, x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    x = wide(cast(x, call.dtype))
    return cast(reduced("mean", x, axes_of(x, dim), keepdim), call.dtype)


@handles("aten.amax.default", "aten.amin.default", "aten.max.default", "aten.min.default")
def amax(call: Call, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    op = "reduce_max" if "max" in str(call.node.target) else "reduce_min"
    number = f("astype")(x, np.int32) if x.dtype == np.bool_ else x
    return cast(reduced(op, number, axes_of(x, dim), keepdim), call.dtype)


@handles("aten.any.dim", "aten.any.default", "aten.any.dims")
def any_(call: Call, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    flags = f("astype")(cast(x, "bool"), np.int32)
    return cast(cast(reduced("reduce_max", flags, axes_of(x, dim), keepdim), "bool"), call.dtype)


@handles("aten.var.correction")
def var(
    call: Call, x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Tensor:
    axes = axes_of(x, dim)
    count = math.prod(x.shape[a] for a in axes) - (1 if correction is None else correction)
    if count <= 0:
        raise UnsupportedError("a variance of too few elements")
    x = wide(x)
    squares = emit("sqr", x - reduced("mean", x, axes, True))
    total = reduced("sum", squares, axes, keepdim)
    return cast(emit("div", total, x.builder.const(count, total.dtype)), call.dtype)


@handles("prims.var.default")
def prims_var(call: Call, x: Tensor, dims: Any, correction: Any = 1, **_: Any) -> Tensor:
    return var(call, x, dims, correction=correction)


@handles("aten.cumsum.default")
def cumsum(call: Call, x: Tensor, dim: int, **_: Any) -> Tensor:
    if not x.ndim:
        return cast(x, call.dtype)
    return cast(emit("cumsum", wide(cast(x, call.dtype)), axis=dim % x.ndim), call.dtype)


@handles("aten._softmax.default", "aten._log_softmax.default")
def softmax(call: Call, x: Tensor, dim: int, half: bool = False) -> Tensor:
    if not x.ndim:
        raise UnsupportedError("of a single number")
    axis = dim % x.ndim
    x = wide(x)
    shifted = x - reduced("reduce_max", x, [axis], True)
    powers = emit("exp", shifted)
    total = reduced("sum", powers, [axis], True)
    if "log" in str(call.node.target):
        return cast(shifted - emit("log", total), call.dtype)
    return cast(emit("div", powers, total), call.dtype)


# --- normalisations
def _standardised(x: Tensor, axes: Sequence[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """With mean 0 and variance 1; what was the mean, and what it is multiplied by."""
    mean = reduced("mean", x, axes, True)
    centred = x - mean
    variance = reduced("mean", emit("sqr", centred), axes, True)
    inverse = emit("rsqrt", variance + x.builder.const(eps, x.dtype))
    return centred * inverse, mean, inverse


@handles("aten.native_layer_norm.default")
def layer_norm(
    call: Call, x: Tensor, shape: Sequence[int], w: Any, b: Any, eps: float
) -> list[Tensor]:
    axes = list(range(x.ndim - len(shape), x.ndim))
    y, mean, inverse = _standardised(wide(x), axes, eps)
    y = y if w is None else y * cast(w, dtype_name(y.dtype))
    y = y if b is None else y + cast(b, dtype_name(y.dtype))
    statistics = dtype_of(call.node.meta["val"][1].dtype)
    return [cast(y, call.dtype), cast(mean, statistics), cast(inverse, statistics)]


@handles("aten.native_group_norm.default")
def group_norm(
    call: Call, x: Tensor, w: Any, b: Any, n: int, c: int, pixels: int, groups: int, eps: float
) -> list[Tensor]:
    rows = f("reshape")(wide(x), [n, groups, c // groups * pixels])
    y, mean, inverse = _standardised(rows, [2], eps)
    y = f("reshape")(y, x.shape)
    side = [c, *[1] * (x.ndim - 2)]
    y = y if w is None else y * f("reshape")(cast(w, dtype_name(y.dtype)), side)
    y = y if b is None else y + f("reshape")(cast(b, dtype_name(y.dtype)), side)
    made = [cast(f("reshape")(t, [n, groups]), call.dtype) for t in (mean, inverse)]
    return [cast(y, call.dtype), *made]


@handles("aten._native_batch_norm_legit_no_training.default")
def batch_norm(
    call: Call, x: Tensor, w: Any, b: Any, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> list[Any]:
    factor = emit("rsqrt", var + var.builder.const(eps, var.dtype))
    factor = factor if w is None else factor * cast(w, dtype_name(factor.dtype))
    shift = -mean * factor
    shift = shift if b is None else shift + cast(b, dtype_name(shift.dtype))
    side = [x.shape[1], *[1] * (x.ndim - 2)]
    y = wide(x) * f("reshape")(factor, side) + f("reshape")(shift, side)
    return [cast(y, call.dtype), None, None]


# --- products
@handles("aten.mm.default", "aten.bmm.default")
def mm(call: Call, x: Tensor, y: Tensor) -> Tensor:
    if not is_float(x.dtype):
        from tessera.frontends.torch.further import integer_product

        return integer_product(call, x, y)
    return emit("matmul", x, y)


@handles("aten.addmm.default", "aten.baddbmm.default")
def addmm(call: Call, c: Tensor, x: Tensor, y: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _added(call, c, mm(call, x, y), beta, alpha)


def _added(call: Call, c: Tensor, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    product = product if alpha == 1 else product * call.const(alpha)
    if beta == 0:
        return product
    return product + (c if beta == 1 else c * call.const(beta))


@handles("aten.dot.default", "aten.mv.default")
def mv(call: Call, x: Tensor, y: Tensor) -> Tensor:
    _floats(call)
    return f("matmul")(x, y)


@handles("aten.addmv.default", "aten.addbmm.default")
def addmv(call: Call, c: Tensor, x: Tensor, y: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """c and a product with a vector, or the sum of a batch of products."""
    if "mv" in str(call.node.target):
        product = mv(call, x, y)
    else:
        product = cast(reduced("sum", wide(mm(call, x, y)), [0], False), call.dtype)
    return _added(call, c, product, beta, alpha)


def _masked(call: Call, s: Tensor, causal: bool, mask: Any) -> Tensor:
    """Scores with what may not be seen at −∞."""
    if causal:
        row, column = (iota(s.builder, a, s.shape[-2:]) for a in (0, 1))
        hidden = s.builder.const(-math.inf, s.dtype)
        s = emit("where", emit("le", column, row), s, hidden)
    if mask is None:
        return s
    if mask.dtype == np.bool_:
        return emit("where", mask, s, s.builder.const(-math.inf, s.dtype))
    return s + cast(mask, dtype_name(s.dtype))


_ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"


@handles(f"{_ATTENTION}.default")
def attention(
    call: Call, q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False, *,
    attn_mask: Any = None, scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """Attention with the logarithms of its sums; 16-bit floats are rounded once, at the end."""
    if dropout:
        raise UnsupportedError("dropout is random")
    scores = _scores(call, q, k, causal, attn_mask, scale)
    top = reduced("reduce_max", scores, [scores.ndim - 1], True)
    if attn_mask is not None:  # where all is hidden, the maximum counts as 0
        zero, hidden = (top.builder.const(c, top.dtype) for c in (0, -math.inf))
        top = emit("where", emit("eq", top, hidden), zero, top)
    powers = emit("exp", scores - top)
    total = reduced("sum", powers, [scores.ndim - 1], True)
    if attn_mask is not None:  # and the sum as 1: the result is 0
        total = emit("max", total, total.builder.const(1, total.dtype))
    weights = cast(emit("div", powers, total), dtype_name(v.dtype))
    logs = f("squeeze")(emit("log", total) + top, -1) if call.wants(1) else None
    return [emit("matmul", weights, v), logs]


_ON_GPUS = "aten._scaled_dot_product"


@handles(f"{_ON_GPUS}_flash_attention.default")
def flash_attention(
    call: Call, q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False,
    debug: bool = False, *, scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """As PyTorch calls it on a GPU: what is only there for its own gradient is not made."""
    return [*attention(call, q, k, v, dropout, causal, scale=scale), *[None] * 7]


@handles(f"{_ON_GPUS}_efficient_attention.default", f"{_ON_GPUS}_cudnn_attention.default")
def biased_attention(
    call: Call, q: Tensor, k: Tensor, v: Tensor, bias: Any, logs: bool, dropout: float = 0.0,
    causal: bool = False, debug: bool = False, *, scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """The same with a mask that is added; the logarithms' layout is PyTorch's or cuDNN's own."""
    others = 3 if "efficient" in str(call.node.target) else 8
    made = attention(call, q, k, v, dropout, causal, attn_mask=bias, scale=scale)[0]
    return [made, *[None] * others]


def _scores(call: Call, q: Tensor, k: Tensor, causal: bool, mask: Any, scale: Any) -> Tensor:
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    product = wide(emit("matmul", q, f("swapaxes")(k, -1, -2)))
    return _masked(call, product * product.builder.const(factor, product.dtype), causal, mask)


@handles(f"{_ATTENTION}_backward.default")
def attention_backward(
    call: Call, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logs: Tensor,
    dropout: float = 0.0, causal: bool = False, *, attn_mask: Any = None,
    scale: float | None = None,
) -> list[Tensor]:  # fmt: skip
    """Gradients of q, k and v from the stored logarithms (FlashAttention-2, §3.1)."""
    if dropout:
        raise UnsupportedError("dropout is random")
    scores = _scores(call, q, k, causal, attn_mask, scale)
    p = emit("exp", scores - f("expand_dims")(cast(logs, dtype_name(scores.dtype)), -1))
    kind = dtype_name(v.dtype)
    dv = emit("matmul", f("swapaxes")(cast(p, kind), -1, -2), grad)
    dp = wide(emit("matmul", grad, f("swapaxes")(v, -1, -2)))
    d = reduced("sum", wide(grad) * wide(out), [out.ndim - 1], True)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    ds = cast(p * (dp - d) * scores.builder.const(factor, scores.dtype), kind)
    return [emit("matmul", ds, k), emit("matmul", f("swapaxes")(ds, -1, -2), q), dv]


# --- windows
def _pairs(values: Any, n: int) -> list[int]:
    values = [values] if isinstance(values, int) else list(values)
    return [int(v) for v in (values * n if len(values) == 1 else values)]


@handles("aten.convolution.default")
def convolution(
    call: Call, x: Tensor, w: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Tensor:  # fmt: skip
    n = x.ndim - 2
    low = _pairs(padding, n)
    high = list(low)
    if transposed:
        high = [h - o for h, o in zip(high, _pairs(output_padding, n), strict=True)]
    y = emit(
        "conv_transpose" if transposed else "conv", x, w, strides=_pairs(stride, n),
        dilations=_pairs(dilation, n), low=low, high=high, groups=int(groups),
    )  # fmt: skip
    return y if bias is None else y + f("reshape")(bias, [bias.shape[0], *[1] * n])
