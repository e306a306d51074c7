"""Functions applied to each element, with NumPy's names and dtypes."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable

import numpy as np

from tessera.ops.operands import (
    Operand,
    builder_of,
    emit,
    is_scalar,
    lift,
    numpy_dtype,
    promote,
    result_type,
    tensors,
)
from tessera.tensor import Tensor, bad_input, cast, unsupported
from tessera.types import DTypeGiven, is_float


def _unary(op: str, ufunc: np.ufunc = np.exp) -> Callable[[Operand], Tensor]:
    """An operator with the dtypes of a function of NumPy, which lacks some itself."""
    return lambda x: emit(op, *promote(ufunc, x))


def _binary(op: str, ufunc: np.ufunc, on_bool: str = "") -> Callable[[Operand, Operand], Tensor]:
    def function(x: Operand, y: Operand) -> Tensor:
        a, b = promote(ufunc, x, y)
        return emit(on_bool if on_bool and a.dtype == np.bool_ else op, a, b)

    return function


negative = _unary("neg", np.negative)
sign = _unary("sign", np.sign)
sqrt = _unary("sqrt", np.sqrt)
exp = _unary("exp", np.exp)
log = _unary("log", np.log)
sin = _unary("sin", np.sin)
cos = _unary("cos", np.cos)
tanh = _unary("tanh", np.tanh)
rsqrt = _unary("rsqrt")
erf = _unary("erf")
erfc = _unary("erfc")
sigmoid = _unary("sigmoid")
silu = _unary("silu")
gelu = _unary("gelu")
gelu_tanh = _unary("gelu_tanh")

relu = _unary("relu", np.negative)  # max(x, 0)
sqr = square = _unary("sqr", np.square)  # x·x
log1p = _unary("log1p", np.log1p)
expm1 = _unary("expm1", np.expm1)
arctan2 = _binary("atan2", np.arctan2)

add = _binary("add", np.add, "or")
subtract = _binary("sub", np.subtract)
multiply = _binary("mul", np.multiply, "and")
divide = _binary("div", np.true_divide)
maximum = _binary("max", np.maximum, "or")
minimum = _binary("min", np.minimum, "and")
equal = _binary("eq", np.equal)
not_equal = _binary("ne", np.not_equal)
less = _binary("lt", np.less)
less_equal = _binary("le", np.less_equal)
greater = _binary("gt", np.greater)
greater_equal = _binary("ge", np.greater_equal)
remainder = mod = _binary("mod", np.remainder)
sub, mul, div = subtract, multiply, divide


def abs(x: Operand) -> Tensor:
    """|x|; of a bool, itself."""
    (t,) = promote(np.absolute, x)
    return t if t.dtype == np.bool_ else t.builder.emit("abs", [t])


def reciprocal(x: Operand) -> Tensor:
    """1/x; of integers NumPy truncates, which is not supported."""
    (t,) = promote(np.reciprocal, x)
    if not is_float(t.dtype):
        unsupported("np.reciprocal of integers is not supported; write 1 / x")
    return t.builder.emit("div", [t.builder.const(1, t.dtype), t])


def _float_operand(x: Operand) -> Tensor:
    return promote(np.exp, x)[0]


def _rounding(ufunc: np.ufunc, rounded: Callable[[Tensor], Tensor]) -> Callable[[Operand], Tensor]:
    """Whole numbers in the place of floats; integers are some already."""

    def function(x: Operand) -> Tensor:
        (t,) = promote(ufunc, x)
        return rounded(t) if is_float(t.dtype) else t

    return function


floor = _rounding(np.floor, lambda t: emit("floor", t))
rint = _rounding(np.rint, lambda t: emit("round", t))
# The least whole number that is not below x, and the one next to x towards zero.
ceil = _rounding(np.ceil, lambda t: negative(floor(negative(t))))
fix = trunc = _rounding(np.trunc, lambda t: where(t < 0, ceil(t), floor(t)))


def round(x: Operand, decimals: int = 0) -> Tensor:
    """To `decimals` places, halves to even (as np.round, which scales and rounds)."""
    (t,) = promote(np.positive, x)
    if not is_float(t.dtype):
        if decimals < 0:
            unsupported("np.round of integers to negative decimals is not supported")
        return t
    if decimals == 0:
        return rint(t)
    scale = float(t.dtype.type(10.0 ** builtins.abs(decimals)))
    if decimals < 0:
        return rint(t / scale) * scale
    # Of f32 in f64, which rounds the same: code divides constants by their reciprocals in f32.
    return cast(cast(rint(t * scale), np.float64) / scale, t.dtype)


def floor_divide_floats(x: Operand, y: Operand) -> Tensor:
    """The greatest whole number not above x/y: (x - r) / y with C's remainder r, rounded to be
    whole, less one where r is not 0 and the signs differ.

    Of an infinite y with x finite: -1 where signs differ, else 0; zeros have the sign of x/y.
    """
    a, b = promote(np.floor_divide, x, y)
    r = mod(a, b)
    below = logical_and(not_equal(r, 0), less(a, 0) != less(b, 0))
    whole = rint((a - where(below, r - b, r)) / b) - cast(below, a.dtype)
    if isinstance(y, (int, float, np.generic)) and y != 0 and np.isfinite(float(y)):
        return _with_sign_of_ratio(whole, a, b)
    down = cast(logical_and(not_equal(a, 0), less(a, 0) != less(b, 0)), a.dtype)
    endless = logical_and(equal(abs(b), np.inf), less(abs(a), np.inf))
    whole = _with_sign_of_ratio(where(endless, -down, whole), a, b)
    return where(equal(b, 0), a / b, whole)


def _with_sign_of_ratio(whole: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Where it is zero, the zero of a/b's sign: what rewriting must not take for any zero."""
    if not a.builder.numpy_dtypes:
        return whole
    return where(equal(whole, 0), -(a / b) * a.builder.const(-0.0, a.dtype), whole)


def _logarithm(base: int) -> Callable[[Operand], Tensor]:
    """log(x) / log(base)."""
    return lambda x: log(x) * (1 / math.log(base))


log2, log10 = _logarithm(2), _logarithm(10)


def exp2(x: Operand) -> Tensor:
    """2**x."""
    return exp(_float_operand(x) * math.log(2))


def tan(x: Operand) -> Tensor:
    """sin(x) / cos(x)."""
    return sin(x) / cos(x)


def sinh(x: Operand) -> Tensor:
    """(e^x - e^-x) / 2; below 1 by expm1, which does not cancel there."""
    t = _float_operand(x)
    m, size = expm1(t), abs(t)
    half = exp(size * 0.5)  # whose square overflows where the result does
    large = half * (half * 0.5) - exp(-size) * 0.5
    return where(size < 1, (m + m / (m + 1)) * 0.5, where(t < 0, -large, large))


def cosh(x: Operand) -> Tensor:
    """(e^x + e^-x) / 2."""
    size = abs(_float_operand(x))
    half = exp(size * 0.5)  # whose square overflows where the result does
    return half * (half * 0.5) + exp(-size) * 0.5


def arcsinh(x: Operand) -> Tensor:
    """By log1p, so that small results keep their digits; of a large number log 2|x|."""
    t = _float_operand(x)
    size = abs(t)
    square = size * size
    small = log1p(size + square / (sqrt(square + 1) + 1))
    made = where(size > 1e9, log(size) + math.log(2), small)
    return where(t < 0, -made, where(equal(t, 0), t, made))


def arccosh(x: Operand) -> Tensor:
    """Likewise; what is below 1 has none."""
    t = _float_operand(x)
    above = t - 1
    return where(t > 1e9, log(t) + math.log(2), log1p(above + sqrt(above) * sqrt(t + 1)))


def arctanh(x: Operand) -> Tensor:
    """Half the logarithm of (1 + x) / (1 - x)."""
    t = _float_operand(x)
    return (log1p(t) - log1p(-t)) * 0.5


def arctan(x: Operand) -> Tensor:
    """The angle whose tangent is x."""
    return arctan2(_float_operand(x), 1)


def arcsin(x: Operand) -> Tensor:
    """The angle in [-pi/2, pi/2] whose sine is x."""
    t = _float_operand(x)
    return arctan2(t, sqrt((1 - t) * (1 + t)))


def arccos(x: Operand) -> Tensor:
    """The angle in [0, pi] whose cosine is x."""
    t = _float_operand(x)
    return arctan2(sqrt((1 - t) * (1 + t)), t)


def hypot(x: Operand, y: Operand) -> Tensor:
    """sqrt(x² + y²), whose squares do not overflow; infinite where either is."""
    a, b = (abs(t) for t in promote(np.hypot, x, y))
    long, short = maximum(a, b), minimum(a, b)
    ratio = short / where(equal(long, 0), 1.0, long)
    endless = logical_or(equal(a, np.inf), equal(b, np.inf))
    return where(endless, np.inf, long * sqrt(1 + square(ratio)))


def logaddexp(x: Operand, y: Operand) -> Tensor:
    """log(e^x + e^y), without overflow."""
    a, b = promote(np.logaddexp, x, y)
    apart = abs(a - b)
    if a.builder.numpy_dtypes:  # of two equal infinities no NaN
        apart = where(logical_and(not_equal(apart, apart), equal(a, b)), 0.0, apart)
    return maximum(a, b) + log1p(exp(-apart))


def pow(x: Operand, exponent: Operand) -> Tensor:
    """x to a power, constant or a tensor; integers to constant powers only."""
    if isinstance(exponent, np.ndarray) and not isinstance(exponent, Tensor) and exponent.ndim == 0:
        exponent = exponent[()]
    if not is_scalar(exponent):
        base, power_ = promote(np.power, x, exponent)
        if not is_float(base.dtype):
            unsupported("integers to powers that are not constant are not supported; use floats")
        return base.builder.emit("power", [base, power_])
    if not isinstance(x, Tensor):
        x = lift(builder_of(x), x)
    if x.dtype == np.bool_:
        unsupported("powers of truths are not supported, whose dtype depends on the exponent")
    base, _ = promote(np.power, x, exponent)
    value = float(exponent)  # type: ignore[arg-type]
    if value == 2:
        return base.builder.emit("sqr", [base])
    if not is_float(base.dtype):
        if value == 1:
            return base
        if value < 0 or value != int(value):
            bad_input("integers to negative integer powers are not allowed")
        result = base
        for _ in range(min(int(value), 64) - 1):
            result = result.builder.emit("mul", [result, base])
        if value == 0 or value > 64:
            unsupported(f"the integer power {exponent} is not supported")
        return result
    if value == 1:
        return base
    if value == 0.5:
        return base.builder.emit("sqrt", [base])
    text = float(str(exponent)) if isinstance(exponent, np.floating) else value
    return base.builder.emit("pow", [base], {"exponent": text})


power = pow


def _logical(op: str) -> Callable[..., Tensor]:
    def function(*operands: Operand) -> Tensor:
        return emit(op, *(cast(t, np.bool_) for t in tensors(*operands)))

    return function


logical_and = _logical("and")
logical_or = _logical("or")
logical_not = _logical("not")
logical_xor = _logical("ne")
LOGICAL = {"and": logical_and, "or": logical_or, "xor": logical_xor, "not": logical_not}


def where(condition: Operand, x: Operand, y: Operand) -> Tensor:
    """x where the condition holds, else y."""
    builder = builder_of(condition, x, y)
    dtype = result_type(x, y)
    c = cast(lift(builder, condition), np.bool_)
    return builder.emit("where", [c, lift(builder, x, dtype), lift(builder, y, dtype)])


def clip(x: Operand, lo: Operand = None, hi: Operand = None) -> Tensor:
    """min(max(x, lo), hi); None leaves that side open."""
    if lo is None and hi is None:
        bad_input("clip needs a lower or an upper bound")
    result = lift(builder_of(x, lo, hi), x) if lo is None else maximum(x, lo)
    return result if hi is None else minimum(result, hi)


def astype(x: Tensor, dtype: DTypeGiven) -> Tensor:
    """Conversion by C's rules."""
    return cast(x, numpy_dtype(dtype, x))
