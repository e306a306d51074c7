"""A few of the random programs of random_numpy.py; run that for minutes to look for more."""

from __future__ import annotations

import os
import time

import numpy as np
import random_numpy


def test_random_programs_are_those_of_numpy() -> None:
    count = os.environ.get("TESSERA_RANDOM_PROGRAMS")
    end = time.monotonic() + (12 if count is None else 3600)
    problems = []
    for seed in range(60 if count is None else int(count)):
        problems += random_numpy.check(seed, kernels=seed % 20 == 0, sizes=seed % 3 == 0)
        if time.monotonic() > end:
            break
    assert not problems, "\n".join(problems)
    assert seed > 3


def test_differences_are_seen() -> None:
    same = random_numpy.difference
    x = np.arange(3, dtype=np.float32)
    assert same(x, x.copy()) == ""
    assert same(x, x.astype(np.float64))
    assert same(x, x[:, None])
    assert same(x + 1, x)
    assert same(np.full(3, np.nan, np.float32), x)
    assert same(x, np.full(3, np.nan, np.float32)) == ""  # defined where the original is not
    assert same((x, x), (x, x + 1))
    assert same(x[0], x[:1].reshape(()))
    assert same(x[0], x[:1].reshape(()), scalars=False) == ""
    assert same(ValueError("a"), ValueError("b"))
    assert same(x, ValueError("a"))
    assert same(ValueError("a"), ValueError("a")) == ""
    assert same(np.arange(3), np.arange(3) + 1)
