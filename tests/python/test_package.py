"""The installed package imports and knows its version, which is written once."""

import re
import tomllib
from pathlib import Path

import tessera

ROOT = Path(__file__).resolve().parents[2]


def test_version_is_the_one_that_packages_get() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    where = project["tool"]["scikit-build"]["metadata"]["version"]
    found = re.search(where["regex"], (ROOT / where["input"]).read_text())
    assert found
    assert tessera.__version__ == found["value"]


def test_names_are_the_public_ones() -> None:
    assert dir(tessera) == sorted(tessera.__all__)
    for name in dir(tessera):
        assert getattr(tessera, name) is not None
