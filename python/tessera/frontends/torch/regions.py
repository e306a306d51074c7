"""Which operators become one kernel: rows that stay in the cache, with the products that make them.

All values of a region have the same rows and each a width of its own: a number per row, the columns
of a product, half of them. A block of the kernel takes some rows whole, or, where nothing but
element-by-element operators follows a product, some of its columns.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from tessera.frontends.torch.strides import MOVES, View, natural, reading, restride, views
from tessera.graph import Graph
from tessera.tensor import Tensor
from tessera.types import Record

REDUCTIONS = {"sum", "mean", "reduce_max", "reduce_min"}
POINTWISE = {
    "neg", "abs", "sign", "sqr", "sqrt", "rsqrt", "exp", "log", "sin", "cos", "erf", "tanh",
    "sigmoid", "silu", "relu", "gelu", "gelu_tanh", "pow", "floor", "round", "log1p", "expm1",
    "not", "cast", "add", "sub", "mul", "div", "power", "max", "min", "and", "or", "eq", "ne",
    "lt", "le", "gt", "ge", "where",
}  # fmt: skip
# Longer rows of a product are not kept in a block, so that nothing is computed from whole ones.
_MOST_WIDTH = 1024
# Of a product's right operand where every block of rows reads it whole.
_MOST_SHARED_BYTES = 1 << 22
_MOST_RIGHT_BYTES = 1 << 20  # of a second product's right operand, which every block reads whole
_MOST_WIDE_BYTES = 1 << 16  # of a row of all values that a block keeps


@dataclass(frozen=True)
class Operand:
    """Where a member finds an operand, over the region's rows and the operand's own last axes."""

    kind: str  # "in": a value of the region; "const"; "ext": a tensor in memory
    tensor: int
    offset: int = 0
    width: int = 1  # of "in": columns that are read
    strides: tuple[int, ...] = ()  # of "ext"


@dataclass
class Region:
    rows: tuple[int, ...]
    members: list[int] = field(default_factory=list)  # places of operators, in order
    widths: dict[int, int] = field(default_factory=dict)  # values made here
    products: list[int] = field(default_factory=list)  # members that multiply what lies outside
    left: tuple[Hashable, ...] = ()  # their left operand and shape: they share it
    whole: bool = False  # a block has all columns of its rows
    needs: int = 0  # a bit for each region or operator it depends on


class Regions:
    """The regions of a graph; `of` says which operator is part of which."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops: list[Record] = graph.ops
        self.views = views(graph, self.ops)
        self.shape = {r: tuple(Tensor(graph, r).shape) for op in self.ops for r in op["results"]}
        self.maker = {r: place for place, op in enumerate(self.ops) for r in op["results"]}
        self.constants = {op["results"][0] for op in self.ops if op["op"] == "const"}
        self.once = self._once()
        self.regions: list[Region] = []
        self.home: dict[int, int] = {}  # by tensor: its region's number
        self._needs: dict[int, int] = {}  # by tensor outside regions: regions it depends on
        for place, op in enumerate(self.ops):
            self._place(place, op)
        self.of = {m: r for r in self.regions if r.members for m in r.members}

    def _once(self) -> set[int]:
        """What follows from weights and constants alone: computed once, elsewhere."""
        found: set[int] = set()
        for op in self.ops:
            kept = (bool(op["attrs"].get("weight")) if op["op"] == "input"
                    else all(i in found for i in op["inputs"]))  # fmt: skip
            if kept:
                found.update(op["results"])
        return found

    # --- where operands are
    def operand(self, region: Region, tensor: int, over: Sequence[int],
                last: Sequence[int] | None = None,
                rows: Sequence[int] | None = None) -> Operand | None:  # fmt: skip
        """The operand that, broadcast to the shape `over`, is read along rows and `last` axes."""
        view = self.views[tensor]
        if view.root in self.constants:
            return Operand("const", view.root)
        rows = region.rows if rows is None else rows
        if last is None:
            last = (max(1, math.prod(over) // max(1, math.prod(rows))),)
        target = (*rows, *last)
        if view.root in region.widths:
            strides = restride(view.over(over), target)
            made = region.widths[view.root]
            if strides is None or len(last) != 1 or view.offset >= made:
                return None
            by_row = tuple(s * made for s in natural(rows))
            width = last[0] if strides[-1] else 1
            if strides[:-1] != by_row or strides[-1] not in (0, 1) or view.offset + width > made:
                return None
            return Operand("in", view.root, view.offset, width)
        for v in (view, View.of(tensor, self.shape[tensor])):
            strides = restride(v.over(over), target)
            if strides is None:
                continue
            if reading(math.prod(self.shape[v.root]), target, strides, v.offset) is not None:
                return Operand("ext", v.root, v.offset, strides=strides)
        return None

    def operands(self, region: Region, place: int) -> list[Operand] | None:
        """Of a member or of one that would like to be; None where it cannot."""
        op = self.ops[place]
        shape = self.shape[op["results"][0]]
        found: list[Operand | None]
        if op["op"] in POINTWISE:
            found = [self.operand(region, i, shape) for i in op["inputs"]]
        elif op["op"] in REDUCTIONS:
            whole = self.shape[op["inputs"][0]]
            axes = op["attrs"]["axes"]
            if list(axes) != list(range(len(whole) - len(axes), len(whole))):
                return None
            if math.prod(whole[: len(whole) - len(axes)]) != math.prod(region.rows):
                return None  # it would end rows of another length
            found = [self.operand(region, op["inputs"][0], whole)]
            if found[0] is not None and found[0].kind == "const":
                return None
        elif op["op"] == "concat":
            rows = math.prod(shape[:-1])
            if op["attrs"]["axis"] != len(shape) - 1 or rows != math.prod(region.rows):
                return None
            found = [self.operand(region, i, self.shape[i]) for i in op["inputs"]]
            if any(o is None or o.kind == "const" for o in found):
                return None
        elif op["op"] == "gather":
            found = self._gathered(region, op)
        elif op["op"] == "matmul":
            found = self._multiplied(region, op, shape)
        else:
            return None
        return None if any(o is None for o in found) else found  # type: ignore[return-value]

    def read(self, region: Region, place: int) -> list[Operand]:
        """The operands of a member."""
        found = self.operands(region, place)
        assert found is not None
        return found

    def _gathered(self, region: Region, op: Record) -> list[Operand | None]:
        table, index = op["inputs"]
        inside = self.views[table].root in region.widths
        if op["attrs"]["axis"] != 0 or len(self.shape[table]) != 2 or inside:
            return [None]
        at = self.operand(region, index, self.shape[index], (1,))
        return [Operand("ext", table), at if at is None or at.kind != "const" else None]

    def _multiplied(self, region: Region, op: Record,
                    shape: tuple[int, ...]) -> list[Operand | None]:  # fmt: skip
        left, right = op["inputs"]
        if len(self.shape[left]) < 2 or len(self.shape[right]) < 2 or right in region.widths:
            return [None]
        if math.prod(shape[:-1]) != math.prod(region.rows):
            return [None]  # a column of results is no single row
        k, n = self.shape[right][-2:]
        x = self.operand(region, left, (*shape[:-1], k))
        y = self.operand(region, right, (*shape[:-2], k, n), (k, n), region.rows[:-1])
        if y is None and math.prod(self.shape[right][:-2]) == 1:  # all rows have one right operand
            v = self.views[right]
            y = self.operand(region, right, (*[1] * len(region.rows[:-1]), k, n), (k, n),
                             [1] * len(region.rows[:-1]))  # fmt: skip
            y = y if y is None or v.root not in region.widths else None
        if x is None or y is None or "const" in (x.kind, y.kind) or y.kind == "in":
            return [None]
        return [x, y]

    # --- growth
    def _place(self, place: int, op: Record) -> None:
        result = op["results"][0]
        inputs = [i for i in op["inputs"] if i not in self.constants]
        if op["op"] in MOVES or result in self.once or op["op"] == "input":
            root = self.views[result].root
            if root == result:
                self._needs[result] = self._all_needs(inputs)
            return
        near = {self.home[r] for i in inputs if (r := self.views[i].root) in self.home}
        for number in sorted(near, reverse=True):
            if self._join(number, place):
                for other in sorted(near - {number}, reverse=True):
                    self._merge(number, other)
                return
        if not self._open(place, op):
            for r in op["results"]:
                self._needs[r] = self._all_needs(op["inputs"])

    def _all_needs(self, tensors: Sequence[int], but: int = -1) -> int:
        """Bits of the regions that these depend on, regions of the tensors themselves included."""
        bits = 0
        for t in tensors:
            for i in {t, self.views[t].root}:
                number = self.home.get(i)
                if number is None:
                    bits |= self._needs.get(i, 0)
                elif number != but:
                    bits |= 1 << number | self.regions[number].needs
        return bits

    def _open(self, place: int, op: Record) -> bool:
        """A region of its own for an operator."""
        shape = self.shape[op["results"][0]]
        if op["op"] in REDUCTIONS:
            axes = op["attrs"]["axes"]
            before = self.shape[op["inputs"][0]]
            rows = tuple(before[: len(before) - len(axes)])
        else:
            rows = shape[:-1]
        axes = [tuple(d for d in rows if d > 1) or (1,)]
        if op["op"] == "matmul":
            # Heads that share keys and values: the axes that these are repeated along are apart.
            view = self.views[op["inputs"][1]]
            batch = View(view.root, 0, view.axes[:-2]).over(shape[:-2])
            axes = [(*(n for n, _ in batch), rows[-1]),
                    (*(d for d in rows[:-1] if d > 1), rows[-1])]  # fmt: skip
        region = next((r for r in map(Region, axes) if self._fits(r, place)), None)
        if region is None:
            return False
        number = len(self.regions)
        self.regions.append(region)
        self._add(number, place)
        return True

    def _fits(self, region: Region, place: int) -> bool:
        """Whether an operator may be a member, as far as shapes and sizes say."""
        op = self.ops[place]
        shape = self.shape[op["results"][0]]
        count = math.prod(region.rows)
        if math.prod(shape) % count or 0 in shape or len(region.rows) > 4:
            return False
        width = math.prod(shape) // count
        found = self.operands(region, place)
        if found is None:
            return False
        if op["op"] == "matmul":
            if found[0].kind == "in":
                heads = bool(region.products) and len(region.rows) > 1
                return (heads and self._may_be_whole(region)
                        and math.prod(self.shape[op["inputs"][1]][-2:]) * 4 <= _MOST_RIGHT_BYTES
                        and self.views[op["inputs"][1]].root not in self.once)  # fmt: skip
            if region.members and not region.products:
                return False
            return not region.products or (
                region.left == (found[0], self.shape[op["inputs"][0]][-1])
                and set(region.widths.values()) <= {width, 1}
            )
        if region.products:
            plain = self._is_plain(region, op, width, found) and not region.whole
            return plain or self._may_be_whole(region)
        return True

    def _is_plain(
        self, region: Region, op: Record, width: int, operands: Sequence[Operand]
    ) -> bool:
        """Whether an operator computes each column of a product from that column alone."""
        columns = self.shape[self.ops[region.products[0]]["results"][0]][-1]
        inner = [o for o in operands if o.kind == "in"]
        return (op["op"] in POINTWISE and width == columns
                and all(o.width == columns and o.offset == 0 for o in inner))  # fmt: skip

    def _may_be_whole(self, region: Region) -> bool:
        if region.whole or not region.products:
            return True
        columns = self.shape[self.ops[region.products[0]]["results"][0]][-1]
        right = self.shape[self.ops[region.products[0]]["inputs"][1]]
        return (
            len(region.products) == 1
            and math.prod(right[-2:]) * 4 <= _MOST_SHARED_BYTES
            and columns <= _MOST_WIDTH
            and (len(region.rows) > 1 or columns * 4 <= _MOST_WIDE_BYTES)
        )

    def _join(self, number: int, place: int) -> bool:
        op = self.ops[place]
        if self._all_needs(op["inputs"], number) >> number & 1:
            return False
        region = self.regions[number]
        if not self._fits(region, place):
            # Perhaps as rows in more axes, or as rows of another length.
            shape = self.shape[op["inputs"][0] if op["op"] in REDUCTIONS else op["results"][0]]
            rows = tuple(d for d in shape[:-1] if d > 1)
            if not (
                rows and self._refined(number, rows) and self._fits(self.regions[number], place)
            ):
                self.regions[number] = region
                return False
        self._add(number, place)
        return True

    def _refined(self, number: int, rows: tuple[int, ...]) -> bool:
        """Sees the region's values over other rows, if all members can be."""
        region = self.regions[number]
        if rows == region.rows or (region.products and math.prod(rows) != math.prod(region.rows)):
            return False
        made = Region(rows, needs=region.needs)
        for member in region.members:
            if not self._fits(made, member):
                return False
            self._note(made, member)
        self.regions[number] = made
        return True

    def _note(self, region: Region, place: int) -> None:
        op = self.ops[place]
        result = op["results"][0]
        found = self.read(region, place)
        width = math.prod(self.shape[result]) // math.prod(region.rows)
        if op["op"] == "matmul" and found[0].kind == "ext":
            region.products.append(place)
            region.left = (found[0], self.shape[op["inputs"][0]][-1])
        elif region.products:
            region.whole = region.whole or not self._is_plain(region, op, width, found)
        region.members.append(place)
        region.widths[result] = width

    def _add(self, number: int, place: int) -> None:
        op = self.ops[place]
        region = self.regions[number]
        more = self._all_needs(op["inputs"], number)
        self._note(region, place)
        self.home[op["results"][0]] = number
        self._depends(number, more)

    def _depends(self, number: int, more: int) -> None:
        """Region `number` and all that depends on it depend on more."""
        self.regions[number].needs |= more
        for region in self.regions:
            if region.needs >> number & 1:
                region.needs |= more
        for t, bits in self._needs.items():
            if bits >> number & 1:
                self._needs[t] = bits | more

    def _merge(self, number: int, other: int) -> None:
        """Makes one region of two, where no other lies between them."""
        a, b = self.regions[number], self.regions[other]
        if not b.members:
            return
        if a.needs >> other & 1 and self._between(number, other):
            return
        if b.needs >> number & 1:
            return
        for rows in {a.rows, b.rows}:
            made = Region(rows, needs=a.needs | b.needs)
            for member in sorted(a.members + b.members):
                if not self._fits(made, member):
                    break
                self._note(made, member)
            else:
                made.needs &= ~(1 << other) & ~(1 << number)
                self.regions[number] = made
                self.regions[other] = replace(b, members=[], widths={}, products=[])
                for t, n in self.home.items():
                    if n == other:
                        self.home[t] = number
                for region in self.regions:
                    if region.needs >> other & 1:
                        region.needs |= 1 << number
                for t, bits in self._needs.items():
                    if bits >> other & 1:
                        self._needs[t] = bits | 1 << number
                self._depends(number, made.needs)
                return

    def _between(self, number: int, other: int) -> bool:
        """Whether a region depends on `other` by way of a third."""
        region = self.regions[number]
        outside: list[int] = []
        for member in region.members:
            outside += [i for i in self.ops[member]["inputs"]
                        if self.home.get(self.views[i].root) not in (number, other)]  # fmt: skip
        return bool(self._all_needs(outside, number) >> other & 1)
