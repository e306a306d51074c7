"""ATen's operators that write to places given by tensors, and those that read memory by strides.

All are scatterings of ops/scatter.py: what is too large for comparing places is left to PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tessera.errors import UnsupportedError
from tessera.frontends.torch.call import Call, cast, concrete, emit, f, handles, iota, operand, wide
from tessera.frontends.torch.indexing import row_major_places, within
from tessera.ops.scatter import neutral, scatter, scatter_along, scatter_rows
from tessera.tensor import Tensor, Term
from tessera.types import is_float

_HOW = {"sum": "add", "add": "add", "mean": "add", "prod": "mul", "multiply": "mul",
        "amax": "max", "amin": "min", "none": "none"}  # fmt: skip
Put = Callable[[Tensor, Tensor, str], Tensor]  # x, updates, how → x with updates written to it


def _most(x: Tensor) -> int:
    """Comparisons that take no longer than a call of PyTorch's own loop, or than writing x."""
    return max(1 << 16, x.size // 4)


def _done(made: Tensor | None) -> Tensor:
    if made is None:
        raise UnsupportedError("large: each place is compared with each result")
    return made


def _reduced(call: Call, put: Put, x: Tensor, updates: Tensor, reduce: str, own: bool) -> Tensor:
    """x with updates combined into it; without what it was itself where something is written
    (`own` false). 16-bit floats are added in f32."""
    how = _HOW[reduce]
    if how == "none":
        return put(x, updates, how)
    if x.dtype == np.bool_ and reduce == "add" and own:
        return cast(put(cast(x, "i32"), cast(updates, "i32"), "max"), "bool")
    if x.dtype == np.bool_:
        raise UnsupportedError("of bool it is left to PyTorch")
    x, updates = wide(x), wide(updates)
    count = None
    if reduce == "mean" or not own:
        ones = call.graph.const(1, "i64", updates.shape)
        count = put(call.graph.const(int(own), "i64", x.shape), ones, "add")
    if count is not None and not own:
        kept = emit("eq", count, call.graph.const(0, "i64"))
        x = emit("where", kept, x, x.builder.const(neutral(x.dtype, how), x.dtype))
    made = put(x, updates, how)
    if count is not None and reduce == "mean":
        count = f("astype")(emit("max", count, call.graph.const(1, "i64")), made.dtype)
        made = made / count if is_float(made.dtype) else f("floor_divide")(made, count)
    return cast(made, call.dtype)


def _by_rows(call: Call, places: Tensor, depth: int) -> Put:
    """Writing to places [J] of the first `depth` axes as one."""

    def put(x: Tensor, updates: Tensor, how: str) -> Tensor:
        n = math.prod(x.shape[:depth])
        rows = f("reshape")(x, [n, x.size // n])
        given = f("reshape")(updates, [places.size, x.size // n])
        return f("reshape")(_done(scatter_rows(rows, places, given, how, _most(x))), x.shape)

    return put


@handles("aten.index_put.default")
def index_put(
    call: Call, x: Tensor, indices: Sequence[Tensor | None], values: Tensor,
    accumulate: bool = False,
) -> Tensor:  # fmt: skip
    used = [(i, t) for i, t in enumerate(indices) if t is not None]
    axes = [a for a, _ in used]
    if any(t.dtype in (np.bool_, np.uint8) for _, t in used):
        (axis, mask), *others = used
        if others or accumulate or values.size != 1:
            raise UnsupportedError("by a mask: how many it chooses is not known before")
        side = [*mask.shape, *[1] * (x.ndim - axis - mask.ndim)]
        return emit("where", f("reshape")(cast(mask, "bool"), side),
                    f("reshape")(values, []), x)  # fmt: skip
    shape = list(np.broadcast_shapes(*(t.shape for _, t in used)))
    places = row_major_places(call, x, used)
    places = f("reshape")(f("broadcast_to")(places, shape), [math.prod(shape)])
    rest = [a for a in range(x.ndim) if a not in axes]
    # What is indexed stands where the first index does, or in front if others are between.
    beside = axes == list(range(axes[0], axes[0] + len(axes)))
    before = axes[0] if beside else 0
    whole = [x.shape[a] for a in rest]
    values = f("broadcast_to")(values, [*whole[:before], *shape, *whole[before:]])
    values = f("moveaxis")(values, list(range(before, before + len(shape))),
                           list(range(len(shape))))  # fmt: skip
    turned = f("transpose")(x, [*axes, *rest])
    made = _reduced(call, _by_rows(call, places, len(axes)), turned, values,
                    "add" if accumulate else "none", True)  # fmt: skip
    return f("transpose")(made, [([*axes, *rest]).index(a) for a in range(x.ndim)])


@handles("aten.index_reduce.default")
def index_reduce(
    call: Call, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *,
    include_self: bool = True,
) -> Tensor:  # fmt: skip
    if not x.ndim:
        x, source = (f("reshape")(t, [1]) for t in (x, source))
        made = index_reduce(call, x, 0, index, source, reduce, include_self=include_self)
        return f("reshape")(made, [])
    axis = dim % x.ndim
    places = within(call, f("reshape")(index, [index.size]), x.shape[axis])
    front, given = (f("moveaxis")(t, axis, 0) for t in (x, source))
    made = _reduced(call, _by_rows(call, places, 1), front, given, reduce, include_self)
    return f("moveaxis")(made, 0, axis)


@handles("aten.index_add.default", "aten.index_copy.default")
def index_written(
    call: Call, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    how = "add" if call.name == "index_add" else "none"
    source = source if alpha == 1 else emit("mul", source, call.const(alpha))
    return index_reduce(call, x, dim, index, source, how)


@handles("aten.put.default")
def put(call: Call, x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    places = within(call, f("reshape")(index, [index.size]), x.size, True)
    flat = f("reshape")(x, [x.size])
    made = _reduced(call, _by_rows(call, places, 1), flat, f("reshape")(source, [index.size]),
                    "add" if accumulate else "none", True)  # fmt: skip
    return f("reshape")(made, x.shape)


# --- along an axis, each place on its own
def _along(
    call: Call, x: Tensor, dim: int, index: Tensor, updates: Tensor, reduce: str, own: bool
) -> Tensor:
    if not x.ndim or not index.ndim:
        x, index, updates = (f("reshape")(t, [t.size]) for t in (x, index, updates))
        return f("reshape")(_along(call, x, 0, index, updates, reduce, own),
                            concrete(call.node.meta["val"].shape))  # fmt: skip
    axis = dim % x.ndim
    places = within(call, index, x.shape[axis])
    updates = updates[tuple(slice(0, n) for n in index.shape)]

    def put(x: Tensor, updates: Tensor, how: str) -> Tensor:
        return _done(scatter_along(x, places, updates, axis, how, _most(x)))

    return _reduced(call, put, x, updates, reduce, own)


@handles("aten.scatter.src", "aten.scatter.value", "aten.scatter.reduce",
         "aten.scatter.value_reduce", "aten.scatter_add.default")  # fmt: skip
def scatter_(
    call: Call, x: Tensor, dim: int, index: Tensor, source: Term, *, reduce: str = "none"
) -> Tensor:
    if call.name == "scatter_add":
        reduce = "add"
    if not isinstance(source, Tensor):
        source = call.graph.const(source, call.dtype, index.shape)
    return _along(call, x, dim, index, source, reduce, True)


@handles("aten.diagonal_scatter.default")
def diagonal_scatter(
    call: Call, x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    a, b = dim1 % x.ndim, dim2 % x.ndim
    rest = [i for i in range(x.ndim) if i not in (a, b)]
    order, (h, w) = [*rest, a, b], (x.shape[a], x.shape[b])
    turned = f("transpose")(x, order)
    flat = f("reshape")(turned, [*(x.shape[i] for i in rest), h * w])
    first = max(0, -offset) * w + max(0, offset)
    places = _positions(call, [source.shape[-1]], [w + 1], first)
    made = _done(scatter(flat, places, cast(source, call.dtype), "none", _most(x)))
    return f("transpose")(f("reshape")(made, turned.shape), np.argsort(order).tolist())


# --- by strides
def _positions(call: Call, shape: Sequence[int], strides: Sequence[int], first: int) -> Tensor:
    """Σ index·stride + first, of each place of a shape."""
    made = call.graph.const(first, "i64", list(shape))
    for axis, stride in enumerate(strides):
        if stride:
            at = iota(call.graph, axis, shape)
            made = emit("add", made, emit("mul", at, call.graph.const(stride, "i64")))
    return made


def _memory(call: Call, x: Tensor) -> Tensor:
    """A tensor's elements as they lie in memory, where they lie row by row without gaps."""
    value = call.node.args[0].meta["val"]
    if not value.is_contiguous() or value.storage_offset() != 0 or not x.ndim:
        raise UnsupportedError("of memory that is not row by row")
    return f("reshape")(x, [x.size])


@handles("aten.as_strided_scatter.default")
def as_strided_scatter(
    call: Call, x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int],
    offset: int | None = None,
) -> Tensor:  # fmt: skip
    places = f("reshape")(_positions(call, size, stride, offset or 0), [math.prod(size)])
    flat = f("reshape")(source, [math.prod(size)])
    made = scatter(_memory(call, x), places, flat, "none", _most(x))
    return f("reshape")(_done(made), x.shape)


@handles("aten.unfold.default", moves=True)
def unfold(call: Call, x: Tensor, dim: int, size: int, step: int) -> Tensor:
    if not x.ndim:
        raise UnsupportedError("of a single number")
    axis = dim % x.ndim
    count = (x.shape[axis] - size) // step + 1
    places = _positions(call, [count, size], [step, 1], 0)
    return f("moveaxis")(emit("gather", x, places, axis=axis), axis + 1, -1)


@handles("aten.bucketize.Tensor", "aten.searchsorted.Tensor")
def bucketize(
    call: Call, a: Tensor, b: Tensor, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """How many bounds are below each value; with `right` those that equal it count, too."""
    values, bounds = (a, b) if call.name == "bucketize" else (b, a)
    if sorter is not None or not bounds.ndim:
        raise UnsupportedError("with an order of the bounds")
    if values.size * bounds.shape[-1] > _most(values):
        raise UnsupportedError("large: each value is compared with each bound")
    if bounds.ndim > 1:
        bounds = f("expand_dims")(bounds, -2)
    kind = np.result_type(values.dtype, bounds.dtype)
    values, bounds = (f("astype")(t, kind) if t.dtype != kind else t for t in (values, bounds))
    # What is no number is above all.
    above = emit("le" if right or side == "right" else "lt", bounds, f("expand_dims")(values, -1))
    if is_float(kind):
        values = f("expand_dims")(values, -1)
        above = emit("or", above, emit("ne", values, values))
    counted = f("astype")(above, np.int64)
    made = emit("sum", counted, axes=[counted.ndim - 1], keepdims=False)
    return cast(operand(call, made, "i64"), call.dtype)


handles.table({
    "aten.scatter_reduce.two": lambda call, x, dim, index, source, reduce, *, include_self=True:
        _along(call, x, dim, index, source, reduce, include_self),
})  # fmt: skip
handles.table({
    "aten.as_strided.default aten.as_strided_copy.default":
        lambda call, x, size, stride, offset=None:
        emit("gather", _memory(call, x), _positions(call, size, stride, offset or 0), axis=0),
}, moves=True)  # fmt: skip
