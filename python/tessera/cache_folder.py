"""The cache folder: where it is, that it is one's own, and a history of what runs measured in it.

The history is to look at and learn from, never needed for a result: where it cannot be kept, one
warning says so and the run goes on.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tessera import _core
from tessera._core import version
from tessera.types import Record, Value

if TYPE_CHECKING:
    from tessera.result import Result


def cache_directory() -> Path:
    """Where Tessera keeps what can be made again; the same rule as the core's."""
    if explicit := os.environ.get("TESSERA_CACHE_DIR"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "tessera"


def require_own(folder: Path, alone: bool = False) -> None:
    """Raises OSError where what lies in an existing folder may be somebody else's."""
    try:
        why = _core.why_not_own(str(folder), alone)
    except TypeError:
        why = f"{str(folder)!r} is not UTF-8"
    if why:
        raise PermissionError(why)


def is_own(folder: Path, alone: bool = False) -> bool:
    """Whether a folder is there that only this user can have put things in: what lies there may be
    code. Where others can, a warning says so."""
    if not os.path.isdir(folder):  # also of names that are too long
        return False
    try:
        require_own(folder, alone)
    except OSError as error:
        warn_once(f"tessera: nothing is read there: {error}")
        return False
    return True


@cache
def warn_once(text: str) -> None:
    """A warning of the caller's caller."""
    warnings.warn(text, RuntimeWarning, stacklevel=4)


def make_own(folder: Path) -> None:
    """Creates a folder and those above it that are not there, for this user alone."""
    for missing in [f for f in (*reversed(folder.parents), folder) if not f.exists()]:
        missing.mkdir(mode=0o700, exist_ok=True)


def kept_json(key: str) -> Value:
    """What was kept as JSON under a key of the core's cache; None where nothing reads as such."""
    text = _core.find_text(key)
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


class JsonLines:
    """A line of JSON for each row, appended by one write, so that processes can share the file;
    what is no such line is passed over."""

    kinds: ClassVar[dict[str, type]] = {}  # what a row has at least

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, row: Record) -> None:
        """Adds a row; where that cannot be, one warning says so."""
        try:
            make_own(self.path.parent)
            require_own(self.path.parent, alone=True)
            private = partial(os.open, mode=0o600)
            with open(self.path, "ab", buffering=0, opener=private) as file:
                file.write(b"\n" + json.dumps(row).encode())  # behind what may have ended early
        except OSError as error:
            warn_once(f"tessera: what was measured cannot be kept in {self.path}: {error}")

    def recent(self, count: int | None = None) -> list[Record]:
        """The newest rows first."""
        if not (os.path.isfile(self.path) and is_own(self.path.parent, alone=True)):
            return []
        rows = map(self._row, self.path.read_bytes().splitlines())
        return [row for row in reversed(list(rows)) if row][:count]

    def _row(self, line: bytes) -> Record:
        """What a line tells; nothing where it is damaged."""
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return {}
        known = type(row) is dict and all(isinstance(row.get(k), v) for k, v in self.kinds.items())
        return row if known else {}


class MeasurementStore(JsonLines):
    """A row for each run."""

    kinds: ClassVar[dict[str, type]] = {
        "time": float, "program": str, "target": str, "original_us": float, "ours_us": float,
        "speedup": float,
    }  # fmt: skip

    @classmethod
    def default(cls) -> MeasurementStore:
        return cls(cache_directory() / "measurements.jsonl")

    def add(self, result: Result) -> None:
        """Remembers what one optimisation measured."""
        data = result.json()
        told = ("search_s", "verify_s", "compile_s", "tune_s", "states", "pruned", "shape")
        of_candidates = ("rank", "fate", "model_us", "measured_us", "speedup")
        row = {
            "time": time.time(),
            "version": version,
            "program": result.original.name,
            "program_hash": f"{hash(result.original) & (2**64 - 1):016x}",
            "target": data["target"],
            "threads": data["threads"],
            "original_us": result.original_us,
            "ours_us": result.measured_us,
            "speedup": result.speedup,
            **{key: data[key] for key in told},
            "candidates": [{k: c[k] for k in of_candidates} for c in data["candidates"]],
        }
        self.append(row)
