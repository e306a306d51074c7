"""Optimisation in a process of its own, at low priority: calls never wait for it.

The process is given a traced program instead of the function, and does what the caller would:
searches, proves, compiles, races. What it finds is in the cache, from where the caller takes it;
who is to run is its answer.
"""

from __future__ import annotations

import contextlib
import dataclasses

from tessera import errors
from tessera import options as chosen
from tessera.contest import Key
from tessera.direct_calls import layout
from tessera.graph import Graph
from tessera.options import Options
from tessera.race_processes import Child, LostError
from tessera.types import Values

_START_S = 15.0


class Helper:
    """The process, as long as it works."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._stopped = False

    def optimise(
        self, graph: Graph, arrays: Values, options: Options, key: Key | None,
        cache_dir: str | None = None,
    ) -> tuple[str, bool]:  # fmt: skip
        """Warms the cache; who is to run, as contest.py remembers it (without a `key` nobody is
        asked), and whether the program was improved. LostError where it dies."""
        order = {"graph": str(graph), "asks_for_nan": graph.asks_for_nan,
                 "key": key, "options": dataclasses.asdict(options),
                 "patterns": chosen.registered_patterns, "cache_dir": cache_dir,
                 "strides": [a.strides if layout(a) == 2 else None for a in arrays]}  # fmt: skip
        self._child = child = Child("tessera", "all", "background_process")
        try:
            if self._stopped:
                raise LostError("stopped")
            answer, _ = child.ask(order, arrays, 1.2 * options.budget + _START_S)
        finally:
            self._child = None
            child.close()
        if "failed" in answer:
            kind = getattr(errors, answer["kind"], None)
            raise kind(answer["said"]) if kind else LostError(answer["failed"])
        return str(answer["choice"]), bool(answer["improved"])

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        self._stopped = True
        if (child := self._child) is not None:
            with contextlib.suppress(OSError):
                child.terminate()

    def abandon(self) -> None:
        """Leaves it to the process whose child it is."""
        if (child := self._child) is not None:
            child.abandon()
        self._child = None
