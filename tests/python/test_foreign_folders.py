"""Folders that others can write to, links, pipes and odd names in place of the cache."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tessera import _core, options
from tessera.cache_folder import MeasurementStore, cache_directory
from tessera.patterns import read_patterns
from tessera.rules import rule_files

PYTHON = Path(__file__).resolve().parents[2] / "python"
KEY = "ab" * 32
STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with something of every kind in it."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(folder))
    monkeypatch.chdir(tmp_path)
    _core.store_text(KEY, "kept")
    for name in ("rules", "patterns", "learnt"):
        (folder / name).mkdir(mode=0o700)
    shipped = next(Path(str(options.shipped("rules"))).glob("*.rules")).read_text()
    (folder / "rules" / "own.rules").write_text(shipped)
    (folder / "patterns" / "own.pattern").write_text("")
    (folder / "this-cpu.target").write_text("target cpu\n")
    (folder / "measurements.jsonl").write_text(
        '{"time": 1.0, "program": "g", "target": "cpu", "original_us": 1.0, "ours_us": 1.0, '
        '"speedup": 1.0}'
    )
    return folder


def is_read(folder: Path) -> list[bool]:
    """What of the cache is read: entries, rules, patterns, the calibration, measurements."""
    texts = _core.find_text(KEY) == "kept"
    rules = any(f.is_relative_to(folder) for f in rule_files())
    patterns = any(b.file.startswith(str(folder)) for b in read_patterns()[1])
    target = ts.Options().fields()["target"] == str(folder / "this-cpu.target")
    measured = len(MeasurementStore.default().recent()) == 1
    return [texts, rules, patterns, target, measured]


def test_ones_own_folder_is_read(cache: Path) -> None:
    assert is_read(cache) == [True] * 5


@pytest.mark.parametrize("mode", [0o777, 0o722, 0o1777])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_folder_that_others_can_write_to_is_not(cache: Path, mode: int) -> None:
    cache.chmod(mode)
    with pytest.warns(RuntimeWarning, match="nothing is read there") as caught:
        assert is_read(cache) == [False] * 5
    told = [str(warning.message) for warning in caught]
    assert len(set(told)) == len(told)


@as_root
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_folder_of_another_user_is_not(cache: Path, tmp_path: Path) -> None:
    os.chown(cache, STRANGER, STRANGER)
    assert is_read(cache) == [False] * 5
    os.chown(cache, 0, 0)
    assert is_read(cache) == [True] * 5
    link = tmp_path / "link"  # to what is ours, until its owner has it point elsewhere
    link.symlink_to(cache)
    os.environ["TESSERA_CACHE_DIR"] = str(link)
    assert is_read(link) == [True] * 5
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    assert is_read(link) == [False] * 5


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_patterns_of_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are code: not where anybody can have put them."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".tessera" / "patterns"
    folder.mkdir(parents=True)
    (folder / "own.pattern").write_text("nonsense")

    def read() -> bool:
        return any("own.pattern" in b.file for b in read_patterns()[1])

    for place in (folder, folder.parent):
        place.chmod(0o755)
        assert read()
        place.chmod(0o757)
        assert not read()
        place.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(folder, STRANGER, STRANGER)
        assert not read()


def test_pipes_and_devices_do_not_hang(cache: Path) -> None:
    index = cache / "index" / KEY
    digest = index.read_text()[:64]
    for file in (index, cache / "objects" / f"{digest}.txt"):
        whole = file.read_bytes()
        file.unlink()
        os.mkfifo(file)
        start = time.monotonic()
        assert _core.find_text(KEY) is None
        file.unlink()
        file.symlink_to("/dev/zero")
        assert _core.find_text(KEY) is None
        assert time.monotonic() - start < 30
        file.unlink()
        file.write_bytes(whole)
        assert _core.find_text(KEY) == "kept"


def test_a_line_in_anothers_place_is_damage(cache: Path) -> None:
    """It named another kernel's code, which ran."""
    other = "cd" * 32
    _core.store_text(other, "another")
    (cache / "index" / KEY).write_bytes((cache / "index" / other).read_bytes())
    assert _core.find_text(KEY) is None
    assert _core.find_text(other) == "another"


def test_text_that_is_none_is_absent(cache: Path) -> None:
    _core.store_text(KEY, "x")
    bad = b"\xff\xfe\x80"
    digest = hashlib.sha256(bad).hexdigest()
    (cache / "objects" / f"{digest}.txt").write_bytes(bad)
    (cache / "index" / KEY).write_text(f"{digest} .txt {KEY}\n")
    assert _core.find_text(KEY) is None


PROGRAM = """
import numpy as np, tessera as ts
x = np.arange(6.0).reshape(2, 3)
r = ts.superoptimize(lambda x: x * 2 + x * 2, x, budget=0.5)
np.testing.assert_allclose(r(x), x * 4)
print("right")
"""
PLACES = [
    "/dev/null", "/proc/self", "/proc/self/mem", "/etc/passwd", "/sys", "..", "a\nb", "é ü", "-rf",
    "$(touch executed)", "`touch executed`;touch executed", "%s%n%s", "x" * 300, "y/" * 3000,
    "\udcff\udcfe", "file", "loop", "dangling/link",
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_odd_places_for_the_cache_and_stores(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    env = {**os.environ, "PYTHONPATH": str(PYTHON), "TESSERA_CACHE_DIR": place,
           "TESSERA_STORES": place}  # fmt: skip
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=env, capture_output=True, timeout=120
    )
    assert run.returncode == 0, run.stderr.decode(errors="replace")
    assert run.stdout == b"right\n"
    assert not list(tmp_path.rglob("executed"))


def test_what_is_made_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the umask allows all."""
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "new" / "cache"))
    before = os.umask(0)
    try:
        ts.superoptimize(lambda x: x * 2 + x * 2, np.ones((4, 4)), budget=2)
    finally:
        os.umask(before)
    made = [cache_directory(), *cache_directory().rglob("*")]
    assert len(made) > 5
    assert not [p for p in made if p.is_dir() and stat.S_IMODE(p.stat().st_mode) != 0o700]
    assert not [p for p in made if p.is_file() and stat.S_IMODE(p.stat().st_mode) & 0o022]
