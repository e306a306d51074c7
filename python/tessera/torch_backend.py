"""`torch.compile(model, backend="tessera")`: AOTAutograd's graphs through Tessera, in parts.

Importing this module registers the backend (an installed package is found by its entry point). What
cannot be compiled runs as PyTorch runs it, with one log line of "tessera.torch" that says why.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import logging
import operator
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend
from torch._functorch.aot_autograd import make_boxed_func
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node
from torch.fx.node import Argument
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from tessera import _core, torch_device
from tessera.compilers import find_compiler
from tessera.errors import Error, UnsupportedError, UsageError
from tessera.frontends.torch.call import (
    concrete,
    dtype_of,
    is_scalar_function,
    only_moves,
    operator_name,
)
from tessera.frontends.torch.importer import Result, handler_of, resolve, run_node
from tessera.frontends.torch.padding import growing
from tessera.graph import Graph
from tessera.options import Level, Options, require_level
from tessera.torch_cache import Kept, LaterGraph, cache_in
from tessera.torch_device import Device
from tessera.torch_explain import REPORTS, Report, explain
from tessera.torch_parts import BEHIND, LATER, Part
from tessera.torch_programs import Results
from tessera.types import Fields, Function, Values, to_numpy

__all__ = ["REPORTS", "Report", "Settings", "explain", "refresh", "reset", "tessera", "wait"]

log = logging.getLogger("tessera.torch")
_MOST_ALONE = 1 << 20  # elements


@dataclass(frozen=True)
class Settings:
    """What `torch.compile(..., options={...})` may say."""

    # Seconds of search per part, for which first calls wait; 0: compiled as it is; None: what is
    # called often is searched for a few seconds, in the background.
    budget: float | None = None
    threads: int = 0  # of the search; kernels run on TESSERA_THREADS, or all processors
    target: str = "auto"  # where a graph's tensors are; "cpu" or "cuda": only there
    fallback: Literal["eager", "inductor"] = "eager"  # what runs the rest
    # As of `ts.optimize`; bitwise: what is not computed as PyTorch computes it is left to PyTorch.
    level: Level = "close"
    strict: bool = False  # raise where something would fall back
    check: bool = True  # compare the first run of every program with PyTorch's own
    race: bool = True  # leave to PyTorch what its own operators compute faster
    # Programs for lengths after the first: made in the background while PyTorch runs, or at once;
    # in the background, and sizes are never rounded up.
    dynamic: Literal["background", "wait", "exact"] = "background"
    wait: bool = False  # first calls, for their programs; so does TESSERA_WAIT=1
    cache_dir: str | None = None  # instead of TESSERA_CACHE_DIR
    weights: bool = True  # pack parameters once per values (inference)
    freeze: bool = False  # promised: nothing writes to them unseen by PyTorch's versions

    def __post_init__(self) -> None:
        for name, allowed in (("fallback", ("eager", "inductor")),
                              ("dynamic", ("background", "wait", "exact"))):  # fmt: skip
            if getattr(self, name) not in allowed:
                raise UsageError(
                    f"torch.compile: option {name} is one of {', '.join(allowed)}, "
                    f"not {getattr(self, name)!r}"
                )
        for name in ("strict", "check", "race", "wait", "weights", "freeze"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"torch.compile: option {name} is True or False")
        require_level(self.level)
        if self.budget:
            Options(budget=self.budget, threads=self.threads)
        if self.target not in ("auto", "cpu", "cuda"):
            raise UsageError(
                f"torch.compile: target {self.target!r} is none of auto (where the tensors are), "
                "cpu and cuda; tensors say which device"
            )

    @property
    def waits(self) -> bool:
        """Whether first calls return what a program of ours computed."""
        asked = os.environ.get("TESSERA_WAIT", "0") != "0"
        return asked or self.wait or self.strict or bool(self.budget)

    @property
    def searches(self) -> bool:
        """Whether programs that are called often are searched for faster ones."""
        return self.budget is None and self.race and not self.strict and self.level != "bitwise"

    @classmethod
    def of(cls, options: Fields | None) -> Settings:
        known = [f.name for f in dataclasses.fields(cls)]
        for name in options or {}:
            if name not in known:
                raise UsageError(
                    f"torch.compile: there is no option {name!r}; options are {', '.join(known)}"
                )
        return cls(**(options or {}))


def tessera(
    module: GraphModule, example_inputs: Values, *, options: Fields | None = None,
    mode: str | None = None, **_: Argument,
) -> Function:  # fmt: skip
    """The backend: a Dynamo graph to a function of the same inputs."""
    settings = Settings.of(options)
    find_compiler()
    if mode not in (None, "default"):
        log.info("tessera: mode %r means nothing here; see options", mode)
    device, problem = torch_device.place_of_graph(example_inputs, settings.target)
    bits = settings.level == "bitwise"
    if bits and device is not None:
        problem = "level bitwise: GPUs have no kernels with PyTorch's bits"
    if problem:
        if settings.strict:
            raise UnsupportedError(f"torch.compile with strict: {problem}")
        log.warning("tessera: %s: it is left to %s", problem, settings.fallback)
        if settings.fallback == "inductor":
            from torch._inductor.compile_fx import compile_fx

            return compile_fx(module, example_inputs)  # type: ignore[no-any-return]
        return module.forward  # type: ignore[no-any-return]

    # Backward graphs are made for what ours save, which eager's norms have in other dtypes.
    training = dataclasses.replace(settings, race=False)

    def traced(inference: Callable[[GraphModule], Function]) -> Function:
        compiled: Function = aot_autograd(
            fw_compiler=lambda gm, _: compile_graph(gm, set(), training, device),
            inference_compiler=lambda gm, _: inference(gm),
            decompositions={} if bits else decompositions(),
        )(module, example_inputs)
        return compiled

    def aten_graph() -> GraphModule:
        found: list[GraphModule] = []

        def keep(gm: GraphModule) -> Function:
            found.append(gm)
            return _boxed(gm.forward)

        with torch.no_grad():
            traced(keep)
        return found[0]

    kept: Kept | None = None
    if device is None and settings.weights and settings.check and not (settings.budget or bits):
        with cache_in(settings.cache_dir):
            kept = Kept(module, example_inputs)
            facts = kept.read()
        if facts is not None:
            later = LaterGraph(module, aten_graph)
            part = Part(later, facts.weights, settings, "whole", None, facts)
            REPORTS.append(Report(facts.operators, [part], {}))
            return part.forward

    def inference(gm: GraphModule) -> Function:
        context = torch._guards.TracingContext.try_get()
        meta = context.fw_metadata if context is not None else None
        whole = kept if kept is not None and kept.is_all(gm, meta) else None
        return compile_graph(gm, _weights(), settings, device, whole)

    return traced(inference)


def _weights() -> set[int]:
    """Placeholders of the graph being compiled among whose values only parameters and buffers
    are."""
    context = torch._guards.TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return set()
    return set(context.fw_metadata.static_input_indices or ())


def _boxed(function: Function) -> Function:
    """The same, which takes its arguments as one list."""
    boxed: Function = make_boxed_func(function)
    return boxed


def wait(timeout: float | None = None) -> bool:
    """Waits until programs that are made, or searched for, in the background are there, at most so
    many seconds; whether they are."""
    start = time.monotonic()
    made = BEHIND.wait(timeout)
    left = None if timeout is None else max(0.0, start + timeout - time.monotonic())
    return LATER.wait(left) and made


def reset() -> None:
    """Called by torch._dynamo.reset()."""
    REPORTS.clear()


tessera.reset = reset  # type: ignore[attr-defined]
register_backend(tessera, name="tessera")


def decompositions() -> dict[OpOverload, Function]:
    """ATen to its core, but for what is imported as a whole."""
    from torch._decomp import core_aten_decompositions, decomposition_table

    kept: dict[OpOverload, Function] = core_aten_decompositions()
    aten = torch.ops.aten
    for packet in (aten.elu, aten.linalg_vector_norm, aten.var_mean,
                   aten._adaptive_avg_pool2d, aten.narrow_copy, aten.native_dropout, aten.ldexp,
                   aten._native_batch_norm_legit, aten.grid_sampler_2d, aten.dist,
                   aten._native_batch_norm_legit_functional):  # fmt: skip
        for overload in packet.overloads():
            function = getattr(packet, overload)
            if function in decomposition_table:
                kept[function] = decomposition_table[function]
    for packet in (aten._scaled_dot_product_flash_attention_for_cpu, aten.silu, aten.baddbmm,
                   aten.native_group_norm, aten.embedding_dense_backward, aten.index_add,
                   aten.index_copy, aten.index_fill, aten.binary_cross_entropy):  # fmt: skip
        for overload in packet.overloads():
            kept.pop(getattr(packet, overload), None)
    made_of_parts = kept[aten.logsumexp.default]

    def logsumexp(x: Argument, dim: Values, keepdim: bool = False) -> Argument:
        """PyTorch's results at infinities without asking for them, which would bar most algebra."""
        if not x.is_floating_point() or not x.ndim or x.numel() == 0:
            return made_of_parts(x, dim, keepdim)
        if all(x.shape[d] == 1 for d in dim or range(x.ndim)):
            return torch.amax(x, dim, keepdim)
        most = torch.finfo(x.dtype).max
        high = torch.amax(x, dim, True).clamp(-most, most)
        total = (x - high).exp().sum(dim, keepdim).log()
        return total + (high if keepdim else high.reshape(total.shape))

    kept[aten.logsumexp.default] = logsumexp
    return kept


def refresh() -> None:
    """Packs all weights again at the next call: after writing to frozen ones (option `freeze`)
    in a way that PyTorch does not count, such as through `parameter.data`."""
    for report in REPORTS:
        for part in report.parts:
            part.refresh()


# --- one graph
def compile_graph(
    gm: GraphModule, fixed: set[int], settings: Settings, device: Device | None = None,
    kept: Kept | None = None,
) -> Function:  # fmt: skip
    """A boxed function of the graph's inputs, made of parts of ours and what is left; `fixed`:
    placeholders that keep their values; `kept`: where the program of a single part is kept."""
    try:
        support = Support(gm, device.name if device is not None else "cpu",
                          settings.level == "bitwise")  # fmt: skip
        if settings.dynamic == "background" and not settings.strict:
            support.leave(growing(gm), "its size is another one at each call")
        fused, report = _partitioned(gm, support, fixed if settings.weights else set(), settings,
                                     device, kept)  # fmt: skip
    except UnsupportedError:
        raise
    except Exception as error:  # a bug of ours, which is no reason to fail where PyTorch works
        if settings.strict:
            raise
        log.warning("tessera: a graph runs in eager: %s: %s", type(error).__name__, error)
        return _boxed(gm.forward)
    if report.eager:
        text = "; ".join(f"{n} ({why})" for n, why in sorted(support.reasons.items()))
        if settings.strict:
            raise UnsupportedError(f"torch.compile with strict: {text}")
        log.warning("tessera: run by %s: %s", settings.fallback, text)
    REPORTS.append(report)
    return _boxed(fused.forward)


class Support(OperatorSupportBase):  # type: ignore[misc]
    """Which nodes can be imported: each is tried once, at the sizes of the example."""

    def __init__(self, gm: GraphModule, place: str = "cpu", bits: bool = False) -> None:
        _views_apart(gm)
        _numbers_known(gm)
        _nothing_joined(gm)
        self._bits = bits  # PyTorch's own are asked for
        self._place = place  # of all tensors
        self.reasons: dict[str, str] = {}  # by operator: the first reason
        self._fits: dict[Node, bool] = {}
        for node in gm.graph.nodes:
            if node.op == "call_function":
                self._fits[node] = self._try(node)
        self._leave_views(gm)

    def is_node_supported(self, _: Mapping[str, torch.nn.Module], node: Node) -> bool:
        return self._fits.get(node, False)

    def leave(self, nodes: set[Node], why: str) -> None:
        """Leaves nodes to PyTorch."""
        for node in nodes:
            if self._fits.get(node):
                self._fits[node] = False
                self.reasons.setdefault(operator_name(node.target), why)

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

    def _leave_views(self, gm: GraphModule) -> None:
        """Views that nothing of ours wants are views for PyTorch, without a copy."""
        for node in reversed(list(gm.graph.nodes)):
            if self._fits.get(node) and _is_view(node) and not any(
                self._fits.get(u) for u in node.users
            ):  # fmt: skip
                self._fits[node] = False


_VIEWS = {
    "aten.view.default", "aten.permute.default", "aten.t.default", "aten.transpose.int",
    "aten.unsqueeze.default", "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims",
    "aten.expand.default", "aten.slice.Tensor", "aten.select.int", "aten.alias.default",
    "aten.detach.default", "aten.split.Tensor", "aten.split_with_sizes.default",
    "aten.unbind.int", "aten.diagonal.default", "aten.unfold.default", "aten.as_strided.default",
}  # fmt: skip


def _is_view(node: Node) -> bool:
    if node.target is operator.getitem:
        return _is_view(node.args[0])
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
    aten = torch.ops.aten
    for node in gm.graph.find_nodes(op="call_function", target=aten.cat.default):
        left = [
            n
            for n in node.args[0]
            if not any(isinstance(d, int) and d == 0 for d in n.meta["val"].shape)
        ]
        empty = [n for n in node.args[0] if n not in left]
        kinds = {n.meta["val"].dtype for n in (node, *left)}
        if not empty or not left or len(kinds) > 1:
            continue
        node.args = (left, *node.args[1:])
        if len(left) == 1:
            node.target, node.args = aten.clone.default, (left[0],)
            node.kwargs = {"memory_format": torch.contiguous_format}
        for n in set(empty):
            if n.op == "call_function" and not n.users:
                gm.graph.erase_node(n)


def _views_apart(gm: GraphModule) -> None:
    """Gives the graph's results views of their own, so that others may be part of a kernel, and
    views of the results of kernels have PyTorch's strides."""
    graph = gm.graph
    (output,) = (n for n in graph.nodes if n.op == "output")

    @functools.cache
    def apart(node: Node) -> Node:
        if not _is_view(node):
            return node
        source = apart(node.args[0])
        if source is node.args[0] and len(node.users) == 1:
            return node
        with graph.inserting_before(output):
            copy = graph.node_copy(node, lambda n: source if n is node.args[0] else n)
        return copy

    results = output.args[0]
    if isinstance(results, (list, tuple)):
        output.args = (tuple(apart(r) if hasattr(r, "op") else r for r in results),)
        graph.lint()
        gm.recompile()


# What PyTorch computes by one rounding an element, as the imported operator does, or only moves;
# not sqrt, which MKL's vectors do not round correctly.
_ROUNDED_ONCE = _VIEWS | {
    *(f"aten.{name}.{kind}" for kind in ("Tensor", "Scalar")
      for name in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge")),
    *(f"aten.{name}.default" for name in ("neg", "abs", "clone", "logical_not", "cat",
                                          "flip", "_unsafe_view", "_to_copy")),
    "aten.where.self",
}  # fmt: skip


def _other_bits(node: Node, graph: Graph) -> str:
    """Why a node's program may have other bits than PyTorch's own; empty where it has not."""
    if operator_name(node.target) not in _ROUNDED_ONCE or "alpha" in node.kwargs:
        return "its bits are PyTorch's own"
    return _core.inexact_operator(graph.core)


def _trial(node: Node, place: str) -> Graph:
    """Imports one node alone; raises where that cannot be."""
    if handler_of(node.target) is None:
        raise UnsupportedError("there is no program for this operator yet")
    graph = Graph("trial")
    values: dict[Node, Result] = {}
    for i, n in enumerate(node.all_input_nodes):
        values[n] = _stand_in(graph, n.meta.get("val"), f"x{i}", place)
    args = [resolve(a, values) for a in node.args]
    kwargs = {k: resolve(v, values) for k, v in node.kwargs.items()}
    made = run_node(graph, node, args, kwargs)
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


def _partitioned(
    gm: GraphModule, support: Support, fixed: set[int], settings: Settings, device: Device | None,
    kept: Kept | None,
) -> tuple[torch.nn.Module, Report]:  # fmt: skip
    """The graph with maximal convex parts replaced by their programs."""
    operators = [n for n in gm.graph.nodes if n.op == "call_function" and not only_moves(n.target)
                 and not is_scalar_function(n.target)]  # fmt: skip
    if device is not None and not settings.freeze:
        fixed = set()  # contents are not looked at on a device, which would have to be waited for
    weights = {n.name for i, n in enumerate(gm.graph.find_nodes(op="placeholder"))
               if i in fixed and isinstance(n.meta.get("val"), torch.Tensor)}  # fmt: skip
    if operators and support.is_whole(gm):
        flags = [n.name in weights for n in gm.graph.find_nodes(op="placeholder")]
        part = Part(gm, flags, settings, "whole", device)
        if kept is not None:
            part.keep = functools.partial(kept.write, operators=len(operators))
            part.plain = kept.module.forward  # a Linear is faster than what it is made of
        return part, Report(len(operators), [part], {})
    partitioner = CapabilityBasedPartitioner(gm, support, allows_single_node_partition=True)
    chosen = [p for p in partitioner.propose_partitions()
              if any(not only_moves(n.target) for n in p.nodes)]  # fmt: skip
    inside = {n for p in chosen for n in p.nodes}
    left = {n.name: support.reasons.get(operator_name(n.target), "alone") for n in operators
            if n not in inside}  # fmt: skip
    fused = partitioner.fuse_partitions(chosen)
    parts = []
    for node in list(fused.graph.nodes):
        if node.op == "call_module":
            sub = getattr(fused, node.target)
            part = Part(sub, [a.name in weights for a in node.args], settings, node.target, device)
            delattr(fused, node.target)
            fused.add_module(node.target, part)
            parts.append(part)
    if settings.fallback == "inductor" and left:
        _rest_by_inductor(fused)
    elif parts and device is None and settings.level != "bitwise":  # sums by threads have others
        _rest_alone(fused)
    fused.recompile()
    return fused, Report(len(operators), parts, left)


def _rest_by_inductor(fused: GraphModule) -> None:
    """Groups what is between the parts, and has Inductor compile each group."""
    from torch._inductor.compile_fx import compile_fx_inner

    class Rest(OperatorSupportBase):  # type: ignore[misc]
        def is_node_supported(self, _: Mapping[str, torch.nn.Module], node: Node) -> bool:
            return node.op == "call_function" and not is_scalar_function(node.target)

    mine = {n.target for n in fused.graph.nodes if n.op == "call_module"}
    partitioner = CapabilityBasedPartitioner(fused, Rest(), allows_single_node_partition=True)
    chosen = [p for p in partitioner.propose_partitions()
              if any(not only_moves(n.target) for n in p.nodes)]  # fmt: skip
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


def _rest_alone(fused: GraphModule) -> None:
    """Has small operators between the parts run by the calling thread: OpenMP's others would wait
    for the next one for a millisecond, on the processors that the next part runs on."""
    for n, node in enumerate(list(fused.graph.nodes)):
        if isinstance(node.target, OpOverload) and not _is_view(node):
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
    """An operator of PyTorch's, on one thread where it has few elements to read."""

    def __init__(self, operator: OpOverload) -> None:
        super().__init__()
        self._operator, self._openmp = operator, openmp()

    def forward(self, *args: Argument, **kwargs: Argument) -> Results:
        given = [t for a in args for t in (a if isinstance(a, (list, tuple)) else (a,))]
        read = sum(t.numel() for t in given if isinstance(t, torch.Tensor))
        if self._openmp is None or read > _MOST_ALONE:
            return self._operator(*args, **kwargs)
        threads = self._openmp.omp_get_max_threads()
        self._openmp.omp_set_num_threads(1)
        try:
            return self._operator(*args, **kwargs)
        finally:
            self._openmp.omp_set_num_threads(threads)


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
