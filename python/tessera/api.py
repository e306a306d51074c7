"""The few functions that do the work: `superoptimize`, `optimize`, `verify`."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from tessera import _core
from tessera.errors import CancelledError, Error, UsageError
from tessera.frontends.trace import Environment, Traced, bind_arguments, trace_call
from tessera.graph import Graph
from tessera.options import Options, require_seed, require_threads
from tessera.result import FunctionCall, GraphCall, Result, Verdict
from tessera.store import MeasurementStore
from tessera.tuner import Tuner

Progress = Callable[[dict[str, Any]], None]


def superoptimize(
    program: Graph | Callable[..., Any],
    *args: Any,
    options: Options | None = None,
    progress: Progress | None = None,
    **overrides: Any,
) -> Result:
    """Searches for a faster program, proves it equal, compiles, checks and measures it.

    `program` is a Graph, or a NumPy function followed by example arguments (arrays, or types such
    as "f32[16,1024]"). Options are given as `options=` or by name: `target="cpu", budget=30`.
    Ctrl-C ends the search: what it found so far is raced and proved, and the best is returned; a
    second Ctrl-C ends that too. What was cut short goes on with `resume=True`.
    """
    chosen = (options or Options()).replace(**overrides)
    if isinstance(program, Graph):
        if args:
            raise UsageError("example arguments go with a function, not with a Graph")
        return _optimize_graph(program, GraphCall(program), chosen, progress)
    if not callable(program):
        raise UsageError(f"superoptimize takes a Graph or a function, not {program!r}")
    traced = trace_call(program, args, {})
    return optimize_traced(program, traced, chosen, progress)


def optimize_traced(
    function: Callable[..., Any],
    traced: Traced,
    options: Options,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> Result:
    """`superoptimize` for a function that has been traced already; `stop` is asked now and then."""
    return _optimize_graph(traced.graph, FunctionCall(function, traced), options, progress, stop)


def _optimize_graph(
    graph: Graph,
    call: GraphCall | FunctionCall,
    options: Options,
    progress: Progress | None,
    stop: Callable[[], bool] | None = None,
) -> Result:
    graph.validate()
    graph = _with_weights(graph, options.weights)
    timeline: list[dict[str, Any]] = []

    def watch(news: dict[str, Any]) -> None:
        timeline.append(news)
        if progress is not None:
            progress(news)

    record = _core.optimize(graph.core, options.fields(), watch, stop)
    result = Result({**record, "timeline": timeline}, call)
    if options.cache and not result.details["from_cache"]:
        MeasurementStore.default().add(result)
    return result


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
    return Graph.from_core(core)


def verify(
    a: Graph,
    b: Graph,
    *,
    strict: bool = False,
    seed: int | None = None,
    threads: int = 0,
    second_opinion: bool = False,
) -> Verdict:
    """Whether `b` computes what `a` does: equal with certificate, refuted with inputs, or unknown.

    `second_opinion` also asks a verifier that argues from the operators' laws (and Z3, if there is
    one: `pip install z3-solver`); `Verdict.second_opinion` tells "agrees" or "cannot tell", and
    where it disagrees the verdict is unknown.

    >>> g, h = Graph("g"), Graph("h")
    >>> for graph, factor in ((g, 2.0), (h, 3.0)):
    ...     _ = graph.output(graph.input("x", (4, 4)) * factor)
    >>> bool(verify(g, g)), verify(g, h).name
    (True, 'refuted')
    """
    for program in (a, b):
        if not isinstance(program, Graph):
            raise UsageError(f"verify compares Graphs, not {program!r}; ts.trace makes one")
    require_threads(threads)
    require_seed("seed", seed)
    return Verdict.of(_core.verify(a.core, b.core, strict, seed, threads, 0, second_opinion, _z3()))


def _z3() -> str:
    """Z3's executable beside this Python, as z3-solver installs it; "" to look for it on PATH."""
    path = Path(sys.executable).parent / "z3"
    return str(path) if "TESSERA_Z3" not in os.environ and path.is_file() else ""


class _Optimized:
    """A function that is replaced by its optimised program, one per structure of arguments."""

    is_tessera_function = True
    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._options = options
        self._known: dict[Any, tuple[Environment, Result | None]] = {}
        self._warned = False
        self._tuner = Tuner()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key = self._key(args, kwargs)
        if key is None:
            return self._function(*args, **kwargs)
        entry = self._known.get(key)
        if entry is None or not entry[0].unchanged():
            entry = self._known[key] = self._prepare(args, kwargs)
        result = entry[1]
        return self._function(*args, **kwargs) if result is None else result(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def result(self, *args: Any, **kwargs: Any) -> Result | None:
        """The Result for such arguments; None where plain NumPy is used."""
        key = self._key(args, kwargs)
        if key is None:
            return None
        entry = self._known.get(key)
        if entry is None or not entry[0].unchanged():
            entry = self._known[key] = self._prepare(args, kwargs)
        return entry[1]

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            if not kwargs and all(type(a) is np.ndarray for a in args):
                return tuple((a.shape, a.dtype) for a in args)
            tree, leaves = bind_arguments(self._function, args, kwargs)
            key = (
                _static_key(tree),
                tuple((v.shape, v.dtype) if isinstance(v, np.ndarray) else v for _, v in leaves),
            )
            hash(key)
            return key
        except Error as error:
            self._fall_back(error)
        except TypeError:
            self._fall_back("an argument that is neither an array nor a plain constant")
        return None

    def _prepare(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Environment, Result | None]:
        environment = Environment(self._function)
        try:
            traced = trace_call(self._function, args, kwargs)
            if traced.untracked(environment):
                self._fall_back(
                    "it uses an array from outside that is not a plain variable; pass it as an "
                    "argument"
                )
                return environment, None
            result = optimize_traced(self._function, traced, self._options)
            if result.interpreted:
                self._fall_back("it has no compiled code that is right")
                return environment, None
            if self._options.tune == "background" and not result.details["tuned"]:
                self._tuner.add(functools.partial(self._tuned, environment, traced, result))
            return environment, result
        except CancelledError:
            raise KeyboardInterrupt from None
        except Error as error:
            self._fall_back(error)
            return environment, None

    def _tuned(
        self, environment: Environment, traced: Traced, first: Result, stop: Callable[[], bool]
    ) -> None:
        """Tunes a program in the background, and has later calls use what won."""
        tuned = optimize_traced(self._function, traced, self._options.replace(tune=True), stop=stop)
        if not tuned.improved or (first.improved and tuned.speedup < first.speedup):
            return
        for key, entry in list(self._known.items()):
            if entry[0] is environment and entry[1] is first:
                self._known[key] = (environment, tuned)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for tuning in the background; whether it has ended."""
        return self._tuner.wait(timeout)

    def _fall_back(self, reason: object) -> None:
        if self._warned:
            return
        self._warned = True
        name = getattr(self._function, "__qualname__", repr(self._function))
        warnings.warn(
            f"tessera: {name} runs as plain NumPy: {reason}", RuntimeWarning, stacklevel=4
        )


def _static_key(tree: Any) -> Any:
    """A hashable key of an argument tree; 1, 1.0 and True stay different."""
    from tessera.frontends.trace import Node, Static

    if isinstance(tree, Node):
        return (tree.kind, tree.keys, tuple(_static_key(c) for c in tree.children))
    if isinstance(tree, Static):
        plain = (bool, int, float, str, bytes, type(None), np.generic, np.dtype, type, slice)
        if not isinstance(tree.value, plain):
            raise TypeError
        by_text = isinstance(tree.value, (float, slice, np.generic))  # -0.0 is not 0.0
        value = repr(tree.value) if by_text else tree.value
        return (type(tree.value), value)
    return tree


@overload
def optimize(function: Callable[..., Any], /) -> _Optimized: ...
@overload
def optimize(
    *, options: Options | None = None, **overrides: Any
) -> Callable[[Callable[..., Any]], _Optimized]: ...
def optimize(
    function: Callable[..., Any] | None = None,
    /,
    *,
    options: Options | None = None,
    **overrides: Any,
) -> Any:
    """Decorator: the function is traced on its first call, optimised, proved equal and cached.

    What cannot be traced runs as plain NumPy, with one warning that says why.
    """
    chosen = (options or Options()).replace(**overrides)
    if function is None:
        return lambda f: _Optimized(f, chosen)
    if isinstance(function, Graph) or not callable(function):
        raise UsageError("optimize decorates a function; use superoptimize for a Graph")
    return _Optimized(function, chosen)
