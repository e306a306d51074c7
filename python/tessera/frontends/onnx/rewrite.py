"""An ONNX model rewritten as an ONNX model: less work for any runtime that loads it.

Programs come from the synthesis engine and its rules, the verifier accepts, and onnxruntime's clock
chooses: the file as it was is always a contestant.
"""

from __future__ import annotations

import functools
import importlib.util
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tessera import _core, costs
from tessera.conditions import conditions
from tessera.errors import UnsupportedError
from tessera.frameworks import Run
from tessera.frontends.onnx.export import written
from tessera.frontends.onnx.model_file import Written, differs, session_of
from tessera.frontends.onnx.reader import array_of, read_model
from tessera.graph import Graph
from tessera.options import Options
from tessera.race import Entrant, decide
from tessera.rewrite import Improvement, Progress
from tessera.source import example_arrays
from tessera.types import Array, Record, Values
from tessera.verification import verify_by

_TRIED = 4  # programs that are timed, besides the original
_LEAST_GAIN = 1.03  # a smaller one is noise


@dataclass
class ModelRewrite(Improvement):
    """What became of a model; `model` computes what the original computes.

    Times are microseconds of onnxruntime, 0 where it is not installed.
    """

    written: Written = field(kw_only=True)

    @property
    def model(self) -> bytes:
        """The model as one file."""
        return self.written.bytes()

    def save(self, path: str | Path, *, external: bool = False) -> None:
        """Writes the model, all or nothing; see `export.export`."""
        self.written.save(Path(path), external)

    def json(self) -> Record:
        return super().json() | {"not_measured": self.not_measured}


def rewrite_model(
    graph: Graph,
    *,
    source: str | Path | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
) -> ModelRewrite:
    """The fastest model found for a program with numbers for all extents, or the model as it was.

    `source`: the file that the program was read from; without it the original is the program as it
    is written. Raises UnsupportedError for what has no standard ONNX form.
    """
    options = options or Options()
    tell = progress or (lambda text: None)
    arrays = example_arrays(graph, options.seed)
    own = written(graph)
    whole = own if source is None else _whole(source)
    result = ModelRewrite(graph.name, "onnx", graph, graph, written=whole)
    result.translation = "" if source else "the program as a model, not compared with its speed"
    tell("searching")
    fields = {**options.fields(), "engine": "synth", **costs.fields(options.cost, "numpy")}
    fields["budget"] = min(options.budget / 3, 10.0)
    record = _core.search(graph.core, fields, None)
    result.search = record["report"]
    programs = [] if source is None else [_Program(graph, own, "the same program, written anew")]
    for candidate in record["candidates"]:
        found = graph.with_core(candidate["graph"])
        try:
            model = written(found)
        except UnsupportedError as error:
            result.rejected.append(str(error))
            continue
        if model != own and all(model != p.model for p in programs):
            programs.append(_Program(found, model, candidate["derivation"]))
        if len(programs) >= _TRIED:
            break
    if importlib.util.find_spec("onnxruntime") is None:
        result.not_measured = "onnxruntime is not installed: pip install onnxruntime"
    else:
        tell(f"timing {len(programs)} models against the original")
        feed = {n: a for n, a in zip(graph.input_types(), arrays, strict=True)
                if n not in graph.weights}  # fmt: skip
        programs = _fastest_first(result, source, programs, feed, options)
    for program in programs:
        tell("proving")
        start = time.perf_counter()
        verdict = verify_by(options, graph, program.graph)
        result.verify_s += time.perf_counter() - start
        if not verdict.equal:
            result.rejected.append(": ".join(str(verdict).strip().splitlines()[:3]))
            continue
        result.graph, result.written = program.graph, program.model
        if source is not None:  # what its maker says of it
            result.written.proto.metadata_props.extend(read_model(Path(source)).metadata_props)
        result.derivation, result.certificate = program.derivation, verdict.certificate
        result.measured_us, result.speedup = program.us, program.speedup
        result.conditions = conditions(graph, program.graph, verdict.certificate)
        result.improved, result.translation = True, ""
        break
    return result


@dataclass
class _Program:
    graph: Graph
    model: Written
    derivation: str
    us: float = 0.0
    speedup: float = 1.0


def _whole(source: str | Path) -> Written:
    """The model as it was, and what of its data lies in other files."""
    path = Path(source)
    model = read_model(path)
    outside = [t for t in model.graph.initializer if t.data_location == t.EXTERNAL]
    arrays = {t.name: array_of(t, path.resolve().parent) for t in outside}
    for t in outside:
        t.CopyFrom(type(t)(name=t.name, data_type=t.data_type, dims=t.dims))
    return Written(model, arrays, None if outside else path.read_bytes())


def _fastest_first(
    result: ModelRewrite,
    source: str | Path | None,
    programs: Sequence[_Program],
    feed: dict[str, Array],
    options: Options,
) -> list[_Program]:
    """Those that onnxruntime runs faster than the original, and to the same results."""

    def run(model: str | Written) -> Run:
        with tempfile.TemporaryDirectory() as folder:
            file: str | bytes = str(Path(folder) / "large.onnx")
            if isinstance(model, str) or not model.is_large:
                file = model if isinstance(model, str) else model.bytes()
            else:
                model.save(Path(str(file)))
            session = session_of(file, options.threads)
        return functools.partial(session.run, None, feed)

    def computed(graph: Graph, contestant: Run) -> Values:
        """Results; those of the program itself where what comes behind it may jump."""
        if graph.tail is None:
            return contestant()  # type: ignore[no-any-return]
        bare = graph.with_core(graph.core)
        bare.tail, bare.output_names = None, []
        return run(written(bare))()  # type: ignore[no-any-return]

    original = run(result.written if source is None else str(source))
    expected = computed(result.graph, original)
    terms = max((a.size for a in feed.values()), default=1)
    runs, known = [original], []
    for program in programs:
        try:
            contestant = run(program.model)
            why = differs(computed(program.graph, contestant), expected, terms)
        except Exception as error:  # what the library refuses, it names
            why = f"{type(error).__name__}: {error}"
        if why:
            result.rejected.append(why)
            continue
        runs.append(contestant)
        known.append(program)
    entrants = [Entrant(run) for run in runs]
    held = decide(entrants, _LEAST_GAIN, (), min(2.0, options.budget / 8), options.budget / 2)
    if held.times[0] is not None:
        result.original_us = result.measured_us = held.times[0].median * 1e6
    if held.undecided(_LEAST_GAIN):
        result.rejected.append("the race was too noisy to tell whether anything is faster")
    faster = []
    for program, times in zip(known, held.times[1:], strict=True):
        if times is not None and times.faster(_LEAST_GAIN):
            program.us, program.speedup = times.median * 1e6, times.ratio
            faster.append(program)
    return sorted(faster, key=lambda p: p.us)
