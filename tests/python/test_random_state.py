"""Random programs with state outside, views, writes and effects: no difference to plain NumPy.

500 of them; `make fuzz` runs 20,000 (tests/python/random_state.py)."""

from __future__ import annotations

import numpy as np
import random_state
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FOLLOWED = [0, 0]


@settings(
    max_examples=500, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(seed=st.integers(1, 2**32))
def test_decorated_programs_are_the_programs(seed: int) -> None:
    why, traced = random_state.check(seed)
    FOLLOWED[0] += 1
    FOLLOWED[1] += traced
    assert not why, why


def test_enough_of_them_are_traced() -> None:
    assert FOLLOWED[1] > FOLLOWED[0] / 3 > 100


def test_a_stale_value_would_be_seen() -> None:
    """The comparison itself: a program that keeps what it read at first is found out."""
    text, _ = random_state.random_program(np.random.default_rng(1))
    scope: dict[str, object] = {}
    exec(text, scope)
    before = [np.ones(3), {"a": [1.0]}, "count(1)"]
    assert not random_state.differing(before, before)
    assert random_state.differing([np.full(3, 2.0), {"a": [1.0]}, "count(1)"], before)
    assert random_state.differing([np.ones(3), {"a": [2.0]}, "count(1)"], before)
    assert random_state.differing([np.ones(3), {"a": [1.0]}, "count(2)"], before)
