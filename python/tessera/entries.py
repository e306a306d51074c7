"""What runs calls of one form, and how that is told."""

from __future__ import annotations

from dataclasses import dataclass

from tessera import _core
from tessera.frontends.environment import Environment
from tessera.result import Result


@dataclass
class Entry:
    """A program for one form of call; without a result, the original runs."""

    environment: Environment
    result: Result | None = None
    direct: _core.Call | None = None  # for calls with plain arrays and constants only
    floats: bool = False  # floats are arguments, not constants
    seen: bool = False  # whether the original has run once, and its results were of the same kind
    changes: int = 0  # of what it reads from outside
    final: bool = False  # whatever changes
    pending: bool = False  # its program is being made in the background
    stale: bool = False  # nobody waits for that any more
    why: str = ""  # there is no result
    form: str = ""  # of its calls, for a reader
    settled: bool = False  # whether there is a direct call or none can be

    @property
    def failed(self) -> bool:
        """Whether floats turned out to be no arguments of a program."""
        return self.floats and self.result is None and not self.pending

    def status(self) -> Status:
        result = self.result
        if result is None:
            return Status(self.form, "original", self.why, None)
        choice = result.choice
        runs = "original" if choice.runs == "function" else choice.runs
        why = "too noisy to be sure" if choice.undecided or choice.provisional else ""
        if runs == "original" and not why:
            why = "nothing proved is faster"
        took = choice.seconds
        known = "function" in took and choice.runs in took
        return Status(self.form, runs, why, took["function"] / took[choice.runs] if known else None)


@dataclass(frozen=True)
class Status:
    """What calls of one form run: "original" (why), "kernel" or "source", and how much faster than
    the original that was in its race (None: there was none, or it does not run yet)."""

    form: str
    runs: str
    why: str
    speedup: float | None

    def __str__(self) -> str:
        gain = "" if self.speedup is None else f", {self.speedup:.3g}x"
        return f"{self.form}: {self.runs}{gain}" + (f" ({self.why})" if self.why else "")
