"""Indexing by constants and gathering by arrays of integers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tessera.ops.masked import Masked
from tessera.ops.operands import (
    Operand,
    axes_of,
    axis_of,
    builder_of,
    emit,
    iota,
    lift,
    operand_dtype,
    static_shape,
)
from tessera.ops.pointwise import add, less, multiply, where
from tessera.ops.reduce import sum as reduce_sum
from tessera.ops.shape import (
    broadcast_to,
    concatenate,
    expand_dims,
    moveaxis,
    pad,
    ravel,
    reshape,
    slice_,
    squeeze,
    stack,
    swapaxes,
)
from tessera.tensor import Builder, Tensor, bad_input, cast, unsupported
from tessera.types import Array, Axes, Dim, Object, Value

_FEW = 16  # constant indices that become slices


def take(x: Operand, indices: Operand, axis: int | None = None) -> Tensor:
    """Elements along an axis at integer positions; negative ones count from the end."""
    builder = builder_of(x, indices)
    x = lift(builder, x)
    if axis is None:
        x, axis = ravel(x), 0
    a = axis_of(axis, x.ndim)
    index = _positions(indices, static_shape(x, "take")[a], builder)
    return builder.emit("gather", [x, index], {"axis": a})


def getitem(x: Tensor, key: Value) -> Tensor:
    """Indexing by constants (integers, slices, None, `...`) and by arrays of integers; by a mask of
    the same shape a Masked (ops/masked.py)."""
    items = list(key) if isinstance(key, tuple) else [key]
    arrays = [i for i in items if _is_array(i) and np.ndim(i) > 0]
    for item in items:
        if _is_array(item) and operand_dtype(item) == np.bool_:
            mask = lift(x.builder, item)
            if len(items) == 1 and mask.shape == x.shape:
                return Masked(x, mask)  # type: ignore[return-value]
            unsupported(
                "indexing by a mask gives a shape that depends on values; use np.where, or a "
                "mask of the array's own shape with a sum or mean of what it picks"
            )
    used = len([i for i in items if i is not None and i is not Ellipsis])
    if used > x.ndim:
        bad_input(f"too many indices for {x!r}: {used}")
    dots = [n for n, i in enumerate(items) if i is Ellipsis]
    if len(dots) > 1:
        bad_input("an index can only have a single ellipsis ('...')")
    at = dots[0] if dots else len(items)
    items[at : at + 1] = [slice(None)] * (x.ndim - used)

    advanced = [i for i in items if _is_array(i) or _is_integer(i)] if arrays else []
    bounds: list[tuple[Dim, Dim, int]] = []  # of each axis of x: start, stop, step
    drop: list[int] = []
    expand: list[int] = []
    flips: list[int] = []  # axes of the result
    gathers: list[tuple[int, int, Operand]] = []  # axis of the result, extent, index
    axis = 0  # of x
    kept = 0  # axes of the result so far
    for item in items:
        if item is None:
            expand.append(kept)
            kept += 1
            continue
        extent = x.shape[axis]
        if isinstance(item, slice):
            if not arrays and x.builder.numpy_dtypes and _picks_nothing(item, extent):
                return np.zeros(x.shape, x.dtype)[key]  # type: ignore[return-value]
            start, stop, step = _slice_bounds(item, extent, x)
            if step < 0:
                flips.append(kept)
                step = -step
            kept += 1
        elif _is_integer(item):
            if isinstance(extent, str):
                unsupported(f"indexing the symbolic axis {axis} of {x!r}")
            position = int(item) + (extent if item < 0 else 0)
            if not 0 <= position < extent:
                bad_input(f"index {item} is out of bounds for axis {axis} with extent {extent}")
            start, stop, step = position, position + 1, 1
            if len(advanced) > 1:  # next to arrays it is one of them
                start, stop = 0, extent
                gathers.append((kept, extent, position))
                kept += 1
            else:
                drop.append(axis)
        elif _is_array(item):
            gathers.append((kept, extent, item))
            start, stop, step = 0, extent, 1
            kept += 1
        else:
            unsupported(f"indexing by {item!r} is not supported")
        bounds.append((start, stop, step))
        axis += 1
    result = x
    if any(b != (0, n, 1) for b, n in zip(bounds, x.shape, strict=True)):
        starts, stops, steps = zip(*bounds, strict=True)
        to_the_end = [-1 if isinstance(b, str) else b for b in stops]  # of axes that stay whole
        result = slice_(result, starts, to_the_end, steps)
    result = flip(expand_dims(squeeze(result, drop), expand), flips)
    if len(gathers) == 1:
        return _pick(result, gathers[0][2], gathers[0][0])
    return _pick_together(result, gathers) if gathers else result


def picked(x: Tensor, axis: int, item: slice | int) -> Tensor:
    """x[:, …, item], by one axis."""
    return getitem(x, (slice(None),) * axis_of(axis, x.ndim) + (item,))


def _picks_nothing(item: slice, extent: Dim) -> bool:
    """Whether it picks no element: then a traced function gets an array, which has no values."""
    bounds = (item.start, item.stop, item.step)
    plain = isinstance(extent, int) and all(b is None or _is_integer(b) for b in bounds)
    return plain and item.step != 0 and not range(*item.indices(int(extent)))


def _is_integer(item: Object) -> bool:
    return isinstance(item, (int, np.integer)) and not isinstance(item, (bool, Tensor))


def _is_array(item: Object) -> bool:
    return isinstance(item, (Tensor, np.ndarray, list))


def _pick(x: Tensor, index: Operand, axis: int) -> Tensor:
    """Elements at positions along an axis; a few constant ones as slices."""
    if isinstance(index, list) and len(index) <= _FEW and all(_is_integer(i) for i in index):
        return stack([picked(x, axis, int(i)) for i in index], axis)
    return take(x, index, axis)


def _pick_together(x: Tensor, gathers: list[tuple[int, int, Operand]]) -> Tensor:
    """x[i, j] with arrays of integers on neighbouring axes: one index into the merged axis."""
    first = gathers[0][0]
    if [a for a, _, _ in gathers] != list(range(first, first + len(gathers))):
        unsupported("indexing by arrays of integers is supported on neighbouring axes only")
    linear: Any = 0
    for _, extent, index in gathers:
        if not _is_integer(index):
            index = _from_start(_positions(index, extent, x.builder), extent)
        if isinstance(linear, Tensor):
            linear = add(multiply(linear, extent), index)
        elif _is_integer(index):
            linear = linear * extent + index
        else:
            linear = add(index, linear * extent)
    shape = static_shape(x, "indexing")
    merged = reshape(x, [*shape[:first], -1, *shape[first + len(gathers) :]])
    return x.builder.emit("gather", [merged, linear], {"axis": first})


def _positions(indices: Operand, extent: int, builder: Builder) -> Tensor:
    """Positions along an axis, negative ones from its end; noted, since calls must check them."""
    if not isinstance(indices, Tensor):
        known = np.asarray(indices)
        if known.dtype.kind in "iu" and known.size and not are_inside(known, extent):
            bad_input(f"an index is out of bounds for an axis with extent {extent}")
        index = lift(builder, indices if known.ndim == 0 else known)
    else:
        index = indices
        builder.indices.append((index.id, extent))
    if index.dtype.kind not in "iu":
        bad_input(f"indices must be integers, not {index.dtype}")
    return index if index.dtype.itemsize >= 4 else cast(index, np.int32)


def _from_start(index: Tensor, extent: int) -> Tensor:
    if index.builder.made.get(index.id, ("", (), {}))[0] == "iota":
        return index
    return where(less(index, 0), add(index, extent), index)


def are_inside(index: Array, extent: int) -> bool:
    """Whether all indices are positions of an axis, counted from its start or end."""
    return index.size == 0 or bool(-extent <= index.min() and index.max() < extent)


def setitem(x: Tensor, key: Object, value: Operand) -> Tensor:
    """`x` with `x[key] = value` done: for slices of step 1, integers, and masks of x's shape."""
    if isinstance(key, Tensor) and key.dtype == np.bool_ and key.shape == x.shape:
        if isinstance(value, Masked) and value.mask.id == key.id and value.x.shape == x.shape:
            return where(key, cast(value.x, x.dtype), x)
        filler = lift(x.builder, value, x.dtype)
        if filler.ndim:
            unsupported("assigning more than one value by a mask is not supported; use np.where")
        return where(key, filler, x)
    items = list(key) if isinstance(key, tuple) else [key]
    if all(i is not Ellipsis for i in items):
        items.append(Ellipsis)
    at = next(n for n, i in enumerate(items) if i is Ellipsis)
    items[at : at + 1] = [slice(None)] * (x.ndim - len(items) + 1)
    if not all(isinstance(i, slice) or _is_integer(i) for i in items) or len(items) != x.ndim:
        unsupported("assignment is supported to slices and integers only; use np.where")
    region = getitem(x, tuple(items))
    if region.size == 0:
        return x
    filler = lift(x.builder, value)
    if filler.ndim > region.ndim:
        unsupported("assigning an array with more axes than its place is not supported")
    filler = broadcast_to(cast(filler, x.dtype), region.shape)
    filler = expand_dims(filler, [n for n, i in enumerate(items) if _is_integer(i)])
    return _placed(x, items, filler, 0)


def _placed(x: Tensor, items: list[Value], value: Tensor, axis: int) -> Tensor:
    """`x` with its box that starts at `items` replaced, axes before `axis` being done."""
    if axis == x.ndim:
        return value
    item, extent = items[axis], x.shape[axis]
    if _is_integer(item):
        start = int(item) % extent
        stop, step = start + 1, 1
    else:
        start, stop, step = _slice_bounds(item, extent, x)
    if step != 1:
        unsupported("assignment to slices with a step is not supported; use np.where")
    parts = [picked(x, axis, slice(0, start))] if start else []
    parts.append(_placed(picked(x, axis, slice(start, stop)), items, value, axis + 1))
    if stop < extent:
        parts.append(picked(x, axis, slice(stop, extent)))
    flat: list[Tensor] = []
    for part in parts:
        op, inputs, attrs = x.builder.made.get(part.id, ("", (), {}))
        joined = op == "concat" and attrs["axis"] == axis
        flat.extend(inputs if joined else [part])
    return concatenate(flat, axis)


def flip(x: Operand, axis: Axes = None) -> Tensor:
    """Axes in reversed order: gathered at n − 1, n − 2, …, 0."""
    x = lift(builder_of(x), x)
    for a in axes_of(axis, x.ndim):
        n = static_shape(x, "flip")[a]
        counted, last = iota(x.builder, 0, [n]), x.builder.const(n - 1, "i64")
        x = emit("gather", x, emit("sub", last, counted), axis=a)
    return x


def rot90(x: Operand, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """A quarter turn, k times, from the first axis towards the second."""
    x = lift(builder_of(x), x)
    first, second = axes
    if k % 4 == 0:
        return x
    if k % 4 == 2:
        return flip(x, [first, second])
    if k % 4 == 1:
        return swapaxes(flip(x, second), first, second)
    return flip(swapaxes(x, first, second), second)


def _slice_bounds(item: slice, extent: Dim, x: Tensor) -> tuple[Dim, Dim, int]:
    for bound in (item.start, item.stop, item.step):
        if isinstance(bound, Tensor):
            unsupported("a slice's bounds must be constants, not values of arrays")
    if isinstance(extent, str):
        if item == slice(None):
            return 0, extent, 1
        unsupported(f"slicing a symbolic axis of {x!r}")
    try:
        start, stop, step = item.indices(extent)
    except (TypeError, ValueError) as error:
        bad_input(f"slice: {error}")
    if step < 0 and start > stop:  # the same elements in rising order; getitem turns them round
        last = start + (start - stop - 1) // -step * step
        start, stop = last, start + 1
    elif step < 0:
        start, stop = stop + 1, start + 1
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
    return [picked(x, a, slice(b, e)) for b, e in pairwise(cuts)]


def roll(x: Operand, shift: Value, axis: Value = None) -> Tensor:
    """Elements moved along an axis; those that fall off come back at the other end."""
    x = lift(builder_of(x), x)
    if isinstance(shift, (tuple, list)) or isinstance(axis, (tuple, list)):
        axes = [axis] if isinstance(axis, int) else list(axis or ())
        shifts = [shift] * len(axes) if isinstance(shift, int) else list(shift)
        for s, a in zip(shifts, axes, strict=True):
            x = roll(x, s, a)
        return x
    if not isinstance(shift, (int, np.integer)):
        unsupported("np.roll is supported with constant shifts only")
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
