"""Shapes, parts and positions: ATen's operators that move elements or make them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tessera.errors import UnsupportedError
from tessera.frontends.torch.call import Call, cast, emit, f, handles, iota
from tessera.ops.index import picked
from tessera.tensor import Tensor
from tessera.types import Axes, Object


@handles("aten.squeeze", moves=True)
def squeeze(call: Call, x: Tensor, dims: Axes = None) -> Tensor:
    if dims is None:
        dims = list(range(x.ndim))
    dims = [dims] if isinstance(dims, int) else dims
    axes = tuple(d % x.ndim for d in dims if x.ndim and x.shape[d] == 1)
    return f("squeeze")(x, axes) if axes else x


@handles("aten.expand.default", moves=True)
def expand(call: Call, x: Tensor, shape: Sequence[int], implicit: bool = False) -> Tensor:
    have = [1] * (len(shape) - x.ndim) + list(x.shape)
    return f("broadcast_to")(x, [h if s == -1 else s for s, h in zip(shape, have, strict=True)])


@handles("prims.broadcast_in_dim.default", moves=True)
def broadcast_in_dim(call: Call, x: Tensor, shape: Sequence[int], dims: Sequence[int]) -> Tensor:
    """Axis i becomes axis dims[i]; the others are new."""
    side = [1] * len(shape)
    for i, d in enumerate(dims):
        side[d] = x.shape[i]
    return f("broadcast_to")(f("reshape")(x, side), list(shape))


@handles("aten.slice.Tensor", moves=True)
def slice_(
    call: Call, x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None,
    step: int = 1,
) -> Tensor:  # fmt: skip
    end = None if end is not None and end >= x.shape[dim] else end
    return picked(x, dim, slice(start, end, step))


@handles("aten.select.int", moves=True)
def select(call: Call, x: Tensor, dim: int, index: int) -> Tensor:
    return picked(x, dim, index)


@handles("aten.cat.default", moves=True)
def cat(call: Call, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    if any(t.ndim != tensors[0].ndim for t in tensors):
        raise UnsupportedError("an empty tensor among the operands")
    same = [cast(t, call.dtype) for t in tensors]
    return f("concatenate")(same, dim % same[0].ndim)


@handles("aten.constant_pad_nd.default")
def constant_pad(call: Call, x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    n = len(pad) // 2
    low = [0] * (x.ndim - n) + [pad[2 * i] for i in reversed(range(n))]
    high = [0] * (x.ndim - n) + [pad[2 * i + 1] for i in reversed(range(n))]
    if min(*low, *high, 0) < 0 or not math.isfinite(value):
        raise UnsupportedError("a border that cuts, or an infinite one")
    return f("pad")(x, list(zip(low, high, strict=True)), constant_values=value)


# --- by position
def counted(call: Call, first: int, count: int, step: int) -> Tensor:
    """Integers in equal steps."""
    steps = emit("mul", iota(call.graph, 0, [count]), call.graph.const(step, "i64"))
    return emit("add", steps, call.graph.const(first, "i64"))


@handles("aten.full.default")
def full(call: Call, shape: Sequence[int], value: float, **_: Object) -> Tensor:
    return call.graph.const(value, call.dtype, [int(d) for d in shape])


@handles("aten.arange.start_step")
def arange(call: Call, start: int, end: int, step: int = 1, **_: Object) -> Tensor:
    if any(not isinstance(v, int) for v in (start, end, step)):
        raise UnsupportedError("of fractions")
    return cast(counted(call, start, -((start - end) // step), step), call.dtype)


@handles("aten.eye.default", "aten.eye.m")
def eye(call: Call, n: int, m: int | None = None, **_: Object) -> Tensor:
    columns = counted(call, 0, n if m is None else m, 1)
    return cast(f("equal")(f("expand_dims")(counted(call, 0, n, 1), 1), columns), call.dtype)


handles.table({
    "aten.view.default aten._unsafe_view.default aten.reshape.default aten.view_copy.default":
        lambda call, x, shape: f("reshape")(x, list(shape)),
    "aten.permute.default aten.permute_copy.default": lambda call, x, dims:
        f("transpose")(x, [d % x.ndim for d in dims]) if x.ndim else x,
    "aten.t.default aten.transpose.int": lambda call, x, a=0, b=1:
        f("swapaxes")(x, a, b) if x.ndim > 1 else x,
    "aten.unsqueeze.default": lambda call, x, dim: f("expand_dims")(x, dim % (x.ndim + 1)),
    "aten.clone.default aten.alias.default aten.detach.default aten.lift_fresh_copy.default":
        lambda call, x, **_: x,
    "aten.unbind.int aten.unbind_copy.int": lambda call, x, dim=0:
        [select(call, x, dim, i) for i in range(x.shape[dim])],
    "aten.split_with_sizes.default": lambda call, x, sizes, dim=0:
        f("split")(x, np.cumsum(sizes)[:-1].tolist(), dim),
    "aten.split.Tensor": lambda call, x, size, dim=0:
        f("split")(x, range(size, x.shape[dim], size), dim),
    "aten.repeat.default": lambda call, x, repeats: f("tile")(x, list(repeats)),
    "aten.flip.default": lambda call, x, dims: f("flip")(x, tuple(dims)) if dims else x,
}, moves=True)  # fmt: skip
handles.table({
    # Whatever is there.
    "aten.empty_permuted.default": lambda call, shape, *_, **__: full(call, shape, 0),
    "aten.full_like.default": lambda call, x, value, **_: full(call, x.shape, value),
    "aten.scalar_tensor.default": lambda call, value, **_: call.const(value),
    "prims.convert_element_type.default": lambda call, x, dtype: cast(x, call.dtype),
})  # fmt: skip
