"""Interleaved timing: contestants take turns in one process, medians and pairwise ratios count."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tessera import _core

Run = Callable[[], Any]
_SETTLE_S = 0.025  # OpenBLAS spins for about 20 ms


@dataclass(frozen=True)
class Timing:
    """Seconds of one contestant."""

    median_s: float
    best_s: float
    rounds: int

    @property
    def us(self) -> float:
        return self.median_s * 1e6


class CacheFlusher:
    """Evicts the caches by writing through a buffer larger than the last level."""

    def __init__(self) -> None:
        size = 2 * int(_core.machine()["last_level_cache_bytes"])
        self._buffer = np.zeros(min(max(size, 64 << 20), 512 << 20), np.uint8)

    def flush(self) -> None:
        self._buffer += 1


def interleave(
    contestants: Mapping[str, Run], budget_s: float = 2.0, cold: bool = False, min_rounds: int = 7
) -> dict[str, Timing]:
    """Times all contestants in turn until the budget is used and everybody had enough rounds.

    Thread pools of one library spin for a while after their work and would slow the next one, so
    every turn begins with a pause; a warm turn then has an untimed run that wakes its own pool.
    """
    names = list(contestants)
    flusher = CacheFlusher() if cold else None
    repeats = {}
    for name, run in contestants.items():
        run()
        once = _timed(run)
        # A warm turn times several runs of a short program, so that the clock's cost vanishes.
        repeats[name] = 1 if cold else max(1, min(1000, int(2e-3 / once)))
    samples: dict[str, list[float]] = {name: [] for name in names}
    deadline = time.perf_counter() + budget_s
    turn = 0
    while turn < min_rounds or (time.perf_counter() < deadline and turn < 5000):
        for offset in range(len(names)):
            name = names[(turn + offset) % len(names)]
            run, n = contestants[name], repeats[name]
            time.sleep(_SETTLE_S)
            if flusher:
                flusher.flush()
            else:
                run()
            start = time.perf_counter_ns()
            for _ in range(n):
                run()
            samples[name].append((time.perf_counter_ns() - start) / n * 1e-9)
        turn += 1
    return {n: Timing(median(s), min(s), len(s)) for n, s in samples.items()}


def _timed(run: Run) -> float:
    start = time.perf_counter()
    run()
    return max(time.perf_counter() - start, 1e-9)


class BlasThreads:
    """The number of threads of NumPy's bundled OpenBLAS; nothing where there is none.

    A pool with more threads than free processors spins against itself, so a fair NumPy baseline is
    the better of one thread and all.
    """

    def __init__(self) -> None:
        self._set: Callable[[int], Any] | None = None
        self.all = 1
        folder = Path(np.__file__).parents[1] / "numpy.libs"
        for path in folder.glob("*openblas*"):
            library = ctypes.CDLL(str(path))
            for prefix, suffix in (
                ("scipy_openblas_", "64_"),
                ("openblas_", "64_"),
                ("openblas_", ""),
            ):
                try:
                    self._set = getattr(library, f"{prefix}set_num_threads{suffix}")
                    self.all = int(getattr(library, f"{prefix}get_num_threads{suffix}")())
                    return
                except AttributeError:
                    continue

    def use(self, threads: int) -> None:
        """Sets the number of threads from now on."""
        if self._set is not None:
            self._set(threads)

    def single(self, run: Run) -> Run:
        """The same run on one thread."""

        def on_one_thread() -> Any:
            self.use(1)
            try:
                return run()
            finally:
                self.use(self.all)

        return on_one_thread
