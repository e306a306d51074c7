"""Operators of ATen that compute each element on its own."""

from __future__ import annotations

import math

import numpy as np

from tessera.errors import UnsupportedError
from tessera.frontends.torch.call import (
    Call,
    axes_of,
    both,
    cast,
    computed,
    emit,
    f,
    floats_only,
    handles,
    operand,
    promoted,
    reduced,
    wide,
)
from tessera.ops import integers
from tessera.tensor import Tensor, Term
from tessera.types import is_float, to_numpy


def _aten(names: str) -> list[str]:
    return [f"aten.{name}.default" for name in names.split()]


@handles(*_aten("exp log sin cos erf erfc tanh sigmoid silu sqrt rsqrt log1p expm1"))
def unary(call: Call, x: Tensor) -> Tensor:
    return emit(call.name, cast(x, call.dtype))


@handles(*_aten("neg abs sign relu floor round"))
def same(call: Call, x: Tensor) -> Tensor:
    if x.dtype == np.bool_:
        raise UnsupportedError("of bool it is left to PyTorch")
    if call.name in ("floor", "round") and not is_float(x.dtype):
        return x
    if call.name == "sign" and is_float(x.dtype):  # 0 of NaN
        return emit("where", emit("ne", x, x), x.builder.const(0, x.dtype), emit("sign", x))
    return emit(call.name, x)


@handles(*_aten("reciprocal exp2 log2 log10 ceil trunc sinh cosh tan"))
def derived(call: Call, x: Tensor) -> Tensor:
    floats_only(call)
    if call.name in ("exp2", "log2", "log10") and call.decides():
        raise UnsupportedError("it is exact at powers, and what is computed instead not")
    return f(call.name)(cast(x, call.dtype))


@handles("aten.add.Tensor", "aten.add.Scalar", "aten.sub.Tensor", "aten.sub.Scalar")
def add_or_subtract(call: Call, x: Term, y: Term, alpha: float = 1) -> Tensor:
    a, b = both(call, x, y)
    if call.dtype == "bool" and call.name == "add":
        return emit("or", a, b)
    return emit(call.name, a, b if alpha == 1 else emit("mul", b, call.const(alpha)))


@handles("aten.div", "prims.div.default")
def div(call: Call, x: Term, y: Term, *, rounding_mode: str | None = None) -> Tensor:
    if not is_float(to_numpy(call.dtype)):
        divide = integers.floor_divide if rounding_mode == "floor" else integers.trunc_divide
        return divide(*_divided(call, x, y))
    if rounding_mode == "floor":  # by C's remainder, as NumPy: 1 // 0.1 is 9
        return computed(call, "floor_divide", x, y)
    ratio = computed(call, "divide", x, y)
    return f("trunc")(ratio) if rounding_mode == "trunc" else ratio


def _divided(call: Call, x: Term, y: Term) -> tuple[Tensor, Tensor]:
    """Operands; raises for integers by what may be 0, where PyTorch raises."""
    if not is_float(to_numpy(call.dtype)) and (isinstance(y, Tensor) or int(y) == 0):
        raise UnsupportedError("of integers by a tensor, whose zeros are errors of PyTorch's")
    return both(call, x, y)


@handles("aten.eq", "aten.ne", "aten.lt", "aten.le", "aten.gt", "aten.ge")
def compare(call: Call, x: Term, y: Term) -> Tensor:
    dtype = promoted(call)
    if dtype == "bool":
        dtype = "i32"
    return emit(call.name, operand(call, x, dtype), operand(call, y, dtype))


@handles("aten.pow.Tensor_Scalar")
def pow_scalar(call: Call, x: Tensor, exponent: float) -> Tensor:
    x = cast(x, call.dtype)
    if not is_float(x.dtype) and exponent in (2, 3):
        return emit("mul", x if exponent == 2 else emit("mul", x, x), x)
    floats_only(call)
    if exponent == 2:
        return emit("sqr", x)
    if 2 * exponent == int(2 * exponent) and abs(exponent) <= 8:
        e = int(exponent) if exponent == int(exponent) else float(exponent)
        return emit("pow", x, exponent=e)
    return emit("power", x, call.const(exponent))


@handles("aten.clamp", "aten.hardtanh.default")
def clamp(call: Call, x: Tensor, low: Term | None = None, high: Term | None = None) -> Tensor:
    if low is None and call.name == "hardtanh":
        low, high = -1.0, 1.0
    bounds = (v if v is None else operand(call, v, call.dtype) for v in (low, high))
    return f("clip")(cast(x, call.dtype), *bounds)


@handles(*_aten("atan asin acos atanh asinh acosh"))
def arc(call: Call, x: Tensor) -> Tensor:
    floats_only(call)
    x = cast(x, call.dtype)
    return cast(f(f"arc{call.name[1:]}")(wide(x) if call.name.endswith("h") else x), call.dtype)


@handles("aten.copysign")
def copysign(call: Call, x: Term, y: Term) -> Tensor:
    x, y = both(floats_only(call), x, y)
    size = emit("abs", x)
    return emit("where", _negative(y), emit("neg", size), size)


def _negative(x: Tensor) -> Tensor:
    """Whether the sign is minus: that of zero shows in its reciprocal."""
    zero = x.builder.const(0, x.dtype)
    below = emit("lt", x, zero)
    if not is_float(x.dtype):
        return below
    inverse = emit("div", x.builder.const(1, x.dtype), x)
    return emit("or", below, emit("and", emit("eq", x, zero), emit("lt", inverse, zero)))


@handles("aten.angle.default")
def angle(call: Call, x: Tensor) -> Tensor:
    """Of a real number 0 or π."""
    x = cast(x, call.dtype)
    return f("where")(f("isnan")(x), x, f("where")(x < 0, call.const(math.pi), call.const(0)))


@handles("aten.binary_cross_entropy.default")
def binary_cross_entropy(
    call: Call, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """Of probabilities; their logarithms are no less than −100."""
    x = wide(x)
    zero, one, least = (x.builder.const(c, x.dtype) for c in (0, 1, -100))
    call.require(emit("and", emit("ge", x, zero), emit("le", x, one)))
    yes, no = (emit("max", log, least) for log in (emit("log", x), emit("log1p", -x)))
    loss = (target - one) * no - target * yes
    loss = cast(loss if weight is None else loss * weight, call.dtype)
    how = (None, "mean", "sum")[reduction]
    return loss if how is None else cast(reduced(how, wide(loss), axes_of(loss, None), False),
                                         call.dtype)  # fmt: skip


handles.table({
    "aten.gelu.default": lambda call, x, *, approximate="none":
        emit("gelu_tanh" if approximate == "tanh" else "gelu", x),
    "aten.leaky_relu.default": lambda call, x, slope=0.01:
        emit("where", emit("gt", x, call.const(0)), x, computed(call, "multiply", x, slope)),
    "aten.where.self": lambda call, c, x, y:
        emit("where", cast(c, "bool"), *both(call, x, y)),
    "aten.isnan.default aten.isinf.default": lambda call, x: f(call.name)(x),
    "aten.logical_and.default aten.logical_or.default aten.logical_xor.default":
        lambda call, x, y: f(call.name)(operand(call, x, "bool"), operand(call, y, "bool")),
    "aten.logical_not.default": lambda call, x: emit("not", cast(x, "bool")),
    "aten.bitwise_and aten.bitwise_or aten.bitwise_xor aten.bitwise_not.default":
        lambda call, *operands: integers.bitwise(call.name.removeprefix("bitwise_"), *operands),
    "aten.remainder": lambda call, x, y: emit("mod", *_divided(call, x, y)),
    "aten.fmod": lambda call, x, y: integers.trunc_remainder(*_divided(call, x, y)),
    "aten.round.decimals": lambda call, x, *, decimals=0:
        cast(f("round")(wide(operand(floats_only(call), x, call.dtype)), decimals), call.dtype),
    "aten._to_copy.default": lambda call, x, **_: cast(x, call.dtype),
    "aten.atan2.default": lambda call, y, x: emit("atan2", *both(call, y, x)),
    "aten.mul.Tensor aten.mul.Scalar": lambda call, x, y:
        computed(call, "logical_and" if call.dtype == "bool" else "multiply", x, y),
    "aten.maximum.default aten.minimum.default aten.fmax.default aten.fmin.default":
        lambda call, x, y: f(call.name)(*both(call, x, y)),
    "aten.pow.Tensor_Tensor aten.pow.Scalar": lambda call, x, y:
        emit("power", *both(floats_only(call), x, y)),
    "aten.signbit.default": lambda call, x:
        call.graph.const(0, "bool", x.shape) if x.dtype == np.bool_ else _negative(x),
    "aten.hypot.default": lambda call, x, y: cast(f("hypot")(wide(x), wide(y)), call.dtype),
    "aten.copy.default": lambda call, x, source, *_:
        f("broadcast_to")(cast(source, call.dtype), list(x.shape)),
})  # fmt: skip
