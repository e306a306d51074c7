"""Rewriting: a program as NumPy, JAX or PyTorch source that does less work, proved equal.

The synthesis engine proposes (STENSO, CGO'26; src/search/synth), the verifier accepts, and the
clock of the library that is to run the source chooses.
"""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from tessera import _core
from tessera.api import verify
from tessera.drop_in import DropIn
from tessera.emit import compile_source
from tessera.errors import Error, UnsupportedError, UsageError
from tessera.frontends.trace import Spec, Traced
from tessera.graph import Graph
from tessera.options import Options
from tessera.types import dtype_name

Run = Callable[[], Any]
Progress = Callable[[str], None]
_TRIED = 8  # programs that are timed, besides the original
_LEAST_GAIN = 1.03  # a smaller one is noise


@dataclass
class Rewrite:
    """What became of a program; `source` computes what the original computes."""

    name: str
    flavour: str
    original: Graph
    graph: Graph
    source: str
    improved: bool = False
    original_us: float = 0.0
    measured_us: float = 0.0
    speedup: float = 1.0
    certificate: _core.Certificate | None = None
    derivation: str = ""
    search: dict[str, Any] = field(default_factory=dict)
    verify_s: float = 0.0
    rejected: list[str] = field(default_factory=list)  # why faster ones were not taken
    # At how many other choices of extents the source was proved too; 0: it refuses other shapes.
    # None where there is no function to compare with.
    other_sizes: int | None = None

    def function(self) -> Callable[..., Any]:
        """The source as a function."""
        return compile_source(self.source, self.name)

    def json(self) -> dict[str, Any]:
        """Plain data, as `--json` prints it."""
        return {
            "program": self.name,
            "emit": self.flavour,
            "source": self.source,
            "improved": self.improved,
            "original_us": self.original_us,
            "measured_us": self.measured_us,
            "speedup": self.speedup,
            "search_s": self.search.get("seconds", 0.0),
            "values": self.search.get("values", 0),
            "stop": self.search.get("stop", ""),
            "verify_s": self.verify_s,
            "derivation": self.derivation,
            "rejected": self.rejected,
            "proved_at_other_sizes": self.other_sizes,
            "certificate": str(self.certificate) if self.certificate is not None else None,
            "graph": str(self.graph),
        }


def rewrite(
    graph: Graph,
    flavour: str = "numpy",
    *,
    options: Options | None = None,
    function: Callable[..., Any] | None = None,
    traced: Traced | None = None,
    name: str = "",
    progress: Progress | None = None,
    tried: int = _TRIED,
) -> Rewrite:
    """The fastest source found for a program, or its own source where nothing faster is proved.

    `function` and its `traced` form are the original that is timed under NumPy; without them, and
    for other flavours, the source of the program as it is. At most `tried` others are timed.
    Raises UnsupportedError for programs that have no source (fused kernels, operators without a
    spelling).
    """
    options = options or Options()
    tell = progress or (lambda text: None)
    title = name or graph.name
    drop_in = DropIn(graph, function, traced, title, arguments(graph, traced, options.seed))
    tell("searching")
    fields = {**options.fields(), "engine": "synth"}
    fields["budget"] = min(options.budget, 10.0)
    record = _core.search(graph.core, fields, None)
    result = Rewrite(title, flavour, graph, graph, drop_in.source(graph, flavour))
    result.search = record["report"]
    programs = [(graph, result.source, "")]
    for candidate in record["candidates"]:
        found = Graph.from_core(candidate["graph"])
        try:
            source = drop_in.source(found, flavour)
        except UnsupportedError:
            continue
        if all(source != other for _, other, _ in programs):
            programs.append((found, source, candidate["derivation"]))
        if len(programs) > tried:
            break
    runs, skipped = _contestants(programs, flavour, drop_in)
    tell(f"timing {len(runs)} programs")
    medians, ratios, low = race([run for run, _ in runs], min(1.0, options.budget / 8))
    result.original_us = result.measured_us = medians[0] * 1e6
    result.rejected += skipped
    # The first contestant is the original as the user wrote it, the second its own source: the
    # same program, which needs no proof but that of emission.
    for n in sorted(range(1, len(runs)), key=lambda n: medians[n]):
        if ratios[n] < _LEAST_GAIN:
            break
        if low[n] <= 1:
            continue
        found, source, derivation = runs[n][1]
        tell("proving")
        start = time.perf_counter()
        verdict = verify(graph, found, strict=options.strict, threads=options.threads)
        result.verify_s += time.perf_counter() - start
        if not verdict.equal:
            result.rejected.append(f"{verdict.name}: {str(verdict).splitlines()[0]}\n{source}")
            continue
        result.graph, result.source, result.derivation = found, source, derivation
        result.improved = True
        result.measured_us, result.speedup = medians[n] * 1e6, ratios[n]
        result.certificate = verdict.certificate
        break
    tell("proving other sizes")
    result.other_sizes = drop_in.proved_at_other_sizes(result.graph, options)
    notes = [a for a in getattr(result.certificate, "assumptions", []) if a]
    if result.other_sizes:
        notes.append(f"proved equal at these sizes and at {result.other_sizes} others")
    if notes or result.other_sizes == 0:
        result.source = drop_in.source(
            result.graph, flavour, notes=notes, these_sizes=result.other_sizes == 0
        )
    return result


Contestant = tuple[Run, tuple[Graph, str, str]]


def _contestants(
    programs: Sequence[tuple[Graph, str, str]], flavour: str, drop_in: DropIn
) -> tuple[list[Contestant], list[str]]:
    """What is timed: the original first, then each program's source; and why some are not."""
    framework = _FRAMEWORKS[flavour]
    if importlib.util.find_spec(flavour) is None:
        raise UsageError(
            f"programs for {flavour} are timed before one is chosen, and {flavour} is not "
            f"installed: pip install {flavour}"
        )
    prepared = framework.arguments(drop_in.arrays)

    def runs(source: str) -> Run:
        made = compile_source(source, drop_in.name)
        run: Run = framework.run(made, *drop_in.bind_source(prepared))
        return run

    contestants: list[Contestant] = []
    skipped = []
    if flavour == "numpy":
        original: Run = framework.run(drop_in.original, *drop_in.bind(prepared))
    else:
        original = runs(programs[0][1])
    with np.errstate(all="ignore"):
        original()
    contestants.append((original, programs[0]))
    for program in programs:
        try:
            run = runs(program[1])
            with np.errstate(all="ignore"):
                run()
        except Error:
            raise
        except Exception as error:  # the library's own refusal
            skipped.append(f"{type(error).__name__}: {error}\n{program[1]}")
            continue
        contestants.append((run, program))
    return contestants, skipped


def arguments(graph: Graph, traced: Traced | None, seed: int) -> list[Any]:
    """Random arrays for a program's inputs, in their domains; those of the example as they are."""
    rng = np.random.default_rng(seed)
    if traced is None:
        return [
            Spec(dtype_name(dtype), shape).sample(rng)
            for dtype, shape in graph.input_types().values()
        ]
    given = [a.sample(rng) if isinstance(a, Spec) else a for a in traced.arguments]
    return [*given, *traced.extra]


class _NumPy:
    @staticmethod
    def arguments(arrays: Sequence[Any]) -> list[Any]:
        return list(arrays)

    @staticmethod
    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Run:
        # All are called alike: an empty ** alone costs 40 ns.
        return functools.partial(function, *args, **kwargs)


class _Jax:
    """Compiled by jax.jit; a run ends when the result is there."""

    @staticmethod
    def arguments(arrays: Sequence[Any]) -> list[Any]:
        import jax

        if any(np.asarray(a).dtype == np.float64 for a in arrays):
            jax.config.update("jax_enable_x64", True)
        return [jax.numpy.asarray(a) for a in arrays]

    @staticmethod
    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Run:
        import jax

        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
        arrays = [leaves[n] for n in places]

        def call(*arrays: Any) -> Any:
            given = dict(zip(places, arrays, strict=True))
            args, kwargs = tree.unflatten([given.get(n, leaf) for n, leaf in enumerate(leaves)])
            return function(*args, **kwargs)

        compiled = jax.jit(call)
        return lambda: jax.block_until_ready(compiled(*arrays))


class _Torch:
    """Compiled by torch.compile."""

    @staticmethod
    def arguments(arrays: Sequence[Any]) -> list[Any]:
        import torch

        return [torch.from_numpy(np.array(a)) for a in arrays]

    @staticmethod
    def run(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Run:
        import torch

        compiled = torch.compile(function, dynamic=False)

        def run() -> Any:
            with torch.no_grad():
                return compiled(*args, **kwargs)

        return run


_FRAMEWORKS: dict[str, Any] = {"numpy": _NumPy, "jax": _Jax, "torch": _Torch}


def race(runs: Sequence[Run], seconds: float) -> tuple[list[float], list[float], list[float]]:
    """Medians of interleaved runs, in seconds; ratios of the first to each, and their low bounds.

    Who is several times slower than the original at first is not run again.
    """
    once = []
    with np.errstate(all="ignore"):
        for run in runs:
            run()
            start = time.perf_counter()
            run()
            once.append(max(time.perf_counter() - start, 1e-8))
        taking_part = [n for n, s in enumerate(once) if n == 0 or s < 3 * once[0] + 1e-5]
        repeats = [max(1, min(1000, int(200e-6 / s))) for s in once]
        samples: list[list[float]] = [[] for _ in runs]
        end = time.perf_counter() + seconds
        rounds = 0
        while rounds < 3 or (time.perf_counter() < end and rounds < 500):
            for i in range(len(taking_part)):
                n = taking_part[(i + rounds) % len(taking_part)]
                run = runs[n]
                if repeats[n] > 1:
                    run()
                start = time.perf_counter_ns()
                for _ in range(repeats[n]):
                    run()
                samples[n].append((time.perf_counter_ns() - start) * 1e-9 / repeats[n])
            rounds += 1
    medians = [median(s) if s else t for s, t in zip(samples, once, strict=True)]
    ratios = [
        [a / b for a, b in zip(samples[0], s, strict=True)] if s else [once[0] / t]
        for s, t in zip(samples, once, strict=True)
    ]
    return medians, [median(r) for r in ratios], [_low(r) for r in ratios]


def _low(ratios: Sequence[float]) -> float:
    """What their true median exceeds with three sigmas, however heavy the tails.

    >>> _low([1.0, 1.1, 1.2])
    1.0
    """
    rank = len(ratios) / 2 - 1.5 * len(ratios) ** 0.5
    return sorted(ratios)[max(0, int(rank))]
