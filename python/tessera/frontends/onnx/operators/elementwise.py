"""Element by element: arithmetic, activations, comparisons, conversions."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from tessera import ops, tensor
from tessera.frontends.onnx.node import SAME, Node, Value, handles, handles_first
from tessera.frontends.onnx.reader import dtype_of
from tessera.ops import integers, operands
from tessera.tensor import Tensor
from tessera.types import is_float

# A function of tensors by its NumPy name.
f: Callable[[str], Callable[..., Tensor]] = ops.function
emit, iota = operands.emit, operands.iota


def number(like: Tensor, value: float) -> Tensor:
    """A constant of a tensor's dtype: a float attribute has the precision of f32."""
    return like.builder.const(
        float(np.float32(value)) if is_float(like.dtype) else value, like.dtype
    )


def bits(x: Tensor) -> Tensor:
    """Truths as integers, which have operators that they lack."""
    return f("astype")(x, np.int32) if x.dtype == np.bool_ else x


def channels(x: Tensor, v: Tensor) -> Tensor:
    """A value per channel beside a tensor [N, C, …]."""
    return f("reshape")(v, [v.shape[0], *[1] * (x.ndim - 2)]) if x.ndim > 2 else v


def aligned(node: Node) -> list[Tensor]:
    """Operands; in opset 6, `broadcast` and `axis` say where the second one's axes lie."""
    x, *others = node.all()
    if node.opset < 7 and others and node.attr("broadcast", 0) and node.has_attr("axis"):
        (y,) = others
        behind = x.ndim - int(node.attr("axis")) % max(1, x.ndim) - y.ndim
        others = [f("reshape")(y, [*y.shape, *[1] * max(0, behind)])]
    return [x, *others]


def _same(op: str) -> Callable[[Node], Tensor]:
    return lambda node: emit(op, *aligned(node))


def _function(name: str) -> Callable[[Node], Tensor]:
    return lambda node: f(name)(node.x())


handles.table({
    **{name: _same(op) for op, name in SAME.items()},
    **{name: _function(name.lower()) for name in ("Ceil", "Reciprocal")},
    "Identity": lambda node: node.value(0),
    "Xor": lambda node: emit("ne", *node.all()),
    "IsNaN": lambda node: emit("ne", node.x(), node.x()),
    "BitwiseNot": lambda node: emit("sub", emit("neg", node.x()), number(node.x(), 1)),
    "Gelu": lambda node: emit(
        "gelu_tanh" if node.attr("approximate", "none") == "tanh" else "gelu", node.x()),
})  # fmt: skip


handles.table({
    **{name: _function(name.lower()) for name in ("Cosh", "Sinh", "Tan")},
    **{f"A{name}": _function(f"arc{name}")
       for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")},
}, in_f32=True)  # fmt: skip


@handles("Div")
def div(node: Node) -> Tensor:
    x, y = aligned(node)
    return emit("div", x, y) if is_float(x.dtype) else integers.trunc_divide(x, y)


@handles("Mod")
def mod(node: Node) -> Tensor:
    x, y = node.all()
    return integers.trunc_remainder(x, y) if node.attr("fmod", 0) else emit("mod", x, y)


@handles_first("Pow")
def power(node: Node, x: Tensor) -> Tensor | None:
    exponent = node.value(1)
    if isinstance(exponent, np.ndarray) and exponent.size == 1:
        e = float(exponent.reshape(-1)[0])
        if e % 1 == 0 and (is_float(x.dtype) or e >= 0) and abs(e) <= 64:
            r = emit("pow", x, exponent=int(e))
            return f("broadcast_to")(r, [1] * (exponent.ndim - x.ndim) + list(x.shape))
        if is_float(x.dtype) and e % 0.5 == 0 and abs(e) <= 8:
            return emit("pow", x, exponent=e)
    y = node.x(1)
    if is_float(x.dtype):
        return emit("power", x, f("astype")(y, x.dtype))
    wide = emit("power", f("astype")(x, np.float64), f("astype")(y, np.float64))
    return f("astype")(f("round")(wide) if not is_float(y.dtype) else wide, x.dtype)


@handles("Max", "Min", "Sum", "Mean")
def variadic(node: Node) -> Tensor:
    op = {"Max": "max", "Min": "min"}.get(node.proto.op_type, "add")
    terms = node.all()
    if not terms:
        raise node.bad("has no operands")
    result = functools.reduce(functools.partial(emit, op), terms)
    if node.proto.op_type == "Mean":
        result = emit("div", result, number(result, len(terms)))
    return result


@handles_first("Clip")
def clip(node: Node, x: Tensor) -> Tensor:
    low = node.x(1) if node.has(1) else None
    high = node.x(2) if node.has(2) else None
    if node.opset < 11:
        low = number(x, node.attr("min", 0.0)) if node.has_attr("min") else None
        high = number(x, node.attr("max", 0.0)) if node.has_attr("max") else None
    return x if low is None and high is None else f("clip")(x, low, high)


@handles("Cast")
def cast(node: Node) -> Value:
    to = dtype_of(node.require_attr("to"), "the result of a Cast", node.importer.where)
    return tensor.cast(node.x(), to)


@handles_first("IsInf")
def is_inf(node: Node, x: Tensor) -> Tensor:
    signs = [
        emit("eq", x, x.builder.const(value, x.dtype))
        for name, value in (("detect_positive", np.inf), ("detect_negative", -np.inf))
        if node.attr(name, 1)
    ]
    if not signs:
        return emit("and", emit("eq", x, x), emit("ne", x, x))
    return functools.reduce(functools.partial(emit, "or"), signs)


@handles("Dropout")
def dropout(node: Node) -> list[Value] | None:
    if node.has(2) and bool(node.known(2, "training_mode").reshape(-1)[0]):
        ratio = node.known(1, "ratio").reshape(-1)[0] if node.has(1) else 0.5
        if ratio != 0:
            return None  # at random
    results = [node.value(0)]
    if node.num_outputs > 1:
        results.append(node.graph.const(True, np.bool_, node.shape()))
    return results


# --- activations


def _between(x: Tensor) -> Tensor:
    return emit("max", number(x, 0), emit("min", number(x, 1), x))


def softplus(x: Tensor) -> Tensor:
    return f("relu")(x) + f("log1p")(f("exp")(-f("abs")(x)))


# By name: the function of a tensor and its parameters alpha and beta, and their defaults; for nodes
# and recurrent layers.
ACTIVATIONS: dict[str, tuple[Callable[..., Tensor], float | None, float | None]] = {
    "LeakyRelu": (lambda x, a, b: f("where")(x < 0, x * a, x), 0.01, 0.0),
    "ThresholdedRelu": (lambda x, a, b: emit("where", emit("gt", x, a), x, number(x, 0)), 1.0, 0.0),
    "Elu": (lambda x, a, b: f("where")(x < 0, f("expm1")(x) * a, x), 1.0, 0.0),
    "HardSigmoid": (lambda x, a, b: _between(x * a + b), 0.2, 0.5),
    "Softsign": (lambda x, a, b: x / (f("abs")(x) + number(x, 1)), 0.0, 0.0),
    "Softplus": (lambda x, a, b: softplus(x), 0.0, 0.0),
    "Selu": (lambda x, a, b: f("where")(x <= 0, b * a * f("expm1")(x), b * x),
             1.67326319217681884765625, 1.05070102214813232421875),
}  # fmt: skip


@handles(*ACTIVATIONS, in_f32=True)
def activation(node: Node) -> Tensor:
    function, alpha, beta = ACTIVATIONS[node.proto.op_type]
    x, second = node.x(), "gamma" if node.proto.op_type == "Selu" else "beta"
    return function(x, *(number(x, node.attr(n, d)) for n, d in (("alpha", alpha), (second, beta))))


@handles("PRelu")
def prelu(node: Node) -> Tensor:
    x, slope = node.all()
    if node.opset < 7 and slope.ndim == 1 and slope.shape[0] > 1:  # one per channel
        slope = channels(x, slope)
    return emit("where", emit("lt", x, number(x, 0)), emit("mul", x, slope), x)


@handles("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bitwise_with_constant(node: Node) -> Tensor | None:
    known = [v for v in node.operands if isinstance(v, np.ndarray) and v.size == 1]
    others = [i for i, v in enumerate(node.operands) if not isinstance(v, np.ndarray)]
    if len(known) != 1 or len(others) != 1:
        return None
    name = node.proto.op_type.removeprefix("Bitwise").lower()
    y = integers.bitwise(name, node.x(others[0]), int(known[0].reshape(-1)[0]))
    return f("broadcast_to")(y, np.broadcast_shapes(y.shape, known[0].shape))


@handles("BitShift")
def bit_shift(node: Node) -> Tensor:
    """x · 2^y or ⌊x / 2^y⌋; by the width or more (or by a negative number) as NumPy: all bits
    leave."""
    x, y = node.all()
    bits = 8 * x.dtype.itemsize
    left = node.attr("direction", "") == "LEFT"
    low = x.dtype.type(0)
    beyond = f("logical_or")(y < low, y >= y.dtype.type(bits))
    powers = np.array([1], x.dtype) << np.arange(bits).astype(x.dtype)
    at = f("astype")(f("where")(beyond, low, y), np.int64)
    power = emit("gather", node.importer.tensor(powers, "powers of two"), at, axis=0)
    if left:
        return f("where")(beyond, low, x * power)
    sign = f("where")(x < low, -x.dtype.type(1), low) if x.dtype.kind == "i" else low
    if x.dtype.kind == "i":  # 2^(bits - 1) is no number of the type
        beyond = f("logical_or")(beyond, emit("eq", at, at.builder.const(bits - 1, np.int64)))
    quotient = integers.floor_divide(x, f("where")(beyond, x.dtype.type(1), power))
    return f("where")(beyond, sign, quotient)
