"""Optimisation in a process of its own, at low priority: calls never wait for it.

The process is given a traced program instead of the function, and does what the caller would:
searches, proves, compiles, races. What it finds is in the cache, from where the caller takes it;
who is to run is its answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera import errors
from tessera import options as chosen
from tessera.direct import layout
from tessera.frontends.trace import FLOAT_SCALARS, trace_call
from tessera.graph import Graph
from tessera.options import Options
from tessera.race import Child, LostError
from tessera.racer import Facts

if TYPE_CHECKING:
    from tessera.contest import Key

_NICE = 10
_START_S = 15.0


class Helper:
    """The process, as long as it works."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._stopped = False

    def optimise(
        self, graph: Graph, arrays: Sequence[Any], options: Options, key: Key
    ) -> tuple[str, bool]:
        """Warms the cache; who is to run, as contest.py remembers it, and whether the program was
        improved. LostError where it dies."""
        order = {"do": "optimise", "graph": str(graph), "asks_for_nan": graph.asks_for_nan,
                 "key": key, "options": dataclasses.asdict(options),
                 "patterns": chosen.registered_patterns,
                 "strides": [a.strides if layout(a) == 2 else None for a in arrays]}  # fmt: skip
        self._child = child = Child("tessera", "all")
        try:
            if self._stopped:
                raise LostError("stopped")
            answer, _ = child.ask(order, arrays, 1.2 * options.budget + _START_S)
        finally:
            self._child = None
            child.close()
        if "failed" in answer:
            kind = getattr(errors, answer["kind"], None)
            raise kind(answer["said"]) if kind else LostError(answer["failed"])
        return str(answer["choice"]), bool(answer["improved"])

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        self._stopped = True
        if (child := self._child) is not None:
            with contextlib.suppress(OSError):
                child.terminate()

    def abandon(self) -> None:
        """Leaves it to the process whose child it is."""
        if (child := self._child) is not None:
            child.abandon()
        self._child = None


def optimised(order: Facts, arrays: list[Any]) -> Facts:
    """What the process does for `Helper.optimise`."""
    from tessera.api import optimize_traced, search_only
    from tessera.contest import Key, written
    from tessera.emit import compile_source, emit

    signal.signal(signal.SIGTERM, _end)
    with contextlib.suppress(OSError, AttributeError):
        os.nice(_NICE)
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, of Linux
    chosen.registered_patterns[:] = order["patterns"]
    arrays = [_strided(a, s) if s else a for a, s in zip(arrays, order["strides"], strict=True)]
    graph = Graph.parse(order["graph"])
    graph.keeps_nan = order["asks_for_nan"]
    given = order["options"]
    options = Options(**given | {"disable": tuple(given["disable"]),
                                 "weights": tuple(given["weights"])})  # fmt: skip
    try:
        function: Callable[..., Any] = compile_source(emit(graph, name="program"), "program")
        floats = any(type(a) in (float, *FLOAT_SCALARS) for a in arrays)
        traced = trace_call(function, arrays, {}, floats)
    except errors.Error:  # operators without a spelling: kernels only
        return {"choice": "", "improved": search_only(graph, options).improved}
    traced = dataclasses.replace(traced, graph=graph)
    result = optimize_traced(function, traced, options, key=Key(*order["key"]))
    choice = written(result.choice) if result.choice.times else ""
    return {"choice": choice, "improved": result.improved}


def _end(*__: Any) -> None:
    """Ends this process and the groups that those it started lead, say a compiler's."""
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            for pid in (task / "children").read_text().split():
                with contextlib.suppress(OSError):
                    os.killpg(int(pid), signal.SIGKILL)
    os._exit(0)


def _strided(array: Any, strides: Sequence[int]) -> Any:
    """The same values, with gaps between them or in another order."""
    steps = [s * (n - 1) for s, n in zip(strides, array.shape, strict=True)]
    first, last = (sum(f(s, 0) for s in steps) for f in (min, max))
    memory = np.empty(last - first + array.itemsize, np.uint8)
    made = np.ndarray(array.shape, array.dtype, memory, -first, strides)
    made[...] = array
    return made
