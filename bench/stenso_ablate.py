"""`tessera bench stenso --ablate`: the configurations of STENSO's Figure 5 (CGO 2026), and more.

Each program of Tables I and II is searched alone, at the costs of NumPy's functions here.
"bottom-up" knows no sketches: the paper's baseline. "top-down" has sketches, over values of one
operation. "both" is what Tessera does without rules that are known; "with rules" is the default.
"no bound" keeps what is dearer than the best that is known: no branch and bound. The simplification
objective has no counterpart to switch off: what a sketch leaves of the target is looked up among
values, not searched for again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bench.corpus import programs
from tessera import _core, costs
from tessera.errors import UsageError
from tessera.frontends.trace import trace_call
from tessera.options import Options

Row = dict[str, Any]
# What is switched off, and what is set.
CONFIGURATIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "with rules": ((), ()),
    "both": (("rules",), ()),
    "both, no bound": (("rules", "synth:bound"), ()),
    "top-down": (("rules",), ("synth.size=1",)),
    "top-down, no bound": (("rules", "synth:bound"), ("synth.size=1",)),
    "bottom-up": (("rules", "synth:holes"), ()),
    "bottom-up, no bound": (("rules", "synth:holes", "synth:bound"), ()),
}
_QUICK = ("diag_dot", "synth_6")


def run(
    options: Options, case: str | None, quick: bool, tell: Callable[[str], None]
) -> Iterator[Row]:
    """One row per program and configuration."""
    chosen = [p for p in programs("stenso") if case in (None, p.name)]
    if not chosen:
        raise UsageError(f"--case: '{case}' is not a program of bench/corpus/numpy/stenso.py")
    measured = costs.fields(options.cost, "numpy")
    for program in chosen:
        if quick and case is None and program.name not in _QUICK:
            continue
        graph = trace_call(program.function, [], dict(program.specs)).graph
        rows = []
        for name, (disable, settings) in CONFIGURATIONS.items():
            tell(f"{program.name}: {name}")
            its = options.replace(
                budget=min(options.budget, 10.0),
                disable=(*options.disable, *disable),
                settings=(*options.settings, *settings),
            )
            fields = its.fields() | measured | {"engine": "synth"}
            report = _core.search(graph.core, fields, None)["report"]
            rows.append({
                "suite": "stenso", "case": program.name, "framework": "numpy", "output": name,
                "shape": {n: list(s.shape) for n, s in program.specs.items()},
                "dtype": next(iter(program.specs.values())).dtype, "target": options.target,
                "ablation": "configurations", "stop": report["stop"],
                "search_s": report["seconds"], "values": report["values"],
                "windows": report["graphs"], "original_us": report["original_cost"] * 1e6,
                "best_us": (report["best_cost"] or report["original_cost"]) * 1e6,
            })  # fmt: skip
        least = min(row["best_us"] for row in rows)
        for row in rows:
            yield row | {"finds_the_best": row["best_us"] <= least * (1 + 1e-6)}


def summaries(rows: Iterable[Row]) -> list[Row]:
    """Per configuration: programs, how often it finds the cheapest that any finds, time, values."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.get("ablation") == "configurations":
            groups.setdefault(row["output"], []).append(row)
    return [
        {"suite": "stenso", "case": "geomean", "framework": "numpy", "output": name,
         "cases": len(members), "finds_the_best": sum(r["finds_the_best"] for r in members),
         "cut_short": sum(r["stop"] != "exhausted" for r in members),
         "search_s": sum(r["search_s"] for r in members),
         "slowest_search_s": max(r["search_s"] for r in members),
         "values": sum(r["values"] for r in members)}
        for name, members in groups.items()
    ]  # fmt: skip
