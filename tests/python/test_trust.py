"""The campaigns of `make trust`, in short: nothing is found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("cache faults", 36),
        ("kills", 5),
        ("crowds", 1),
        ("failing writes", 6),
        ("failing allocations", 40),
        ("hostile files", 30),
        ("branch faults", 40),
        ("NumPy state", 20),
    ],
)
def test_campaign(name: str, count: int, tmp_path: Path) -> None:
    report = tmp_path / "trust.json"
    run = subprocess.run(
        [sys.executable, "-m", "bench.trust", "--only", name, f"--count={count}", "--json", report],
        cwd=ROOT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert report.exists(), run.stderr[-2000:]
    row = json.loads(report.read_text())["campaigns"][name]
    assert row["tried"] >= count
    assert row["details"]["findings"] == []
    assert run.returncode == 0
    assert row["survived"] == row["tried"]
