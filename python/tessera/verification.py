"""Whether two programs compute the same: `verify`, and the `Verdict` that it gives."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from tessera import _core
from tessera.errors import UsageError
from tessera.graph import Graph
from tessera.options import (
    Level,
    Options,
    require_budget,
    require_level,
    require_seed,
    require_threads,
)
from tessera.types import Fields


@dataclass(frozen=True)
class Verdict:
    """Whether two programs are equal; truthy only when proved so."""

    name: str  # equal, refuted, unknown
    text: str
    certificate: _core.Certificate | None = None
    counterexample: Fields | None = None
    reason: str = ""

    @classmethod
    def of(cls, record: Fields) -> Verdict:
        return cls(
            name=record["verdict"],
            text=record["text"],
            certificate=record.get("certificate"),
            counterexample=record.get("counterexample"),
            reason=f"{record['reason']}: {record['what']}" if "reason" in record else "",
        )

    @property
    def second_opinion(self) -> str:
        """ "agrees: …" or "cannot tell: …", with the reason; "" where none was asked for."""
        return "" if self.certificate is None else str(self.certificate.record()["second_opinion"])

    @property
    def equal(self) -> bool:
        return self.name == "equal"

    @property
    def refuted(self) -> bool:
        return self.name == "refuted"

    @property
    def unknown(self) -> bool:
        return self.name == "unknown"

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        return self.text


def verify(a: Graph, b: Graph, *, level: Level = "close", seed: int | None = None, threads: int = 0,
           second_opinion: bool = False, budget: float | None = None,
           progress: Callable[[str], None] | None = None,
           accept: Literal["proved", "tested"] = "proved") -> Verdict:  # fmt: skip
    """Whether `b` computes what `a` does: equal with certificate, refuted with inputs, or unknown.

    `second_opinion` also asks a verifier that argues from the operators' laws (and Z3, if there is
    one: `pip install z3-solver`); `Verdict.second_opinion` tells "agrees" or "cannot tell", and
    where it disagrees the verdict is unknown.

    Equal means proved on every branch. With accept="tested" it is also said of programs that were
    only tried, on both sides of every decision; their certificate says so and states no error.

    `level` is what "computes what `a` does" means: "bitwise" the same bits, NaN where it is NaN,
    by the same operations; "close" the same numbers, as accurate wherever `a` is finite and
    accurate; "fast" the same numbers, as accurate at inputs of ordinary magnitudes.

    `budget` is in seconds of wall time; when it is spent, or Ctrl-C is pressed, the verdict is
    unknown with reason "time" or "cancelled" and tells what was under way. `progress` is told
    each step.

    >>> g, h = Graph("g"), Graph("h")
    >>> for graph, factor in ((g, 2.0), (h, 3.0)):
    ...     _ = graph.output(graph.input("x", (4, 4)) * factor)
    >>> bool(verify(g, g)), verify(g, h).name
    (True, 'refuted')
    """
    for program in (a, b):
        if not isinstance(program, Graph):
            raise UsageError(f"verify compares Graphs, not {program!r}; ts.trace makes one")
    require_level(level)
    require_threads(threads)
    require_seed("seed", seed)
    require_budget(budget)
    if why := other_arrays(a, b):
        return Verdict("unknown", f"unknown\nreason: arrays\n{why}\n", reason=f"arrays: {why}")
    return Verdict.of(
        _core.verify(a.core, b.core, level, seed, threads, second_opinion, _z3(), budget,
                     progress, accept == "tested", a.asks_for_nan)
    )  # fmt: skip


def other_arrays(a: Graph, b: Graph) -> str:
    """Says which array that comes with both programs is another in each; "" where none is."""
    mine, its = a.weights | a.arrays, b.weights | b.arrays
    for x, y in zip(a.input_types(), b.input_types(), strict=False):
        if x in mine and y in its and mine[x] is not its[y]:
            one, other = (np.ascontiguousarray(v) for v in (mine[x], its[y]))
            alike = one.dtype == other.dtype and one.shape == other.shape  # else refuted as such
            if alike and one.tobytes() != other.tobytes():
                return (f"the array that comes with the programs as {x} has other values in the "
                        "second; compare them with it as an argument")  # fmt: skip
    return ""


def verify_by(options: Options, a: Graph, b: Graph, budget: float | None = None) -> Verdict:
    """`verify` at the options' level, on as many threads; Ctrl-C raises KeyboardInterrupt."""
    verdict = verify(a, b, level=options.level, threads=options.threads, budget=budget)
    if verdict.reason.startswith("cancelled"):
        raise KeyboardInterrupt
    return verdict


def _z3() -> str:
    """Z3's executable beside this Python, as z3-solver installs it; "" to look for it on PATH."""
    path = Path(sys.executable).parent / "z3"
    return str(path) if "TESSERA_Z3" not in os.environ and path.is_file() else ""
