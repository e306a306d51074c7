"""One process of a race (race.py): makes ready what the parent describes, runs it when told to.

It is told by lines of JSON on standard input, with arrays behind them as .npy; nothing that it
reads is ever unpickled. Between its turns it waits for the next line, and so do its threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import BinaryIO

import numpy as np

from tessera.frameworks import FRAMEWORKS, Run
from tessera.types import Fields, Object, Record, Value, Values


def write(stream: BinaryIO, facts: Fields, arrays: Values = ()) -> None:
    """One message: a line of JSON, then the arrays."""
    kinds = [v.hex() if type(v) is float else type(v).__name__ for v in map(_plain, arrays)]
    stream.write(json.dumps({**facts, "arrays": kinds}).encode() + b"\n")
    pipe: Value = SimpleNamespace(write=stream.write)  # NumPy would seek in a file
    for value in map(_plain, arrays):
        if type(value) is not float:
            np.lib.format.write_array(pipe, np.asarray(value), allow_pickle=False)
    stream.flush()


def _plain(value: Object) -> Value:
    """Python's floats, NumPy's scalars and arrays as they are; arrays of others as NumPy's."""
    return value if type(value) is float or isinstance(value, np.generic) else np.asarray(value)


def read(stream: BinaryIO) -> tuple[Record, list[Value]]:
    """The next message; EOFError where there is none."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    facts: Record = json.loads(line)
    pipe: Value = SimpleNamespace(read=stream.read)
    arrays: list[Value] = []
    for kind in facts.pop("arrays"):
        if "0x" in kind or kind in ("nan", "inf", "-inf"):
            arrays.append(float.fromhex(kind))
            continue
        array = np.lib.format.read_array(pipe, allow_pickle=False)
        arrays.append(array if kind == "ndarray" else array[()])
    return facts, arrays


def turn(run: Run, repeats: int, warm: bool) -> Record:
    """Nanoseconds of one call: by the clock, of this thread, and of the other threads.

    `warm`: one before them wakes threads and fills caches.
    """
    with np.errstate(all="ignore"):
        if warm:
            run()
        thread, process = time.thread_time_ns(), time.process_time_ns()
        start = time.perf_counter_ns()
        for _ in range(repeats):
            run()
        wall = time.perf_counter_ns() - start
        process = time.process_time_ns() - process
        thread = time.thread_time_ns() - thread
    return {"wall": wall / repeats, "cpu": thread / repeats,
            "helpers": max(process - thread, 0) / repeats}  # fmt: skip


class Racer:
    """What one process can run, by number."""

    def __init__(self, library: str, threads: str) -> None:
        self._library, self._threads = library, threads
        self._arrays: list[Value] = []
        self._given: list[Value] = []  # the arrays as the library takes them
        self._runs: dict[int, Run] = {}

    def answer(self, order: Record, arrays: list[Value]) -> tuple[Record, Values]:
        """Does what an order says."""
        what = order["do"]
        if what == "begin":
            self._arrays, self._given, self._runs = arrays, [], {}
            gc.collect()
            return {}, ()
        if what == "prepare":
            run = self._prepared(order)
            with np.errstate(all="ignore"):
                run()
            self._runs[order["key"]] = run
            return {}, ()
        run = self._runs[order["key"]]
        if what == "results":
            with np.errstate(all="ignore"):
                results = run()
            leaves = results if isinstance(results, (tuple, list)) else [results]
            return {}, [np.asarray(r) for r in leaves]
        return turn(run, order["repeats"], order["warm"]), ()

    def _prepared(self, order: Record) -> Run:
        """Source, in the library."""
        library = FRAMEWORKS[self._library]
        if not self._given:
            library.prepare(self._threads == "one")
            self._given = library.arguments(self._arrays)
        names: Record = {}
        exec(compile(order["source"], "<race>", "exec"), names)
        return library.run(names[order["name"]], self._given, {})


def serve(answer: Callable[[Record, list[Value]], tuple[Record, Values]]) -> None:
    """Answers until the parent closes the pipe, or ends."""
    with contextlib.suppress(OSError, AttributeError):  # Linux
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    # What libraries print goes to standard error; answers have a pipe of their own.
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    gc.disable()
    write(answers, {})
    while True:
        try:
            order, arrays = read(orders)
        except EOFError:
            return
        try:
            facts, results = answer(order, arrays)
        except Exception as error:
            kind = type(error).__name__
            facts = {"failed": f"{kind}: {error}"[:1000], "kind": kind, "said": str(error)}
            results = ()
        del arrays
        try:
            write(answers, facts, results)
        except BrokenPipeError:
            sys.exit()


def main(library: str, threads: str) -> None:
    """The process."""
    serve(Racer(library, threads).answer)
