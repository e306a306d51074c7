"""kill -9 at random instants of a first run; a later run finds nothing wrong and loses nothing."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from bench.trust.work import Tally, child, kill, scratch, start, work


def run(count: int, seed: int) -> dict[str, Any]:
    """`count` kills; caches are kept for several, so that each stage of filling is met."""
    rng, tally = random.Random(seed), Tally()
    with scratch() as first:
        (first / "cache").mkdir(mode=0o700)
        begin = time.monotonic()
        tally.add("no kill", "", child(work, first))
        whole = time.monotonic() - begin
    with scratch() as parent:
        folder = parent
        for number in range(count):
            if number % 5 == 0:
                folder = parent / str(number)
                (folder / "cache").mkdir(mode=0o700, parents=True)
            pid = start(work, folder)
            instant = rng.random() * whole / (1 + number % 5)
            time.sleep(instant)
            kill(pid)
            came = child(work, folder) if number % 5 == 4 else ""
            tally.add("kill", f"after {instant:.2f} s", came or half_written(folder))
    return tally.row(seconds_of_a_run=round(whole, 1))


def half_written(folder: Path) -> str:
    """Whether a file that has its final name is not whole."""
    for path in (folder / "cache" / "index").glob("*"):
        if ".tmp" not in path.name:
            digest, suffix, _ = path.read_text().split()
            if not (folder / "cache" / "objects" / f"{digest}{suffix}").exists():
                return f"{path.name} names what is not there"
    return ""
