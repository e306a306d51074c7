"""From expressions to a function: which values get a name, and in which order they come."""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from tessera.emit.node import Node, operands_first
from tessera.emit.spell import Code, Spelling

LONGEST = 76  # characters of an expression; of a longer one the longest operands get names,
SHORTEST = 16  # but none that are shorter than this

_NAMES = {
    "matmul": "product", "dot": "product", "tensordot": "product", "vdot": "product",
    "vecdot": "products", "einsum": "products", "mean": "mean", "sum": "total",
    "trace": "total", "reduce_max": "top", "reduce_min": "bottom", "exp": "e", "sqrt": "root",
    "sub": "difference", "div": "ratio", "log": "logs", "where": "chosen", "transpose": "flipped",
    "cumsum": "sums", "sqr": "squares",
}  # fmt: skip
_TEXT = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""")
_PREFERRED = {"lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"}


class Layout:
    """The statements of one function body."""

    def __init__(
        self,
        spelling: Spelling,
        arguments: Mapping[Node, str],
        reserved: Collection[str],
        *,
        reuse: bool = False,
    ) -> None:
        """`reuse`: elementwise results are written over an operand that nothing else needs."""
        self._spelling = spelling
        self._reuse = reuse
        self._known: dict[Node, Code] = {n: Code(text) for n, text in arguments.items()}
        self._taken = {*reserved, spelling.module, "jax", "erf", "erfc", "ml_dtypes"}
        self.lines: list[str] = []

    def returned(self, outputs: Sequence[Node], twice: Collection[int] = ()) -> list[str]:
        """Appends statements and returns the expressions of the outputs; some are used `twice`."""
        uses = self._count(outputs)
        uses.update(outputs[n] for n in twice)
        if any(node.dtype.itemsize == 8 for node in uses):
            self._spelling.imports |= self._spelling.wide
        for node in operands_first(outputs):  # no deeper calls than one node's
            self._render(node, uses)
        return [self._render(node, uses).text for node in outputs]

    @staticmethod
    def _count(outputs: Sequence[Node]) -> Counter[Node]:
        uses = Counter(outputs)
        found = list(uses)
        for node in found:  # which grows
            found += [arg for arg in dict.fromkeys(node.args) if arg not in uses]
            uses.update(node.args)
        return uses

    def _render(self, node: Node, uses: Counter[Node]) -> Code:
        if node in self._known:
            return self._known[node]
        twice = node.op == "sqr"  # its operand is written twice, once it has a name
        args = []
        for arg in node.args:
            code = self._render(arg, uses)
            if twice and code.level < 8 and not code.is_name and not arg.is_literal:
                code = self._named(arg, code)
            args.append(code)
        if self._reuse and (held := self._written_over(node, args, uses)) is not None:
            return held
        code = self._spelling.spell(node, args)
        while len(code.text) > LONGEST:
            n = max(range(len(args)), key=lambda i: len(args[i].text), default=0)
            if not args or len(args[n].text) <= SHORTEST or args[n].is_name:
                break
            args[n] = self._named(node.args[n], args[n])
            args = [self._known.get(a, code) for a, code in zip(node.args, args, strict=True)]
            code = self._spelling.spell(node, args)
        if node.op in ("literal", "full") and node.shape == ():
            return code
        cheap = node.op in ("transpose", "index") and bool(args) and args[0].is_name
        if uses[node] > 1 and not cheap:
            return self._named(node, code)
        self._known[node] = code
        return code

    def _written_over(self, node: Node, args: list[Code], uses: Counter[Node]) -> Code | None:
        """The name of an operand that now holds the result; None where none can.

        An operand can if this function made it (an argument, or a view of one, is the caller's),
        if nothing else uses it, and if the result has its dtype and shape.
        """
        ufunc = self._spelling.ufunc(node)
        if ufunc is None or node.ndim == 0:
            return None
        for n, arg in enumerate(node.args):
            alike = (arg.dtype, arg.shape) == (node.dtype, node.shape)
            if not alike or uses[arg] > 1 or not self._spelling.makes_array(arg):
                continue
            name = args[n] if args[n].is_name else self._named(arg, args[n], "t")
            texts = [c.text for c in args]
            texts[n] = name.text
            self.lines.append(self._spelling.written_over(node, ufunc, n, texts))
            self._known[node] = name
            return name
        return None

    def _named(self, node: Node, code: Code, wanted: str = "") -> Code:
        name = self._name(node, wanted)
        self.lines.append(f"{name} = {code.text}")
        self._known[node] = Code(name)
        return self._known[node]

    def _name(self, node: Node, wanted: str) -> str:
        wanted = node.name if valid_name(node.name) else wanted
        wanted = wanted or ("mask" if node.op in _PREFERRED else _NAMES.get(node.op, "t"))
        name, n = wanted, 1
        while name in self._taken:
            n += 1
            name = f"{wanted}{n}"
        self._taken.add(name)
        return name


def wrapped(line: str, width: int = 92) -> list[str]:
    """A line of source, with the parts of its longest list one below the other if it is too long.

    >>> wrapped("return np.stack([A[0], B[0]])", 20)
    ['return np.stack([', '    A[0],', '    B[0],', '])']
    """
    if len(line) <= width:
        return [line]
    best = (0, 0, [0])
    stack: list[tuple[int, list[int]]] = []
    for at, char in enumerate(_TEXT.sub(lambda text: "_" * len(text[0]), line)):
        if char in "([{":
            stack.append((at, []))
        elif char in ")]}":
            start, commas = stack.pop()
            if commas and at - start > best[1] - best[0]:
                best = (start, at, commas)
        elif char == "," and stack:
            stack[-1][1].append(at)
    start, end, commas = best
    if end == 0:
        return [line]
    cuts = [start, *commas, end]
    parts = [line[a + 1 : b].strip() for a, b in pairwise(cuts)]
    return [line[: start + 1], *(f"    {part}," for part in parts if part), line[end:]]


def valid_name(name: str) -> bool:
    """Whether Python takes this as the name of a variable."""
    return name.isidentifier() and not keyword.iskeyword(name)
