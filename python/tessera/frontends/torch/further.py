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
    f,
    operand,
    reduced,
)
from tessera.frontends.torch.structure import _within, slice_
from tessera.graph import Tensor
from tessera.types import is_float

_MOST_RANKED = 256  # elements that are sorted
_MOST_INTEGER_PRODUCT = 1 << 20  # multiplications, since all terms are there at once


# --- element by element
@handles("aten.atan2.default")
def atan2(call: Call, y: Any, x: Any) -> Tensor:
    return emit("atan2", operand(call, y, call.dtype), operand(call, x, call.dtype))


@handles("aten.atan.default", "aten.asin.default", "aten.acos.default")
def arc(call: Call, x: Tensor) -> Tensor:
    """By the angle of a point on the unit circle."""
    _floats(call)
    x, one = cast(x, call.dtype), call.const(1)
    name = call.node.target.__name__.split(".")[0]
    if name == "atan":
        return emit("atan2", x, one)
    other = emit("sqrt", emit("mul", emit("sub", one, x), emit("add", one, x)))
    return emit("atan2", x, other) if name == "asin" else emit("atan2", other, x)


@handles("aten.copysign")
def copysign(call: Call, x: Any, y: Any) -> Tensor:
    _floats(call)
    x, y = operand(call, x, call.dtype), operand(call, y, call.dtype)
    size = emit("abs", x)
    # The sign of zero shows in its reciprocal.
    negative = emit("or", emit("lt", y, call.const(0)),
                    emit("and", emit("eq", y, call.const(0)),
                         emit("lt", emit("div", call.const(1), y), call.const(0))))  # fmt: skip
    return emit("where", negative, emit("neg", size), size)


@handles("aten.remainder")
def remainder(call: Call, x: Any, y: Any) -> Tensor:
    _floats(call)
    return emit("mod", operand(call, x, call.dtype), operand(call, y, call.dtype))


@handles("aten.max.default", "aten.min.default")
def extreme(call: Call, x: Tensor) -> Tensor:
    if x.dtype == np.bool_:
        raise UnsupportedError("of bool it is left to PyTorch")
    op = "reduce_max" if "max" in str(call.node.target) else "reduce_min"
    return reduced(op, x, axes_of(x, None), False)


@handles("aten.prod.dim_int", "aten.prod.default")
def prod(call: Call, x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    """Of a few factors."""
    x = cast(x, call.dtype)
    for axis in reversed(axes_of(x, dim)):
        if x.shape[axis] > 16:
            raise UnsupportedError("of more than 16 factors")
        parts = [slice_(call, x, axis, i, i + 1) for i in range(x.shape[axis])]
        x = parts[0]
        for part in parts[1:]:
            x = emit("mul", x, part)
        x = x if keepdim else f("squeeze")(x, axis)
    return x


# --- by position
def _flat_gather(x: Tensor, places: Tensor) -> Tensor:
    return emit("gather", f("reshape")(x, [x.size]), places, axis=0)


def _iota(call: Call, shape: Sequence[int], axis: int) -> Tensor:
    return call.graph.emit("iota", [], {"axis": axis, "type": ("i64", list(shape))})


@handles("aten.gather.default")
def gather(call: Call, x: Tensor, dim: int, index: Tensor, **_: Any) -> Tensor:
    """Of each place of the index, by the row-major number of what it reads."""
    if not x.ndim or not index.ndim:
        raise UnsupportedError("of a single number")
    axis, step, places = dim % x.ndim, 1, None
    for a in reversed(range(x.ndim)):
        at = _within(call, index, x.shape[a]) if a == axis else _iota(call, index.shape, a)
        term = at if step == 1 else emit("mul", at, call.graph.const(step, "i64"))
        places = term if places is None else emit("add", places, term)
        step *= x.shape[a]
    assert places is not None
    return _flat_gather(x, places)


@handles("aten.index.Tensor")
def index(call: Call, x: Tensor, indices: Sequence[Any]) -> Tensor:
    used = [(i, t) for i, t in enumerate(indices) if t is not None]
    if any(t.dtype in (np.bool_, np.uint8) for _, t in used):
        raise UnsupportedError("by a mask: how many it chooses is not known before")
    axes = [a for a, _ in used]
    if len(used) == 1:
        return emit("gather", x, _within(call, used[0][1], x.shape[axes[0]]), axis=axes[0])
    if axes != list(range(axes[0], axes[0] + len(axes))):
        raise UnsupportedError("by tensors of axes that are not neighbours")
    places = None
    for axis, t in used:
        at = _within(call, t, x.shape[axis])
        if places is not None:
            places = emit("mul", places, call.graph.const(x.shape[axis], "i64"))
        places = at if places is None else emit("add", places, at)
    shape = list(x.shape)
    shape[axes[0] : axes[-1] + 1] = [math.prod(x.shape[a] for a in axes)]
    assert places is not None
    return emit("gather", f("reshape")(x, shape), places, axis=axes[0])


@handles("aten.topk.default", "aten.sort.default", "aten.sort.stable")
def ranked(call: Call, x: Tensor, *args: Any, **kwargs: Any) -> list[Tensor]:
    """By counting: an element's place is how many come before it; of equal ones the first does."""
    if "topk" in str(call.node.target):
        k, dim, larger = _given(args[:3], kwargs, k=0, dim=-1, largest=True)
    else:
        dim, larger = _given(args, kwargs, dim=-1, descending=False)
        k = x.shape[dim] if x.ndim else 1
    many_ties = not is_float(x.dtype) or x.dtype.itemsize < 4
    if "topk" in str(call.node.target) and many_ties and call.wants(1):
        raise UnsupportedError("which of equal elements PyTorch takes is not known")
    if not x.ndim or x.dtype == np.bool_ or not k:
        raise UnsupportedError("of a number, of bool, or of nothing")
    axis, n = dim % x.ndim, x.shape[dim]
    if n > _MOST_RANKED or x.size * n > _MOST_INTEGER_PRODUCT:
        raise UnsupportedError(f"of more than {_MOST_RANKED} elements: each is compared with each")
    row = f("moveaxis")(x, axis, -1)
    this, other = f("expand_dims")(row, -1), f("expand_dims")(row, -2)
    first, same = emit("gt" if larger else "lt", other, this), emit("eq", other, this)
    if is_float(row.dtype):  # NaN is above all
        nan, others = emit("ne", this, this), emit("ne", other, other)
        ahead = (others, nan) if larger else (nan, others)
        first = emit("or", first, emit("and", ahead[0], emit("not", ahead[1])))
        same = emit("or", same, emit("and", nan, others))
    square, last = [*row.shape, n], row.ndim
    earlier = emit("lt", _iota(call, square, last), _iota(call, square, last - 1))
    before = f("astype")(emit("or", first, emit("and", same, earlier)), np.int64)
    rank = f("expand_dims")(reduced("sum", before, [last], False), -2)
    chosen = [*row.shape[:-1], k, n]
    hit = emit("eq", rank, _iota(call, chosen, last - 1))
    at = emit("where", hit, _iota(call, chosen, last), call.graph.const(-1, "i64"))
    index = f("moveaxis")(reduced("reduce_max", at, [last], False), -1, axis)
    return [gather(call, x, axis, index), index]


def _given(args: Sequence[Any], kwargs: dict[str, Any], **defaults: Any) -> list[Any]:
    """Arguments by place or by name."""
    values = {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}
    return [values[n] for n in defaults]


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
    places = emit("add", emit("mul", _iota(call, [count], 0),
                              call.graph.const(x.shape[b] + 1, "i64")),
                  call.graph.const(first, "i64"))  # fmt: skip
    return emit("gather", flat, places, axis=len(rest))


@handles("aten.slice_scatter.default")
def slice_scatter(
    call: Call, x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None,
    step: int = 1,
) -> Tensor:  # fmt: skip
    axis = dim % x.ndim
    first, last, _ = slice(start, end).indices(x.shape[axis])
    if step != 1:
        raise UnsupportedError("with a step")
    if last <= first:
        return x
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


@handles("aten.avg_pool2d.default", "aten.avg_pool3d.default")
def avg_pool(
    call: Call, x: Tensor, size: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
    include: bool = True, divisor: Any = None,
) -> Tensor:  # fmt: skip
    n = 3 if "3d" in str(call.node.target) else 2
    if x.ndim == n + 1:  # one image
        made = avg_pool(call, f("expand_dims")(x, 0), size, stride, padding, ceil, include, divisor)
        return f("squeeze")(made, 0)
    low = _pairs(padding, n) if padding else [0] * n
    if ceil or not is_float(x.dtype) or (any(low) and not include):
        raise UnsupportedError("with ceil_mode, of integers, or without its border")
    window = _pairs(size, n)
    made = emit("pool_sum", x, size=window, strides=_pairs(stride or size, n),
                dilations=[1] * n, low=low, high=low)  # fmt: skip
    return emit("div", made, call.const(divisor or math.prod(window)))


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


@handles("aten.avg_pool2d_backward.default")
def avg_pool_backward(
    call: Call, grad: Tensor, x: Tensor, size: Any, stride: Any, padding: Any, ceil: bool,
    include: bool, divisor: Any,
) -> Tensor:  # fmt: skip
    """Every place of a window gets its part, where windows do not overlap."""
    window = _pairs(size, 2)
    if _pairs(stride or size, 2) != window or any(_pairs(padding, 2)) or ceil or x.ndim != 4:
        raise UnsupportedError("of windows that overlap, with a border, or without a batch")
    n, c, h, w = grad.shape
    part = emit("div", grad, call.const(divisor or math.prod(window)))
    tiles = f("broadcast_to")(f("reshape")(part, [n, c, h, 1, w, 1]),
                              [n, c, h, window[0], w, window[1]])  # fmt: skip
    whole = f("reshape")(tiles, [n, c, h * window[0], w * window[1]])
    over = [(0, a - b) for a, b in zip(x.shape, whole.shape, strict=True)]
    return f("pad")(whole, over) if any(b for _, b in over) else whole
