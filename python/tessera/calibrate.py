"""Calibration: the target description of this machine, measured and kept in the cache folder."""

from __future__ import annotations

from pathlib import Path

from tessera import _core
from tessera.cache_folder import cache_directory, make_own
from tessera.files import told_of, write_text


def calibrated_path() -> Path:
    """Where the measured description is; `--target cpu` uses it when it exists."""
    return cache_directory() / "this-cpu.target"


def calibrate() -> str:
    """Measures this machine, stores and returns its description."""
    text = _core.calibrate()
    path = calibrated_path()
    with told_of(path.parent, "created"):
        make_own(path.parent)
    write_text(path, text)
    return text
