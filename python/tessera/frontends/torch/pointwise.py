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


@handles("aten.logical_not.default", "aten.bitwise_not.default")
def logical_not(call: Call, x: Tensor) -> Tensor:
    if call.name == "logical_not":
        return emit("not", cast(x, "bool"))
    if x.dtype == np.bool_:
        return emit("not", x)
    if x.dtype == np.uint8:
        raise UnsupportedError("of u8 it is left to PyTorch")
    return emit("sub", emit("neg", x), x.builder.const(1, x.dtype))


def _scaled(call: Call, y: Term, alpha: float) -> Tensor:
    y = operand(call, y, call.dtype)
    return y if alpha == 1 else emit("mul", y, call.const(alpha))


@handles("aten.add.Tensor", "aten.add.Scalar")
def add(call: Call, x: Term, y: Term, alpha: float = 1) -> Tensor:
    if call.dtype == "bool":
        return emit("or", *both(call, x, y))
    return emit("add", operand(call, x, call.dtype), _scaled(call, y, alpha))


@handles("aten.div", "aten.true_divide", "prims.div.default")
def div(call: Call, x: Term, y: Term, *, rounding_mode: str | None = None) -> Tensor:
    if not is_float(to_numpy(call.dtype)):
        if isinstance(y, Tensor) or int(y) == 0 or rounding_mode is None:
            raise UnsupportedError("of integers by a tensor, whose zeros are errors of PyTorch's")
        x, y = operand(call, x, call.dtype), call.const(y)
        if rounding_mode == "floor":
            return f("floor_divide")(x, y)
        return integers.trunc_divide(x, y)
    if rounding_mode == "floor":  # by C's remainder, as NumPy: 1 // 0.1 is 9
        return computed(call, "floor_divide", x, y)
    ratio = computed(call, "divide", x, y)
    return f("trunc")(ratio) if rounding_mode == "trunc" else ratio


def extremum(largest: bool, x: Tensor, y: Tensor) -> Tensor:
    """Of two, of truths too."""
    if x.dtype == np.bool_:
        return emit("or" if largest else "and", x, y)
    return emit("max" if largest else "min", x, y)


@handles("aten.eq", "aten.ne", "aten.lt", "aten.le", "aten.gt", "aten.ge")
def compare(call: Call, x: Term, y: Term) -> Tensor:
    dtype = promoted(call)
    if dtype == "bool":
        dtype = "i32"
    return emit(call.name, operand(call, x, dtype), operand(call, y, dtype))


@handles("aten.logical_and.default", "aten.logical_or.default", "aten.logical_xor.default")
def logical(call: Call, x: Term, y: Term) -> Tensor:
    op = {"and": "and", "or": "or", "xor": "ne"}[call.name.split("_")[1]]
    return emit(op, operand(call, x, "bool"), operand(call, y, "bool"))


@handles("aten.bitwise_and", "aten.bitwise_or", "aten.bitwise_xor")
def bitwise(call: Call, x: Term, y: Term) -> Tensor:
    if call.dtype != "bool":
        raise UnsupportedError("of integers it is left to PyTorch")
    return logical(call, x, y)


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
    x = cast(x, call.dtype)
    x = x if low is None else extremum(True, x, operand(call, low, call.dtype))
    return x if high is None else extremum(False, x, operand(call, high, call.dtype))


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


def _divides(call: Call, y: Term) -> None:
    """Raises for integers by what may be 0, where PyTorch raises."""
    if not is_float(to_numpy(call.dtype)) and (isinstance(y, Tensor) or int(y) == 0):
        raise UnsupportedError("of integers by a tensor, whose zeros are errors of PyTorch's")


@handles("aten.remainder")
def remainder(call: Call, x: Term, y: Term) -> Tensor:
    _divides(call, y)
    return emit("mod", *both(call, x, y))


@handles("aten.fmod")
def fmod(call: Call, x: Term, y: Term) -> Tensor:
    """The remainder with the dividend's sign."""
    _divides(call, y)
    return integers.trunc_remainder(*both(call, x, y))


@handles("aten.round.decimals")
def round_to(call: Call, x: Tensor, *, decimals: int = 0) -> Tensor:
    floats_only(call)
    scale = call.const(10.0 ** abs(decimals))
    there, back = ("div", "mul") if decimals < 0 else ("mul", "div")
    return emit(back, emit("round", emit(there, x, scale)), scale)


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
    zero, half = call.const(0), call.const(math.pi)
    return emit("where", emit("ne", x, x), x, emit("where", emit("lt", x, zero), half, zero))


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
    "aten.sub.Tensor aten.sub.Scalar": lambda call, x, y, alpha=1:
        emit("sub", operand(call, x, call.dtype), _scaled(call, y, alpha)),
    "aten.rsub": lambda call, x, y, alpha=1:
        emit("sub", operand(call, y, call.dtype), _scaled(call, x, alpha)),
    "aten.leaky_relu.default": lambda call, x, slope=0.01:
        emit("where", emit("gt", x, call.const(0)), x, computed(call, "multiply", x, slope)),
    "aten.where.self": lambda call, c, x, y:
        emit("where", cast(c, "bool"), *both(call, x, y)),
    "aten.isnan.default": lambda call, x: emit("ne", x, x),
    "aten.isinf.default": lambda call, x: f("isinf")(x),
    "aten.fmax.default": lambda call, x, y: f("fmax")(*both(call, x, y)),
    "aten.fmin.default": lambda call, x, y: f("fmin")(*both(call, x, y)),
    "aten._to_copy.default": lambda call, x, **_: cast(x, call.dtype),
    "aten.atan2.default": lambda call, y, x: emit("atan2", *both(call, y, x)),
    "aten.mul.Tensor aten.mul.Scalar": lambda call, x, y:
        computed(call, "logical_and" if call.dtype == "bool" else "multiply", x, y),
    "aten.maximum.default": lambda call, x, y: extremum(True, *both(call, x, y)),
    "aten.minimum.default": lambda call, x, y: extremum(False, *both(call, x, y)),
    "aten.pow.Tensor_Tensor aten.pow.Scalar": lambda call, x, y:
        emit("power", *both(floats_only(call), x, y)),
    "aten.signbit.default": lambda call, x:
        call.graph.const(0, "bool", x.shape) if x.dtype == np.bool_ else _negative(x),
    "aten.hypot.default": lambda call, x, y: cast(f("hypot")(wide(x), wide(y)), call.dtype),
    "aten.copy.default": lambda call, x, source, *_:
        f("broadcast_to")(cast(source, call.dtype), list(x.shape)),
})  # fmt: skip
