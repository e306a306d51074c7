"""What is left between the parts of a PyTorch graph: by Inductor, or on one thread."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import Argument
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner, Partition
from torch.fx.passes.operator_support import OperatorSupportBase

from tessera.frontends.torch.call import is_scalar_function, only_moves
from tessera.torch_programs import Results
from tessera.torch_support import is_view
from tessera.types import Function

log = logging.getLogger("tessera.torch")
_AFTER = "tessera_after"  # an operator that is to run before
_MOST_ALONE = 1 << 20  # elements
_LONG, _OFTEN = 2e-4, 3  # seconds on one thread that others would shorten, so many times in a row


def proposed(
    gm: GraphModule, support: OperatorSupportBase
) -> tuple[CapabilityBasedPartitioner, list[Partition]]:
    """The maximal convex parts of what is supported that compute something."""
    partitioner = CapabilityBasedPartitioner(gm, support, allows_single_node_partition=True)
    return partitioner, [p for p in partitioner.propose_partitions()
                         if any(not only_moves(n.target) for n in p.nodes)]  # fmt: skip


@contextlib.contextmanager
def in_order(gm: GraphModule, support: OperatorSupportBase) -> Iterator[None]:
    """Operators that draw random numbers, or may write, depend each on the one before, so that
    parts that are made meanwhile leave them in the order in which PyTorch runs them."""

    def acts(node: Node) -> bool:
        if support.is_node_supported({}, node) or not isinstance(node.target, OpOverload):
            return isinstance(node.target, HigherOrderOperator)  # of any operators
        drawn = torch.Tag.nondeterministic_seeded in node.target.tags
        return drawn or bool(node.target._schema.is_mutable)

    nodes = [n for n in gm.graph.nodes if acts(n)]
    for before, node in itertools.pairwise(nodes):
        node.kwargs = {**node.kwargs, _AFTER: before}
    try:
        yield
    finally:
        for node in gm.graph.nodes:  # copies of those above
            if _AFTER in node.kwargs:
                node.kwargs = {name: a for name, a in node.kwargs.items() if name != _AFTER}


def rest_by_inductor(fused: GraphModule) -> None:
    """Groups what is between the parts, and has Inductor compile each group."""
    from torch._inductor.compile_fx import compile_fx_inner

    class Rest(OperatorSupportBase):  # type: ignore[misc]
        def is_node_supported(self, _: Mapping[str, torch.nn.Module], node: Node) -> bool:
            return node.op == "call_function" and not is_scalar_function(node.target)

    mine = {n.target for n in fused.graph.nodes if n.op == "call_module"}
    partitioner, chosen = proposed(fused, Rest())
    partitioner.fuse_partitions(chosen, prefix="rest_")
    for node in list(fused.graph.nodes):
        if node.op == "call_module" and node.target not in mine:
            sub = getattr(fused, node.target)
            try:
                compiled = compile_fx_inner(sub, [a.meta["val"] for a in node.args])
            except Exception as error:
                log.warning("tessera: Inductor cannot compile what is left: %s", error)
                continue
            delattr(fused, node.target)
            fused.add_module(node.target, Boxed(compiled, sub))


def rest_alone(fused: GraphModule) -> None:
    """Has small operators between the parts run by the calling thread: OpenMP's others would wait
    for the next one for a millisecond, on the processors that the next part runs on."""
    for n, node in enumerate(list(fused.graph.nodes)):
        if isinstance(node.target, OpOverload) and not is_view(node):
            fused.add_submodule(f"alone_{n}", Alone(node.target))
            node.op, node.target = "call_module", f"alone_{n}"


@functools.cache
def openmp() -> ctypes.CDLL | None:
    """What tells and sets how many threads the calling one may use, where PyTorch has it."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return library if library.omp_get_max_threads() else None
    except (OSError, AttributeError):
        return None


class Alone(torch.nn.Module):  # type: ignore[misc]
    """An operator of PyTorch's, on one thread where it has few elements to read and is short."""

    def __init__(self, operator: OpOverload) -> None:
        super().__init__()
        self._operator, self._openmp = operator, openmp()
        self._most, self._long = _MOST_ALONE, 0

    def forward(self, *args: Argument, **kwargs: Argument) -> Results:
        given = [t for a in args for t in (a if isinstance(a, (list, tuple)) else (a,))]
        read = sum(t.numel() for t in given if isinstance(t, torch.Tensor))
        if self._openmp is None or read > self._most:
            return self._operator(*args, **kwargs)
        threads, start = self._openmp.omp_get_max_threads(), time.perf_counter()
        self._openmp.omp_set_num_threads(1)
        try:
            return self._operator(*args, **kwargs)
        finally:
            self._openmp.omp_set_num_threads(threads)
            self._long = self._long + 1 if time.perf_counter() - start > _LONG else 0
            if self._long == _OFTEN:
                self._most, self._long = read - 1, 0


class Boxed(torch.nn.Module):  # type: ignore[misc]
    """A function that takes a list and returns one, called as a module is."""

    def __init__(self, function: Function, like: GraphModule) -> None:
        super().__init__()
        self._function = function
        (output,) = like.graph.find_nodes(op="output")
        self._single = not isinstance(output.args[0], (list, tuple))

    def forward(self, *args: Argument) -> Results:
        made = self._function(list(args))
        return made[0] if self._single else made
