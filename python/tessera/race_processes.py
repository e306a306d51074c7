"""The processes of a race, and the quiet that it needs.

Every library runs in processes of its own, one with a single thread and one with all, which wait
for their turns (racer.py). A turn begins when all other threads of the race are asleep.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tessera.racer import read, write
from tessera.types import Record, Value, Values

_SLEEP_LIMIT_S = 0.5  # for threads to fall asleep; OpenBLAS' take 2^26 ticks of their own accord:
_BLAS_SPIN = "22"  # 1 to 2 ms are as good within a turn, and do not hold up the next one
_BUSY = 0.2  # of the processors, used by others
_START_S, _ANSWER_S, _COMPILE_S, _END_S = 60.0, 60.0, 300.0, 2.0
_POOLS = ("OMP", "OPENBLAS", "MKL", "BLIS")
_SINGLE = {"TESSERA_THREADS": "1"} | {f"{pool}_NUM_THREADS": "1" for pool in _POOLS}
_RACERS = {"tessera": "graph_racer", "onnxruntime": "graph_racer"}  # of graphs, not of source
_XLA_SINGLE = "--xla_cpu_multi_thread_eigen=false"


class LostError(Exception):
    """A process that died, or gave no answer in time."""


class Child:
    """A process that runs one library ("tessera:2": of two threads), with one thread or all;
    `module`: that does something else."""

    def __init__(self, library: str, threads: str, module: str = "") -> None:
        environment = {"OPENBLAS_THREAD_TIMEOUT": _BLAS_SPIN, **os.environ}
        library, _, most = library.partition(":")
        if most:
            environment["TESSERA_THREADS"] = most
        if threads == "one":
            flags = f"{environment.get('XLA_FLAGS', '')} {_XLA_SINGLE}".strip()
            environment |= _SINGLE | {"XLA_FLAGS": flags}
        module = module or _RACERS.get(library, "racer")
        code = f"import sys; sys.path[:] = sys.argv[3:]; from tessera.{module} import main; "
        code += "main(*sys.argv[1:3])"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, library, threads, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("TESSERA_DEBUG", "0") != "0" else subprocess.DEVNULL,
            env=environment,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders = io.BufferedWriter(self._process.stdin)
        self._answers = io.BufferedReader(self._process.stdout)  # type: ignore[type-var]
        self._greeted = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(
        self, order: Record, arrays: Values = (), limit_s: float = _ANSWER_S
    ) -> tuple[Record, list[Value]]:
        """What it answers; LostError where it does not."""
        if not self._greeted:
            self._answer(_START_S)
            self._greeted = True
        with self._ended_by_errors():
            write(self._orders, order, arrays)
        return self._answer(limit_s)

    def told(self, order: Record, arrays: Values = ()) -> tuple[Record, list[Value]]:
        """The same; LostError where what it was told to do failed, too."""
        limit_s = _COMPILE_S if order["do"] == "prepare" else _ANSWER_S
        facts, found = self.ask(order, arrays, limit_s)
        if "failed" in facts:
            raise LostError(facts["failed"])
        return facts, found

    def _answer(self, limit_s: float) -> tuple[Record, list[Value]]:
        with self._ended_by_errors():
            if not select.select([self._answers], [], [], limit_s)[0]:
                raise LostError(f"no answer within {limit_s:.0f} s")
            return read(self._answers)

    @contextlib.contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """Such as Ctrl-C: half an order is none, and its answer would be taken for the next's."""
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, (BrokenPipeError, EOFError)):
                raise LostError("its process has died") from None
            raise

    def terminate(self) -> None:
        """Has it end what it started, and itself; who waits for its answer hears of no one."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._process.kill()

    def close(self) -> None:
        """Ends it, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        self.abandon()

    def abandon(self) -> None:
        """Gives back the pipes; what is left in their buffers is not written."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        if self._process.returncode is None:
            self._process.returncode = 0  # of another process' child: not to be waited for


class Children:
    """The processes of a session, started when they are first needed; one race at a time."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._of: dict[tuple[str, str], Child] = {}

    def get(self, library: str, threads: str) -> Child:
        """The process of a library."""
        child = self._of.get((library, threads))
        if child is None or not child.alive:
            self.end(child)
            child = self._of[library, threads] = Child(library, threads)
        return child

    def start(self, libraries: Iterable[str]) -> None:
        """Starts those of these libraries, side by side."""
        with self.lock, contextlib.suppress(OSError):
            for key in [(library, n) for library in libraries for n in ("one", "all")]:
                self.get(*key)

    def end(self, child: Child | None) -> None:
        """Ends one, if it is there."""
        if child is not None:
            self._of = {key: c for key, c in self._of.items() if c is not child}
            child.close()

    def close(self) -> None:
        """Ends all."""
        for child in list(self._of.values()):
            self.end(child)

    def abandon(self) -> None:
        """After a fork: they are the parent's."""
        for child in self._of.values():
            child.abandon()
        self._of = {}

    def pids(self) -> list[int]:
        """Those that live."""
        return [c.pid for c in self._of.values()]


@functools.cache
def children() -> Children:
    """Those of this process."""
    made = Children()
    atexit.register(made.close)
    return made


def _forked() -> None:
    if children.cache_info().currsize:
        children().abandon()
        children.cache_clear()


os.register_at_fork(after_in_child=_forked)


def activity(pids: Iterable[int], own: bool) -> tuple[bool, int]:
    """Whether any thread runs, this one left out, and the processor time of all in ticks."""
    me = threading.get_native_id()
    folders = [Path(f"/proc/{pid}/task") for pid in pids]
    running, ticks = False, 0
    for folder in [*folders, *([Path("/proc/self/task")] if own else [])]:
        with contextlib.suppress(OSError):  # a thread, or a process, that has just ended
            for thread in os.listdir(folder):
                if thread == str(me):
                    continue
                fields = (folder / thread / "stat").read_text().rpartition(")")[2].split()
                running |= fields[0] == "R"
                ticks += int(fields[11]) + int(fields[12])
    return running, ticks


def asleep(pids: Iterable[int] = (), own: bool = True, limit_s: float = _SLEEP_LIMIT_S) -> bool:
    """Waits until no thread of these processes and (`own`) of this one runs; False if one does."""
    pids, before, end = list(pids), -1, time.monotonic() + limit_s
    while True:
        running, spent = activity(pids, own)
        if not running and spent == before:
            return True
        before = spent
        if running and time.monotonic() > end:
            return False
        if running:
            time.sleep(0.0005)


class Load:
    """What others make of the machine, from when this was made."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._start = self._read()

    def _read(self) -> tuple[float, int]:
        """The time, and the processors' time of all others, in seconds and ticks."""
        try:
            words = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        except OSError:
            return 0.0, 0
        user, nice, system, _, _, irq, softirq, steal = (int(w) for w in words)
        spent = user + nice + system + irq + softirq + steal
        for pid in ["self", *self._pids()]:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                spent -= int(fields[11]) + int(fields[12])
        return time.monotonic(), spent

    def is_busy(self) -> bool:
        """Whether others use so much that clocks tell about them, too."""
        (start, before), (now, after) = self._start, self._read()
        processors = os.cpu_count() or 1
        if now - start < 0.05:  # a few ticks: no telling
            return os.getloadavg()[0] > 0.75 * processors
        ticks = os.sysconf("SC_CLK_TCK") * (now - start) * processors
        return after - before > _BUSY * ticks
