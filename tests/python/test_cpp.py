"""The C++ library, installed and used by a project of its own: docs/cpp.md, examples/cpp."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not (BUILD / "libtessera_core.a").exists(), reason="an installed package")
def test_a_project_finds_the_installed_library(tmp_path: Path) -> None:
    cmake, prefix = Path(sys.executable).with_name("cmake"), tmp_path / "prefix"
    run(cmake, "--install", BUILD, "--component", "cpp", "--prefix", prefix)
    include = prefix / "include"
    headers = [path for path in include.rglob("*") if path.is_file()]
    assert sorted(path.relative_to(include).parts[0] for path in headers) == ["tessera"]
    assert {path.suffix for path in prefix.rglob("*.*") if path.is_file()} <= {
        ".h", ".a", ".cmake", ".pattern", ".rules", ".target"}  # fmt: skip
    lines = [line for path in headers for line in path.read_text().splitlines()]
    assert len(lines) <= 200
    assert not [line for line in lines if line.startswith('#include "')]
    build = tmp_path / "build"
    run(cmake, "-S", ROOT / "examples" / "cpp", "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}",
        "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={cmake.with_name('ninja')}")  # fmt: skip
    run(cmake, "--build", build)
    said = run(build / "faster", TESSERA_CACHE_DIR=str(tmp_path / "cache"))
    assert "graph scores {" in said
    assert "by hand 0.49901" in said
    assert "x + x and x - (-x): equal" in said
    assert "x + x and x * x: refuted" in said
