"""Which is faster, a program of ours or what runs without it: calls tell, one run each."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tessera.types import Values

_FEW, _MOST = 4, 12  # timed calls of each side: where one is far ahead, and at most
_TURN = 3  # calls in a row; the first finds the other side in the caches, and tells nothing
_FAR = 1.5


class CallRace:
    """A program against what it was made of, run by `other`, or the program `before` it, in turns:
    results are right whoever computes them, nothing runs twice, and what is timed is what users
    wait for."""

    def __init__(self, before: Any = None, other: str = "PyTorch's own operators") -> None:
        self.before = before
        self._other = other if before is None else "without it"
        self.won: bool | None = None  # None: not known yet
        self.figures = ""
        self._ns: tuple[list[int], list[int]] = ([], [])
        self._calls = 0

    def run(
        self, ours: Callable[[Values], Any], theirs: Callable[..., Any], args: Values, counts: bool
    ) -> Any:
        """The next call's results; `counts`: nothing of ours is at work beside it."""
        turn, at = divmod(self._calls, _TURN)
        side, self._calls = turn % 2, self._calls + 1
        start = time.perf_counter_ns()
        made = theirs(*args) if side else ours(args)
        if counts and at:
            self._ns[side].append(time.perf_counter_ns() - start)
            if side:
                self._decide()
        return made

    def _decide(self) -> None:
        timed = min(map(len, self._ns))
        if timed < _FEW:
            return
        ours, theirs = map(min, self._ns)
        if timed >= _MOST or max(ours, theirs) > _FAR * min(ours, theirs):
            self.figures = f"{ours / 1e3:.0f} µs a call, {self._other} {theirs / 1e3:.0f}"
            self.won = ours <= theirs
