"""STENSO's convention for input files: `kernel` and `arg_ranks`, with jax.numpy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tessera as ts
from tessera.errors import BadInputError

PROGRAM = """
import jax.numpy as jnp

arg_ranks = {ranks}


def kernel(A, x):
    return jnp.stack([x * a + (1.0 - a) for a in A], axis=0)
"""


def test_files_load_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "github_8.py"
    path.write_text(PROGRAM.format(ranks=[2, 1]))
    loaded = sys.modules.get("jax.numpy")
    graph = ts.load(path)
    assert sys.modules.get("jax.numpy") is loaded  # the stand-in is gone
    assert [str(t) for t in graph.input_types().values()] == [
        "(dtype('float32'), (200, 200))",
        "(dtype('float32'), (200,))",
    ]
    path.write_text("arg_ranks = [1]\ndef kernel(v):\n    return v * 2\n")
    assert ts.load(path).inputs[0].shape == (1000,)


@pytest.mark.parametrize("ranks", [[2], "21", [2, -1], [2, 1.0], None])
def test_ranks_that_do_not_fit(tmp_path: Path, ranks: object) -> None:
    path = tmp_path / "bad.py"
    path.write_text(PROGRAM.format(ranks=repr(ranks)))
    with pytest.raises(BadInputError, match="arg_ranks"):
        ts.load(path)
