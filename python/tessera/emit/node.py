"""The expressions that source is printed from: a graph's operators in an array library's words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from tessera.types import Dim, DType, Fields, Shape


@dataclass(frozen=True, eq=False)
class Node:
    """One call, operator or leaf of an expression; the same object where a value is shared."""

    op: str  # a name of the graph's operators, or one of those that lift.py adds
    args: tuple[Node, ...]
    dtype: DType
    shape: Shape
    attrs: Fields = field(default_factory=dict)
    name: str = ""  # what the program calls it, if it does

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_literal(self) -> bool:
        """A Python scalar, which takes the dtype of what it meets."""
        return self.op == "literal"


def operands_first(outputs: Sequence[Node]) -> list[Node]:
    """All nodes below the outputs and these, each once, behind what it is made of."""
    found: dict[Node, None] = {}
    waiting = list(reversed(outputs))
    while waiting:
        node = waiting[-1]
        if node in found:
            waiting.pop()
        elif more := [arg for arg in node.args if arg not in found]:
            waiting += reversed(more)
        else:
            found[waiting.pop()] = None
    return list(found)


def broadcast_shape(shapes: Sequence[Shape]) -> Shape | None:
    """NumPy's common shape, with symbols equal only to themselves; None where there is none."""
    result: list[Dim] = []
    for back in range(1, max((len(s) for s in shapes), default=0) + 1):
        dims = {s[-back] for s in shapes if len(s) >= back} - {1}
        if len(dims) > 1:
            return None
        result.append(dims.pop() if dims else 1)
    return tuple(result[::-1])


def inserted_axes(small: Shape, large: Shape) -> list[int] | None:
    """Where `large` has axes of extent 1 more than `small`, if that is all; None otherwise."""
    axes: list[int] = []
    n = 0
    for axis, extent in enumerate(large):
        left = len(large) - axis
        if n < len(small) and extent == small[n] and (extent != 1 or left == len(small) - n):
            n += 1
        elif extent == 1:
            axes.append(axis)
        else:
            return None
    return axes if n == len(small) else None


def number(text: str | float) -> Fraction | float:
    """A constant's text (`0.1`, `1/3`, `3*2^-70`, `inf`): exact where it is finite.

    >>> number("1/4"), number(3), number("3*2^-4")
    (Fraction(1, 4), Fraction(3, 1), Fraction(3, 16))
    """
    text = str(text)
    if text.lstrip("+-") in ("inf", "nan"):
        return float(text)
    mantissa, _, exponent = text.partition("*2^")
    return Fraction(mantissa) * Fraction(2) ** int(exponent or 0)
