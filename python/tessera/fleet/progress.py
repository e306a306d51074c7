"""How a campaign is getting on: counts, and what they say about the time that is left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tessera.store.entry import Entry


@dataclass(frozen=True)
class Outcome:
    """What became of one program."""

    name: str
    speedup: float = 1.0
    improved: bool = False
    origin: str = ""  # the engine whose program won
    original_s: float = 0.0
    seconds: float = 0.0
    why: str = ""  # where it failed
    key: str = ""  # of its result in the store
    winners: tuple[str, ...] = ()  # programs that raced, before they did

    def __str__(self) -> str:
        if self.improved:
            return f"{self.name}: {self.speedup:.2f}x by {self.origin}"
        found = "the original is the fastest" if self.original_s else "not measured"
        return f"{self.name}: {self.why or found}"


@dataclass
class Progress:
    """Counted by the campaign, shown by the command line; `tell` takes a line at a time."""

    programs: int = 0
    workers: int = 0
    planned: int = 0  # tasks of programs that were begun
    begun: int = 0
    kept: int = 0  # tasks whose answers were in the store
    done: Counter[str] = field(default_factory=Counter)  # by task
    by_worker: Counter[str] = field(default_factory=Counter)
    spent: Counter[str] = field(default_factory=Counter)  # seconds of workers, by task
    refused: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    tell: Callable[[str], None] = lambda line: None
    start: float = field(default_factory=time.monotonic)

    def answered(self, entry: Entry) -> None:
        """A worker did a task."""
        self.done[entry["task"]] += 1
        self.by_worker[entry["worker"]] += 1
        self.spent[entry["task"]] += entry.number("seconds")  # type: ignore[assignment]

    def finished(self, outcome: Outcome) -> None:
        """A program is through."""
        self.outcomes.append(outcome)
        self.tell(f"{len(self.outcomes)}/{self.programs} {outcome}")

    def trouble(self, line: str, refused: bool) -> None:
        """An answer was refused, or a worker lost; the task is asked for again."""
        (self.refused if refused else self.lost).append(line)
        self.tell(line)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    @property
    def throughput(self) -> float:
        """Tasks a second, those in the store left out."""
        return sum(self.done.values()) / max(1e-9, self.elapsed)

    @property
    def best(self) -> Outcome | None:
        return max((o for o in self.outcomes if o.improved), key=lambda o: o.speedup, default=None)

    def left(self) -> float:
        """About how many tasks there still are."""
        expected = self.planned / max(1, self.begun) * self.programs
        return max(0.0, expected - self.kept - sum(self.done.values()))

    def left_s(self) -> float | None:
        """Seconds that the rest will take at this pace; None before anybody knows."""
        return self.left() / self.throughput if self.done and self.begun else None
