"""`tessera bench mirage --target cuda`: the workloads on a GPU against its libraries and limits.

One row per case, batch, dtype and state of the L2 cache. `limit_us` is the longer of the time to
move all arguments and the result once, at the rate of a large copy, and the time of the
multiply-adds as the program is written, at the rate of a large matrix product; both are timed in
turn with the contestants. `launch_us` is what an empty kernel costs in a graph. Cases come in order
of importance, so that a run that is stopped has measured something of everything.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from tessera.bench.cuda import peers as peer_module
from tessera.bench.cuda.race import Race
from tessera.bench.mirage import Plan, matmul_flops
from tessera.bench.workloads import PAPER, QUICK, REAL, WORKLOADS, Workload, choose
from tessera.errors import UnsupportedError, UsageError

Row = dict[str, Any]
DTYPES = ("f16", "bf16")
NO_TIME = "no time left"
_PREPARE_S = 90.0  # for one contestant; compilers that tune may take most of it
_MEASURE_S = 0.4  # per state of the cache
_LEAST_CASE_S = 25.0  # ours, a few peers and both states of the cache

Case = tuple[Workload, int, str]


def cases(plan: Plan) -> list[Case]:
    """What to measure: the paper's shapes, then real models', f16 before bf16, then the rest."""
    if plan.quick and plan.case is None:
        return [(WORKLOADS[name], batch, plan.dtypes[0]) for name, batch in QUICK]
    found = []
    for workload in choose(plan.case):
        for batch in workload.batches_on("cuda"):
            if plan.batch in (None, batch):
                found += [(workload, batch, dtype) for dtype in plan.dtypes]
    if not found:
        raise UsageError(f"no case has --batch {plan.batch} on a GPU")

    def rank(case: Case) -> tuple[int, ...]:
        workload, batch, dtype = case
        place = max(names.index(workload.name) if workload.name in names else -1
                    for names in (PAPER, REAL))  # fmt: skip
        late = plan.dtypes.index(dtype)
        return (_tier(plan, case), late, workload.batches_on("cuda").index(batch), place)

    found.sort(key=rank)
    return found[:1] if plan.quick else found


def _tier(plan: Plan, case: Case) -> int:
    """How important a case is: 0 for the paper's shapes in the first dtype."""
    late = 2 * plan.dtypes.index(case[2])
    return late if case[0].name in PAPER else 1 + late if case[0].name in REAL else 9


def share(plan: Plan, rest: list[Case], left: float) -> float:
    """Seconds for the first of the cases that are left: it and its equals share the time evenly."""
    equals = sum(_tier(plan, case) == _tier(plan, rest[0]) for case in rest)
    return min(plan.case_limit_s, max(_LEAST_CASE_S, left / equals))


def schedule(plan: Plan) -> list[tuple[str, float]]:
    """Cases of a run as they come, and the seconds that each may take; 0: left for --resume.

    Who is done early leaves the rest of its time to those after it."""
    chosen = cases(plan)
    left = plan.stop_after_s if plan.stop_after_s is not None else float("inf")
    found = []
    for index, case in enumerate(chosen):
        seconds = share(plan, chosen[index:], left) if left > 0 else 0.0
        left -= seconds
        found.append((f"{case[0].name} B={case[1]} {case[2]}", seconds))
    return found


def run(plan: Plan, make_race: Callable[[], Race] = Race) -> Iterator[Row]:
    """All rows, as they are measured; those in `plan.done` are left out."""
    caches = ("warm",) if plan.quick else ("warm", "cold")
    chosen = cases(plan)
    failed = {key[:3] for key in plan.tried}
    chosen.sort(key=lambda case: (case[0].name, *case[1:]) in failed)
    end = time.monotonic() + plan.stop_after_s if plan.stop_after_s is not None else None
    with make_race() as race:
        device = race.describe()
        if "failed" in device:
            raise UnsupportedError(device["failed"].removeprefix("UnsupportedError: "))
        for index, (workload, batch, dtype) in enumerate(chosen):
            target = plan.options.target
            keys = [
                (workload.name, batch, dtype, None, c, target, device["device"]) for c in caches
            ]
            if plan.done.issuperset(keys):
                continue
            if end is not None and time.monotonic() > end:
                plan.tell(f"time is up; {len(chosen) - index} cases are left for --resume")
                return
            seconds = plan.case_limit_s
            if end is not None:  # then with fewer peers, if need be
                seconds = share(plan, chosen[index:], end - time.monotonic())
            yield from _case(race, device, workload, batch, dtype, caches, plan, seconds)


def _case(race: Race, device: Row, workload: Workload, batch: int, dtype: str,
          caches: tuple[str, ...], plan: Plan, seconds: float) -> Iterator[Row]:  # fmt: skip
    label = f"{workload.name} B={batch} {dtype}"
    deadline = time.monotonic() + seconds
    row: Row = {
        "suite": "mirage",
        "case": workload.name,
        "batch": batch,
        "shape": {name: list(shape) for name, shape in workload.at(batch).items()},
        "dtype": dtype,
        "target": plan.options.target,
        "gpu": device,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    loaded = race.load(workload, batch, dtype)
    if "failed" in loaded:
        yield from ({**row, "cache": c, "verdict": f"failed: {loaded['failed']}"} for c in caches)
        return
    fields = dataclasses.asdict(plan.options.replace(cache=False, resume=False))
    # A search that ends early, as most do, leaves more to the peers.
    most = 8.0 if plan.quick else max(10.0, seconds / 2)
    fields["budget"] = min(plan.options.budget, most)
    failures: dict[str, str] = {}
    answers: dict[str, Row] = {}
    for name in ("ours", *(n for n in plan.peers if peer_module.applies(n, workload))):
        left = deadline - time.monotonic()
        if left < 5 and name != "ours":
            failures[name] = NO_TIME
            continue
        plan.tell(f"{label}: preparing {name}")
        answer = race.prepare(name, fields, max(5.0, min(left, _PREPARE_S)))
        if "failed" in answer:
            failures[name] = answer["failed"]
        else:
            answers[name] = answer
    if "ours" in failures:
        row["failure"] = failures.pop("ours")
    for cache in caches:
        plan.tell(f"{label}: measuring, {cache} cache")
        timings = race.measure(cache == "cold", _MEASURE_S / (4 if plan.quick else 1), 120)
        if "failed" in timings:
            yield {**row, "cache": cache, "verdict": f"failed: {timings['failed']}"}
            loaded = race.load(workload, batch, dtype)  # a new process has nobody in it
            return
        yield {**row, "cache": cache} | _figures(
            timings, answers, failures, loaded["bytes"], matmul_flops(workload, batch, dtype)
        )


def _figures(timings: Row, answers: Row, failures: dict[str, str], size: int, flops: float) -> Row:
    """A row's figures, from medians in seconds."""
    medians: dict[str, float] = timings["medians"]
    spreads: dict[str, float] = timings["spreads"]
    times = {n: medians[n] * 1e6 for n in answers if n in medians and n != "ours"}
    best = min(times, key=lambda n: times[n]) if times else None
    failures = failures | {n: r for n, r in timings["left_out"].items() if n != "ours"}
    bandwidth = timings["copied"] / medians["probe_copy"]
    rate = timings["flops"] / medians["probe_matmul"]
    memory_us, compute_us = size / bandwidth * 1e6, flops / rate * 1e6
    limit_us = max(memory_us, compute_us)
    row: Row = {
        "peers": times,
        "best_peer": best,
        "peer_of_limit": limit_us / times[best] if best else None,
        "peer_rel_err": {n: answers[n]["error"] for n in times},
        "peer_failures": failures,
        "peer_chosen": {n: answers[n]["chosen"] for n in times if answers[n].get("chosen")},
        "spreads": {n: s for n, s in spreads.items() if not n.startswith("probe")},
        "samples": timings["samples"],
        "sets": timings["sets"],
        "limit_us": limit_us,
        "limit_by": "memory" if memory_us >= compute_us else "compute",
        "launch_us": medians["probe_launch"] * 1e6,
        "bytes": size,
        "flops": flops,
        "copy_gb_s": bandwidth / 1e9,
        "matmul_tflop_s": rate / 1e12,
    }
    if "ours" not in medians:
        reason = timings["left_out"].get("ours")
        row["verdict"] = "failed" + (f": {reason}" if reason else "")
        return row
    ours_us = medians["ours"] * 1e6
    return {
        **row,
        **answers["ours"]["facts"],
        "ours_us": ours_us,
        "speedup_vs_best": times[best] / ours_us if best else None,
        "of_limit": limit_us / ours_us,
        "gb_s": size / ours_us * 1e-3,
        "max_rel_err": answers["ours"]["error"],
    }
