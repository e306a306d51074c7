"""Domains that follow a type."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tessera.errors import BadInputError
from tessera.frontends.traced import Spec
from tessera.types import EVERY, Interval, parse_domain


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", EVERY),
        ("> 0", Interval(0, math.inf, False, False)),
        (">= -1.5", Interval(-1.5, math.inf, True, False)),
        ("in [0, 1)", Interval(0, 1, True, False)),
        ("in (-inf, 2e3]", Interval(-math.inf, 2000, False, True)),
    ],
)
def test_domains(text: str, expected: Interval) -> None:
    assert parse_domain(text) == expected
    if text:
        assert parse_domain(str(expected)) == expected


@pytest.mark.parametrize("text", ["< 0", "in [1, 0]", "in [0, 1", "> zero", "in [1.2.3, 5]"])
def test_malformed_domains(text: str) -> None:
    with pytest.raises(BadInputError, match="is not a domain"):
        parse_domain(text)


@pytest.mark.parametrize(
    "text",
    [
        "f32[1000] > 0", "f64[1000] >= 2", "f16[1000] in (0, 1)", "f32[1000] in [-3, -1)",
        "i32[1000] in [1, 3]", "i64[1000] in (0, 4)", "u8[1000] > 5", "f64[1000] in (-inf, 1]",
    ],
)  # fmt: skip
def test_samples_are_in_the_domain(text: str) -> None:
    spec = Spec.parse(text)
    x = spec.sample(np.random.default_rng(0))
    low, high, with_low, with_high = spec.domain
    assert x.shape == (1000,)
    assert ((x >= low) if with_low else (x > low)).all()
    assert ((x <= high) if with_high else (x < high)).all()
    assert len(np.unique(x)) > 1
    if text.startswith("i32"):
        assert set(np.unique(x)) == {1, 2, 3}
