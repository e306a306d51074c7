"""Tests keep their cache to themselves and never touch the user's."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache folder for the whole run, so that nothing is compiled twice."""
    folder = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESSERA_CACHE_DIR", str(folder))
        yield folder
