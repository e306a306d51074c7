"""Resize: along each axis a selection (nearest) or a product with a known matrix."""

from __future__ import annotations

import numpy as np

from tessera.errors import UnsupportedError
from tessera.extents import Extent, Number
from tessera.frontends.onnx.node import Node, handles_first
from tessera.frontends.onnx.operators.elementwise import emit, f
from tessera.frontends.onnx.operators.movement import full
from tessera.tensor import Tensor
from tessera.types import Array


def _coordinates(mode: str, n: int, m: int, scale: np.float32, roi: tuple[float, float]) -> Array:
    """Where in an axis of `n` elements each of `m` results lies, in f32 and in this order of
    operations, as onnxruntime and PyTorch count: floors of nearest elements depend on it."""
    at = np.arange(m, dtype=np.float32)
    half, one, last, end = np.float32(0.5), np.float32(1), np.float32(n - 1), np.float32(m - 1)
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and m > 1):
        return (at + half) / scale - half
    if mode == "half_pixel_symmetric":
        adjustment = np.float32(m) / (scale * np.float32(n))
        return np.float32(n) * half * (one - adjustment) + (at + half) / scale - half
    if mode in ("pytorch_half_pixel", "align_corners"):
        return at * last / end if m > 1 else at
    if mode == "asymmetric":
        return at / scale
    if mode == "tf_crop_and_resize":
        first, to = (np.float32(r) for r in roi)
        if m > 1:
            return first * last + at * (to - first) * last / end
        return np.full(m, half * (first + to) * last)
    raise UnsupportedError(f"the coordinate transformation {mode!r} is not known")


def _nearest(x: Array, rounding: str) -> Array:
    if rounding in ("floor", "ceil"):
        return np.floor(x) if rounding == "floor" else np.ceil(x)
    whole = np.floor(x)
    half = np.abs(x - whole - 0.5) < 1e-6  # as onnxruntime has it
    return np.where(half, whole + (rounding == "round_prefer_ceil"), np.floor(x + 0.5))


def _matrix(
    x: Array, n: int, cubic: bool, a: float, scale: float, antialias: bool, exclude: bool
) -> Array:
    """[m, n]: how much of each element a result takes; beyond the edge counts for the edge."""
    stretch = min(1.0, scale) if antialias else 1.0
    reach = (2.0 if cubic else 1.0) / stretch
    result = np.zeros((len(x), n))
    for i, at in enumerate(x):
        first, last = int(np.floor(at - reach)) - 1, int(np.ceil(at + reach)) + 1
        taps = np.arange(first, last + 1)
        d = np.abs(at - taps) * stretch
        if cubic:
            near = ((a + 2) * d - (a + 3)) * d * d + 1
            far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
            weight = np.where(d <= 1, near, np.where(d < 2, far, 0))
        else:
            weight = np.maximum(0, 1 - d)
        if exclude:
            weight = np.where((taps >= 0) & (taps < n), weight, 0)
        if exclude or antialias:
            weight = weight / weight.sum()
        np.add.at(result[i], taps.clip(0, n - 1), weight)
    return result


@handles_first("Resize", "Upsample")
def resize(node: Node, x: Tensor) -> Tensor | None:
    old = node.proto.op_type == "Upsample" or node.opset < 11
    axes = [node.axis(a, x.ndim) for a in node.attr("axes", list(range(x.ndim)))]
    dims = [Extent.of(x.shape[a]) for a in axes]
    roi: list[float] | None = None
    scales: list[Number] | None = None
    sizes: list[Number] | None = None
    if old:
        scales = node.attr("scales") or node.known(1, "the scales").tolist()
    else:
        if node.has(1) and node.shape(1) != (0,):
            roi = node.known(1, "the region").reshape(-1).tolist()
        if node.has(2) and node.shape(2) != (0,):
            scales = [float(s) for s in node.known(2, "the scales").reshape(-1)]
        if node.has(3) and node.shape(3) != (0,):
            sizes = node.numbers(3, "the sizes")
    given: list[Number] | None = sizes if sizes is not None else scales
    if given is None or len(given) != len(axes):
        raise node.bad("needs a scale or a size for each axis")
    how = node.attr("coordinate_transformation_mode", "asymmetric" if old else "half_pixel")
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    if roi is None and policy == "stretch":
        other = [i for i, (n, g) in enumerate(zip(dims, given, strict=True))
                 if (g != 1 if sizes is None else str(n) != str(g))]  # fmt: skip
        axes, dims, given = ([v[i] for i in other] for v in (axes, dims, given))
        scales, sizes = (None, given) if sizes is not None else (given, None)
    if any(not 0 < g < 1 << 30 for g in given):
        raise node.bad(f"scales or sizes {given} are not positive")
    if sizes is not None:
        scales = [np.float32(int(m)) / np.float32(int(n)) for m, n in zip(sizes, dims, strict=True)]
        if policy != "stretch":
            same = min(scales) if policy == "not_larger" else max(scales)
            scales = [same] * len(dims)
            sizes = [int(np.floor(same * int(n) + 0.5)) for n in dims]
    else:
        scales = [np.float32(s) for s in scales or []]
        lengths = [s * np.float32(int(n)) for n, s in zip(dims, scales, strict=True)]
        sizes = [int(length) for length in lengths]
        if how == "align_corners" and sizes != lengths and not node.importer.allow_opaque:
            raise UnsupportedError("ONNX divides by a length's fraction, runtimes do not")
    if sizes == [int(n) for n in dims]:
        return x
    mode = node.attr("mode", "nearest")
    if how == "half_pixel_symmetric" and mode == "nearest":
        return None  # onnxruntime rounds in its own way
    outside = how == "tf_crop_and_resize"
    for i, (axis, n, m, s) in enumerate(zip(axes, dims, sizes, scales, strict=True)):
        region = (0.0, 1.0) if roi is None else (float(roi[i]), float(roi[len(axes) + i]))
        if m == n and s == 1 and region == (0.0, 1.0):
            continue
        rounding = "ceil" if s < 1 else "floor"
        if not old:
            rounding = node.attr("nearest_mode", "round_prefer_floor")
        node.fits(m if mode == "nearest" else m * max(n, 256))
        at = _coordinates(how, n, m, s, region)
        beyond = (at < 0) | (at > n - 1) if outside else np.zeros(m, bool)
        if mode == "nearest":
            places = _nearest(at, rounding).clip(0, n - 1).astype(int)
            x = full(node, x, axis, places.tolist())
        else:
            matrix = _matrix(
                at, n, mode == "cubic", node.attr("cubic_coeff_a", -0.75), s,
                bool(node.attr("antialias", 0)), bool(node.attr("exclude_outside", 0)),
            )  # fmt: skip
            x = _times(node, x, matrix, axis)
        if beyond.any():
            value = x.builder.const(node.attr("extrapolation_value", 0.0), x.dtype)
            mask = beyond.reshape([-1, *[1] * (x.ndim - 1 - axis)])
            x = emit("where", node.importer.tensor(mask, "beyond"), value, x)
    return x


def _times(node: Node, x: Tensor, matrix: Array, axis: int) -> Tensor:
    if x.dtype.kind in "iu":
        raise UnsupportedError("interpolation of integers is not supported", node.importer.where)
    weights = node.importer.tensor(matrix.astype(x.dtype), "interpolation")
    if axis == x.ndim - 1:
        return f("matmul")(x, f("transpose")(weights))
    return f("moveaxis")(f("matmul")(weights, f("moveaxis")(x, axis, -2)), -2, axis)
