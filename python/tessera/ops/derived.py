"""NumPy's functions that are short programs of others: differences, products, statistics."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from tessera.ops.contract import dot, matmul
from tessera.ops.index import diagonal, getitem, picked
from tessera.ops.operands import (
    Operand,
    axes_of,
    axis_of,
    builder_of,
    emit,
    iota,
    is_scalar,
    lift,
    promote,
    reduced,
    result_type,
    static_shape,
    tensors,
)
from tessera.ops.pointwise import abs as absolute
from tessera.ops.pointwise import (
    add,
    clip,
    divide,
    equal,
    less,
    less_equal,
    logical_and,
    logical_or,
    maximum,
    minimum,
    multiply,
    not_equal,
    sqrt,
    subtract,
    where,
)
from tessera.ops.reduce import accumulated, mean, sum
from tessera.ops.reduce import all as reduce_all
from tessera.ops.reduce import max as reduce_max
from tessera.ops.reduce import min as reduce_min
from tessera.ops.shape import concatenate, expand_dims, moveaxis, pad, ravel, reshape, stack
from tessera.tensor import Tensor, bad_input, cast, unsupported
from tessera.types import Axes, DTypeGiven, Function, is_float

_FEW_FACTORS = 16
_LONGEST_KERNEL = 64  # of np.convolve: the program has one product per element


# --- along an axis


def prod(x: Operand, axis: Axes = None, dtype: DTypeGiven = None, keepdims: bool = False) -> Tensor:
    """Product over axes, of many factors by halves; small integers and bool widen to i64 as in
    NumPy."""
    x = accumulated(lift(builder_of(x), x), dtype, "product")
    if axis is None and not keepdims and math.prod(static_shape(x, "prod")) <= _FEW_FACTORS:
        x = ravel(x)
    for a in axes_of(axis, x.ndim)[::-1]:
        if 1 < (n := static_shape(x, "prod")[a]) <= _FEW_FACTORS:  # in NumPy's order
            x = functools.reduce(multiply, (picked(x, a, slice(i, i + 1)) for i in range(n)))
        while (n := static_shape(x, "prod")[a]) > 1:
            half = n // 2
            product = multiply(picked(x, a, slice(0, half)), picked(x, a, slice(half, 2 * half)))
            odd = [picked(x, a, slice(2 * half, n))] if n % 2 else []
            x = concatenate([product, *odd], a)
        if not keepdims:
            x = picked(x, a, 0)
    return x


def diff(x: Operand, n: int = 1, axis: int = -1) -> Tensor:
    """Differences of neighbours along an axis, n times."""
    x = lift(builder_of(x), x)
    if n == 0:
        unsupported("np.diff with n=0, which is its argument itself, is not supported")
    for _ in range(n):
        after, before = picked(x, axis, slice(1, None)), picked(x, axis, slice(None, -1))
        x = not_equal(after, before) if x.dtype == np.bool_ else subtract(after, before)
    return x


def gradient(x: Operand, spacing: float = 1.0, *, axis: int | None = None, edge_order: int = 1):  # type: ignore[no-untyped-def]
    """Central differences inside, one-sided ones at the edges, for one constant spacing."""
    x = lift(builder_of(x), x)
    if not is_scalar(spacing):
        unsupported("np.gradient is supported with one constant spacing")
    if edge_order != 1:
        unsupported("np.gradient is supported with edge_order=1 only")
    if not is_float(x.dtype):
        x = cast(x, np.float64)
    results = [_gradient(x, spacing, a) for a in (range(x.ndim) if axis is None else [axis])]
    return results[0] if len(results) == 1 else tuple(results)


def _gradient(x: Tensor, spacing: float, axis: int) -> Tensor:
    if static_shape(x, "gradient")[axis] < 2:
        bad_input("gradient: an axis needs at least two elements")
    steps = divide(diff(x, 1, axis), spacing)
    parts = [picked(steps, axis, slice(0, 1)), picked(steps, axis, slice(-1, None))]
    if static_shape(x, "gradient")[axis] > 2:
        far, near = picked(x, axis, slice(2, None)), picked(x, axis, slice(None, -2))
        parts.insert(1, divide(subtract(far, near), 2.0 * spacing))
    return concatenate(parts, axis)


def trapezoid(y: Operand, x: Operand = None, dx: Operand = 1.0, axis: int = -1) -> Tensor:
    """The integral by the trapezoidal rule."""
    y = lift(builder_of(y, x), y)
    width: Operand = dx
    if x is not None:
        x = lift(y.builder, x)
        width = diff(x, 1, -1 if x.ndim == 1 else axis)
        if x.ndim == 1:
            width = reshape(width, [-1] + [1] * (y.ndim - 1 - axis_of(axis, y.ndim)))
    pairs = add(picked(y, axis, slice(1, None)), picked(y, axis, slice(None, -1)))
    return sum(divide(multiply(width, pairs), 2.0), axis)


# --- products


def cross(x: Operand, y: Operand, axis: int = -1) -> Tensor:
    """The cross product of vectors of three elements along an axis."""
    a, b = (moveaxis(t, axis, -1) for t in tensors(x, y))
    if static_shape(a, "cross")[-1] != 3 or static_shape(b, "cross")[-1] != 3:
        unsupported("np.cross is supported for vectors of three elements")
    (a0, a1, a2), (b0, b1, b2) = ([v[..., i] for i in range(3)] for v in (a, b))
    parts = [a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0]
    return moveaxis(stack(parts, -1), -1, axis)


def kron(x: Operand, y: Operand) -> Tensor:
    """The Kronecker product: blocks of y scaled by the elements of x."""
    a, b = tensors(x, y)
    ndim = max(a.ndim, b.ndim)
    sa, sb = ((1,) * (ndim - v.ndim) + static_shape(v, "kron") for v in (a, b))
    wide_a = reshape(a, [d for n in sa for d in (n, 1)])
    wide_b = reshape(b, [d for n in sb for d in (1, n)])
    return reshape(multiply(wide_a, wide_b), [n * m for n, m in zip(sa, sb, strict=True)])


def multi_dot(arrays: Sequence[Operand]) -> Tensor:
    """The product of several matrices, from left to right."""
    return lift(builder_of(*arrays), functools.reduce(dot, arrays))


def matrix_power(x: Operand, n: int) -> Tensor:
    """A matrix to a positive power, by squaring."""
    x = lift(builder_of(x), x)
    if not isinstance(n, (int, np.integer)) or not 1 < n <= 1024:
        unsupported("np.linalg.matrix_power is supported for powers from 2 to 1024")
    result: Tensor | None = None
    square = x
    while n:
        if n & 1:
            result = square if result is None else matmul(result, square)
        n >>= 1
        if n:
            square = matmul(square, square)
    assert result is not None
    return result


def convolve(x: Operand, y: Operand, mode: str = "full") -> Tensor:
    """The convolution of two vectors: a sum of one shifted product per element of the shorter."""
    a, b = tensors(x, y)
    if a.ndim != 1 or b.ndim != 1:
        bad_input("convolve: both operands must have one axis")
    (n,), (m,) = static_shape(a, "convolve"), static_shape(b, "convolve")
    if m > n:
        a, b, n, m = b, a, m, n
    if m > _LONGEST_KERNEL:
        unsupported(f"np.convolve with kernels longer than {_LONGEST_KERNEL} is not supported")
    lead, length = {"full": (0, n + m - 1), "same": ((m - 1) // 2, n), "valid": (m - 1, n - m + 1)}[
        mode if mode in ("full", "same", "valid") else bad_input(f"convolve: mode {mode!r}")
    ]
    terms = []
    for k in range(m):  # the products are padded, so that no element is multiplied by a border
        first, end = lead - k, lead + length - k
        low, high = max(0, first), min(n, end)
        product = multiply(getitem(b, k), getitem(a, slice(low, high)))
        terms.append(pad(product, (low - first, end - high)))
    return functools.reduce(add, terms)


def correlate(x: Operand, y: Operand, mode: str = "valid") -> Tensor:
    """The correlation of two vectors, the first not shorter than the second."""
    a, b = tensors(x, y)
    if a.ndim != 1 or b.ndim != 1 or static_shape(a, "")[0] < static_shape(b, "")[0]:
        unsupported("np.correlate is supported for two vectors, the longer one first")
    return convolve(a, getitem(b, slice(None, None, -1)), mode)


def polyval(p: Operand, x: Operand) -> Tensor:
    """A polynomial with coefficients from the highest power down, by Horner's rule."""
    builder = builder_of(p, x)
    coefficients = lift(builder, p) if isinstance(p, Tensor) else np.asarray(p)
    result: Operand = 0
    for k in range(coefficients.shape[0]):
        result = add(multiply(result, lift(builder, x)), coefficients[k])
    return lift(builder, result)


# --- positions and comparisons


def _position(best: Function, x: Operand, axis: int | None, keepdims: bool) -> Tensor:
    x = lift(builder_of(x), x)
    shape = x.shape
    if axis is None:
        flat = _position(best, ravel(x), 0, False)
        return reshape(flat, [1] * len(shape)) if keepdims else flat
    a = axis_of(axis, x.ndim)
    if x.dtype == np.bool_:
        x = cast(x, np.int32)
    n = static_shape(x, "argmax")[a]
    counted = reshape(iota(x.builder, 0, [n]), [n] + [1] * (x.ndim - 1 - a))
    found = equal(x, best(x, a, True))
    if is_float(x.dtype):  # the first NaN counts as the largest and as the smallest
        found = logical_or(found, not_equal(x, x))
    return reduce_min(where(found, counted, n), a, keepdims)


def argmax(x: Operand, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Where the first largest element is, as i64."""
    return _position(reduce_max, x, axis, keepdims)


def argmin(x: Operand, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Where the first smallest element is, as i64."""
    return _position(reduce_min, x, axis, keepdims)


def ranked(x: Tensor, k: int, larger: bool) -> Tensor:
    """Where the first k elements of each row are, the largest or the smallest first, as i64.

    By counting: an element's rank is how many precede it, larger ones (NaN above all) and equal
    ones before it. The k-th result is the element whose rank is k.
    """
    *lead, n = x.shape
    last, builder = x.ndim, x.builder
    this, other = expand_dims(x, -1), expand_dims(x, -2)  # [..., n, 1], [..., 1, n]
    first, same = emit("gt" if larger else "lt", other, this), emit("eq", other, this)
    if is_float(x.dtype):
        nan, others = emit("ne", this, this), emit("ne", other, other)
        ahead, behind = (others, nan) if larger else (nan, others)
        first = emit("or", first, emit("and", ahead, emit("not", behind)))
        same = emit("or", same, emit("and", nan, others))
    square, chosen = [*lead, n, n], [*lead, k, n]
    earlier = emit("lt", iota(builder, last, square), iota(builder, last - 1, square))
    precedes = cast(emit("or", first, emit("and", same, earlier)), np.int64)
    rank = expand_dims(reduced("sum", precedes, [last], False), -2)
    hit = emit("eq", rank, iota(builder, last - 1, chosen))
    at = emit("where", hit, iota(builder, last, chosen), builder.const(-1, np.int64))
    return reduced("reduce_max", at, [last], False)  # [..., k]


def count_nonzero(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """How many elements are not zero, as i64."""
    x = lift(builder_of(x), x)
    return sum(cast(cast(x, np.bool_), np.int64), axis, keepdims=keepdims)


def isnan(x: Operand) -> Tensor:
    """Whether an element is not a number."""
    return not_equal(x, x)


def isfinite(x: Operand) -> Tensor:
    """Whether an element is neither infinite nor NaN."""
    x = lift(builder_of(x), x)
    return less(absolute(x), np.inf) if is_float(x.dtype) else equal(x, x)


def isinf(x: Operand) -> Tensor:
    """Whether an element is infinite."""
    x = lift(builder_of(x), x)
    return equal(absolute(x), np.inf) if is_float(x.dtype) else not_equal(x, x)


def _of_numbers(choose: Function, ufunc: np.ufunc) -> Callable[[Operand, Operand], Tensor]:
    """The larger or smaller one, or that which is a number."""

    def function(x: Operand, y: Operand) -> Tensor:
        a, b = promote(ufunc, x, y)
        chosen = choose(a, b)
        return where(isnan(a), b, where(isnan(b), a, chosen)) if is_float(a.dtype) else chosen

    return function


fmax = _of_numbers(maximum, np.fmax)
fmin = _of_numbers(minimum, np.fmin)


def isclose(x: Operand, y: Operand, rtol: float = 1e-5, atol: float = 1e-8) -> Tensor:
    """|x − y| ≤ atol + rtol·|y|, or equal (infinities)."""
    if is_scalar(y):
        number = np.float64(y)  # type: ignore[arg-type]
        same = equal(x, number)
        if not np.isfinite(number):
            return same
        bound = atol + rtol * np.abs(number)
        return logical_or(less_equal(absolute(subtract(x, number)), bound), same)
    y = lift(builder_of(x, y), y)
    y = y if is_float(y.dtype) else cast(y, np.dtype(np.float64))
    near = less_equal(absolute(subtract(x, y)), add(atol, multiply(rtol, absolute(y))))
    return logical_or(logical_and(near, isfinite(y)), equal(x, y))


def allclose(x: Operand, y: Operand, rtol: float = 1e-5, atol: float = 1e-8) -> Tensor:
    """Whether all elements are close."""
    return reduce_all(isclose(x, y, rtol, atol))


def select(
    conditions: Sequence[Operand], choices: Sequence[Operand], default: Operand = 0
) -> Tensor:
    """The choice of the first condition that holds."""
    if len(conditions) != len(choices):
        bad_input("select: as many conditions as choices are needed")
    dtype = result_type(*choices, default)
    builder = builder_of(*conditions, *choices)
    result = lift(builder, default, dtype)
    for condition, choice in zip(conditions[::-1], choices[::-1], strict=True):
        result = where(condition, lift(builder, choice, dtype), result)
    return result


def heaviside(x: Operand, at_zero: Operand) -> Tensor:
    """0 below zero, 1 above, `at_zero` there."""
    a, b = promote(np.heaviside, x, at_zero)
    step = where(equal(a, 0), b, cast(less(0, a), a.dtype))
    return where(isnan(a), a, step)


def nan_to_num(
    x: Operand, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """NaN and infinities replaced by numbers."""
    x = lift(builder_of(x), x)
    if not is_float(x.dtype):
        return x
    limits = np.finfo(x.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    x = where(isnan(x), nan, x)
    return where(equal(x, np.inf), high, where(equal(x, -np.inf), low, x))


# --- statistics


def nansum(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The sum of what is not NaN."""
    x = lift(builder_of(x), x)
    return sum(where(isnan(x), 0, x) if is_float(x.dtype) else x, axis, keepdims=keepdims)


def nanmean(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The mean of what is not NaN."""
    x = lift(builder_of(x), x)
    if not is_float(x.dtype):
        return mean(x, axis, keepdims=keepdims)
    count = sum(cast(equal(x, x), x.dtype), axis, keepdims=keepdims)
    return divide(nansum(x, axis, keepdims), count)


def cov(m: Operand, y: Operand = None, rowvar: bool = True, bias: bool = False,
        ddof: int | None = None) -> Tensor:  # fmt: skip
    """The covariance matrix of variables in rows (or columns)."""
    builder = builder_of(m, y)
    sides = []
    for side in (m,) if y is None else (m, y):
        x = lift(builder, side)
        if x.ndim not in (1, 2):
            unsupported("np.cov is supported for matrices and vectors")
        x = expand_dims(x, 0) if x.ndim == 1 else (x if rowvar else x.T)
        sides.append(x if x.dtype == np.float64 else cast(x, np.float64))
    matrix = sides[0] if y is None else concatenate(sides, 0)
    count = static_shape(matrix, "cov")[1] - (ddof if ddof is not None else 0 if bias else 1)
    if count <= 0:
        unsupported("np.cov without a degree of freedom")
    centred = subtract(matrix, mean(matrix, 1, keepdims=True))
    result = divide(matmul(centred, centred.T), float(count))
    return reshape(result, []) if matrix.shape[0] == 1 else result


def corrcoef(x: Operand, y: Operand = None, rowvar: bool = True) -> Tensor:
    """Correlation coefficients: covariances over standard deviations, clipped to [-1, 1]."""
    c = cov(x, y, rowvar)
    if c.ndim == 0:
        return divide(c, c)
    spread = sqrt(diagonal(c))
    scaled = divide(divide(c, expand_dims(spread, 1)), expand_dims(spread, 0))
    return clip(scaled, -1, 1)
