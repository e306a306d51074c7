"""Tensors that only look at another's memory, as offset and strides, and how kernels read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tessera.graph import Graph
from tessera.tensor import Tensor
from tessera.types import Record

# Operators that compute nothing, where strides can say so.
MOVES = {"transpose", "reshape", "broadcast", "unsqueeze", "squeeze", "slice"}


# Extents and strides of what one axis goes through, the outermost first.
Parts = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class View:
    """Elements of the row-major tensor `root`, from `offset` on. An axis may consist of several
    (heads and their columns, seen as one)."""

    root: int
    offset: int
    axes: tuple[Parts, ...]

    @classmethod
    def of(cls, root: int, shape: Sequence[int]) -> View:
        """A tensor's own memory."""
        return cls(root, 0, tuple(((d, s),) if d > 1 else () for d, s in
                                  zip(shape, natural(shape), strict=True)))  # fmt: skip

    @property
    def parts(self) -> Parts:
        """All axes one after the other, without those of extent 1."""
        return tuple(p for axis in self.axes for p in axis)

    @property
    def whole(self) -> bool:
        """Whether it is the root's memory from its start, in order and without gaps."""
        sizes, steps = [d for d, _ in self.parts], tuple(s for _, s in self.parts)
        return self.offset == 0 and steps == natural(sizes)

    def over(self, shape: Sequence[int]) -> Parts:
        """Broadcast to a shape."""
        lead: Parts = tuple((d, 0) for d in shape[: len(shape) - len(self.axes)] if d > 1)
        own = shape[len(shape) - len(self.axes) :]
        return lead + tuple(p for axis, d in zip(self.axes, own, strict=True)
                            for p in (axis or (((d, 0),) if d > 1 else ())))  # fmt: skip


def natural(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a row-major array; 0 along axes of extent 1."""
    out, step = [], 1
    for d in reversed(shape):
        out.append(step if d > 1 else 0)
        step *= d
    return tuple(reversed(out))


def regroup(parts: Parts, shape: Sequence[int]) -> tuple[Parts, ...] | None:
    """Axes of a shape of the same elements in the same order; None where a part would be torn."""
    left = list(reversed(merged(parts)))
    axes: list[Parts] = []
    for d in shape:
        axis: list[tuple[int, int]] = []
        while d > 1:
            if not left:
                return None
            n, s = left.pop()
            take = math.gcd(d, n)
            if take != n and take != d:
                return None
            if take != n:
                left.append((n // take, s))
            axis.append((take, s * (n // take)))
            d //= take
        axes.append(tuple(merged(axis)))
    return tuple(axes) if not left else None


def merged(parts: Sequence[tuple[int, int]]) -> Parts:
    """Parts that go on where the one within them ends are one."""
    out: list[tuple[int, int]] = []
    for n, s in parts:
        if out and out[-1][1] == n * s:
            out[-1] = (out[-1][0] * n, s)
        else:
            out.append((n, s))
    return tuple(out)


def restride(parts: Parts, shape: Sequence[int]) -> tuple[int, ...] | None:
    """One stride for each axis of a shape (0 for extent 1); None where that cannot be."""
    axes = regroup(parts, shape) if math.prod(n for n, _ in parts) == math.prod(shape) else None
    if axes is None or any(len(axis) > 1 for axis in axes):
        return None
    return tuple(axis[0][1] if axis else 0 for axis in axes)


def views(graph: Graph, ops: Sequence[Record]) -> dict[int, View]:
    """What each tensor of the graph looks at: itself, where it has memory of its own."""
    known: dict[int, View] = {}
    for op in ops:
        for result in op["results"]:
            shape = tuple(Tensor(graph, result).shape)
            view = _moved(op, known, shape) if op["op"] in MOVES else None
            known[result] = view or View.of(result, shape)
    return known


def _moved(op: Record, known: dict[int, View], shape: tuple[int, ...]) -> View | None:
    x = known[op["inputs"][0]]
    attrs, kind, offset = op["attrs"], op["op"], x.offset
    axes: tuple[Parts, ...] | None
    if kind == "transpose":
        axes = tuple(x.axes[p] for p in attrs["perm"])
    elif kind == "broadcast":
        axes = regroup(x.over(shape), shape)
    elif kind == "slice":
        cut = []
        for axis, first, step, d in zip(x.axes, attrs["starts"], attrs["steps"], shape,
                                        strict=True):  # fmt: skip
            if len(axis) > 1 and d != math.prod(n for n, _ in axis):
                return None
            if len(axis) == 1:
                offset += first * axis[0][1]
                axis = ((d, axis[0][1] * step),) if d > 1 else ()
            cut.append(axis)
        axes = tuple(cut)
    else:
        axes = regroup(x.parts, shape)
    return None if axes is None else View(x.root, offset, axes)


@dataclass(frozen=True)
class Reading:
    """How a kernel reads a strided operand: a part of the root, seen in another shape."""

    shape: tuple[int, ...]
    starts: tuple[int, ...]
    stops: tuple[int, ...]
    gone: tuple[int, ...]  # axes of that shape that are none of the operand's
    axes: dict[int, int]  # axis of the operand → axis of that shape

    @property
    def cuts(self) -> bool:
        """Whether it is not all of the root."""
        return any(self.starts) or self.stops != self.shape

    @property
    def perm(self) -> list[int]:
        """The order in which what is left of that shape has the operand's axes."""
        order = sorted(self.axes)
        by_place = sorted(order, key=lambda a: self.axes[a])
        return [by_place.index(a) for a in order]


def reading(elements: int, extents: Sequence[int], strides: Sequence[int],
            offset: int) -> Reading | None:  # fmt: skip
    """None where strides do not nest, or run backwards."""
    order = sorted((i for i, s in enumerate(strides) if s != 0), key=lambda i: -strides[i])
    if any(s < 0 for s in strides):
        return None
    shape: list[int] = []
    starts: list[int] = []
    stops: list[int] = []
    gone: list[int] = []
    outer = elements
    for axis in [*order, None]:
        stride = 1 if axis is None else strides[axis]
        # The last axis but one may step over several elements of the innermost.
        if axis is None and (outer == 1 and order):
            break
        if outer % stride:
            return None
        first, n = offset // stride, 1 if axis is None else extents[axis]
        offset -= first * stride
        if first + n > outer // stride:
            return None
        if axis is None or not order:
            gone.append(len(shape))
        shape.append(outer // stride)
        starts.append(first)
        stops.append(first + n)
        outer = stride
    axes = {axis: at for at, axis in enumerate(order)}
    return Reading(tuple(shape), tuple(starts), tuple(stops), tuple(gone), axes)
