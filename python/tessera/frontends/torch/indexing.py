"""Operators of ATen that pick elements by their positions, and put a slice back."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tessera.errors import UnsupportedError
from tessera.frontends.torch.call import Call, cast, emit, f, handles, wide
from tessera.frontends.torch.structure import counted
from tessera.ops.operands import row_major
from tessera.ops.scatter import along, scatter
from tessera.tensor import Tensor
from tessera.types import Object


def within(call: Call, index: Tensor, extent: int, wraps: bool = False) -> Tensor:
    """Positions as the program takes them, below 0 counted from the end where PyTorch does
    (`wraps`); those that it refuses are required not to be."""
    index = cast(index, "i64")
    zero, last = call.graph.const(0, "i64"), call.graph.const(extent - 1, "i64")
    if wraps:
        n = call.graph.const(extent, "i64")
        index = emit("where", emit("lt", index, zero), emit("add", index, n), index)
    inside = emit("min", emit("max", index, zero), last)
    call.require(emit("eq", index, inside))
    return inside


def row_major_places(call: Call, x: Tensor, indices: Sequence[tuple[int, Tensor]]) -> Tensor:
    """What tensors select together along their axes of x, counted as in rows of these axes."""
    extents = [x.shape[axis] for axis, _ in indices]
    places = [within(call, t, n, True) for (_, t), n in zip(indices, extents, strict=True)]
    return row_major(places, extents)


@handles("aten.index_select.default")
def index_select(call: Call, x: Tensor, dim: int, index: Tensor) -> Tensor:
    if not x.ndim:
        return x
    index = f("reshape")(index, [index.size])
    axis = dim % x.ndim
    return emit("gather", x, within(call, index, x.shape[axis]), axis=axis)


# --- made from nothing
@handles("aten.gather.default")
def gather(call: Call, x: Tensor, dim: int, index: Tensor, **_: Object) -> Tensor:
    if not x.ndim or not index.ndim:
        raise UnsupportedError("of a single number")
    return along(x, within(call, index, x.shape[dim]), dim)


@handles("aten.index.Tensor")
def index(call: Call, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    used = [(i, t) for i, t in enumerate(indices) if t is not None]
    if any(t.dtype in (np.bool_, np.uint8) for _, t in used):
        raise UnsupportedError("by a mask: how many it chooses is not known before")
    axes = [a for a, _ in used]
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
    expand3: Sequence[int], summed: Sequence[int], *_: Object,
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


@handles("aten.slice_scatter.default")
def slice_scatter(
    call: Call, x: Tensor, source: Tensor, dim: int = 0, start: int | None = None,
    end: int | None = None, step: int = 1,
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
    return f("setitem")(x, (*[slice(None)] * axis, slice(first, last)), cast(source, call.dtype))


handles.table({
    "aten.embedding.default": lambda call, table, index, *_, **__:
        emit("gather", table, within(call, index, table.shape[0]), axis=0),
})  # fmt: skip
handles.table({
    "aten.diagonal.default": lambda call, x, *where: f("diagonal")(x, *where),
}, moves=True)  # fmt: skip
