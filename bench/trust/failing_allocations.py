"""The i-th allocation of C++ fails: right results, or MemoryError, and never a crash."""

from __future__ import annotations

import random
from typing import Any

from bench.trust.shim import arm, preloaded
from bench.trust.work import Tally, child, filled, scratch, work


def run(count: int, seed: int) -> dict[str, Any]:
    """`count` failures, at instants spread over a run by the logarithm of what came before."""
    return preloaded("bench.trust.failing_allocations", count, seed)


def tries(count: int, seed: int) -> dict[str, Any]:
    """In a process with the shim."""
    rng, tally = random.Random(seed), Tally(refusals=True)
    with scratch() as folder:
        filled(folder)
        for _ in range(count):
            at = int(10 ** rng.uniform(0, 6))

            def failing(at: int = at) -> None:
                arm(allocation=at)
                work()

            tally.add("allocation", str(at), child(failing, folder))
        tally.add("afterwards", "", child(work, folder))
    return tally.row()
