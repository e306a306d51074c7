"""Operators of ATen as what imports them sees them: `handles` registers a handler, which is given a
`Call` and the operator's own arguments."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tessera import ops, tensor
from tessera.errors import UnsupportedError
from tessera.frontends.handlers import Handlers
from tessera.graph import Graph
from tessera.ops import operands
from tessera.tensor import Tensor, Term
from tessera.types import DTYPES, Axes, Sides, is_float, to_numpy

if TYPE_CHECKING:
    import torch
    from torch.fx import Node
    from torch.fx.node import Argument, Target
    from torch.types import IntLikeType

# A function of tensors by its NumPy name.
f: Callable[[str], Callable[..., Tensor]] = ops.function
emit, iota, reduced, wide = operands.emit, operands.iota, operands.reduced, operands.wide
# By name: "aten.add.Tensor", or "aten.add" for all overloads. They are called with a Call and the
# operator's own arguments.
handles = Handlers()
# Operators that only move elements: a part that has nothing else is left to views of PyTorch.
MOVES = handles.marked["moves"]
_SCALARS = {
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod,
    operator.neg, operator.pow, max, min,
}  # fmt: skip
_NAMES = {f"torch.{dtype.name}": name for name, dtype in DTYPES.items()}


def dtype_of(dtype: torch.dtype) -> str:
    """Tessera's name of a torch dtype."""
    name = _NAMES.get(str(dtype))
    if name is None:
        raise UnsupportedError(f"{dtype} is not a dtype of programs")
    return name


def operator_name(target: Target) -> str:
    """ "aten.add.Tensor" of an OpOverload, else the function's own name."""
    return str(target) if hasattr(target, "overloadpacket") else getattr(target, "__name__", "?")


def only_moves(target: Target) -> bool:
    """Whether an operator computes nothing."""
    name = operator_name(target)
    return (name in MOVES or name.rpartition(".")[0] in MOVES or target is operator.getitem
            or name in ("aten.empty_strided.default", "aten.copy_.default"))  # fmt: skip


def is_scalar_function(target: Target) -> bool:
    """Whether it computes sizes from sizes."""
    return target in _SCALARS or operator_name(target).startswith("aten.sym_")


_ROUNDING = {f"aten.{name}" for name in (
    "floor", "ceil", "round", "trunc", "frac", "sign", "remainder", "fmod", "floor_divide",
    "div.Tensor_mode", "div.Scalar_mode",
)}  # fmt: skip


class Call:
    """What a handler may ask about the operator it imports."""

    def __init__(self, graph: Graph, node: Node, checks: list[Tensor] | None = None) -> None:
        self.graph = graph
        self.node = node
        self._checks = [] if checks is None else checks

    def require(self, flags: Tensor) -> None:
        """PyTorch runs the part where one of these is false: it refuses such operands, or what it
        makes of them is not known."""
        self._checks.append(flags)

    @property
    def name(self) -> str:
        """Of the operator: "max" of aten.max.dim."""
        return operator_name(self.node.target).split(".")[1]

    @property
    def dtype(self) -> str:
        """The dtype of the (first) result."""
        value = self.node.meta["val"]
        return dtype_of(value[0].dtype if isinstance(value, (tuple, list)) else value.dtype)

    def wants(self, i: int) -> bool:
        """Whether result i of several is used."""
        return any(u.target is operator.getitem and u.args[1] == i and u.users
                   for u in self.node.users)  # fmt: skip

    def decides(self) -> bool:
        """Whether what follows is rounded to whole numbers, compared, or cast to integers."""
        seen, ahead = set(), [*self.node.users]
        while ahead:
            node = ahead.pop()
            if node.op != "call_function" or node in seen:
                continue
            seen.add(node)
            value = node.meta.get("val")
            name = operator_name(node.target)
            if {name, name.rpartition(".")[0]} & _ROUNDING or (
                hasattr(value, "dtype") and not value.dtype.is_floating_point
            ):
                return True
            ahead += node.users
        return False

    def const(self, value: float, dtype: str | None = None) -> Tensor:
        kind = to_numpy(dtype or self.dtype)
        return self.graph.const(_held(value, kind), kind)


def memory_order(value: Argument) -> list[int] | None:
    """Axes of a tensor from the outermost in memory to the innermost, as they are where it has
    gaps; None of what is no tensor."""
    if not hasattr(value, "stride"):
        return None
    shape, strides = concrete(value.shape), concrete(value.stride())
    order = sorted(range(len(shape)), key=lambda i: (-strides[i], shape[i] == 1, i))
    expected = 1
    for i in reversed(order):
        if shape[i] != 1 and strides[i] != expected:
            return list(range(len(shape)))
        expected *= shape[i]
    return order


def concrete(sizes: Sequence[IntLikeType]) -> list[int]:
    """Extents as numbers: of symbols the example's."""
    return [s if isinstance(s, int) else int(s.node.hint) for s in sizes]


# --- operands
def cast(x: Tensor, dtype: str) -> Tensor:
    """As PyTorch converts: to bool by comparison with 0."""
    if is_float(x.dtype) and dtype in ("i8", "u8"):
        x = tensor.cast(x, np.int32)
    return tensor.cast(x, to_numpy(dtype))


def operand(call: Call, value: Term, dtype: str) -> Tensor:
    return cast(value, dtype) if isinstance(value, Tensor) else call.const(value, dtype)


def both(call: Call, x: Term, y: Term) -> tuple[Tensor, Tensor]:
    """Two operands in the dtype of the result."""
    return operand(call, x, call.dtype), operand(call, y, call.dtype)


def _held(value: float, kind: np.dtype[np.generic]) -> float:
    """A number as a dtype of 16 bits holds it; in others it is what it is."""
    if not is_float(kind) or kind.itemsize != 2:
        return value
    with np.errstate(over="ignore"):
        return float(kind.type(value))


def computed(call: Call, function: str, x: Term, y: Term) -> Tensor:
    """A product or quotient in the dtype of the result, by its NumPy name. PyTorch takes factors
    that 16 bits do not hold in f32."""
    kind = to_numpy(call.dtype)
    wide = any(not isinstance(v, Tensor) and _held(v, kind) != v for v in (x, y))
    sides = (cast(v, call.dtype) if isinstance(v, Tensor) else v for v in (x, y))
    made = f(function)(*(operand(call, v, "f32" if wide else call.dtype) for v in sides))
    return cast(made, call.dtype)


def promoted(call: Call) -> str:
    """The dtype in which two operands are compared."""
    import torch

    values = [a.meta["val"] if hasattr(a, "meta") else a for a in call.node.args[:2]]
    return dtype_of(torch.result_type(*values))


def floats_only(call: Call) -> Call:
    if not is_float(to_numpy(call.dtype)):
        raise UnsupportedError("of integers it is left to PyTorch")
    return call


def axes_of(x: Tensor, dims: Axes) -> list[int]:
    if dims is None or (isinstance(dims, list) and not dims):
        return list(range(x.ndim))
    dims = [dims] if isinstance(dims, int) else dims
    return sorted(d % max(1, x.ndim) for d in dims) if x.ndim else []


def pairs(values: Sides, n: int) -> list[int]:
    values = [values] if isinstance(values, int) else list(values)
    return [int(v) for v in (values * n if len(values) == 1 else values)]
