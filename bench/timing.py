"""Interleaved timing: contestants take turns in one process, medians and pairwise ratios count."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from tessera import _core
from tessera.race_processes import asleep

Run = Callable[[], Any]


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
    every turn begins when they sleep; a warm turn then has an untimed run that wakes its own pool.
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
            asleep()
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
