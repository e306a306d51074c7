"""Where the places of a symbolic size are in an ATen graph, and whether more of them stay apart."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import Argument

from tessera.frontends.torch.call import is_scalar_function, operator_name
from tessera.frontends.torch.padding import Padding
from tessera.frontends.torch.sizes import Size, expression, sizes_of, symbols_of
from tessera.types import Axes, Function, Values

# Of each axis: None, or how many elements lie around and within the places of the symbol; of an
# axis of n + d elements (1, 1, d): those that n has are its first, whatever n' is.
Axis = tuple[Size, ...] | None
Layout = tuple[Axis, ...]
Layouts = Any  # of a node: a Layout, or several, or None of what is no tensor
_RENAMES = {"aten.alias.default", "aten.clone.default", "aten.detach.default"}
_VIEWS = {"aten.view.default", "aten._unsafe_view.default", "aten.reshape.default",
          "aten.view_copy.default"}  # fmt: skip
_REDUCTIONS = {"aten.sum.dim_IntList", "aten.mean.dim", "aten.amax.default", "aten.amin.default",
               "aten.var.correction", "aten.any.dim", "aten.logsumexp.default"}  # fmt: skip
_ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"


class _RefusedError(Exception):
    """What does not survive a longer size."""


def paddings(module: torch.fx.GraphModule) -> list[Padding]:
    """One for each symbol of the graph that may be rounded up; others keep their sizes."""
    found: dict[Size, tuple[int, int | None]] = {}
    for i, node in enumerate(module.graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        sizes = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]
        for axis, size in sizes:
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                found.setdefault(size.node.expr, (i, axis))
    made = [walk.padding for s in found if not isinstance(walk := _walked(module, s), str)]
    for padding in made:
        padding.places = found
    return made


def why_not(module: torch.fx.GraphModule) -> list[str]:
    """Per symbol of the graph that cannot be rounded up the reason."""
    symbols = symbols_of(n.meta.get("val") for n in module.graph.find_nodes(op="placeholder"))
    walks = {symbol: _walked(module, symbol) for symbol in sorted(symbols, key=str)}
    return [f"{symbol}: {why}" for symbol, why in walks.items() if isinstance(why, str)]


def _walked(module: torch.fx.GraphModule, symbol: Size) -> _Walk | str:
    """What follows the places of a symbol through a graph, or why nothing does."""
    try:
        return _Walk(module, symbol)
    except _RefusedError as refused:
        return str(refused)


class _Walk:
    """Follows the places of one symbol through a graph."""

    def __init__(self, module: torch.fx.GraphModule, symbol: Size) -> None:
        self.symbol = symbol
        self.padding = Padding(symbol)
        self.layout: dict[Node, Layouts] = {}  # of nodes with tensors: a Layout, or several
        for i, node in enumerate(module.graph.find_nodes(op="placeholder")):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                self.layout[node] = self._plain(value)
                axes = [a for a, x in enumerate(self.layout[node]) if x]
                if axes:
                    self.padding.inputs[i] = axes
            elif self._has(value):
                self.padding.numbers[i] = value.node.expr
        for node in module.graph.nodes:
            if node.op == "call_function":
                self.layout[node] = self._node(node)
            elif node.op == "output":
                self._results(node.args[0])

    def _in(self, size: Size) -> bool:
        return self.symbol in getattr(size, "free_symbols", ())

    def _has(self, value: Argument) -> bool:
        return any(map(self._in, sizes_of(value)))

    def _plain(self, value: torch.Tensor) -> Layout:
        """Of axes that are the symbol itself, or do without it."""
        return tuple(map(self._axis, map(expression, value.shape)))

    def _axis(self, size: Size) -> tuple[int, int] | None:
        if not self._in(size):
            return None
        if size != self.symbol:
            raise _RefusedError(f"an axis of {size}")
        return 1, 1

    def _of(self, node: Node) -> Layout:
        made: Layout = self.layout[node]
        return made

    def _results(self, results: Argument) -> None:
        for i, node in enumerate(results if isinstance(results, (list, tuple)) else [results]):
            if not isinstance(node, Node):
                continue
            if not isinstance(node.meta.get("val"), torch.Tensor):
                if self._has(node.meta.get("val")):
                    raise _RefusedError("a size as a result")
                continue
            if any(x and len(x) > 2 for x in self._of(node)):
                raise _RefusedError("a result that is longer or shorter than the size")
            axes = [(a, x[1]) for a, x in enumerate(self._of(node)) if x]
            if axes:
                self.padding.results[i] = axes

    # --- one operator
    def _node(self, node: Node) -> Layouts:
        value, name = node.meta.get("val"), operator_name(node.target)
        if node.target is operator.getitem:
            return self.layout[node.args[0]][node.args[1]]
        if is_scalar_function(node.target):
            return None
        if not self._has(value) and not any(self._has(n.meta.get("val"))
                                            for n in node.all_input_nodes):  # fmt: skip
            if isinstance(value, (list, tuple)):
                return [(None,) * v.ndim if isinstance(v, torch.Tensor) else None for v in value]
            return (None,) * value.ndim
        handler: Function | None = _RULES.get(name)
        if handler is None and torch.Tag.pointwise in getattr(node.target, "tags", ()):
            handler = _Walk._pointwise
        if handler is None:
            raise _RefusedError(f"{name} is not known to keep places apart")
        return handler(self, node, *node.args, **node.kwargs)

    def _no_sizes(self, node: Node) -> None:
        """Numbers that depend on the symbol would be those of the longer size."""
        for n in node.all_input_nodes:
            if not isinstance(n.meta.get("val"), (torch.Tensor, list, tuple)) and self._has(
                n.meta.get("val")):  # fmt: skip
                raise _RefusedError(f"{operator_name(node.target)} computes with the size")

    def _from(self, value: torch.Tensor, *sources: tuple[Node, int]) -> Layout:
        """Axes of a result as those of operands; `sources`: nodes, and the result's axis at which
        their first one is (several are aligned)."""
        axes: list[Axis] = []
        for axis, size in enumerate(map(expression, value.shape)):
            if not self._in(size):
                axes.append(None)
                continue
            found = set()
            for node, first in sources:
                own = self._of(node)
                at = axis - first
                if 0 <= at < len(own) and own[at] is not None:
                    if expression(node.meta["val"].shape[at]) != size:
                        raise _RefusedError("axes of different sizes")
                    found.add(own[at])
            if len(found) != 1:
                raise _RefusedError("an axis that no operand has, or several in different ways")
            axes.append(found.pop())
        return tuple(axes)

    def _pointwise(self, node: Node, *args: Argument, **kwargs: Argument) -> Layout:
        self._no_sizes(node)
        value = node.meta["val"]
        return self._from(value, *((n, value.ndim - n.meta["val"].ndim) for n in
                                   node.all_input_nodes
                                   if isinstance(n.meta.get("val"), torch.Tensor)))  # fmt: skip

    def _same(self, node: Node, x: Node, *_: Argument, **__: Argument) -> Layout:
        return self._of(x)

    def _view(self, node: Node, x: Node, *_: Argument) -> Layout:
        """The symbol's places stay where they are in row-major order."""
        left: list[Size] = []
        for size, own in zip(map(expression, x.meta["val"].shape), self._of(x), strict=True):
            if own is not None and len(own) > 2:
                raise _RefusedError(f"a view of an axis of {size}")
            left += [size] if own is None else [own[0], self.symbol, own[1]]
        left = [f for f in reversed(left) if f != 1]
        axes: list[Axis] = []
        for size in map(expression, node.meta["val"].shape):
            around = self._take(left, None if self._in(size) else size)
            if not self._in(size):
                axes.append(None)
                continue
            within = size / (self.symbol * around)
            whole = getattr(within, "is_Integer", isinstance(within, int))
            within = int(within) if whole else within
            if self._in(within):
                raise _RefusedError("a view that has the size twice in an axis")
            self._take(left, within)
            axes.append((around, within))
        return tuple(axes)

    def _take(self, left: list[Size], size: Size) -> Size:
        """Factors that make up a size; with None those before the symbol, and the symbol."""
        taken: Size = 1
        while left and (size is None or taken != size):
            factor = left.pop()
            if factor == self.symbol:
                if size is None:
                    return taken
                raise _RefusedError("a view that divides the size")
            if size is not None and isinstance(factor, int) and isinstance(size, int):
                need = size // taken if size % taken == 0 else 0
                if need and factor > need:
                    if factor % need:
                        raise _RefusedError("a view that divides an axis unevenly")
                    left.append(factor // need)
                    factor = need
            taken = taken * factor
        if size is None or taken != size:
            raise _RefusedError("a view that mixes axes")
        return taken

    def _transpose(self, node: Node, x: Node, a: int = 0, b: int = 1) -> Layout:
        own = list(self._of(x))
        if len(own) > 1:
            own[a], own[b] = own[b], own[a]
        return tuple(own)

    def _unsqueeze(self, node: Node, x: Node, dim: int) -> Layout:
        own = list(self._of(x))
        own.insert(dim % (len(own) + 1), None)
        return tuple(own)

    def _squeeze(self, node: Node, x: Node, dims: Axes = None) -> Layout:
        own, shape = self._of(x), x.meta["val"].shape
        gone = range(len(own)) if dims is None else [dims] if isinstance(dims, int) else dims
        axes = {d % len(own) for d in gone if isinstance(shape[d], int) and shape[d] == 1}
        return tuple(a for i, a in enumerate(own) if i not in axes)

    def _expand(self, node: Node, x: Node, *_: Argument, **__: Argument) -> Layout:
        value, own = node.meta["val"], self._of(x)
        own = (None,) * (value.ndim - len(own)) + own
        sizes = map(expression, value.shape)
        return tuple(self._axis(n) if a is None else a for a, n in zip(own, sizes, strict=True))

    def _slice(self, node: Node, x: Node, dim: int = 0, start: Argument = None,
               end: Argument = None, step: int = 1) -> Layout:  # fmt: skip
        dim %= len(self._of(x))
        own, value = list(self._of(x)), node.meta["val"]
        have, want = (expression(v.shape[dim]) for v in (x.meta["val"], value))
        if have == want:
            return tuple(own)
        if start not in (None, 0) and not isinstance(start, int):
            raise _RefusedError("a part that begins at a size")
        if own[dim] is None and self._in(want):
            from_front = start in (None, 0) and step == 1
            if not from_front or want != self.symbol or not isinstance(have, int):
                raise _RefusedError("a part of a table that does not begin with it")
            self.padding.most = min(self.padding.most, have)
            own[dim] = (1, 1)
        elif (mine := own[dim]) is not None and self._in(want):
            more = want - self.symbol
            if mine[:2] != (1, 1) or step != 1 or (start or 0) < 0 or not more.is_Integer:
                raise _RefusedError("a part of the size that is not counted from the front")
            own[dim] = _longer(int(more))
        elif own[dim] is not None:
            self._static(value.shape[dim], own[dim], start, "a part")
            own[dim] = None
        return tuple(own)

    def _static(self, size: Argument, own: Argument, start: Argument, what: str) -> None:
        """Places counted from the front, which exist at any size."""
        if own[:2] != (1, 1) or not isinstance(size, int) or (start or 0) < 0:
            raise _RefusedError(f"{what} of the size that is not counted from the front")

    def _select(self, node: Node, x: Node, dim: int, index: Argument) -> Layout:
        own = list(self._of(x))
        chosen = own.pop(dim % len(own))
        if chosen is not None:
            self._no_sizes(node)
            self._static(1, chosen, index, "an element")
        return tuple(own)

    def _embedding(
        self, node: Node, table: Node, index: Node, *_: Argument, **__: Argument
    ) -> Layout:
        if any(self._of(table)):
            raise _RefusedError("a table of that size")
        self._reach(index, table.meta["val"].shape[0])
        return (*self._of(index), None)

    def _index(self, node: Node, x: Node, indices: Sequence[Node]) -> Layout:
        """Elements by the positions of the first axes."""
        if any(i is None for i in indices):
            raise _RefusedError("elements by the positions of some axes")
        own, shape = self._of(x), x.meta["val"].shape
        for axis, index, size in zip(own, indices, shape, strict=False):
            if axis is not None and (axis != (1, 1) or _counts_from(index) is None):
                # Negative ones would be counted from the end.
                raise _RefusedError("elements of that size, by position")
            self._reach(index, size)
        ranks = [i.meta["val"].ndim for i in indices]
        value, rank = node.meta["val"], max(ranks)
        sources = [(i, rank - n) for i, n in zip(indices, ranks, strict=True)]
        head = self._from(value.new_empty(value.shape[:rank]), *sources)
        return (*head, *own[len(indices) :])

    def _reach(self, index: Argument, size: Size) -> None:
        """Positions that grow with the symbol end with the table that they are looked up in."""
        first = _counts_from(index)
        if first is not None and any(self._of(index)):
            if not isinstance(size, int) and expression(size) != self.symbol:
                raise _RefusedError("a table of another size that may change")
            if isinstance(size, int):
                self.padding.most = min(self.padding.most, size - first)

    def _gather(self, node: Node, x: Node, dim: int, index: Node, **_: Argument) -> Layout:
        own, places = list(self._of(x)), list(self._of(index))
        if own.pop(dim) is not None or own != [a for i, a in enumerate(places) if i != dim % len(
            places)]:  # fmt: skip
            raise _RefusedError("elements of that size, by position")
        return tuple(places)

    def _product(self, node: Node, *args: Argument, **kwargs: Argument) -> Layout:
        self._no_sizes(node)
        first = len(args) - 2  # a sum comes before
        x, y = args[first:]
        value = node.meta["val"]
        own, other = self._of(x), self._of(y)
        if own[-1] is not None or other[-2] is not None:
            if own[-1] != (1, 1) or other[-2] != (1, 1):
                raise _RefusedError("a product over several axes as one")
            self.padding.masks[node] = [(first, x.meta["val"].ndim - 1, 0.0),
                                        (first + 1, y.meta["val"].ndim - 2, 0.0)]  # fmt: skip
        batch = own[0] if value.ndim == 3 else None
        if value.ndim == 3 and batch != other[0]:
            raise _RefusedError("a batch that is laid out in two ways")
        return (*((batch,) if value.ndim == 3 else ()), own[-2], other[-1])

    def _layer_norm(self, node: Node, x: Node, shape: Sequence[int], *_: Argument) -> list[Layout]:
        self._no_sizes(node)
        own = self._of(x)
        if any(own[len(own) - len(shape) :]):
            raise _RefusedError("a norm along the size")
        return [own, own, own]

    def _softmax(self, node: Node, x: Node, dim: int, half: bool = False) -> Layout:
        own = self._of(x)
        if own[dim] is not None:
            if own[dim] != (1, 1):
                raise _RefusedError("a softmax over several axes as one")
            self.padding.masks[node] = [(0, dim % len(own), -math.inf)]
        return own

    def _reduce(
        self, node: Node, x: Node, dims: Axes = None, *_: Argument, **__: Argument
    ) -> Layout:
        own = list(self._of(x))
        dims = [dims] if isinstance(dims, int) else dims
        axes = {d % len(own) for d in dims} if dims else set(range(len(own)))
        if any(own[a] is not None for a in axes):
            raise _RefusedError("a reduction along the size")
        keep = node.meta["val"].ndim == len(own)
        return tuple(a for i, a in enumerate(own) if keep or i not in axes)

    def _running(self, node: Node, x: Node, dim: int, **_: Argument) -> Layout:
        own = self._of(x)
        if own and own[dim] not in (None, (1, 1)):
            raise _RefusedError("a running sum over several axes as one")
        return own

    def _attention(self, node: Node, q: Node, k: Node, v: Node, dropout: float = 0.0,
                   causal: bool = False, **kwargs: Argument) -> list[Layout | None]:  # fmt: skip
        self._no_sizes(node)
        queries, keys, values = self._of(q), self._of(k), self._of(v)
        if keys[:-1] != values[:-1] or queries[:2] != keys[:2] or any(
            x[-1] is not None for x in (queries, keys, values)
        ):  # fmt: skip
            raise _RefusedError("attention of axes that are laid out in two ways")
        if keys[2] is not None:
            if keys[2] != (1, 1) or len(keys) != 4:
                raise _RefusedError("attention over several axes as one")
            mask = kwargs.get("attn_mask")
            # What is added to scores must find numbers there.
            added = mask is None or mask.meta["val"].dtype is not torch.bool
            self.padding.masks[node] = [(1, 2, 0.0)] * added + [(2, 2, 0.0)]
            self.padding.scores.add(node)
        return [queries, queries[:3]]

    def _concat(self, node: Node, tensors: Values, dim: int = 0) -> Layout:
        value = node.meta["val"]
        dim %= value.ndim
        own = {(*x[:dim], None, *x[dim + 1 :]) for x in map(self._of, tensors)}
        if len(own) != 1:
            raise _RefusedError("operands that are laid out in different ways")
        axes = list(own.pop())
        *before, last = (self._of(t)[dim] for t in tensors)
        if any(before) or last is not None:
            # Only what comes before the last operand is where it was, at any size.
            more = expression(value.shape[dim]) - self.symbol
            if any(before) or last is None or last[:2] != (1, 1) or not more.is_Integer:
                raise _RefusedError("a concatenation along the size")
            axes[dim] = _longer(int(more))
        return tuple(axes)

    def _split(self, node: Node, x: Node, sizes: Argument, dim: int = 0) -> list[Layout]:
        if self._of(x)[dim] is not None:
            raise _RefusedError("a division of the size")
        return [self._of(x)] * len(node.meta["val"])

    def _full(self, node: Node, shape: Argument, value: Argument, **_: Argument) -> Layout:
        if isinstance(value, Node):
            raise _RefusedError("a constant that is computed")
        return self._plain(node.meta["val"])

    def _arange(
        self, node: Node, start: Argument, end: Argument, step: Argument = 1, **_: Argument
    ) -> Layout:
        if isinstance(start, Node) or isinstance(step, Node):
            raise _RefusedError("numbers that begin at a size")
        if start != 0 or step != 1:
            raise _RefusedError("numbers that do not begin at 0")
        return self._plain(node.meta["val"])


def _longer(more: int) -> tuple[int, ...]:
    """An axis that has so many elements more than the symbol (or less)."""
    return (1, 1, more) if more else (1, 1)


def _counts_from(node: Node) -> int | None:
    """Of an operator's result that is 0, 1, 2, … plus a number, in some shape: that number."""
    if not isinstance(node, Node) or node.op != "call_function":
        return None
    name = operator_name(node.target)
    if name == "aten.arange.start_step":
        plain = node.args[0] == 0 and (len(node.args) < 3 or node.args[2] == 1)
        return 0 if plain else None
    if name == "aten.slice.Tensor" and node.args[2:3] not in ((), (0,), (None,)):
        return None
    if name == "aten.add.Tensor" and isinstance(node.args[1], int) and node.args[1] >= 0:
        before = _counts_from(node.args[0])
        return None if before is None else before + node.args[1]
    whole = _RENAMES | _VIEWS | {"aten.unsqueeze.default", "aten.expand.default",
                                 "aten.slice.Tensor"}  # fmt: skip
    return _counts_from(node.args[0]) if name in whole else None


_RULES: dict[str, Function] = {
    **dict.fromkeys(_VIEWS, _Walk._view), **dict.fromkeys(_RENAMES, _Walk._same),
    **dict.fromkeys(_REDUCTIONS, _Walk._reduce),
    **dict.fromkeys(("aten.mm.default", "aten.bmm.default", "aten.addmm.default"), _Walk._product),
    **dict.fromkeys(("aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default"),
                    _Walk._squeeze),
    **dict.fromkeys(("prims.convert_element_type.default", "aten._to_copy.default"), _Walk._same),
    **dict.fromkeys(("aten.split_with_sizes.default", "aten.split.Tensor"), _Walk._split),
    "aten.full_like.default": _Walk._pointwise,
    "aten.permute.default": lambda walk, node, x, dims: tuple(walk._of(x)[d] for d in dims),
    "aten.transpose.int": _Walk._transpose, "aten.t.default": _Walk._transpose,
    "aten.unsqueeze.default": _Walk._unsqueeze, "aten.expand.default": _Walk._expand,
    "aten.slice.Tensor": _Walk._slice, "aten.select.int": _Walk._select,
    "aten.embedding.default": _Walk._embedding, "aten.index.Tensor": _Walk._index,
    "aten.gather.default": _Walk._gather,
    "aten._softmax.default": _Walk._softmax,
    "aten.native_layer_norm.default": _Walk._layer_norm, "aten.cumsum.default": _Walk._running,
    _ATTENTION: _Walk._attention, "aten.cat.default": _Walk._concat,
    "aten.full.default": _Walk._full, "aten.arange.start_step": _Walk._arange,
}  # fmt: skip
