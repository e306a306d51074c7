"""What a fleet costs and gains: efficiency with two workers, overhead of a task, and a simulation.

    python -m bench.fleet [--programs 100] [--parts batch,overhead,simulation] [--json OUT]

`batch`: the time to search, prove and compile a batch of programs with two processes, against one
process that does the same tasks by itself. Both take turns, a group of programs at a time, with
empty caches, so that what else the machine does disturbs both. Efficiency is T1 / (2 T2). Racing is
done alone on a machine, so two workers cannot share it: its share of all time is told beside.

`overhead`: tasks of some milliseconds, one worker: the time of the campaign less that of the tasks,
by task; all is in it: the campaign's own work, the store (a file for each task), the executor.

`simulation`: discrete events, from the recorded times of the batch's tasks. Assumptions:
- Programs are drawn with replacement from the batch, eight for each worker; each is the recorded
  waves of tasks, and a wave begins when the one before is answered.
- Workers are alike, as fast as the one that was recorded, and do not slow each other down.
- A task that is not measured waits for any free worker; each costs it the measured overhead of Dask
  on top. Races take place on other machines, which are not counted: this is about efficiency of
  search, proof and compilation.
- Dask's scheduler hands out one task after another, a millisecond each, as its documentation says.
- One driver answers one task after another, each in the processor time that was measured for it,
  and keeps two tasks a worker with the executor, as the campaign does. It proves no results again
  (`--check 0`; whoever receives them does).
- `longer` 10: all tasks ten times as long, as those of larger programs; these are small ones.
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
from pathlib import Path
from statistics import median
from typing import Any

from bench import tunable
from tessera.files import to_json
from tessera.fleet.campaign import Campaign, Named
from tessera.fleet.executors import DaskExecutor, LocalExecutor, RayExecutor, TaskExecutor
from tessera.fleet.plan import Settings
from tessera.graph import Graph
from tessera.machine import machine_description
from tessera.options import Options
from tessera.store.entry import Entry
from tessera.store.stores import FolderStore

Row = dict[str, Any]
Waves = list[list[float]]
_STEPS, _KEEP, _GROUPS, _TINY = 500, 1, 2, 200
_EACH = 8  # programs for each simulated worker
_SCHEDULER_S = 1e-3  # of Dask's scheduler, for a task
_MOST = 40  # operators of a program of the batch


def batch(count: int) -> list[Named]:
    """Programs of the three suites, a third of each, spread evenly."""
    chosen = []
    for i, suite in enumerate(("stenso", "onnx-nodes", "outside")):
        some = [Named(f"{suite}/{n}", g) for n, g in tunable.suite(suite) if g.core.num_ops < _MOST]
        share = min(len(some), (count + i) // 3)
        chosen += [some[k * len(some) // share] for k in range(share)]
    return chosen


class Watched(LocalExecutor):
    """One process that does all tasks, and notes what each took."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = 0.0

    def submit(self, task: str, request: str) -> Future[str]:
        start = time.process_time()
        future = super().submit(task, request)
        self.inside += time.process_time() - start
        return future


def run_group(texts: list[tuple[str, str]], workers: int, measure: bool) -> Row:
    """In a process of its own: a group of programs, with an empty cache and an empty store."""
    programs = [Named(name, Graph.parse(text)) for name, text in texts]
    settings = Settings(Options(budget=10.0), steps=_STEPS, keep=_KEEP, measure=measure, check=0.0)
    with tempfile.TemporaryDirectory(prefix="tessera-fleet-") as folder:
        executor = LocalExecutor(workers) if workers > 1 else Watched()
        store = FolderStore(Path(folder) / "store")
        if workers > 1:  # their start is the machine's, not the campaign's
            probe = tiny(1)[0]
            plan = Campaign([probe], settings, FolderStore(Path(folder) / "probe"), _Open(executor))
            plan.run()
        campaign = Campaign(programs, settings, store, executor)
        cpu, start = time.process_time(), time.perf_counter()
        campaign.run()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        tasks = sum(campaign.progress.done.values())
        entries = list(store.list("proposals"))
        return {
            "seconds": seconds,
            "tasks": tasks,
            "task_s": sum(e.number("seconds") for e in entries),
            "alone_s": sum(e.number("alone_s") for e in entries),
            "driver_s": (cpu - (executor.inside if isinstance(executor, Watched) else 0)) / tasks,
            "failed": [f"{o.name}: {o.why}" for o in campaign.progress.outcomes if o.why],
            "programs": recorded({e.key: e for e in entries}),
        }


class _Open:
    """An executor that stays when a campaign is over."""

    def __init__(self, executor: TaskExecutor) -> None:
        self._executor = executor
        self.apart = False

    @property
    def workers(self) -> int:
        return self._executor.workers

    def submit(self, task: str, request: str) -> Future[str]:
        return self._executor.submit(task, request)

    def owns(self, key: str) -> bool:
        return True

    def close(self) -> None:
        return


def recorded(entries: dict[str, Entry]) -> list[Waves]:
    """For each program the seconds of its tasks, wave by wave."""
    found = []
    for last in (e for e in entries.values() if e["task"] == "prepare"):
        waves: Waves = []
        searches = [entries[key] for key in last["tasks"].split()]
        for wave in range(2):
            waves.append([e.number("seconds") for e in searches
                          if int(e["slice"].split()[0]) // 2 == wave])  # fmt: skip
        found.append([w for w in [*waves, [last.number("seconds")]] if w])
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


def efficiency(count: int) -> tuple[Row, list[Waves]]:
    """One process against two, group by group."""
    programs = batch(count)
    random.Random(0).shuffle(programs)
    texts = [(p.name, str(p.graph)) for p in programs]
    one, two, waves = list[Row](), list[Row](), list[Waves]()
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
def simulated(programs: list[Waves], workers: int, overhead_s: float, driver_s: float,
              longer: float = 1.0) -> Row:  # fmt: skip
    """One campaign of events: see above. `longer`: tasks so many times as long as recorded."""
    drawn = random.Random(0).choices(programs, k=_EACH * workers)
    todo: deque[tuple[int, float]] = deque()
    open_tasks = [0] * len(drawn)
    wave_of = [-1] * len(drawn)
    events: list[tuple[float, int, int]] = []  # a worker's answer: when, which, whose
    begun, number, now, driver, scheduler, work = 0, 0, 0.0, 0.0, 0.0, 0.0
    busy = with_executor = 0
    waiting: deque[tuple[int, float]] = deque()  # with the executor, no worker yet

    def next_wave(program: int) -> None:
        while open_tasks[program] == 0 and wave_of[program] + 1 < len(drawn[program]):
            wave_of[program] += 1
            tasks = drawn[program][wave_of[program]]
            open_tasks[program] = len(tasks)
            todo.extend((program, longer * s) for s in tasks)

    def fill(at: float) -> None:
        nonlocal begun, with_executor, busy, number, work, scheduler
        while with_executor < 2 * workers:
            while not todo and begun < len(drawn):
                next_wave(begun)
                begun += 1
            if not todo:
                break
            waiting.append(todo.popleft())
            with_executor += 1
        while waiting and busy < workers:
            program, seconds = waiting.popleft()
            busy += 1
            work += seconds
            number += 1
            scheduler = max(scheduler, at) + _SCHEDULER_S
            heapq.heappush(events, (scheduler + overhead_s + seconds, number, program))

    fill(0.0)
    answers: deque[tuple[float, int]] = deque()
    while events or answers:
        if answers and (not events or max(driver, answers[0][0]) + driver_s <= events[0][0]):
            came, program = answers.popleft()
            now = driver = max(driver, came) + driver_s
            with_executor -= 1
            open_tasks[program] -= 1
            next_wave(program)
        else:
            now, _, program = heapq.heappop(events)
            busy -= 1
            answers.append((now, program))
        fill(now)
    return {"part": "simulation", "workers": workers, "longer": longer, "programs": len(drawn),
            "tasks": number, "mean_task_s": work / number, "makespan_s": now,
            "efficiency": work / (workers * now)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--parts", default="batch,overhead,simulation")
    parser.add_argument("--json", default="", metavar="OUT")
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
    if "simulation" in parts:
        dask = next(r for r in rows["overhead"] if r["executor"] == "dask")
        rows["simulation"] = [
            simulated(rows["recorded"], workers, dask["overhead_ms"] / 1e3,
                      rows["batch"]["driver_ms"] / 1e3, longer)
            for longer in (1.0, 10.0)
            for workers in (1, 2, 10, 100, 300, 1000)
        ]  # fmt: skip
    for part in ("batch", "overhead", "simulation"):
        print(to_json(rows.get(part), None))
    if path is not None:
        rows |= {"suite": "fleet", "date": time.strftime("%Y-%m-%d"),
                 "machine": machine_description()}  # fmt: skip
        path.write_text(to_json(rows, None) + "\n")


if __name__ == "__main__":
    main()
