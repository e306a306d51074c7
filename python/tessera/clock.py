"""The wall time that is left of a budget, and the signal that none is."""

from __future__ import annotations

import math
import time


class OutOfTime(Exception):  # noqa: N818 (no error: what was found so far counts)
    """No Error either, so that what takes an error for a refusal lets it pass."""


class Clock:
    """Counts a budget down from its construction.

    >>> Clock(60).left() <= 60, Clock().left()
    (True, inf)
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self._end = time.perf_counter() + seconds

    def left(self) -> float:
        """Seconds; never negative."""
        return max(0.0, self._end - time.perf_counter())

    def require(self, seconds: float = 0.0) -> None:
        """Raises OutOfTime where no more than so many seconds are left."""
        if self.left() <= seconds:
            raise OutOfTime
