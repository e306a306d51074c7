"""ATen's pooling: windows of images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tessera.errors import UnsupportedError
from tessera.frontends.torch.call import Call, cast, emit, f, handles, pairs, reduced, wide
from tessera.tensor import Tensor
from tessera.types import Sides, dtype_name, is_float


class Windows:
    """Windows over the last n axes of an image whose first two axes are left alone."""

    def __init__(
        self, call: Call, image: Sequence[int], size: Sides, stride: Sides, padding: Sides,
        dilation: Sides = 1, ceil: bool = False,
    ) -> None:  # fmt: skip
        n = 3 if "3d" in str(call.node.target) else 2
        self.n, self.image = n, list(image[-n:])
        self.size, self.stride = pairs(size, n), pairs(stride or size, n)
        self.dilation, self.low = pairs(dilation, n), pairs(padding or 0, n)
        k, s, d, p = np.array([self.size, self.stride, self.dilation, self.low])
        room, span = p + self.image, d * (k - 1) + 1
        count = (room + p - span + (s - 1) * ceil) // s + 1
        count -= (count - 1) * s >= room  # none begins beyond the image
        # Windows along each axis, and what is added at its end.
        self.count: list[int] = count.tolist()
        self.high = np.maximum((count - 1) * s + span - room, 0).tolist() if ceil else self.low

    def pool(self, op: str, x: Tensor) -> Tensor:
        """pool_max or pool_sum; what is added at the borders does not count."""
        return emit(op, x, size=self.size, strides=self.stride, dilations=self.dilation,
                    low=self.low, high=self.high)  # fmt: skip


def _batched(x: Tensor, n: int) -> Tensor:
    return x if x.ndim == n + 2 else f("expand_dims")(x, 0)


@handles("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def max_pool(
    call: Call, x: Tensor, size: Sides, stride: Sides = (), padding: Sides = 0, dilation: Sides = 1,
    ceil: bool = False,
) -> list[Tensor | None]:  # fmt: skip
    if call.wants(1) or not is_float(x.dtype):
        raise UnsupportedError("where the maxima are, or of integers")
    w = Windows(call, x.shape, size, stride, padding, dilation, ceil)
    made = w.pool("pool_max", _batched(x, w.n))
    return [f("reshape")(made, [*x.shape[: x.ndim - w.n], *w.count]), None]


def _share(w: Windows, x: Tensor, include: bool, divisor: int | None) -> Tensor:
    """Sums of windows over how many elements each has."""
    if divisor:
        return x / x.builder.const(divisor, x.dtype)
    if (not any(w.high) and not any(w.low)) or (include and w.high == w.low):
        return x / x.builder.const(math.prod(w.size), x.dtype)
    edge = [p if include else 0 for p in w.low]
    ones = x.builder.const(
        1, x.dtype, [1, 1, *(e + 2 * p for e, p in zip(w.image, edge, strict=True))]
    )
    counts = emit("pool_sum", ones, size=w.size, strides=w.stride, dilations=w.dilation,
                  low=[a - b for a, b in zip(w.low, edge, strict=True)],
                  high=[max(a - b, 0) for a, b in zip(w.high, edge, strict=True)])  # fmt: skip
    return x / counts


@handles("aten.avg_pool2d.default", "aten.avg_pool3d.default")
def avg_pool(
    call: Call, x: Tensor, size: Sides, stride: Sides = (), padding: Sides = 0, ceil: bool = False,
    include: bool = True, divisor: int | None = None,
) -> Tensor:  # fmt: skip
    if not is_float(x.dtype):
        raise UnsupportedError("of integers")
    w = Windows(call, x.shape, size, stride, padding, 1, ceil)
    sums = w.pool("pool_sum", wide(_batched(x, w.n)))
    made = f("reshape")(_share(w, sums, include, divisor), [*x.shape[: x.ndim - w.n], *w.count])
    return cast(made, call.dtype)


@handles("aten.avg_pool2d_backward.default")
def avg_pool_backward(
    call: Call, grad: Tensor, x: Tensor, size: Sides, stride: Sides, padding: Sides, ceil: bool,
    include: bool, divisor: int | None,
) -> Tensor:  # fmt: skip
    """Every place of a window gets its part, where windows do not overlap."""
    window = pairs(size, 2)
    if pairs(stride or size, 2) != window or any(pairs(padding, 2)) or ceil or x.ndim != 4:
        raise UnsupportedError("of windows that overlap, with a border, or without a batch")
    n, c, h, w = grad.shape
    part = emit("div", grad, call.const(divisor or math.prod(window)))
    tiles = f("broadcast_to")(f("reshape")(part, [n, c, h, 1, w, 1]),
                              [n, c, h, window[0], w, window[1]])  # fmt: skip
    whole = f("reshape")(tiles, [n, c, h * window[0], w * window[1]])
    over = [(0, a - b) for a, b in zip(x.shape, whole.shape, strict=True)]
    return f("pad")(whole, over) if any(b for _, b in over) else whole


@handles("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default",
         "aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default")  # fmt: skip
def adaptive_pool(call: Call, x: Tensor, size: Sides) -> Tensor | list[Tensor | None]:
    """Window i of m over n places: from ⌊i·n/m⌋ to ⌈(i+1)·n/m⌉."""
    name, n = str(call.node.target), 2 if "2d" in str(call.node.target) else 3
    if "max" in name and call.wants(1):
        raise UnsupportedError("where the maxima are")
    made = wide(x)
    for axis, m in zip(range(x.ndim - n, x.ndim), pairs(size, n), strict=True):
        extent = x.shape[axis]
        cuts = [made[(*[slice(None)] * axis, slice(i * extent // m, -(-(i + 1) * extent // m)))]
                for i in range(m)]  # fmt: skip
        cuts = [reduced("reduce_max" if "max" in name else "mean", c, [axis], True) for c in cuts]
        made = f("concatenate")(cuts, axis) if m > 1 else cuts[0]
    made = cast(made, dtype_name(x.dtype))
    return [made, None] if "max" in name else made
