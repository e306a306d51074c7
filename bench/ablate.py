"""`tessera bench mirage --ablate`: what each decision of the plan is worth (Mirage, Fig. 12).

Each workload is superoptimised once; the winner is then compiled with all decisions and with each
one switched off, and all of these take turns in one process. `ablation` says how many times slower
the program is without the decision; `plan` tells the facts behind it. With `--target cuda` nothing
is timed: `ablation` says what the kernels that the model prefers take of a multiprocessor without
the decision, and without thread graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from bench.cuda.emulate import chosen, compiled
from bench.timing import interleave
from bench.workloads import FAMILIES, WORKLOADS, Workload, choose
from tessera import _core
from tessera.api import superoptimize
from tessera.call_forms import GraphCall
from tessera.cuda import find_libraries
from tessera.graph import Graph
from tessera.options import Options
from tessera.runner import Runner

Row = dict[str, Any]
DECISIONS = ("plan:layout", "plan:schedule", "plan:memory", "plan:weights")
THREADS = "mugraph:thread graphs"
FACTS = ("registers", "spilled_bytes", "smem_bytes", "barriers")  # the most of any kernel


def run(
    options: Options,
    case: str | None = None,
    batch: int | None = None,
    dtypes: tuple[str, ...] = ("f32",),
    quick: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[Row]:
    """One row per workload, batch and dtype; without `case` the first variant of each family."""
    workloads = choose(case) if case else [WORKLOADS[name] for name in FAMILIES]
    for workload in workloads[:1] if quick else workloads:
        batches = [batch] if batch is not None else list(workload.batches)
        for b in batches[:1] if quick else batches:
            for dtype in dtypes[:1] if quick else dtypes:
                tell(f"{workload.name} B={b} {dtype}")
                on_gpu = options.target.startswith("cuda")
                row = _gpu_row(workload, b, dtype, options) if on_gpu else _row(
                    workload, b, dtype, options, quick)  # fmt: skip
                yield row | {
                    "suite": "mirage",
                    "case": workload.name,
                    "batch": b,
                    "shape": {name: list(shape) for name, shape in workload.at(b).items()},
                    "dtype": dtype,
                    "target": options.target,
                }


def _gpu_row(workload: Workload, batch: int, dtype: str, options: Options) -> Row:
    """What the kernels take at full size, compiled: the most of any of them, and their number."""
    arch = options.target.partition(":")[2] or "sm_90a"
    graph = workload.graph(batch, dtype)
    find_libraries()

    def facts(program: Graph, disable: set[str]) -> Row:
        kernels = compiled(program, arch, disable)
        return {"kernels": len(kernels)} | {n: max(k[n] for k in kernels) for n in FACTS}

    best = chosen(graph, arch, options)
    ablation = {name: facts(best, {name}) for name in ("plan:schedule", "plan:memory")}
    apart = options.replace(disable=(*options.disable, THREADS))
    ablation[THREADS] = facts(chosen(graph, arch, apart), set())
    return {"arch": arch, "taken": facts(best, set()), "ablation": ablation}


def _row(workload: Workload, batch: int, dtype: str, options: Options, quick: bool) -> Row:
    graph = workload.graph(batch, dtype)
    result = superoptimize(graph, options=options)
    arrays = workload.arrays(batch, dtype)
    names = GraphCall(result.graph).names
    modules = {"": _core.compile(result.graph.core)}
    modules |= {name: _core.compile(result.graph.core, {name}) for name in DECISIONS}
    apart = superoptimize(graph, options=options.replace(disable=(*options.disable, THREADS)))
    modules[THREADS] = _core.compile(apart.graph.core)
    runners = {name: Runner(module, names) for name, module in modules.items()}
    timings = interleave(
        {name: partial(runner, arrays) for name, runner in runners.items()},
        0.2 if quick else 2.0,
    )
    whole = timings[""].us
    return {
        "threads": _core.default_threads(),
        "cache": "warm",
        "verdict": "equal" if result.improved else "original",
        "ours_us": whole,
        "original_us": result.original_us,
        "ablation": {name: timings[name].us / whole for name in (*DECISIONS, THREADS)},
        "plan": modules[""].plan_facts,
        "plan_without": {name: modules[name].plan_facts for name in DECISIONS},
    }
