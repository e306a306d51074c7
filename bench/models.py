"""The suite models: whole models of the four papers (model_zoo.py) through torch.compile, against
what people run them with, and what each of Tessera's engines adds to its plain compilation.

Contestants have processes of their own and take turns. "tessera" is the default, after its
searches behind the calls ended; "tessera:search" is compiled as it is, without any; the other
"tessera:ENGINE" are without that engine (--ablate), "library" without vendors' kernels (PluS,
ATC'25, §6.3). Errors are relative to the largest number of
PyTorch's result in f64.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from bench.model_zoo import TABLE_2, ZOO
from bench.race import Late, Process, geometric_mean
from tessera.errors import UsageError
from tessera.options import Options

Row = dict[str, Any]
WORKER = "bench.models_worker"
PLAIN = "tessera:search"  # without any
ABLATED = ("tessera:mugraph", "tessera:mutate", "tessera:patterns", "tessera:synth",
           "tessera:library")  # fmt: skip
PEERS = {"eager": "torch", "inductor": "torch", "inductor_max": "torch", "ort": "onnxruntime",
         "openvino": "openvino"}  # fmt: skip
_QUICK = ("llama3",)


def cases(case: str | None, batch: int | None, quick: bool) -> list[tuple[str, str, int]]:
    """Models, phases ("prompt", "decode") and batches; raises UsageError for a name of none.

    `case`: a model, MODEL@decode, the paper that models are from, or BERT's subgraphs, which are
    not among those of no case."""
    every = [(n, phase) for n, e in ZOO.items()
             for phase in ("prompt", *(["decode"] if e.decode else []))]  # fmt: skip
    papers = tuple(dict.fromkeys(e.paper for e in ZOO.values()))
    name, _, phase = (case or "").partition("@")
    if case is None:
        chosen = [(n, p) for n, p in every
                  if (n in _QUICK if quick else ZOO[n].paper != TABLE_2)]  # fmt: skip
    elif case in papers:
        chosen = [(n, p) for n, p in every if ZOO[n].paper == case]
    else:
        chosen = [(n, p) for n, p in every if n == name and p == (phase or "prompt")]
    if not chosen:
        raise UsageError(f"--case: '{case}' is not one of {', '.join(ZOO)}, nor with @decode one "
                         f"of Mirage's, nor one of the papers {', '.join(papers)}")  # fmt: skip
    batches = (batch,) if batch else (1,) if quick else (1, 16)
    return [(n, p, b) for n, p in chosen for b in batches]


def key(row: Row) -> tuple[Any, ...]:
    """What tells rows apart."""
    facts = ("suite", "case", "phase", "batch", "dtype", "threads")
    return *(row.get(n) for n in facts), bool(row.get("ablated"))


def run(
    options: Options, case: str | None, batch: int | None, dtypes: Sequence[str], quick: bool,
    ablate: bool, tell: Callable[[str], None], limit_s: float, peers: Sequence[str] | None,
    known: Sequence[Row] = (),
) -> Iterator[Row]:  # fmt: skip
    """A row for each model, phase, batch, dtype and number of threads, but for those known."""
    chosen = cases(case, batch, quick)
    for module in ("torch", "transformers"):
        if importlib.util.find_spec(module) is None:
            raise UsageError(f"bench models needs {module}; try pip install {module}")
    for name in peers or ():
        if name not in PEERS:
            raise UsageError(f"--peers: '{name}' is not one of {', '.join(PEERS)}")
    found = [n for n, m in PEERS.items() if importlib.util.find_spec(m) is not None]
    found = [n for n in found if (n in peers if peers is not None else not quick or n == "eager")]
    most = options.threads or len(os.sched_getaffinity(0))
    counts = [most] if quick or options.threads else sorted({1, most}, reverse=True)
    there = {key(r) for r in known if "failed" not in r}
    for dtype in dtypes[:1] if quick else dtypes:
        for name, phase, size in chosen:
            for threads in counts:
                row: Row = {"suite": "models", "case": name, "paper": ZOO[name].paper,
                            "phase": phase, "batch": size, "dtype": dtype, "threads": threads,
                            "target": options.target, "ablated": ablate}  # fmt: skip
                if key(row) in there:
                    continue
                ours = ["tessera", PLAIN, *(ABLATED if ablate else ())]
                yield row | race(
                    name, size, threads, [*ours, *(() if ablate else found)], tell, limit_s,
                    2.0 if quick else 20.0, decode=phase == "decode", dtype=dtype,
                )  # fmt: skip


def race(
    name: str, batch: int, threads: int, contestants: Sequence[str], tell: Callable[[str], None],
    limit_s: float, seconds: float, **order: Any,
) -> Row:  # fmt: skip
    """Times of all contestants by turns, and facts about each; `order`: of the worker."""
    processes: dict[str, Process] = {}
    facts: dict[str, Row] = {}
    notes: dict[str, str] = {}

    def ask(contestant: str, folder: str) -> None:
        tell(f"{name}, batch {batch}, {threads} thread(s): {contestant}")
        cache = {"TESSERA_CACHE_DIR": os.path.join(folder, contestant.partition(":")[2] or "all")}
        process = Process(threads, WORKER, cache if contestant.startswith("tessera") else None)
        try:
            answer = process.ask(limit_s, do="prepare", name=contestant, case=name, batch=batch,
                                 folder=folder, **order)  # fmt: skip
        except Late as late:
            answer = {"failed": str(late)}
        if "failed" in answer:
            notes[contestant] = answer["failed"]
            process.close()
        else:
            processes[contestant], facts[contestant] = process, answer["facts"]

    with tempfile.TemporaryDirectory(prefix="tessera-models-") as folder:
        exact = Process(threads, WORKER)
        try:
            exact.ask(limit_s, do="exact", case=name, batch=batch, folder=folder,
                      decode=order.get("decode", False))  # fmt: skip
            exact.close()
            for contestant in contestants:
                if contestant == "tessera":  # with an empty cache, then as a second process
                    ask(contestant, folder)
                    first = facts.pop(contestant, {})
                    if contestant in processes:
                        processes.pop(contestant).close()
                    else:
                        continue
                ask(contestant, folder)
            times = take_turns(processes, seconds)
        except Late as late:
            return {"failed": str(late)}
        finally:
            exact.close()
            for process in processes.values():
                process.close()
    return described(times, facts, first) | ({"notes": notes} if notes else {})


def described(times: dict[str, list[float]], facts: dict[str, Row], first: Row) -> Row:
    """What a row says of times in seconds; `first`: of the process that found an empty cache."""
    us = {n: median(t) * 1e6 for n, t in times.items()}
    peers = {n: t for n, t in us.items() if not n.startswith("tessera")}
    ours, inductor, mine = us.get("tessera"), peers.get("inductor"), facts.get("tessera", {})
    compiled = min((us[n] for n in us if n.startswith("inductor")), default=None)
    return {
        "ours_us": ours, "peers": peers,
        "speedup_vs_best": min(peers.values()) / ours if ours and peers else None,
        "speedup_vs_inductor": inductor / ours if ours and inductor else None,
        "speedup_vs_compiled": compiled / ours if ours and compiled else None,
        # What is slower without it: 1.1 is worth a tenth.
        "engines": {n.partition(":")[2]: t / ours for n, t in us.items()
                    if ours and n.startswith("tessera:")},
        "least_us": {n: min(t) * 1e6 for n, t in times.items()},
        "medians_us": us, "rounds": min(map(len, times.values()), default=0),
        "ops": mine.get("ops"), "kernels": mine.get("kernels"),
        "compile_s": first.get("compile_s"), "compile_cached_s": mine.get("compile_s"),
        "build_s": first.get("build_s"), "build_cached_s": mine.get("build_s"),
        "max_abs_diff": first.get("max_abs_diff"),
        "errors": {n: f["max_rel_err"] for n, f in facts.items() if "max_rel_err" in f},
        "memory_mb": {n: f["memory_mb"] for n, f in facts.items()},
        "facts": facts, "load": os.getloadavg()[0],
    }  # fmt: skip


def take_turns(processes: dict[str, Process], seconds: float, **order: Any) -> dict[
    str, list[float]
]:  # fmt: skip
    """Seconds of runs, each time in another order."""
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


def summaries(rows: Sequence[Row]) -> list[Row]:
    """Geometric means of what was raced: of all, and of each paper's."""
    found = []
    for paper in (None, *dict.fromkeys(e.paper for e in ZOO.values())):
        these = [r for r in rows if r.get("suite") == "models" and "phase" in r
                 and paper in (None, r["paper"])]  # fmt: skip
        raced = [r for r in these if r.get("speedup_vs_best")]
        row: Row = {"suite": "models", "case": "geomean", "paper": paper, "count": len(these)}
        for name in ("speedup_vs_best", "speedup_vs_inductor", "speedup_vs_compiled"):
            row[name] = geometric_mean(r[name] for r in these if r.get(name)) or None
        row["least_vs_best"] = min((r["speedup_vs_best"] for r in raced), default=None)
        names = dict.fromkeys(n for r in these for n in r.get("engines", {}))
        row["engines"] = {
            n: geometric_mean(r["engines"][n] for r in these if n in r.get("engines", {}))
            for n in names
        }
        if these:
            found.append(row)
    return found
