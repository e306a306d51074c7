"""Random NumPy programs with state outside that changes between calls, views, writes and effects,
decorated and not: they have to agree in values, aliasing, effects and errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from bench.trust.work import Tally


def run(count: int, seed: int) -> dict[str, Any]:
    """`count` programs."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))
    from random_state import check

    tally = Tally()
    for number in range(100_000 * seed, 100_000 * seed + count):
        problem, followed = check(number)
        tally.add("traced" if followed else "left to NumPy", str(number), problem)
    return tally.row()
