"""Every program in examples/ is explained, optimised, and right."""

from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tessera.source import example_arrays

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted((ROOT / "examples").glob("*.ug"))


def test_there_are_sixteen() -> None:
    assert len(PROGRAMS) >= 16


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_program(path: Path) -> None:
    text = path.read_text()
    comment = [line for line in text.splitlines() if line.startswith("//")]
    assert any(line.startswith("// Learn: ") for line in comment), "say what one learns"
    graph = ts.load(path)
    assert graph.name == path.stem
    result = ts.superoptimize(graph, budget=10)
    arrays = example_arrays(graph)
    outputs = result(*arrays)
    exact = graph.run(*arrays, exact=True)
    for got, expected in zip(
        outputs if isinstance(outputs, tuple) else (outputs,), exact, strict=True
    ):
        assert np.abs(got - expected).max() <= 2e-5 * max(1.0, float(np.abs(expected).max()))
    # Equal or the original, never anything else.
    assert result.improved == (result.certificate is not None)
    if result.improved:  # by another argument than the verifier's, too
        opinion = ts.verify(graph, result.graph, seed=1, second_opinion=True).second_opinion
        assert opinion.startswith("agrees: "), opinion
    assert not [c.why for c in result.candidates if c.fate in ("not compiled", "check failed")]
