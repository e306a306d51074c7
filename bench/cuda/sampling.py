"""What figures come out of many short timings: turns, medians, spreads. Needs no GPU."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

# Seconds that so many replays took, one after the other, by the device's own clock.
Stopwatch = Callable[[int], float]

SHORTEST_S = 4e-4  # a sample lasts at least that long: an event is good to about half a µs
SETTLING_TURNS = 2  # clocks rise and caches fill before anything counts


@dataclass(frozen=True)
class Entrant:
    """Somebody to be timed: a replay runs the program `calls` times."""

    seconds: Stopwatch
    calls: int = 1


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, over all samples of one entrant."""

    median_s: float
    low_s: float  # 10th percentile
    high_s: float  # 90th
    samples: int

    @property
    def spread(self) -> float:
        """How far the samples lie apart: (90th − 10th percentile) / median."""
        return (self.high_s - self.low_s) / self.median_s


def replays_of(seconds: float) -> int:
    """How many replays of `seconds` each make a sample."""
    return max(1, min(1000, round(SHORTEST_S / max(seconds, 1e-9))))


def summarise(samples: Sequence[float]) -> Timing:
    """Median and 10th and 90th percentile, interpolated."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        left = int(place)
        right = min(left + 1, len(ordered) - 1)
        return ordered[left] + (ordered[right] - ordered[left]) * (place - left)

    return Timing(median(ordered), at(0.1), at(0.9), len(ordered))


def interleave(
    entrants: Mapping[str, Entrant],
    budget_s: float,
    min_turns: int = 7,
    max_turns: int = 200,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Timing]:
    """Times all entrants in turns, in a new order each time, until the budget is spent.

    Whatever the machine does meanwhile (its clock falls as it warms) hits all alike. The first
    turns do not count. There are at least `min_turns` others, whatever the budget.
    """
    if not entrants:
        return {}
    repeats = {name: replays_of(e.seconds(1)) for name, e in entrants.items()}
    samples: dict[str, list[float]] = {name: [] for name in entrants}
    order = random.Random(0)
    end = clock() + budget_s
    turn = -SETTLING_TURNS
    while turn < min_turns or (turn < max_turns and clock() < end):
        names = list(entrants)
        order.shuffle(names)
        for name in names:
            seconds = entrants[name].seconds(repeats[name])
            if turn >= 0:
                samples[name].append(seconds / (repeats[name] * entrants[name].calls))
        turn += 1
    return {name: summarise(s) for name, s in samples.items()}


def rotations(bytes_of_a_set: int, cache_bytes: int, free_bytes: int) -> int:
    """How many sets of arguments a cold run goes through: none is in the cache at its next turn.

    All sets together are three times the cache; at least 2 and at most 512 of them, and no more
    than half of the free memory.
    """
    wanted = math.ceil(3 * cache_bytes / max(bytes_of_a_set, 1))
    room = free_bytes // (2 * max(bytes_of_a_set, 1))
    return max(2, min(wanted, room, 512))
