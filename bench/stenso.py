"""`tessera bench stenso`: NumPy programs rewritten, against themselves in each framework.

A row per case and framework (numpy, jax, torch): the rewritten source against the original, both
run by that framework, as in STENSO's Figure 4 (CGO 2026), medians of interleaved runs; and one
with `output: kernel`: compiled kernels against the original under NumPy. In the same race run the
rewrite that is best known (`peers: best_known`, and for NumPy `numpy_means`, the same by all of
NumPy's means): bench/corpus/numpy/best_known. Rows of NumPy also have what Figure 5 shows: the
time of the synthesis, that of a plain bottom-up enumeration, and the paper's word on its own.

Cases are those of `bench/corpus/numpy/stenso.py`, `NAME@small` and `NAME@large` the same at a
quarter and four times the extents, and with `--case GROUP:` those of another file of the corpus
(`*:` of all; with `--quick` only as NumPy source, without kernels).
Rows of case "geomean" sum up, without those that other processes disturbed (`disturbed`).
JAX runs on the thread that calls and PyTorch on one thread (frameworks.py), both sides of each
ratio alike.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import exp, log
from typing import Any

from bench.corpus import FOLDER, CorpusProgram, programs
from bench.stenso_classes import by_class, transformation
from tessera import _core, costs
from tessera.api import optimize
from tessera.emit import compile_source, emit
from tessera.errors import Error, UsageError
from tessera.frameworks import FRAMEWORKS, Run
from tessera.frontends.trace import trace_call
from tessera.frontends.traced import Spec, Traced, arguments, unflatten
from tessera.options import Options
from tessera.race import Entrant, decide
from tessera.rewrite import Rewrite, rewrite
from tessera.source import run_file

Row = dict[str, Any]
_SCALES = {"": 1.0, "small": 0.25, "large": 4.0}
_LARGEST = 64 << 20  # elements of all arguments; larger cases are left out
_QUICK = ("diag_dot", "synth_6", "max_stack")
_ALIKE = 0.97  # of the best known, and still as good: the rest is noise
_DISTURBED = 0.5  # spread of times, in medians
_TRIED = {"numpy": 8, "jax": 8, "torch": 4}  # programs that are timed; others compile each


def key(row: Row) -> tuple[Any, ...]:
    """What tells rows apart."""
    return tuple(row.get(k) for k in ("case", "framework", "output"))


def run(
    options: Options,
    case: str | None,
    quick: bool,
    done: frozenset[tuple[Any, ...]],
    tell: Callable[[str], None],
    peers: Sequence[str] = tuple(FRAMEWORKS),
) -> Iterator[Row]:
    """All rows, as they are measured; those in `done` are left out, and frameworks not in `peers`.

    Raises UsageError where there is no such case.
    """
    installed = [f for f in FRAMEWORKS if importlib.util.find_spec(f) is not None]
    frameworks = ["numpy"] if quick else [f for f in installed if f in peers]
    for framework in frameworks:
        FRAMEWORKS[framework].prepare()
    paper = run_file(FOLDER / "best_known" / "stenso.py")
    by_numpy = run_file(FOLDER / "best_known" / "stenso_numpy.py")
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
                known = {}
                if program.group == "stenso":
                    known["best_known"] = paper[program.name]
                    if framework == "numpy" and program.name in by_numpy:
                        known["numpy_means"] = by_numpy[program.name]
                yield row | _source(program, traced, framework, options, known)
        kernels = "numpy" in frameworks and not (quick and ":" in (case or ""))
        if kernels and (name, "numpy", "kernel") not in done:
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


def _source(
    program: CorpusProgram,
    traced: Traced,
    framework: str,
    options: Options,
    known: Mapping[str, Callable[..., Any]],
) -> Row:
    row: Row = {"framework": framework, "output": "source"}
    chosen = options.replace(budget=min(options.budget, 8.0))
    try:
        found = rewrite(
            traced.graph,
            framework,
            options=chosen,
            function=program.function,
            traced=traced,
            name=program.name,
            tried=_TRIED[framework],
        )
    except Error as error:
        return row | {"verdict": f"no source: {error}"}
    row |= {
        "original_us": found.original_us,
        "ours_us": found.measured_us,
        "speedup_vs_original": found.speedup,
        "search_s": found.search["seconds"],
        "states": found.search["states"],
        "verify_s": found.verify_s,
        "verdict": "equal" if found.improved else "kept",
        "idioms": list(found.idioms),
        "rejected": len(found.rejected),
        "source": found.source.split("\n\n\n", 1)[-1],
    }
    if known:
        row |= _against(found, program, traced, framework, known, options.seed)
    if framework == "numpy":
        row |= _enumerated(traced, chosen, found)
        if found.improved:
            arrays = arguments(traced.graph, traced, options.seed)[: len(traced.arguments)]
            after = trace_call(found.function(), arrays, {}).graph
            row["class"] = transformation(program.function, traced.graph, after)
        if program.group == "stenso":
            row["paper_synthesis"] = run_file(FOLDER / "best_known" / "stenso.py")["SYNTHESIS"][
                program.name
            ]
    return row


def _against(
    found: Rewrite,
    program: CorpusProgram,
    traced: Traced,
    framework: str,
    known: Mapping[str, Callable[..., Any]],
    seed: int,
) -> Row:
    """Original, ours and the known rewrites in one race; a program that was kept is itself 1.0."""
    library = FRAMEWORKS[framework]
    arrays = arguments(traced.graph, traced, seed)
    args, kwargs = unflatten(traced.tree, arrays)
    prepared, _ = unflatten(traced.tree, library.arguments(arrays))

    def run(function: Callable[..., Any]) -> Run:
        if framework == "numpy":
            return library.run(function, args, kwargs)
        graph = trace_call(function, arrays[: len(traced.arguments)], {}).graph
        source = emit(graph, framework, name=program.name)
        return library.run(compile_source(source, program.name), prepared, {})

    ours = [library.run(found.function(), prepared, {})] if found.improved else []
    runs = [run(program.function), *ours, *map(run, known.values())]
    medians, ratios, disturbed = _undisturbed(runs, 0.5)
    mine = ratios[1] if ours else 1.0
    theirs = dict(zip(known, ratios[1 + len(ours) :], strict=True))
    result: Row = {
        "peers": {n: m * 1e6 for n, m in zip(known, medians[1 + len(ours) :], strict=True)},
        "best_known_vs_original": theirs["best_known"],
        "speedup_vs_best_known": mine / theirs["best_known"],
    } | disturbed
    if ours:
        result |= {
            "original_us": medians[0] * 1e6,
            "ours_us": medians[1] * 1e6,
            "speedup_vs_original": mine,
        }
    return result


def _undisturbed(runs: Sequence[Run], seconds: float) -> tuple[list[float], list[float], Row]:
    """Medians and ratios of a race; the third element is {"disturbed": True} where other work
    spread the times by half of them."""
    held = decide([Entrant(run) for run in runs], 1.0, (), seconds)
    times = [t for t in held.times if t is not None]
    assert len(times) == len(runs)
    disturbed = held.provisional and max(t.spread for t in times) > _DISTURBED
    row: Row = {"disturbed": True} if disturbed else {}
    return [t.median for t in times], [t.ratio for t in times], row


def _enumerated(traced: Traced, options: Options, found: Rewrite) -> Row:
    """The time of an enumeration that knows no holes, and whether it finds programs as cheap."""
    disable = (*options.disable, "synth:holes")
    fields = {**options.replace(disable=disable).fields(), "engine": "synth"}
    fields |= costs.fields(options.cost, "numpy")
    report = _core.search(traced.graph.core, fields, None)["report"]
    best = found.search["best_cost"]
    return {
        "bottom_up_s": report["seconds"],
        "bottom_up_finds_it": 0 < report["best_cost"] <= best * (1 + 1e-9) or best == 0,
    }


def _kernel(program: CorpusProgram, traced: Traced, options: Options) -> Row:
    """The decorated function, as users call it, against the function itself."""
    row: Row = {"framework": "numpy", "output": "kernel"}
    chosen = options.replace(budget=min(options.budget, 10.0), cache=False)
    decorated = optimize(options=chosen)(program.function)
    arrays = arguments(traced.graph, traced, options.seed)
    args, kwargs = unflatten(traced.tree, arrays)
    start = time.perf_counter()
    result = decorated.result(*args, **kwargs)
    total = time.perf_counter() - start
    if result is None or result.interpreted:
        return row | {"verdict": "no compiled code"}
    medians, ratios, disturbed = _undisturbed(
        [partial(program.function, *args, **kwargs), partial(decorated, *args, **kwargs)], 1.0
    )
    return (
        row
        | disturbed
        | {
            "original_us": medians[0] * 1e6,
            "ours_us": medians[1] * 1e6,
            "speedup_vs_original": ratios[1],
            "total_s": total,
            "runs": result.choice.runs if result.choice is not None else "kernel",
            "verdict": "equal" if result.improved else "kept",
        }
    )


def summaries(rows: Iterable[Row]) -> list[Row]:
    """Geometric means of `speedup_vs_original` per framework and kind of output."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.get("speedup_vs_original") and not row.get("disturbed"):
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
        compared = [r for r in members if r.get("speedup_vs_best_known")]
        if compared:
            best = [r["best_known_vs_original"] for r in compared]
            as_good = [r for r in compared if r["speedup_vs_best_known"] >= _ALIKE]
            summary |= {
                "best_known_vs_original": exp(sum(map(log, best)) / len(best)),
                "as_good_as_best_known": len(as_good),
                "worse_than_best_known": [r["case"] for r in compared if r not in as_good],
            }
        enumerated = [r["bottom_up_s"] for r in members if r.get("bottom_up_s") is not None]
        if enumerated:
            summary["bottom_up_s"] = sum(enumerated)
        if classes := by_class(members):
            summary["classes"] = classes
        searches = [r["search_s"] for r in members if r.get("search_s") is not None]
        if searches:
            summary |= {"search_s": sum(searches), "slowest_search_s": max(searches)}
        result.append(summary)
    return result
