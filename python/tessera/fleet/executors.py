"""Who does the tasks: this process, processes of this machine, Dask, Ray, a shard of a job array.

Dask and Ray schedule, retry and show what they do by their own means. What they carry by pickle is
the name of a function and texts; workers and scheduler trust each other, as they always do there.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from typing import Protocol

from tessera.errors import ToolMissingError, UsageError
from tessera.types import Value

Task = Callable[[str], str]
_NAMES = ("local", "dask", "ray", "shard")


class TaskExecutor(Protocol):
    """What a campaign needs of one."""

    @property
    def workers(self) -> int:
        """How many tasks run at a time, now."""

    @property
    def apart(self) -> bool:
        """Whether measuring has machines of its own, so that it need not wait for searches."""

    def submit(self, task: Task, request: str, measures: bool) -> Future[str]:
        """Has a worker do it; what comes of it may be a failure of the worker."""

    def owns(self, key: str) -> bool:
        """Whether this task is to be done by workers of this executor."""

    def close(self) -> None:
        """Ends what it started, whatever that is doing."""


class LocalExecutor:
    """This process, or several on this machine."""

    apart = False

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, task: Task, request: str, measures: bool) -> Future[str]:
        if self.workers == 1:
            return _done_here(task, request)
        try:
            return self._processes().submit(task, request)
        except BrokenExecutor:  # one was killed, and its pool with it
            self.close()
            return self._processes().submit(task, request)

    def _processes(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.workers, context, _begin)
        return self._pool

    def owns(self, key: str) -> bool:
        return True

    def close(self) -> None:
        if (pool := self._pool) is not None:
            for process in list((pool._processes or {}).values()):
                process.kill()
            pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _done_here(task: Task, request: str) -> Future[str]:
    future: Future[str] = Future()
    try:
        future.set_result(task(request))
    except Exception as error:
        future.set_exception(error)
    return future


def _begin() -> None:
    """In a new process: Ctrl-C is its parent's to handle, whom it does not outlive."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


class ShardExecutor(LocalExecutor):
    """Of all tasks the i-th n-th, by their keys; others do the rest, at the same time or not."""

    def __init__(self, shard: str, workers: int = 1) -> None:
        super().__init__(workers)
        index, _, count = shard.partition("/")
        if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
            raise UsageError(f"--shard {shard}: write i/n with 1 <= i <= n, for example 1/8")
        self._index, self._count = int(index) - 1, int(count)

    def owns(self, key: str) -> bool:
        return int(key[:8], 16) % self._count == self._index


class DaskExecutor:
    """Workers of Dask distributed: those of a scheduler, or a cluster of this machine with TLS."""

    def __init__(self, address: str = "", workers: int = 2, client: Value = None) -> None:
        distributed = _package("distributed", "dask")
        self._close: list[Callable[[], Value]] = []
        if client is None and not address:
            security = distributed.Security.temporary()
            cluster = distributed.LocalCluster(
                n_workers=workers, threads_per_worker=1, security=security, dashboard_address=None,
                scheduler_port=0, silence_logs=50,
            )  # fmt: skip
            client = distributed.Client(cluster)
            self._close = [client.close, cluster.close]
        elif client is None:
            client = distributed.Client(address)
            self._close = [client.close]
        self._client = client
        resources = [w.get("resources", {}) for w in self._workers().values()]
        self.apart = any("measure" in r for r in resources)
        self._any: Executor = client.get_executor(pure=False)
        only = {"resources": {"measure": 1}} if self.apart else {}
        self._measuring: Executor = client.get_executor(pure=False, **only)

    def _workers(self) -> dict[str, Value]:
        workers: dict[str, Value] = self._client.scheduler_info()["workers"]
        return workers

    @property
    def workers(self) -> int:
        return max(1, sum(int(w["nthreads"]) for w in self._workers().values()))

    def submit(self, task: Task, request: str, measures: bool) -> Future[str]:
        return (self._measuring if measures else self._any).submit(task, request)

    def owns(self, key: str) -> bool:
        return True

    def close(self) -> None:
        self._any.shutdown(wait=False)
        self._measuring.shutdown(wait=False)
        for close in self._close:
            close()


class RayExecutor:
    """Workers of Ray: those of a cluster, or processes of this machine."""

    def __init__(self, address: str = "", workers: int = 2) -> None:
        self._ray = ray = _package("ray", "ray")
        self._mine = not ray.is_initialized()
        if self._mine and address:
            ray.init(address=address, log_to_driver=False, logging_level="error")
        elif self._mine:
            ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False,
                     logging_level="error", configure_logging=False)  # fmt: skip
        self.apart = "measure" in ray.cluster_resources()
        self._tasks: dict[tuple[Task, bool], Value] = {}

    @property
    def workers(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, task: Task, request: str, measures: bool) -> Future[str]:
        apart = measures and self.apart
        if (task, apart) not in self._tasks:
            only = {"resources": {"measure": 1}} if apart else {}
            remote = self._ray.remote(num_cpus=1, max_retries=2, **only)
            self._tasks[task, apart] = remote(task)
        future: Future[str] = self._tasks[task, apart].remote(request).future()
        return future

    def owns(self, key: str) -> bool:
        return True

    def close(self) -> None:
        if self._mine:
            self._ray.shutdown()


def _package(name: str, extra: str) -> Value:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ToolMissingError(
            f"this executor needs {name}: pip install 'tessera-opt[{extra}]'"
        ) from None


def make_executor(name: str, address: str, workers: int, shard: str) -> TaskExecutor:
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
        return ShardExecutor(shard or "1/1", workers)
    return LocalExecutor(workers)
