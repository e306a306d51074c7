"""GridSample: elements at computed places, between which it interpolates."""

from __future__ import annotations

import functools
import itertools
import operator

import numpy as np

from tessera.frontends.onnx.node import Node, handles
from tessera.frontends.onnx.operators.elementwise import emit, f, iota, number
from tessera.frontends.onnx.operators.movement import extent
from tessera.ops.operands import row_major
from tessera.tensor import Tensor

_MOST_TAPS = 16  # elements of which one result is made; more stay with an opaque node
_CUBIC = -0.75

# Places along one axis as floats that are whole, and how much of each a result takes.
Tap = tuple[Tensor, Tensor | None]


def _reflected(x: Tensor, low: float, high: float) -> Tensor:
    """Thrown back at both ends until it lies between them."""
    length = high - low
    if length <= 0:
        return x * number(x, 0)
    t = emit("mod", x - number(x, low), number(x, 2 * length))
    return number(x, low) + emit("min", t, number(x, 2 * length) - t)


def _cubic(t: Tensor) -> list[Tensor]:
    """Keys' kernel at 1 + t, t, 1 − t and 2 − t."""
    a = _CUBIC

    def near(d: Tensor) -> Tensor:
        return ((d * number(d, a + 2) - number(d, a + 3)) * d) * d + number(d, 1)

    def far(d: Tensor) -> Tensor:
        inner = (d * number(d, a) - number(d, 5 * a)) * d + number(d, 8 * a)
        return inner * d - number(d, 4 * a)

    one, two = number(t, 1), number(t, 2)
    return [far(t + one), near(t), near(one - t), far(two - t)]


def _taps(x: Tensor, mode: str) -> list[Tap]:
    if mode == "nearest":
        return [(f("round")(x), None)]
    base = f("floor")(x)
    t = x - base
    if mode == "linear":
        return [(base, number(t, 1) - t), (base + number(base, 1), t)]
    return [(base + number(base, i - 1), w) for i, w in enumerate(_cubic(t))]


@handles("GridSample", written_out=True)
def grid_sample(node: Node) -> Tensor | None:
    """Places are between −1 and 1, innermost axis first."""
    x, grid = node.x(0), node.x(1)
    rank = x.ndim - 2
    if rank < 1 or grid.ndim != x.ndim or extent(node, grid, grid.ndim - 1) != rank:
        raise node.bad("its grid must have a place of each axis of the input for each result")
    mode: str = node.attr("mode", "linear" if node.opset >= 20 else "bilinear")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    padding = node.attr("padding_mode", "zeros")
    width = {"nearest": 1, "linear": 2, "cubic": 4}.get(mode)
    if width is None or padding not in ("zeros", "border", "reflection"):
        raise node.bad(f"mode {mode!r} with padding {padding!r}")
    if width**rank > _MOST_TAPS:
        return None
    corners = bool(node.attr("align_corners", 0))
    dims = [extent(node, x, 2 + a) for a in range(rank)]
    every: list[list[Tap]] = []
    for a, n in enumerate(dims):
        at = grid[..., rank - 1 - a]
        finite = emit("lt", f("abs")(at), number(at, np.inf))
        at = emit("where", finite, at, number(at, -1))  # as by onnxruntime
        shifted = at + number(at, 1)
        if corners:
            at = shifted * number(at, 0.5) * number(at, n - 1)
        else:
            at = (shifted * number(at, n) - number(at, 1)) * number(at, 0.5)
        if mode == "nearest":
            at = f("round")(at)
        low, high = (0.0, n - 1.0) if corners else (-0.5, n - 0.5)
        # Of "cubic" only the taps are brought back, as PyTorch and onnxruntime do it.
        if padding == "border" and mode != "cubic":
            inside = emit("max", number(at, 0), emit("min", number(at, n - 1), at))
            within = emit("and", at >= number(at, low), at <= number(at, high))
            at = emit("where", within, at, inside)
        elif padding == "reflection" and mode != "cubic":
            at = _reflected(at, low, high)
        taps = _taps(at, mode)
        if padding == "reflection":
            taps = [(_reflected(p, low, high), w) for p, w in taps]
        every.append(taps)
    return _gathered(node, x, dims, every, padding == "zeros")


def _gathered(
    node: Node, x: Tensor, dims: list[int], every: list[list[Tap]], zeros: bool
) -> Tensor:
    """The weighted sum over all combinations of taps, one of each axis."""
    batch, channels = extent(node, x, 0), extent(node, x, 1)
    rows = f("reshape")(f("moveaxis")(x, 1, -1), [batch * int(np.prod(dims)), channels])
    terms = []
    for chosen in itertools.product(*every):
        places, inside = [], []
        for n, (place, _) in zip(dims, chosen, strict=True):
            zero, last = number(place, 0), number(place, n - 1)
            inside += [place >= zero, place <= last] if zeros else []
            place = emit("max", zero, emit("min", last, place))
            places.append(f("astype")(place, np.int64))
        first = iota(x.builder, 0, places[0].shape)
        value = emit("gather", rows, row_major([first, *places], [batch, *dims]), axis=0)
        if inside:
            valid = f("expand_dims")(functools.reduce(functools.partial(emit, "and"), inside), -1)
            value = emit("where", valid, value, value.builder.const(0, x.dtype))
        if weights := [w for _, w in chosen if w is not None]:
            weight = f("expand_dims")(functools.reduce(operator.mul, weights), -1)
            value = value * f("astype")(weight, x.dtype)
        terms.append(value)
    return f("moveaxis")(functools.reduce(operator.add, terms), -1, 1)
