"""Builds a Graph from a graph of ATen operators, for given shapes of its inputs.

Integers (sizes, and what is computed from them) are Python's while walking, so that a graph with
symbolic sizes is imported once for each set of extents.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from tessera.errors import Error, UnsupportedError
from tessera.graph import Graph, Tensor
from tessera.ops import operands
from tessera.types import DTYPES

Handler = Callable[..., Any]
H = TypeVar("H", bound=Handler)
HANDLERS: dict[str, Handler] = {}
# Operators that only move elements: a part that has nothing else is left to views of PyTorch.
MOVES: set[str] = set()
_SCALARS = {
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod,
    operator.neg, operator.pow, max, min,
}  # fmt: skip
_NAMES = {f"torch.{dtype.name}": name for name, dtype in DTYPES.items()}


def handles(*names: str, moves: bool = False) -> Callable[[H], H]:
    """Registers what imports these operators, by name: "aten.add.Tensor", or "aten.add" for all
    overloads. It is called with a Call and the operator's own arguments."""

    def register(handler: H) -> H:
        for name in names:
            HANDLERS[name] = handler
            if moves:
                MOVES.add(name)
        return handler

    return register


def dtype_of(dtype: Any) -> str:
    """Tessera's name of a torch dtype."""
    name = _NAMES.get(str(dtype))
    if name is None:
        raise UnsupportedError(f"{dtype} is not a dtype of programs")
    return name


def operator_name(target: Any) -> str:
    """ "aten.add.Tensor" of an OpOverload, else the function's own name."""
    return str(target) if hasattr(target, "overloadpacket") else getattr(target, "__name__", "?")


def handler_of(target: Any) -> Handler | None:
    """What imports an operator; None where nothing does."""
    from tessera.frontends.torch import (  # register the handlers
        further,
        operators,
        order,
        pooling,
        recurrent,
        scattering,
        structure,
    )

    del further, operators, order, pooling, recurrent, scattering, structure
    name = operator_name(target)
    return HANDLERS.get(name) or HANDLERS.get(name.rpartition(".")[0])


def only_moves(target: Any) -> bool:
    """Whether an operator computes nothing."""
    name = operator_name(target)
    return name in MOVES or name.rpartition(".")[0] in MOVES or target is operator.getitem


def is_scalar_function(target: Any) -> bool:
    """Whether it computes sizes from sizes."""
    return target in _SCALARS or operator_name(target).startswith("aten.sym_")


_ROUNDING = {f"aten.{name}" for name in (
    "floor", "ceil", "round", "trunc", "frac", "sign", "remainder", "fmod", "floor_divide",
    "div.Tensor_mode", "div.Scalar_mode",
)}  # fmt: skip


class Call:
    """What a handler may ask about the operator it imports."""

    def __init__(self, graph: Graph, node: Any, checks: list[Tensor] | None = None) -> None:
        self.graph = graph
        self.node = node
        self._checks = [] if checks is None else checks

    def require(self, flags: Tensor) -> None:
        """PyTorch runs the part where one of these is false: it refuses such operands, or what it
        makes of them is not known."""
        self._checks.append(flags)

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

    def const(self, value: Any, dtype: str | None = None) -> Tensor:
        return self.graph.const(value, dtype or self.dtype)


def run_node(
    graph: Graph, node: Any, args: Sequence[Any], kwargs: dict[str, Any],
    checks: list[Tensor] | None = None,
) -> Any:  # fmt: skip
    """Imports one operator, its operands being Tensors, numbers and lists of them; `checks`: learns
    of what it requires."""
    target = node.target
    if target is operator.getitem:
        value = args[0][args[1]]
        if value is None:
            raise UnsupportedError(f"result {args[1]} of it is not supported")
        return value
    if not any(isinstance(a, Tensor) for a in args) and is_scalar_function(target):
        return target(*args, **kwargs)
    if operator_name(target).startswith("aten.sym_size"):
        return args[0].shape[args[1]]
    handler = handler_of(target)
    if handler is None:
        raise UnsupportedError("there is no program for this operator yet")
    made = handler(Call(graph, node, checks), *args, **kwargs)
    if made is None:
        raise UnsupportedError("not in this form")
    return made


def resolve(value: Any, values: dict[Any, Any]) -> Any:
    """An operator's argument with nodes replaced by what they stand for."""
    if isinstance(value, (list, tuple)):
        return [resolve(v, values) for v in value]
    if isinstance(value, slice):
        return slice(*(resolve(v, values) for v in (value.start, value.stop, value.step)))
    if hasattr(value, "op") and hasattr(value, "users"):
        return values[value]
    return value


def build(
    module: Any, inputs: Sequence[Any], weights: Sequence[bool], name: str,
    extents: Sequence[tuple[Any, int]] = (),
) -> tuple[Graph, list[Any]]:  # fmt: skip
    """The program of a graph module; `inputs`: (dtype, shape) of tensors, or numbers. `extents`:
    Paddings with the sizes in `inputs`; each has a further input, which of the places exist.

    Also its results: per result an index into the program's outputs, ("input", i) or a number.
    Where operators require something of values, the last output is no result: 0 where it is not so.
    Raises UnsupportedError that names the operator.
    """
    graph = Graph(name)
    values: dict[Any, Any] = {}
    given = iter(zip(inputs, weights, strict=True))
    results: list[Any] = []
    checks: list[Tensor] = []
    for node in module.graph.find_nodes(op="placeholder"):
        value, weight = next(given)
        if isinstance(value, tuple):
            dtype, shape = value
            value = graph.input(f"x{len(values)}", shape, dtype, weight=weight)
        values[node] = value
    valid = [graph.input(f"valid{i}", [n], "bool") for i, (_, n) in enumerate(extents)]
    for node in module.graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            made = node.args[0]
            results = list(made) if isinstance(made, (list, tuple)) else [made]
        elif node.op == "call_function":
            args = [resolve(a, values) for a in node.args]
            kwargs = {k: resolve(v, values) for k, v in node.kwargs.items()}
            for (padding, _), seen in zip(extents, valid, strict=True):
                args, kwargs = padding.operands(graph, node, args, kwargs, seen)
            try:
                values[node] = run_node(graph, node, args, kwargs, checks)
            except Error as error:
                raise UnsupportedError(f"{operator_name(node.target)}: {error.message}") from None
        else:
            raise UnsupportedError(f"{node.op} {node.target}")
    made = [_output(graph, values[n], n) for n in results]
    _output_checks(graph, checks)
    return graph, made


def _output_checks(graph: Graph, checks: Sequence[Tensor]) -> None:
    """Makes an output of whether all hold; those of constants are as in PyTorch's first run."""
    given: set[int] = set()
    for op in graph.ops if checks else ():
        if op["op"] == "input" or not given.isdisjoint(op["inputs"]):
            given.update(op["results"])
    flags = [operands.cast(c, np.int32) for c in checks if c.id in given]
    flags = [operands.reduced("reduce_min", c, range(c.ndim), False) if c.ndim else c
             for c in flags]  # fmt: skip
    if flags:
        graph.output(functools.reduce(functools.partial(operands.emit, "min"), flags))


def _output(graph: Graph, value: Any, node: Any) -> Any:
    """Makes a value an output, its memory as PyTorch would have it (a permutation of axes)."""
    if not isinstance(value, Tensor):
        return value
    order = memory_order(node.meta["val"])
    if order != list(range(len(order))):
        value = graph.transpose(value, order)
    if value.is_input or value.id in graph.core.outputs:
        # An output of its own: an operator that copies.
        value = graph.reshape(graph.reshape(value, [*value.shape, 1]), value.shape)
        if value.is_input or value.id in graph.core.outputs:
            raise UnsupportedError("a result that is an argument")
    graph.output(value)
    return ("out", len(graph.core.outputs) - 1, order)


def memory_order(value: Any) -> list[int]:
    """Axes of a tensor from the outermost in memory to the innermost, where it has no gaps."""
    shape, strides = concrete(value.shape), concrete(value.stride())
    order = sorted(range(len(shape)), key=lambda i: (-strides[i], i))
    expected = 1
    for i in reversed(order):
        if shape[i] != 1:
            if strides[i] != expected:
                return list(range(len(shape)))
            expected *= shape[i]
    rank = [i for i in order if shape[i] != 1]
    return order if rank != sorted(rank) else list(range(len(shape)))


def concrete(sizes: Sequence[Any]) -> list[int]:
    """Extents as numbers: of symbols the example's."""
    return [s if isinstance(s, int) else int(s.node.hint) for s in sizes]
