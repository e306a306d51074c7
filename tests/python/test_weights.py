"""Weights: computed and packed once per set of arrays, by identity."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera.errors import UsageError

RNG = np.random.default_rng(5)


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [RNG.standard_normal(s).astype(np.float32) for s in shapes]


def folded() -> ts.Graph:
    g = ts.Graph("folded")
    x = g.input("X", (4, 64))
    gain = g.input("G", (64, 1), weight=True)
    w = g.input("W", (64, 96), weight=True)
    g.output(x @ (gain * w))
    return g


def test_text_and_options_agree() -> None:
    g = folded()
    assert "W = input {weight=true} : f32[64,96]" in str(g)
    assert ts.Graph.parse(str(g)) == g
    plain = ts.Graph("folded")
    x, gain, w = plain.input("X", (4, 64)), plain.input("G", (64, 1)), plain.input("W", (64, 96))
    plain.output(x @ (gain * w))
    assert plain != g
    result = ts.superoptimize(plain, weights=("G", "W"), budget=2, cache=False)
    assert result.original == g
    assert result.weights == ["G", "W"]
    with pytest.raises(UsageError, match="no input 'V'"):
        ts.superoptimize(plain, weights=("V",))
    with pytest.raises(UsageError, match="tuple of names"):
        ts.Options(weights="W")  # type: ignore[arg-type]


def test_kept_by_identity_until_refreshed() -> None:
    result = ts.superoptimize(folded(), budget=2, cache=False)
    x, gain, w = arrays((4, 64), (64, 1), (64, 96))
    first = result(x, gain, w)
    np.testing.assert_allclose(first, x @ (gain * w), rtol=1e-4, atol=1e-4)
    assert result.prepared_bytes > 0
    # Other arrays are other weights, whatever was kept before.
    w2 = w * 2
    np.testing.assert_allclose(result(x, gain, w2), x @ (gain * w2), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(result(x, gain, w), first)
    # A change the caller promised not to make shows after refresh().
    w *= 3
    np.testing.assert_array_equal(result(x, gain, w), first)
    result.refresh()
    np.testing.assert_allclose(result(x, gain, w), x @ (gain * w), rtol=1e-4, atol=1e-4)


def test_many_sets_views_and_arrays_that_come_and_go() -> None:
    result = ts.superoptimize(folded(), budget=2, cache=False)
    x, gain, w = arrays((4, 64), (64, 1), (64, 96))
    for i in range(20):  # freed arrays' addresses and ids are used again
        other = w + np.float32(i)
        np.testing.assert_allclose(result(x, gain, other), x @ (gain * other), rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(result(x, gain, w[:]), x @ (gain * w), rtol=1e-3, atol=1e-3)
    strided = arrays((96, 64))[0].T  # not contiguous: adapted once
    for _ in range(3):
        np.testing.assert_allclose(
            result(x, gain, strided), x @ (gain * strided), rtol=1e-3, atol=1e-3
        )


def test_decorator() -> None:
    @ts.optimize(weights=("W",), budget=2, cache=False)
    def f(X: np.ndarray, W: np.ndarray) -> np.ndarray:
        y: np.ndarray = np.tanh(X @ W)
        return y

    x, w = arrays((8, 32), (32, 64))
    np.testing.assert_allclose(f(x, w), np.tanh(x @ w), rtol=1e-4, atol=1e-4)
    result = f.result(x, w)
    assert result is not None
    assert result.weights == ["W"]


@pytest.mark.parametrize("name", ["layout", "schedule", "memory", "weights"])
def test_each_decision_can_be_switched_off(name: str) -> None:
    result = ts.superoptimize(folded(), budget=2, cache=False, disable=(f"plan:{name}",))
    x, gain, w = arrays((4, 64), (64, 1), (64, 96))
    np.testing.assert_allclose(result(x, gain, w), x @ (gain * w), rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match="plan:layout"):
        ts.superoptimize(folded(), disable=("plan:nothing",))


def test_certificate_says_so() -> None:
    g = folded()
    verdict = ts.verify(g, g)
    assert verdict.equal
    assert "weights, the same in every call: G, W" in str(verdict.certificate)


def test_ablation_names_every_decision() -> None:
    from bench import ablate
    from tessera.options import Options

    (row,) = ablate.run(Options(budget=2, cache=False), "lora", None, quick=True)
    assert set(row["ablation"]) == set(ablate.DECISIONS)
    assert all(v > 0 for v in row["ablation"].values())
    assert row["plan"]["barriers"] == row["plan"]["least_barriers"]
    assert row["plan"]["kept_bytes"] > 0
    assert row["plan_without"]["plan:weights"]["kept_bytes"] == 0
    assert row["plan_without"]["plan:layout"]["packed"] == 0
