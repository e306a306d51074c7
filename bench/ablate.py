"""`tessera bench mirage --ablate`: what each decision of the plan is worth (Mirage, Fig. 12).

Each workload is superoptimised once; the winner is then compiled with all decisions and with each
one switched off, and all of these take turns in one process. `ablation` says how many times slower
the program is without the decision; `plan` tells the facts behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from bench.timing import interleave
from bench.workloads import FAMILIES, WORKLOADS, Workload, choose
from tessera import _core
from tessera.api import superoptimize
from tessera.call_forms import GraphCall
from tessera.options import Options
from tessera.runner import Runner

Row = dict[str, Any]
DECISIONS = ("plan:layout", "plan:schedule", "plan:memory", "plan:weights")


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
                yield _row(workload, b, dtype, options, quick)


def _row(workload: Workload, batch: int, dtype: str, options: Options, quick: bool) -> Row:
    graph = workload.graph(batch, dtype)
    result = superoptimize(graph, options=options)
    arrays = workload.arrays(batch, dtype)
    names = GraphCall(result.graph).names
    modules = {"": _core.compile(result.graph.core)}
    modules |= {name: _core.compile(result.graph.core, {name}) for name in DECISIONS}
    runners = {name: Runner(module, names) for name, module in modules.items()}
    timings = interleave(
        {name: partial(runner, arrays) for name, runner in runners.items()},
        0.2 if quick else 2.0,
    )
    whole = timings[""].us
    return {
        "suite": "mirage",
        "case": workload.name,
        "batch": batch,
        "shape": {name: list(shape) for name, shape in workload.at(batch).items()},
        "dtype": dtype,
        "target": options.target,
        "threads": _core.default_threads(),
        "cache": "warm",
        "verdict": "equal" if result.improved else "original",
        "ours_us": whole,
        "original_us": result.original_us,
        "ablation": {name: timings[name].us / whole for name in DECISIONS},
        "plan": modules[""].plan_facts,
        "plan_without": {name: modules[name].plan_facts for name in DECISIONS},
    }
