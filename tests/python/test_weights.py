"""Weights: computed and packed once for their values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import UsageError
from tessera.runner import Runner

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
    with pytest.raises(UsageError, match="tuple of texts"):
        ts.Options(weights="W")


def check(result: ts.Result, x: np.ndarray, gain: np.ndarray, w: np.ndarray) -> None:
    for _ in range(2):
        np.testing.assert_allclose(result(x, gain, w), x @ (gain * w), rtol=1e-4, atol=1e-4)


def counted(monkeypatch: Any, result: ts.Result) -> list[int]:
    """How often weights are prepared."""
    runner = result._run
    assert isinstance(runner, Runner)
    times: list[int] = []
    prepare = runner._prepare
    monkeypatch.setattr(runner, "_prepare", lambda *args: times.append(1) or prepare(*args))
    return times


def test_changes_are_seen(monkeypatch: Any) -> None:
    result = ts.superoptimize(folded(), budget=2, cache=False)
    assert result.prepared_bytes > 0
    times = counted(monkeypatch, result)
    x, gain, w = arrays((4, 64), (64, 1), (64, 96))
    check(result, x, gain, w)
    assert len(times) == 1
    check(result, x, gain, w * 2)  # other arrays
    check(result, x, gain, w)
    assert len(times) == 2
    w *= 3
    check(result, x, gain, w)
    assert len(times) == 3
    w[63, 95] += 100  # one element
    check(result, x, gain, w)
    memoryview(w).cast("B")[0:4] = b"\0\0\0\x40"
    check(result, x, gain, w)
    turned = np.asfortranarray(w)  # the module reads a copy
    check(result, x, gain, turned)
    turned[:, 7] = 5
    check(result, x, gain, turned)
    base = np.zeros((128, 192), np.float32)
    part = base[::-2, ::2]
    base[...] = RNG.standard_normal(base.shape)
    check(result, x, gain, part)
    base *= 2
    check(result, x, gain, part)
    rows = w.tolist()
    plain = np.array(rows, np.float32)
    np.testing.assert_allclose(result(x, gain, rows), x @ (gain * plain), rtol=1e-4, atol=1e-4)
    rows[0] = [9.0] * 96
    plain = np.array(rows, np.float32)
    np.testing.assert_allclose(result(x, gain, rows), x @ (gain * plain), rtol=1e-4, atol=1e-4)


def test_tensors_and_memory_of_bytes(monkeypatch: Any) -> None:
    torch: Any = pytest.importorskip("torch", reason="torch is not installed")
    result = ts.superoptimize(folded(), budget=2, cache=False)
    times = counted(monkeypatch, result)
    x, gain, w = arrays((4, 64), (64, 1), (64, 96))
    tensor = torch.from_numpy(w.copy())
    for by in (1.0, -2.0):
        tensor.data.mul_(by)
        check(result, x, gain, tensor.numpy())
        np.testing.assert_allclose(
            result(x, gain, tensor), x @ (gain * tensor.numpy()), rtol=1e-4, atol=1e-4
        )
    fixed = np.frombuffer(w.tobytes(), np.float32).reshape(64, 96)
    shared = bytearray(w.tobytes())
    seen = np.frombuffer(shared, np.float32).reshape(64, 96)
    seen.flags.writeable = False
    before = len(times)
    for view in (fixed, seen):
        check(result, x, gain, view)
    assert len(times) == before + 2
    shared[:4] = b"\0\0\0\x41"  # behind an array that cannot be written
    check(result, x, gain, seen)
    assert len(times) == before + 3


def test_frozen_weights_are_known_by_identity(monkeypatch: Any) -> None:
    result = ts.superoptimize(folded(), budget=2, cache=False, freeze=True)
    x, gain, w = arrays((4, 64), (64, 1), (64, 96))
    first = result(x, gain, w)
    check(result, x, gain, w * 2)
    w *= 3  # the promise was broken
    np.testing.assert_array_equal(result(x, gain, w), first)
    result.refresh()
    check(result, x, gain, w)


def test_weights_of_a_graph() -> None:
    """Weights that the graph holds, as those of ONNX models."""
    g = folded()
    x, gain, w = arrays((4, 64), (64, 1), (64, 96))
    g.weights.update(G=gain, W=w)
    result = ts.superoptimize(g, budget=2, cache=False)
    for change in range(3):
        np.testing.assert_allclose(result(x), x @ (gain * w), rtol=1e-4, atol=1e-4)
        if change:
            g.weights["W"] = w = w + 1
        else:
            w -= 2


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
    assert set(row["ablation"]) == {*ablate.DECISIONS, ablate.THREADS}
    assert all(v > 0 for v in row["ablation"].values())
    assert row["plan"]["barriers"] == row["plan"]["least_barriers"]
    assert row["plan"]["kept_bytes"] > 0
    assert row["plan_without"]["plan:weights"]["kept_bytes"] == 0
    assert row["plan_without"]["plan:layout"]["packed"] == 0
