"""examples/fleet/two_hosts.py, small: tuned by Dask and Ray, killed twice, merged, pulled, used."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fleet_programs import TEXTS

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "fleet" / "two_hosts.py"


@pytest.mark.skipif(
    not any(map(importlib.util.find_spec, ("distributed", "ray"))),
    reason="neither dask's distributed nor ray is installed",
)
def test_two_hosts(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in ("diagonal", "exponent"):
        (sources / f"{name}.ug").write_text(f"graph {name} {{ {TEXTS[name]} }}")
    command = [sys.executable, str(SCRIPT), "--programs", str(sources), "--steps", "300",
               "--budget", "2", "--kill-after", "2", "--folder", str(tmp_path / "all")]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if k != "TESSERA_CACHE_DIR"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert "killed (1)" in out
    assert "killed (2)" in out
    if importlib.util.find_spec("ray") and importlib.util.find_spec("distributed"):
        assert "the same by Dask and by Ray" in out
    assert "refused" not in out
    assert "2 programs run faster there, without a search" in out
    assert (tmp_path / "all" / "campaign.html").exists()
