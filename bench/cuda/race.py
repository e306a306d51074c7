"""The contestants of one case in a process that may be lost: who kills it is named and left out."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

from bench.race import Late, Process
from bench.workloads import Workload

Facts = dict[str, Any]
WORKER = "bench.cuda.worker"
# What is left of a process after these: nothing. A later launch in it would be told the same.
_LOST = ("CUDA error", "no answer", "its process")


class Race:
    """The process that holds the GPU, started again when it is lost."""

    def __init__(self, module: str | None = None) -> None:
        self._module = module or WORKER
        self._process: Process | None = None
        self._case: Facts = {}
        self._environment: dict[str, str] = {}
        self._ready: dict[str, Facts] = {}  # who is in the process, and with which options

    def __enter__(self) -> Race:
        """Gives the processes a cache of their own: nothing that an earlier run found counts, but
        what this one finds and learns about the GPU outlives a lost process."""
        self._cache = tempfile.TemporaryDirectory(prefix="tessera-bench-")
        self._environment = {"TESSERA_CACHE_DIR": self._cache.name}
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._cache.cleanup()

    def describe(self) -> Facts:
        """What the GPU is, or why there is none under "failed"."""
        return self._ask(120, do="describe")

    def load(self, workload: Workload, batch: int, dtype: str) -> Facts:
        """Begins a case; the answer has "bytes", or "failed"."""
        self._ready = {}
        self._case = {"case": workload.name, "batch": batch, "dtype": dtype}
        return self._ask(120, do="load", **self._case)

    def prepare(self, name: str, options: Mapping[str, Any], limit_s: float) -> Facts:
        """Makes a contestant; the answer has "failed" where that did not work."""
        answer = self._ask(limit_s, do="prepare", name=name, options=dict(options))
        if "failed" not in answer:
            self._ready[name] = dict(options)
        elif _is_lost(answer["failed"]):
            self._restore(limit_s)
        return answer

    def measure(self, cold: bool, budget_s: float, limit_s: float) -> Facts:
        """Times everybody; "failed" where the process was lost, and then the case is over."""
        answer = self._ask(limit_s, do="measure", cold=cold, budget_s=budget_s)
        if "failed" in answer and _is_lost(answer["failed"]):
            self._stop()
        return answer

    def _restore(self, limit_s: float) -> None:
        """A new process with those who were ready; what they compiled is on the disk by now."""
        self._stop()
        ready, self._ready = self._ready, {}
        if "failed" in self._ask(120, do="load", **self._case):
            return
        for name, options in ready.items():
            answer = self._ask(limit_s, do="prepare", name=name, options=options)
            if "failed" not in answer:
                self._ready[name] = options
            elif _is_lost(answer["failed"]):
                return

    @property
    def ready(self) -> tuple[str, ...]:
        """Who takes part."""
        return tuple(self._ready)

    def _ask(self, limit_s: float, **order: Any) -> Facts:
        if self._process is None:
            self._process = Process(len(os.sched_getaffinity(0)), self._module, self._environment)
        try:
            return self._process.ask(limit_s, **order)
        except Late as late:
            self._stop()
            return {"failed": str(late)}

    def _stop(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


def _is_lost(reason: str) -> bool:
    return any(sign in reason for sign in _LOST)
