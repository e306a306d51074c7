"""`tessera bench stenso`: NumPy programs rewritten, against themselves in each framework.

A row per case and framework (numpy, jax, torch): the rewritten source against the original, both
run by that framework, as in STENSO's Figure 4 (CGO 2026), medians of interleaved runs; and one
with `output: kernel`: compiled kernels against the original under NumPy. Cases are those of
`bench/corpus/numpy/stenso.py`, `NAME@small` and `NAME@large` the same at a quarter and four times
the extents, and with `--case GROUP:` those of another file of the corpus (`*:` of all; with
`--quick` only as NumPy source, without kernels). Rows of case "geomean" sum up.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from collections.abc import Callable, Iterable, Iterator
from math import exp, log
from typing import Any

from tessera.api import optimize_traced
from tessera.bench.corpus import CorpusProgram, programs
from tessera.errors import Error, UsageError
from tessera.frontends.trace import Spec, Traced, trace_call, unflatten
from tessera.options import Options
from tessera.rewrite import arguments, race, rewrite

Row = dict[str, Any]
_SCALES = {"": 1.0, "small": 0.25, "large": 4.0}
_LARGEST = 64 << 20  # elements of all arguments; larger cases are left out
_QUICK = ("diag_dot", "synth_6", "max_stack")
_FRAMEWORKS = {"numpy": "numpy", "jax": "jax", "torch": "torch"}


def key(row: Row) -> tuple[Any, ...]:
    """What tells rows apart."""
    return tuple(row.get(k) for k in ("case", "framework", "output"))


def run(
    options: Options,
    case: str | None,
    quick: bool,
    done: frozenset[tuple[Any, ...]],
    tell: Callable[[str], None],
) -> Iterator[Row]:
    """All rows, as they are measured; those in `done` are left out."""
    frameworks = [f for f, m in _FRAMEWORKS.items() if importlib.util.find_spec(m) is not None]
    if quick:
        frameworks = ["numpy"]
    for name, program, specs in _cases(case, quick):
        shape = {n: list(s.shape) for n, s in specs.items()}
        first = next(iter(specs.values()))
        row: Row = {"suite": "stenso", "case": name, "group": program.group, "shape": shape,
                    "dtype": first.dtype, "target": options.target}  # fmt: skip
        traced: Traced | None = None
        try:
            traced = trace_call(program.function, [], dict(specs))
        except Error as error:
            if (name, "numpy", "source") in done:
                continue
            yield row | {
                "framework": "numpy",
                "output": "source",
                "verdict": f"not traced: {error}",
            }
            continue
        for framework in frameworks:
            if (name, framework, "source") not in done:
                tell(f"{name}: {framework}")
                yield row | _source(program, traced, framework, options)
        if (name, "numpy", "kernel") not in done and not (quick and ":" in (case or "")):
            tell(f"{name}: kernels")
            yield row | _kernel(program, traced, options)


def _cases(case: str | None, quick: bool) -> Iterator[tuple[str, CorpusProgram, dict[str, Spec]]]:
    group, colon, name = (case or "").rpartition(":")
    name, _, scale = name.partition("@")
    if scale not in _SCALES:
        raise UsageError(f"--case {case}: '{scale}' is not one of small, large")
    found = False
    for program in programs(group if colon else "stenso"):
        if (name and program.name != name) or (
            quick and not colon and not name and program.name not in _QUICK
        ):
            continue
        found = True
        specs = {n: _scaled(s, _SCALES[scale]) for n, s in program.specs.items()}
        elements = 0
        for spec in specs.values():
            count = 1
            for extent in spec.shape:
                count *= int(extent)
            elements += count
        if elements <= _LARGEST:
            yield program.name + (f"@{scale}" if scale else ""), program, specs
    if not found:
        raise UsageError(f"--case {case}: there is no such program in bench/corpus/numpy")


def _scaled(spec: Spec, factor: float) -> Spec:
    shape = tuple(max(1, int(int(d) * factor)) if int(d) > 8 else d for d in spec.shape)
    return dataclasses.replace(spec, shape=shape)


def _source(program: CorpusProgram, traced: Traced, framework: str, options: Options) -> Row:
    row: Row = {"framework": framework, "output": "source"}
    try:
        found = rewrite(
            traced.graph,
            framework,
            options=options.replace(budget=min(options.budget, 8.0)),
            function=program.function,
            traced=traced,
            name=program.name,
            tried=8 if framework == "numpy" else 3,
        )
    except Error as error:
        return row | {"verdict": f"no source: {error}"}
    return row | {
        "original_us": found.original_us,
        "ours_us": found.measured_us,
        "speedup_vs_original": found.speedup,
        "search_s": found.search["seconds"],
        "states": found.search["states"],
        "verify_s": found.verify_s,
        "verdict": "equal" if found.improved else "kept",
        "rejected": len(found.rejected),
        "source": found.source.split("\n\n\n", 1)[-1],
    }


def _kernel(program: CorpusProgram, traced: Traced, options: Options) -> Row:
    row: Row = {"framework": "numpy", "output": "kernel"}
    start = time.perf_counter()
    try:
        chosen = options.replace(budget=min(options.budget, 10.0), cache=False)
        result = optimize_traced(program.function, traced, chosen)
    except Error as error:
        return row | {"verdict": f"no kernels: {error}"}
    total = time.perf_counter() - start
    if result.interpreted:
        return row | {"verdict": "no compiled code"}
    arrays = arguments(traced.graph, traced, options.seed)
    args, kwargs = unflatten(traced.tree, arrays)
    medians, ratios, _ = race(
        [lambda: program.function(*args, **kwargs), lambda: result(*args, **kwargs)], 1.0
    )
    return row | {
        "original_us": medians[0] * 1e6,
        "ours_us": medians[1] * 1e6,
        "speedup_vs_original": ratios[1],
        "total_s": total,
        "verdict": "equal" if result.improved else "kept",
    }


def summaries(rows: Iterable[Row]) -> list[Row]:
    """Geometric means of `speedup_vs_original` per framework and kind of output."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.get("speedup_vs_original"):
            scale = row["case"].partition("@")[2]
            groups.setdefault((scale, row["framework"], row["output"]), []).append(row)
    result = []
    for (scale, framework, output), members in groups.items():
        ratios = [r["speedup_vs_original"] for r in members]
        summary = {
            "suite": "stenso",
            "case": "geomean",
            "scale": scale or "as published",
            "framework": framework,
            "output": output,
            "cases": len(members),
            "speedup_vs_original": exp(sum(map(log, ratios)) / len(ratios)),
            "slowest": min(ratios),
        }
        searches = [r["search_s"] for r in members if r.get("search_s") is not None]
        if searches:
            summary |= {"search_s": sum(searches), "slowest_search_s": max(searches)}
        result.append(summary)
    return result
