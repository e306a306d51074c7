"""Graphs that are more than one part of ours, raced as a whole."""

from __future__ import annotations

from torch.fx.node import Argument

from tessera.call_race import CallRace
from tessera.torch_explain import Report
from tessera.torch_parts import BEHIND, Key
from tessera.torch_programs import Results
from tessera.types import Function

_MOST_RACES = 64  # one for each set of sizes


class Whole:
    """Such a graph, called: once its parts have settled, calls race it with the graph as the user
    wrote it, where an operator may be faster than what it is decomposed to, and arguments are
    written to in place."""

    def __init__(self, fused: Function, plain: Function, report: Report) -> None:
        self._fused, self._plain, self._report = fused, plain, report
        self._sizes = any(p._dynamic for p in report.parts)
        self._races: dict[Key, CallRace] = {}

    def __call__(self, *args: Argument) -> Results:
        key = tuple(a for a in args if isinstance(a, int)) if self._sizes else None
        race = self._races.get(key)
        if race is None:
            if len(self._races) < _MOST_RACES and all(p.settled for p in self._report.parts):
                self._races[key] = CallRace()
            return self._fused(*args)
        if race.won is not None:
            return self._fused(*args) if race.won else self._plain(*args)
        made = race.run(lambda a: self._fused(*a), self._plain, args, not BEHIND.jobs)
        if race.won is False and not self._sizes:  # at others it may win
            self._report.lost = f"it takes {race.figures}"
        return made
