"""A campaign: programs become tasks, tasks entries, entries results.

Its only state is the store. A task whose answer is there is not asked for again, so a campaign that
was killed goes on where it was, with other workers if need be.
"""

from __future__ import annotations

import heapq
import math
import queue
import time
from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from tessera.errors import Error, IoError
from tessera.fleet.executors import LocalExecutor, TaskExecutor
from tessera.fleet.locks import searching
from tessera.fleet.messages import Request, read_answer
from tessera.fleet.plan import Liar, Plan, ProgramPlan, Settings
from tessera.fleet.progress import Outcome, Progress
from tessera.graph import Graph
from tessera.store.entry import Entry, RefusedError
from tessera.store.receive import Claim, refusing
from tessera.store.stores import Store

_AHEAD = 2  # bundles for each worker that are with the executor
_SHARES, _LARGEST = 4, 32  # bundles for each worker that the rest is cut into; tasks of one
_POLL_S = 0.5
_UNWRITTEN = 32  # answers, at most
_ORDER = ("search", "prepare", "measure")


class Named(NamedTuple):
    """A program of a campaign."""

    name: str
    graph: Graph


@dataclass
class _Run:
    order: int  # of programs, as they were begun
    plan: ProgramPlan
    steps: Plan
    answers: dict[str, Entry] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    over: bool = False


@dataclass
class _Job:
    request: Request
    runs: list[_Run]
    copies: int = 0  # with workers, now and before

    def __lt__(self, other: _Job) -> bool:  # as heaps ask
        return self.runs[0].order < other.runs[0].order


@dataclass
class _Bundle:
    """What a worker was asked to do."""

    jobs: list[_Job]
    since: float
    late: bool = False  # and asked for elsewhere, `since` then


class Campaign:
    """Tunes programs with the workers of an executor; `run` returns what became of each."""

    def __init__(self, programs: Iterable[Named], settings: Settings, store: Store,
                 executor: TaskExecutor, progress: Progress | None = None) -> None:  # fmt: skip
        # The largest first, so that none of them is left for the end.
        self._later = deque(sorted(programs, key=lambda p: -program_size(p.graph)))
        self._settings, self._store, self._executor = settings, store, executor
        self.progress = progress or Progress()
        self.progress.programs = len(self._later)
        self._jobs: dict[str, _Job] = {}
        self._waiting: dict[str, list[_Job]] = {task: [] for task in _ORDER}  # heaps
        self._elsewhere: dict[str, _Job] = {}  # of other shards
        self._running: dict[Future[list[str]], _Bundle] = {}
        self._answered: queue.SimpleQueue[Future[list[str]]] = queue.SimpleQueue()
        self._faults: Counter[str] = Counter()  # by task
        self._heard = time.monotonic()  # of a task of another shard
        self._answered_at = time.monotonic()
        self._looked = 0.0
        self._manned_at = math.inf  # the first worker is waited for
        self._recent_s = 2.0  # of a task, the mean of the last few
        self._writers = ThreadPoolExecutor(4)  # disks take milliseconds to be sure of a file
        self._writes: deque[Future[None]] = deque()
        self._open = 0

    def run(self) -> list[Outcome]:
        """Works until all programs are through; what is done is in the store at any time."""
        try:
            while self._later or self._open:
                if time.monotonic() - self._looked > _POLL_S:
                    self._looked = time.monotonic()
                    self._count_workers()
                    self._remind()
                    self._look_elsewhere()
                self._fill()
                if self._running or not self._answered.empty():
                    self._collect()
                elif not self._ready() and self._open:  # for other shards
                    time.sleep(_POLL_S)
        finally:
            self._writers.shutdown()
            self._executor.close()
        for write in self._writes:
            write.result()
        return self.progress.outcomes

    def _count_workers(self) -> None:
        """Who come and go; the campaign ends where all have been gone for long."""
        self.progress.workers = self._executor.workers
        if self.progress.workers:
            self._manned_at = time.monotonic()
        elif time.monotonic() - self._manned_at > self._settings.patience:
            raise IoError(f"no worker was left for {self._settings.patience:g} s; the same command "
                          "goes on from here once there are some")  # fmt: skip

    def _fill(self) -> None:
        """Gives the executor what it can take: searches first, so that measuring, which is done
        alone, holds up nobody."""
        workers = self.progress.workers
        most = _AHEAD * workers if workers > 1 else 1
        while len(self._running) < most:
            while len(self._waiting["search"]) < self._bundle("search") and self._later:
                self._begin(self._later.popleft())
            jobs = self._next()
            if not jobs:
                return
            self._submit(jobs)

    def _next(self) -> list[_Job]:
        """What one worker does next; what failed before goes alone, so that others do not fail
        with it."""
        searches = bool(self._waiting["search"]) or any(
            bundle.jobs[0].request.task != "measure" for bundle in self._running.values()
        )
        for task in _ORDER:
            waiting, jobs = self._waiting[task], list[_Job]()
            if task == "measure" and searches and not self._executor.apart:
                continue
            while waiting and len(jobs) < self._bundle(task):
                alone = waiting[0].copies > 0 or self._faults[waiting[0].request.key] > 0
                if not (alone and jobs):
                    jobs.append(heapq.heappop(waiting))
                if alone:
                    break
            if jobs:
                return jobs
        return []

    def _bundle(self, task: str) -> int:
        left = self.progress.left() - sum(len(b.jobs) for b in self._running.values())
        return 1 if task == "measure" else bundle_size(self._recent_s, left, self.progress.workers)

    def _wait(self, job: _Job) -> None:
        """The tasks of large programs come first; those of their later waves, too."""
        heapq.heappush(self._waiting[job.request.task], job)

    def _ready(self) -> bool:
        return any(self._waiting.values()) or bool(self._later)

    def _submit(self, jobs: list[_Job]) -> None:
        for job in jobs:
            job.copies += 1
        submit = self._executor.submit
        if self._faults[jobs[0].request.key] >= self._settings.tries - 1:
            submit = LocalExecutor().submit  # whom we trust
        future = submit(jobs[0].request.task, [job.request.text for job in jobs])
        self._running[future] = _Bundle(jobs, time.monotonic())
        future.add_done_callback(self._answered.put)

    def _begin(self, program: Named) -> None:
        self.progress.begun += 1
        try:
            plan = ProgramPlan(program.name, program.graph, self._settings)
        except Error as error:
            self.progress.finished(Outcome(program.name, why=error.message))
            return
        self.progress.planned += plan.tasks()
        self._open += 1
        self._advance(_Run(self.progress.begun, plan, plan.run()))

    def _advance(self, run: _Run) -> None:
        """Goes on with a program whose answers are all there."""
        while not run.over and not run.missing:
            try:
                with refusing():
                    requests = run.steps.send(run.answers) if run.answers else next(run.steps)
            except StopIteration as stop:
                self._finish(run, _outcome(run.plan, stop.value))
                return
            except Liar as liar:
                requests = self._distrust(run, liar)
            except Error as error:
                self._finish(run, Outcome(run.plan.name, why=error.message))
                return
            run.answers = {}
            run.missing = {request.key for request in requests}
            for request in requests:
                self._ask(run, request)

    def _distrust(self, run: _Run, liar: Liar) -> list[Request]:
        """Forgets answers that were wrong and begins again; the others are in the store."""
        for key in set(liar.keys):
            self._store.delete(key)
            self._faults[key] += 1
            line = f"{run.plan.name}: a worker's program is not equal; asked again"
            self.progress.trouble(line, refused=True)
        run.steps = run.plan.run()
        return next(run.steps)

    def _ask(self, run: _Run, request: Request) -> None:
        if request.key in self._jobs:
            self._jobs[request.key].runs.append(run)
            return
        entry = self._kept(request)
        if entry is not None:
            self.progress.kept += 1
            run.answers[request.key] = entry
            run.missing.discard(request.key)
            return
        job = self._jobs[request.key] = _Job(request, [run])
        if self._executor.owns(request.key):
            self._wait(job)
        else:
            self._elsewhere[request.key] = job

    def _kept(self, request: Request) -> Entry | None:
        """An answer in the store, if it is one to this request."""
        entry = self._store.get(request.key)
        try:
            if entry is None or (request.task == "measure" and entry["failed"]):
                return None
            return self._sound(request, entry.text)
        except RefusedError as error:
            self.progress.trouble(f"in the store: {error.message}", refused=True)
            return None

    def _collect(self) -> None:
        """Takes the answers of one bundle."""
        try:
            future = self._answered.get(timeout=_POLL_S)
        except queue.Empty:
            return
        self._answered_at = time.monotonic()
        if future not in self._running:
            return  # too late
        jobs, texts = self._running.pop(future).jobs, list[str]()
        try:
            texts = future.result()
            if not 0 < len(texts) <= len(jobs):
                raise RefusedError(f"{len(texts)} answers to {len(jobs)} questions")
            lost, refused = "", False
        except RefusedError as error:
            lost, refused = f"refused: {error.message}", True
        except (Exception, CancelledError) as error:
            what = " ".join(str(error).split())[:200] or type(error).__name__
            lost, refused = f"lost: {what}", False
        for i, job in enumerate(jobs):
            if job.request.key not in self._jobs:
                continue  # a second copy of it
            if lost:
                self._again(job, lost, refused)
            elif i < len(texts):
                self._take(job, texts[i])
            else:  # there was no time for it
                job.copies -= 1
                self._wait(job)

    def _take(self, job: _Job, text: str) -> None:
        try:
            entry = self._sound(job.request, text)
        except RefusedError as error:
            self._again(job, f"refused: {error.message}", refused=True)
        else:
            self.progress.answered(entry)
            few = max(8.0, self.progress.workers / 2)
            self._recent_s += (entry.number("seconds") - self._recent_s) / few
            self._keep(entry)
            self._deliver(job, entry)

    @refusing()
    def _sound(self, request: Request, text: str) -> Entry:
        """An answer; refuses a result that contradicts itself. Those of the share that is checked
        are proved again."""
        entry = read_answer(request, text)
        if entry["task"] == "measure" and not entry["failed"]:
            checked = int(entry.key[:8], 16) / 2**32 < self._settings.check
            with searching():
                Claim.of(Entry.parse(entry["result"]), checked)
        return entry

    def _keep(self, entry: Entry) -> None:
        if entry["task"] == "measure":
            if entry["failed"]:
                return  # by noise, it may be: worth another try
            self._writes.append(self._writers.submit(self._store.put, Entry.parse(entry["result"])))
        self._writes.append(self._writers.submit(self._store.put, entry))
        while len(self._writes) > _UNWRITTEN:
            self._writes.popleft().result()

    def _deliver(self, job: _Job, entry: Entry) -> None:
        del self._jobs[job.request.key]
        for run in job.runs:
            run.answers[entry.key] = entry
            run.missing.discard(entry.key)
            self._advance(run)

    def _again(self, job: _Job, why: str, refused: bool) -> None:
        key, name = job.request.key, job.runs[0].plan.name
        self.progress.trouble(f"{name}: {job.request.task} {why}", refused)
        self._faults[key] += 1 if refused else 0
        if any(other is job for bundle in self._running.values() for other in bundle.jobs):
            return  # another copy of it is under way
        if job.copies < self._settings.tries:
            self._wait(job)
            return
        del self._jobs[key]
        for run in job.runs:
            if not run.over:
                self._finish(run, Outcome(run.plan.name, why=why))

    def _remind(self) -> None:
        """Asks again, elsewhere, for what has taken too long; the first worker is waited for until
        it is there, or nobody answers any more."""
        now, patience = time.monotonic(), self._settings.patience
        silent = self._answered.empty() and now - self._answered_at > patience
        for future, bundle in list(self._running.items()):
            missing = [job for job in bundle.jobs if job.request.key in self._jobs]
            late = now - bundle.since > patience and not future.done()
            if bundle.late and (not missing or (late and silent)):
                del self._running[future]
                for job in missing:
                    self._again(job, "lost: no answer", refused=False)
            elif late and not bundle.late:
                bundle.late, bundle.since = True, now
                for job in missing:
                    if job.copies < self._settings.tries:
                        name, task = job.runs[0].plan.name, job.request.task
                        line = f"{name}: {task} is late; asked again elsewhere"
                        self.progress.trouble(line, refused=False)
                        self._submit([job])

    def _look_elsewhere(self) -> None:
        """Takes what other shards have done; what nobody does for long is done here."""
        for key, job in list(self._elsewhere.items()):
            if (entry := self._kept(job.request)) is not None:
                self._heard = time.monotonic()
                del self._elsewhere[key]
                self.progress.kept += 1
                self._deliver(job, entry)
        idle = not self._running and not self._ready()
        if self._elsewhere and idle and time.monotonic() - self._heard > self._settings.wait:
            key, job = next(iter(self._elsewhere.items()))
            del self._elsewhere[key]
            self._wait(job)

    def _finish(self, run: _Run, outcome: Outcome) -> None:
        run.over = True
        self._open -= 1
        self.progress.finished(outcome)


def bundle_size(recent_s: float, left: float, workers: int) -> int:
    """How many of the tasks that are left go to one worker at once, where they have taken so long
    of late: a share that shrinks towards the end (guided self-scheduling, Polychronopoulos and
    Kuck, 1987), and a second of work."""
    share = left / (_SHARES * max(1, workers))
    return max(1, min(_LARGEST, int(min(1 / max(recent_s, 1e-9), share))))


def program_size(graph: Graph) -> int:
    """About how much there is to search and prove."""
    shapes = [[n for n in shape if isinstance(n, int)] for _, shape in graph.input_types().values()]
    return len(graph.ops) * sum(map(math.prod, shapes))


def _outcome(plan: ProgramPlan, measured: Entry) -> Outcome:
    winners = tuple(winner.told["graph"] for winner in plan.winners)
    if measured["failed"] or measured["task"] != "measure":
        return Outcome(plan.name, why=measured["failed"], winners=winners)
    result = Entry.parse(measured["result"])
    return Outcome(
        plan.name, result.number("speedup") if result.improved else 1.0, result.improved,
        result["origin"] if result.improved else "", result.number("original_s"),
        result.number("seconds"), key=result.key, winners=winners,
    )  # fmt: skip
