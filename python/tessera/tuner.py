"""Work in the background: one job after the other, gone when the program ends."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from tessera.background import Helper

Job = Callable[[Callable[[], bool]], None]  # is given a function that says whether to stop

log = logging.getLogger("tessera")
# One job at a time in the whole process: they measure, and would disturb each other.
_turn = threading.Lock()
_tuners: weakref.WeakSet[Tuner] = weakref.WeakSet()


class Tuner:
    """A queue of jobs with a thread that lives as long as there are any."""

    def __init__(self, forked: Callable[[], None] = lambda: None, alone: bool = True) -> None:
        self._alone = alone  # false: what others measure does not wait for it
        self._jobs: deque[tuple[Job, Helper | None]] = deque()
        self._running: tuple[Job, Helper | None] | None = None
        self._forked = forked  # told so
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def add(self, job: Job, helper: Helper | None = None) -> None:
        """Runs the job when its turn comes; the process that it starts is ended with it."""
        self._jobs.append((job, helper))
        self.go_on()

    @property
    def jobs(self) -> int:
        """Those that have not begun."""
        return len(self._jobs)

    def go_on(self) -> None:
        """Sees to what is left: after a fork there is no thread."""
        with self._lock:
            if self._thread is None and self._jobs and not self._stopping:
                _tuners.add(self)
                thread = threading.Thread(target=self._work, daemon=True)
                thread.start()  # which Ctrl-C may end: only what runs can be joined
                self._thread = thread

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until nothing is left to do; whether that is so."""
        self.go_on()
        deadline = None if timeout is None else time.monotonic() + timeout
        while (thread := self._thread) is not None:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                return False
        return True

    def stop(self, wait: bool = True) -> None:
        """Ends the running job early and forgets the others."""
        self._stopping = True
        if (running := self._running) is not None and running[1] is not None:
            running[1].stop()
        if wait:
            self.wait()

    def after_fork(self) -> None:
        """In a process that was forked nothing is under way; it begins anew when it goes on."""
        if self._running is not None:
            self._jobs.appendleft(self._running)
            if self._running[1] is not None:
                self._running[1].abandon()
        self._lock, self._thread, self._running = threading.Lock(), None, None
        self._forked()

    def _work(self) -> None:
        self._thread = threading.current_thread()
        while True:
            with self._lock:
                if self._stopping or not self._jobs:
                    self._thread = None
                    return
                self._running = job, _ = self._jobs.popleft()
            with _turn if self._alone else contextlib.nullcontext():
                try:
                    if not self._stopping:
                        job(lambda: self._stopping)
                except Exception:  # the next ones are to be done all the same
                    log.exception("tessera: work in the background failed")
            self._running = None


def _stop_all() -> None:
    tuners = list(_tuners)
    for tuner in tuners:  # before any is waited for: they take turns
        tuner.stop(wait=False)
    for tuner in tuners:
        while True:
            try:
                tuner.stop()
                break
            except KeyboardInterrupt:  # it ends soon, and nothing may be left running
                continue


def _after_fork() -> None:
    global _turn
    _turn = threading.Lock()
    for tuner in list(_tuners):
        tuner.after_fork()


atexit.register(_stop_all)
os.register_at_fork(after_in_child=_after_fork)
