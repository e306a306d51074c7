"""The measurement store: several writers, damage, and folders that cannot be used."""

from __future__ import annotations

import sqlite3
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from tessera import Graph
from tessera.store import MeasurementStore, cache_directory


class FakeResult:
    """What the store reads of a Result."""

    def __init__(self) -> None:
        self.original = Graph("g")
        self.original.output(self.original.input("x", (4,)) + 1.0)
        self.original_us, self.measured_us, self.speedup = 10.0, 5.0, 2.0

    def json(self) -> dict[str, Any]:
        return {
            "target": "cpu", "threads": 2, "search_s": 0.1, "verify_s": 0.1, "compile_s": 0.1,
            "tune_s": 0.1, "states": 3, "pruned": {}, "shape": {"x": [4]}, "candidates": [],
        }  # fmt: skip


def add(store: MeasurementStore) -> None:
    store.add(FakeResult())  # type: ignore[arg-type]


def test_what_is_added_comes_back(tmp_path: Path) -> None:
    store = MeasurementStore(tmp_path / "new" / "m.sqlite")
    add(store)
    add(store)
    assert store.count() == 2
    assert store.recent(1)[0]["speedup"] == 2.0
    with sqlite3.connect(store.path) as db:
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_many_writers(tmp_path: Path) -> None:
    store = MeasurementStore(tmp_path / "m.sqlite")
    add(store)

    def ten() -> None:
        for _ in range(10):
            add(store)

    threads = [threading.Thread(target=ten) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert store.count() == 41


@pytest.mark.parametrize(
    "damage", [b"", b"this is not a database" * 100, b"CRE\xf2TE TABLE costs", None]
)
def test_damage_is_set_aside(tmp_path: Path, damage: bytes | None) -> None:
    store = MeasurementStore(tmp_path / "m.sqlite")
    for _ in range(50):
        add(store)
    data = bytearray(store.path.read_bytes())
    if damage is None:
        data[4096:8192] = b"\xff" * 4096
        damage = bytes(data)
    if damage.endswith(b"costs"):  # text that is none
        damage = bytes(data).replace(b"CREATE TABLE costs", damage)
        assert damage != bytes(data)
    store.path.write_bytes(damage)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        add(store)
    assert store.count() >= 1
    if damage:
        assert any("damaged" in str(w.message) for w in caught)
        assert store.path.with_suffix(".damaged").exists()


def test_unusable_folder_warns_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeasurementStore, "_warned", False)
    (tmp_path / "file").write_text("")
    store = MeasurementStore(tmp_path / "file" / "m.sqlite")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        add(store)
        add(store)
        assert store.recent() == []
        assert store.count() == 0
    assert len(caught) == 1


def test_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_CACHE_DIR", "/some/where")
    assert cache_directory() == Path("/some/where")
    monkeypatch.delenv("TESSERA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_directory() == Path("/xdg/tessera")
