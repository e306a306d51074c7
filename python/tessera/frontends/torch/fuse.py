"""Programs with their regions (regions.py) as kernels.

Nothing is searched here: this is what a program is compiled as at once. Kernels read transposed,
sliced and broadcast operands where they lie, and write results in the order that is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

from tessera import _core
from tessera.errors import Error
from tessera.frontends.torch.join import copy_op, join_products, without_repeats
from tessera.frontends.torch.regions import REDUCTIONS, Operand, Region, Regions
from tessera.frontends.torch.strides import MOVES, Reading, merged, natural, reading, restride
from tessera.graph import Graph
from tessera.tensor import Builder, Tensor
from tessera.types import Record, dtype_name

_BLOCKS = 32  # blocks of rows per kernel: enough for all threads, few to launch
_DEPTH = 256  # of a product, in one step of a loop
_TILE_BYTES = 1 << 17  # of the rows that a block of a product keeps whole
_TILE_ROWS = 64  # of them at most
_MOST_ALONE = 1 << 14  # elements of a single row


def fuse(graph: Graph) -> Graph:
    """The same program, its inputs and outputs in the same order."""
    return Fusion(join_products(without_repeats(graph))).run()


class UnfitError(Exception):
    """A region that no kernel is written for."""


Unit = Region | int  # a region, or the place of an operator


class Fusion:
    """Emits a graph's operators into another, regions as kernels, and only what is wanted."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.found = graph, Regions(graph)
        self.ops, self.views, self.shape = self.found.ops, self.found.views, self.found.shape
        self.of = {m: r for m, r in self.found.of.items() if self._worth(r)}
        self.results: dict[int, list[int]] = {}  # of regions by identity: values wanted outside
        self.cuts: dict[int, Reading] = {}  # by place: a small part of a value, read where it lies
        self.result = Graph(graph.name)
        self.to: dict[int, Tensor] = {}
        self._seen: dict[Hashable, Tensor] = {}

    def _worth(self, region: Region) -> bool:
        """Whether a kernel beats the operators: several of them, or operands that lie elsewise."""
        if any(self.shape[self.ops[m]["inputs"][0]] == () for m in region.members):
            return False
        if len(region.members) > 1:
            return True
        return any(not self.views[i].whole and self.views[i].root not in self.found.once
                   for i in self.ops[region.members[0]]["inputs"])  # fmt: skip

    def run(self) -> Graph:
        while True:  # until all regions that are left can be kernels
            self.result, self.to, self._seen = Graph(self.graph.name), {}, {}
            for op in self.ops:
                if op["op"] == "input":
                    copy_op(op, self.graph, self.result, self.to)
            try:
                for unit in self._order():
                    self._emit(unit)
                break
            except UnfitError as unfit:
                for member in unfit.args[0].members:
                    self.of.pop(member, None)
        for output in self.graph.core.outputs:
            self.result.output(self.to[output])
        return self.result

    # --- what is wanted, operands first
    def _order(self) -> list[Unit]:
        """Units (regions and places of operators) in an order in which they can be emitted."""
        self.results = {}
        order: list[Unit] = []
        state: dict[int, int] = {}  # by unit: 1 while its operands are visited, 2 behind
        stack: list[tuple[Unit, bool]] = []

        def want(tensor: int) -> None:
            if tensor in self.to and self.ops[self.found.maker[tensor]]["op"] == "input":
                return
            region = self._saves(tensor)
            place = self.found.maker[tensor]
            if region is None and (cut := self._cut_of(tensor)) is not None:
                self.cuts[place] = cut
            if region is not None and tensor not in self.results.setdefault(id(region), []):
                self.results[id(region)].append(tensor)
            stack.append((place if region is None else region, False))

        for output in reversed(list(self.graph.core.outputs)):
            want(output)
        while stack:
            unit, done = stack.pop()
            key = id(unit) if isinstance(unit, Region) else unit
            if done:
                state[key] = 2
                order.append(unit)
            elif key not in state:
                state[key] = 1
                stack.append((unit, True))
                for tensor in self._reads(unit):
                    want(tensor)
        return order

    def _saves(self, tensor: int) -> Region | None:
        """The region that writes a tensor: its maker, or that of what it is a rearrangement of."""
        place = self.found.maker[tensor]
        if place in self.of:
            return self.of[place]
        kept = tensor in self.graph.core.outputs
        if self.ops[place]["op"] not in MOVES or (self.views[tensor].whole and not kept):
            return None
        region = self.of.get(self.found.maker[self.views[tensor].root])
        if region is None or self._arranged(region, region.rows, tensor) is None:
            return None
        return region

    def _cut_of(self, tensor: int) -> Reading | None:
        """How a part of what a region makes is read, without what lies between: a step of a
        transposed value is no reason to transpose all of it. So is what was transposed and back."""
        view, shape = self.views[tensor], self.shape[tensor]
        size, whole = math.prod(shape), math.prod(self.shape[view.root])
        strides = restride(view.over(shape), shape)
        if strides is None or any(s == 0 < d - 1 for s, d in zip(strides, shape, strict=True)):
            return None
        found = reading(whole, shape, strides, view.offset)
        op = self.ops[self.found.maker[tensor]]
        if found is None or op["op"] not in MOVES or self.views[op["inputs"][0]].whole:
            return None
        if size == whole:
            return found if view.whole and op["op"] == "transpose" else None
        return found if self.found.maker[view.root] in self.of else None

    def _arranged(self, region: Region, rows: Sequence[int], tensor: int) -> list[int] | None:
        """The order of the region's axes (rows and columns) in which a tensor has a value of it."""
        view = self.views[tensor]
        own = (*rows, region.widths[view.root])
        ones = [i for i, n in enumerate(own) if n == 1]
        inner = math.prod(own)
        if view.offset or inner != math.prod(self.shape[tensor]):
            return None
        order, parts = [], list(reversed(merged(view.parts)))
        # The region's axes in the order in which the tensor goes through its parts.
        steps = natural(own)
        while parts:
            n, s = parts.pop()
            axis = next((i for i, d in enumerate(own) if d > 1 and i not in order
                         and steps[i] * d == s * n and n % d == 0), None)  # fmt: skip
            if axis is None:
                return None
            order.append(axis)
            if n > own[axis]:
                parts.append((n // own[axis], s))
        return ones + order if len(order) + len(ones) == len(own) else None

    def _reads(self, unit: Unit) -> list[int]:
        if not isinstance(unit, Region):
            op = self.ops[unit]
            return [self.views[op["results"][0]].root] if unit in self.cuts else list(op["inputs"])
        found: list[int] = []
        for member in unit.members:
            found += [o.tensor for o in self.found.read(unit, member) if o.kind == "ext"]
        return found

    def _emit(self, unit: Unit) -> None:
        if isinstance(unit, Region):
            Kernel(self, unit, self.results[id(unit)]).emit()
            return
        op = self.ops[unit]
        if unit in self.cuts:
            result = op["results"][0]
            source = self.part(self.to[self.views[result].root], self.cuts[unit])
            tile = permuted(self.result, source, self.cuts[unit])
            self.to[result] = self.result.reshape(tile, self.shape[result])
            return
        inputs = [self.to[i] for i in op["inputs"]]
        if op["op"] in ("reshape", "broadcast") and inputs[0].shape == self.shape[op["results"][0]]:
            self.to[op["results"][0]] = inputs[0]
        elif op["op"] != "input":
            copy_op(op, self.graph, self.result, self.to)

    def part(self, source: Tensor, found: Reading) -> Tensor:
        """The part of a tensor that is read, in the shape in which it is."""
        if source.shape != found.shape:
            whole = source
            source = self.once_emitted(
                (whole.id, found.shape), lambda: self.result.reshape(whole, found.shape)
            )
        if not found.cuts:
            return source
        attrs = {"starts": list(found.starts), "stops": list(found.stops),
                 "steps": [1] * len(found.starts)}  # fmt: skip
        return self.once_emitted((source.id, found.starts, found.stops),
                                 lambda: self.result.emit("slice", [source], attrs))  # fmt: skip

    def once_emitted(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """The tensor made for a key, made the first time."""
        if key not in self._seen:
            self._seen[key] = make()
        return self._seen[key]


def permuted(to: Builder, tile: Tensor, found: Reading) -> Tensor:
    """What was read, with the operand's axes in their order."""
    if found.gone:
        tile = to.emit("squeeze", [tile], {"axes": list(found.gone)})
    if found.perm != sorted(found.perm):
        tile = to.emit("transpose", [tile], {"perm": found.perm})
    return tile


class Kernel:
    """The kernel of one region."""

    def __init__(self, fusion: Fusion, region: Region, results: list[int]) -> None:
        self.fusion, self.found = fusion, fusion.found
        self.results, self.given = results, region
        self.region = self._simplest(region)
        self.rows = self.region.rows
        self.depth = self.columns = 0
        if self.region.products:
            op = self.found.ops[self.region.products[0]]
            self.depth, self.columns = self.found.shape[op["inputs"][1]][-2:]
        self.grid: list[tuple[int, int]] = []  # axis (rows, then columns) and parts
        self.iterations = 1
        self._cut()
        self._tiles: dict[int, Tensor] = {}
        self._read: dict[Hashable, Tensor] = {}

    # --- shapes
    def _simplest(self, region: Region) -> Region:
        """The region with as few axes of rows as its operands allow; results as they are wanted."""
        outside = set(self.fusion._reads(region))

        def fits(rows: tuple[int, ...]) -> Region | None:
            made = Region(rows)
            for member in region.members:
                if not self.found._fits(made, member):
                    return None
                self.found._note(made, member)
            arranged = all(self.fusion._arranged(made, rows, t) is not None for t in self.results)
            return made if arranged and set(self.fusion._reads(made)) == outside else None

        for t in self.results:  # an output has its own axes, else it is copied
            shape = self.found.shape[t]
            if t in self.fusion.graph.core.outputs and len(shape) > 1 and len(shape) < 5:
                made = fits(shape[:-1])
                if made is not None and all(
                    shape[-1] == made.widths[r]
                    for r in [self.found.views[t].root]
                    if r in made.widths
                ):
                    return made
        axis = 0
        while axis + 1 < len(region.rows):
            rows = region.rows
            made = fits((*rows[:axis], rows[axis] * rows[axis + 1], *rows[axis + 2 :]))
            if made is None:
                axis += 1
            else:
                region = made
        if not region.products and all(
            self.found.ops[m]["op"] not in REDUCTIONS | {"gather", "concat"} for m in region.members
        ):
            return self._balanced(region, fits)
        return region

    def _balanced(self, region: Region, fits: Callable[..., Region | None]) -> Region:
        """Rows of a good length where all is element by element."""
        widths = set(region.widths.values())
        if len(widths) > 1 or len(region.rows) > 1:
            return region
        width, rows = widths.pop(), region.rows[0]
        if width >= 16 and (rows > 1 or width <= _MOST_ALONE):
            return region
        total = rows * width
        for parts in range(min(_BLOCKS, max(1, total // 256)), 0, -1):
            if total % parts == 0 and (made := fits((parts,))) is not None:
                return made
        return region

    def _cut(self) -> None:
        rows, parts = self.rows, []
        if self.region.products:
            batch, m = math.prod(rows[:-1]), rows[-1]
            dtype = dtype_name(Tensor(self.fusion.graph, self.found.ops[self.region.products[0]]
                                      ["inputs"][1]).dtype)  # fmt: skip
            parts = [(i, d) for i, d in enumerate(rows[:-1]) if d > 1]
            tiles = _core.product_tiles(dtype, batch, m, self.columns, self.depth)
            if self.region.whole:
                widest = max(self.region.widths.values())
                most = max(8, min(m if len(rows) > 1 else _TILE_ROWS, _TILE_BYTES // (4 * widest)))
                blocks = max(-(-m // most), min(2, m // 8) if batch < 4 else 1)
                self.iterations = -(-self.depth // _DEPTH) if self.depth > 2 * _DEPTH else 1
            else:
                blocks, columns, self.iterations = tiles
                if columns > 1:
                    parts.append((len(rows), columns))
            if blocks > 1:
                parts.append((len(rows) - 1, blocks))
        else:
            left, first = _BLOCKS, self._outermost()
            for i in sorted(range(len(rows)), key=lambda i: -first.count(i)):
                if left > 1 and rows[i] > 1:
                    parts.append((i, min(rows[i], left)))
                    left = -(-left // rows[i])
            alone = not parts and math.prod(rows) == 1
            if alone and max(self.region.widths.values()) > _MOST_ALONE:
                raise UnfitError(self.given)
        if len(parts) > 3:
            raise UnfitError(self.given)
        self.grid = sorted(parts)

    def _outermost(self) -> list[int]:
        """The axis of rows that each operand and result is furthest apart along: blocks that take
        a piece of it touch few pages."""
        found = []
        for member in self.region.members:
            operands = self.found.read(self.region, member)
            by_row = [o.strides[: len(self.rows)] for o in operands if o.kind == "ext"]
            found += [strides.index(max(strides)) for strides in by_row if any(strides)]
        for t in self.results:
            order = self._order(t)
            found.append(next((a for a in order if a < len(self.rows) and self.rows[a] > 1), 0))
        return found

    def _order(self, tensor: int) -> list[int]:
        """The order of axes in which a result is written."""
        order = self.fusion._arranged(self.region, self.rows, tensor)
        assert order is not None
        return order

    # --- the block graph
    def emit(self) -> None:
        try:
            self._emit()
        except Error as error:
            raise UnfitError(self.given, error.message) from None

    def _emit(self) -> None:
        loops = [self.iterations] if self.iterations > 1 else []
        with self.fusion.result.kernel([], [n for _, n in self.grid] or 1, loops) as self.block:
            for member in self.region.members:
                op = self.found.ops[member]
                operands = self.found.read(self.region, member)
                self._tiles[op["results"][0]] = self._member(op, operands)
            for t in self.results:
                self._save(t)
        for t, made in zip(self.results, self.block.outputs, strict=True):
            shape = self.found.shape[t]
            self.fusion.to[t] = (
                made if made.shape == shape else self.fusion.result.reshape(made, shape)
            )

    def _member(self, op: Record, operands: list[Operand]) -> Tensor:
        result = op["results"][0]
        width = self.region.widths[result]
        last = len(self.rows)
        if op["op"] == "matmul":
            return self._product(op, operands)
        if op["op"] == "gather":
            table, index = self._table(operands[0]), self._operand(operands[1], 1)
            index = self.block.emit("squeeze", [index], {"axes": [last]})
            return self.block.emit("gather", [table, index], {"axis": 0})
        if op["op"] in REDUCTIONS:
            before = math.prod(self.found.shape[op["inputs"][0]]) // math.prod(self.rows)
            x = self._full(self._operand(operands[0], before), before)
            return self.block.emit(op["op"], [x], {"axes": [last], "keepdims": True})
        if op["op"] == "concat":
            tiles = []
            for i, o in zip(op["inputs"], operands, strict=True):
                n = self.found.shape[i][-1]
                tiles.append(self._full(self._operand(o, n), n))
            return self.block.emit("concat", tiles, {"axis": last})
        tiles = [self._operand(o, width) for o in operands]
        made = self.block.emit(op["op"], tiles, op["attrs"])
        return made if len(made.shape) == last + 1 else self._full(made, width)

    def _product(self, op: Record, operands: list[Operand]) -> Tensor:
        k, n = self.found.shape[op["inputs"][1]][-2:]
        looped = self.iterations > 1 and operands[0].kind == "ext"
        right = self._external(operands[1], (*self.rows[:-1], k, n), looped, right=True)
        if operands[0].kind == "in":
            divided = self._division(operands[0])
            if divided is not None:  # sums are divided instead of their terms
                return self.block.emit("div", [self.block.emit("matmul", [divided[0], right]),
                                               divided[1]])  # fmt: skip
            return self.block.emit("matmul", [self._full(self._operand(operands[0], k), k), right])
        left = self._external(operands[0], (*self.rows, k), looped, left=True)
        made = self.block.emit("matmul", [left, right])
        return self.block.accum(made) if looped else made

    def _division(self, operand: Operand) -> tuple[Tensor, Tensor] | None:
        """Dividend and divisor of a value that is divided by one number per row."""
        op = self.found.ops[self.found.maker[operand.tensor]]
        if op["op"] != "div" or operand.tensor in self.results:
            return None
        x, by = self.found.read(self.region, self.found.maker[operand.tensor])
        whole = operand.width == self.region.widths[operand.tensor] == x.width
        if x.kind != "in" or by.kind != "in" or by.width != 1 or not whole:
            return None
        return self._operand(x, x.width), self._operand(by, 1)

    def _save(self, tensor: int) -> None:
        order = self._order(tensor)
        view = self.found.views[tensor]
        width = self.region.widths[view.root]
        tile = self._full(self._tiles[view.root], width)
        shape = [(*self.rows, width)[i] for i in order]
        if order != list(range(len(order))):
            tile = self.block.emit("transpose", [tile], {"perm": order})
        cut = [axis if axis < len(self.rows) or width == self.columns else None
               for axis, _ in self.grid]  # fmt: skip
        omap = [None if axis is None else order.index(axis) for axis in cut]
        self.block.save(tile, omap=omap or [None], shape=shape)

    # --- operands
    def _operand(self, operand: Operand, width: int) -> Tensor:
        if operand.kind == "const":
            attrs = self.found.ops[self.found.maker[operand.tensor]]["attrs"]
            return self.block.emit("const", [], {"value": attrs["value"],
                                                 "type": (attrs["type"][0], [])})  # fmt: skip
        if operand.kind == "ext":
            return self._external(operand, (*self.rows, width))
        tile = self._tiles[operand.tensor]
        if operand.width == self.region.widths[operand.tensor] or tile.shape[-1] == 1:
            return tile
        starts = [0] * (tile.ndim - 1) + [operand.offset]
        stops = [*tile.shape[:-1], operand.offset + operand.width]
        return self.block.emit("slice", [tile], {"starts": starts, "stops": stops,
                                                 "steps": [1] * tile.ndim})  # fmt: skip

    def _tile_shape(self, width: int) -> list[int]:
        shape = [*self.rows, width]
        for axis, parts in self.grid:
            if axis < len(self.rows) or width == self.columns:
                shape[axis] = -(-shape[axis] // parts)
        return shape

    def _full(self, tile: Tensor, width: int) -> Tensor:
        """The tile with all its rows and columns, where it was the same along some."""
        shape = self._tile_shape(width)
        if list(tile.shape) == shape:
            return tile
        return self.block.emit("broadcast", [tile], {"shape": shape})

    def _table(self, operand: Operand) -> Tensor:
        source = self.fusion.to[operand.tensor]
        self.block.add_argument(source)
        return self.block.iter(source, imap=[None] * max(1, len(self.grid)))

    def _external(self, operand: Operand, shape: Sequence[int], looped: bool = False,
                  left: bool = False, right: bool = False) -> Tensor:  # fmt: skip
        """A tile of an operand of that shape; its rows first, in a right operand without the last
        of them."""
        key = (operand, tuple(shape), looped, right)
        if key in self._read:
            return self._read[key]
        rank, rows = len(shape), len(self.rows)
        source = self.fusion.to[operand.tensor]
        found = reading(math.prod(source.shape), shape, operand.strides, operand.offset)
        assert found is not None
        source = self.fusion.part(source, found)
        imap: list[int | None] = []
        for axis, _ in self.grid:
            own: int | None = axis
            if right and axis == rows - 1:
                own = None
            elif axis == rows:  # columns of products
                own = rank - 1 if right or (not left and shape[-1] == self.columns) else None
            imap.append(found.axes.get(own) if own is not None else None)
        fmap = []
        if self.iterations > 1:
            fmap = [found.axes.get(rank - 2 if right else rank - 1) if looped else None]
        self.block.add_argument(source)
        tile = self.block.iter(source, imap=imap or [None], fmap=fmap)
        tile = permuted(self.block, tile, found)
        missing = [a for a in range(rank) if a not in found.axes]
        if missing:
            tile = self.block.emit("unsqueeze", [tile], {"axes": missing})
        self._read[key] = tile
        return tile
