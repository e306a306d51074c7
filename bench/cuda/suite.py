"""`tessera bench mirage --target cuda`: the workloads on a GPU against its libraries and limits.

One row per case, batch, dtype and state of the L2 cache. `limit_us` is the longer of the time to
move all arguments and the result once, at the rate of a large copy, and the time of the
multiply-adds as the program is written, at the rate of a large matrix product; both are timed in
turn with the contestants. `launch_us` is what an empty kernel costs in a graph.

A run whose time is limited goes through the cases in passes, the most important first: with peers
that are ready at once, so that something is known of every case, and with those that compile and
tune. A later row takes the place of an earlier one; cases that are not reached have rows that say
so, and --resume goes on with them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.cuda import peers as peer_module
from bench.cuda.race import Race
from bench.mirage import Key, Plan, key, matmul_flops
from bench.workloads import CONVOLUTIONS, PAPER, QUICK, REAL, WORKLOADS, Workload, choose
from tessera.errors import UnsupportedError, UsageError

Row = dict[str, Any]
DTYPES = ("f16", "bf16")
NO_TIME = "no time left"
_PREPARE_S = 90.0  # for one contestant; compilers that tune may take most of it
_MEASURE_S = 0.4  # per state of the cache
_LEAST_CASE_S = 60.0  # ours, peers that compile and tune, and both states of the cache
_LEAST_BRIEF_S = 5.0  # the same with peers that are ready at once
_BRIEF_BUDGET_S = 6.0  # of the search then
_OURS_S = 45.0  # for ours, whatever else there is no time for
LEFT_OUT = "left out: no time"
# Peers that need no compiler.
_READY_PEERS = ("torch", "cublaslt", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient")

Case = tuple[Workload, int, str]


@dataclass(frozen=True)
class Step:
    """One case with all of its peers, or in brief with those that are ready at once."""

    case: Case
    tier: int  # those of one share time evenly
    brief: bool = False

    @property
    def label(self) -> str:
        workload, batch, dtype = self.case
        return f"{workload.name} B={batch} {dtype}{' in brief' if self.brief else ''}"


def cases(plan: Plan) -> list[Case]:
    """What to measure: the paper's shapes, real models' and convolutions, f16 first; the rest."""
    if plan.quick and plan.case is None:
        return [(WORKLOADS[name], batch, plan.dtypes[0]) for name, batch in QUICK]
    found = []
    everything = [*choose(plan.case), *(CONVOLUTIONS.values() if plan.case is None else ())]
    for workload in everything:
        for batch in workload.batches_on("cuda"):
            if plan.batch in (None, batch):
                found += [(workload, batch, dtype) for dtype in plan.dtypes]
    if not found:
        raise UsageError(f"no case has --batch {plan.batch} on a GPU")

    def rank(case: Case) -> tuple[int, ...]:
        workload, batch, dtype = case
        order = [*PAPER, *REAL]
        place = order.index(workload.name) if workload.name in order else len(order)
        late = plan.dtypes.index(dtype)
        beside = workload.name in CONVOLUTIONS
        batch_place = workload.batches_on("cuda").index(batch)
        return (_importance(plan, case), late, beside, batch_place, place)

    found.sort(key=rank)
    return found[:1] if plan.quick else found


def _importance(plan: Plan, case: Case) -> int:
    """0 for the paper's shapes in the first dtype, then those of real models, then the next."""
    late = 2 * plan.dtypes.index(case[2])
    real = case[0].name in REAL or case[0].name in CONVOLUTIONS
    return late if case[0].name in PAPER else 1 + late if real else 9


def steps(plan: Plan) -> list[Step]:
    """What a run does, in order.

    Where its time is limited: all of the paper's and of real models in brief, one dtype after the
    other, and then all in full. What failed before comes last.
    """
    every = cases(plan)
    in_full = [Step(c, _importance(plan, c)) for c in every]
    failed = {key[:3] for key in plan.tried}
    if plan.stop_after_s is None or plan.quick:
        found = in_full
    else:
        brief = [Step(s.case, s.tier // 2 - 2, brief=True) for s in in_full if s.tier < 9]
        slow = set(plan.peers) - set(_READY_PEERS)
        rest = [
            step
            for step in in_full
            if step.tier == 9 or any(peer_module.applies(n, step.case[0]) for n in slow)
        ]
        found = [*brief, *rest]
    return sorted(found, key=lambda step: _names(step.case) in failed)


def _names(case: Case) -> tuple[str, int, str]:
    return (case[0].name, case[1], case[2])


def share(plan: Plan, rest: list[Step], left: float) -> float:
    """Seconds for the first of the steps that are left: it and its equals share the time evenly."""
    equals = sum(step.tier == rest[0].tier for step in rest)
    least = _LEAST_BRIEF_S if rest[0].brief else _LEAST_CASE_S
    return min(plan.case_limit_s, max(least, left / equals))


def schedule(plan: Plan) -> list[tuple[str, float]]:
    """Steps of a run as they come, and the seconds that each may take; 0: left for --resume.

    Who is done early leaves the rest of its time to those after it."""
    todo = steps(plan)
    left = plan.stop_after_s if plan.stop_after_s is not None else float("inf")
    found = []
    for index, step in enumerate(todo):
        seconds = share(plan, todo[index:], left) if left > 0 else 0.0
        left -= seconds
        found.append((step.label, seconds))
    return found


def run(
    plan: Plan,
    make_race: Callable[[], Race] = Race,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Row]:
    """All rows, as they are measured; those in `plan.done` are left out."""
    caches = ("warm",) if plan.quick else ("warm", "cold")
    todo = steps(plan)
    end = clock() + plan.stop_after_s if plan.stop_after_s is not None else None
    with make_race() as race:
        device = race.describe()
        if "failed" in device:
            raise UnsupportedError(device["failed"].removeprefix("UnsupportedError: "))

        def keys(case: Case) -> list[Key]:
            return [(*_names(case), None, c, plan.options.target, device["device"]) for c in caches]

        measured = set(plan.done | plan.partial)  # ours is known there
        tried = set(plan.tried)
        for index, step in enumerate(todo):
            known = measured if step.brief else plan.done
            if known.issuperset(keys(step.case)):
                continue
            left = end - clock() if end is not None else float("inf")
            if left < (2 if step.brief else 20):  # too little to tell anything
                rest = {_names(s.case): s.case for s in todo[index:]}
                plan.tell(f"time is up; {len(rest)} cases are left for --resume")
                for case in rest.values():
                    if not (measured | tried).intersection(keys(case)):
                        yield from (_row(case, device, plan, c, LEFT_OUT) for c in caches)
                return
            seconds = plan.case_limit_s
            if end is not None:  # then with fewer peers, if need be
                seconds = min(share(plan, todo[index:], left), left + 15)
            for row in _case(race, device, step, caches, plan, seconds, clock):
                # What is known is not given up for a process that was lost later on.
                if row.get("ours_us") is not None or key(row) not in measured:
                    yield row
                (tried if row.get("ours_us") is None else measured).add(key(row))


def _row(case: Case, device: Row, plan: Plan, cache: str | None, verdict: str | None) -> Row:
    workload, batch, dtype = case
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
    return row | {k: v for k, v in (("cache", cache), ("verdict", verdict)) if v is not None}


def _case(race: Race, device: Row, step: Step, caches: tuple[str, ...], plan: Plan,
          seconds: float, clock: Callable[[], float]) -> Iterator[Row]:  # fmt: skip
    workload, batch, dtype = step.case
    deadline = clock() + seconds
    row = _row(step.case, device, plan, None, None)
    loaded = race.load(workload, batch, dtype)
    if "failed" in loaded:
        yield from ({**row, "cache": c, "verdict": f"failed: {loaded['failed']}"} for c in caches)
        return
    fields = dataclasses.asdict(plan.options.replace(cache=True, resume=False))
    # A search that ends early, as most do, leaves more to the peers.
    most = 8.0 if plan.quick else max(10.0, seconds / 2)
    failures: dict[str, str] = {}
    answers: dict[str, Row] = {}
    peers = [n for n in plan.peers if peer_module.applies(n, workload)]
    # Those that are ready at once leave enough of a short share to us, and not the other way round.
    for name in (*peers, "ours") if step.brief else ("ours", *peers):
        left = deadline - clock()
        if name != "ours" and (left < 2 if step.brief else left < 5):
            failures[name] = NO_TIME
            continue
        if step.brief and name not in ("ours", *_READY_PEERS):
            failures[name] = NO_TIME
            continue
        plan.tell(f"{step.label}: preparing {name}")
        if step.brief:
            most = max(_BRIEF_BUDGET_S, left - 2 * _MEASURE_S)
        fields["budget"] = min(plan.options.budget, most)
        limit = max(left, _OURS_S) if name == "ours" else max(5.0, min(left, _PREPARE_S))
        answer = race.prepare(name, fields, limit)
        if "failed" in answer:
            failures[name] = answer["failed"]
        else:
            answers[name] = answer
    if "ours" in failures:
        row["failure"] = failures.pop("ours")
    budget = _MEASURE_S / (4 if plan.quick else 2 if step.brief else 1)
    for cache in caches:
        plan.tell(f"{step.label}: measuring, {cache} cache")
        timings = race.measure(cache == "cold", budget, 120)
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
