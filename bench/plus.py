"""The suite plus: transformers as PluS measured them (ATC'25, §6), raced as in models.py, and
what only PluS shows: one graph for all lengths, and how little an expert writes. `ops` and
`kernels` stand beside the paper's Table 1.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bench import models
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
            peers = [n for n in PEERS if importlib.util.find_spec(models.PEERS[n]) is not None]
            raced = ["tessera", *(peers[:2] if quick else peers)]
            found = models.race(name, size, threads, raced, tell, limit_s, 3.0 if quick else 30.0)
            alone = _patterns_alone(name, size, threads, quick, tell, limit_s)
            yield row | {"shape": {"batch": [size]}, "paper": TABLE_1[name]} | found | alone


def _patterns_alone(
    name: str, batch: int, threads: int, quick: bool, tell: Callable[[str], None], limit_s: float
) -> Row:
    """Kernels that are left where patterns alone fuse, as in the paper's Table 1."""
    tell(f"plus: {name}, batch {batch}, by patterns alone")
    process = Process(threads, models.WORKER)
    try:
        answer = process.ask(limit_s, do="patterns", case=name, batch=batch,
                             seconds=20.0 if quick else 120.0)  # fmt: skip
    except Late as late:
        answer = {"failed": str(late)}
    finally:
        process.close()
    return {"by_patterns": answer.get("facts", answer)}


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


def _lengths(
    batch: int, threads: int, quick: bool, tell: Callable[[str], None], limit_s: float
) -> Row:
    """One graph for all lengths against a process that knows its length, by turns."""
    lengths = LENGTHS[:2] if quick else LENGTHS
    dynamic = Process(threads, models.WORKER)
    rows: Row = {}
    try:
        dynamic.ask(limit_s, do="lengths", name="tessera", case="bert", dynamic=True)
        for length in lengths:
            tell(f"plus: bert, length {length}")
            added = dynamic.ask(limit_s, do="add_length", case="bert", batch=batch, length=length)
            static = Process(threads, models.WORKER)
            try:
                static.ask(limit_s, do="lengths", name="tessera", case="bert", dynamic=False)
                static.ask(limit_s, do="add_length", case="bert", batch=batch, length=length)
                times = models.take_turns(
                    {"dynamic": dynamic, "static": static}, 5.0, length=length
                )
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
