"""`torch.compile(model, backend="tessera")`: AOTAutograd's graphs through Tessera, in parts.

Importing this module registers the backend (an installed package is found by its entry point). What
cannot be compiled runs as PyTorch runs it, with one log line of "tessera.torch" that says why.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend
from torch._functorch.aot_autograd import make_boxed_func
from torch.fx import GraphModule
from torch.fx.node import Argument

from tessera import _core, torch_device
from tessera.compilers import find_compiler
from tessera.errors import UnsupportedError, UsageError
from tessera.frontends.torch.call import is_scalar_function, only_moves, operator_name
from tessera.frontends.torch.decompositions import graph_decompositions, note_insides
from tessera.frontends.torch.sizes import growing
from tessera.options import Level, Options
from tessera.torch_cache import Kept, LaterGraph, cache_in, like
from tessera.torch_device import Device
from tessera.torch_explain import REPORTS, Report, explain
from tessera.torch_parts import BEHIND, LATER, Part
from tessera.torch_rest import in_order, proposed, rest_alone, rest_by_inductor
from tessera.torch_support import Support
from tessera.torch_whole import Whole
from tessera.types import Fields, Function, Values

__all__ = ["REPORTS", "Report", "Settings", "explain", "refresh", "reset", "tessera", "wait"]

log = logging.getLogger("tessera.torch")


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
    disable: tuple[str, ...] = ()  # engines that do not search, as of `tessera optimize --disable`

    def __post_init__(self) -> None:
        for name, allowed in (("fallback", ("eager", "inductor")),
                              ("dynamic", ("background", "wait", "exact"))):  # fmt: skip
            if (given := getattr(self, name)) not in allowed:
                raise UsageError(f"torch.compile: {name} is {' or '.join(allowed)}, not {given!r}")
        for name in ("strict", "check", "race", "wait", "weights", "freeze"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"torch.compile: option {name} is True or False")
        _core.resolve_target(self.options(self.budget or 1).fields())
        if self.target not in ("auto", "cpu", "cuda"):
            raise UsageError(
                f"torch.compile: target {self.target!r} is none of auto (where the tensors are), "
                "cpu and cuda; tensors say which device"
            )

    def options(self, budget: float) -> Options:
        """Of a search of so many seconds."""
        return Options(budget=budget, threads=self.threads, level=self.level, disable=self.disable)

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
    run = _of_tensors(module, example_inputs, options, mode)
    if all(_plain(x) is x for x in example_inputs):  # guards see to it that others are as these
        return run
    return lambda *args: run(*map(_plain, args))


def _plain(value: Argument) -> Argument:
    """A tensor of a class that only adds to torch.Tensor (Dynamo has traced what) as a tensor:
    AOTAutograd's first call refuses others. It wraps results again itself."""
    kind = type(value)
    if kind in (torch.Tensor, torch.nn.Parameter) or not isinstance(value, torch.Tensor):
        return value
    dispatches = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return value if dispatches else value.as_subclass(torch.Tensor)


def _of_tensors(
    module: GraphModule, example_inputs: Values, options: Fields | None, mode: str | None
) -> Function:
    """The same of arguments that are tensors and numbers."""
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

    def traced(inference: Callable[[GraphModule], Function], examples: Values) -> Function:
        compiled: Function = aot_autograd(
            fw_compiler=lambda gm, _: compile_graph(gm, set(), training, device),
            inference_compiler=lambda gm, _: inference(gm),
            decompositions={} if bits else graph_decompositions(),
        )(module, examples)
        return compiled

    def aten_graph() -> GraphModule:
        found: list[GraphModule] = []

        def keep(gm: GraphModule) -> Function:
            note_insides(gm)
            found.append(gm)
            return _boxed(gm.forward)

        with torch.no_grad():
            traced(keep, [like(x, "cpu") for x in example_inputs])
        return found[0]

    kept: Kept | None = None
    if device is None and settings.weights and settings.check and not (settings.budget or bits):
        with cache_in(settings.cache_dir):
            kept = Kept(module, example_inputs)
            facts = kept.read()
        if facts is not None:
            example_inputs = [like(x, "meta") for x in example_inputs]  # the user's may go
            later = LaterGraph(module, aten_graph)
            part = Part(later, facts.weights, settings, "whole", None, facts)
            REPORTS.append(Report(facts.operators, [part], {}))
            return part.forward

    reports: list[Report] = []  # of the graph, where no gradients are asked for

    def inference(gm: GraphModule) -> Function:
        context = torch._guards.TracingContext.try_get()
        meta = context.fw_metadata if context is not None else None
        whole = kept if kept is not None and kept.is_all(gm, meta) else None
        before = len(REPORTS)
        made = compile_graph(gm, _weights(), settings, device, whole)
        reports[:] = REPORTS[before:]
        return made

    compiled = traced(inference, example_inputs)
    direct = kept.direct if kept is not None else None
    run = compiled if direct is None else direct.forward
    raced = device is None and settings.race and not (settings.strict or bits)
    if raced and not isinstance(direct, Part):  # which is raced itself
        run = next((Whole(run, module.forward, r) for r in reports if r.parts), run)
    return run


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
    if kept is not None:
        kept.direct = fused
    return _boxed(fused.forward)


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
    with in_order(gm, support):
        partitioner, chosen = proposed(gm, support)
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
        rest_by_inductor(fused)
    elif parts and device is None and settings.level != "bitwise":  # sums by threads have others
        rest_alone(fused)
    fused.recompile()
    return fused, Report(len(operators), parts, left)
