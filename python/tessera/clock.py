"""The wall time that is left of a budget, the signal that none is, and how times are told."""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_throw = ctypes.pythonapi.PyThreadState_SetAsyncExc


def duration(seconds: float) -> str:
    """A time with a unit that suits it.

    >>> duration(5e-7), duration(0.00012), duration(0.25), duration(0.9996), duration(75)
    ('500 ns', '120 µs', '250 ms', '1.0 s', '75.0 s')
    """
    for unit, size in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:  # what three digits round up to 1000 has the next unit
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.1f} s"


class OutOfTime(Exception):  # noqa: N818 (no error: what was found so far counts)
    """No Error either, so that what takes an error for a refusal lets it pass."""


class Interrupted(BaseException):
    """The same in the midst of a function that is traced, which it passes unseen."""


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

    def run(self, call: Callable[[], T]) -> T:
        """What a call gives. Plain Python code in it too ends by Interrupted when no time is left,
        and again where somebody handles that."""
        thread = ctypes.c_ulong(threading.get_ident())
        running, gate, late = threading.Lock(), threading.Lock(), list[bool]()
        running.acquire()

        def watch() -> None:
            # What looks at the clock itself says more; it gets a moment more.
            wait = min(self.left() + 0.05, threading.TIMEOUT_MAX)
            while not running.acquire(timeout=wait):
                with gate:
                    if running.locked():
                        late.append(True)
                        _throw(thread, ctypes.py_object(Interrupted))
                wait = 0.002

        try:
            if math.isfinite(self._end):
                threading.Thread(target=watch, daemon=True).start()
            result = call()
        finally:
            running.release()  # one call to C, which nothing interrupts
            with gate:  # from here on nothing is thrown
                pass
            if late:
                # Taken back, it would be looked for ever after, under a profiler (3.11) in vain.
                with contextlib.suppress(Interrupted):
                    for _ in range(3):
                        pass
        if late:
            raise Interrupted
        return result
