"""Products of ATen: of matrices, attention, convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tessera.errors import UnsupportedError
from tessera.frontends.torch.call import (
    Call,
    cast,
    emit,
    f,
    floats_only,
    handles,
    iota,
    pairs,
    reduced,
    wide,
)
from tessera.tensor import Tensor
from tessera.types import Sides, dtype_name, is_float

_MOST_INTEGER_PRODUCT = 1 << 20  # multiplications, since all terms are there at once


# --- products of matrices
def _integer_product(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """Sums of products; matrix products of ours are those of floats."""
    terms = math.prod(x.shape) * y.shape[-1]
    if terms > _MOST_INTEGER_PRODUCT:
        raise UnsupportedError("of integers, and large")
    product = emit("mul", f("expand_dims")(x, -1), f("expand_dims")(y, -3))
    return reduced("sum", product, [product.ndim - 2], False)


@handles("aten.mm.default", "aten.bmm.default")
def mm(call: Call, x: Tensor, y: Tensor) -> Tensor:
    if not is_float(x.dtype):
        return _integer_product(call, x, y)
    return emit("matmul", x, y)


def _added(call: Call, c: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    product = product if alpha == 1 else product * call.const(alpha)
    if beta == 0:
        return product
    return product + (c if beta == 1 else c * call.const(beta))


@handles("aten.addmv.default", "aten.addbmm.default")
def addmv(
    call: Call, c: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """c and a product with a vector, or the sum of a batch of products."""
    if call.name == "addmv":
        floats_only(call)
        product = f("matmul")(x, y)
    else:
        product = cast(reduced("sum", wide(mm(call, x, y)), [0], False), call.dtype)
    return _added(call, c, product, beta, alpha)


def _masked(call: Call, s: Tensor, causal: bool, mask: Tensor | None) -> Tensor:
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


def _grouped(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Where several heads of queries share one of keys: single queries of theirs are the rows of a
    product, longer ones get an axis of groups."""
    if q.ndim != 4 or q.shape[1] == k.shape[1]:
        return q, k, v, mask
    batch, heads, rows, width = q.shape
    shared = (batch, k.shape[1], heads // k.shape[1])
    if mask is not None and mask.ndim == 4 and mask.shape[1] == heads:
        mask = f("reshape")(mask, (mask.shape[0], *shared[1:], *mask.shape[2:]))
    elif mask is not None and mask.ndim == 4:
        mask = f("expand_dims")(mask, 2)
    if rows == 1 and not causal:
        if mask is not None and mask.ndim == 5:
            mask = f("squeeze")(mask, 3)
        return f("reshape")(q, (*shared, width)), k, v, mask
    split = f("reshape")(q, (*shared, rows, width))
    return split, f("expand_dims")(k, 2), f("expand_dims")(v, 2), mask


_ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"


@handles(f"{_ATTENTION}.default")
def attention(
    call: Call, q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False, *,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> list[Tensor | None]:  # fmt: skip
    """Attention with the logarithms of its sums; 16-bit floats are rounded once, at the end."""
    if dropout:
        raise UnsupportedError("dropout is random")
    shape = (*q.shape[:-1], v.shape[-1])
    q, k, v, mask = _grouped(q, k, v, attn_mask, causal)
    scores = _scores(call, q, k, causal, mask, scale)
    top = reduced("reduce_max", scores, [scores.ndim - 1], True)
    if mask is not None:  # where all is hidden, the maximum counts as 0
        zero, hidden = (top.builder.const(c, top.dtype) for c in (0, -math.inf))
        top = emit("where", emit("eq", top, hidden), zero, top)
    powers = emit("exp", scores - top)
    total = reduced("sum", powers, [scores.ndim - 1], True)
    if mask is not None:  # and the sum as 1: the result is 0
        total = emit("max", total, total.builder.const(1, total.dtype))
    weights = cast(emit("div", powers, total), dtype_name(v.dtype))
    logs = f("reshape")(emit("log", total) + top, shape[:-1]) if call.wants(1) else None
    return [f("reshape")(emit("matmul", weights, v), shape), logs]


_ON_GPUS = "aten._scaled_dot_product"


@handles(f"{_ON_GPUS}_flash_attention.default")
def flash_attention(
    call: Call, q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, causal: bool = False,
    debug: bool = False, *, scale: float | None = None,
) -> list[Tensor | None]:  # fmt: skip
    """As PyTorch calls it on a GPU: what is only there for its own gradient is not made."""
    return [*attention(call, q, k, v, dropout, causal, scale=scale), *[None] * 7]


@handles(f"{_ON_GPUS}_efficient_attention.default", f"{_ON_GPUS}_cudnn_attention.default")
def biased_attention(
    call: Call, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, logs: bool,
    dropout: float = 0.0, causal: bool = False, debug: bool = False, *, scale: float | None = None,
) -> list[Tensor | None]:  # fmt: skip
    """The same with a mask that is added; the logarithms' layout is PyTorch's or cuDNN's own."""
    others = 3 if "efficient" in str(call.node.target) else 8
    made = attention(call, q, k, v, dropout, causal, attn_mask=bias, scale=scale)[0]
    return [made, *[None] * others]


def _scores(
    call: Call, q: Tensor, k: Tensor, causal: bool, mask: Tensor | None, scale: float | None
) -> Tensor:
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    product = wide(emit("matmul", q, f("swapaxes")(k, -1, -2)))
    return _masked(call, product * product.builder.const(factor, product.dtype), causal, mask)


@handles(f"{_ATTENTION}_backward.default")
def attention_backward(
    call: Call, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logs: Tensor,
    dropout: float = 0.0, causal: bool = False, *, attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> list[Tensor]:  # fmt: skip
    """Gradients of q, k and v from the stored logarithms (FlashAttention-2, §3.1)."""
    if dropout:
        raise UnsupportedError("dropout is random")
    shapes = q.shape, k.shape, v.shape
    q, k, v, mask = _grouped(q, k, v, attn_mask, causal)
    logs = f("reshape")(logs, q.shape[:-1])
    grad, out = (f("reshape")(x, (*q.shape[:-1], v.shape[-1])) for x in (grad, out))
    scores = _scores(call, q, k, causal, mask, scale)
    p = emit("exp", scores - f("expand_dims")(cast(logs, dtype_name(scores.dtype)), -1))
    kind = dtype_name(v.dtype)
    dv = emit("matmul", f("swapaxes")(cast(p, kind), -1, -2), grad)
    dp = wide(emit("matmul", grad, f("swapaxes")(v, -1, -2)))
    d = reduced("sum", wide(grad) * wide(out), [out.ndim - 1], True)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    ds = cast(p * (dp - d) * scores.builder.const(factor, scores.dtype), kind)
    made = [emit("matmul", ds, k), emit("matmul", f("swapaxes")(ds, -1, -2), q), dv]
    if q.ndim == 5:  # keys and values are shared along the third axis
        made[1:] = [cast(reduced("sum", wide(x), [2], False), kind) for x in made[1:]]
    return [f("reshape")(x, shape) for x, shape in zip(made, shapes, strict=True)]


# --- windows
@handles("aten.convolution.default")
def convolution(
    call: Call, x: Tensor, w: Tensor, bias: Tensor | None, stride: Sides, padding: Sides,
    dilation: Sides, transposed: bool, output_padding: Sides, groups: int,
) -> Tensor:  # fmt: skip
    n = x.ndim - 2
    low = high = pairs(padding, n)
    if transposed:
        high = [h - o for h, o in zip(low, pairs(output_padding, n), strict=True)]
    y = emit(
        "conv_transpose" if transposed else "conv", x, w, strides=pairs(stride, n),
        dilations=pairs(dilation, n), low=low, high=high, groups=int(groups),
    )  # fmt: skip
    return y if bias is None else y + f("reshape")(bias, [bias.shape[0], *[1] * n])


@handles("aten.convolution_backward.default")
def convolution_backward(
    call: Call, grad: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, stride: Sides,
    padding: Sides, dilation: Sides, transposed: bool, output_padding: Sides, groups: int,
    mask: Sequence[bool],
) -> list[Tensor | None]:  # fmt: skip
    """Gradients of image, weights and bias, as convolutions."""
    n = x.ndim - 2
    if transposed or groups != 1:
        raise UnsupportedError("of transposed convolutions or groups")
    s, p, d = pairs(stride, n), pairs(padding, n), pairs(dilation, n)
    made: list[Tensor | None] = [None, None, None]
    if mask[0]:
        # What the strides left over at the far border is lengthened by.
        over = [(x.shape[2 + i] + 2 * p[i] - d[i] * (w.shape[2 + i] - 1) - 1) % s[i]
                for i in range(n)]  # fmt: skip
        made[0] = emit("conv_transpose", grad, w, strides=s, dilations=d, low=p,
                       high=[a - b for a, b in zip(p, over, strict=True)], groups=1)  # fmt: skip
    if mask[1]:
        order = [1, 0, *range(2, n + 2)]
        full = emit("conv", f("transpose")(x, order), f("transpose")(grad, order), strides=d,
                    dilations=s, low=p, high=p, groups=1)  # fmt: skip
        cut = full[(slice(None), slice(None), *(slice(0, k) for k in w.shape[2:]))]
        made[1] = f("transpose")(cut, order)
    if mask[2]:
        made[2] = reduced("sum", grad, [0, *range(2, n + 2)], False)
    return made


handles.table({
    "aten.addmm.default aten.baddbmm.default": lambda call, c, x, y, *, beta=1, alpha=1:
        _added(call, c, mm(call, x, y), beta, alpha),
})  # fmt: skip
