"""The suite outside: programs that nobody tuned for (outside_programs.py) through torch.compile.

One thread and processor time, contestants by turns in one process a program: figures hold beside
other work, too (but those of generation.py). A row is eager's time over ours; `own` says what ran
in the end, as the race on calls chose (docs/torch.md).
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from bench import generation
from bench.race import Late, Process
from bench.worker import die_with_parent, pin, serve
from tessera.errors import UsageError

Row = dict[str, Any]
_ROUNDS = 15


def run(case: str | None, quick: bool, tell: Callable[[str], None], limit_s: float,
        peers: Sequence[str] | None, known: Sequence[Row]) -> Iterator[Row]:  # fmt: skip
    """A row for each program (`case`: a name, or a group of them) but for those that are known."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError("bench outside needs torch; try pip install torch")
    from bench.outside_programs import PROGRAMS

    chosen = [p for p in PROGRAMS.values() if case in (None, p.name, p.group)]
    texts = [n for n in generation.CASES if case in (None, n, "generation")]
    if not chosen and not texts:
        groups = ", ".join([*dict.fromkeys(p.group for p in PROGRAMS.values()), "generation"])
        raise UsageError(f"--case: '{case}' is neither a program nor one of the groups {groups}")
    there = {r["case"] for r in known if "failed" not in r}
    with tempfile.TemporaryDirectory(prefix="tessera-outside-") as cache:
        for program in chosen[:: 16 if quick else 1]:
            if program.name in there:
                continue
            tell(f"outside: {program.group}: {program.name}")
            process = Process(1, "bench.outside", {"TESSERA_CACHE_DIR": cache})
            row: Row = {"suite": "outside", "case": program.name, "group": program.group,
                        "shape": {}, "dtype": "f32", "target": "cpu", "threads": 1}  # fmt: skip
            try:
                answer = process.ask(limit_s, do="measure", name=program.name,
                                     inductor="inductor" in (peers or ()))  # fmt: skip
            except Late as late:
                answer = {"failed": str(late)}
            finally:
                process.close()
            yield row | answer | {"load": os.getloadavg()[0]}
        if texts and importlib.util.find_spec("transformers") is None:
            tell("outside: generation is left out: pip install transformers")
            texts = []
        for name in [] if quick else texts:
            if name not in there:
                tell(f"outside: generation: {name}")
                yield {"suite": "outside", "case": name, "group": "generation", "shape": {},
                       "dtype": "f32", "target": "cpu"} | generation.row(
                    name, limit_s, ["inductor"] if "inductor" in (peers or ()) else [],
                    cache) | {"load": os.getloadavg()[0]}  # fmt: skip


def summaries(rows: Sequence[Row]) -> list[Row]:
    """By group: the geometric mean, the least, and how many programs run slower; all together, and
    without those that run PyTorch's own operators."""
    raced = [r for r in rows if r.get("suite") == "outside" and r.get("speedup")]
    groups = dict.fromkeys(r["group"] for r in raced)
    sets = {g: [r for r in raced if r["group"] == g] for g in groups}
    if raced:
        sets |= {"all": raced, "own programs alone": [r for r in raced if r["own"]]}
    return [{"suite": "outside", "case": "geomean", "group": name, "count": len(some),
             "own": sum(r["own"] for r in some), "speedup": mean(some, "speedup"),
             "least": min(r["speedup"] for r in some),
             "below_0.97": sum(r["speedup"] < 0.97 for r in some),
             "speedup_vs_inductor": mean(some, "speedup_vs_inductor")}
            for name, some in sets.items() if some]  # fmt: skip


def mean(rows: Sequence[Row], key: str) -> float | None:
    """The geometric mean of those that have a value."""
    values = [math.log(r[key]) for r in rows if r.get(key)]
    return math.exp(sum(values) / len(values)) if values else None


def measure(name: str, inductor: bool) -> Row:
    """Times of one program: microseconds of processor time a call, medians; how far results are."""
    import torch

    import tessera.torch_backend as backend
    from bench.outside_programs import PROGRAMS

    torch.set_num_threads(1)
    torch.manual_seed(0)
    module, args = PROGRAMS[name].make()
    with torch.no_grad():
        expected = module(*args).double()
        contestants: dict[str, Callable[..., Any]] = {
            "eager": module, "tessera": torch.compile(module, backend="tessera")}  # fmt: skip
        if inductor:
            contestants["inductor"] = torch.compile(PROGRAMS[name].make()[0])
        for contestant in contestants.values():
            contestant(*args)
        for _ in range(2):  # races on calls are decided: with PyTorch, and what was found since
            backend.wait()
            for contestant in contestants.values():
                for _ in range(40):
                    contestant(*args)
        result = contestants["tessera"](*args).double()
        times = turns({n: functools.partial(c, *args) for n, c in contestants.items()})
    us = {n: 1e6 * median(t) for n, t in times.items()}
    ratios = {n: median(a / b for a, b in zip(t, times["tessera"], strict=True))
              for n, t in times.items()}  # fmt: skip
    parts = [p for r in backend.REPORTS if not r.lost for p in r.parts]
    return {
        "us": us, "speedup": ratios["eager"], "speedup_vs_inductor": ratios.get("inductor"),
        "own": any(p.programs for p in parts),
        "found": [q.found for p in parts for q in p.programs if q.found],
        "reasons": [p.reason for p in parts if p.reason],
        "max_abs_diff": float((result - expected).abs().max()),
        "max_abs": float(expected.abs().max()),
    }  # fmt: skip


def turns(runs: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Seconds of processor time a call, by turns of some milliseconds each."""
    repeats: dict[str, int] = {}
    for name, go in runs.items():
        start = time.process_time()
        go()
        repeats[name] = max(1, min(1000, int(0.01 / max(1e-6, time.process_time() - start))))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(_ROUNDS):
        for name, go in runs.items():
            start = time.process_time()
            for _ in range(repeats[name]):
                go()
            times[name].append((time.process_time() - start) / repeats[name])
    return times


def main() -> None:
    import sys

    die_with_parent()
    pin(int(sys.argv[1]))
    serve({"measure": measure})


if __name__ == "__main__":
    main()
