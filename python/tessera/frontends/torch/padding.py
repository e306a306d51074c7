"""Symbolic sizes of ATen graphs that may be rounded up: what a longer size adds stays apart.

A graph that is built for n' ≥ n computes, at the places that exist for n, what it computes for n,
where places.py knows every operator: elements of added places reach others only through a reduction
along the axis, and there they are replaced by what changes nothing (−∞ before a softmax, 0 in a
product).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch.fx import Node

from tessera.errors import UnsupportedError
from tessera.frontends.torch.sizes import Size
from tessera.graph import Graph
from tessera.tensor import Tensor
from tessera.types import Record, Value, Values


@dataclass
class Padding:
    """How a graph is built for a longer size of one symbol."""

    symbol: Size
    most: float = math.inf  # the longest that tables in the graph allow
    # By node: the operand, its axis, and what added places hold there.
    masks: dict[Node, list[tuple[int, int, float]]] = field(default_factory=dict)
    scores: set[Node] = field(default_factory=set)  # attention whose keys are the symbol's
    inputs: dict[int, list[int]] = field(default_factory=dict)  # placeholder: axes to lengthen
    numbers: dict[int, Size] = field(default_factory=dict)  # placeholder: what it is of the symbols
    # Of a result: the axis, elements within.
    results: dict[int, list[tuple[int, Size]]] = field(default_factory=dict)
    # The placeholder, and its axis, that tell each symbol's size.
    places: dict[Size, tuple[int, int | None]] = field(default_factory=dict)

    def size(self, args: Values, symbol: Size = None) -> int:
        """The symbol's size, or another one's, in a call."""
        at, axis = self.places[symbol or self.symbol]
        return int(args[at] if axis is None else args[at].shape[axis])

    def lengthened(self, args: Values, to: dict[Size, int]) -> dict[int, int]:
        """Numbers among the arguments as they are for longer sizes of symbols."""
        sizes = {s: to.get(s) or self.size(args, s) for s in self.places}
        return {i: int(e.subs(sizes)) for i, e in self.numbers.items()}

    def operands(
        self, graph: Graph, node: Node, args: list[Value], kwargs: Record, valid: Tensor
    ) -> tuple[list[Value], Record]:
        """The operands of a node with added places masked; `valid` [n'] bool says which exist."""
        for at, axis, value in self.masks.get(node, ()):
            x = args[at]
            shape = [1] * x.ndim
            shape[axis] = x.shape[axis]
            seen = graph.reshape(valid, shape)
            args[at] = graph.emit("where", [seen, x, graph.const(value, x.dtype)])
        if node in self.scores:
            mask = kwargs.get("attn_mask")
            seen = graph.reshape(valid, [1, 1, 1, *valid.shape])
            if mask is None:  # added, as a choice for each score would cost half of the attention
                zero, nothing = (graph.const(v, args[0].dtype) for v in (0.0, -math.inf))
                mask = graph.emit("where", [seen, zero, nothing])
            elif mask.dtype == bool:
                mask = graph.emit("and", [mask, seen])
            else:
                mask = graph.emit("where", [seen, mask, graph.const(-math.inf, mask.dtype)])
            kwargs = {**kwargs, "attn_mask": mask}
        return args, kwargs


def bucket(size: int, most: float = math.inf) -> int:
    """The size that a program is made for: four per power of two, so that at most a quarter, and on
    average a tenth, is added."""
    if size < 1:
        raise UnsupportedError(f"a size of {size}")
    step = max(1, 1 << max(0, size.bit_length() - 3))
    return int(min(-(-size // step) * step, max(most, size)))
