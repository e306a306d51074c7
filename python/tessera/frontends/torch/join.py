"""Rewrites before fusion: no operator twice, and products of one operand with weights as one."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from tessera.frontends.torch.regions import Regions
from tessera.frontends.torch.strides import restride
from tessera.graph import Graph
from tessera.tensor import Tensor
from tessera.types import Attribute, Record, dtype_name

# Of the result of joined products, beyond three of them (queries, keys and values).
_MOST_JOINED_BYTES = 16 << 20


def without_repeats(graph: Graph) -> Graph:
    """The program without operators that compute what another one does, or that nobody reads."""
    ops = graph.ops
    read = set(graph.core.outputs)
    for op in reversed(ops):
        if op["op"] == "input" or any(r in read for r in op["results"]):
            read.update(op["inputs"])
    made = _Copy(graph)
    known: dict[Hashable, Tensor] = {}
    for op in ops:
        if op["op"] != "input" and not any(r in read for r in op["results"]):
            continue
        key = (op["op"], tuple(made.to[i].id for i in op["inputs"]), repr(op["attrs"]))
        if op["op"] != "input" and op["body"] is None and key in known:
            made.to[op["results"][0]] = known[key]
        else:
            made.copy(op)
            known[key] = made.to[op["results"][0]]
    return made.finish()


def copy_op(op: Record, of: Graph, result: Graph, to: dict[int, Tensor]) -> None:
    """Appends an operator `of` a graph to another one; `to`: what tensors have become, its results
    then."""
    if op["op"] == "input":
        old, weight = Tensor(of, op["results"][0]), bool(op["attrs"].get("weight"))
        to[old.id] = result.input(old.name, old.shape, old.dtype, weight=weight)
        return
    inputs = [to[i] for i in op["inputs"]]
    if op["body"] is None:
        to[op["results"][0]] = result.emit(op["op"], inputs, op["attrs"])
        return
    names = [""] * len(op["results"])
    made = result.core.add_graph_op(op["op"], [t.id for t in inputs], op["body"], names)
    to.update({r: Tensor(result, i) for r, i in zip(op["results"], made, strict=True)})


class _Copy:
    """A graph that becomes another one's copy, operator by operator."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.result = graph, Graph(graph.name)
        self.to: dict[int, Tensor] = {}

    def copy(self, op: Record) -> None:
        copy_op(op, self.graph, self.result, self.to)

    def finish(self) -> Graph:
        for output in self.graph.core.outputs:
            self.result.output(self.to[output])
        return self.result


@dataclass
class _Linear:
    """A product with a weight, and the bias that alone reads it."""

    place: int  # of the product
    last: int  # of the bias' sum, or the product
    bias: int | None
    columns: int


def join_products(graph: Graph) -> Graph:
    """Products that share their left operand become one with their weights side by side.

    Those that meet element by element (gate and up) stay: they are one kernel anyhow.
    """
    found = Regions(graph)
    groups: dict[Hashable, list[_Linear]] = {}
    for place, op in enumerate(found.ops):
        if op["op"] != "matmul" or op["results"][0] in found.once:
            continue
        left, right = op["inputs"]
        region = found.of.get(place)
        shape = found.shape[op["results"][0]]
        if right not in found.once or len(found.shape[right]) != 2 or len(shape) != 2 or (
            region is not None and len(region.products) > 1
        ):  # fmt: skip
            continue
        view = found.views[left]
        groups.setdefault((view.root, view.offset, view.parts, shape[0]), []).append(
            _linear(found, place))  # fmt: skip
    chosen = [c for g in groups.values() for c in _chunks(found, g) if len(c) > 1]
    if not chosen:
        return graph
    # Weights first: then they are all there at the first product's place.
    order = [p for p, op in enumerate(found.ops) if op["op"] == "input"]
    order += [p for p, op in enumerate(found.ops)
              if op["op"] != "input" and op["results"][0] in found.once]  # fmt: skip
    order += [p for p in range(len(found.ops)) if p not in set(order)]
    first = {chunk[0].place: chunk for chunk in chosen}
    made = _Copy(graph)
    for place in order:
        op = found.ops[place]
        if place in first:
            _emit_joined(found, made, first[place])
        if op["results"][0] not in made.to:
            made.copy(op)
    return made.finish()


def _linear(found: Regions, place: int) -> _Linear:
    result = found.ops[place]["results"][0]
    m, n = found.shape[result]
    plain = _Linear(place, place, None, n)
    if result in found.graph.core.outputs:
        return plain
    seen, last = {result}, []
    for at in range(place + 1, len(found.ops)):
        op = found.ops[at]
        if not seen & set(op["inputs"]):
            continue
        made = op["results"][0]
        if found.views[made].root == result and found.views[made].whole:
            if made in found.graph.core.outputs:
                return plain
            seen.add(made)
        else:
            last.append(at)
    if len(last) != 1 or found.ops[last[0]]["op"] != "add":
        return plain
    op = found.ops[last[0]]
    shape = found.shape[op["results"][0]]
    for x, bias in (op["inputs"], op["inputs"][::-1]):
        if x in seen and bias in found.once and math.prod(shape) == m * n:
            strides = restride(found.views[bias].over(shape), (m, n))
            if strides == (0, 1) and math.prod(found.shape[bias]) == n:
                return _Linear(place, last[0], bias, n)
    return plain


def _chunks(found: Regions, group: list[_Linear]) -> list[list[_Linear]]:
    chunks: list[list[_Linear]] = []
    for linear in group:
        op = found.ops[linear.place]
        rows = found.shape[op["results"][0]][0]
        width = Tensor(found.graph, op["results"][0]).itemsize
        chunk = chunks[-1] if chunks else []
        taken = sum(x.columns for x in chunk) + linear.columns
        if chunk and (len(chunk) < 3 or taken * rows * width <= _MOST_JOINED_BYTES):
            chunk.append(linear)
        else:
            chunks.append([linear])
    return chunks


def _emit_joined(found: Regions, made: _Copy, chunk: list[_Linear]) -> None:
    result = made.result

    def emit(op: str, inputs: list[Tensor], **attrs: Attribute) -> Tensor:
        return result.emit(op, inputs, attrs)

    products = [found.ops[x.place] for x in chunk]
    rights = [op["inputs"][1] for op in products]
    turned = [found.ops[found.maker[r]] for r in rights]
    if all(op["op"] == "transpose" for op in turned):
        rows = emit("concat", [made.to[op["inputs"][0]] for op in turned], axis=0)
        weights = emit("transpose", [rows], perm=[1, 0])
    else:
        weights = emit("concat", [made.to[r] for r in rights], axis=1)
    product = emit("matmul", [made.to[products[0]["inputs"][0]], weights])
    if any(x.bias is not None for x in chunk):
        kind = dtype_name(product.dtype)
        biases = []
        for x in chunk:
            bias = result.const(0, kind, [x.columns]) if x.bias is None else made.to[x.bias]
            biases.append(bias if bias.shape == (x.columns,) else
                          emit("reshape", [bias], shape=[x.columns]))  # fmt: skip
        product = emit("add", [product, emit("concat", biases, axis=0)])
    at = 0
    for x in chunk:
        part = emit("slice", [product], starts=[0, at], stops=[product.shape[0], at + x.columns],
                    steps=[1, 1])  # fmt: skip
        at += x.columns
        last = found.ops[x.last]["results"][0]
        shape = found.shape[last]
        made.to[last] = part if part.shape == shape else emit("reshape", [part], shape=list(shape))
        if x.last != x.place:  # without readers but the sum
            for op in found.ops[x.place : x.last]:
                r = op["results"][0]
                if found.views[r].root == products[chunk.index(x)]["results"][0]:
                    made.to[r] = part
