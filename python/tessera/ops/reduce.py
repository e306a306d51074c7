"""Reductions and running sums, with NumPy's names, axes and dtypes."""

from __future__ import annotations

import builtins
import itertools
import math
from collections.abc import Sequence

import numpy as np

from tessera.ops.operands import (
    Operand,
    axes_of,
    axis_of,
    builder_of,
    emit,
    lift,
    numpy_dtype,
    reduced,
    static_shape,
)
from tessera.ops.pointwise import divide, maximum, minimum, multiply, sqr, sqrt, subtract
from tessera.ops.shape import ravel, squeeze
from tessera.tensor import Tensor, bad_input, cast, unsupported
from tessera.types import Axes, DTypeGiven, is_float

_MOST_RUNNING = 64  # elements of a running product, each an operator of its own


def _reduce(op: str, x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    return reduced(op, x, axes_of(axis, x.ndim), bool(keepdims))


def accumulated(x: Tensor, dtype: DTypeGiven, what: str) -> Tensor:
    """`x` as NumPy accumulates its elements: small integers and bool as i64."""
    if dtype is not None:
        return cast(x, numpy_dtype(dtype, x))
    if x.dtype == np.uint8:
        unsupported(f"the {what} of uint8 is uint64 in NumPy, which is not supported; pass dtype=")
    return x if is_float(x.dtype) else cast(x, np.int64)


def sum(x: Operand, axis: Axes = None, dtype: DTypeGiven = None, keepdims: bool = False) -> Tensor:
    """Sum over axes; small integers and bool widen to i64 as in NumPy."""
    x = lift(builder_of(x), x)
    return _reduce("sum", accumulated(x, dtype, "sum"), axis, keepdims)


def _floating(x: Tensor, dtype: DTypeGiven) -> Tensor:
    """`x` in a dtype, or where none is given as a float."""
    if dtype is not None:
        return cast(x, numpy_dtype(dtype, x))
    return x if is_float(x.dtype) else cast(x, np.float64)


def mean(x: Operand, axis: Axes = None, dtype: DTypeGiven = None, keepdims: bool = False) -> Tensor:
    """Arithmetic mean; of integers in f64."""
    x = lift(builder_of(x), x)
    return _reduce("mean", _floating(x, dtype), axis, keepdims)


def var(
    x: Operand, axis: Axes = None, dtype: DTypeGiven = None, ddof: float = 0,
    keepdims: bool = False, correction: float | None = None,
) -> Tensor:  # fmt: skip
    """Mean squared deviation from the mean, with divisor n − ddof, also called correction."""
    ddof = ddof if correction is None else correction
    x = _floating(lift(builder_of(x), x), dtype)
    deviation = sqr(subtract(x, mean(x, axis, keepdims=True)))
    if ddof == 0:
        return mean(deviation, axis, keepdims=keepdims)
    count = math.prod(static_shape(x, "var with ddof")[a] for a in axes_of(axis, x.ndim))
    if count - ddof <= 0:
        bad_input(f"var: {count} elements leave no degree of freedom with ddof={ddof}")
    return divide(sum(deviation, axis, keepdims=keepdims), count - ddof)


def std(
    x: Operand, axis: Axes = None, dtype: DTypeGiven = None, ddof: float = 0,
    keepdims: bool = False, correction: float | None = None,
) -> Tensor:  # fmt: skip
    """Square root of `var`."""
    return sqrt(var(x, axis, dtype, ddof, keepdims, correction))


def max(
    x: Operand, axis: Axes = None, keepdims: bool = False, initial: Operand | None = None
) -> Tensor:
    """The largest element over axes, and no smaller than `initial`."""
    largest = _reduce("reduce_max", lift(builder_of(x), x), axis, keepdims)
    return largest if initial is None else maximum(largest, initial)


def min(
    x: Operand, axis: Axes = None, keepdims: bool = False, initial: Operand | None = None
) -> Tensor:
    """The smallest element over axes, and no larger than `initial`."""
    smallest = _reduce("reduce_min", lift(builder_of(x), x), axis, keepdims)
    return smallest if initial is None else minimum(smallest, initial)


def all(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Whether every element is true."""
    bits = cast(cast(lift(builder_of(x), x), np.bool_), np.int32)
    return cast(min(bits, axis, keepdims), np.bool_)


def any(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Whether some element is true."""
    bits = cast(cast(lift(builder_of(x), x), np.bool_), np.int32)
    return cast(max(bits, axis, keepdims), np.bool_)


def cumsum(x: Operand, axis: int | None = None, dtype: DTypeGiven = None) -> Tensor:
    """Inclusive running sum along an axis, or of the flattened tensor."""
    x = lift(builder_of(x), x)
    if axis is None:
        x, axis = ravel(x), 0
    x = accumulated(x, dtype, "cumsum")
    return x.builder.emit("cumsum", [x], {"axis": axis_of(axis, x.ndim)})


def running_product(x: Tensor, axis: int) -> Tensor:
    """Along an axis, in order: products of runs overflow where the whole does not."""
    if x.shape[axis] > _MOST_RUNNING:
        unsupported(f"a running product of more than {_MOST_RUNNING} elements")
    rows = [x[(*(slice(None),) * axis, slice(n, n + 1))] for n in range(x.shape[axis])]
    return emit("concat", *itertools.accumulate(rows, multiply), axis=axis) if rows else x


def shifted(x: Tensor, axis: int, step: int, value: int = 1) -> Tensor:
    """Each element `step` places further on, after ones (or `value`)."""
    if x.shape[axis] <= step:
        return x.builder.const(value, x.dtype, list(x.shape))
    low = [step * (a == axis) for a in range(x.ndim)]
    kept = x[(*(slice(None),) * axis, slice(0, x.shape[axis] - step))]
    return emit("pad", kept, low=low, high=[0] * x.ndim, value=value)


def logsumexp(x: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    """log Σ exp x over axes, at infinities too, without asking for them, which would bar most
    algebra."""
    if builtins.all(x.shape[a] == 1 for a in axes):  # of one element it is the element
        return reduced("reduce_max", x, axes, keepdims)
    most = float(np.finfo(x.dtype).max)  # infinities do not cancel
    top = maximum(minimum(reduced("reduce_max", x, axes, True), most), -most)
    total = emit("log", reduced("sum", emit("exp", x - top), axes, True)) + top
    return total if keepdims else squeeze(total, tuple(axes))


def softmax(x: Tensor, axes: Sequence[int], log: bool = False) -> Tensor:
    """exp(x - max x) by its sum over axes, or the logarithm of that."""
    shifted = x - reduced("reduce_max", x, axes, True)
    powers = emit("exp", shifted)
    total = reduced("sum", powers, axes, True)
    return shifted - emit("log", total) if log else emit("div", powers, total)


def standardised(x: Tensor, axes: Sequence[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """With mean 0 and variance 1 over axes; what was the mean, and what it is multiplied by."""
    average = reduced("mean", x, axes, True)
    centred = x - average
    variance = reduced("mean", emit("sqr", centred), axes, True)
    inverse = emit("rsqrt", variance + x.builder.const(eps, x.dtype))
    return centred * inverse, average, inverse


def norm(
    x: Operand, ord: float | str | None = None, axis: Axes = None, keepdims: bool = False
) -> Tensor:
    """The Euclidean (for matrices Frobenius) norm."""
    x = lift(builder_of(x), x)
    vector = x.ndim == 1 or isinstance(axis, int)
    if vector and ord in (1, np.inf, -np.inf, 0):
        size = emit("abs", _floating(x, None))
        if ord == 0:
            size = cast(cast(size, np.bool_), size.dtype)
        return (min if ord == -np.inf else max if ord == np.inf else sum)(
            size, axis, keepdims=keepdims
        )
    if not (ord is None or ord == "fro" or (ord == 2 and vector)):
        unsupported(f"np.linalg.norm with ord={ord!r} is not supported")
    # NumPy's norm does not know bf16 as a float and converts it.
    if not is_float(x.dtype) or (x.builder.numpy_dtypes and not np.issubdtype(x.dtype, np.inexact)):
        x = cast(x, np.float64)
    return sqrt(sum(sqr(x), axis, keepdims=keepdims))
