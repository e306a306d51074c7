"""ATen's operators that compare elements of a row: sorting, places of extrema, running extrema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tessera.errors import UnsupportedError
from tessera.frontends.torch.call import Call, cast, emit, f, handles, iota, reduced
from tessera.ops.derived import ranked as by_rank
from tessera.ops.scatter import along, neutral
from tessera.tensor import Tensor
from tessera.types import Record, Value, Values, is_float

if TYPE_CHECKING:
    from torch.fx import Node

_MOST_RANKED = 256  # elements that are sorted
_MOST_COMPARISONS = 1 << 20


@handles("aten.topk.default", "aten.sort.default", "aten.sort.stable")
def ranked(call: Call, x: Tensor, *args: Value, **kwargs: Value) -> list[Tensor]:
    if call.name == "topk":
        k, dim, larger = _given(args[:3], kwargs, k=0, dim=-1, largest=True)
    else:
        dim, larger = _given(args, kwargs, dim=-1, descending=False)
        k = x.shape[dim] if x.ndim else 1
    many_ties = not is_float(x.dtype) or _is_coarse(call.node.args[0])
    if not kwargs.get("stable") and many_ties and call.wants(1):
        raise UnsupportedError("which of equal elements PyTorch takes is not known")
    if not x.ndim or x.dtype == np.bool_ or not k:
        raise UnsupportedError("of a number, of bool, or of nothing")
    axis, n = dim % x.ndim, x.shape[dim]
    if n > _MOST_RANKED or x.size * n > _MOST_COMPARISONS:
        raise UnsupportedError(f"of more than {_MOST_RANKED} elements: each is compared with each")
    unsure = not kwargs.get("stable") and call.wants(1)  # which of equal elements PyTorch takes
    row = f("moveaxis")(x, axis, -1)
    index = by_rank(row, min(k + unsure, n), larger)
    values = along(row, index, -1)
    if unsure and index.shape[-1] > 1:
        call.require(emit("gt" if larger else "lt", values[..., :-1], values[..., 1:]))
    return [f("moveaxis")(t[..., :k], -1, axis) for t in (values, index)]


def _is_coarse(node: Node) -> bool:
    """Whether a tensor follows, element by element or row by row, from 16-bit floats, of which
    many are equal: probabilities of experts."""
    value = node.meta["val"]
    if value.is_floating_point() and value.dtype.itemsize == 2:
        return True
    source: Value = node.args[0] if node.op == "call_function" and node.args else None
    before = getattr(source, "meta", {}).get("val")
    return getattr(before, "shape", None) == value.shape and _is_coarse(source)


def _given(args: Values, kwargs: Record, **defaults: Value) -> list[Value]:
    """Arguments by place or by name."""
    values = {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}
    return [values[n] for n in defaults]


@handles("aten.max.dim", "aten.min.dim")
def extreme_along(call: Call, x: Tensor, dim: int, keepdim: bool = False) -> list[Tensor]:
    """The first of equal ones, as PyTorch has it on a CPU."""
    if not x.ndim:
        return [x, call.graph.const(0, "i64")]
    axis = dim % x.ndim
    number = f("astype")(x, np.int32) if x.dtype == np.bool_ else x
    value = reduced(f"reduce_{call.name}", number, [axis], keepdim)
    return [cast(value, call.dtype), f(f"arg{call.name}")(number, axis, keepdim)]


@handles("aten.argmax.default", "aten.argmin.default")
def place_of_extreme(
    call: Call, x: Tensor, dim: int | None = None, keepdim: bool = False
) -> Tensor:
    return f(call.name)(x, dim, keepdim) if x.ndim else call.graph.const(0, "i64")


def _running(call: Call, x: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """The rows with a further axis before the innermost, for results; which elements come no later
    than a result's, and an element's place."""
    n = x.shape[axis]
    if n > _MOST_RANKED or x.size * n > _MOST_COMPARISONS // 16:
        raise UnsupportedError("large: each result looks at all elements before it")
    row = f("expand_dims")(f("moveaxis")(x, axis, -1), -2)
    place = iota(call.graph, 1, [n, n])
    return row, emit("le", place, iota(call.graph, 0, [n, n])), place


@handles("aten.cummax.default", "aten.cummin.default")
def running_extreme(call: Call, x: Tensor, dim: int) -> list[Tensor]:
    """The last of equal ones; what is no number stays."""
    if not x.ndim:
        return [x, call.graph.const(0, "i64")]
    axis, how = dim % x.ndim, call.name.removeprefix("cum")
    number = f("astype")(x, np.int32) if x.dtype == np.bool_ else x
    row, seen, place = _running(call, number, axis)
    last = row.ndim - 1
    least = row.builder.const(neutral(row.dtype, how), row.dtype)
    value = reduced(f"reduce_{how}", emit("where", seen, row, least), [last], True)
    hit = emit("or", emit("eq", row, value), emit("ne", row, row))
    at = emit("where", emit("and", hit, seen), place, call.graph.const(-1, "i64"))
    index = reduced("reduce_max", at, [last], False)
    return [cast(f("moveaxis")(f("squeeze")(value, -1), -1, axis), call.dtype),
            f("moveaxis")(index, -1, axis)]  # fmt: skip
