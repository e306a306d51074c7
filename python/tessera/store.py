"""Measurements of all runs, and costs of operations (costs.py), in SQLite inside the cache folder.

A history to look at and learn from, never needed for a result: where it cannot be used, one warning
says so and the run goes on. A damaged file is set aside and begun again.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tessera import _core
from tessera._core import version
from tessera.types import Record, Value

if TYPE_CHECKING:
    from tessera.result import Result

_SCHEMA = """
CREATE TABLE IF NOT EXISTS measurements (
  id INTEGER PRIMARY KEY,
  time REAL NOT NULL,
  version TEXT NOT NULL,
  program TEXT NOT NULL,
  program_hash TEXT NOT NULL,
  target TEXT NOT NULL,
  threads INTEGER NOT NULL,
  original_us REAL NOT NULL,
  ours_us REAL NOT NULL,
  speedup REAL NOT NULL,
  details TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS costs (
  library TEXT NOT NULL,
  version TEXT NOT NULL,
  machine TEXT NOT NULL,
  operation TEXT NOT NULL,
  work REAL NOT NULL,
  ns REAL NOT NULL,
  time REAL NOT NULL,
  PRIMARY KEY (library, version, machine, operation, work)
);
CREATE INDEX IF NOT EXISTS by_program ON measurements (program_hash, target);
"""


CostsOf = tuple[str, str, str]  # a library, its version and the machine


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
        warnings.warn(f"tessera: nothing is read there: {error}", RuntimeWarning, stacklevel=3)
        return False
    return True


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


class MeasurementStore:
    """One SQLite file; every call opens and closes it, so processes can share it."""

    _warned = False

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def default(cls) -> MeasurementStore:
        return cls(cache_directory() / "measurements.sqlite")

    def add(self, result: Result) -> None:
        """Remembers what one optimisation measured."""
        data = result.json()
        told = ("search_s", "verify_s", "compile_s", "tune_s", "states", "pruned", "shape")
        details = {key: data[key] for key in told}
        details["candidates"] = [
            {k: c[k] for k in ("rank", "fate", "model_us", "measured_us", "speedup")}
            for c in data["candidates"]
        ]
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
            "details": json.dumps(details),
        }
        with self._connection() as db:
            if db is not None:
                places = ", ".join(f":{name}" for name in row)
                db.execute(f"INSERT INTO measurements ({', '.join(row)}) VALUES ({places})", row)

    def recent(self, count: int = 20) -> list[Record]:
        """The newest measurements first."""
        with self._connection() as db:
            if db is None:
                return []
            db.row_factory = sqlite3.Row
            rows = db.execute(
                "SELECT time, program, target, threads, original_us, ours_us, speedup, version "
                "FROM measurements ORDER BY id DESC LIMIT ?",
                (count,),
            )
            return list(map(dict, rows))

    def count(self) -> int:
        """How many measurements there are."""
        with self._connection() as db:
            if db is None:
                return 0
            return int(db.execute("SELECT count(*) FROM measurements").fetchone()[0])

    def keep_costs(self, of: CostsOf, curves: Mapping[str, Sequence[tuple[float, float]]]) -> None:
        """Remembers nanoseconds by kind of operation and work, in place of earlier ones.

        Those of other versions of the library on this machine are forgotten.
        """
        now = time.time()
        rows = [(*of, kind, work, ns, now) for kind, curve in curves.items() for work, ns in curve]
        with self._connection() as db:
            if db is not None:
                db.execute("DELETE FROM costs WHERE library = ? AND machine = ?", of[::2])
                db.executemany("INSERT INTO costs VALUES (?,?,?,?,?,?,?)", rows)

    def costs(self, of: CostsOf) -> dict[str, list[tuple[float, float]]]:
        """What `keep_costs` was given for these; empty if nothing."""
        curves: dict[str, list[tuple[float, float]]] = {}
        with self._connection() as db:
            if db is not None:
                cursor = db.execute(
                    "SELECT operation, work, ns FROM costs "
                    "WHERE library = ? AND version = ? AND machine = ? ORDER BY operation, work",
                    of,
                )
                for operation, work, ns in cursor:
                    curves.setdefault(operation, []).append((work, ns))
        return curves

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection | None]:
        """An open transaction, or None (after one warning) where the file cannot be used."""
        try:
            db = self._open()
        except (sqlite3.Error, OSError) as error:
            self._complain(error)
            yield None
            return
        try:
            with db:
                yield db
        except sqlite3.DatabaseError as error:
            self._complain(error)
        finally:
            db.close()

    def _open(self) -> sqlite3.Connection:
        make_own(self.path.parent)
        require_own(self.path.parent, alone=True)
        try:
            return self._connect()
        except sqlite3.OperationalError:  # locked, read-only, full: the file may be fine
            raise
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            aside = self.path.with_suffix(".damaged")
            self.path.replace(aside)
            for suffix in ("-wal", "-shm"):
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            warnings.warn(
                f"tessera: the measurements in {self.path} were damaged; kept as {aside.name}, "
                "a new file is begun",
                RuntimeWarning,
                stacklevel=2,
            )
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=5)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.executescript(_SCHEMA)
            if db.execute("PRAGMA quick_check").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("quick_check failed")
        except BaseException:
            db.close()
            raise
        return db

    def _complain(self, error: Exception) -> None:
        if not MeasurementStore._warned:
            MeasurementStore._warned = True
            text = f"tessera: measurements cannot be kept in {self.path}: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
