"""Operators that move elements, and those that make them from nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tessera.extents import (
    Extent,
    NeedsExtentError,
    Number,
    dims_of,
    product,
    settled,
    symbols_of,
    values_of,
)
from tessera.frontends.onnx.fold import (
    axes_operand,
    constant_of_shape,
    slice_parameters,
    split_sizes,
)
from tessera.frontends.onnx.node import Node, Value, handles, handles_first
from tessera.frontends.onnx.operators.elementwise import bits, emit, f, iota
from tessera.frontends.onnx.reader import dtype_of
from tessera.ops.index import picked
from tessera.tensor import Tensor
from tessera.types import dtype_name


def pick(node: Node, x: Tensor, axis: int, places: Sequence[int]) -> Value:
    """Elements of an axis at known places: a slice, a walk in equal steps, or any; or none."""
    if not isinstance(places, range):
        places = [int(p) for p in places]
    if not places:
        dims = [extent(node, x, a) for a in range(x.ndim)]
        return np.empty([*dims[:axis], 0, *dims[axis + 1 :]], x.dtype)
    n = len(places)
    step = places[1] - places[0] if n > 1 else 1
    even = isinstance(places, range) or all(b - a == step for a, b in itertools.pairwise(places))
    if even and step > 0:
        if (places[0], n, step) == (0, x.shape[axis], 1):
            return x
        return picked(x, axis, slice(places[0], places[-1] + 1, step))
    if even:
        walk = iota(x.builder, 0, [n]) * x.builder.const(step, np.int64)
        at = x.builder.const(places[0], np.int64) + walk
    else:
        at = node.importer.tensor(np.asarray(places, np.int64), "places")
    return emit("gather", x, at, axis=axis)


def full(node: Node, x: Tensor, axis: int, places: Sequence[int]) -> Tensor:
    """What `pick` takes, where it must not be empty."""
    return node.importer.tensor(pick(node, x, axis, places), "a selection")


def extent(node: Node, x: Tensor, axis: int) -> int:
    return int(Extent.of(x.shape[axis]))


def axis_of(node: Node, rank: int, default: int | None = None) -> int:
    axis = node.require_attr("axis") if default is None else node.attr("axis", default)
    return node.axis(axis, rank)


@handles("ConstantOfShape")
def constant_shape(node: Node) -> Value:
    dims = node.numbers(0, "the shape")
    value = constant_of_shape(node, [1])
    return node.graph.const(value[0].item(), value.dtype, dims_of(dims))


def counting(node: Node, first: Number, count: Number, step: int = 1) -> Value:
    """Integers in equal steps, as many as an extent says."""
    if not isinstance(count, Extent):
        return np.asarray(np.arange(count) * step + first)
    if count < 1:
        raise node.bad("a range of no elements")
    walk = iota(node.graph, 0, dims_of([count]))
    if step != 1:
        walk = walk * walk.builder.const(step, np.int64)
    if str(first) != "0":
        walk = walk + node.importer.tensor(np.asarray(first))
    return walk


@handles("Range")
def range_(node: Node) -> Value | None:
    start, limit, delta = (node.known(i, "a bound").reshape(-1)[0] for i in range(3))
    if isinstance(limit - start, Extent):
        step = int(delta)
        return counting(node, start, (limit - start) // step, step)
    if delta == 0 or abs((float(limit) - float(start)) / float(delta)) > 1 << 24:
        raise node.bad("an endless range, or one too large")
    return np.arange(start, limit, delta, dtype=node.dtype())


@handles("EyeLike")
def eye_like(node: Node) -> Value:
    rows, columns = (int(d) for d in node.shape())
    node.fits(rows * columns)
    dtype = node.dtype()
    if node.has_attr("dtype"):
        dtype = dtype_of(node.attr("dtype"), "the result of EyeLike", node.importer.where)
    return np.eye(rows, columns, int(node.attr("k", 0)), dtype=dtype)


@handles("Reshape")
def reshape(node: Node) -> Tensor:
    x = node.x()
    target: list[Number] = node.numbers(1, "the shape")
    if not node.attr("allowzero", 0):
        target = [Extent.of(x.shape[i]) if d == 0 else d for i, d in enumerate(target)]
    return f("reshape")(x, dims_of(target))


@handles_first("Flatten")
def flatten(node: Node, x: Tensor) -> Tensor:
    axis = int(node.attr("axis", 1))
    axis = axis if axis == x.ndim else node.axis(axis, x.ndim)
    return f("reshape")(x, dims_of([product(values_of(x.shape[:axis])), -1]))


@handles("Squeeze")
def squeeze(node: Node) -> Tensor:
    axes = axes_operand(node)
    if axes is None and (symbols := symbols_of(node.shape())):
        raise NeedsExtentError("it takes axes of extent 1 away", symbols)
    return f("squeeze")(node.x(), None if axes is None else tuple(axes))


@handles_first("Expand")
def expand(node: Node, x: Tensor) -> Tensor:
    wanted = dims_of(node.numbers(1, "the shape"))
    rank = max(x.ndim, len(wanted))
    have = [1] * (rank - x.ndim) + list(x.shape)
    want = [1] * (rank - len(wanted)) + wanted
    target = [h if w == 1 else w for h, w in zip(have, want, strict=True)]
    return f("broadcast_to")(x, target)


@handles_first("Tile")
def tile(node: Node, x: Tensor) -> Tensor | None:
    repeats = node.numbers(1, "the counts")
    if len(repeats) != x.ndim:
        raise node.bad(f"{len(repeats)} counts for {x.ndim} axes")
    if any(str(r) == "0" for r in repeats):
        return None  # of no elements
    for axis, count in enumerate(repeats):
        if isinstance(count, Extent):  # one axis of copies before it, and both as one
            dims = list(x.shape)
            lead, n, rest = dims[:axis], dims[axis], dims[axis + 1 :]
            x = f("broadcast_to")(f("expand_dims")(x, axis), [*lead, str(count), n, *rest])
            x = f("reshape")(x, [*lead, *dims_of([count * Extent.of(n)]), *rest])
            repeats[axis] = 1
    return emit("repeat", x, repeats=repeats) if any(r != 1 for r in repeats) else x


@handles("Concat")
def concat(node: Node) -> Value:
    axis = axis_of(node, len(node.shape()))
    parts = [node.x(i) for i in range(len(node.operands)) if 0 not in node.shape(i)]
    return emit("concat", *parts, axis=axis) if len(parts) > 1 else parts[0]


@handles_first("Split")
def split(node: Node, x: Tensor) -> list[Value]:
    axis = axis_of(node, x.ndim, 0)
    n = extent(node, x, axis)
    parts, at = [], 0
    for s in split_sizes(node, n):
        parts.append(pick(node, x, axis, range(at, at + s)))
        at += s
    return parts


@handles("Slice")
def slice_(node: Node) -> Value:
    value: Value = node.x()
    for axis, start, stop, step in slice_parameters(node, tuple(value.shape)):
        if isinstance(value, np.ndarray):  # empty already
            value = np.take(value, range(start, stop, step), axis)
        elif symbols_of([start, stop, value.shape[axis]]):
            count = (stop - start - 1) // step + 1
            at = node.importer.tensor(counting(node, start, count, step), "places")
            value = emit("gather", value, at, axis=axis)
        else:
            value = pick(node, value, axis, range(start, stop, step))
    return value


@handles_first("Gather")
def gather(node: Node, x: Tensor) -> Value:
    axis = axis_of(node, x.ndim, 0)
    index = node.value(1)
    if isinstance(index, np.ndarray):
        n = Extent.of(x.shape[axis])
        if ((index < -n) | (index >= n)).any():
            raise node.bad(f"an index is out of range for an extent of {n}")
        places = settled(np.where(index < 0, index + n, index))
        if isinstance(n, Extent) or places.dtype == object:
            return emit("gather", x, node.importer.tensor(places, "places"), axis=axis)
        if places.ndim == 0:
            return f("squeeze")(pick(node, x, axis, [int(places)]), axis)
        if places.ndim == 1 and places.size <= 4096:
            return pick(node, x, axis, places.tolist())
    return emit("gather", x, node.x(1), axis=axis)


def within(x: Tensor, axis: int, index: Tensor) -> Tensor:
    """Indices along an axis counted from the front, i64; those beyond it are refused as they are by
    a gather, by one from all places."""
    places = iota(x.builder, 0, [x.shape[axis]])
    return emit("gather", places, f("astype")(index, np.int64), axis=0)


def counts(node: Node, i: int, most: Number) -> Tensor:
    """An operand of counts up to `most`, i64; others are refused likewise."""
    x = f("astype")(node.x(i), np.int64)
    places = iota(x.builder, 0, dims_of([most + 1]))
    beyond = node.importer.tensor(np.asarray(most + 1))
    return emit("gather", places, emit("where", x < 0, beyond, x), axis=0)


def covers(node: Node, x: Tensor, index: Tensor, axis: int) -> None:
    """Refuses indices of more elements than the data along other axes than theirs."""
    for a, (m, n) in enumerate(zip(values_of(index.shape), values_of(x.shape), strict=True)):
        if a != axis % x.ndim and str(m) != str(n) and m > n:
            raise node.bad("its indices reach beyond the data")


def at_places(node: Node, x: Tensor, places: Sequence[Tensor]) -> Tensor:
    """x[i, j, …]: one place, counted from the front, for each of the first axes."""
    linear = places[0]
    for axis, place in enumerate(places[1:], 1):
        linear = linear * node.importer.tensor(np.asarray(Extent.of(x.shape[axis]))) + place
    first, rest = x.shape[: len(places)], x.shape[len(places) :]
    flat = f("reshape")(x, [*dims_of([product(values_of(first))]), *rest])
    return emit("gather", flat, linear, axis=0)


def along(node: Node, x: Tensor, index: Tensor, axis: int) -> Tensor:
    """The elements whose place along one axis `index` says, counted from the front; the others are
    those of the element's own place (NumPy's take_along_axis)."""
    covers(node, x, index, axis)
    places = [iota(x.builder, a, index.shape) for a in range(x.ndim)]
    places[axis] = index
    return at_places(node, x, places)


@handles("GatherElements")
def gather_elements(node: Node) -> Tensor:
    x, index = node.x(0), node.x(1)
    axis = axis_of(node, x.ndim, 0)
    if index.ndim != x.ndim:
        raise node.bad("the indices must have as many axes as the data")
    return along(node, x, within(x, axis, index), axis)


@handles("GatherND")
def gather_nd(node: Node) -> Tensor:
    x, index = node.x(0), node.x(1)
    batch = int(node.attr("batch_dims", 0))
    depth = extent(node, index, index.ndim - 1)
    if batch + depth > x.ndim or batch >= index.ndim:
        raise node.bad("indices are longer than the data has axes")
    places = [iota(x.builder, k, index.shape[:-1]) for k in range(batch)]
    for k in range(depth):
        at = f("squeeze")(index[..., k : k + 1], index.ndim - 1)
        places.append(within(x, batch + k, at))
    return at_places(node, x, places)


@handles("OneHot")
def one_hot(node: Node) -> Tensor:
    index, values = node.x(0), node.x(2)
    depth = int(node.known(1, "the depth").reshape(-1)[0])
    axis = int(node.attr("axis", -1))
    axis += index.ndim + 1 if axis < 0 else 0
    dims = list(index.shape)
    dims.insert(axis, depth)
    kind = index.dtype if index.dtype.kind == "i" else np.dtype(np.int64)
    index = f("astype")(index, kind)
    index = emit("where", index < 0, index + index.builder.const(depth, kind), index)
    at = iota(index.builder, axis, dims, dtype_name(kind))
    hot = emit("eq", at, f("expand_dims")(index, axis))
    return emit("where", hot, f("squeeze")(values[1:2], 0), f("squeeze")(values[0:1], 0))


@handles_first("Trilu")
def trilu(node: Node, x: Tensor) -> Tensor:
    k = node.known(1, "the diagonal").reshape(-1)[0] if node.has(1) else 0
    upper = bool(node.attr("upper", 1))
    if isinstance(k, Extent):
        row, column = (iota(x.builder, a, x.shape[-2:]) for a in range(2))
        last = row + node.importer.tensor(np.asarray(k))
        kept = emit("ge", column, last) if upper else emit("le", column, last)
        return emit("where", kept, x, x.builder.const(0, x.dtype))
    k = max(-(1 << 40), min(1 << 40, int(k)))
    y = emit("triu" if upper else "tril", bits(x), k=k)
    return f("astype")(y, x.dtype)


@handles_first("Pad")
def pad(node: Node, x: Tensor) -> Tensor:
    if node.has_attr("pads"):
        pads, value = [int(p) for p in node.attr("pads")], node.attr("value", 0.0)
    else:
        pads = node.ints(1, "the counts")
        value = node.known(2, "the value").reshape(-1)[0].item() if node.has(2) else 0
    given = node.ints(3, "the axes") if node.has(3) else range(x.ndim)
    axes = [node.axis(a, x.ndim) for a in given]
    if len(pads) != 2 * len(axes):
        raise node.bad(f"{len(pads)} counts for {len(axes)} axes")
    low, high = [0] * x.ndim, [0] * x.ndim
    for i, a in enumerate(axes):
        low[a], high[a] = pads[i], pads[len(axes) + i]
    mode = node.attr("mode", "constant")
    for a in range(x.ndim):  # negative counts cut
        if low[a] < 0 or high[a] < 0:
            n = extent(node, x, a)
            x = full(node, x, a, range(max(0, -low[a]), n - max(0, -high[a])))
            low[a], high[a] = max(0, low[a]), max(0, high[a])
    if mode == "constant":
        if not any(low) and not any(high):
            return x
        value = int(bool(value)) if x.dtype == np.bool_ else value
        return f("astype")(emit("pad", bits(x), low=low, high=high, value=value), x.dtype)
    for a in range(x.ndim):
        if low[a] == 0 and high[a] == 0:
            continue
        n = extent(node, x, a)
        node.fits(n + low[a] + high[a])
        if mode not in ("edge", "wrap", "reflect"):
            raise node.bad(f"mode {mode!r} is not known")
        x = full(node, x, a, np.pad(np.arange(n), (low[a], high[a]), mode).tolist())
    return x


@handles_first("SpaceToDepth")
def space_to_depth(node: Node, x: Tensor) -> Tensor:
    b = int(node.require_attr("blocksize"))
    n, c, h, w = x.shape
    x = f("reshape")(x, [n, c, h // b, b, w // b, b])
    perm = [0, 1, 3, 5, 2, 4] if node.attr("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    return f("reshape")(f("transpose")(x, perm), [n, c * b * b, h // b, w // b])


@handles_first("DepthToSpace")
def depth_to_space(node: Node, x: Tensor) -> Tensor:
    b = int(node.require_attr("blocksize"))
    n, c, h, w = x.shape
    if node.attr("mode", "DCR") == "CRD":
        x = f("transpose")(f("reshape")(x, [n, c // (b * b), b, b, h, w]), [0, 1, 4, 2, 5, 3])
    else:
        x = f("transpose")(f("reshape")(x, [n, b, b, c // (b * b), h, w]), [0, 3, 4, 1, 5, 2])
    return f("reshape")(x, [n, c // (b * b), h * b, w * b])


@handles_first("ReverseSequence")
def reverse_sequence(node: Node, x: Tensor) -> Tensor:
    batch, time = int(node.attr("batch_axis", 1)), int(node.attr("time_axis", 0))
    lengths = counts(node, 1, Extent.of(x.shape[time]))
    lengths = f("reshape")(lengths, [d if a == batch else 1 for a, d in enumerate(x.shape)])
    at = iota(x.builder, time, x.shape)
    return along(node, x, emit("where", emit("lt", at, lengths), lengths - 1 - at, at), time)


@handles_first("Compress")
def compress(node: Node, x: Tensor) -> Value:
    keep = node.known(1, "the condition").astype(bool)
    if not node.has_attr("axis"):
        x = f("reshape")(x, [-1])
    axis = axis_of(node, x.ndim, 0)
    return pick(node, x, axis, np.flatnonzero(keep[: extent(node, x, axis)]).tolist())


handles.table({
    "Shape": lambda node: values_of(node.shape()[slice(node.attr("start", 0), node.attr("end"))]),
    "Size": lambda node: settled(np.asarray(product(values_of(node.shape())))),
    "Transpose": lambda node: f("transpose")(node.x(), node.attr("perm")),
    "Unsqueeze": lambda node: f("expand_dims")(node.x(), tuple(axes_operand(node) or ())),
})  # fmt: skip
