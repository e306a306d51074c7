"""Scattering, turned round: each result looks for what was written to it.

Every place is compared with every result, which is worth it for small tensors only: both functions
give None beyond `most` comparisons.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.errors import UnsupportedError
from tessera.graph import Tensor
from tessera.ops.derived import prod
from tessera.ops.shape import broadcast_to, expand_dims, reshape

MOST_COMPARISONS = 1 << 22


def _emit(op: str, *inputs: Tensor, **attrs: Any) -> Tensor:
    return inputs[0].builder.emit(op, list(inputs), attrs)


def _iota(x: Tensor, shape: list[Any], axis: int) -> Tensor:
    return x.builder.emit("iota", [], {"axis": axis, "type": ("i64", shape)})


def _reduced(op: str, x: Tensor, axis: int) -> Tensor:
    return _emit(op, x, axes=[axis % x.ndim], keepdims=False)


def along(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """The elements whose place along one axis `index` says, counted from the front; the others are
    those of the element's own place (NumPy's take_along_axis). The other axes of `index` may be
    shorter than those of x."""
    linear: Tensor | None = None
    step = 1
    for a in reversed(range(x.ndim)):
        at = index if a == axis % x.ndim else _iota(index, list(index.shape), a)
        at = at * at.builder.const(step, np.int64) if step != 1 else at
        linear = at if linear is None else linear + at
        step *= x.shape[a]
    assert linear is not None
    return _emit("gather", reshape(x, [step]), linear, axis=0)


def _extremum(dtype: np.dtype[Any], largest: bool) -> float | int:
    if dtype.kind == "f":
        return math.inf if largest else -math.inf
    return int(np.iinfo(dtype).max if largest else np.iinfo(dtype).min)


def _together(hit: Tensor, each: Tensor, how: str, axis: int) -> Tensor:
    """What is written to a place, as one: `each` where `hit`, over an axis. Numbers that leave the
    result as it is where nothing is."""
    if each.dtype == np.bool_:
        raise UnsupportedError(f"{how} of truths")
    if how in ("max", "min"):
        none = each.builder.const(_extremum(each.dtype, how == "min"), each.dtype)
        return _reduced(f"reduce_{how}", _emit("where", hit, each, none), axis)
    one = each.builder.const(int(how == "mul"), each.dtype)
    chosen = _emit("where", hit, each, one)
    if how == "add":
        return _reduced("sum", chosen, axis)
    return prod(chosen, axis, dtype=chosen.dtype)


def _combine(x: Tensor, y: Tensor, how: str) -> Tensor:
    return _emit(how, x, y)


def _last(index: Tensor, n: int) -> Tensor:
    """Per place 0 … n-1 the last along the innermost axis of `index` that is it; -1 if none is."""
    shape = [*index.shape[:-1], n, index.shape[-1]]
    hit = _emit("eq", expand_dims(index, -2), _iota(index, shape, len(shape) - 2))
    none = index.builder.const(-1, np.int64)
    return _reduced(
        "reduce_max", _emit("where", hit, _iota(index, shape, len(shape) - 1), none), -1
    )


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
        return _emit("where", _emit("ge", last, zero),
                     along(updates, _emit("max", last, zero), -1), x)  # fmt: skip
    shape = [*index.shape[:-1], n, j]
    hit = _emit("eq", expand_dims(index, -2), _iota(x, shape, len(shape) - 2))
    return _combine(x, _together(hit, expand_dims(updates, -2), how, -1), how)


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
        same = _emit("eq", expand_dims(index, 0), expand_dims(index, 1))
        updates = _together(expand_dims(same, -1), expand_dims(updates, 0), how, 1)
    rows = _emit("gather", updates, _emit("max", last, zero), axis=0)
    written = expand_dims(_emit("ge", last, zero), -1)
    return _emit("where", written, rows if how == "none" else _combine(x, rows, how), x)
