"""Operators of ATen that are made of several of ours: by position, integer products, gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.errors import UnsupportedError
from tessera.frontends.torch.importer import Call, handles
from tessera.frontends.torch.operators import (
    _floats,
    _pairs,
    axes_of,
    cast,
    emit,
    extremum,
    f,
    operand,
    reduced,
    wide,
)
from tessera.frontends.torch.structure import counted, row_major_places, slice_, within
from tessera.graph import Tensor
from tessera.ops import integers
from tessera.ops.scatter import along, scatter
from tessera.types import is_float, to_numpy

_MOST_INTEGER_PRODUCT = 1 << 20  # multiplications, since all terms are there at once


# --- element by element
@handles("aten.atan2.default")
def atan2(call: Call, y: Any, x: Any) -> Tensor:
    return emit("atan2", operand(call, y, call.dtype), operand(call, x, call.dtype))


@handles("aten.atan.default", "aten.asin.default", "aten.acos.default")
def arc(call: Call, x: Tensor) -> Tensor:
    """By the angle of a point on the unit circle."""
    _floats(call)
    return f("arc" + call.node.target.__name__.split(".")[0][1:])(cast(x, call.dtype))


@handles("aten.copysign")
def copysign(call: Call, x: Any, y: Any) -> Tensor:
    _floats(call)
    x, y = operand(call, x, call.dtype), operand(call, y, call.dtype)
    size = emit("abs", x)
    return emit("where", _negative(y), emit("neg", size), size)


def _divides(call: Call, y: Any) -> None:
    """Raises for integers by what may be 0, where PyTorch raises."""
    if not is_float(to_numpy(call.dtype)) and (isinstance(y, Tensor) or int(y) == 0):
        raise UnsupportedError("of integers by a tensor, whose zeros are errors of PyTorch's")


@handles("aten.remainder")
def remainder(call: Call, x: Any, y: Any) -> Tensor:
    _divides(call, y)
    return emit("mod", operand(call, x, call.dtype), operand(call, y, call.dtype))


@handles("aten.fmod")
def fmod(call: Call, x: Any, y: Any) -> Tensor:
    """The remainder with the dividend's sign."""
    _divides(call, y)
    x, y = operand(call, x, call.dtype), operand(call, y, call.dtype)
    if not is_float(x.dtype):
        return integers.trunc_remainder(x, y)
    rest = emit("mod", emit("abs", x), emit("abs", y))
    return emit("where", emit("lt", x, call.const(0)), emit("neg", rest), rest)


@handles("aten.clamp.Tensor")
def clamp_between(call: Call, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    x = cast(x, call.dtype)
    x = x if low is None else extremum(True, x, cast(low, call.dtype))
    return x if high is None else extremum(False, x, cast(high, call.dtype))


@handles("aten.fmax.default", "aten.fmin.default")
def extreme_number(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """Of two; what is no number does not count."""
    x, y = cast(x, call.dtype), cast(y, call.dtype)
    made = extremum("fmax" in str(call.node.target), x, y)
    if not is_float(x.dtype):
        return made
    return emit("where", emit("ne", x, x), y, emit("where", emit("ne", y, y), x, made))


@handles("aten.asinh.default", "aten.acosh.default", "aten.atanh.default")
def area(call: Call, x: Tensor) -> Tensor:
    """By log1p, so that small results keep their digits."""
    _floats(call)
    x = wide(cast(x, call.dtype))
    one = x.builder.const(1, x.dtype)
    name = call.node.target.__name__.split(".")[0]
    if name == "atanh":
        ratio = emit("div", x + x, one - x)
        return cast(emit("log1p", ratio) * x.builder.const(0.5, x.dtype), call.dtype)
    # Of a large number log 2|x|, since its square may be beyond the largest.
    size = emit("abs", x) if name == "asinh" else x
    large = emit("log", size) + x.builder.const(math.log(2), x.dtype)
    if name == "acosh":
        above = x - one
        made = emit("log1p", above + emit("sqrt", above * (x + one)))
    else:
        square = size * size
        made = emit("log1p", size + emit("div", square, one + emit("sqrt", square + one)))
    made = emit("where", emit("gt", size, x.builder.const(1e9, x.dtype)), large, made)
    if name == "asinh":
        made = emit("where", emit("lt", x, x.builder.const(0, x.dtype)), emit("neg", made), made)
    return cast(made, call.dtype)


@handles("aten.round.decimals")
def round_to(call: Call, x: Tensor, *, decimals: int = 0) -> Tensor:
    _floats(call)
    scale = call.const(10.0 ** abs(decimals))
    if decimals < 0:
        return emit("mul", emit("round", emit("div", x, scale)), scale)
    return emit("div", emit("round", emit("mul", x, scale)), scale)


def _negative(x: Tensor) -> Tensor:
    """Whether the sign is minus: that of zero shows in its reciprocal."""
    zero = x.builder.const(0, x.dtype)
    below = emit("lt", x, zero)
    if not is_float(x.dtype):
        return below
    inverse = emit("div", x.builder.const(1, x.dtype), x)
    return emit("or", below, emit("and", emit("eq", x, zero), emit("lt", inverse, zero)))


@handles("aten.signbit.default")
def signbit(call: Call, x: Tensor) -> Tensor:
    if x.dtype == np.bool_:
        return call.graph.const(0, "bool", x.shape)
    return _negative(x)


@handles("aten.angle.default")
def angle(call: Call, x: Tensor) -> Tensor:
    """Of a real number 0 or π."""
    x = cast(x, call.dtype)
    zero, half = call.const(0), call.const(math.pi)
    return emit("where", emit("ne", x, x), x, emit("where", emit("lt", x, zero), half, zero))


@handles("aten.hypot.default")
def hypot(call: Call, x: Tensor, y: Tensor) -> Tensor:
    return cast(f("hypot")(wide(x), wide(y)), call.dtype)


@handles("aten.erfc.default")
def erfc(call: Call, x: Tensor) -> Tensor:
    """In f64, so that what is left of 1 keeps f32's digits until 1e-9."""
    if call.dtype == "f64":
        raise UnsupportedError("of f64: its digits are lost beside 1")
    x = cast(cast(x, call.dtype), "f64")
    return cast(emit("sub", x.builder.const(1, x.dtype), emit("erf", x)), call.dtype)


@handles("aten.binary_cross_entropy.default")
def binary_cross_entropy(
    call: Call, x: Tensor, target: Tensor, weight: Any = None, reduction: int = 1
) -> Tensor:
    """Of probabilities; their logarithms are no less than −100."""
    x = wide(x)
    zero, one, least = (x.builder.const(c, x.dtype) for c in (0, 1, -100))
    call.require(emit("and", emit("ge", x, zero), emit("le", x, one)))
    yes, no = (emit("max", log, least) for log in (emit("log", x), emit("log1p", -x)))
    loss = (target - one) * no - target * yes
    loss = cast(loss if weight is None else loss * weight, call.dtype)
    how = (None, "mean", "sum")[reduction]
    return loss if how is None else cast(reduced(how, wide(loss), axes_of(loss, None), False),
                                         call.dtype)  # fmt: skip


@handles("aten.copy.default")
def copy(call: Call, x: Tensor, source: Tensor, *_: Any) -> Tensor:
    return f("broadcast_to")(cast(source, call.dtype), list(x.shape))


@handles("aten.prod.dim_int", "aten.prod.default")
def prod(call: Call, x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    x = cast(x, call.dtype)
    axes = tuple(axes_of(x, dim))
    return f("prod")(x, axes, to_numpy(call.dtype), keepdim) if axes else x


# --- by position
@handles("aten.gather.default")
def gather(call: Call, x: Tensor, dim: int, index: Tensor, **_: Any) -> Tensor:
    if not x.ndim or not index.ndim:
        raise UnsupportedError("of a single number")
    return along(x, within(call, index, x.shape[dim]), dim)


@handles("aten.index.Tensor")
def index(call: Call, x: Tensor, indices: Sequence[Any]) -> Tensor:
    used = [(i, t) for i, t in enumerate(indices) if t is not None]
    if any(t.dtype in (np.bool_, np.uint8) for _, t in used):
        raise UnsupportedError("by a mask: how many it chooses is not known before")
    axes = [a for a, _ in used]
    if len(used) == 1:
        return emit("gather", x, row_major_places(call, x, used), axis=axes[0])
    if axes != list(range(axes[0], axes[0] + len(axes))):
        raise UnsupportedError("by tensors of axes that are not neighbours")
    places = row_major_places(call, x, used)
    shape = list(x.shape)
    shape[axes[0] : axes[-1] + 1] = [math.prod(x.shape[a] for a in axes)]
    return emit("gather", f("reshape")(x, shape), places, axis=axes[0])


@handles("aten.masked_scatter.default")
def masked_scatter(call: Call, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Where the mask is set, elements of the source in their order."""
    shape = np.broadcast_shapes(x.shape, mask.shape)
    x, mask = (f("broadcast_to")(t, shape) for t in (x, mask))
    flat = f("reshape")(cast(mask, "i64"), [mask.size])
    places = emit("cumsum", flat, axis=0) - call.graph.const(1, "i64")
    places = within(call, emit("max", places, call.graph.const(0, "i64")), source.size)
    found = emit("gather", f("reshape")(source, [source.size]), places, axis=0)
    return emit("where", mask, f("reshape")(found, shape), x)


@handles("aten._trilinear.default")
def trilinear(
    call: Call, a: Tensor, b: Tensor, c: Tensor, expand1: Sequence[int], expand2: Sequence[int],
    expand3: Sequence[int], summed: Sequence[int], *_: Any,
) -> Tensor:  # fmt: skip
    """Σ a·b·c over axes, each lacking some: a and b are contracted first where c's are theirs."""
    terms, letters = [], "abcdefghijklmnop"
    rank = a.ndim + len(expand1)
    for lacks in (expand1, expand2, expand3):
        terms.append("".join(letters[i] for i in range(rank) if i not in lacks))
    left = "".join(letters[i] for i in range(rank) if i not in summed)
    between = "".join(x for x in letters[:rank] if x in terms[0] + terms[1]
                      and x in terms[2] + left)  # fmt: skip
    both = f("einsum")(f"{terms[0]},{terms[1]}->{between}", wide(a), wide(b))
    return cast(f("einsum")(f"{between},{terms[2]}->{left}", both, wide(c)), call.dtype)


@handles("aten.diagonal.default", "aten.diagonal_copy.default")
def diagonal(call: Call, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    a, b = dim1 % x.ndim, dim2 % x.ndim
    count = min(x.shape[a] - max(0, -offset), x.shape[b] - max(0, offset))
    if count <= 0:
        raise UnsupportedError("an empty diagonal")
    rest = [i for i in range(x.ndim) if i not in (a, b)]
    turned = f("transpose")(x, [*rest, a, b])
    flat = f("reshape")(turned, [*(x.shape[i] for i in rest), x.shape[a] * x.shape[b]])
    first = max(0, -offset) * x.shape[b] + max(0, offset)
    return emit("gather", flat, counted(call, first, count, x.shape[b] + 1), axis=len(rest))


@handles("aten.slice_scatter.default")
def slice_scatter(
    call: Call, x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None,
    step: int = 1,
) -> Tensor:  # fmt: skip
    axis = dim % x.ndim
    first, last, _ = slice(start, end).indices(x.shape[axis])
    if last <= first:
        return x
    if step != 1:
        places = counted(call, first, source.shape[axis], step)
        row, given = (f("moveaxis")(t, axis, -1) for t in (x, cast(source, call.dtype)))
        made = scatter(row, places, given, "none", max(1 << 16, x.size // 4))
        if made is None:
            raise UnsupportedError("with a step, and large")
        return f("moveaxis")(made, -1, axis)
    parts = [slice_(call, x, axis, 0, first)] if first else []
    parts.append(cast(source, call.dtype))
    if last < x.shape[axis]:
        parts.append(slice_(call, x, axis, last, x.shape[axis]))
    return f("concatenate")(parts, axis) if len(parts) > 1 else parts[0]


# --- products and windows
def integer_product(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """Sums of products; matrix products of ours are those of floats."""
    terms = math.prod(x.shape) * y.shape[-1]
    if terms > _MOST_INTEGER_PRODUCT:
        raise UnsupportedError("of integers, and large")
    product = emit("mul", f("expand_dims")(x, -1), f("expand_dims")(y, -3))
    return reduced("sum", product, [product.ndim - 2], False)


@handles("aten.convolution_backward.default")
def convolution_backward(
    call: Call, grad: Tensor, x: Tensor, w: Tensor, bias: Any, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int, mask: Sequence[bool],
) -> list[Any]:  # fmt: skip
    """Gradients of image, weights and bias, as convolutions."""
    n = x.ndim - 2
    if transposed or groups != 1:
        raise UnsupportedError("of transposed convolutions or groups")
    s, p, d = _pairs(stride, n), _pairs(padding, n), _pairs(dilation, n)
    made: list[Any] = [None, None, None]
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
