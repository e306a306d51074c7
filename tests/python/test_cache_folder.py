"""The measurement store: several writers, damage, and folders that cannot be used."""

from __future__ import annotations

import json
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from tessera import Graph
from tessera.cache_folder import MeasurementStore, cache_directory


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
    store = MeasurementStore(tmp_path / "new" / "m.jsonl")
    add(store)
    add(store)
    assert len(store.recent()) == 2
    assert store.recent(1)[0]["speedup"] == 2.0
    newest, oldest = store.recent()
    assert newest["time"] >= oldest["time"]
    assert newest["program"] == "g"


def test_many_writers(tmp_path: Path) -> None:
    store = MeasurementStore(tmp_path / "m.jsonl")
    add(store)

    def ten() -> None:
        for _ in range(10):
            add(store)

    threads = [threading.Thread(target=ten) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(store.recent()) == 41


@pytest.mark.parametrize(
    "damage",
    [b"", b"this is no row" * 100, b'\n{"speedup": 2}\n[1]\nnull', b"\n\xff\xfe", b'\n{"ti'],
)
def test_damage_is_passed_over(tmp_path: Path, damage: bytes) -> None:
    store = MeasurementStore(tmp_path / "m.jsonl")
    add(store)
    with store.path.open("ab") as file:
        file.write(damage)
    add(store)
    assert len(store.recent()) in (1, 2)
    assert store.recent(1)[0]["speedup"] == 2.0
    rows = store.path.read_bytes().splitlines()
    assert json.loads(rows[-1])["speedup"] == 2.0


def test_unusable_folder_warns_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = MeasurementStore(tmp_path / "file" / "m.jsonl")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        add(store)
        add(store)
        assert store.recent() == []
        assert len(store.recent()) == 0
    assert len(caught) == 1


def test_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_CACHE_DIR", "/some/where")
    assert cache_directory() == Path("/some/where")
    monkeypatch.delenv("TESSERA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_directory() == Path("/xdg/tessera")
