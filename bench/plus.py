"""The suite plus: transformers as PluS measured them (ATC'25, §6), through torch.compile.

Contestants have processes of their own and take turns (race.py). `ops` and `kernels` stand beside
the paper's Table 1; PyTorch's own f64 result is the yardstick of the errors.
"""

from __future__ import annotations

import importlib.util
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from bench.race import Late, Process
from tessera.errors import UsageError
from tessera.options import Options

Row = dict[str, Any]
# Table 1 of the paper: operators, and layers of PluS; None: models that the paper lacks.
TABLE_1: dict[str, tuple[int, int] | None] = {
    "bert": (635, 87), "albert": (637, 88), "gpt2": (630, 87), "t5": (1460, 220),
    "vit": (655, 87), "llama": None, "qwen": None,
}  # fmt: skip
DYNAMIC = "bert@lengths"  # lengths 64…256 in one process, beside a process for each
LENGTHS = (64, 100, 177, 256)  # two of them sizes that no program is made for
AUTHORING = "authoring"
PEERS = ("eager", "inductor", "inductor_max", "ort")
_WORKER = "bench.plus_worker"


def cases(case: str | None, batch: int | None, quick: bool) -> list[tuple[str, int]]:
    """Models and batches; raises UsageError for a name that is none."""
    known = (*TABLE_1, DYNAMIC, AUTHORING)
    if case and case not in known:
        raise UsageError(f"--case: '{case}' is not one of {', '.join(known)}")
    names = [case] if case else ["qwen"] if quick else list(known)
    once = (DYNAMIC, AUTHORING)
    return [(n, b) for n in names
            for b in ((batch,) if batch else (1,) if quick or n in once else (1, 16))]  # fmt: skip


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells rows apart."""
    return row["suite"], row["case"], row["batch"], row["threads"]


def run(
    options: Options, case: str | None, batch: int | None, quick: bool,
    tell: Callable[[str], None], limit_s: float, known: Sequence[Row] = (),
) -> Iterator[Row]:  # fmt: skip
    """A row for each model and batch, but for those that are known."""
    chosen = cases(case, batch, quick)
    for module in ("torch", "transformers"):
        if importlib.util.find_spec(module) is None and chosen != [(AUTHORING, 1)]:
            raise UsageError(f"bench plus needs {module}; try pip install {module}")
    threads = options.threads or len(os.sched_getaffinity(0))
    there = {key(row) for row in known if "failed" not in row}
    for name, size in chosen:
        if ("plus", name, size, threads) in there:
            continue
        row: Row = {"suite": "plus", "case": name, "dtype": "f32", "target": options.target,
                    "threads": threads, "batch": size}  # fmt: skip
        if name == AUTHORING:
            yield row | authoring()
        elif name == DYNAMIC:
            yield row | _lengths(size, threads, quick, tell, limit_s)
        else:
            yield row | _race(name, size, threads, quick, tell, limit_s)


def authoring() -> Row:
    """Lines of T5's layer normalisation as an expert writes it, beside the paper's count: with
    its block graph alone, and with bodies in C++ and CUDA too.

    That the variants need no further line is what tests/unit/search holds."""
    from tessera.patterns import pattern_files

    def lines(name: str, *, bodies: bool = False) -> int:
        text = next(p for p in pattern_files() if p.stem == name).read_text()
        if not bodies:
            text = text.split("\n  code ")[0]
        return sum(bool(x.strip()) and not x.startswith("#") for x in text.splitlines())

    return {"lines": {"t5layernorm": lines("rmsnorm"), "matmul": lines("matmul"),
                      "t5layernorm_with_bodies": lines("rmsnorm", bodies=True)},
            "paper": {"t5layernorm": 18 + 129}, "further_lines": 0}  # fmt: skip


def _race(
    name: str, batch: int, threads: int, quick: bool, tell: Callable[[str], None], limit_s: float
) -> Row:
    processes: dict[str, Process] = {}
    facts: dict[str, Row] = {}
    notes: dict[str, str] = {}

    def start(contestant: str, cache: str | None = None) -> None:
        tell(f"plus: {name}, batch {batch}: {contestant}")
        process = Process(threads, _WORKER, {"TESSERA_CACHE_DIR": cache} if cache else None)
        try:
            answer = process.ask(limit_s, do="prepare", name=contestant, case=name, batch=batch,
                                 exact=not quick and contestant == "tessera")  # fmt: skip
        except Late as late:
            answer = {"failed": str(late)}
        if "failed" in answer:
            notes[contestant] = answer["failed"]
            process.close()
        else:
            processes[contestant], facts[contestant] = process, answer["facts"]

    try:
        with tempfile.TemporaryDirectory(prefix="tessera-plus-") as cache:
            start("tessera", cache)  # with an empty cache
            first = facts.pop("tessera", {})
            if "tessera" in processes:
                processes.pop("tessera").close()
                start("tessera", cache)  # as a second process finds it
        ort = importlib.util.find_spec("onnxruntime") is not None
        for peer in PEERS[:2] if quick else PEERS if ort else PEERS[:3]:
            start(peer)
        times = _take_turns(processes, 3.0 if quick else 30.0)
    finally:
        for process in processes.values():
            process.close()
    least = {n: min(t) * 1e6 for n, t in times.items()}
    peers = {n: us for n, us in least.items() if n != "tessera"}
    ours, inductor = least.get("tessera"), peers.get("inductor")
    mine = facts.get("tessera", {})
    return {
        "shape": {"batch": [batch]}, "ours_us": ours, "peers": peers,
        "speedup_vs_best": min(peers.values()) / ours if ours and peers else None,
        "speedup_vs_inductor": inductor / ours if ours and inductor else None,
        "medians_us": {n: median(t) * 1e6 for n, t in times.items()},
        "rounds": min(map(len, times.values()), default=0),
        "ops": mine.get("ops"), "kernels": mine.get("kernels"), "paper": TABLE_1[name],
        "compile_s": first.get("compile_s"), "compile_cached_s": mine.get("compile_s"),
        "build_s": first.get("build_s"), "build_cached_s": mine.get("build_s"),
        "max_abs_diff": first.get("max_abs_diff"), "max_abs_err": first.get("max_abs_err"),
        "memory_mb": {n: f["memory_mb"] for n, f in facts.items()},
        "facts": facts, "load": os.getloadavg()[0],
    } | ({"notes": notes} if notes else {})  # fmt: skip


def _take_turns(processes: dict[str, Process], seconds: float, **order: Any) -> dict[
    str, list[float]
]:  # fmt: skip
    times: dict[str, list[float]] = {n: [] for n in processes}
    end = time.monotonic() + seconds
    turn = 0
    while processes and (turn < 3 or (time.monotonic() < end and turn < 50)):
        names = list(processes)
        for n in names[turn % len(names) :] + names[: turn % len(names)]:
            time.sleep(0.02)  # pools spin for a while after their work
            times[n].append(processes[n].ask(120, do="time", **order)["seconds"])
        turn += 1
    return times


def _lengths(
    batch: int, threads: int, quick: bool, tell: Callable[[str], None], limit_s: float
) -> Row:
    """One graph for all lengths against a process that knows its length, by turns."""
    lengths = LENGTHS[:2] if quick else LENGTHS
    dynamic = Process(threads, _WORKER)
    rows: Row = {}
    try:
        dynamic.ask(limit_s, do="lengths", name="tessera", case="bert", batch=batch, dynamic=True)
        for length in lengths:
            tell(f"plus: bert, length {length}")
            added = dynamic.ask(limit_s, do="add_length", case="bert", batch=batch, length=length)
            static = Process(threads, _WORKER)
            try:
                static.ask(limit_s, do="lengths", name="tessera", case="bert", batch=batch,
                           dynamic=False)  # fmt: skip
                static.ask(limit_s, do="add_length", case="bert", batch=batch, length=length)
                times = _take_turns({"dynamic": dynamic, "static": static}, 5.0, length=length)
            finally:
                static.close()
            rows[str(length)] = added | {n: min(t) * 1e6 for n, t in times.items()}
    finally:
        dynamic.close()
    ratios = [r["dynamic"] / r["static"] for r in rows.values()]
    return {"lengths": rows, "graphs": max(r["graphs"] for r in rows.values()),
            "overhead": math.prod(ratios) ** (1 / len(ratios)) - 1}  # fmt: skip


def summaries(rows: Sequence[Row]) -> list[Row]:
    """Geometric means of what was raced."""
    raced = [r for r in rows if r.get("speedup_vs_inductor") and r.get("speedup_vs_best")]
    if not raced:
        return []

    def mean(name: str) -> float:
        return math.exp(sum(math.log(r[name]) for r in raced) / len(raced))

    return [{"suite": "plus", "case": "geomean", "count": len(raced),
             "speedup_vs_inductor": mean("speedup_vs_inductor"),
             "speedup_vs_best": mean("speedup_vs_best"),
             "least_vs_best": min(r["speedup_vs_best"] for r in raced)}]  # fmt: skip
