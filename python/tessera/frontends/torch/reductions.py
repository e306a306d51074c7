"""Reductions and normalisations of ATen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.errors import UnsupportedError
from tessera.frontends.torch.call import (
    Call,
    axes_of,
    cast,
    dtype_of,
    emit,
    f,
    handles,
    reduced,
    wide,
)
from tessera.ops.reduce import logsumexp, running_product, softmax, standardised
from tessera.tensor import Tensor
from tessera.types import Axes, Object, dtype_name, to_numpy


@handles("aten.sum.dim_IntList", "prims.sum.default")
def sum_(call: Call, x: Tensor, dim: Axes = None, keepdim: bool = False, **_: Object) -> Tensor:
    work = "f32" if call.dtype in ("f16", "bf16") else call.dtype
    return cast(reduced("sum", cast(x, work), axes_of(x, dim), keepdim), call.dtype)


@handles("aten.mean")
def mean(call: Call, x: Tensor, dim: Axes = None, keepdim: bool = False, **_: Object) -> Tensor:
    x = wide(cast(x, call.dtype))
    return cast(reduced("mean", x, axes_of(x, dim), keepdim), call.dtype)


@handles("aten.amax.default", "aten.amin.default", "aten.max.default", "aten.min.default")
def amax(call: Call, x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    op = "reduce_max" if "max" in str(call.node.target) else "reduce_min"
    number = f("astype")(x, np.int32) if x.dtype == np.bool_ else x
    return cast(reduced(op, number, axes_of(x, dim), keepdim), call.dtype)


@handles("aten.any.dim", "aten.any.default", "aten.any.dims")
def any_(call: Call, x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return cast(f("any")(cast(x, "bool"), axes_of(x, dim), keepdim), call.dtype)


@handles("aten.var.correction", "prims.var.default")
def var(
    call: Call, x: Tensor, dim: Axes = None, correction: float | None = None,
    keepdim: bool = False, **_: Object,
) -> Tensor:  # fmt: skip
    free, axes, x = 1 if correction is None else correction, axes_of(x, dim), wide(x)
    centred = x - reduced("mean", x, axes, True)  # twice: PyTorch's own adds up in f64
    return cast(f("var")(centred, axes, ddof=free, keepdims=keepdim), call.dtype)


@handles("aten.cumsum.default")
def cumsum(call: Call, x: Tensor, dim: int, **_: Object) -> Tensor:
    if not x.ndim:
        return cast(x, call.dtype)
    return cast(emit("cumsum", wide(cast(x, call.dtype)), axis=dim % x.ndim), call.dtype)


@handles("aten.logsumexp.default")
def logsumexp_(call: Call, x: Tensor, dim: Axes, keepdim: bool = False) -> Tensor:
    return cast(logsumexp(wide(cast(x, call.dtype)), axes_of(x, dim), keepdim), call.dtype)


@handles("aten.cumprod.default")
def cumprod(call: Call, x: Tensor, dim: int, **_: Object) -> Tensor:
    x = wide(cast(x, call.dtype))
    return cast(running_product(x, dim % x.ndim) if x.ndim else x, call.dtype)


@handles("aten._softmax.default", "aten._log_softmax.default")
def softmax_(call: Call, x: Tensor, dim: int, half: bool = False) -> Tensor:
    if not x.ndim:
        raise UnsupportedError("of a single number")
    return cast(softmax(wide(x), [dim % x.ndim], "log" in str(call.node.target)), call.dtype)


@handles("aten.prod.dim_int", "aten.prod.default")
def prod(call: Call, x: Tensor, dim: Axes = None, keepdim: bool = False, **_: Object) -> Tensor:
    x = cast(x, call.dtype)
    axes = tuple(axes_of(x, dim))
    return f("prod")(x, axes, to_numpy(call.dtype), keepdim) if axes else x


# --- normalisations
@handles("aten.native_layer_norm.default")
def layer_norm(
    call: Call, x: Tensor, shape: Sequence[int], w: Tensor | None, b: Tensor | None, eps: float
) -> list[Tensor]:
    axes = list(range(x.ndim - len(shape), x.ndim))
    y, mean, inverse = standardised(wide(x), axes, eps)
    y = y if w is None else y * cast(w, dtype_name(y.dtype))
    y = y if b is None else y + cast(b, dtype_name(y.dtype))
    statistics = dtype_of(call.node.meta["val"][1].dtype)
    return [cast(y, call.dtype), cast(mean, statistics), cast(inverse, statistics)]


@handles("aten.native_group_norm.default")
def group_norm(
    call: Call, x: Tensor, w: Tensor | None, b: Tensor | None, n: int, c: int, pixels: int,
    groups: int, eps: float,
) -> list[Tensor]:  # fmt: skip
    rows = f("reshape")(wide(x), [n, groups, c // groups * pixels])
    y, mean, inverse = standardised(rows, [2], eps)
    y = f("reshape")(y, x.shape)
    side = [c, *[1] * (x.ndim - 2)]
    y = y if w is None else y * f("reshape")(cast(w, dtype_name(y.dtype)), side)
    y = y if b is None else y + f("reshape")(cast(b, dtype_name(y.dtype)), side)
    made = [cast(f("reshape")(t, [n, groups]), call.dtype) for t in (mean, inverse)]
    return [cast(y, call.dtype), *made]


@handles("aten._native_batch_norm_legit_no_training.default")
def batch_norm(
    call: Call, x: Tensor, w: Tensor | None, b: Tensor | None, mean: Tensor, var: Tensor,
    momentum: float, eps: float,
) -> list[Tensor | None]:  # fmt: skip
    factor = emit("rsqrt", var + var.builder.const(eps, var.dtype))
    factor = factor if w is None else factor * cast(w, dtype_name(factor.dtype))
    shift = -mean * factor
    shift = shift if b is None else shift + cast(b, dtype_name(shift.dtype))
    side = [x.shape[1], *[1] * (x.ndim - 2)]
    y = wide(x) * f("reshape")(factor, side) + f("reshape")(shift, side)
    return [cast(y, call.dtype), None, None]
