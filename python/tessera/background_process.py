"""The process of background.py: searches, proves, compiles and races what it is told."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tessera import errors
from tessera import options as chosen
from tessera.api import optimize_traced, search_only
from tessera.contest import Key, written
from tessera.emit import compile_source, emit
from tessera.frontends.trace import FLOAT_SCALARS, trace_call
from tessera.graph import Graph
from tessera.options import Options
from tessera.racer import serve
from tessera.types import Array, Function, Object, Record, Value

_NICE = 10


def optimised(order: Record, arrays: list[Value]) -> Record:
    """What the process does for `Helper.optimise`."""
    signal.signal(signal.SIGTERM, _end)
    with contextlib.suppress(OSError, AttributeError):
        os.nice(_NICE)
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, of Linux
    if order["cache_dir"] is not None:
        os.environ["TESSERA_CACHE_DIR"] = order["cache_dir"]
    chosen.registered_patterns[:] = order["patterns"]
    arrays = [_strided(a, s) if s else a for a, s in zip(arrays, order["strides"], strict=True)]
    graph = Graph.parse(order["graph"])
    graph.keeps_nan = order["asks_for_nan"]
    given = order["options"]
    lists = ("disable", "settings", "weights")
    options = Options(**given | {name: tuple(given[name]) for name in lists})
    if order["key"] is None:
        return {"choice": "", "improved": search_only(graph, options).improved}
    try:
        floats = any(type(a) in (float, *FLOAT_SCALARS) for a in arrays)
        for copies in ((), range(1, len(graph.outputs))):  # equal results are arrays of their own
            source = emit(graph, name="program", copies=copies)
            function: Function = compile_source(source, "program")
            traced = trace_call(function, arrays, {}, floats)
            if len(traced.forms) == len(graph.outputs):
                break
    except errors.Error:  # operators without a spelling: kernels only
        return {"choice": "", "improved": search_only(graph, options).improved}
    traced = dataclasses.replace(traced, graph=graph)
    result = optimize_traced(function, traced, options, key=Key(*order["key"]))
    choice = written(result.choice) if result.choice.times else ""
    return {"choice": choice, "improved": result.improved}


def _end(*__: Object) -> None:
    """Ends this process and the groups that those it started lead, say a compiler's."""
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            for pid in (task / "children").read_text().split():
                with contextlib.suppress(OSError):
                    os.killpg(int(pid), signal.SIGKILL)
    os._exit(0)


def _strided(array: Array, strides: Sequence[int]) -> Array:
    """The same values, with gaps between them or in another order."""
    steps = [s * (n - 1) for s, n in zip(strides, array.shape, strict=True)]
    first, last = (sum(f(s, 0) for s in steps) for f in (min, max))
    memory = np.empty(last - first + array.itemsize, np.uint8)
    made = np.ndarray(array.shape, array.dtype, memory, -first, strides)
    made[...] = array
    return made


def main(*__: str) -> None:
    """The process."""
    serve(lambda order, arrays: (optimised(order, arrays), ()))
