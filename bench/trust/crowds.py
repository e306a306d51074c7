"""Two to eight processes at once on one empty cache."""

from __future__ import annotations

import os
import random
import time
from typing import Any

from bench.trust.work import SECONDS, Tally, child, fate, kill, scratch, start, work


def run(count: int, seed: int) -> dict[str, Any]:
    """`count` crowds."""
    rng, tally = random.Random(seed), Tally()
    for _ in range(count):
        size = rng.randrange(2, 9)
        with scratch() as folder:
            (folder / "cache").mkdir(mode=0o700)
            members = []
            for i in range(size):
                own = folder / str(i)
                own.mkdir()
                (own / "cache").symlink_to(folder / "cache")
                members.append((own, start(work, own)))
            end = time.monotonic() + 4 * SECONDS
            while members and time.monotonic() < end:
                for own, pid in [*members]:
                    done, status = os.waitpid(pid, os.WNOHANG)
                    if done:
                        members.remove((own, pid))
                        tally.add(f"{size} processes", own.name, fate(status, own))
                time.sleep(0.02)
            for own, pid in members:
                kill(pid)
                tally.add(f"{size} processes", own.name, "hangs")
            tally.add("afterwards", "", child(work, folder))
    return tally.row()
