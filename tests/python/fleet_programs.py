"""Small programs for campaigns, and workers that misbehave."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from tessera.fleet.campaign import Campaign, Named
from tessera.fleet.executors import LocalExecutor, TaskExecutor
from tessera.fleet.plan import Settings
from tessera.fleet.progress import Outcome
from tessera.graph import Graph
from tessera.options import Options
from tessera.store.stores import FolderStore

TEXTS = {
    "factor": "X = input : f32[16,32] A = input : f32[32,24] B = input : f32[32,24] "
    "P = matmul X, A Q = matmul X, B S = add P, Q return S",
    "exponent": "X = input : f32[24,40] Y = input : f32[24,40] L = log X K = log Y "
    "S = add L, K E = exp S return E",
    "norm": "X = input : f32[16,64] W = input : f32[64,16] A = sqr X "
    "M = mean A {axes=[1], keepdims=true} Y = div X, M O = matmul Y, W return O",
    # Reshapes part it, and synthesis of the whole leaves a sum of products.
    "diagonal": "X = input : f32[96,96] Y = input : f32[96,96] P = matmul X, Y "
    "F = reshape P {shape=[9216]} D = slice F {starts=[0], stops=[9216], steps=[97]} return D",
    # More operators than a search in one piece gets.
    "long": "X = input : f32[16,16] Y = input : f32[16,16] A = add X, Y B = sub X, Y C = mul A, B "
    "D = exp C E = add D, X F = mul E, Y G = sqr F H = add G, D I = relu H J = mul I, A "
    "K = add J, B return K",
}
QUICK = Settings(Options(budget=2.0), steps=300, patience=60.0, wait=10.0)
SEARCH = Settings(Options(budget=2.0), steps=300, measure=False, patience=60.0, wait=10.0)


def programs(*names: str) -> list[Named]:
    """Some of them, or all."""
    return [Named(n, Graph.parse(f"graph {n} {{ {TEXTS[n]} }}")) for n in names or TEXTS]


def winners(outcomes: list[Outcome]) -> dict[str, tuple[str, ...]]:
    """What raced, or would have, by program."""
    return {o.name: o.winners for o in outcomes}


def run(folder: Path, executor: TaskExecutor, settings: Settings = SEARCH, *names: str) -> Campaign:
    """A campaign that is through."""
    campaign = Campaign(programs(*names), settings, FolderStore(folder), executor)
    campaign.run()
    return campaign


class Changing(LocalExecutor):
    """One worker, whose answers `change` makes others of: (task, request, answer) → answer."""

    def __init__(self, change: Callable[[str, str, str], str]) -> None:
        super().__init__()
        self._change = change

    def submit(self, task: str, requests: list[str]) -> Future[list[str]]:
        honest = super().submit(task, requests).result()
        pairs = zip(requests, honest, strict=True)
        future: Future[list[str]] = Future()
        future.set_result([self._change(task, request, answer) for request, answer in pairs])
        return future


class AnyOrder(LocalExecutor):
    """Several tasks under way, whose answers come in an order of their own."""

    def __init__(self, seed: int, workers: int = 5) -> None:
        super().__init__()
        self.workers = workers
        self._random = random.Random(seed)
        self._open: list[tuple[str, list[str], Future[list[str]]]] = []
        self._lock = threading.Lock()
        self._over = False
        threading.Thread(target=self._work, daemon=True).start()

    def submit(self, task: str, requests: list[str]) -> Future[list[str]]:
        future: Future[list[str]] = Future()
        with self._lock:
            self._open.append((task, requests, future))
        return future

    def _work(self) -> None:
        one = LocalExecutor()
        while not self._over:
            time.sleep(0.01)  # so that there is a choice
            with self._lock:
                self._random.shuffle(self._open)
                job = self._open.pop() if self._open else None
            if job is not None:
                job[2].set_result(one.submit(job[0], job[1]).result())

    def close(self) -> None:
        self._over = True
        super().close()


class Deaf(LocalExecutor):
    """A worker that never answers the first `count` tasks."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.workers = 2
        self._left = count
        self._one = LocalExecutor()

    def submit(self, task: str, requests: list[str]) -> Future[list[str]]:
        if self._left > 0:
            self._left -= 1
            return Future()
        return self._one.submit(task, requests)
