"""One process of a race: prepares contestants and times them when told, one JSON line per order.

Every library has a process, and so a thread pool, of its own: pools of several libraries in one
process fight for the processors, and the slower peer would look slower than it is. Started by
race.py as `python -m bench.worker THREADS`.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Run = Callable[[], Any]


def pin(threads: int) -> None:
    """Keeps the process, whatever library is loaded into it, on so many processors."""
    allowed = sorted(os.sched_getaffinity(0))
    if threads < len(allowed):
        os.sched_setaffinity(0, allowed[-threads:])


def die_with_parent() -> None:
    """Ends this process when the race ends, however it ends: or a long case would run on."""
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Server:
    """The contestants of one process."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.runs: dict[str, Run] = {}
        self.repeats: dict[str, int] = {}
        self.flusher: Any = None
        self.clear()

    def clear(self, **_: Any) -> dict[str, Any]:
        """Forgets the case."""
        self.runs, self.repeats = {}, {}
        self.workload: Any = None
        self.arrays: list[Any] = []
        self.exact: Any = None
        self.result: Any = None
        gc.collect()
        return {}

    def load(self, case: str, dtype: str, folder: str, batch: int) -> dict[str, Any]:
        """Reads the arguments and the exact result of a case."""
        import numpy as np

        from bench.workloads import WORKLOADS
        from tessera.types import to_numpy

        self.clear()
        self.workload, self.batch, self.dtype = WORKLOADS[case], batch, dtype
        self.arrays = [
            aligned(np.load(Path(folder) / f"{name}.npy").view(to_numpy(dtype)))
            for name in self.workload.shapes
        ]
        self.exact = np.load(Path(folder) / "exact.npy")
        return {}

    def prepare(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        """Makes a contestant, checks its result, and finds out how long a run takes."""
        start = time.perf_counter()
        facts: dict[str, Any] = {}
        error = None
        if name == "ours":
            run = self._ours(options, facts)
        elif name == "original":
            run = self._original()
        elif name in ("probe_read", "probe_fma"):
            run = self._probe(name, facts)
        else:
            from bench import peers

            run = peers.make(name, self.workload, self.arrays, self.threads)
        if not name.startswith("probe"):
            error = self._error(run())
        seconds = time.perf_counter() - start
        once = min(_timed(run) for _ in range(2))
        self.runs[name] = run
        # A turn times several runs of a short program, so that the clock's cost vanishes.
        self.repeats[name] = max(1, min(1000, int(2e-3 / once)))
        return {"prepare_s": seconds, "once_s": once, "error": error, "facts": facts}

    def time(self, name: str, cold: bool) -> dict[str, Any]:
        """Seconds of one run: warm, after an untimed one, or with the caches flushed."""
        run, n = self.runs[name], 1 if cold else self.repeats[name]
        if cold:
            if self.flusher is None:
                from bench.timing import CacheFlusher

                self.flusher = CacheFlusher()
            self.flusher.flush()
        else:
            run()
        start = time.perf_counter_ns()
        for _ in range(n):
            run()
        return {"seconds": (time.perf_counter_ns() - start) / n * 1e-9}

    def _ours(self, fields: dict[str, Any], facts: dict[str, Any]) -> Run:
        from tessera.api import superoptimize
        from tessera.options import Options

        fields["disable"] = tuple(fields.get("disable", ()))
        options = Options(**{**fields, "threads": self.threads})
        graph = self.workload.graph(self.batch, self.dtype)
        self.result = result = superoptimize(graph, options=options)
        facts |= result_facts(result)
        arrays = self.arrays
        return lambda: result(*arrays)

    def _original(self) -> Run:
        from tessera import _core
        from tessera.call_forms import GraphCall
        from tessera.runner import Runner

        graph = self.workload.graph(self.batch, self.dtype)
        runner = Runner(_core.compile(graph.core), GraphCall(graph).names)
        arrays = self.arrays
        return lambda: runner(arrays)[0]

    def _probe(self, name: str, facts: dict[str, Any]) -> Run:
        from tessera import _core

        if name == "probe_fma":
            probe = _core.LimitProbe(64)
            rounds = 300_000
            facts["flops"] = rounds * probe.flops(self.dtype)
            return lambda: probe.fma(rounds, self.dtype)
        total = sum(a.nbytes for a in self.arrays) + self.exact.size * self.arrays[0].itemsize
        facts["bytes"] = total
        return _core.LimitProbe(total).read

    def _error(self, result: Any) -> float:
        """Largest difference from the exact result, relative to its largest element."""
        import numpy as np

        from bench.peers import to_f64

        got = to_f64(result)
        if got.shape != self.exact.shape:
            raise ValueError(f"result has shape {got.shape}, not {self.exact.shape}")
        worst = np.abs(got - self.exact).max()
        return float(worst / max(float(np.abs(self.exact).max()), 1e-300))


def result_facts(result: Any) -> dict[str, Any]:
    """What a row says of the search and of its outcome."""
    import resource

    details = result.details
    return {
        "verdict": "equal" if result.improved else "original",
        "search_s": details["search_s"],
        "verify_s": details["verify_s"],
        "tune_s": details["compile_s"] + details["check_s"] + details["measure_s"],
        "states": sum(s["states"] for s in details["searches"]),
        "stop": [s["stop"] for s in details["searches"]],
        "from_cache": details["from_cache"],
        "kernels": sum(op["op"] == "kernel" for op in result.graph.ops) or None,
        "candidates": _fates(result),
        **({"model": details["model"]} if details["model"] else {}),
        **(
            {"calls": calls}
            if (calls := [k["call"] for k in result.kernels if "call" in k])
            else {}
        ),
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _fates(result: Any) -> dict[str, int]:
    fates: dict[str, int] = {}
    for candidate in result.candidates:
        fates[candidate.fate] = fates.get(candidate.fate, 0) + 1
    return fates


def aligned(array: Any) -> Any:
    """A copy whose data begins at a cache line, in huge pages where NumPy asks for them."""
    import numpy as np

    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _timed(run: Run) -> float:
    start = time.perf_counter()
    run()
    return max(time.perf_counter() - start, 1e-9)


def serve(actions: Mapping[str, Callable[..., dict[str, Any]]]) -> None:
    """Answers orders until there are none; an action that raises answers with "failed"."""
    # What libraries print goes to standard error; orders and answers have pipes of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = actions[order.pop("do")](**order)
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        with contextlib.suppress(BrokenPipeError):
            answers.write(json.dumps(answer) + "\n")


def main() -> None:
    die_with_parent()
    threads = int(sys.argv[1])
    pin(threads)
    server = Server(threads)
    serve(
        {
            "clear": server.clear,
            "load": server.load,
            "prepare": server.prepare,
            "time": server.time,
        }
    )


if __name__ == "__main__":
    main()
