"""Chains of operators that work on rows become kernels, so that a row stays in the cache.

A group is a set of element-by-element operators and reductions over the last axis whose values all
have one shape, or one number per row of it. The first member's place is the kernel's: a member may
only read what is there before that place, so no cycle can arise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tessera.graph import Graph, Tensor

_BLOCKS = 32  # blocks of rows per kernel: enough for all threads, few to launch
_REDUCTIONS = {"sum", "mean", "reduce_max", "reduce_min"}
_POINTWISE = {
    "neg", "abs", "sign", "sqr", "sqrt", "rsqrt", "exp", "log", "sin", "cos", "erf", "tanh",
    "sigmoid", "silu", "relu", "gelu", "gelu_tanh", "pow", "floor", "round", "log1p", "expm1",
    "not", "cast", "add", "sub", "mul", "div", "power", "max", "min", "and", "or", "eq", "ne",
    "lt", "le", "gt", "ge", "where",
}  # fmt: skip


@dataclass
class _Group:
    first: int  # place of its first operator
    shape: tuple[int, ...]  # of the values that have all columns
    members: list[int] = field(default_factory=list)


def fuse_rows(graph: Graph) -> Graph:
    """The same program with such groups of two operators or more as kernels."""
    ops = graph.ops
    groups = _groups(graph, ops)
    result = Graph(graph.name)
    to: dict[int, Tensor] = {}
    of = {place: g for g in groups if len(g.members) > 1 for place in g.members}
    for place, op in enumerate(ops):
        group = of.get(place)
        if group is None:
            if op["op"] == "input":
                old = Tensor(graph, op["results"][0])
                to[old.id] = result.input(old.name, old.shape, old.dtype,
                                          weight=bool(op["attrs"].get("weight")))  # fmt: skip
            else:
                made = result.emit(op["op"], [to[i] for i in op["inputs"]], op["attrs"])
                to[op["results"][0]] = made
        elif place == group.first:
            _kernel(graph, ops, group, result, to)
    for output in graph.core.outputs:
        result.output(to[output])
    return result


def _groups(graph: Graph, ops: list[dict[str, Any]]) -> list[_Group]:
    groups: list[_Group] = []
    home: dict[int, _Group] = {}  # by tensor
    ready: dict[int, int] = {}  # by tensor: the place from which it is there
    constants = {op["results"][0] for op in ops if op["op"] == "const"}
    once: set[int] = set()  # what follows from weights alone is computed once, elsewhere
    for place, op in enumerate(ops):
        result = op["results"][0]
        ready[result] = place
        inputs = [i for i in op["inputs"] if i not in constants]
        if (op["op"] == "input" and op["attrs"].get("weight")) or (
            inputs and all(i in once for i in inputs)
        ):
            once.add(result)
            continue
        shape = _full_shape(graph, op)
        if shape is None or not inputs:
            continue
        near = [home[i] for i in inputs if i in home]
        if shape[-1] == -1:  # one number per row: of the group that made its operand
            shape = next((g.shape for g in near if g.shape[:-1] == shape[:-1]), None)
            if shape is None:
                continue
        for group in sorted({id(g): g for g in near}.values(), key=lambda g: -g.first):
            if group.shape == shape and _may_join(graph, op, inputs, group, home, ready):
                break
        else:
            group = _Group(place, shape)
            if not _operands_fit(graph, inputs, shape):
                continue
            groups.append(group)
        group.members.append(place)
        home[result] = group
        ready[result] = group.first
    return groups


def _full_shape(graph: Graph, op: dict[str, Any]) -> tuple[int, ...] | None:
    """The shape with all columns that an operator works on; None where it is not of this kind."""
    shape = Tensor(graph, op["results"][0]).shape
    if op["op"] in _REDUCTIONS:
        whole = Tensor(graph, op["inputs"][0]).shape
        if op["attrs"] != {"axes": [len(whole) - 1], "keepdims": True}:
            return None
        shape = whole
    elif op["op"] not in _POINTWISE:
        return None
    elif shape and shape[-1] == 1:  # one number per row: the columns are those of its operands
        return (*shape[:-1], -1)
    return shape if len(shape) > 1 and math.prod(shape[:-1]) > 1 and shape[-1] > 1 else None


def _may_join(
    graph: Graph, op: dict[str, Any], inputs: list[int], group: _Group,
    home: dict[int, _Group], ready: dict[int, int],
) -> bool:  # fmt: skip
    others = [i for i in inputs if home.get(i) is not group]
    return all(ready[i] < group.first for i in others) and _operands_fit(graph, others, group.shape)


def _operands_fit(graph: Graph, inputs: list[int], shape: tuple[int, ...]) -> bool:
    return all(_kind(Tensor(graph, i).shape, shape) for i in inputs)


def _kind(shape: tuple[int, ...], whole: tuple[int, ...]) -> str:
    """How an operand lies beside the rows: "whole", "row" (one number each), "column", "one"."""
    if len(shape) > len(whole):
        return ""
    full = (1,) * (len(whole) - len(shape)) + tuple(shape)
    if full == whole:
        return "whole"
    if full == (*whole[:-1], 1):
        return "row"
    if all(d == 1 for d in full):
        return "one"
    return "column" if full[-1] == whole[-1] and all(d == 1 for d in full[:-1]) else ""


def _kernel(
    graph: Graph, ops: list[dict[str, Any]], group: _Group, result: Graph, to: dict[int, Tensor]
) -> None:
    """Emits a group's kernel; `to` learns of what others read."""
    whole = group.shape
    rows, columns = math.prod(whole[:-1]), whole[-1]
    inside = {ops[m]["results"][0] for m in group.members}
    constants = {op["results"][0]: op["attrs"] for op in ops if op["op"] == "const"}
    read = {i for p, op in enumerate(ops) if p not in set(group.members) for i in op["inputs"]}
    read |= set(graph.core.outputs)
    given: dict[int, tuple[Tensor, bool]] = {}
    for member in group.members:
        for i in ops[member]["inputs"]:
            if i not in inside and i not in constants and i not in given:
                kind = _kind(Tensor(graph, i).shape, whole)
                shape = {"whole": [rows, columns], "row": [rows, 1], "column": [1, columns],
                         "one": [1, 1]}[kind]  # fmt: skip
                flat = to[i] if list(to[i].shape) == shape else result.reshape(to[i], shape)
                given[i] = flat, kind in ("whole", "row")
    results = [i for m in group.members if (i := ops[m]["results"][0]) in read]
    with result.kernel([t for t, _ in given.values()], grid=min(rows, _BLOCKS)) as block:
        values = {i: block.iter(t, imap=[0 if split else None]) for i, (t, split) in given.items()}
        for member in group.members:
            op = ops[member]
            for i in op["inputs"]:
                if i in constants:
                    value, (dtype, _) = constants[i]["value"], constants[i]["type"]
                    values[i] = block.emit("const", [], {"value": value, "type": (dtype, [])})
            attrs = {**op["attrs"], "axes": [1]} if op["op"] in _REDUCTIONS else op["attrs"]
            made = block.emit(op["op"], [values[i] for i in op["inputs"]], attrs)
            values[op["results"][0]] = made
        for i in results:
            width = 1 if Tensor(graph, i).shape[-1] == 1 else columns
            block.save(values[i], omap=[0], shape=[rows, width])
    for i, made in zip(results, block.outputs, strict=True):
        final = Tensor(graph, i).shape
        to[i] = made if made.shape == final else result.reshape(made, final)
