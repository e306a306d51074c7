"""Moving elements without computing: transpose, reshape, join, split, pad, diagonals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tessera.extents import dims_of, product, values_of
from tessera.ops.operands import (
    Operand,
    axes_of,
    axis_of,
    builder_of,
    common,
    lift,
    result_type,
    static_shape,
)
from tessera.tensor import Tensor, bad_input, unsupported
from tessera.types import Array, Axes, Dim, Value, is_float


def transpose(x: Operand, axes: Sequence[int] | None = None) -> Tensor:
    """Permuted axes; reversed by default."""
    x = lift(builder_of(x), x)
    if axes is None:
        perm = list(range(x.ndim))[::-1]
    else:
        perm = [axis_of(a, x.ndim) for a in axes]
        if sorted(perm) != list(range(x.ndim)):
            bad_input(f"transpose: {tuple(axes)} is not a permutation of {x.ndim} axes")
    if perm == list(range(x.ndim)):
        return x
    return x.builder.emit("transpose", [x], {"perm": perm})


def swapaxes(x: Operand, axis1: int, axis2: int) -> Tensor:
    """Two axes exchanged."""
    x = lift(builder_of(x), x)
    perm = list(range(x.ndim))
    i, j = axis_of(axis1, x.ndim), axis_of(axis2, x.ndim)
    perm[i], perm[j] = perm[j], perm[i]
    return transpose(x, perm)


def moveaxis(x: Operand, source: Axes, destination: Axes) -> Tensor:
    """Axes moved to new positions, the others in their order."""
    x = lift(builder_of(x), x)
    src = [source] if isinstance(source, int) else list(source or ())
    dst = [destination] if isinstance(destination, int) else list(destination or ())
    src, dst = [axis_of(a, x.ndim) for a in src], [axis_of(a, x.ndim) for a in dst]
    if len(src) != len(dst):
        bad_input("moveaxis: source and destination must have the same number of axes")
    perm = [a for a in range(x.ndim) if a not in src]
    for to, origin in sorted(zip(dst, src, strict=True)):
        perm.insert(to, origin)
    return transpose(x, perm)


def reshape(x: Operand, shape: int | Sequence[Dim]) -> Tensor:
    """Same elements in C order; one extent may be -1."""
    x = lift(builder_of(x), x)
    target: list[Dim] = [shape] if isinstance(shape, (int, np.integer)) else list(shape)
    if -1 in target:
        size, rest = (product(values_of(d)) for d in (x.shape, [d for d in target if d != -1]))
        left_over = isinstance(size, int) and isinstance(rest, int) and rest and size % rest
        if target.count(-1) > 1 or rest == 0 or left_over:
            bad_input(f"cannot reshape {x!r} into {tuple(target)}")
        target[target.index(-1)] = dims_of([size // rest])[0]
    target = [d if isinstance(d, str) else int(d) for d in target]
    if list(x.shape) == target:
        return x
    return x.builder.emit("reshape", [x], {"shape": target})


def ravel(x: Operand) -> Tensor:
    """The elements as one axis, in C order."""
    return reshape(x, -1)


def expand_dims(x: Operand, axis: int | Sequence[int]) -> Tensor:
    """New axes of extent 1 at positions of the result."""
    x = lift(builder_of(x), x)
    positions = [axis] if isinstance(axis, (int, np.integer)) else list(axis)
    axes = axes_of(positions, x.ndim + len(positions))
    return x.builder.emit("unsqueeze", [x], {"axes": axes}) if axes else x


def squeeze(x: Operand, axis: Axes = None) -> Tensor:
    """Without the given axes of extent 1, or without all of them."""
    x = lift(builder_of(x), x)
    if axis is None:
        axes = [i for i, d in enumerate(x.shape) if d == 1]
    else:
        axes = axes_of(axis, x.ndim)
        for a in axes:
            if x.shape[a] != 1:
                bad_input(f"squeeze: axis {a} of {x!r} does not have extent 1")
    op, inputs, attrs = x.builder.made.get(x.id, ("", (), {}))
    if op == "unsqueeze" and list(attrs["axes"]) == list(axes):
        return inputs[0]
    return x.builder.emit("squeeze", [x], {"axes": axes}) if axes else x


def broadcast_to(x: Operand, shape: int | Sequence[Dim]) -> Tensor:
    """`x` stretched to a shape by NumPy's rules."""
    x = lift(builder_of(x), x)
    target = [shape] if isinstance(shape, int) else list(shape)
    if list(x.shape) == target:
        return x
    return x.builder.emit("broadcast", [x], {"shape": target})


def concatenate(tensors: Sequence[Operand], axis: int | None = 0) -> Tensor:
    """Tensors joined along an axis."""
    full = [t for t in tensors if getattr(t, "size", 1) != 0]  # others count by their dtype
    builder, dtype = builder_of(*full), result_type(*tensors)
    parts = [lift(builder, t, dtype) for t in full]
    if axis is None:
        parts, axis = [ravel(t) for t in parts], 0
    if parts[0].ndim == 0:
        bad_input("zero-dimensional arrays cannot be concatenated")
    if len(parts) == 1:
        return parts[0]
    return parts[0].builder.emit("concat", parts, {"axis": axis_of(axis, parts[0].ndim)})


def stack(tensors: Sequence[Operand], axis: int = 0) -> Tensor:
    """Tensors of one shape joined along a new axis."""
    parts = common(*tensors)
    return parts[0].builder.emit("stack", parts, {"axis": axis_of(axis, parts[0].ndim + 1)})


def tile(x: Operand, reps: int | Sequence[int]) -> Tensor:
    """The whole tensor repeated along each axis."""
    x = lift(builder_of(x), x)
    counts = [int(r) for r in ([reps] if isinstance(reps, int) else reps)]
    if x.ndim < len(counts):
        x = reshape(x, [1] * (len(counts) - x.ndim) + list(x.shape))
    counts = [1] * (x.ndim - len(counts)) + counts
    if all(c == 1 for c in counts):
        return x
    return x.builder.emit("repeat", [x], {"repeats": counts})


def repeat(x: Operand, repeats: int, axis: int | None = None) -> Tensor:
    """Each element repeated `repeats` times in place along an axis."""
    x = lift(builder_of(x), x)
    if not isinstance(repeats, (int, np.integer)):
        unsupported("np.repeat is supported with one constant count only")
    if axis is None:
        x, axis = ravel(x), 0
    a = axis_of(axis, x.ndim)
    shape = list(static_shape(x, "repeat"))
    wide = broadcast_to(expand_dims(x, a + 1), [*shape[: a + 1], int(repeats), *shape[a + 1 :]])
    return reshape(wide, [*shape[:a], shape[a] * int(repeats), *shape[a + 1 :]])


def slice_(
    x: Tensor, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int] | None = None
) -> Tensor:
    """The core's slice: 0 ≤ start < stop ≤ extent and step ≥ 1, one entry per axis."""
    steps = [1] * len(starts) if steps is None else list(steps)
    if all(s == 1 for s in steps):
        part = _of_parts(x, list(starts), list(stops))
        if part is not None:
            return part
    attrs = {"starts": list(starts), "stops": list(stops), "steps": steps}
    return x.builder.emit("slice", [x], attrs)


def _of_parts(x: Tensor, starts: list[int], stops: list[int]) -> Tensor | None:
    """A slice of what was just joined, from the parts: filling an array stays linear this way."""
    op, inputs, attrs = x.builder.made.get(x.id, ("", (), {}))
    if op == "const":
        shape = [b - a for a, b in zip(starts, stops, strict=True)]
        return x.builder.emit("const", [], {**attrs, "type": (attrs["type"][0], shape)})
    if op != "concat":
        return None
    axis = attrs["axis"]
    parts: list[tuple[Tensor, int, int]] = []
    position = 0
    for part in inputs:
        low = max(starts[axis] - position, 0)
        high = min(stops[axis] - position, part.shape[axis])
        if low < high:
            parts.append((part, low, high))
        position += part.shape[axis]
    whole = [a == 0 and b == n for a, b, n in zip(starts, stops, x.shape, strict=True)]
    others = all(whole[:axis] + whole[axis + 1 :])
    if len(parts) > 1 and not others:
        return None
    cut = []
    for part, low, high in parts:
        starts[axis], stops[axis] = low, high
        full = others and (low, high) == (0, part.shape[axis])
        cut.append(part if full else slice_(part, list(starts), list(stops)))
    return cut[0] if len(cut) == 1 else concatenate(cut, axis)


def part(x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    """What lies between two positions along an axis; `x` itself where that is all."""
    if (start, stop) == (0, x.shape[axis]):
        return x
    starts, stops = [0] * x.ndim, [-1 if isinstance(n, str) else n for n in x.shape]
    starts[axis], stops[axis] = start, stop
    return slice_(x, starts, stops)


def _bordered(x: Tensor, widths: Array, mode: Value) -> Tensor:
    """A border of the tensor's own elements: each row of it is a slice."""
    for axis in range(x.ndim):
        n = static_shape(x, "pad")[axis]
        low, high = (int(w) for w in widths[axis])
        if low + high > _WIDEST_BORDER:
            unsupported(f"np.pad with mode={mode!r} and borders this wide is not supported")
        taken = np.pad(np.arange(n), (low, high), mode).tolist()
        before, after = taken[:low], taken[low + n :]
        rows, last = ([part(x, axis, i, i + 1) for i in places] for places in (before, after))
        x = concatenate([*rows, x, *last], axis)
    return x


_WIDEST_BORDER = 64


def pad(
    x: Operand, pad_width: Operand, mode: str = "constant", constant_values: Operand = 0
) -> Tensor:
    """A border around the tensor: of one constant, or of its own elements."""
    x = lift(builder_of(x), x)
    if mode not in ("constant", "edge", "wrap", "reflect", "symmetric"):
        unsupported(f"np.pad with mode={mode!r} is not supported")
    values = np.unique(np.asarray(constant_values))
    if values.size != 1 or repr(values.tolist()) == "[-0.0]":
        unsupported("np.pad with different values per side, or -0.0, is not supported")
    try:
        widths = np.broadcast_to(np.asarray(pad_width, dtype=np.int64), (x.ndim, 2))
    except ValueError:
        bad_input(f"pad: width {pad_width!r} does not fit {x.ndim} axes")
    if (widths < 0).any():
        bad_input("pad: widths must not be negative")
    if not widths.any():
        return x
    if mode != "constant":
        return _bordered(x, widths, mode)
    low, high = widths[:, 0].tolist(), widths[:, 1].tolist()
    value = values[0].item()
    if not is_float(x.dtype) and value != int(value):
        bad_input(f"pad: the value {value} does not fit {x.dtype}")
    return x.builder.emit("pad", [x], {"low": low, "high": high, "value": value})


def _triangle(op: str) -> Callable[..., Tensor]:
    def function(x: Operand, k: int = 0) -> Tensor:
        x = lift(builder_of(x), x)
        if x.ndim < 2:
            unsupported(f"np.{op} of an array with fewer than 2 axes is not supported")
        return x.builder.emit(op, [x], {"k": int(k)})

    return function


triu = _triangle("triu")
tril = _triangle("tril")
