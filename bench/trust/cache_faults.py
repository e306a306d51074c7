"""Single bits flipped, files cut, emptied, swapped, replaced, in every kind of cache file."""

from __future__ import annotations

import random
import shutil
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench.trust.work import Tally, child, filled, scratch, work


def kind_of(path: Path) -> str:
    """Which kind of cache file this is."""
    folder = path.parent.name
    return f"{folder}/*{path.suffix}" if folder in ("objects", "learnt") else folder + (
        "/" + path.name if folder == "cache" else "")  # fmt: skip


def damage(data: bytes, rng: random.Random, other: bytes) -> tuple[str, bytes]:
    """What is done to a file's contents, and what is left."""
    way = rng.choice(["bit"] * 6 + ["cut"] * 3 + ["empty", "more", "zeros", "swapped"])
    if way == "bit" and data:
        at = rng.randrange(8 * len(data))
        return f"bit {at}", data[: at // 8] + bytes([data[at // 8] ^ 1 << at % 8]) + data[
            at // 8 + 1 :
        ]
    if way == "cut" and data:
        at = rng.randrange(len(data))
        return f"cut at {at}", data[:at]
    if way == "more":
        return way, data + rng.randbytes(rng.randrange(1, 200))
    if way == "zeros":
        at = rng.randrange(len(data) + 1)
        return f"zeros from {at}", data[:at] + bytes(len(data) - at)
    return (way, other) if way == "swapped" else ("empty", b"")


def run(count: int, seed: int) -> dict[str, Any]:
    """`count` faults, one at a time, in a cache that the work filled; the work is done again."""
    rng, tally = random.Random(seed), Tally()
    with scratch() as folder:
        whole = folder / "whole"
        filled(whole)
        files = sorted(p for p in (whole / "cache").rglob("*") if p.is_file())
        kinds: dict[str, list[Path]] = defaultdict(list)
        for path in files:
            kinds[kind_of(path)].append(path)
        for number in range(count):
            kind = sorted(kinds)[number % len(kinds)]
            path = rng.choice(kinds[kind])
            copy = folder / f"try{number}"
            shutil.copytree(whole, copy)
            target = copy / path.relative_to(whole)
            what, data = damage(path.read_bytes(), rng, rng.choice(kinds[kind]).read_bytes())
            target.write_bytes(data)
            name = f"{path.relative_to(whole)} {what}"
            tally.add(kind, name, child(work, copy) or child(work, copy))
            shutil.rmtree(copy)
    return tally.row(kinds={k: len(v) for k, v in sorted(kinds.items())})


if __name__ == "__main__":
    print(run(int(sys.argv[1]), 1))
