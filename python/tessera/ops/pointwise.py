"""Functions applied to each element, with NumPy's names and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.graph import Tensor, bad_input, unsupported
from tessera.ops.operands import (
    Operand,
    builder_of,
    cast,
    is_scalar,
    lift,
    numpy_dtype,
    operand_dtype,
    promote,
)
from tessera.types import is_float


def _unary(op: str, ufunc: np.ufunc) -> Callable[[Operand], Tensor]:
    def function(x: Operand) -> Tensor:
        (t,) = promote(ufunc, x)
        return t.builder.emit(op, [t])

    return function


def _float_unary(op: str) -> Callable[[Operand], Tensor]:
    """Functions that NumPy lacks; dtypes as for np.exp."""
    return _unary(op, np.exp)


def _binary(op: str, ufunc: np.ufunc, on_bool: str | None = None) -> Callable[..., Tensor]:
    def function(x: Operand, y: Operand) -> Tensor:
        a, b = promote(ufunc, x, y)
        kind = on_bool if on_bool and a.dtype == np.bool_ else op
        return a.builder.emit(kind, [a, b])

    return function


negative = _unary("neg", np.negative)
sign = _unary("sign", np.sign)
sqrt = _unary("sqrt", np.sqrt)
exp = _unary("exp", np.exp)
log = _unary("log", np.log)
sin = _unary("sin", np.sin)
cos = _unary("cos", np.cos)
tanh = _unary("tanh", np.tanh)
rsqrt = _float_unary("rsqrt")
erf = _float_unary("erf")
sigmoid = _float_unary("sigmoid")
silu = _float_unary("silu")
gelu = _float_unary("gelu")
gelu_tanh = _float_unary("gelu_tanh")

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
sub, mul, div = subtract, multiply, divide


def abs(x: Operand) -> Tensor:
    """|x|; of a bool, itself."""
    (t,) = promote(np.absolute, x)
    return t if t.dtype == np.bool_ else t.builder.emit("abs", [t])


def sqr(x: Operand) -> Tensor:
    """x·x."""
    (t,) = promote(np.square, x)
    return t.builder.emit("sqr", [t])


square = sqr


def relu(x: Operand) -> Tensor:
    """max(x, 0)."""
    (t,) = promote(np.negative, x)
    return t.builder.emit("relu", [t])


def reciprocal(x: Operand) -> Tensor:
    """1/x; of integers NumPy truncates, which is not supported."""
    (t,) = promote(np.reciprocal, x)
    if not is_float(t.dtype):
        unsupported("np.reciprocal of integers is not supported; write 1 / x")
    return t.builder.emit("div", [t.builder.const(1, t.dtype), t])


def pow(x: Operand, exponent: Operand) -> Tensor:
    """x to a constant power; the exponent must be a scalar."""
    if not is_scalar(exponent):
        if isinstance(exponent, np.ndarray) and exponent.size == 1 and exponent.ndim == 0:
            exponent = exponent[()]
        else:
            unsupported(
                "a power needs a constant scalar exponent; write np.exp(y * np.log(x)) for x > 0"
            )
    if not isinstance(x, Tensor):
        x = lift(builder_of(x), x)
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


def _logical(op: str, ufunc: np.ufunc) -> Callable[..., Tensor]:
    def function(*operands: Operand) -> Tensor:
        builder = builder_of(*operands)
        return builder.emit(op, [cast(lift(builder, x), np.bool_) for x in operands])

    return function


logical_and = _logical("and", np.logical_and)
logical_or = _logical("or", np.logical_or)
logical_not = _logical("not", np.logical_not)


def logical_xor(x: Operand, y: Operand) -> Tensor:
    """Exactly one of both is true."""
    builder = builder_of(x, y)
    return builder.emit("ne", [cast(lift(builder, v), np.bool_) for v in (x, y)])


def bitwise(name: str) -> Callable[..., Tensor]:
    """&, |, ^ and ~ on bool tensors, where they are the logical operators."""
    logical = {"and": logical_and, "or": logical_or, "xor": logical_xor, "not": logical_not}[name]

    def function(*operands: Operand) -> Tensor:
        if any(operand_dtype(x) != np.dtype(np.bool_) for x in operands):
            unsupported("bitwise operators are supported on bool arrays only")
        return logical(*operands)

    return function


def where(condition: Operand, x: Operand, y: Operand) -> Tensor:
    """x where the condition holds, else y."""
    builder = builder_of(condition, x, y)
    kinds = [operand_dtype(v) for v in (x, y)]
    dtype = np.result_type(*[k(0) if isinstance(k, type) else k for k in kinds])
    c = cast(lift(builder, condition), np.bool_)
    return builder.emit("where", [c, lift(builder, x, dtype), lift(builder, y, dtype)])


def clip(x: Operand, lo: Operand = None, hi: Operand = None) -> Tensor:
    """min(max(x, lo), hi); None leaves that side open."""
    if lo is None and hi is None:
        bad_input("clip needs a lower or an upper bound")
    result = lift(builder_of(x, lo, hi), x) if lo is None else maximum(x, lo)
    return result if hi is None else minimum(result, hi)


def astype(x: Tensor, dtype: Any) -> Tensor:
    """Conversion by C's rules."""
    return cast(x, numpy_dtype(dtype))
