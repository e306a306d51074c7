"""Indexing by constants and gathering by arrays of integers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tessera.graph import Tensor, bad_input, unsupported
from tessera.ops.operands import Operand, axis_of, builder_of, lift, operand_dtype, static_shape
from tessera.ops.pointwise import add, less, where
from tessera.ops.reduce import sum as reduce_sum
from tessera.ops.shape import concatenate, expand_dims, moveaxis, pad, ravel, reshape, squeeze
from tessera.types import Dim


def slice_(
    x: Tensor, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int] | None = None
) -> Tensor:
    """The core's slice: 0 ≤ start < stop ≤ extent and step ≥ 1, one entry per axis."""
    attrs = {
        "starts": list(starts),
        "stops": list(stops),
        "steps": list(steps) if steps is not None else [1] * len(starts),
    }
    return x.builder.emit("slice", [x], attrs)


def take(x: Operand, indices: Operand, axis: int | None = None) -> Tensor:
    """Elements along an axis at integer positions; negative ones count from the end."""
    builder = builder_of(x, indices)
    x, index = lift(builder, x), lift(builder, indices)
    if axis is None:
        x, axis = ravel(x), 0
    if index.dtype.kind not in "iu":
        bad_input(f"take: indices must be integers, not {index.dtype}")
    a = axis_of(axis, x.ndim)
    if index.dtype.kind == "i":
        n = static_shape(x, "take")[a]
        index = where(less(index, 0), add(index, n), index)
    return builder.emit("gather", [x, index], {"axis": a})


def getitem(x: Tensor, key: Any) -> Tensor:
    """Indexing by constants: integers, slices, None and `...`; arrays of integers on one axis."""
    items = list(key) if isinstance(key, tuple) else [key]
    arrays = [i for i in items if isinstance(i, (Tensor, np.ndarray, list)) and np.ndim(i) > 0]
    for item in items:
        if isinstance(item, (Tensor, np.ndarray, list)):
            dtype = operand_dtype(item)
            if dtype == np.bool_:
                unsupported("indexing by a mask gives a shape that depends on values; use np.where")
    used = len([i for i in items if i is not None and i is not Ellipsis])
    if used > x.ndim:
        bad_input(f"too many indices for {x!r}: {used}")
    if len([i for i in items if i is Ellipsis]) > 1:
        bad_input("an index can only have a single ellipsis ('...')")
    if Ellipsis not in [i for i in items if i is Ellipsis]:
        items.append(Ellipsis)
    at = next(n for n, i in enumerate(items) if i is Ellipsis)
    items[at : at + 1] = [slice(None)] * (x.ndim - used)

    starts, stops, steps, drop, expand, gathers = [], [], [], [], [], []
    axis = 0  # of x
    kept = 0  # axes of the result so far
    for item in items:
        if item is None:
            expand.append(kept)
            kept += 1
            continue
        extent = x.shape[axis]
        if isinstance(item, slice):
            start, stop, step = _slice_bounds(item, extent, x)
            kept += 1
        elif isinstance(item, (int, np.integer)) and not isinstance(item, bool):
            if isinstance(extent, str):
                unsupported(f"indexing the symbolic axis {axis} of {x!r}")
            position = int(item) + (extent if item < 0 else 0)
            if not 0 <= position < extent:
                bad_input(f"index {item} is out of bounds for axis {axis} with extent {extent}")
            start, stop, step = position, position + 1, 1
            drop.append(axis)
        elif isinstance(item, (Tensor, np.ndarray, list)):
            if len(arrays) != 1 or any_integer(items):
                unsupported("indexing is supported with one array of integers, on one axis")
            gathers.append((kept, item))
            start, stop, step = 0, extent, 1
            kept += 1
        else:
            unsupported(f"indexing by {item!r} is not supported")
        starts.append(start)
        stops.append(stop)
        steps.append(step)
        axis += 1
    result = x
    full = all(
        a == 0 and b == n and s == 1
        for a, b, s, n in zip(starts, stops, steps, x.shape, strict=True)
    )
    if not full:
        if any_symbol(x):
            unsupported(f"slicing {x!r}, whose extents are not all known")
        result = slice_(result, starts, stops, steps)
    if drop:
        result = squeeze(result, drop)
    if expand:
        result = expand_dims(result, expand)
    for axis_of_result, index in gathers:
        result = take(result, index, axis_of_result)
    return result


def any_integer(items: Sequence[Any]) -> bool:
    """Whether an index drops an axis by an integer."""
    return any(isinstance(i, (int, np.integer)) for i in items)


def any_symbol(x: Tensor) -> bool:
    """Whether an extent is symbolic."""
    return any(isinstance(d, str) for d in x.shape)


def _slice_bounds(item: slice, extent: Dim, x: Tensor) -> tuple[Any, Any, int]:
    for bound in (item.start, item.stop, item.step):
        if isinstance(bound, Tensor):
            unsupported("a slice's bounds must be constants, not values of arrays")
    if isinstance(extent, str):
        if item == slice(None):
            return 0, extent, 1
        unsupported(f"slicing a symbolic axis of {x!r}")
    if item.step is not None and item.step < 0:
        unsupported("slices with a negative step are not supported")
    try:
        start, stop, step = item.indices(extent)
    except (TypeError, ValueError) as error:
        bad_input(f"slice: {error}")
    if start >= stop:
        bad_input(f"the slice {start}:{stop} of an axis with extent {extent} is empty")
    return start, stop, step


def split(x: Operand, sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Equal parts along an axis, or the parts between the given positions."""
    x = lift(builder_of(x), x)
    a = axis_of(axis, x.ndim)
    n = static_shape(x, "split")[a]
    if isinstance(sections, (int, np.integer)):
        if n % sections:
            bad_input(f"split: {sections} parts do not divide extent {n}")
        cuts = list(range(0, n + 1, n // int(sections)))
    else:
        cuts = [0, *(int(s) for s in sections), n]
    lead = (slice(None),) * a
    return [getitem(x, (*lead, slice(b, e))) for b, e in pairwise(cuts)]


def roll(x: Operand, shift: int, axis: int | None = None) -> Tensor:
    """Elements moved along an axis; those that fall off come back at the other end."""
    x = lift(builder_of(x), x)
    if not isinstance(shift, (int, np.integer)):
        unsupported("np.roll is supported with one shift only")
    if axis is None:
        return reshape(roll(ravel(x), shift, 0), x.shape)
    a = axis_of(axis, x.ndim)
    n = static_shape(x, "roll")[a]
    cut = -int(shift) % n
    return x if cut == 0 else concatenate(split(x, [cut], a)[::-1], a)


def diagonal(x: Operand, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The diagonal of two axes, as the last axis of the result."""
    x = lift(builder_of(x), x)
    if x.ndim < 2:
        bad_input("a diagonal needs at least two axes")
    if axis_of(axis1, x.ndim) == axis_of(axis2, x.ndim):
        bad_input("diagonal: the two axes must differ")
    x = moveaxis(x, [axis1, axis2], [-2, -1])
    *lead, rows, cols = static_shape(x, "diagonal")
    first = offset if offset >= 0 else -offset * cols
    count = min(rows, cols - offset) if offset >= 0 else min(rows + offset, cols)
    if count <= 0:
        bad_input(f"diagonal: offset {offset} lies outside {x!r}")
    flat = reshape(x, [*lead, rows * cols])
    stop = first + (count - 1) * (cols + 1) + 1
    return getitem(flat, (..., slice(first, stop, cols + 1)))


def diag(x: Operand, k: int = 0) -> Tensor:
    """The k-th diagonal of a matrix, or the matrix with a vector on that diagonal."""
    x = lift(builder_of(x), x)
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        bad_input("diag: the array must have one or two axes")
    n = static_shape(x, "diag")[0]
    matrix = reshape(pad(reshape(x, [n, 1]), ((0, 0), (0, n))), -1)
    square_matrix = reshape(getitem(matrix, slice(0, n * n)), [n, n])
    if k == 0:
        return square_matrix
    return pad(square_matrix, ((0, k), (k, 0)) if k > 0 else ((-k, 0), (0, -k)))


def trace(x: Operand, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The sum of the diagonal."""
    return reduce_sum(diagonal(x, offset, axis1, axis2), -1)
