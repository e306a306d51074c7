"""The suites of `tessera bench`; every suite yields rows of the one JSON contract.

Each row has `suite`, `case`, `shape`, `dtype`, `target` and, as far as they apply, `ours_us`,
`original_us`, `peers`, `speedup_vs_best`, `limit_us`, `search_s`, `states`, `verdict`,
`max_rel_err`, `threads`, `cache`.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from tessera import _core
from tessera.api import superoptimize
from tessera.bench import peers as peer_module
from tessera.bench.timing import flop_rate, interleave, read_bandwidth
from tessera.bench.workloads import MIRAGE, WORKLOADS, Workload
from tessera.errors import Error, UsageError
from tessera.frontends.trace import trace
from tessera.options import Options

Row = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """What narrows a suite."""

    options: Options
    case: str | None = None
    quick: bool = False
    peers: tuple[str, ...] = ("numpy",)
    tell: Callable[[str], None] = lambda text: None


def run(suite: str, settings: Settings) -> Iterator[Row]:
    """The rows of one suite, as they are measured."""
    suites: dict[str, Callable[[Settings], Iterator[Row]]] = {
        "mirage": mirage,
        "search": search,
        "verify": verify,
    }
    yield from suites[suite](settings)


SUITES = ("mirage", "search", "verify")


def _chosen(settings: Settings) -> list[tuple[Workload, str, dict[str, tuple[int, ...]]]]:
    cases = [
        (WORKLOADS[name], case, shapes)
        for name in MIRAGE
        for case, shapes in WORKLOADS[name].cases()
    ]
    if settings.case:
        known = [case for _, case, _ in cases]
        cases = [c for c in cases if settings.case in (c[1], c[0].name)]
        if not cases:
            raise UsageError(f"--case {settings.case} is not one of {', '.join(known)}")
    elif settings.quick:
        cases = [c for c in cases if c[1] == "rmsnorm_linear"]
    return cases


def _types(shapes: dict[str, tuple[int, ...]], dtype: str = "f32") -> list[str]:
    return [f"{dtype}[{','.join(map(str, s))}]" for s in shapes.values()]


# --- speed ------------------------------------------------------------------------------------


def mirage(settings: Settings) -> Iterator[Row]:
    """Mirage's workloads, end to end: ours against the original and the peers, warm and cold."""
    for workload, case, shapes in _chosen(settings):
        settings.tell(f"{case}: searching")
        try:
            yield from _speed(workload, case, shapes, settings)
        except Error as error:
            settings.tell(f"{case}: {error}")
            yield {
                "suite": "mirage", "case": case, "shape": _lists(shapes), "dtype": "f32",
                "target": settings.options.target, "verdict": f"failed: {error}",
            }  # fmt: skip


def _lists(shapes: dict[str, tuple[int, ...]]) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in shapes.items()}


def _speed(
    workload: Workload, case: str, shapes: dict[str, tuple[int, ...]], settings: Settings
) -> Iterator[Row]:
    function, types = workload.numpy(), _types(shapes)
    result = superoptimize(function, *types, options=settings.options)
    if result.interrupted:
        raise KeyboardInterrupt
    arrays = workload.arrays(shapes)
    ours = result(*arrays)
    exact = workload.function(np, *[a.astype(np.float64) for a in arrays])
    error = float(np.abs(ours - exact).max() / np.abs(exact).max())
    original = _core.compile(result.original.core)
    from tessera.result import GraphCall, Runner

    baseline = Runner(original, GraphCall(result.original).names)
    contestants: dict[str, Callable[[], Any]] = {
        "ours": lambda: result(*arrays),
        "original": lambda: baseline(arrays),
    }
    notes = {}
    for name in settings.peers:
        settings.tell(f"{case}: preparing {name}")
        try:
            contestants[name] = peer_module.make(name, workload, arrays)
            if single := peer_module.on_one_thread(name, contestants[name]):
                contestants[f"{name}_1_thread"] = single
        except Exception as failure:  # a peer's failure is a fact about the peer
            notes[name] = f"{type(failure).__name__}: {failure}"[:200]
    total = sum(a.nbytes for a in arrays) + ours.nbytes
    for cache in ("warm", "cold"):
        settings.tell(f"{case}: measuring {cache}")
        budget = 1.0 if settings.quick else 6.0
        bandwidth = read_bandwidth(total if cache == "warm" else 512 << 20)
        timings = interleave(contestants, budget, cold=cache == "cold")
        rate = max(flop_rate(), _described_flops(settings.options))
        times = {name: timings[name].us for name in contestants if name not in ("ours", "original")}
        row: Row = {
            "suite": "mirage",
            "case": case,
            "shape": _lists(shapes),
            "dtype": "f32",
            "target": settings.options.target,
            "threads": result.details["threads"],
            "cache": cache,
            "ours_us": timings["ours"].us,
            "original_us": timings["original"].us,
            "peers": times,
            "speedup_vs_best": min(times.values()) / timings["ours"].us if times else None,
            "speedup_vs_original": timings["original"].us / timings["ours"].us,
            "limit_us": max(total / bandwidth, workload.flops(shapes) / rate) * 1e6,
            "bandwidth_gb_s": bandwidth / 1e9,
            "search_s": result.details["search_s"],
            "verify_s": result.details["verify_s"],
            "tune_s": result.details["compile_s"]
            + result.details["check_s"]
            + result.details["measure_s"],
            "states": sum(s["states"] for s in result.details["searches"]),
            "from_cache": result.details["from_cache"],
            "verdict": "equal" if result.improved else "original",
            "max_rel_err": error,
        }
        if notes:
            row["peer_failures"] = notes
        yield row


def _described_flops(options: Options) -> float:
    """f32 FLOP/s of all cores by the target description."""
    values: dict[str, float] = {}
    for line in _core.resolve_target(options.fields()).splitlines():
        words = line.split()
        if words[:1] == ["cores"]:
            values["cores"] = float(words[1])
        elif words[:2] == ["matmul", "f32"]:
            values["matmul"] = float(words[2])
    return values.get("cores", 0.0) * values.get("matmul", 0.0)


# --- search -----------------------------------------------------------------------------------


def search(settings: Settings) -> Iterator[Row]:
    """Search alone: Graph to ranked candidates, without a limit and for 5 … 11 block operators."""
    for workload, case, shapes in _chosen(settings):
        if "@" in case and not settings.case:
            continue
        function, types = workload.numpy(), _types(shapes)
        graph = trace(function, *types)
        limits: list[int | None] = [None] if settings.quick else [None, 5, 6, 7, 8, 9, 10, 11]
        for limit in limits:
            settings.tell(f"{case}: max_block_ops {limit}")
            fields = settings.options.replace(max_block_ops=limit).fields()
            seconds = []
            for _ in range(1 if settings.quick else 5):
                record = _core.search(graph.core, fields)
                if record["interrupted"]:
                    raise KeyboardInterrupt
                seconds.append(record["report"]["seconds"])
            report = record["report"]
            start = time.perf_counter()
            passed = _core.filter(
                graph.core,
                [c["graph"] for c in record["candidates"]],
                threads=settings.options.threads,
            )
            filter_s = time.perf_counter() - start
            row: Row = {
                "suite": "search",
                "case": case,
                "shape": _lists(shapes),
                "dtype": "f32",
                "target": settings.options.target,
                "max_block_ops": limit,
                "search_s": median(seconds) + filter_s,
                "filter_s": filter_s,
                "passed_filter": sum(passed),
                "values": report["values"],
                "edges": report["edges"],
                "graphs": report["graphs"],
                "tilings": report["tilings"],
                "states": report["states"],
                "pruned": report["pruned"],
                "candidates": report["candidates"],
                "stop": report["stop"],
                "best_cost_us": report["best_cost"] * 1e6,
                "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "threads": settings.options.threads or _core.machine()["threads"],
            }
            if limit is None:
                row |= _acceptance(function, types, settings)
            yield row


def _acceptance(function: Any, types: list[str], settings: Settings) -> Row:
    """Acceptance and tuning of the same program, timed apart from the search."""
    result = superoptimize(function, *types, options=settings.options.replace(cache=False))
    details = result.details
    return {
        "verify_s": details["verify_s"],
        "tune_s": details["compile_s"] + details["check_s"] + details["measure_s"],
        "verdict": "equal" if result.improved else "original",
        "ours_us": result.measured_us,
        "original_us": result.original_us,
    }


# --- verifier ---------------------------------------------------------------------------------


def verify(settings: Settings) -> Iterator[Row]:
    """The verifier against injected faults, equal pairs and faults in generated kernels."""
    count = 500 if settings.quick else 10_000
    counts = {kind: count if settings.case in (None, kind) else 0 for kind in ("injected", "equal")}
    settings.tell(f"verify: {counts}")
    results, interrupted = (
        _core.bench_verify(
            counts["injected"], counts["equal"], settings.options.seed + 1, settings.options.threads
        )
        if any(counts.values())
        else ([], False)
    )
    for result in results:
        if not result["count"]:
            continue
        row: Row = {
            "suite": "verify", "case": result.pop("name"), "shape": {}, "dtype": "mixed",
            "target": settings.options.target, "count": result["count"],
        }  # fmt: skip
        if row["case"] == "injected":
            row["missed"] = result.pop("accepted")
        yield row | result
    if interrupted:
        raise KeyboardInterrupt
    if settings.case in (None, "kernel_faults"):
        faults = 20 if settings.quick else 500
        settings.tell(f"verify: {faults} faults in compiled kernels")
        found = _core.bench_kernel_faults(
            faults, settings.options.seed + 1, settings.options.threads
        )
        interrupted = found.pop("interrupted")
        yield {
            "suite": "verify", "case": "kernel_faults", "shape": {}, "dtype": "mixed",
            "target": settings.options.target, **found,
        }  # fmt: skip
        if interrupted:
            raise KeyboardInterrupt
