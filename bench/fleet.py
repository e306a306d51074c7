"""What a fleet costs and gains: efficiency with two workers, overhead of a task, and a simulation.

    python -m bench.fleet [--programs 100] [--parts batch,overhead,simulation] [--json OUT]
    python -m bench.fleet --parts simulation --store CAMPAIGN --json OUT     of a campaign's times

`batch`: the time to search, prove and compile a batch of programs with two processes, against one
process that does the same tasks by itself. Both take turns, a group of programs at a time, with
empty caches, so that what else the machine does disturbs both. Efficiency is T1 / (2 T2). Racing is
done alone on a machine, so two workers cannot share it: its share of all time is told beside.

`overhead`: tasks of some milliseconds, one worker: the time of the campaign less that of the tasks,
by task; all is in it: the campaign's own work, the store (a file for each task), the executor.

`simulation`: discrete events, from the recorded times of the batch's tasks. Assumptions:
- Programs are drawn with replacement from the batch, eight for each worker; each is the recorded
  waves of tasks, and a wave begins when the one before is answered. The largest begin first, and
  searches come before compilation, as in a campaign.
- Workers are alike, as fast as the one that was recorded, and do not slow each other down.
- Tasks go to any free worker in bundles, as large as a campaign makes them of the mean time of
  late (here of all kinds of tasks); each bundle costs the worker the measured overhead of Dask on
  top. Races take place on other machines, which are not counted: this is about search, proof and
  compilation. A worker answers after two seconds; what it has not begun is asked for again.
- Dask's scheduler hands out one bundle after another, a millisecond each, as its documentation says
  of tasks.
- One driver answers one task after another and keeps two bundles a worker with the executor, as the
  campaign does. A task takes it as long as it took, by the clock, when all answers of the batch
  came at once; the store was a folder. It proves no results again (`--check 0`; whoever receives
  them does).
- No worker fails. Efficiency is the time of all tasks over (workers x time from the first task to
  the last answer).
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench import tunable
from tessera.files import to_json
from tessera.fleet.campaign import Campaign, Named, bundle_size, program_size
from tessera.fleet.executors import DaskExecutor, LocalExecutor, RayExecutor, TaskExecutor
from tessera.fleet.plan import Settings
from tessera.fleet.tasks import BUNDLE_S
from tessera.graph import Graph
from tessera.machine import machine_description
from tessera.options import Options
from tessera.store.entry import Entry
from tessera.store.stores import FolderStore

Row = dict[str, Any]
_STEPS, _KEEP, _GROUPS, _TINY = 500, 1, 2, 200
_EACH = 8  # programs for each simulated worker
_SCHEDULER_S = 1e-3  # of Dask's scheduler, for a task
_MOST = 40  # operators of a program of the batch


class Recorded(NamedTuple):
    """A program: its size, as campaigns order them, and seconds of its tasks, wave by wave."""

    size: int
    waves: list[list[float]]


def batch(count: int) -> list[Named]:
    """Programs of the three suites, a third of each, spread evenly."""
    chosen = []
    for i, suite in enumerate(("stenso", "onnx-nodes", "outside")):
        some = [Named(f"{suite}/{n}", g) for n, g in tunable.suite(suite) if g.core.num_ops < _MOST]
        share = min(len(some), (count + i) // 3)
        chosen += [some[k * len(some) // share] for k in range(share)]
    return chosen


class Recorder(LocalExecutor):
    """One process that does all tasks, once: what it has answered it knows."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, str] = {}

    def submit(self, task: str, requests: list[str]) -> Future[list[str]]:
        new = [request for request in requests if request not in self._known]
        if new:
            answers = super().submit(task, new).result()
            self._known |= dict(zip(new, answers, strict=False))
        future: Future[list[str]] = Future()
        future.set_result([self._known[r] for r in requests if r in self._known])
        return future


def run_group(texts: list[tuple[str, str]], workers: int, measure: bool) -> Row:
    """In a process of its own: a group of programs, with an empty cache and an empty store."""
    programs = [Named(name, Graph.parse(text)) for name, text in texts]
    settings = Settings(Options(budget=10.0), steps=_STEPS, keep=_KEEP, measure=measure, check=0.0)
    with tempfile.TemporaryDirectory(prefix="tessera-fleet-") as folder:
        executor = LocalExecutor(workers) if workers > 1 else Recorder()
        store = FolderStore(Path(folder) / "store")
        if workers > 1:  # their start is the machine's, not the campaign's
            probe = tiny(1)[0]
            plan = Campaign([probe], settings, FolderStore(Path(folder) / "probe"), _Open(executor))
            plan.run()
        campaign = Campaign(programs, settings, store, executor)
        start = time.perf_counter()
        campaign.run()
        seconds = time.perf_counter() - start
        start = time.perf_counter()
        if workers == 1:
            Campaign(programs, settings, FolderStore(Path(folder) / "again"), executor).run()
        again = time.perf_counter() - start
        tasks = sum(campaign.progress.done.values())
        entries = list(store.list("proposals"))
        return {
            "seconds": seconds,
            "tasks": tasks,
            "task_s": sum(e.number("seconds") for e in entries),
            "alone_s": sum(e.number("alone_s") for e in entries),
            "driver_s": again / tasks,
            "failed": [f"{o.name}: {o.why}" for o in campaign.progress.outcomes if o.why],
            "programs": recorded({e.key: e for e in entries}, programs),
        }


class _Open:
    """An executor that stays when a campaign is over."""

    def __init__(self, executor: TaskExecutor) -> None:
        self._executor = executor
        self.apart = False

    @property
    def workers(self) -> int:
        return self._executor.workers

    def submit(self, task: str, requests: list[str]) -> Future[list[str]]:
        return self._executor.submit(task, requests)

    def owns(self, key: str) -> bool:
        return True

    def close(self) -> None:
        return


def recorded_in(store: FolderStore) -> list[Recorded]:
    """The programs of a campaign that measured, from its store."""
    entries = {e.key: e for e in store.list("proposals")}
    results = [Entry.parse(e["result"]) for e in entries.values() if e["result"]]
    named = {e["name"] for e in entries.values() if e["task"] == "prepare"}
    graphs = {r["program"]: Graph.parse(r["original"]) for r in results}
    programs = [Named(e["name"], graphs[e["of"]]) for e in entries.values()
                if e["name"] in named and e["of"] in graphs]  # fmt: skip
    return recorded(entries, programs)


def recorded(entries: dict[str, Entry], programs: list[Named]) -> list[Recorded]:
    """For each program the seconds of its tasks, wave by wave."""
    sizes = {p.name: program_size(p.graph) for p in programs}
    found = []
    for last in (e for e in entries.values() if e["task"] == "prepare" and e["name"] in sizes):
        keys = last["tasks"].split()
        if not all(key in entries for key in keys):  # of a store that was thinned out
            continue
        waves = list[list[float]]()
        searches = [entries[key] for key in keys]
        for wave in range(2):
            waves.append([e.number("seconds") for e in searches
                          if int(e["slice"].split()[0]) // 2 == wave])  # fmt: skip
        waves = [w for w in [*waves, [last.number("seconds")]] if w]
        found.append(Recorded(sizes[last["name"]], waves))
    return found


def asked(texts: list[tuple[str, str]], workers: int, measure: bool = False) -> Row:
    """`run_group` in a fresh process with a fresh cache."""
    with tempfile.TemporaryDirectory(prefix="tessera-fleet-cache-") as cache:
        command = [sys.executable, "-m", "bench.fleet", "--group", str(workers)]
        done = subprocess.run(
            [*command, *(["--measure"] if measure else [])],
            input=json.dumps(texts), text=True, check=True, stdout=subprocess.PIPE,
            env={**os.environ, "TESSERA_CACHE_DIR": cache},
        )  # fmt: skip
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def efficiency(count: int) -> tuple[Row, list[Recorded]]:
    """One process against two, group by group."""
    programs = batch(count)
    random.Random(0).shuffle(programs)
    texts = [(p.name, str(p.graph)) for p in programs]
    one, two, waves = list[Row](), list[Row](), list[Recorded]()
    loads = []  # of the machine, by others too: 1 and 2 are our own
    for i in range(_GROUPS):
        group = texts[i::_GROUPS]
        pair = {n: asked(group, n) for n in ((1, 2) if i % 2 else (2, 1))}
        one.append(pair[1])
        two.append(pair[2])
        waves += pair[1]["programs"]
        loads.append(round(os.getloadavg()[0], 1))
        print(f"{i}: 1: {pair[1]['seconds']:.1f} s, 2: {pair[2]['seconds']:.1f} s, efficiency "
              f"{pair[1]['seconds'] / 2 / pair[2]['seconds']:.2f}, load {os.getloadavg()[0]:.1f}",
              flush=True)  # fmt: skip
    raced = asked(texts[:: max(1, len(texts) // 20)], 1, measure=True)
    t1, t2 = (sum(r["seconds"] for r in rows) for rows in (one, two))
    each = [a["seconds"] / 2 / b["seconds"] for a, b in zip(one, two, strict=True)]
    return {
        "part": "batch", "programs": len(programs), "tasks": sum(r["tasks"] for r in one),
        "one_s": t1, "two_s": t2, "efficiency": t1 / 2 / t2, "efficiency_of_groups": each,
        "loads": loads,
        "median_efficiency": median(each),
        "driver_ms": 1e3 * median(r["driver_s"] for r in one),
        "measuring_share": raced["alone_s"] / raced["task_s"],
        "measured_programs": len(raced["programs"]),
        "failed": [f for r in one for f in r["failed"]],
    }, waves  # fmt: skip


# --- overhead
def tiny(count: int) -> list[Named]:
    """Programs whose searches take milliseconds, all different."""
    text = "graph tiny { X = input : f32[%d,8] Y = exp X Z = add Y, X return Z }"
    return [Named(f"tiny{n}", Graph.parse(text % (n + 2))) for n in range(count)]


def overhead(name: str, executor: TaskExecutor) -> Row:
    """Milliseconds of a task beside its own work, with one worker."""
    settings = Settings(steps=10, keep=1, engines=("synth",), measure=False, check=0.0)
    with tempfile.TemporaryDirectory(prefix="tessera-fleet-") as folder:
        Campaign(tiny(3), settings, FolderStore(Path(folder) / "a"), _Open(executor)).run()
        store = FolderStore(Path(folder) / "b")
        campaign = Campaign(tiny(_TINY)[3:], settings, store, executor)
        start = time.perf_counter()
        campaign.run()
        seconds = time.perf_counter() - start
        tasks = sum(campaign.progress.done.values())
        inside = sum(e.number("seconds") for e in store.list("proposals"))
    return {"part": "overhead", "executor": name, "tasks": tasks, "task_ms": 1e3 * inside / tasks,
            "overhead_ms": 1e3 * (seconds - inside) / tasks}  # fmt: skip


# --- simulation
@dataclass(order=True)
class _Run:
    order: int
    waves: deque[list[float]]
    open: int = 0


_Tasks = list[tuple[_Run, float]]


class Simulation:
    """One campaign of events: see above."""

    def __init__(self, programs: list[Recorded], workers: int, overhead_s: float,
                 driver_s: float) -> None:  # fmt: skip
        drawn = random.Random(0).choices(programs, k=_EACH * workers)
        self._later = deque(sorted(drawn, key=lambda p: -p.size))
        self._workers, self._overhead_s, self._driver_s = workers, overhead_s, driver_s
        self._todo: dict[bool, _Tasks] = {False: [], True: []}  # searches; others
        self._left = self._tasks = sum(len(w) for p in drawn for w in p.waves)
        self._work = sum(sum(w) for p in drawn for w in p.waves)
        self._busy = self._with_executor = 0
        self._queued: deque[_Tasks] = deque()  # with the executor, no worker yet
        self._events: list[tuple[float, int, _Tasks, _Tasks]] = []  # done, left
        self._scheduler = 0.0
        self._bundles = self._begun = 0
        self._recent_s = 2.0

    def run(self) -> Row:
        """The whole of it."""
        now = driver = 0.0
        answers: deque[tuple[float, _Tasks]] = deque()
        self._fill(now)
        while self._events or answers:
            if answers and (not self._events or max(driver, answers[0][0]) <= self._events[0][0]):
                came, bundle = answers.popleft()
                now = driver = max(driver, came) + self._driver_s * len(bundle)
                self._with_executor -= 1
                for run, seconds in bundle:
                    self._recent_s += (seconds - self._recent_s) / max(8.0, self._workers / 2)
                    self._left -= 1
                    run.open -= 1
                    self._advance(run)
            else:
                now, _, bundle, rest = heapq.heappop(self._events)
                self._busy -= 1
                for run, seconds in rest:
                    self._wait(run, seconds)
                answers.append((now, bundle))
            self._fill(now)
        return {"part": "simulation", "workers": self._workers, "tasks": self._tasks,
                "bundles": self._bundles, "mean_task_s": self._work / self._tasks,
                "makespan_s": now, "efficiency": self._work / (self._workers * now)}  # fmt: skip

    def _advance(self, run: _Run) -> None:
        if run.open == 0 and run.waves:
            wave = run.waves.popleft()
            run.open = len(wave)
            for seconds in wave:
                self._wait(run, seconds)

    def _wait(self, run: _Run, seconds: float) -> None:
        heapq.heappush(self._todo[not run.waves], (run, seconds))

    def _fill(self, now: float) -> None:
        running = sum(len(b) for b in self._queued) + sum(len(e[2]) for e in self._events)
        size = bundle_size(self._recent_s, self._left - running, self._workers)
        while self._with_executor < 2 * self._workers:
            while len(self._todo[False]) < size and self._later:
                self._begun += 1
                self._advance(_Run(self._begun, deque(self._later.popleft().waves)))
            todo = self._todo[False] or self._todo[True]
            if not todo:
                break
            self._queued.append([heapq.heappop(todo) for _ in range(min(size, len(todo)))])
            self._with_executor += 1
        while self._queued and self._busy < self._workers:
            bundle = self._queued.popleft()
            self._busy += 1
            self._bundles += 1
            self._scheduler = max(self._scheduler, now) + _SCHEDULER_S
            seconds, done = self._overhead_s, 0
            while done < len(bundle) and (done == 0 or seconds <= self._overhead_s + BUNDLE_S):
                seconds += bundle[done][1]
                done += 1
            event = (self._scheduler + seconds, self._bundles, bundle[:done], bundle[done:])
            heapq.heappush(self._events, event)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--parts", default="batch,overhead,simulation")
    parser.add_argument("--json", default="", metavar="OUT")
    parser.add_argument("--store", default="", help="a campaign's, whose times are simulated")
    parser.add_argument("--group", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.group:
        print(to_json(run_group(json.load(sys.stdin), options.group, options.measure), None))
        return
    known: Row = {}
    path = Path(options.json) if options.json else None
    if path is not None and path.exists():
        known = json.loads(path.read_text())
    rows = {k: v for k, v in known.items() if k in ("batch", "overhead", "simulation", "recorded")}
    parts = options.parts.split(",")
    if "batch" in parts:
        rows["batch"], rows["recorded"] = efficiency(options.programs)
    if "overhead" in parts:
        makers: dict[str, Callable[[], TaskExecutor]] = {
            "local": lambda: LocalExecutor(1),
            "dask": lambda: DaskExecutor(workers=1),
            "ray": lambda: RayExecutor(workers=1),
        }
        rows["overhead"] = [overhead(name, make()) for name, make in makers.items()]
    if options.store:
        rows["recorded"] = recorded_in(FolderStore(Path(options.store)))
        rows["recorded_programs"] = len(rows["recorded"])
    if "simulation" in parts:
        dask = next(r for r in rows["overhead"] if r["executor"] == "dask")
        rows["simulation"] = [
            Simulation([Recorded(*p) for p in rows["recorded"]], workers,
                       dask["overhead_ms"] / 1e3, rows["batch"]["driver_ms"] / 1e3).run()
            for workers in (1, 2, 10, 100, 250, 1000)
        ]  # fmt: skip
    for part in ("batch", "overhead", "simulation"):
        print(to_json(rows.get(part), None))
    if path is not None:
        rows |= {"suite": "fleet", "date": time.strftime("%Y-%m-%d"),
                 "machine": machine_description()}  # fmt: skip
        path.write_text(to_json(rows, None) + "\n")


if __name__ == "__main__":
    main()
