"""Optimisation in a process of its own, at low priority: calls never wait for it.

The process is given a traced program instead of the function, and does what the caller would:
searches, proves, compiles, races. What it finds is in the cache, from where the caller takes it;
who is to run is its answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tessera.race import Child, LostError
from tessera.racer import Facts

if TYPE_CHECKING:
    from tessera.graph import Graph
    from tessera.options import Options

_NICE = 10
_START_S = 15.0


class Helper:
    """The process, as long as it works."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._stopped = False

    def optimise(self, graph: Graph, arrays: Sequence[Any], options: Options, key: str) -> str:
        """Warms the cache; who is to run, as contest.py remembers it. LostError where it dies."""
        order = {"do": "optimise", "graph": str(graph), "asks_for_nan": graph.asks_for_nan,
                 "key": key, "options": dataclasses.asdict(options)}  # fmt: skip
        self._child = child = Child("tessera", "all")
        try:
            if self._stopped:
                raise LostError("stopped")
            answer, _ = child.ask(order, arrays, 1.2 * options.budget + _START_S)
        finally:
            self._child = None
            child.close()
        if "failed" in answer:
            raise LostError(answer["failed"])
        return str(answer["choice"])

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        self._stopped = True
        if (child := self._child) is not None:
            with contextlib.suppress(OSError):
                child.kill()

    def abandon(self) -> None:
        """Leaves it to the process whose child it is."""
        if (child := self._child) is not None:
            child.abandon()


def optimised(order: Facts, arrays: list[Any]) -> Facts:
    """What the process does for `Helper.optimise`."""
    from tessera.api import optimize_traced, search_only
    from tessera.contest import written
    from tessera.emit import compile_source, emit
    from tessera.errors import Error
    from tessera.frontends.trace import FLOAT_SCALARS, trace_call
    from tessera.graph import Graph
    from tessera.options import Options

    with contextlib.suppress(OSError):
        os.nice(_NICE)
    graph = Graph.parse(order["graph"])
    graph.asks_for_nan = order["asks_for_nan"]
    given = order["options"]
    options = Options(**given | {"disable": tuple(given["disable"]),
                                 "weights": tuple(given["weights"])})  # fmt: skip
    try:
        function: Callable[..., Any] = compile_source(emit(graph, name="program"), "program")
        floats = any(type(a) in (float, *FLOAT_SCALARS) for a in arrays)
        traced = trace_call(function, arrays, {}, floats)
    except Error:  # operators without a spelling: kernels only
        search_only(graph, options)
        return {"choice": ""}
    traced = dataclasses.replace(traced, graph=graph)
    result = optimize_traced(function, traced, options, key=order["key"])
    return {"choice": written(result.choice) if result.choice.times else ""}
