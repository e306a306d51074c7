"""Who runs when a function is called: compiled kernels, NumPy source of them, or the function.

All compute the same; they are timed where users call them, on the arrays of the call, and the
fastest is taken (`Choice.runs`). Thus `@tessera.optimize` does not make a function slower.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera import _core
from tessera.direct import layout
from tessera.errors import Error
from tessera.options import Options
from tessera.store import kept_json

if TYPE_CHECKING:
    from tessera.frontends.trace import Traced
    from tessera.graph import Graph

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[], Any]

_VERSION = 3  # of what is remembered
_SECONDS = 0.2  # that the race takes
_DECIDED = 0.05  # seconds of one call; from here on each runs once
_FASTER = 1.02  # than kernels, to be preferred to them
_REWRITE_SECONDS = 2.0  # budget of the search for source


@dataclass(frozen=True)
class Known:
    """NumPy source that was proved at other extents than those it was found at."""

    source: str
    name: str


@dataclass
class Choice:
    """What runs, and the seconds that each took that could have."""

    runs: str  # "kernel", "source" or "function"
    seconds: dict[str, float] = field(default_factory=dict)
    source: str = ""  # with runs == "source": NumPy source, and the program that it is of
    name: str = ""
    graph: Graph | None = None
    certificate: _core.Certificate | None = None
    known: Known | None = None  # what calls of other extents need not search for

    def json(self) -> dict[str, Any]:
        """Plain data: microseconds per call, by kind."""
        us = {f"{kind}_us": s * 1e6 for kind, s in self.seconds.items()}
        return {"runs": self.runs, **us}


# --- choosing ------------------------------------------------------------------------------------


def choose(
    function: Callable[..., Any],
    traced: Traced,
    arrays: Sequence[Any],
    kernel: Run,
    as_call: Callable[[Callable[..., Any], bool], Run],
    options: Options,
    known: Known | None = None,
    seconds_left: float = math.inf,
) -> Choice:
    """The fastest of what computes a traced function on these arrays.

    `kernel` runs the compiled program; `as_call(f, as_given)` makes a run of a function that takes
    the call's arguments or, unless `as_given`, the program's inputs. `known` is taken for the
    source where it is proved for these extents too: then there is no search. A search ends, and
    proofs do, when `seconds_left` have passed.
    """
    if "numpy" in options.disable:
        return Choice("kernel")
    key = _key(function, traced.graph, arrays, options)
    if options.cache and (remembered := _remembered(key, traced, options)) is not None:
        return remembered
    # What was traced has no effects, so that it may be run for its time alone.
    runs: dict[str, Run] = {"kernel": kernel, "function": as_call(function, True)}
    rewritten = None
    if "synth" not in options.disable:
        within = options.replace(budget=min(options.budget, _REWRITE_SECONDS, seconds_left))
        rewritten = _at_these_extents(known, traced, within) if known is not None else None
        rewritten = rewritten or _source(function, traced, within)
    if rewritten is not None and rewritten.graph is not None:
        from tessera.emit import compile_source

        run = as_call(compile_source(rewritten.source, rewritten.name), False)
        if _alike(run, runs["function"], arrays):
            runs["source"] = run
    seconds = timed(runs)
    if not seconds:
        return Choice("kernel")
    best = min(seconds, key=lambda kind: seconds[kind] * (1 if kind == "kernel" else _FASTER))
    choice = Choice(best, seconds, known=rewritten.known if rewritten is not None else None)
    if best == "source" and rewritten is not None:
        choice.source, choice.name = rewritten.source, rewritten.name
        choice.graph, choice.certificate = rewritten.graph, rewritten.certificate
    if options.cache:
        _core.store_text(key, _written(choice))
    return choice


def _source(function: Callable[..., Any], traced: Traced, options: Options) -> Choice | None:
    """NumPy source of the program that is proved equal and fastest; None where there is none."""
    from tessera.rewrite import rewrite

    try:
        found = rewrite(
            traced.graph,
            options=options,
            function=function,
            traced=traced,
            tried=4,
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
        return None
    general = Known(found.source, found.name) if found.other_sizes else None
    return Choice("source", {}, found.source, found.name, found.graph, found.certificate, general)


def _at_these_extents(known: Known, traced: Traced, options: Options) -> Choice | None:
    """Source found at other extents, proved at these; None where it is not."""
    from tessera.api import verify
    from tessera.emit import compile_source
    from tessera.frontends.trace import trace_call

    arrays = [*traced.arguments, *traced.extra]
    if options.strict or any(isinstance(a, (float, np.generic)) for a in arrays):
        return None  # which looks at edges, and is traced otherwise
    try:
        made = trace_call(compile_source(known.source, known.name), arrays, {}).graph
        verdict = verify(traced.graph, made, threads=options.threads, budget=options.budget)
    except (Error, MemoryError):
        return None
    if not verdict.equal:
        return None
    return Choice("source", {}, known.source, known.name, made, verdict.certificate, known)


def _alike(run: Run, original: Run, arrays: Sequence[Any]) -> bool:
    """Whether both give the same types and, roughly, values, and share memory in the same way.

    A result that is a view of an argument where the original makes an array would change with it.
    """
    with np.errstate(all="ignore"):
        try:
            ours, theirs = _leaves(run()), _leaves(original())
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
    given = [a for a in arrays if isinstance(a, np.ndarray)]
    return _sharing(ours, given) <= _sharing(theirs, given)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [x for v in value for x in _leaves(v)]
    if isinstance(value, dict):
        return [x for v in value.values() for x in _leaves(v)]
    return [value]


def _sharing(results: Sequence[Any], given: Sequence[Array]) -> set[tuple[Any, ...]]:
    """Which results lie in the memory of which arguments or earlier results, and how."""
    shared: set[tuple[Any, ...]] = set()
    for n, result in enumerate(results):
        if not isinstance(result, np.ndarray):
            continue
        others = [*given, *(r for r in results[:n] if isinstance(r, np.ndarray))]
        for m, other in enumerate(others):
            if np.may_share_memory(result, other):
                offset = _address(result) - _address(other)
                shared.add((n, m, offset, result.strides, result.flags.writeable))
    return shared


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def timed(runs: dict[str, Run]) -> dict[str, float]:
    """Seconds of a call of each; those that raise are left out, and the slowest not run often."""
    from tessera.rewrite import race

    once: dict[str, float] = {}
    with np.errstate(all="ignore"):
        for kind, run in runs.items():
            try:
                for _ in range(4):  # the first also loads and warms; any may be disturbed
                    start = time.perf_counter()
                    run()
                    once[kind] = min(time.perf_counter() - start, once.get(kind, 1e9))
                    if once[kind] > _DECIDED:
                        break
            except Exception:  # the caller will see it, where it is the winner's
                once.pop(kind, None)
    least = min(once.values(), default=1.0)
    if least > _DECIDED:
        return once
    close = [kind for kind, s in once.items() if s < 3 * least + 2e-5]
    medians, _, _ = race([runs[kind] for kind in close], _SECONDS)
    return once | dict(zip(close, medians, strict=True))


# --- remembering ---------------------------------------------------------------------------------


def _key(
    function: Callable[..., Any], graph: Graph, arrays: Sequence[Any], options: Options
) -> str:
    """SHA-256 of what the choice depends on."""
    fields = {k: v for k, v in options.fields().items() if k not in ("verify_seed", "resume")}
    fields["disable"] = sorted(options.disable)
    parts = [
        f"choice {_VERSION} {_core.version} numpy {np.__version__}",
        f"verifier {_core.verifier_version}",
        repr(sorted(fields.items())),
        repr([layout(a) for a in arrays]),
        _digest(getattr(function, "__code__", None)),
        str(graph),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _digest(code: CodeType | None) -> str:
    """What code does: not where it stands."""
    if code is None:
        return ""
    constants = [_digest(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    text = repr((code.co_code, code.co_names, code.co_varnames, constants))
    return hashlib.sha256(text.encode()).hexdigest()


def _written(choice: Choice) -> str:
    record = {
        "runs": choice.runs,
        "seconds": choice.seconds,
        "source": choice.source,
        "name": choice.name,
        "known": None if choice.known is None else [choice.known.source, choice.known.name],
    }
    return json.dumps(record)


def _remembered(key: str, traced: Traced, options: Options) -> Choice | None:
    """What was chosen before; source is traced and proved again. None where that cannot be."""
    record = kept_json(key)
    try:
        runs, seconds = record["runs"], {k: float(s) for k, s in record["seconds"].items()}
        known = None if record["known"] is None else Known(*map(str, record["known"]))
        if runs != "source":
            return Choice(runs, seconds, known=known) if runs in ("kernel", "function") else None
        source = Known(str(record["source"]), str(record["name"]))
        choice = _at_these_extents(source, traced, options)
    except Exception:  # whatever the text does: as good as none
        return None
    if choice is not None:
        choice.seconds, choice.known = seconds, known
    return choice
