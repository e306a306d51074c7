"""ATen's pooling: windows of images, where each maximum was, and the gradients of both."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.errors import UnsupportedError
from tessera.frontends.torch.importer import Call, handles
from tessera.frontends.torch.operators import _pairs, cast, emit, f, reduced, wide
from tessera.frontends.torch.scattering import _positions
from tessera.graph import Tensor
from tessera.types import dtype_name, is_float


class Windows:
    """Windows over the last n axes of an image whose first two axes are left alone."""

    def __init__(
        self, call: Call, image: Sequence[int], size: Any, stride: Any, padding: Any,
        dilation: Any = 1, ceil: bool = False,
    ) -> None:  # fmt: skip
        n = 3 if "3d" in str(call.node.target) else 2
        self.call, self.n, self.image = call, n, list(image[-n:])
        self.size, self.stride = _pairs(size, n), _pairs(stride or size, n)
        self.dilation, self.low = _pairs(dilation, n), _pairs(padding or 0, n)
        self.count, self.high = [], []  # windows along each axis, and what is added at its end
        for k, s, d, p, extent in self._axes():
            steps = extent + 2 * p - d * (k - 1) - 1
            count = -(-steps // s) + 1 if ceil else steps // s + 1
            count -= (count - 1) * s >= extent + p  # none begins beyond the image
            self.count.append(count)
            self.high.append(max((count - 1) * s + d * (k - 1) + 1 - extent - p, 0) if ceil else p)

    def _axes(self) -> list[tuple[int, ...]]:
        return list(zip(self.size, self.stride, self.dilation, self.low, self.image, strict=True))

    def pool(self, op: str, x: Tensor) -> Tensor:
        """pool_max or pool_sum; what is added at the borders does not count."""
        return emit(op, x, size=self.size, strides=self.stride, dilations=self.dilation,
                    low=self.low, high=self.high)  # fmt: skip

    @property
    def taps(self) -> list[tuple[int, ...]]:
        """Places within a window, in order."""
        return list(itertools.product(*map(range, self.size)))

    def padded(self, x: Tensor, value: Any) -> Tensor:
        rest = [0] * (x.ndim - self.n)
        return emit("pad", x, low=rest + self.low, high=rest + self.high, value=value)

    def at(self, x: Tensor, tap: Sequence[int]) -> Tensor:
        """One element of each window of a padded image."""
        cuts = [slice(t * d, t * d + (c - 1) * s + 1, s)
                for t, d, c, s in zip(tap, self.dilation, self.count, self.stride,
                                      strict=True)]  # fmt: skip
        return x[(*[slice(None)] * (x.ndim - self.n), *cuts)]

    def positions(self) -> tuple[Tensor, list[int]]:
        """Where in the flat image windows begin, and how far from there each tap is."""
        flat = [math.prod(self.image[i + 1:]) for i in range(self.n)]  # fmt: skip
        begin = -sum(p * w for p, w in zip(self.low, flat, strict=True))
        steps = [s * w for s, w in zip(self.stride, flat, strict=True)]
        far = [sum(t * d * w for t, d, w in zip(tap, self.dilation, flat, strict=True))
               for tap in self.taps]  # fmt: skip
        return _positions(self.call, self.count, steps, begin), far

    def spread(self, parts: dict[tuple[int, ...], Tensor], axis: int = 0) -> Tensor:
        """The image of sums of what each tap of each window gives to its place."""
        if axis == self.n:
            return parts[()]
        k, s, d, p, extent = self._axes()[axis]
        along = [self.spread({tap[1:]: x for tap, x in parts.items() if tap[0] == i}, axis + 1)
                 for i in range(k)]  # fmt: skip
        at = along[0].ndim - self.n + axis
        last = d * (k - 1) // s

        def moved(x: Tensor, by: int, length: int) -> Tensor:
            low, high = ([0] * x.ndim for _ in range(2))
            low[at], high[at] = by, length - by
            return emit("pad", x, low=low, high=high, value=0) if length else x

        phases: list[Tensor] = []  # places by their remainder for the stride
        for phase in range(s):
            terms = [moved(x, i * d // s, last) for i, x in enumerate(along) if i * d % s == phase]
            phases.append(sum(terms[1:], terms[0]) if terms else
                          moved(along[0] * along[0].builder.const(0, along[0].dtype), 0, last))  # fmt: skip
        shape = [*phases[0].shape]
        shape[at] *= s
        whole = phases[0] if s == 1 else f("reshape")(emit("stack", *phases, axis=at + 1), shape)
        whole = moved(whole, 0, max(p + extent - shape[at], 0))
        return whole[(*[slice(None)] * at, slice(p, p + extent))]


def _batched(x: Tensor, n: int) -> Tensor:
    return x if x.ndim == n + 2 else f("expand_dims")(x, 0)


@handles("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def max_pool(
    call: Call, x: Tensor, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil: bool = False,
) -> list[Any]:  # fmt: skip
    w = Windows(call, x.shape, size, stride, padding, dilation, ceil)
    image = _batched(x, w.n)
    lead = list(x.shape[: x.ndim - w.n])
    if not call.wants(1):
        if not is_float(x.dtype):
            raise UnsupportedError("of integers")
        return [f("reshape")(w.pool("pool_max", image), [*lead, *w.count]), None]
    least = -math.inf if is_float(x.dtype) else int(np.iinfo(x.dtype).min)
    padded = w.padded(image, least)
    inside = w.padded(call.graph.const(True, "bool", [1, 1, *w.image]), False)
    begin, far = w.positions()
    best = at = None
    # From the last: of equal ones the first is taken, of those that are no number the last.
    for tap, offset in reversed(list(zip(w.taps, far, strict=True))):
        value, here = w.at(padded, tap), call.graph.const(offset, "i64")
        if best is None or at is None:
            best = value
            at = emit("add", here, call.graph.const(0, "i64", value.shape))
            continue
        takes = emit("ge", value, best)
        if is_float(x.dtype):
            takes = emit("or", takes, emit("and", emit("ne", value, value), emit("eq", best, best)))
        if any(w.low) or any(w.high):
            takes = emit("and", takes, w.at(inside, tap))
        best, at = emit("where", takes, value, best), emit("where", takes, here, at)
    assert best is not None and at is not None
    return [f("reshape")(t, [*lead, *w.count]) for t in (best, at + begin)]


@handles("aten.max_pool2d_with_indices_backward.default",
         "aten.max_pool3d_with_indices_backward.default")  # fmt: skip
def max_pool_backward(
    call: Call, grad: Tensor, x: Tensor, size: Any, stride: Any, padding: Any, dilation: Any,
    ceil: bool, indices: Tensor,
) -> Tensor:  # fmt: skip
    """Each window's gradient to where its maximum was."""
    w = Windows(call, x.shape, size, stride, padding, dilation, ceil)
    grad, indices = wide(_batched(grad, w.n)), _batched(indices, w.n)
    begin, far = w.positions()
    from_begin = indices - begin
    none = call.graph.const(0, dtype_name(grad.dtype))
    parts = {tap: emit("where", emit("eq", from_begin, call.graph.const(o, "i64")), grad, none)
             for tap, o in zip(w.taps, far, strict=True)}  # fmt: skip
    return cast(f("reshape")(w.spread(parts), x.shape), call.dtype)


def _share(w: Windows, x: Tensor, include: bool, divisor: Any) -> Tensor:
    """Sums of windows over how many elements each has."""
    if divisor:
        return x / x.builder.const(divisor, x.dtype)
    if not any(w.high) and not any(w.low) or include and w.high == w.low:
        return x / x.builder.const(math.prod(w.size), x.dtype)
    edge = [p if include else 0 for p in w.low]
    ones = x.builder.const(1, x.dtype, [1, 1, *(e + 2 * p for e, p in zip(w.image, edge, strict=True))])
    counts = emit("pool_sum", ones, size=w.size, strides=w.stride, dilations=w.dilation,
                  low=[a - b for a, b in zip(w.low, edge, strict=True)],
                  high=[max(a - b, 0) for a, b in zip(w.high, edge, strict=True)])  # fmt: skip
    return x / counts


@handles("aten.avg_pool2d.default", "aten.avg_pool3d.default")
def avg_pool(
    call: Call, x: Tensor, size: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
    include: bool = True, divisor: Any = None,
) -> Tensor:  # fmt: skip
    if not is_float(x.dtype):
        raise UnsupportedError("of integers")
    w = Windows(call, x.shape, size, stride, padding, 1, ceil)
    sums = w.pool("pool_sum", wide(_batched(x, w.n)))
    made = f("reshape")(_share(w, sums, include, divisor), [*x.shape[: x.ndim - w.n], *w.count])
    return cast(made, call.dtype)


@handles("aten.avg_pool2d_backward.default", "aten.avg_pool3d_backward.default")
def avg_pool_backward(
    call: Call, grad: Tensor, x: Tensor, size: Any, stride: Any, padding: Any, ceil: bool,
    include: bool, divisor: Any,
) -> Tensor:  # fmt: skip
    """Every place of a window gets its part."""
    w = Windows(call, x.shape, size, stride, padding, 1, ceil)
    part = _share(w, wide(_batched(grad, w.n)), include, divisor)
    return cast(f("reshape")(w.spread(dict.fromkeys(w.taps, part)), x.shape), call.dtype)


@handles("aten._adaptive_avg_pool3d.default", "aten.adaptive_max_pool2d.default",
         "aten.adaptive_max_pool3d.default")  # fmt: skip
def adaptive_pool(call: Call, x: Tensor, size: Any) -> Any:
    """Window i of m over n places: from ⌊i·n/m⌋ to ⌈(i+1)·n/m⌉."""
    name, n = str(call.node.target), 2 if "2d" in str(call.node.target) else 3
    if "max" in name and call.wants(1):
        raise UnsupportedError("where the maxima are")
    made = wide(x)
    for axis, m in zip(range(x.ndim - n, x.ndim), _pairs(size, n), strict=True):
        extent = x.shape[axis]
        cuts = [made[(*[slice(None)] * axis, slice(i * extent // m, -(-(i + 1) * extent // m)))]
                for i in range(m)]  # fmt: skip
        cuts = [reduced("max" if "max" in name else "mean", c, [axis], True) for c in cuts]
        made = f("concatenate")(cuts, axis) if m > 1 else cuts[0]
    made = cast(made, dtype_name(x.dtype))
    return [made, None] if "max" in name else made

