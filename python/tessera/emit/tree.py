"""One graph's tensors as expressions, operator by operator."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction

from tessera.emit.node import Node, broadcast_shape, number
from tessera.errors import UnsupportedError
from tessera.graph import Graph
from tessera.types import DType, Record, Shape, to_numpy

_MOVED = {"transpose", "reshape", "broadcast", "unsqueeze", "squeeze", "slice", "const", "input"}
_REFUSED = {"kernel": "a fused kernel", "opaque": "an unknown operator", "thread": "a thread graph"}


class Tree:
    """Methods `_lift_…` of a subclass make the expressions of some operators; None: as others."""

    def __init__(self, graph: Graph, native: frozenset[str]) -> None:
        """`native`: operators that the library has itself; with "dot", Σ a·b is spelled as one."""
        self._graph = graph
        self._native = native
        self._made: dict[int, Record] = {}
        self._known: dict[int, Node] = {}
        self._literals: dict[Hashable, Node] = {}
        for record in graph.ops:
            if record["op"] in _REFUSED:
                raise UnsupportedError(
                    f"{graph.name} holds {_REFUSED[record['op']]}, which has no spelling in NumPy; "
                    "only kernel-level operators do"
                )
            for result in record["results"]:
                self._made[result] = record
        self._uses = self._count_uses()

    def _count_uses(self) -> Counter[int]:
        uses = Counter(self._graph.core.outputs)
        for tensor in sorted(self._made, reverse=True):
            if uses[tensor]:
                uses.update(self._made[tensor]["inputs"])
        return uses

    def inputs(self) -> list[Node]:
        return [self.node(i) for i in self._graph.core.inputs]

    def outputs(self) -> list[Node]:
        for tensor in sorted(self._made):  # operands first: chains are deeper than Python's stack
            with contextlib.suppress(UnsupportedError):  # of what others may spell otherwise
                if self._uses[tensor]:
                    self.node(tensor)
        return [self._array(self.node(i)) for i in self._graph.core.outputs]

    def node(self, tensor: int) -> Node:
        """The expression of a tensor."""
        if tensor not in self._known:
            self._known[tensor] = self._lift(tensor)
        return self._known[tensor]

    # --- helpers
    def _type(self, tensor: int) -> tuple[DType, Shape]:
        dtype, shape = self._graph.core.type(tensor)
        return to_numpy(dtype), tuple(shape)

    def _shape(self, tensor: int) -> Shape:
        return self._type(tensor)[1]

    def _op(self, tensor: int) -> str:
        return str(self._made[tensor]["op"])

    def _source(self, tensor: int, op: str) -> int | None:
        """The operand of a tensor made by `op`; None if it was made otherwise."""
        return self._made[tensor]["inputs"][0] if self._op(tensor) == op else None

    def _alone(self, tensor: int) -> bool:
        """Whether nothing else needs this tensor, so that it may vanish into its user."""
        return self._uses[tensor] <= 1 or self._op(tensor) in _MOVED

    def literal(self, value: Fraction | float | bool | int, dtype: DType) -> Node:
        key = (dtype, str(value))
        return self._literals.setdefault(key, Node("literal", (), dtype, (), {"value": value}))

    def _array(self, node: Node) -> Node:
        """A literal as an array of its dtype, where nothing else says which that is."""
        if not node.is_literal:
            return node
        return Node("full", (), node.dtype, (), {"value": node.attrs["value"]})

    # --- the operators
    def _lift(self, tensor: int) -> Node:
        record = self._made[tensor]
        op, attrs = record["op"], record["attrs"]
        dtype, shape = self._type(tensor)
        name = self._graph.core.tensor_name(tensor)
        if op == "input":
            return Node("input", (), dtype, shape, {}, name)
        special: Callable[..., Node | None] | None = getattr(self, f"_lift_{op}", None)
        if special is not None and (node := special(tensor, record)) is not None:
            return Node(node.op, node.args, dtype, shape, node.attrs, name) if name else node
        if op in ("sum", "mean", "reduce_max", "reduce_min", "cumsum", "concat", "stack") or (
            op in ("transpose", "reshape", "broadcast", "repeat", "pad", "triu", "tril")
        ):
            args = [self._array(self.node(i)) for i in record["inputs"]]
        else:
            args = self._operands(record["inputs"], shape)
        if op == "where" and args[1].is_literal and args[2].is_literal:
            args[1] = self._array(args[1])  # the condition says no dtype
        return Node(op, tuple(args), dtype, shape, attrs, name)

    def _operands(self, inputs: Sequence[int], shape: Shape) -> list[Node]:
        """Operands of a pointwise operator, without the broadcasting that the library does."""
        bare = list(inputs)
        for n in range(len(bare)):
            while (source := self._broadcast_source(bare[n])) is not None:
                shapes = [self._shape(t) for t in bare]
                shapes[n] = self._shape(source)
                if broadcast_shape(shapes) != shape:
                    break
                bare[n] = source
        nodes = []
        shapes = [self._shape(t) for t in bare]
        for n, tensor in enumerate(bare):
            node = self.node(tensor)
            if node.op == "full" and broadcast_shape([*shapes[:n], (), *shapes[n + 1 :]]) == shape:
                node = self.literal(node.attrs["value"], node.dtype)
                shapes[n] = ()
            nodes.append(node)
        if nodes and all(n.is_literal for n in nodes):  # a dtype has to come from somewhere
            nodes[0] = self._array(nodes[0])
        return nodes

    def _broadcast_source(self, tensor: int) -> int | None:
        """What a tensor is a broadcast of, by leading axes or stretched extents only."""
        record = self._made[tensor]
        if record["op"] == "broadcast":
            return int(record["inputs"][0])
        if record["op"] in ("unsqueeze", "reshape"):
            source = int(record["inputs"][0])
            small, large = self._shape(source), self._shape(tensor)
            extra = len(large) - len(small)
            if extra > 0 and large == (1,) * extra + small:
                return source
        return None

    def _lift_const(self, tensor: int, record: Record) -> Node:
        dtype, shape = self._type(tensor)
        value = number(record["attrs"]["value"])
        if shape == ():
            return self.literal(value, dtype)
        return Node("full", (), dtype, shape, {"value": value})
