"""What entries were worth here: uses, and regret where they promised more than they held.

A line of JSON for each use, in the cache folder. Nothing depends on it but which entries `gc`
drops and which of several are tried first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tessera import _core
from tessera.cache_folder import JsonLines, cache_directory
from tessera.files import Plain
from tessera.options import users
from tessera.store.entry import Entry
from tessera.types import Record, format_type

_UNPROVED = 0.5  # of what an entry says it gains, until it was tried here


class Uses(JsonLines):
    """A row for each time that an entry was tried."""

    kinds: ClassVar[dict[str, type]] = {
        "key": str, "program": str, "recorded": float, "measured": float, "replayed": bool,
    }  # fmt: skip

    @classmethod
    def default(cls) -> Uses:
        return cls(cache_directory() / "store-uses.jsonl")

    def add(self, key: str, program: str, recorded: float, measured: float, replayed: bool) -> None:
        """Remembers that an entry served `program` (its name and sizes), how many times faster than
        the original it was `recorded` and `measured` here (0: not measured), and whether it was
        what it said."""
        self.append({"time": time.time(), "key": key, "program": program, "recorded": recorded,
                     "measured": measured, "replayed": replayed})  # fmt: skip


def count_named(program: _core.Graph, derivation: str, speedup: float) -> None:
    """Counts as used the user's own rules and patterns that the derivation of a result names."""
    named = set(re.findall(r"(?:\[rule |^pattern )([\w.-]+)", derivation, re.M))
    for name in named & _own_names() if named else ():
        Uses.default().add(name, described(program), 1.0, speedup, True)


def _own_names() -> set[str]:
    names: set[str] = set()
    for folder in ("patterns", "learnt", "rules"):
        with contextlib.suppress(OSError):  # there is none, or its name is none
            for path in users(folder).iterdir():
                text = path.read_text(errors="replace") if path.suffix == ".rules" else ""
                names |= {path.stem, *re.findall(r"^rule (\S+)", text, re.M)}
    return names


def described(program: _core.Graph) -> str:
    """A program's name, and the types of its inputs."""
    return " ".join([program.name, *(format_type(*program.type(t)) for t in program.inputs)])


@dataclass(frozen=True)
class Rank(Plain):
    """What an entry was worth; gains and regret in powers of two."""

    uses: int = 0
    gain: float = 0.0  # mean, measured
    regret: float = 0.0  # mean of what was recorded and not reached
    flips: int = 0  # faster where it came from, slower here
    fidelity: float = 1.0  # share of uses in which it was proved and ran
    sizes: int = 0  # different programs and sizes that it served

    @classmethod
    def of(cls, rows: Sequence[Record]) -> Rank:
        timed = [r for r in rows if r["measured"] > 0]
        lost = [max(0.0, _log2(r["recorded"]) - _log2(r["measured"])) for r in timed]
        return cls(
            uses=len(rows),
            gain=sum(max(0.0, _log2(r["measured"])) for r in timed) / len(rows),
            regret=sum(lost) / max(1, len(timed)),
            flips=sum(r["recorded"] > 1 >= r["measured"] for r in timed),
            fidelity=sum(r["replayed"] for r in rows) / len(rows),
            sizes=len({r["program"] for r in rows if r["replayed"]}),
        )

    def worth(self, recorded: float) -> float:
        """What it can be expected to gain, for sorting."""
        if not self.uses:
            return _UNPROVED * max(0.0, _log2(recorded))
        return self.fidelity * self.gain * (1 + math.log2(max(1, self.sizes)))

    def json(self) -> Record:
        """Plain data, rounded."""
        return {k: round(v, 4) for k, v in dataclasses.asdict(self).items()}


def ranks() -> dict[str, Rank]:
    """By mark of an entry, or the name of a rule or pattern."""
    rows: dict[str, list[Record]] = {}
    for row in Uses.default().recent():
        rows.setdefault(row["key"], []).append(row)
    return {key: Rank.of(same) for key, same in rows.items()}


def rank_of(entry: Entry, known: dict[str, Rank]) -> Rank:
    """Of an entry; rules and patterns are used by their names."""
    return known.get(entry.mark) or known.get(entry["name"]) or Rank()


def to_drop(entries: Iterable[Entry], keep: int) -> list[tuple[Entry, str]]:
    """Entries to be rid of, with reasons: those that were never what they said, those that newer
    tools have replaced, and of the others the worst beyond `keep`."""
    known = ranks()
    dropped: list[tuple[Entry, str]] = []
    stay: list[tuple[float, Entry]] = []
    entries = list(entries)
    newest: dict[tuple[object, ...], list[int]] = {}
    for e in entries:
        if _tools(e) <= _own_tools():  # of others nobody here can say what they are
            for improved in {False, e.improved}:
                alike = (*_alike(e), improved)
                newest[alike] = max(newest.get(alike, []), _tools(e))
    for e in entries:
        rank = rank_of(e, known)
        if rank.uses and not rank.fidelity:
            dropped.append((e, f"tried {rank.uses} times, and never what it says"))
        elif _tools(e) < newest.get((*_alike(e), e.improved), []):
            dropped.append((e, "newer tools have made it anew"))
        else:
            stay.append((rank.worth(e.number("speedup")), e))
    stay.sort(key=lambda item: (-item[0], item[1].key))
    dropped += [(e, f"beyond the best {keep}") for _, e in stay[keep:]]
    return dropped


def _alike(e: Entry) -> tuple[str, ...]:
    return tuple(e[n] for n in ("program", "level", "device")) if e["program"] else (e.key,)


def _tools(e: Entry) -> list[int]:
    return [int(n) for n in e["tools"].split() if n.isdecimal() and len(n) < 7]


@functools.cache
def _own_tools() -> list[int]:
    any_program = _core.parse("graph any { x = input : f32[1] y = neg x return y }")
    return [int(n) for n in _core.entry_key(any_program, {})["tools"].split() if n.isdecimal()]


def _log2(speedup: float) -> float:
    return math.log2(speedup) if speedup > 0 else 0.0
