"""Scattering, turned round: each result looks for what was written to it.

Every place is compared with every result, which is worth it for small tensors only: both functions
give None beyond `most` comparisons.
"""

from __future__ import annotations

import math

import numpy as np

from tessera.errors import UnsupportedError
from tessera.ops.derived import prod
from tessera.ops.operands import emit, iota, reduced, row_major
from tessera.ops.shape import broadcast_to, expand_dims, moveaxis, reshape
from tessera.tensor import Tensor
from tessera.types import DType, is_float

MOST_COMPARISONS = 1 << 22


def along(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """The elements whose place along one axis `index` says, counted from the front; the others are
    those of the element's own place (NumPy's take_along_axis). The other axes of `index` may be
    shorter than those of x."""
    places = [iota(index.builder, a, index.shape) for a in range(x.ndim)]
    places[axis] = index
    return emit("gather", reshape(x, [x.size]), row_major(places, x.shape), axis=0)


def neutral(dtype: DType, how: str) -> float | int:
    """What changes no number that it is combined with: by "add", "mul", "max" or "min"."""
    if how in ("add", "mul"):
        return int(how == "mul")
    if is_float(dtype):
        return math.inf if how == "min" else -math.inf
    return int(np.iinfo(dtype).max if how == "min" else np.iinfo(dtype).min)


def _together(hit: Tensor, each: Tensor, how: str, axis: int) -> Tensor:
    """What is written to a place, as one: `each` where `hit`, over an axis. Numbers that leave the
    result as it is where nothing is."""
    if each.dtype == np.bool_:
        raise UnsupportedError(f"{how} of truths")
    none = each.builder.const(neutral(each.dtype, how), each.dtype)
    chosen = emit("where", hit, each, none)
    if how == "mul":
        return prod(chosen, axis, dtype=chosen.dtype)
    op = "sum" if how == "add" else f"reduce_{how}"
    return reduced(op, chosen, [axis % chosen.ndim], False)


def _last(index: Tensor, n: int) -> Tensor:
    """Per place 0 … n-1 the last along the innermost axis of `index` that is it; -1 if none is."""
    shape = [*index.shape[:-1], n, index.shape[-1]]
    hit = emit("eq", expand_dims(index, -2), iota(index.builder, len(shape) - 2, shape))
    none = index.builder.const(-1, np.int64)
    places = emit("where", hit, iota(index.builder, len(shape) - 1, shape), none)
    return reduced("reduce_max", places, [len(shape) - 1], False)


def scatter(
    x: Tensor, index: Tensor, updates: Tensor, how: str, most: int = MOST_COMPARISONS
) -> Tensor | None:
    """x [..., N] with updates [..., J] combined into the places index [..., J] (i64) says, counted
    from the front; a negative one is none. `how`: "none" (later updates win), "add", "mul", "max",
    "min". Leading axes of `index` may be fewer. None where it takes too many comparisons."""
    *lead, n = (int(d) for d in x.shape)
    j = int(updates.shape[-1])
    if math.prod(lead) * n * j > most:
        return None
    zero = x.builder.const(0, np.int64)
    if how == "none":
        last = broadcast_to(_last(index, n), [*lead, n])
        return emit("where", emit("ge", last, zero),
                    along(updates, emit("max", last, zero), -1), x)  # fmt: skip
    shape = [*index.shape[:-1], n, j]
    hit = emit("eq", expand_dims(index, -2), iota(x.builder, len(shape) - 2, shape))
    return emit(how, x, _together(hit, expand_dims(updates, -2), how, -1))


def scatter_along(
    x: Tensor, index: Tensor, updates: Tensor, axis: int, how: str, most: int = MOST_COMPARISONS
) -> Tensor | None:
    """`scatter` along any axis; the other axes of `index` and `updates` may be shorter than x's."""
    low = [0] * x.ndim
    high = [0 if a == axis else n - index.shape[a] for a, n in enumerate(x.shape)]
    if any(high):  # rows to which nothing is written
        index = emit("pad", index, low=low, high=high, value=-1)
        updates = emit("pad", updates, low=low, high=high, value=0)
    x, index, updates = (moveaxis(t, axis, -1) for t in (x, index, updates))
    made = scatter(x, index, updates, how, most)
    return None if made is None else moveaxis(made, -1, axis)


def scatter_rows(
    x: Tensor, index: Tensor, updates: Tensor, how: str, most: int = MOST_COMPARISONS
) -> Tensor | None:
    """x [N,R] with the rows of updates [J,R] combined into rows index [J] (i64), `how` as above.
    Rows that go to one place are combined first, J² R elements, so that N may be large."""
    (n, _), (j, r) = x.shape, updates.shape
    if n * j > most or (how != "none" and j * j * r > 4 * most):
        return None
    zero = x.builder.const(0, np.int64)
    last = _last(index, n)
    if how != "none":
        same = emit("eq", expand_dims(index, 0), expand_dims(index, 1))
        updates = _together(expand_dims(same, -1), expand_dims(updates, 0), how, 1)
    rows = emit("gather", updates, emit("max", last, zero), axis=0)
    written = expand_dims(emit("ge", last, zero), -1)
    return emit("where", written, rows if how == "none" else emit(how, x, rows), x)
