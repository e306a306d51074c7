"""The few functions that do the work: `superoptimize` and `optimize`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import overload

from tessera import _core
from tessera.cache_folder import MeasurementStore
from tessera.call_forms import FunctionCall, GraphCall
from tessera.clock import Clock
from tessera.compilers import find_compiler
from tessera.contest import Key, kept, key_of
from tessera.cuda import find_libraries, is_device_array, placeholder
from tessera.decorator import Optimized
from tessera.errors import UsageError, told_of_memory
from tessera.frontends.numpy import require_rounding
from tessera.frontends.trace import trace_call
from tessera.frontends.traced import Traced
from tessera.graph import Graph
from tessera.options import Options, is_gpu, package_folders
from tessera.race_processes import children
from tessera.result import ENGINES, Result
from tessera.store import receive
from tessera.store.ranking import count_named
from tessera.types import Function, Object, Record, Value

Progress = Callable[[Record], None]
# Of a function's budget: what tracing takes at most, and what the search for kernels may take: few
# figures, since results are remembered by it.
_TRACING, _SEARCH = 0.6, (0.85, 0.65, 0.4, 0.2)


def superoptimize(
    program: Graph | Function,
    *args: Object,
    options: Options | None = None,
    progress: Progress | None = None,
    **overrides: Object,
) -> Result:
    """Searches for a faster program, proves it equal, compiles, checks and measures it.

    `program` is a Graph, or a NumPy function followed by example arguments (arrays, or types such
    as "f32[16,1024]"). Options are given as `options=` or by name: `target="cpu", budget=30`.
    The call ends soon after the budget (20 % and 0.5 s later at most). Ctrl-C ends the search
    within a second: the best that is raced and proved by then is returned; a second Ctrl-C ends
    that too. What was cut short goes on with `resume=True`.
    """
    chosen = (options or Options()).replace(**overrides)
    if isinstance(program, Graph):
        if args:
            raise UsageError("example arguments go with a function, not with a Graph")
        return _optimize_graph(program, GraphCall(program), chosen, progress)
    if not callable(program):
        raise UsageError(f"superoptimize takes a Graph or a function, not {program!r}")
    if is_gpu(chosen.target):
        args = tuple(placeholder(a) if is_device_array(a) else a for a in args)
    clock = Clock(chosen.budget)
    traced = trace_call(program, args, {}, clock=Clock(_TRACING * chosen.budget))
    result = optimize_traced(program, traced, chosen, progress, clock=clock)
    result.warn_of_no_code()
    return result


def optimize_traced(function: Function, traced: Traced, options: Options,
                    progress: Progress | None = None, stop: Callable[[], bool] | None = None,
                    clock: Clock | None = None, held: str = "", key: Key | None = None,
                    improved: bool = True) -> Result:  # fmt: skip
    """`superoptimize` for a function that has been traced already; `stop` is asked now and then.

    `clock` is what is left of the budget; part of it is for the contest of kernels, source and the
    function, unless that was `held` (see contest.py) elsewhere; `key` is what it is remembered by.
    Where a search is known to have `improved` nothing, which noise may keep from being remembered,
    there is no other."""
    clock = clock or Clock(options.budget)
    call = FunctionCall(function, traced)
    require_rounding(traced.calls, options.level)
    search = _search(options, clock)
    if not improved:
        search = search.replace(disable=(*search.disable, *ENGINES))
    if not (held or is_gpu(options.target) or "numpy" in options.disable):
        key = key or key_of(function, traced.graph, [*traced.arguments, *traced.extra], options)
        if options.refresh or not options.cache or not kept(key):  # they will race
            threads = options.threads or _core.default_threads()
            children().start(["numpy", f"tessera:{threads}"])
    result = _optimize_graph(traced.graph, call, search, progress, stop)
    if not result.interrupted:
        result.hold_contest(options, clock.left(), held, key)
    return result


def search_only(graph: Graph, options: Options, stop: Callable[[], bool] | None = None) -> Result:
    """Of `optimize_traced` the search, for what the cache keeps of it."""
    share = _search(options, Clock(options.budget))
    return _optimize_graph(graph, GraphCall(graph), share, None, stop)


def _search(options: Options, clock: Clock) -> Options:
    fits = [share for share in _SEARCH if share * options.budget <= clock.left()]
    return options.replace(budget=max(fits, default=_SEARCH[-1]) * options.budget)


def _optimize_graph(
    graph: Graph,
    call: GraphCall | FunctionCall,
    options: Options,
    progress: Progress | None,
    stop: Callable[[], bool] | None = None,
) -> Result:
    graph.validate()
    graph = _with_weights(graph, options.weights)
    timeline: list[Record] = []

    def watch(news: Record) -> None:
        timeline.append(news)
        if progress is not None:
            progress(news)

    if is_gpu(options.target):
        find_libraries()
    find_compiler()
    find_highs()
    fields = {**options.fields(), "special": graph.asks_for_nan,
              "may_lack_code": isinstance(call, FunctionCall)}  # fmt: skip
    with told_of_memory():
        record = receive.optimize(graph.core, fields, watch, stop)
    asked = {"timeline": timeline, "requested": options.target, "level": options.level,
             "disable": options.disable, "freeze": options.freeze}  # fmt: skip
    result = Result({**record, **asked}, call)
    if options.cache and not result.details["from_cache"]:
        MeasurementStore.default().add(result)
        for candidate in result.candidates if result.improved else ():
            if candidate.fate == "chosen":
                count_named(graph.core, candidate.derivation, result.speedup)
    return result


def find_highs() -> None:
    """Has the core take HiGHS from a Python package, if one is there and no library is named.

    highspy has had no library with the C interface since 1.16; highsbox has one.
    """
    for package, within in (("highspy", "."), ("highsbox", "highs_dist/lib")):
        for folder in package_folders(package):
            for path in sorted((folder / within).glob("libhighs.so*")):
                os.environ.setdefault("TESSERA_HIGHS", str(path))


def _with_weights(graph: Graph, names: Sequence[str]) -> Graph:
    """The graph with these inputs marked as weights."""
    if not names:
        return graph
    known = list(graph.input_types())
    core = graph.core.copy()
    for name in names:
        if name not in known:
            raise UsageError(
                f"there is no input '{name}' to be a weight; inputs are {', '.join(known)}"
            )
        core.set_weight(known.index(name), True)
    return graph.with_core(core)


@overload
def optimize(function: Function, /) -> Optimized: ...
@overload
def optimize(
    *, options: Options | None = None, **overrides: Object
) -> Callable[[Function], Optimized]: ...
def optimize(
    function: Function | None = None, /, *, options: Options | None = None, **overrides: Object
) -> Value:
    """Decorator: the function is traced on its first call, optimised, proved equal and cached.

    What cannot be traced runs as plain NumPy, with one warning that says why.
    """
    chosen = (options or Options()).replace(**overrides)
    if function is None:
        return lambda f: _decorated(f, chosen)
    return _decorated(function, chosen)


def _decorated(function: Object, options: Options) -> Value:
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(_decorated(function.__func__, options))
    if isinstance(function, Graph) or not callable(function):
        raise UsageError("optimize decorates a function; use superoptimize for a Graph")
    return Optimized(function, options, optimize_traced)
