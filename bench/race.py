"""A race between processes: prepares the contestants of one case, then times them in turns.

Turns rotate, so a change of the machine's mood hits all alike; only one process works at a time.
Whoever does not answer in time is stopped and named in the notes, and the race goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.peers import NEEDS
from bench.workloads import Workload
from tessera.race_processes import asleep

Facts = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]


class Late(Exception):  # noqa: N818 - a fact about a contestant, not an error of ours
    """A process that gave no answer in time, or none at all."""


class Process:
    """One worker process: a module that serves orders (worker.serve)."""

    def __init__(
        self,
        threads: int,
        module: str = "bench.worker",
        more: Mapping[str, str] | None = None,  # of the environment
        root: Path = ROOT,  # the tree whose code it runs
    ) -> None:
        environment = os.environ | dict(more or {}) | {
            name: str(threads)
            for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
                         "TESSERA_THREADS")
        } | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}  # fmt: skip
        path = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(root / "python"), str(root), *([path] if path else [])]
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("TESSERA_DEBUG", "0") != "0" else subprocess.DEVNULL,
            env=environment,
            cwd=root,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        self._pending = b""

    def ask(self, limit_s: float, **order: Any) -> Facts:
        """Sends one order and returns the answer; raises Late."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise Late("its process has died") from None
        deadline = time.monotonic() + limit_s
        stream = self._process.stdout.fileno()
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stream], [], [], left)[0]:
                raise Late(f"no answer within {limit_s:.0f} s")
            data = os.read(stream, 1 << 16)
            if not data:
                code = self._process.wait()
                raise Late(
                    f"its process died ({'signal' if code < 0 else 'exit code'} {abs(code)})"
                )
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        answer: Facts = json.loads(line)
        return answer

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Stops it, whatever it is doing."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Stops it and gives back its pipes."""
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # an order that nobody read
                    stream.close()


class Race:
    """All processes for one number of threads; they live as long as the race."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._processes: dict[str, Process] = {}
        self._members: dict[str, str] = {}  # contestant → process
        self._once: dict[str, float] = {}
        self._case: Facts = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Race:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.close()
        self._processes = {}
        if self._folder is not None:
            self._folder.cleanup()

    def load(self, workload: Workload, batch: int, dtype: str) -> None:
        """Writes down the arguments and the exact result of the next case."""
        self._members, self._once = {}, {}
        for key in list(self._processes):
            try:
                self._processes[key].ask(30, do="clear")
            except Late:
                self._processes.pop(key).close()
        if self._folder is not None:
            self._folder.cleanup()
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._folder = tempfile.TemporaryDirectory(prefix="tessera-bench-", dir=memory)
        folder = Path(self._folder.name)
        arrays = workload.arrays(batch, dtype)
        for name, array in zip(workload.shapes, arrays, strict=True):
            words = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
            np.save(folder / f"{name}.npy", words)
        np.save(folder / "exact.npy", workload.exact(arrays))
        self._case = {"case": workload.name, "batch": batch, "dtype": dtype, "folder": str(folder)}

    def prepare(self, name: str, options: Mapping[str, Any], limit_s: float) -> Facts:
        """Makes a contestant; the answer has "failed" where that did not work."""
        key = _process_of(name)
        try:
            if key not in self._processes or key not in self._members.values():
                self._start(key)
            answer = self._processes[key].ask(
                limit_s, do="prepare", name=name, options=dict(options)
            )
        except Late as late:
            self._stop(key)
            return {"failed": str(late)}
        if "failed" not in answer:
            self._members[name] = key
            self._once[name] = answer["once_s"]
        return answer

    def _start(self, key: str) -> None:
        if key not in self._processes:
            self._processes[key] = Process(self.threads)
        answer = self._processes[key].ask(120, do="load", **self._case)
        if "failed" in answer:
            raise Late(answer["failed"])

    def _stop(self, key: str) -> None:
        """Ends a process; its contestants leave the race."""
        if key in self._processes:
            self._processes.pop(key).close()
        for name in [n for n, k in self._members.items() if k == key]:
            del self._members[name]

    def run(self, budget_s: float, cold: bool, deadline: float, min_rounds: int = 7) -> Facts:
        """Medians in seconds of all contestants, and how many turns each had."""
        samples: dict[str, list[float]] = {name: [] for name in self._members}
        if not samples:
            return {"medians": {}, "best": {}, "rounds": 0}
        fastest = min((s for n, s in self._once.items() if not n.startswith("probe")), default=0.0)
        end = time.monotonic() + budget_s
        turn = 0
        while turn < min_rounds or time.monotonic() < end:
            if time.monotonic() > deadline and turn >= 3:
                break
            # A new order each turn: nobody always follows the same neighbour, whose threads may
            # still be spinning for work.
            names = list(self._members)
            random.Random(turn).shuffle(names)
            for name in names:
                # Whoever is hopelessly slow need not be timed to the last digit.
                if turn >= 3 and self._once[name] > max(20 * fastest, 0.05):
                    continue
                if name not in self._members:
                    continue
                asleep([p.pid for p in self._processes.values()])  # pools spin after their work
                try:
                    answer = self._processes[self._members[name]].ask(
                        60, do="time", name=name, cold=cold
                    )
                except Late:
                    self._stop(self._members[name])
                    continue
                if "failed" in answer:
                    del self._members[name]
                else:
                    samples[name].append(answer["seconds"])
            turn += 1
        kept = {n: s for n, s in samples.items() if n in self._members and s}
        return {
            "medians": {n: median(s) for n, s in kept.items()},
            "best": {n: min(s) for n, s in kept.items()},
            "rounds": turn,
        }


def _process_of(name: str) -> str:
    """torch.compile at its most thorough may hang: it must not take others with it."""
    if name == "inductor_max":
        return name
    return NEEDS.get(name, "tessera")


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean; 0 of nothing."""
    logs = [np.log(v) for v in values]
    return float(np.exp(np.mean(logs))) if logs else 0.0
