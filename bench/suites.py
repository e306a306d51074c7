"""The suites of `tessera bench`; every suite yields rows of the one JSON contract.

Each row has `suite`, `case`, `shape`, `dtype`, `target` and, as far as they apply, `ours_us`,
`original_us`, `peers`, `speedup_vs_best`, `limit_us`, `search_s`, `states`, `verdict`,
`max_rel_err`, `threads`, `cache`.
"""

from __future__ import annotations

import dataclasses
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench import ablate, pet_ablate, stenso_ablate
from bench import mirage as mirage_suite
from bench import stenso as stenso_suite
from bench.cuda import emulate
from bench.cuda import suite as cuda_suite
from bench.workloads import FAMILIES, WORKLOADS, Workload, choose
from tessera import _core
from tessera.api import superoptimize
from tessera.errors import UsageError
from tessera.graph import Graph
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
    batch: int | None = None
    dtypes: tuple[str, ...] = mirage_suite.DTYPES
    case_limit_s: float = 420.0
    ablate: bool = False  # what parts are worth, without peers: the papers' ablations
    emulate: bool = False  # mirage for cuda: kernels in the emulator, and compiled, without a GPU
    stop_after_s: float | None = None  # mirage for cuda: no case is begun after that
    only_peers: tuple[str, ...] | None = None  # as named by the user; None: none were
    known: tuple[Row, ...] = ()  # rows of an earlier run that need not be measured again


def _native() -> Any:
    """The benches' own C++, which `make bench` builds beside the core."""
    try:
        from bench import _bench
    except ImportError as error:
        raise UsageError(
            f"the benches' C++ is not built: run `make bench-core` ({error})"
        ) from None
    return _bench


def run(suite: str, settings: Settings) -> Iterator[Row]:
    """The rows of one suite, as they are measured."""
    suites: dict[str, Callable[[Settings], Iterator[Row]]] = {
        "mirage": mirage,
        "models": models,
        "onnx": onnx,
        "outside": outside,
        "pet": pet,
        "plus": plus,
        "search": search,
        "stenso": stenso,
        "verify": verify,
    }
    yield from suites[suite](settings)


SUITES = ("mirage", "models", "onnx", "outside", "pet", "plus", "search", "stenso", "verify")


def stenso(settings: Settings) -> Iterator[Row]:
    """NumPy programs rewritten; see bench/stenso.py."""
    if settings.ablate:
        yield from stenso_ablate.run(settings.options, settings.case, settings.quick, settings.tell)
        return
    known = frozenset(stenso_suite.key(r) for r in settings.known)
    yield from stenso_suite.run(
        settings.options, settings.case, settings.quick, known, settings.tell, settings.peers
    )


def pet(settings: Settings) -> Iterator[Row]:
    """Whole models against what people run them with; see bench/pet.py."""
    if settings.ablate:
        yield from pet_ablate.run(settings.options, settings.case, settings.quick, settings.tell)
        return
    from bench import pet as pet_suite

    yield from pet_suite.run(
        settings.options, settings.case, settings.batch, settings.quick, settings.tell,
        settings.case_limit_s, settings.only_peers, {pet_suite.key(r) for r in settings.known},
    )  # fmt: skip


def models(settings: Settings) -> Iterator[Row]:
    """Whole models through torch.compile, and what engines add; see bench/models.py."""
    from bench import models as models_suite

    yield from models_suite.run(
        settings.options, settings.case, settings.batch, settings.dtypes, settings.quick,
        settings.ablate, settings.tell, settings.case_limit_s, settings.only_peers, settings.known,
    )  # fmt: skip


def plus(settings: Settings) -> Iterator[Row]:
    """Transformers through torch.compile; see bench/plus.py."""
    from bench import plus as plus_suite

    yield from plus_suite.run(
        settings.options, settings.case, settings.batch, settings.quick, settings.tell,
        settings.case_limit_s, settings.known,
    )  # fmt: skip


def outside(settings: Settings) -> Iterator[Row]:
    """Programs that nobody tuned for; see bench/outside.py."""
    from bench import outside as outside_suite

    yield from outside_suite.run(
        settings.case, settings.quick, settings.tell, settings.case_limit_s, settings.only_peers,
        settings.known,
    )  # fmt: skip


def onnx(settings: Settings) -> Iterator[Row]:
    """ONNX's own backend tests in three modes; see bench/onnx_nodes.py."""
    from bench import onnx_nodes

    yield from onnx_nodes.run(settings.quick, settings.tell, settings.known)


# --- search -----------------------------------------------------------------------------------


def mirage(settings: Settings) -> Iterator[Row]:
    """Mirage's workloads, end to end; see bench/mirage.py."""
    if settings.ablate:
        yield from ablate.run(
            settings.options,
            settings.case,
            settings.batch,
            settings.dtypes,
            settings.quick,
            settings.tell,
        )
        return
    on_gpu = settings.options.target.startswith("cuda")
    plan = mirage_plan(settings)
    if settings.emulate:
        done = {mirage_suite.key(r) for r in settings.known if r.get("verdict") == "equal"}
        yield from emulate.run(dataclasses.replace(plan, done=frozenset(done)))
    else:
        yield from (cuda_suite if on_gpu else mirage_suite).run(plan)


def mirage_plan(settings: Settings) -> mirage_suite.Plan:
    """What the suite mirage is to measure, less what is known."""
    done = {mirage_suite.key(r) for r in settings.known if _is_complete(r)}
    partial = {mirage_suite.key(r) for r in settings.known if r.get("ours_us") is not None} - done
    left_out = {
        mirage_suite.key(r) for r in settings.known if r.get("verdict") == cuda_suite.LEFT_OUT
    }
    tried = {mirage_suite.key(r) for r in settings.known} - done - partial - left_out
    return mirage_suite.Plan(
        options=settings.options,
        case=settings.case,
        batch=settings.batch,
        dtypes=settings.dtypes,
        quick=settings.quick,
        peers=settings.peers,
        case_limit_s=settings.case_limit_s,
        done=frozenset(done),
        partial=frozenset(partial),
        tried=frozenset(tried),
        tell=settings.tell,
        stop_after_s=settings.stop_after_s,
    )


def _is_complete(row: Row) -> bool:
    """Whether a row need not be measured again: ours ran, and all peers had time."""
    failures = row.get("peer_failures", {}).values()
    return row.get("ours_us") is not None and cuda_suite.NO_TIME not in failures


# What the search can do without, one at a time: pruning rules, ways to split, representations.
RULES = (
    "bound", "dominated", "volume", "cancels", "reciprocals", "split", "passes", "finer axes",
    "memory", "running maximum", "moments",
)  # fmt: skip


def search(settings: Settings) -> Iterator[Row]:
    """Search alone: Graph to ranked candidates.

    Without a limit and for 5 … 11 block operators; with one thread; with each rule switched off
    in turn; and Mirage's plain enumeration with and without its pruning (OSDI'25, Table 5).
    """
    workloads = choose(settings.case)
    if settings.case is None:  # one row per workload: Mirage's own shapes
        workloads = [WORKLOADS[f] for f in (FAMILIES[:1] if settings.quick else FAMILIES)]
    for workload in workloads:
        batch = settings.batch or workload.batches[0]
        graph = workload.graph(batch)
        plain = settings.options
        yield _search_row(workload, batch, graph, plain, settings) | _acceptance(graph, settings)
        if settings.quick:
            continue
        for limit in (5, 6, 7, 8, 9, 10, 11):
            yield _search_row(workload, batch, graph, plain.replace(max_block_ops=limit), settings)
        yield _search_row(workload, batch, graph, plain.replace(threads=1), settings)
        for rule in RULES:
            options = plain.replace(disable=(*plain.disable, f"mugraph:{rule}"))
            yield _search_row(workload, batch, graph, options, settings, without=rule)


def _search_row(
    workload: Workload,
    batch: int,
    graph: Graph,
    options: Options,
    settings: Settings,
    without: str | None = None,
) -> Row:
    """One search and the field filter over what it found."""
    settings.tell(
        f"{workload.name}: max_block_ops {options.max_block_ops}, threads {options.threads},"
        f" without {without}"
    )
    once = settings.quick or without is not None
    seconds = []
    for _ in range(1 if once else 5):
        record = _core.search(graph.core, options.fields())
        if record["interrupted"]:
            raise KeyboardInterrupt
        seconds.append(record["report"]["seconds"])
    report = record["report"]
    start = time.perf_counter()
    passed = _native().filter(
        graph.core, [c["graph"] for c in record["candidates"]], threads=options.threads
    )
    filter_s = time.perf_counter() - start
    return {
        "suite": "search",
        "case": workload.name,
        "batch": batch,
        "shape": {name: list(shape) for name, shape in workload.at(batch).items()},
        "dtype": "f32",
        "target": options.target,
        "max_block_ops": options.max_block_ops,
        "without": without,
        "search_s": median(seconds) + filter_s,
        "engine_s": median(seconds),
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
        "threads": options.threads or _core.default_threads(),
    }


def _acceptance(graph: Graph, settings: Settings) -> Row:
    """Acceptance and tuning of the same program, timed apart from the search."""
    result = superoptimize(graph, options=settings.options.replace(cache=False))
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
    deep = count // 10 if settings.case in (None, "deep") else 0
    branches = count if settings.case in (None, "branches") else 0
    settings.tell(f"verify: {counts}, deep: {deep} of each, branches: {branches} of each")
    results, interrupted = (
        _native().bench_verify(
            counts["injected"],
            counts["equal"],
            settings.options.seed + 1,
            settings.options.threads,
            lambda news: settings.tell(f"verify: {news[0]} {news[1]:,} of {news[2]:,}"),
            deep,
            branches,
        )
        if any(counts.values()) or deep or branches
        else ([], False)
    )
    for result in results:
        if not result["count"]:
            continue
        row: Row = {
            "suite": "verify", "case": result.pop("name"), "shape": {}, "dtype": "mixed",
            "target": settings.options.target, "count": result["count"],
        }  # fmt: skip
        if row["case"].startswith(("injected", "branch_faults")):
            row["missed"] = result.pop("accepted")
        yield row | result
    if interrupted:
        raise KeyboardInterrupt
    if settings.case in (None, "kernel_faults"):
        faults = 20 if settings.quick else 500
        settings.tell(f"verify: {faults} faults in compiled kernels")
        found = _native().bench_kernel_faults(
            faults, settings.options.seed + 1, settings.options.threads
        )
        interrupted = found.pop("interrupted")
        yield {
            "suite": "verify", "case": "kernel_faults", "shape": {}, "dtype": "mixed",
            "target": settings.options.target, **found,
        }  # fmt: skip
        if interrupted:
            raise KeyboardInterrupt
