"""Rewriting: a program as NumPy, JAX or PyTorch source that does less work, proved equal.

The synthesis engine proposes (STENSO, CGO'26; src/search/synth), the verifier accepts, and the
clock of the library that is to run the source chooses.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tessera import _core, costs
from tessera.clock import Clock, OutOfTime
from tessera.conditions import conditions, numbers_only, ranges
from tessera.drop_in import DropIn
from tessera.emit import compile_source, valid_name
from tessera.errors import UnsupportedError
from tessera.files import write_files, write_text
from tessera.frontends.traced import Traced, arguments
from tessera.graph import Graph
from tessera.options import Options
from tessera.race import Race, Times
from tessera.rewrite_arena import ALIKE, HOPE, Arena, Contestant, fastest_first, medians_of
from tessera.store.ranking import count_named
from tessera.types import Function, Record
from tessera.verification import verify_by

Progress = Callable[[str], None]
_TRIED = 8  # programs that are timed, besides the original
_SEARCH_SHARE = 0.45  # of the time allowed, for one search
_LEAST_GAIN = 1.03  # a smaller one is noise
_ALIKE_COMPILED = 1.05  # of calls that take 5 to 20 us before anything is computed
_BEST = 4  # programs and spellings in the last race
_LEAST_PROOF_SECONDS = 1.0  # that proofs may take together, however short the search


@dataclass
class Improvement:
    """What became of a program, in the form that is asked for; times are of who runs that."""

    name: str
    flavour: str
    original: Graph
    graph: Graph
    improved: bool = False
    original_us: float = 0.0
    measured_us: float = 0.0
    speedup: float = 1.0
    certificate: _core.Certificate | None = None
    derivation: str = ""
    conditions: list[str] = field(default_factory=list)  # "x > 0": equal there, see conditions.py
    search: Record = field(default_factory=dict)
    verify_s: float = 0.0
    rejected: list[str] = field(default_factory=list)  # why faster ones were not taken
    not_measured: str = ""  # why nothing was timed
    translation: str = ""  # what stands for a program of which nothing faster was found

    def json(self) -> Record:
        """Plain data, as `--json` prints it."""
        same = ("improved", "original_us", "measured_us", "speedup", "verify_s", "derivation",
                "rejected", "conditions", "translation")  # fmt: skip
        return {
            "program": self.name,
            "emit": self.flavour,
            **{name: getattr(self, name) for name in same},
            "search_s": self.search.get("seconds", 0.0),
            "stop": self.search.get("stop", ""),
            "certificate": str(self.certificate) if self.certificate is not None else None,
            "graph": str(self.graph),
        }


@dataclass
class Rewrite(Improvement):
    """What became of a program; `source` computes what the original computes: where NumPy runs a
    function that nothing faster is found of, it is the text of that, which is `kept`."""

    source: str = field(kw_only=True)
    kept: Function | None = None
    unlike: str = ""  # why the source is not called as the original is, or returns another form
    # Of all that were in the last race, the original first: what it is, and its times.
    contestants: list[tuple[str, Times]] = field(default_factory=list)
    undecided: bool = False  # too noisy to tell whether anything is faster
    provisional: bool = False  # others kept the machine busy: times of one thread, where told
    idioms: tuple[str, ...] = ()  # of IDIOMS[flavour], in the source
    # At how many other choices of extents the source was proved too; 0: it refuses other shapes.
    # None where there is no function to compare with.
    other_sizes: int | None = None
    all_sizes: str | None = None  # "A[N,M] with N >= 1, M >= 1": proved for these

    def save(self, path: str | Path) -> str:
        """Writes the source, of what is `kept` a copy of its file, and says so; all or nothing.
        Raises UnsupportedError where the source cannot stand in for the original."""
        if self.kept is not None:
            return _copied(self.kept, Path(path))
        if self.unlike:
            raise UnsupportedError(f"{self.name} is not saved: {self.unlike}")
        write_text(Path(path), self.source)
        return f"saved {path}"

    def function(self) -> Function:
        """The source as a function; one that is `kept` itself."""
        return self.kept or compile_source(self.source, self.name)

    def json(self) -> Record:
        return super().json() | {
            "source": self.source,
            "kept": self.kept is not None,
            "contestants": [{"what": what, **t.json()} for what, t in self.contestants],
            "too_noisy": self.undecided,
            "provisional": self.provisional,
            "values": self.search.get("values", 0),
            "idioms": self.idioms,
            "proved_at_other_sizes": self.other_sizes,
            "proved_for_all_sizes": self.all_sizes,
        }


def rewrite(graph: Graph, flavour: str = "numpy", *, options: Options | None = None,
            function: Function | None = None, traced: Traced | None = None, name: str = "",
            progress: Progress | None = None, tried: int = _TRIED, seconds: float = math.inf,
            below: float = math.inf, translate: bool = False) -> Rewrite:  # fmt: skip
    """The fastest source found for a program, or its own where nothing faster is proved: that of
    the `function`, but for other flavours, or to `translate`, the program's.

    `function` and its `traced` form are the original that is timed under NumPy; without them, and
    for other flavours, the source of the program as it is. At most `tried` others are timed. Where
    all that is faster is refused by the verifier, the search is done once more around it. When
    `seconds` have passed, what was proved by then counts. Of use is only what takes hardly more
    than `below` seconds a call, or less.
    Raises UnsupportedError for programs that have no source (fused kernels, operators without a
    spelling).
    """
    options = options or Options()
    tell = progress or (lambda text: None)
    own = getattr(function, "__name__", "")
    title = name or (own if valid_name(own) else graph.name)
    clock = Clock(seconds)
    arrays = arguments(graph, traced, options.seed)
    drop_in = DropIn(graph, function, traced, title, arrays, clock)
    fields = {**options.fields(), "engine": "synth", **costs.fields(options.cost, flavour)}
    result = Rewrite(title, flavour, graph, graph, source=drop_in.source(graph, flavour),
                     unlike=drop_in.unlike)  # fmt: skip
    for proved in (False, True):
        tell("searching")
        fields["budget"] = min(options.budget, 10.0, _SEARCH_SHARE * clock.left())
        record = _core.search(graph.core, {**fields, "proved": proved}, None)
        if record["interrupted"]:
            raise KeyboardInterrupt
        searched = result.search.get("seconds", 0.0)
        result.search = {**record["report"], "seconds": searched + record["report"]["seconds"]}
        try:
            found = record["candidates"]
            refused = _take_fastest(result, drop_in, found, options, tell, tried, clock, below)
        except OutOfTime:
            result.rejected.append("the time allowed was spent")
            break
        if result.improved or not refused:
            break
    if not result.improved and function is not None:
        if flavour == "numpy" and not translate:
            result.kept, result.source = function, ""
            with contextlib.suppress(OSError, TypeError):  # it has no text
                result.source = inspect.getsource(function)
            return result
        result.translation = "a translation of the program, not found to be faster"
        if options.level == "bitwise" and not drop_in.same_bits(result.source, options):
            result.translation += " and may have other bits"
    tell("proving other sizes")
    spelling: Record = {}
    tied: dict[int, int] = {}
    try:
        spelling, tied = _at_other_sizes(result, drop_in, options)
        guards = bool(result.other_sizes and not tied) and drop_in.needs_rank_guards(
            result.graph, options, **spelling
        )
    except (OutOfTime, KeyboardInterrupt) as ended:  # it is not known for any
        if isinstance(ended, KeyboardInterrupt) and not result.improved:
            raise
        result.other_sizes = 0
    result.conditions = conditions(graph, result.graph, result.certificate)
    notes = [note for note in (result.translation, result.unlike) if note]
    notes += [f"equal where {c}; elsewhere the original is not finite" for c in result.conditions]
    if result.improved:
        narrower = [*ranges(graph, result.graph), *numbers_only(graph, result.graph)]
        notes += [f"equal where {c}" for c in narrower]
        result.conditions += narrower
        count_named(graph.core, result.derivation, result.speedup)
    if result.other_sizes:
        result.all_sizes = drop_in.proved_for_all_sizes(result.graph, **spelling)
        others = f"at these sizes and at {result.other_sizes} others of the same ranks"
        if result.all_sizes:
            others = f"for all sizes {result.all_sizes}"
        notes.append(f"proved equal {others}")
        if tied:
            spelling["these_ties"] = tied
            notes[-1] += ", with the same axes equally long"
        else:
            spelling["these_ranks"] = guards
    if result.other_sizes == 0:
        spelling = {"idioms": result.idioms, "these_sizes": True}
    spelling["these_dtypes"] = result.improved
    result.source = drop_in.source(result.graph, flavour, notes=notes, **spelling)
    return result


def _copied(function: Function, to: Path) -> str:
    """Copies the file that has a function under its name, and says so, or why it does not."""
    function = inspect.unwrap(function)
    code, name = getattr(function, "__code__", None), getattr(function, "__qualname__", "")
    file = Path(code.co_filename if code else "")
    if not file.is_file() or not valid_name(name):
        return "nothing saved, use the original: no file has it as a function of its own"
    if to.exists() and to.samefile(file):
        return f"nothing saved: {to} is the original"
    here, text = file.resolve().parent, file.read_bytes()
    if here != to.resolve().parent:
        lines = re.findall(r"^\s*(?:from|import)\s(.*)", text.decode(), re.MULTILINE)
        words = [w.partition(".")[0] for line in lines for w in re.findall(r"[\w.]+", line)]
        beside = [here / part for w in words for part in (f"{w}.py", f"{w}/__init__.py")]
        if "" in words or b"__file__" in text or any(p.exists() for p in beside):
            return f"nothing saved, use the original: {file} needs what lies beside it"
    write_files({to: [text]})
    return f"saved {to}, a copy of {file}"


def _at_other_sizes(
    result: Rewrite, drop_in: DropIn, options: Options
) -> tuple[Record, dict[int, int]]:
    """How to spell the source so that it holds at other sizes, and which axes are equally long."""
    if options.level == "bitwise":  # how a library rounds may hang on sizes
        result.other_sizes = 0
        return {"idioms": result.idioms}, {}
    # Sizes as they are, or taken from the arguments.
    ways: list[Record] = [{"idioms": result.idioms, "read_sizes": w} for w in ("", "first", "last")]
    for spelling in ways:
        result.other_sizes = drop_in.proved_at_other_sizes(result.graph, options, **spelling)
        if result.other_sizes != 0:
            return spelling, {}
    for spelling in ways:
        if (holds := drop_in.least_extents(result.graph, options, **spelling)) is not None:
            tied, result.other_sizes = holds
            return spelling, tied
    return ways[-1], {}


def _take_fastest(result: Rewrite, drop_in: DropIn, candidates: Sequence[Record], options: Options,
                  tell: Progress, tried: int, clock: Clock, below: float) -> bool:  # fmt: skip
    """Times the candidates and takes the fastest that is proved. Were any refused that are faster
    than the original?"""
    graph, flavour = result.original, result.flavour
    programs = [(graph, result.source, "")]
    for candidate in candidates:
        found = Graph.from_core(candidate["graph"])
        clock.require()
        try:
            source = drop_in.source(found, flavour)
        except UnsupportedError:
            continue
        except Exception as error:  # it cannot be run, say for an index that it made out of bounds
            result.rejected.append(f"{type(error).__name__}: {error}")
            continue
        if all(source != other for _, other, _ in programs):
            programs.append((found, source, candidate["derivation"]))
        if len(programs) > tried:
            break
    tell(f"timing {len(programs)} programs")
    arena = Arena(programs, flavour, drop_in, clock)
    seconds = min(1.0, options.budget / 8, clock.left() / 8)
    final = arena.finalists(seconds, below)
    if arena.others and len(final) == 1:
        result.rejected.append(f"a call of none takes less than {below * 1e6 * HOPE:.3g} us")
        return False
    clock.require(4 * seconds)
    medians = medians_of(arena.race(final, seconds))
    order = sorted(range(1, len(final)), key=lambda n: medians[n])
    # Who leads a race of many was also lucky: what counts is a second one of the best.
    best = [final[0], *(final[n] for n in order[:_BEST])]
    last = arena.decide(best, _LEAST_GAIN, seconds, options.budget / 2)
    medians = medians_of(last)
    _report(result, last, best)
    result.rejected += arena.skipped
    refused: list[Graph] = []
    allowed = max(options.budget, _LEAST_PROOF_SECONDS)
    for n in fastest_first(best, medians, ALIKE if flavour == "numpy" else _ALIKE_COMPILED):
        chosen, times = best[n], last.times[n]
        if times is None or not times.faster(_LEAST_GAIN):
            continue
        if any(chosen.graph is g for g in refused):
            continue
        if why := arena.differs(chosen):
            refused.append(chosen.graph)
            result.rejected.append(f"{why}\n{chosen.source}")
            continue
        if (left := min(allowed - result.verify_s, clock.left())) <= 0:
            result.rejected.append(f"the time allowed for proofs was spent\n{chosen.source}")
            break
        tell("proving")
        start = time.perf_counter()
        verdict = verify_by(options, graph, chosen.graph, left)
        result.verify_s += time.perf_counter() - start
        if not verdict.equal:
            refused.append(chosen.graph)
            why = ": ".join(str(verdict).strip().splitlines()[:3])
            result.rejected.append(f"{why}\n{chosen.source}")
            continue
        if options.level == "bitwise" and not drop_in.same_bits(chosen.source, options):
            result.rejected.append(f"it is not proved to have the same bits\n{chosen.source}")
            continue
        if why := arena.differs_at_edges(chosen, options):
            result.rejected.append(f"{why}\n{chosen.source}")
            continue
        result.graph, result.source = chosen.graph, chosen.source
        result.derivation, result.idioms = chosen.derivation, chosen.idioms
        result.improved = True
        result.measured_us, result.speedup = times.median * 1e6, times.ratio
        result.undecided = False
        result.certificate = verdict.certificate
        break
    return bool(refused) and result.verify_s < allowed


def _report(result: Rewrite, last: Race, best: Sequence[Contestant]) -> None:
    """What the last race tells, whoever is taken."""
    if last.times[0] is not None:
        result.original_us = result.measured_us = last.times[0].median * 1e6
    result.undecided, result.provisional = last.undecided(_LEAST_GAIN), last.provisional
    named = [("original", last.times[0])]
    for c, times in zip(best[1:], last.times[1:], strict=True):
        what = "its own source" if c.graph is best[0].graph else f"program {c.place}"
        named.append((what + "".join(f", {i}" for i in c.idioms), times))
    result.contestants = [(what, times) for what, times in named if times is not None]
