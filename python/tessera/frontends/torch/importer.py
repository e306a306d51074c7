"""Builds a Graph from a graph of ATen operators, for given shapes of its inputs.

Integers (sizes, and what is computed from them) are Python's while walking, so that a graph with
symbolic sizes is imported once for each set of extents.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.errors import Error, UnsupportedError
from tessera.frontends.torch import (  # noqa: F401 (register the handlers)
    indexing,
    pointwise,
    pooling,
    products,
    recurrent,
    reductions,
    scattering,
    sorting,
    structure,
)
from tessera.frontends.torch.call import (
    Call,
    emit,
    handles,
    is_scalar_function,
    memory_order,
    operator_name,
    reduced,
)
from tessera.graph import Graph
from tessera.tensor import Tensor, cast
from tessera.types import Function, Values

if TYPE_CHECKING:
    from torch.fx import Graph as FxGraph
    from torch.fx import GraphModule, Node
    from torch.fx.node import Argument, Target

    from tessera.frontends.torch.padding import Padding


# What an operator's result is: a tensor, several, or a number.
Result = Any
# What a result of a program is: ("out", the output, its order of axes), or a number.
Output = Any


def handler_of(target: Target) -> Function | None:
    """What imports an operator; None where nothing does."""
    name = operator_name(target)
    return handles.get(name) or handles.get(name.rpartition(".")[0])


def run_node(
    graph: Graph, node: Node, values: Mapping[Node, Result], checks: list[Tensor] | None = None,
    paddings: Sequence[tuple[Padding, Tensor]] = (),
) -> Result:  # fmt: skip
    """Imports one operator, or what it consists of, nodes having `values`: Tensors, numbers and
    lists of them; `checks`: learns of what it requires."""
    target = node.target
    if "inside" in node.meta:
        aten = node.meta["inside"].graph
        given = [values[n] for n in node.all_input_nodes]
        inner = dict(zip(aten.find_nodes(op="placeholder"), given, strict=True))
        return resolve(_walk(graph, aten, inner, checks), inner)
    args = [resolve(a, values) for a in node.args]
    kwargs = {k: resolve(v, values) for k, v in node.kwargs.items()}
    for padding, seen in paddings:
        args, kwargs = padding.operands(graph, node, args, kwargs, seen)
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
    if any(isinstance(a, float) and repr(a) == "-0.0" for a in (*args, *kwargs.values())):
        raise UnsupportedError("programs have no constant -0.0")
    made = handler(Call(graph, node, checks), *args, **kwargs)
    if made is None:
        raise UnsupportedError("not in this form")
    return made


def resolve(value: Argument, values: Mapping[Node, Result]) -> Result:
    """An operator's argument with nodes replaced by what they stand for."""
    if isinstance(value, (list, tuple)):
        return [resolve(v, values) for v in value]
    if isinstance(value, slice):
        return slice(*(resolve(v, values) for v in (value.start, value.stop, value.step)))
    if hasattr(value, "op") and hasattr(value, "users"):
        return values[value]
    return value


def build(
    module: GraphModule, inputs: Values, weights: Sequence[bool], name: str,
    extents: Sequence[tuple[Padding, int]] = (), orders: Values = (),
) -> tuple[Graph, list[Output]]:  # fmt: skip
    """The program of a graph module; `inputs`: (dtype, shape) of tensors, or numbers. `extents`:
    Paddings with the sizes in `inputs`; each has a further input, which of the places exist.
    `orders`: of the axes of results in memory, where that is known better than by the graph.

    Also its results: per result an index into the program's outputs, ("input", i) or a number.
    Where operators require something of values, the last output is no result: 0 where it is not so.
    Raises UnsupportedError that names the operator.
    """
    graph = Graph(name)
    values: dict[Node, Result] = {}
    checks: list[Tensor] = []
    nodes = module.graph.find_nodes(op="placeholder")
    for node, value, weight in zip(nodes, inputs, weights, strict=True):
        if isinstance(value, tuple):
            dtype, shape = value
            value = graph.input(f"x{len(values)}", shape, dtype, weight=weight)
        values[node] = value
    paddings = [(p, graph.input(f"valid{i}", [n], "bool")) for i, (p, n) in enumerate(extents)]
    made = _walk(graph, module.graph, values, checks, paddings)
    results = list(made) if isinstance(made, (list, tuple)) else [made]
    orders = orders or [memory_order(n.meta["val"]) for n in results]
    outputs = [_output(graph, values[n], o) for n, o in zip(results, orders, strict=True)]
    _output_checks(graph, checks)
    return graph, outputs


def _walk(
    graph: Graph, aten: FxGraph, values: dict[Node, Result], checks: list[Tensor] | None,
    paddings: Sequence[tuple[Padding, Tensor]] = (),
) -> Argument:  # fmt: skip
    """Imports the operators of a graph, whose inputs have `values`; what it returns."""
    for node in aten.nodes:
        if node.op == "call_function":
            try:
                values[node] = run_node(graph, node, values, checks, paddings)
            except Error as error:
                raise UnsupportedError(f"{operator_name(node.target)}: {error.message}") from None
        elif node.op not in ("placeholder", "output"):
            raise UnsupportedError(f"{node.op} {node.target}")
    (output,) = aten.find_nodes(op="output")
    return output.args[0]


def _output_checks(graph: Graph, checks: Sequence[Tensor]) -> None:
    """Makes an output of whether all hold; those of constants are as in PyTorch's first run."""
    given: set[int] = set()
    for op in graph.ops if checks else ():
        if op["op"] == "input" or not given.isdisjoint(op["inputs"]):
            given.update(op["results"])
    flags = [cast(c, np.int32) for c in checks if c.id in given]
    flags = [reduced("reduce_min", c, range(c.ndim), False) if c.ndim else c for c in flags]
    if flags:
        graph.output(functools.reduce(functools.partial(emit, "min"), flags))


def _output(graph: Graph, value: Result, axes: list[int] | None) -> Output:
    """Makes a value an output, its axes in this order in memory."""
    if not isinstance(value, Tensor) or axes is None:
        return value
    if axes != list(range(len(axes))):
        value = graph.transpose(value, axes)
    if value.is_input or value.id in graph.core.outputs:
        # An output of its own: an operator that copies.
        value = graph.reshape(graph.reshape(value, [*value.shape, 1]), value.shape)
        if value.is_input or value.id in graph.core.outputs:
            raise UnsupportedError("a result that is an argument")
    graph.output(value)
    return ("out", len(graph.core.outputs) - 1, axes)
