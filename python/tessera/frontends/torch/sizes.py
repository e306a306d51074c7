"""What symbolic sizes of ATen graphs consist of, and which are others at each call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import Argument
from torch.types import IntLikeType

from tessera.frontends.torch.call import operator_name

Size = Any  # a number, or an expression of SymPy over symbols
_RENAMED = {"aten.alias.default", "aten.clone.default", "aten.detach.default", "aten.slice.Tensor"}


def growing(module: torch.fx.GraphModule) -> set[Node]:
    """What has sizes that are others at each call: those of arguments of which a result is a
    concatenation with more, as caches of keys and values are, and numbers that are no size."""
    (output,) = module.graph.find_nodes(op="output")
    results = output.args[0] if isinstance(output.args[0], (list, tuple)) else output.args
    values = [n.meta.get("val") for n in module.graph.find_nodes(op="placeholder")]
    symbols = symbols_of(values) - symbols_of(v for v in values if isinstance(v, torch.Tensor))
    for node in results:
        while isinstance(node, Node) and operator_name(node.target) in _RENAMED:
            node = node.args[0]
        if isinstance(node, Node) and operator_name(node.target) == "aten.cat.default":
            tensors, *dims = node.args
            if tensors[0].op == "placeholder":
                symbols |= symbols_of([tensors[0].meta["val"].shape[dims[0] if dims else 0]])
    return {n for n in module.graph.nodes if n.op == "call_function" and symbols & symbols_of(
        m.meta.get("val") for m in (n, *n.all_input_nodes))}  # fmt: skip


def expression(size: IntLikeType) -> Size:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def sizes_of(value: Argument) -> Iterator[Size]:
    if isinstance(value, torch.Tensor):
        yield from map(expression, value.shape)
    elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        yield value.node.expr
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from sizes_of(v)


def symbols_of(values: Iterable[Argument]) -> set[Size]:
    """All that the sizes of these consist of."""
    return {s for v in values for d in sizes_of(v) for s in getattr(d, "free_symbols", ())}
