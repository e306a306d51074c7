"""bench/array_api.py: NumPy whose every call is compared with its program's.

The suite itself is run by hand (docs/python.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench import array_api
from bench.array_api import COUNTS, Array, difference, xp
from tessera.graph import Graph


def test_calls_and_operators_are_traced_and_run_twice() -> None:
    COUNTS.clear()
    x = xp.asarray([1.0, -0.0, np.nan])
    assert type(x) is Array
    y = xp.sum(xp.maximum(x, 2.0) * 2 + x)
    assert np.isnan(y)
    assert (COUNTS["traced"], COUNTS["interpreter"], COUNTS["compiled"]) == (4, 4, 4)
    xp.linalg.qr(xp.ones((2, 2)))
    assert COUNTS["fallbacks"] == 1
    with pytest.raises(ValueError, match="broadcast"):
        xp.ones(3) + xp.ones(2)
    assert COUNTS["fallbacks"] == 2


def test_a_wrong_program_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Graph.run
    monkeypatch.setattr(Graph, "run", lambda *a: [np.copysign(r, -1.0) for r in run(*a)])
    with pytest.raises(AssertionError, match="interpreter"):
        xp.multiply(xp.asarray([0.0]), 0.0)
    assert array_api.DIFFERENCES.pop().startswith("multiply")


def test_differences() -> None:
    one = np.array([1.0, 0.0, np.nan])
    others: list[Any] = [-one, one.astype("f4"), one[:2], [one], np.array([1.0, -0.0, np.nan]),
                         np.array([1.0, 0.0, 1.0]), one + 1e-9]  # fmt: skip
    assert difference(one, one.copy()) == ""
    assert all(difference(other, one) for other in others)
    assert difference(np.float64(1), np.array(1.0))
    assert difference((one, one), (one, one + 1))
