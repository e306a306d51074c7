"""Which nodes of an ATen graph can be compiled, and the graph as that wants it."""

from __future__ import annotations

import operator
from collections.abc import Mapping

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node
from torch.fx.node import Argument
from torch.fx.passes.operator_support import OperatorSupportBase

from tessera import _core, torch_device
from tessera.errors import Error, UnsupportedError
from tessera.frontends.torch.call import concrete, dtype_of, is_scalar_function, operator_name
from tessera.frontends.torch.decompositions import note_insides
from tessera.frontends.torch.importer import Result, run_node
from tessera.graph import Graph
from tessera.types import to_numpy


class Support(OperatorSupportBase):  # type: ignore[misc]
    """Which nodes can be imported: each is tried once, at the sizes of the example."""

    def __init__(self, gm: GraphModule, place: str = "cpu", bits: bool = False) -> None:
        _numbers_known(gm)
        _nothing_joined(gm)
        _any_layout(gm)
        note_insides(gm)
        self._graph = gm.graph
        self._bits = bits  # PyTorch's own are asked for
        self._place = place  # of all tensors
        self.reasons: dict[str, str] = {}  # by operator: the first reason
        self._fits: dict[Node, bool] = {}
        for node in gm.graph.nodes:
            if node.op == "call_function":
                self._fits[node] = self._try(node)
        self._leave_views()

    def is_node_supported(self, _: Mapping[str, torch.nn.Module], node: Node) -> bool:
        return self._fits.get(node, False)

    def leave(self, nodes: set[Node], why: str) -> None:
        """Leaves nodes to PyTorch."""
        for node in nodes:
            if self._fits.get(node):
                self._fits[node] = False
                self.reasons.setdefault(operator_name(node.target), why)
        self._leave_views()

    def is_whole(self, gm: GraphModule) -> bool:
        """Whether the graph is one part: all is supported, and results are computed, each once."""
        (output,) = gm.graph.find_nodes(op="output")
        results = output.args[0]
        inner = [n for n in gm.graph.nodes if n.op not in ("placeholder", "output")]
        return (isinstance(results, (list, tuple)) and len(set(results)) == len(results) > 0
                and all(self._fits.get(n, False) for n in (*inner, *results)))  # fmt: skip

    def _try(self, node: Node) -> bool:
        if node.target is operator.getitem:
            return self._fits.get(node.args[0], False)
        if is_scalar_function(node.target):
            return False  # Python's own numbers
        try:
            graph = _trial(node, self._place)
            if self._bits and (why := _other_bits(node, graph)):
                raise UnsupportedError(f"level bitwise: {why}")
        except Exception as error:
            why = error.message if isinstance(error, Error) else f"{type(error).__name__}: {error}"
            self.reasons.setdefault(operator_name(node.target), why)
            return False
        return True

    def _leave_views(self) -> None:
        """Views that PyTorch wants are views for PyTorch, without a copy and with its strides; of
        what we want, too, we have our own."""
        for node in reversed(list(self._graph.nodes)):
            if not self._fits.get(node) or not is_view(node):
                continue
            if not any(self._fits.get(u) for u in node.users):
                if self._is_small_part(node):
                    self._put_back(node)
                else:
                    self._fits[node] = False
            elif not all(self._fits.get(u) for u in node.users):
                with self._graph.inserting_after(node):
                    theirs = self._graph.node_copy(node)
                node.replace_all_uses_with(theirs, lambda u: not self._fits.get(u))

    def _is_small_part(self, view: Node) -> bool:
        """Whether it is at most half of what is computed for nothing else."""
        whole = view.args[0]
        while is_view(whole) and len(whole.users) == 1:
            whole = whole.args[0]
        part, all_ = view.meta.get("val"), whole.meta.get("val")
        return (self._fits.get(whole, False) and not is_view(whole) and len(whole.users) == 1
                and isinstance(all_, torch.Tensor) and isinstance(part, torch.Tensor)
                and all(isinstance(d, int) for t in (part, all_) for d in (*t.shape, *t.stride()))
                and 0 < 2 * part.numel() <= all_.numel())  # fmt: skip

    def _put_back(self, view: Node) -> None:
        """Has it computed by itself, and copied to where it lies in the whole for PyTorch."""
        aten, value = torch.ops.aten, view.meta["val"]
        with self._graph.inserting_after(view):
            own = self._graph.call_function(
                aten.clone.default, (view,), {"memory_format": torch.contiguous_format}
            )
        own.meta = view.meta | {"val": value.contiguous()}
        self._fits[own] = True
        with self._graph.inserting_after(own):
            place = self._graph.call_function(
                aten.empty_strided.default, (list(value.shape), list(value.stride())),
                {"dtype": value.dtype, "device": value.device})  # fmt: skip
        with self._graph.inserting_after(place):
            theirs = self._graph.call_function(aten.copy_.default, (place, own))
        place.meta = theirs.meta = view.meta
        view.replace_all_uses_with(theirs, lambda u: u is not own)


_VIEWS = {
    "aten.view.default", "aten.permute.default", "aten.t.default", "aten.transpose.int",
    "aten.unsqueeze.default", "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims",
    "aten.expand.default", "aten.slice.Tensor", "aten.select.int", "aten.alias.default",
    "aten.detach.default", "aten.split.Tensor", "aten.split_with_sizes.default",
    "aten.unbind.int", "aten.diagonal.default", "aten.unfold.default", "aten.as_strided.default",
    "aten._unsafe_view.default", "aten.reshape.default",
}  # fmt: skip


def is_view(node: Node) -> bool:
    if node.target is operator.getitem:
        return is_view(node.args[0])
    return node.op == "call_function" and operator_name(node.target) in _VIEWS


def _numbers_known(gm: GraphModule) -> None:
    """Makes constants of the tensors of one element that a model writes down."""
    aten = torch.ops.aten
    for node in gm.graph.find_nodes(op="call_function", target=aten.lift_fresh_copy.default):
        held = getattr(gm, node.args[0].target) if node.args[0].op == "get_attr" else None
        if isinstance(held, torch.Tensor) and held.numel() == 1 and held.device.type == "cpu":
            with gm.graph.inserting_before(node), unset_fake_temporarily():
                number = (list(held.shape), held.item())
                made = gm.graph.call_function(aten.full.default, number, {"dtype": held.dtype})
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            gm.graph.erase_node(node)


def _nothing_joined(gm: GraphModule) -> None:
    """Leaves out of concatenations what has no elements, as caches of keys have at first."""
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default):
        empty = [n for n in node.args[0]
                 if any(isinstance(d, int) and d == 0 for d in n.meta["val"].shape)]  # fmt: skip
        left = [n for n in node.args[0] if n not in empty]
        kinds = {n.meta["val"].dtype for n in (node, *left)}
        if not empty or not left or len(kinds) > 1:
            continue
        node.args = (left, *node.args[1:])
        for n in set(empty):
            if n.op == "call_function" and not n.users:
                gm.graph.erase_node(n)


def _any_layout(gm: GraphModule) -> None:
    """Has views of what may lie otherwise than where it was traced be copies then, as Inductor's:
    kernels of whole operators (norms' gradients) lay results out in their own way."""
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default
    gm.recompile()


# What PyTorch computes by one rounding an element, as the imported operator does, or only moves;
# not sqrt, which MKL's vectors do not round correctly.
_ROUNDED_ONCE = _VIEWS | {
    *(f"aten.{name}.{kind}" for kind in ("Tensor", "Scalar")
      for name in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge")),
    *(f"aten.{name}.default" for name in ("neg", "abs", "clone", "logical_not", "cat", "flip",
                                          "_to_copy")),
    "aten.where.self",
}  # fmt: skip


def _other_bits(node: Node, graph: Graph) -> str:
    """Why a node's program may have other bits than PyTorch's own; empty where it has not."""
    if operator_name(node.target) not in _ROUNDED_ONCE or "alpha" in node.kwargs:
        return "its bits are PyTorch's own"
    return _core.inexact_operator(graph.core)


def _trial(node: Node, place: str) -> Graph:
    """Imports one node alone; raises where that cannot be."""
    graph = Graph("trial")
    values: dict[Node, Result] = {}
    for i, n in enumerate(node.all_input_nodes):
        values[n] = _stand_in(graph, n.meta.get("val"), f"x{i}", place)
    made = run_node(graph, node, values)
    expected = node.meta["val"]
    pairs = zip(made, expected, strict=False) if isinstance(made, list) else [(made, expected)]
    for i, (tensor, value) in enumerate(pairs):
        if tensor is None:
            if any(u.target is operator.getitem and u.args[1] == i for u in node.users):
                raise UnsupportedError(f"its result {i} is wanted")
            continue
        if torch_device.place_of(value) != place:
            raise UnsupportedError(f"its result is on {value.device}")
        have = (*tensor.shape,), tensor.dtype
        want = (*concrete(value.shape),), to_numpy(dtype_of(value.dtype))
        if have != want:
            raise UnsupportedError(f"it would make {have[1]}{list(have[0])}, not "
                                   f"{want[1]}{list(want[0])}")  # fmt: skip
        graph.output(tensor)
    return graph


def _stand_in(graph: Graph, value: Argument, name: str, place: str) -> Result:
    if isinstance(value, (tuple, list)):
        return [_stand_in(graph, v, f"{name}_{i}", place) for i, v in enumerate(value)]
    if isinstance(value, torch.Tensor):
        if torch_device.place_of(value) != place or value.layout is not torch.strided:
            raise UnsupportedError(f"a tensor on {value.device}, {value.layout}")
        shape = concrete(value.shape)
        if 0 in shape or len(shape) > 8:
            raise UnsupportedError("an empty tensor, or one of more than 8 axes")
        return graph.input(name, shape, dtype_of(value.dtype))
    return value if isinstance(value, (int, float, bool)) else concrete([value])[0]
