"""What became of PyTorch models: kernels with what they compute and take, and what PyTorch runs."""

from __future__ import annotations

import timeit
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tessera import _core
from tessera.errors import Error
from tessera.frontends.torch.places import why_not
from tessera.graph import Graph
from tessera.options import Options
from tessera.patterns import pattern_places
from tessera.tensor import Tensor
from tessera.torch_cache import cache_in, own_key
from tessera.torch_experts import recall
from tessera.torch_parts import BEHIND, LATER, Part
from tessera.torch_programs import Program
from tessera.types import Array, Record, dtype_name

_REDUCTIONS = {"sum", "mean", "reduce_max", "reduce_min"}
_NAMES = {"matmul": "product", "gather": "rows of a table", "concat": "concatenation"}
_QUIET = {"input", "const", "iter", "save", "accum", "reshape", "transpose", "squeeze", "unsqueeze",
          "broadcast", "slice", "cast", "iota"}  # fmt: skip


@dataclass
class Report:
    """What became of one graph: counted for benchmarks and to see what did not fit."""

    operators: int
    parts: list[Part]
    eager: dict[str, str]  # operators that PyTorch runs, and why
    lost: str = ""  # why PyTorch runs all of it

    @property
    def kernels(self) -> int:
        """Kernels that one run launches, PyTorch's own included."""
        return len(self.eager) + sum(p.kernels for p in self.parts)


REPORTS: list[Report] = []  # of this process, the oldest first; reset() forgets them


def explain(timed: bool = True, patterns: bool = True) -> str:
    """A text about all graphs that `torch.compile(..., backend="tessera")` has made so far, once
    what is under way is done.

    Kernels that are alike share a line. `timed`: each is also run alone, in microseconds with
    warm caches. `patterns`: where experts' kernels fit, and what nearly fitting ones lack.
    """
    BEHIND.wait()
    lines = [line for n, report in enumerate(REPORTS, 1)
             for line in _graph(n, report, timed, patterns)]  # fmt: skip
    if not LATER.wait(0):
        lines.append("a search is under way; tessera.torch_backend.wait() waits for it")
    return "\n".join(lines)


def _graph(number: int, report: Report, timed: bool, patterns: bool) -> Iterator[str]:
    yield f"graph {number}: {report.operators} operators, {report.kernels} kernels"
    for name, why in Counter(f"{n.rstrip('_0123456789')}: {w}" for n, w in
                             report.eager.items()).items():  # fmt: skip
        yield f"  PyTorch runs {why} × {name}"
    if report.lost:
        yield f"  PyTorch runs all of it: {report.lost}"
        return
    for part in report.parts:
        if not part.programs:
            yield f"  {part.name} is run by PyTorch: {part.reason or 'it has not been called yet'}"
            continue
        program = part.programs[-1]
        prepared = part.weights.bytes or program.module.prepared_bytes  # of a GPU's: its own
        yield (f"  {part.name}: {program.kernels} kernels a call, {len(part.programs)} "
               f"program(s), made in {part.compile_s:.1f} s; "
               f"{prepared / 1e6:.0f} MB of prepared weights")  # fmt: skip
        for reason in why_not(part.eager):
            yield f"    a program for each size of {reason}"
        yield from _kernels(program.graph, timed and hasattr(program.module, "plan_facts"))
        found = "found by a search" + ("" if program.decided else ", raced now")
        yield from (f"    {found}: {line}" for line in program.found.splitlines())
        if part.searched and not program.found:
            yield f"    {part.searched}"
        yield from (f"    own pattern {line}" for line in _experts(part, program))
        if patterns:
            for line in pattern_places(program.source, Options()).lines():
                yield f"    {line}"


def _experts(part: Part, program: Program) -> list[str]:
    """What came of own patterns in a program."""
    with cache_in(part._settings.cache_dir):
        if part._device is not None or not (key := own_key()):
            return []
        choice = recall(program.source, key)
    return choice.told if choice is not None else []


def _kernels(graph: Graph, timed: bool) -> Iterator[str]:
    """Operators that a call runs, those that are alike once."""
    once: set[int] = set()
    alike: dict[str, tuple[int, str, float]] = {}
    for op in graph.ops:
        if all(i in once for i in op["inputs"]) and (
            op["op"] != "input" or op["attrs"].get("weight")
        ):
            once.update(op["results"])
        elif op["op"] not in _QUIET - {"transpose", "broadcast", "concat"}:
            text = _label(graph, op)
            count, _, us = alike.get(text, (0, "", 0.0))
            if not count and timed:
                us = _alone(graph, op, once)
            alike[text] = count + 1, text, us
    for count, text, us in alike.values():
        yield f"    {count} × {text}" + (f": {us:.0f} µs" if us else "")


def _label(graph: Graph, op: Record) -> str:
    shapes = " ".join(f"{dtype_name(t.dtype)}{list(t.shape)}" for t in
                      (Tensor(graph, r) for r in op["results"]))  # fmt: skip
    if op["body"] is None:
        return f"{_NAMES.get(op['op'], op['op'])} {shapes}"
    kinds = [o["op"] for o in op["body"].ops() if o["op"] not in _QUIET]
    products = kinds.count("matmul")
    if products == 2 and "reduce_max" in kinds:
        return f"attention {shapes}"
    parts: list[str] = []
    for kind in kinds:
        name = "norm or softmax" if kind in _REDUCTIONS else _NAMES.get(kind, kind)
        if name not in parts:
            parts.append(name)
    if "norm or softmax" in parts:  # and what it is made of
        parts = [p for p in parts if p in ("product", "norm or softmax", _NAMES["gather"], "gelu",
                                           "gelu_tanh", "silu", "relu")]  # fmt: skip
    return " + ".join(parts) + f" {shapes}"


def _alone(graph: Graph, op: Record, once: set[int]) -> float:
    """Microseconds of one operator, operands that follow from weights prepared; 0: not known."""
    alone = Graph("alone")
    rng = np.random.default_rng(0)
    arrays: list[Array] = []
    inputs: list[Tensor] = []
    for i in op["inputs"]:
        t = Tensor(graph, i)
        arrays.append(rng.standard_normal(t.shape).astype(t.dtype) if t.dtype.kind == "f"
                      else np.zeros(t.shape, t.dtype))  # fmt: skip
        inputs.append(alone.input(f"x{len(inputs)}", t.shape, t.dtype, weight=i in once))
    try:
        if op["body"] is None:
            results = [alone.emit(op["op"], inputs, op["attrs"])]
        else:
            ids = alone.core.add_graph_op("kernel", [t.id for t in inputs], op["body"],
                                          [""] * len(op["results"]))  # fmt: skip
            results = [Tensor(alone, i) for i in ids]
        for t in results:
            alone.output(t)
        module = _core.compile(alone.core)
        made = [np.empty(t.shape, t.dtype) for t in results]
        weights = [a if module.weights and i in set(module.weights) else None
                   for i, a in enumerate(arrays)]  # fmt: skip
        prepared = module.prepare(weights) if module.weights else None
        runs = timeit.repeat(lambda: module.run(arrays, made, prepared), number=1, repeat=5)
    except (Error, ValueError, TypeError):
        return 0.0
    return min(runs) * 1e6
