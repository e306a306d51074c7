"""Work in the background: one job after the other, gone when the program ends."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from tessera.background import Helper

Job = Callable[[Callable[[], bool]], None]  # is given a function that says whether to stop

# One job at a time in the whole process: they measure, and would disturb each other.
_turn = threading.Lock()
_tuners: weakref.WeakSet[Tuner] = weakref.WeakSet()


class Tuner:
    """A queue of jobs with a thread that lives as long as there are any."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Job, Helper | None]] = deque()
        self._helper: Helper | None = None  # of the running job
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def add(self, job: Job, helper: Helper | None = None) -> None:
        """Runs the job when its turn comes; the process that it starts is ended with it."""
        with self._lock:
            self._jobs.append((job, helper))
            if self._thread is None:
                _tuners.add(self)
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until nothing is left to do; whether that is so."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (thread := self._thread) is not None:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                return False
        return True

    def stop(self) -> None:
        """Ends the running job early and forgets the others."""
        self._stopping = True
        if (helper := self._helper) is not None:
            helper.stop()
        self.wait()

    def after_fork(self) -> None:
        """Nothing is under way in a process that was forked from one where something was."""
        if self._helper is not None:
            self._helper.abandon()
        self._jobs.clear()
        self._lock, self._thread, self._helper = threading.Lock(), None, None

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._stopping or not self._jobs:
                    self._thread = None
                    return
                job, self._helper = self._jobs.popleft()
            with _turn:
                if self._stopping:
                    continue
                job(lambda: self._stopping)


def _stop_all() -> None:
    for tuner in list(_tuners):
        tuner.stop()


def _after_fork() -> None:
    global _turn
    _turn = threading.Lock()
    for tuner in list(_tuners):
        tuner.after_fork()


atexit.register(_stop_all)
os.register_at_fork(after_in_child=_after_fork)
