"""Who runs when a function is called: compiled kernels, NumPy source of them, or the function.

All compute the same; they are timed where users call them, on the arrays of the call, and the
fastest is taken (`Choice.runs`). Thus `@tessera.optimize` does not make a function slower.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tessera import _core
from tessera.cache_folder import kept_json
from tessera.clock import Clock
from tessera.direct_calls import layout
from tessera.emit import compile_source, emit
from tessera.errors import Error
from tessera.frameworks import Run
from tessera.frontends.trace import trace_call
from tessera.frontends.traced import parts
from tessera.options import Options
from tessera.race import Entrant, Times, decide
from tessera.rewrite import rewrite
from tessera.runner import sharing
from tessera.types import Fields, Function, Record, Value, Values
from tessera.verification import verify_by

if TYPE_CHECKING:
    from tessera.frontends.traced import Traced
    from tessera.graph import Graph


_VERSION = 7  # of what is remembered
_SECONDS = 0.2  # that the race takes
_FASTER = 1.02  # than kernels, to be preferred to them
_PLAINLY = 2.0  # as fast as the function are kernels with which no source has to race
_REWRITE_SECONDS = 2.0  # budget of the search for source
_SOURCE_SHARE = 0.7  # of the time that is left, for source with its races and proofs
_ALIKE = ("verify_seed", "resume", "refresh")  # options that change no choice
_MOST_OPERATORS = 500  # of programs that source is made for


class Key(NamedTuple):
    """What a choice is remembered by, and its source for calls of other extents, which prove it
    again."""

    exact: str
    alike: str


@dataclass
class Choice:
    """What runs, and what each took that could have."""

    runs: str  # "kernel", "source" or "function"
    times: dict[str, Times] = field(default_factory=dict)
    source: str = ""  # with runs == "source": NumPy source, and the program that it is of
    name: str = ""
    graph: Graph | None = None
    certificate: _core.Certificate | None = None
    general: bool = False  # its source was proved at other extents, too
    undecided: bool = False  # too noisy to tell who is the fastest
    provisional: bool = False  # others kept the machine busy
    improved: bool = False  # the kernels' program is another one than the original

    @property
    def seconds(self) -> dict[str, float]:
        """Of a call, by kind."""
        return {kind: t.median for kind, t in self.times.items()}

    def json(self) -> Record:
        """Plain data: microseconds per call, by kind."""
        us = {f"{kind}_us": s * 1e6 for kind, s in self.seconds.items()}
        return {"runs": self.runs, **us, "times": {k: t.json() for k, t in self.times.items()},
                "too_noisy": self.undecided, "provisional": self.provisional}  # fmt: skip


# --- choosing ------------------------------------------------------------------------------------


def choose(function: Function, traced: Traced, arrays: Values, kernel: Entrant | None,
           as_call: Callable[[Function, bool], Run], options: Options,
           seconds_left: float = math.inf, held: str = "",
           key: Key | None = None) -> Choice:  # fmt: skip
    """The fastest of what computes a traced function on these arrays.

    `kernel` runs the compiled program, if any; `as_call(f, as_given)` makes a run of a function
    that takes the call's arguments or, unless `as_given`, the program's inputs. Source that was
    found at other extents is taken where it is proved for these, too: then there is no search. A
    search ends, and proofs do, when `seconds_left` have passed. `held` is a contest that a process
    of its own held (background.py), `written`; that process is told the `key` to remember it by.
    """
    first = "function" if kernel is None else "kernel"
    if "numpy" in options.disable:
        return Choice(first)
    key = key or key_of(function, traced.graph, arrays, options)
    if kernel is None:
        key = Key(*(hashlib.sha256(f"{k} without kernels".encode()).hexdigest() for k in key))
    clock = Clock(seconds_left)
    most = _REWRITE_SECONDS * (1 if kernel is not None else 4)
    within = options.replace(budget=min(options.budget, most, max(0.01, seconds_left)))
    # What was traced has no effects, so that it may be run for its time alone.
    original = as_call(function, True)
    held = held or ("" if options.refresh or not options.cache else kept(key))
    remembered = _remembered(held, traced, within) if held else None
    # Whoever held it may not have had the function itself.
    if remembered is not None and (
        _alike(_run_of(remembered, as_call), original, arrays)
        if remembered.runs == "source"
        else kernel is not None or remembered.runs == first
    ):
        return remembered
    entrants = {} if kernel is None else {"kernel": kernel}
    entrants["function"] = as_entrant(original, traced.graph, arrays)
    seconds = max(_SECONDS, options.budget / 4)
    rewritten = None
    choice = fastest(entrants, arrays, min(clock.left(), seconds)) if kernel is not None else None
    took = choice.seconds if choice is not None and not choice.undecided else {}
    below = took.get("kernel", math.inf)
    ahead = took.get("function", 0.0) > _PLAINLY * below
    if not ahead and "synth" not in options.disable and len(traced.graph.ops) <= _MOST_OPERATORS:
        known = kept_json(key.alike) if options.cache and not options.refresh else None
        if known is not None:
            rewritten = _at_these_extents(known, traced, within)
        left = _SOURCE_SHARE * clock.left()
        rewritten = rewritten or _source(function, traced, within, left, below)
        if options.cache and rewritten is not None and rewritten.general:
            _core.store_text(key.alike, json.dumps([rewritten.source, rewritten.name]))
    if rewritten is not None and rewritten.graph is not None:
        run = _run_of(rewritten, as_call)
        if _alike(run, original, arrays):
            entrants["source"] = as_entrant(run, rewritten.graph, arrays)
    if not clock.left() or len(entrants) == 1:
        return Choice(first)
    if choice is None or "source" in entrants:
        choice = fastest(entrants, arrays, min(clock.left(), seconds))
    if rewritten is not None:
        choice.undecided |= rewritten.undecided
        choice.provisional |= rewritten.provisional
    if choice.runs == "source" and rewritten is not None:
        choice.source, choice.name = rewritten.source, rewritten.name
        choice.graph, choice.certificate = rewritten.graph, rewritten.certificate
    choice.improved = kernel is not None and kernel.text.get("graph") != str(traced.graph)
    if options.cache and choice.times:
        _core.store_text(key.exact, written(choice))
    return choice


def _run_of(choice: Choice, as_call: Callable[[Function, bool], Run]) -> Run:
    return as_call(compile_source(choice.source, choice.name), False)


def as_entrant(run: Run, graph: Graph, arrays: Values) -> Entrant:
    """A call that runs under NumPy, for which the source of its program stands where processes of
    their own race."""
    if len(graph.ops) > _MOST_OPERATORS:
        return Entrant(run)
    try:
        source = emit(graph, name="program")
    except Error:  # operators without a spelling
        return Entrant(run)
    plain = functools.partial(compile_source(source, "program"), *arrays)
    return Entrant(run, "numpy", {"source": source, "name": "program"}, plain)


def fastest(entrants: Mapping[str, Entrant], arrays: Values, budget: float) -> Choice:
    """Who of the first, which is the kernel if there is one, and the others is the fastest."""
    first = next(iter(entrants))
    held = decide(list(entrants.values()), _FASTER, arrays, _SECONDS, budget)
    times = {k: t for k, t in zip(entrants, held.times, strict=True) if t is not None}
    undecided = held.undecided(_FASTER) or first not in times
    better = [k for k, faster in zip(entrants, held.faster(_FASTER), strict=True) if faster]
    # Where there is no telling, who seems to be.
    of = times if undecided else {k: times[k] for k in better}
    best = min(of, key=lambda k: of[k].median * (1 if k == first else _FASTER), default=first)
    return Choice(best, times, undecided=undecided, provisional=held.provisional)


def _source(
    function: Function, traced: Traced, options: Options, seconds: float, below: float
) -> Choice | None:
    """NumPy source of the program that is proved equal and fastest, or the function: there is no
    faster, or none in sight of `below` seconds; None where there is no source at all."""
    try:
        found = rewrite(
            traced.graph,
            options=options,
            function=function,
            traced=traced,
            tried=4,
            seconds=seconds,
            below=below,
        )
    except (Error, MemoryError):  # there is no source: no contestant
        return None
    except Exception as error:  # a bug, which is no reason to fail where kernels work
        name = getattr(function, "__qualname__", repr(function))
        warnings.warn(
            f"tessera: {name} has no NumPy source: {type(error).__name__}: {error} (please report "
            "this)",
            stacklevel=2,
        )
        return None
    if not found.improved:
        return Choice("function", undecided=found.undecided, provisional=found.provisional)
    return Choice("source", {}, found.source, found.name, found.graph, found.certificate,
                  bool(found.other_sizes), found.undecided, found.provisional)  # fmt: skip


def _at_these_extents(known: Value, traced: Traced, options: Options) -> Choice | None:
    """Source found at other extents and its name, proved at these; None where it is not."""
    arrays = [*traced.arguments, *traced.extra]
    edges = options.level == "bitwise" or traced.graph.asks_for_nan
    if edges or any(isinstance(a, (float, np.generic)) for a in arrays):
        return None  # which looks at edges, and is traced otherwise
    try:
        source, name = map(str, known)
        made = trace_call(compile_source(source, name), arrays, {}).graph
        verdict = verify_by(options, traced.graph, made, options.budget)
    except Exception:  # whatever the text does
        return None
    if not verdict.equal:
        return None
    return Choice("source", {}, source, name, made, verdict.certificate)


def _alike(run: Run, original: Run, arrays: Values) -> bool:
    """Whether both give the same types and, roughly, values, and share memory in the same way.

    A result that is a view of an argument where the original makes an array would change with it.
    """
    with np.errstate(all="ignore"):
        try:
            ours, theirs = list(parts(run())), list(parts(original()))
        except Exception:  # whatever it is, it is no contestant
            return False
    if len(ours) != len(theirs):
        return False
    for a, b in zip(ours, theirs, strict=True):
        if type(a) is not type(b):
            return False
        if not isinstance(a, (np.ndarray, np.generic)):
            continue
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        accuracy = float(np.finfo(a.dtype).eps) ** 0.5 if a.dtype.kind == "f" else 0.0
        if not np.allclose(a, b, accuracy, accuracy, equal_nan=a.dtype.kind == "f"):
            return False
    return sharing(ours, arrays) <= sharing(theirs, arrays)


# --- remembering ---------------------------------------------------------------------------------


def key_of(function: Function, graph: Graph, arrays: Values, options: Options) -> Key:
    """SHA-256 of what the choice depends on, and of what calls are alike in at other extents."""
    fields = {k: v for k, v in options.fields().items() if k not in _ALIKE}
    fields["disable"] = sorted(options.disable)
    parts = [
        f"choice {_VERSION} {_core.version} numpy {np.__version__}",
        f"verifier {_core.verifier_version}",
        repr(sorted(fields.items())),
        _digest(getattr(function, "__code__", None)),
    ]
    exact = [repr([layout(a) for a in arrays]), str(graph)]
    alike = [repr([(name, d.name, len(s)) for name, (d, s) in graph.input_types().items()])]
    return Key(*(hashlib.sha256("\n".join(parts + p).encode()).hexdigest() for p in (exact, alike)))


def _digest(code: CodeType | None) -> str:
    """What code does: not where it stands."""
    if code is None:
        return ""
    constants = [_digest(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    text = repr((code.co_code, code.co_names, code.co_varnames, constants))
    return hashlib.sha256(text.encode()).hexdigest()


def kept(key: Key, noisy: bool = False) -> str:
    """What is remembered of a contest: then its programs are, too. A verdict of chance is none,
    except for who does without one until there is a better (`noisy`)."""
    record = kept_json(key.exact)
    good = type(record) is dict and (noisy or not is_noisy(record))
    return json.dumps(record) if good else ""


def is_noisy(record: Fields) -> bool:
    """Whether a record tells of a race in which chance had its part."""
    return record.get("noise") != [False, False]


def written(choice: Choice) -> str:
    """A choice as text, to be remembered or told by another process."""
    record = {
        "runs": choice.runs,
        "times": {kind: dataclasses.asdict(t) for kind, t in choice.times.items()},
        "source": choice.source,
        "name": choice.name,
        "noise": [choice.undecided, choice.provisional],
        "improved": choice.improved,
    }
    return json.dumps(record)


def _remembered(held: str, traced: Traced, options: Options) -> Choice | None:
    """What was chosen before, or elsewhere; source is traced and proved again. None where that
    cannot be."""
    try:
        record = json.loads(held)
        choice: Choice | None = Choice(record["runs"])
        if record["runs"] == "source":
            choice = _at_these_extents([record["source"], record["name"]], traced, options)
        elif record["runs"] not in ("kernel", "function"):
            return None
        if choice is not None:
            choice.times = {k: Times(**t) for k, t in record["times"].items()}
            choice.undecided, choice.provisional = map(bool, record["noise"])
            choice.improved = bool(record["improved"])
    except Exception:  # whatever the text does: as good as none
        return None
    return choice
