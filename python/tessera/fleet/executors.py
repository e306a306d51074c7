"""Who does the tasks: this process, processes of this machine, Dask, Ray, a shard of a job array.

Dask and Ray schedule, retry and show what they do by their own means. What they carry by pickle is
the name of a function and texts; workers and scheduler trust each other, as they always do there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Protocol

from tessera.errors import Error, IoError, UsageError
from tessera.fleet.tasks import work
from tessera.options import package
from tessera.race_processes import Child, LostError
from tessera.store.entry import RefusedError
from tessera.types import Value

_PATIENCE_S = 900.0  # see Settings


class TaskExecutor(Protocol):
    """What a campaign needs of one."""

    @property
    def workers(self) -> int:
        """How many tasks run at a time, now; 0 where nobody is there."""

    @property
    def apart(self) -> bool:
        """Whether measuring has machines of its own, so that it need not wait for searches."""

    def submit(self, task: str, requests: list[str]) -> Future[list[str]]:
        """Has a worker do some of a kind of TASKS; the future may tell that the worker failed."""

    def owns(self, key: str) -> bool:
        """Whether this task is to be done by workers of this executor."""

    def close(self) -> None:
        """Ends what it started, whatever that is doing."""


class _OfAll:
    """An executor whose workers do all tasks."""

    def owns(self, key: str) -> bool:
        return True


class LocalExecutor(_OfAll):
    """This process, or several on this machine, each with a thread that waits for its answers.

    One that takes more than twice the patience is ended, and with it the locks that it holds.
    """

    apart = False

    def __init__(self, workers: int = 1, patience: float = _PATIENCE_S) -> None:
        self.workers = workers
        self.limit_s = 2 * patience
        self._measuring = threading.Lock()  # so that nobody's time is spent on waiting for others
        self._threads = ThreadPoolExecutor(workers)
        self._all: set[Child] = set()
        self._idle: list[Child] = []

    def submit(self, task: str, requests: list[str]) -> Future[list[str]]:
        if self.workers > 1:
            return self._threads.submit(self._ask, task, requests)
        future: Future[list[str]] = Future()
        try:
            future.set_result(work(task, requests))
        except Exception as error:
            future.set_exception(error)
        return future

    def _ask(self, task: str, requests: list[str]) -> list[str]:
        with self._measuring if task == "measure" else nullcontext():
            try:
                child = self._idle.pop()
            except IndexError:
                child = Child("tessera", "all", "fleet.worker")
                self._all.add(child)
            answer, _ = child.ask({"task": task, "requests": requests}, (), self.limit_s)
        self._idle.append(child)
        if "failed" in answer:
            refused = answer["kind"] == RefusedError.__name__
            raise RefusedError(answer["said"]) if refused else LostError(answer["failed"])
        found: list[str] = answer["answers"]
        return found

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in list(self._all):
            child.terminate()


class ShardExecutor(LocalExecutor):
    """Of all tasks the i-th n-th, by their keys; others do the rest, at the same time or not."""

    def __init__(self, shard: str, workers: int = 1, patience: float = _PATIENCE_S) -> None:
        super().__init__(workers, patience)
        index, _, count = shard.partition("/")
        if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
            raise UsageError(f"--shard {shard}: write i/n with 1 <= i <= n, for example 1/8")
        self._index, self._count = int(index) - 1, int(count)

    def owns(self, key: str) -> bool:
        return int(key[:8], 16) % self._count == self._index


class DaskExecutor(_OfAll):
    """Workers of Dask distributed: those of a scheduler, or a cluster of this machine with TLS."""

    def __init__(self, address: str = "", workers: int = 2, client: Value = None) -> None:
        distributed = _package("distributed", "dask")
        self._name = f"the Dask cluster {address or 'of this machine'}"
        self._mine = ExitStack()
        if client is None and not address:
            security = distributed.Security.temporary()
            cluster = self._mine.enter_context(distributed.LocalCluster(
                n_workers=workers, threads_per_worker=1, security=security, dashboard_address=None,
                scheduler_port=0, silence_logs=50,
            ))  # fmt: skip
            client = self._mine.enter_context(distributed.Client(cluster))
        elif client is None:
            with _reaching(f"--address {address}", UsageError):
                client = self._mine.enter_context(distributed.Client(address))
        self._client = client
        resources = [w.get("resources", {}) for w in self._workers().values()]
        self.apart = any("measure" in r for r in resources)
        self._any: Executor = client.get_executor(pure=False)
        only = {"resources": {"measure": 1}} if self.apart else {}
        self._measuring: Executor = client.get_executor(pure=False, **only)
        for executor in (self._any, self._measuring):
            self._mine.callback(executor.shutdown, wait=False)

    def _workers(self) -> dict[str, Value]:
        with _reaching(self._name):
            workers: dict[str, Value] = self._client.scheduler_info().get("workers", {})
            return workers

    @property
    def workers(self) -> int:
        return sum(int(w["nthreads"]) for w in self._workers().values())

    def submit(self, task: str, requests: list[str]) -> Future[list[str]]:
        executor = self._any if task == "search" else self._measuring
        with _reaching(self._name):
            return executor.submit(work, task, requests)

    def close(self) -> None:
        with suppress(Exception):  # of a cluster that is gone
            self._mine.close()


class RayExecutor(_OfAll):
    """Workers of Ray: those of a cluster, or processes of this machine."""

    def __init__(self, address: str = "", workers: int = 2) -> None:
        self._ray = ray = _package("ray", "ray")
        self._name = f"the Ray cluster {address or 'of this machine'}"
        self._mine = not ray.is_initialized()
        own = {"num_cpus": workers, "include_dashboard": False, "configure_logging": False}
        if self._mine:
            how = {"address": address} if address else own
            kind = UsageError if address else IoError
            with _reaching(f"--address {address}" if address else self._name, kind):
                ray.init(log_to_driver=False, logging_level="error", **how)
        self.apart = "measure" in ray.cluster_resources()
        self._tasks: dict[str, Value] = {}

    @property
    def workers(self) -> int:
        with _reaching(self._name):
            return int(self._ray.cluster_resources().get("CPU", 0))

    def submit(self, task: str, requests: list[str]) -> Future[list[str]]:
        if task not in self._tasks:
            only = {"resources": {"measure": 1}} if task != "search" and self.apart else {}
            self._tasks[task] = self._ray.remote(num_cpus=1, max_retries=2, **only)(work)
        with _reaching(self._name):
            future: Future[list[str]] = self._tasks[task].remote(task, requests).future()
            return future

    def close(self) -> None:
        with suppress(Exception):
            if self._mine:
                self._ray.shutdown()


def _package(name: str, extra: str) -> Value:
    return package(name, f"this executor needs {name}: pip install 'tessera-opt[{extra}]'")


@contextmanager
def _reaching(what: str, kind: type[Error] = IoError) -> Iterator[None]:
    """What goes wrong with a cluster is of any type; it becomes one that says which it is."""
    try:
        yield
    except Exception as error:
        raise kind(f"{what}: {str(error) or type(error).__name__}") from None


def make_executor(
    name: str, address: str, workers: int, shard: str, patience: float = _PATIENCE_S
) -> TaskExecutor:
    """The executor that the command line names; `workers` 0: as many as there are processors."""
    if shard and name not in ("local", "shard"):
        raise UsageError("--shard goes with --executor shard")
    if address and name not in ("dask", "ray"):
        raise UsageError(f"--address goes with dask and ray, not with {name}")
    workers = workers or len(os.sched_getaffinity(0))
    if name == "dask":
        return DaskExecutor(address, workers)
    if name == "ray":
        return RayExecutor(address, workers)
    if shard or name == "shard":
        return ShardExecutor(shard or "1/1", workers, patience)
    return LocalExecutor(workers, patience)
