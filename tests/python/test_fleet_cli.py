"""`tessera tune` and the page of a campaign."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fleet_programs import TEXTS
from rich.console import Console

from tessera.cli import main, tune
from tessera.errors import IoError
from tessera.fleet.progress import Outcome, Progress
from tessera.store.entry import Entry
from tessera.store.stores import FolderStore


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    (folder / "within").mkdir()
    for name in ("factor", "norm"):
        path = folder / ("within" if name == "norm" else "") / f"{name}.ug"
        path.write_text(f"graph {name} {{ {TEXTS[name]} }}")
    (folder / "broken.ug").write_text("graph {")
    (folder / "two.py").write_text(
        'import numpy as np\n\ndef two(x: "f32[8,16]"):\n    return np.exp(np.log(x) + np.log(x))\n'
    )
    return folder


@pytest.fixture(scope="module")
def store(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    assert main(["tune", str(sources), "--store", str(folder), "--workers", "1", "--steps", "300",
                 "--budget", "2", "--json"]) == 0  # fmt: skip
    return folder


def test_all_programs_of_a_file_are_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more.py").write_text(
        'def twice(x: "f32[8]"):\n    return x + x\n\n'
        'def square(x: "f32[8]"):\n    return x * x\n\n'
        "def unknown(x):\n    return x\n"
    )
    notes: list[str] = []
    found = list(tune.read_programs([str(tmp_path)], (), notes.append))
    assert [p.name for p in found] == ["more:twice", "more:square"]
    assert [note.split(":")[0] for note in notes] == ["left out"]
    (tmp_path / "more.py").unlink()
    assert main(["tune", str(tmp_path)]) == 64
    assert "there is no program to tune" in capsys.readouterr().err


def test_again_everything_is_there(
    sources: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    arguments = ["tune", str(sources), "--store", str(store), "--steps", "300", "--budget", "2"]
    assert main([*arguments, "--workers", "1"]) == 0
    out, err = capsys.readouterr()
    assert "left out" in err
    assert "broken.ug" in err
    lines = out.splitlines()
    assert lines[0].startswith("1/3 ")
    assert any(line.startswith("within/norm") for line in lines)
    assert f"store: {store}" in out
    assert ", 0 tasks, " in out
    assert "  now  " not in out  # which the ratio, measured side by side, need not agree with
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["programs"] == 3
    assert told["tasks"] == 0
    assert {o["name"] for o in told["outcomes"]} == {"factor", "two", "within/norm"}
    assert all(o["winners"] for o in told["outcomes"])


def test_what_was_found_is_told_also_where_the_store_is_full(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def refuse(self: FolderStore, entry: Entry) -> None:
        if entry.kind == "proposals":
            raise IoError("no space is left")

    monkeypatch.setattr(FolderStore, "_write", refuse)
    arguments = ["tune", str(sources / "factor.ug"), "--steps", "300", "--no-measure"]
    assert main([*arguments, "--store", str(tmp_path), "--workers", "1"]) == 70
    out, err = capsys.readouterr()
    assert "1/1 factor: not measured" in out
    assert "0 of 1 programs are faster" in out
    assert "no space is left" in err


def test_wrong_shards_are_usage_errors_and_nothing_else(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["tune", str(sources / "factor.ug"), "--store", str(tmp_path), "--shard", "3/2"]
    assert main(command) == 64
    out, err = capsys.readouterr()
    assert out == ""
    assert "--shard 3/2" in err


def test_page_of_a_campaign(store: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(store), "-o", str(page)]) == 0
    text = page.read_text()
    for word in ("within/norm", "mugraph", "wins", "losses", "Programs by engines", "</html>"):
        assert word in text
    assert main(["report", str(tmp_path), "-o", str(page)]) == 65


def test_live_table_tells_what_is_going_on() -> None:
    progress = Progress(programs=4, workers=2, planned=12, begun=2)
    fields = {"kind": "proposals", "key": "0" * 64, "task": "search", "worker": "a:1"}
    for _ in range(6):
        progress.answered(Entry({**fields, "seconds": "0.5"}))
    progress.finished(Outcome("fast", 2.5, True, "synth"))
    progress.finished(Outcome("broken", why="no such thing"))
    progress.trouble("a worker is gone", refused=False)
    console = Console(width=200, record=True)
    console.print(tune.live_table(progress))
    text = console.export_text()
    for words in ("programs 2/4", "workers 2", "tasks/s", "best 2.50x fast", "left", "3.0",
                  "broken: no such thing", "0 refused, 1 lost"):  # fmt: skip
        assert words in text
    expected = (12 / 2 * 4 - 6) / progress.throughput
    left = progress.left_s()
    assert left is not None
    assert left == pytest.approx(expected, rel=0.1)


def test_suites(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    named = list(tune.read_programs(["stenso:3"], (), print))
    assert len(named) == 3
    assert main(["tune", "stanza"]) == 64
    assert "stenso, onnx-nodes, outside" in capsys.readouterr().err
    assert main(["tune", "stenso:some"]) == 64
    assert "stenso:20" in capsys.readouterr().err
    monkeypatch.setattr(tune, "in_clone", lambda module: False)
    assert main(["tune", "stenso"]) == 64
    assert "clone Tessera's repository" in " ".join(capsys.readouterr().err.split())


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    store = tmp_path / "store"
    command = [sys.executable, "-m", "tessera", "tune", "stenso:8", "--workers", "1"]
    driver = subprocess.Popen([*command, "--store", str(store)], stdout=subprocess.PIPE, text=True)
    while not list(store.glob("*/*.entry")) and driver.poll() is None:
        time.sleep(0.01)
    driver.send_signal(signal.SIGINT)
    out, _ = driver.communicate(timeout=20)
    assert driver.returncode == 2
    assert "interrupted: the same command goes on from here" in out
    assert list(store.glob("*/*.entry"))


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--help"]) == 0
    out = capsys.readouterr().out
    for word in ("dask", "ray", "shard", "Examples:", "--address", "tessera report"):
        assert word in out
