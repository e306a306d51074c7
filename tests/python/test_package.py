"""The installed package imports and knows its version."""

import tomllib
from pathlib import Path

import tessera

ROOT = Path(__file__).resolve().parents[2]


def test_version_is_the_one_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert tessera.__version__ == project["version"]
