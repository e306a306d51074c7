"""`tessera bench mirage`: Mirage's workloads end to end, against the original, peers and limits.

One row per case, batch, dtype, number of threads and state of the caches. `limit_us` is what the
machine could at most do, by probes that took turns with the contestants: the time to read all
arguments once and write nothing, or to do all multiply-adds of the matrix products, whichever is
longer. Rows of case "geomean" sum up: `speedup_vs_best` per workload first, then over all.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bench import peers as peer_module
from bench.race import Race, geometric_mean
from bench.workloads import FAMILIES, QUICK, WORKLOADS, Workload, choose
from tessera.errors import UsageError
from tessera.options import Options

Row = dict[str, Any]
Key = tuple[Any, ...]
DTYPES = ("f32", "bf16")


@dataclass(frozen=True)
class Plan:
    """What to run, and for how long."""

    options: Options
    case: str | None = None
    batch: int | None = None
    dtypes: tuple[str, ...] = DTYPES
    quick: bool = False
    peers: tuple[str, ...] = ("numpy",)
    case_limit_s: float = 420.0  # for preparing and measuring one case with one number of threads
    done: frozenset[Key] = frozenset()  # rows that need not be measured again
    partial: frozenset[Key] = frozenset()  # rows that lack peers for want of time (on a GPU)
    tried: frozenset[Key] = frozenset()  # rows that failed: measured last (on a GPU)
    stop_after_s: float | None = None  # no case is begun after that (on a GPU)
    tell: Callable[[str], None] = lambda text: None

    def cases(self) -> list[tuple[Workload, int]]:
        if self.quick and self.case is None:
            return [(WORKLOADS[name], batch) for name, batch in QUICK]
        chosen = [(w, b) for w in choose(self.case) for b in w.batches]
        if self.batch is not None:
            chosen = [(w, b) for w, b in chosen if b == self.batch]
        if not chosen:
            raise UsageError("no case of that name and --batch is measured on a CPU")
        return chosen[:1] if self.quick else chosen

    def threads(self) -> list[int]:
        """All processors first, then one, unless the options name a number."""
        if self.options.threads:
            return [self.options.threads]
        every = len(os.sched_getaffinity(0))
        return [every] if self.quick or every == 1 else [every, 1]


KEYS = ("case", "batch", "dtype", "threads", "cache", "target")


def key(row: Row) -> Key:
    """What tells rows apart."""
    return (*(row.get(k) for k in KEYS), row.get("gpu", {}).get("device"))


def run(plan: Plan) -> Iterator[Row]:
    """All rows, as they are measured; those in `plan.done` are left out."""
    caches = ("warm",) if plan.quick else ("warm", "cold")
    for threads in plan.threads():
        with Race(threads) as race:
            for dtype in plan.dtypes[:1] if plan.quick else plan.dtypes:
                for workload, batch in plan.cases():
                    target = plan.options.target
                    keys = [(workload.name, batch, dtype, threads, c, target, None) for c in caches]
                    if not plan.done.issuperset(keys):
                        yield from _case(race, workload, batch, dtype, caches, plan)


def _case(
    race: Race, workload: Workload, batch: int, dtype: str, caches: tuple[str, ...], plan: Plan
) -> Iterator[Row]:
    label = f"{workload.name} B={batch} {dtype} {race.threads} thread(s)"
    deadline = time.monotonic() + (plan.case_limit_s if not plan.quick else 40)
    shapes = workload.at(batch)
    row: Row = {
        "suite": "mirage",
        "case": workload.name,
        "batch": batch,
        "shape": {name: list(shape) for name, shape in shapes.items()},
        "dtype": dtype,
        "target": plan.options.target,
        "threads": race.threads,
    }
    plan.tell(f"{label}: searching")
    race.load(workload, batch, dtype)
    fields = dataclasses.asdict(plan.options.replace(cache=False))
    if plan.quick:
        fields["budget"] = min(plan.options.budget, 8.0)
    ours = race.prepare("ours", fields, _left(deadline))
    if "failed" in ours:
        for cache in caches:
            yield row | {"cache": cache, "verdict": f"failed: {ours['failed']}"}
        return
    errors = {}
    failures = {}
    facts: dict[str, Row] = {}
    peers = [n for n in plan.peers if peer_module.applies(n, workload)]
    if plan.quick:
        peers = [n for n in peers if n != "inductor_max"]
    for name in ("original", "probe_read", "probe_fma", *peers):
        plan.tell(f"{label}: preparing {name}")
        answer = race.prepare(name, fields, min(_left(deadline), 30 if plan.quick else 150))
        if "failed" in answer:
            failures[name] = answer["failed"]
        else:
            errors[name] = answer["error"]
            facts[name] = answer["facts"]
    for cache in caches:
        plan.tell(f"{label}: measuring, {cache} caches")
        timings = race.run(1.0 if plan.quick else 4.0, cache == "cold", deadline)
        medians = timings["medians"]
        times = {n: medians[n] * 1e6 for n in peers if n in medians}
        ours_us = medians["ours"] * 1e6
        best = min(times, key=lambda n: times[n]) if times else None
        row |= {
            "cache": cache,
            "rounds": timings["rounds"],
            "ours_us": ours_us,
            "original_us": medians["original"] * 1e6 if "original" in medians else None,
            "peers": times,
            "best_peer": best,
            "speedup_vs_best": times[best] / ours_us if best else None,
            "max_rel_err": ours["error"],
            "original_rel_err": errors.get("original"),
            "peer_rel_err": {n: errors[n] for n in times},
            "peer_failures": failures,
        }
        row |= _limits(medians, facts, workload, batch, dtype)
        yield row | ours["facts"]


def _left(deadline: float) -> float:
    return max(5.0, deadline - time.monotonic())


def _limits(medians: Row, facts: Row, workload: Workload, batch: int, dtype: str) -> Row:
    """What the probes say, and how near ours comes."""
    if "probe_read" not in medians or "probe_fma" not in medians:
        return {"limit_us": None}
    bandwidth = facts["probe_read"]["bytes"] / medians["probe_read"]
    rate = facts["probe_fma"]["flops"] / medians["probe_fma"]
    memory_s = facts["probe_read"]["bytes"] / bandwidth
    compute_s = matmul_flops(workload, batch, dtype) / rate
    limit_us = max(memory_s, compute_s) * 1e6
    return {
        "limit_us": limit_us,
        "limit_by": "memory" if memory_s >= compute_s else "compute",
        "of_limit": limit_us / (medians["ours"] * 1e6),
        "bandwidth_gb_s": bandwidth / 1e9,
        "fma_gflop_s": rate / 1e9,
    }


def matmul_flops(workload: Workload, batch: int, dtype: str = "f32") -> float:
    """Multiplications and additions of all products and convolutions as the program is written."""
    graph = workload.graph(batch, dtype)
    total = 0.0
    for op in graph.ops:
        if op["op"] == "matmul":
            contracted = graph.core.type(op["inputs"][0])[1][-1]
            (result,) = op["results"]
            elements = math.prod(int(d) for d in graph.core.type(result)[1])
            total += 2.0 * elements * int(contracted)
        elif op["op"] == "conv":
            (result,) = op["results"]
            terms = graph.core.type(op["inputs"][1])[1][1:]
            total += 2.0 * math.prod(int(d) for d in (*graph.core.type(result)[1], *terms))
    return total


# --- summing up -------------------------------------------------------------------------------


def summaries(rows: Iterable[Row]) -> list[Row]:
    """Geometric means of the speed-up over the best peer: per device, dtype, threads and caches."""
    everything = [r for r in rows if r["case"] != "geomean"]
    rows = [r for r in everything if r.get("speedup_vs_best") is not None]
    out = []

    def of(row: Row) -> tuple[Any, ...]:
        return (key(row)[-1], row.get("threads"), row["dtype"], row["cache"])

    groups = sorted(
        {of(r) for r in rows},
        key=lambda g: (g[0] or "", -(g[1] or 0), g[2] == "bf16", g[3] != "warm"),
    )
    for group in groups:
        out.append(_summary([r for r in rows if of(r) == group], *group[1:]))
        if "gpu" in out[-1]:
            out[-1] |= _coverage([r for r in everything if of(r) == group])
    if len(groups) > 1 and len({g[0] for g in groups}) == 1:
        out.append(_summary(rows, None, None, None))
    return out


def _coverage(rows: list[Row]) -> Row:
    """Of a GPU's rows: which cases have no figure of ours, or not all peers; what it all says about
    the cost model."""
    models = [r["model"] for r in rows if r.get("model")]
    return {
        "not_measured": {
            f"{r['case']} B={r['batch']}": r.get("failure") or r["verdict"]
            for r in rows
            if r.get("ours_us") is None
        },
        "lacking_peers": sum("no time left" in r.get("peer_failures", {}).values() for r in rows),
        "model": max(models, key=lambda m: m["programs"]) if models else None,
    }


def _summary(rows: list[Row], threads: Any, dtype: Any, cache: Any) -> Row:
    families = {}
    for family in FAMILIES:
        speedups = [r["speedup_vs_best"] for r in rows if r["case"].partition("@")[0] == family]
        if speedups:
            families[family] = geometric_mean(speedups)
    below = sorted((r["speedup_vs_best"], f"{r['case']} B={r['batch']}") for r in rows)
    return {
        "suite": "mirage",
        "case": "geomean",
        "target": rows[0]["target"],
        "threads": threads,
        "dtype": dtype,
        "cache": cache,
        "count": len(rows),
        "per_workload": families,
        "speedup_vs_best": geometric_mean(families.values()),
        "below_1": {name: s for s, name in below if s < 1},
        "verdicts_equal": sum(r["verdict"] == "equal" for r in rows),
    } | ({"gpu": rows[0]["gpu"], "date": rows[-1]["date"]} if "gpu" in rows[0] else {})
