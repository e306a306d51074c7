"""Rows fused to kernels (frontends/torch/fuse.py), which needs no PyTorch."""

from __future__ import annotations

import numpy as np

from tessera.frontends.torch.fuse import fuse_rows
from tessera.graph import Graph, Tensor


def _norm(g: Graph, x: Tensor) -> Tensor:
    centred = x - g.mean(x, axis=-1, keepdims=True)
    variance = g.mean(g.sqr(centred), axis=-1, keepdims=True)
    scaled: Tensor = centred * g.rsqrt(variance + 1e-5)
    return scaled


def _kinds(g: Graph) -> list[str]:
    return [op["op"] for op in g.ops if op["op"] not in ("input", "const", "reshape")]


def _same(g: Graph) -> Graph:
    fused = fuse_rows(g)
    fused.validate()
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(t.shape).astype(t.dtype) for t in g.inputs]
    for a, b in zip(g.run(*arrays), fused.run(*arrays), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return fused


def test_a_residual_norm_with_scale_is_one_kernel() -> None:
    g = Graph("norm")
    x, r = g.input("x", (2, 5, 8)), g.input("r", (2, 5, 8))
    w, b = g.input("w", (8,)), g.input("b", (8,))
    g.output(_norm(g, x + r) * w + b)
    assert _kinds(_same(g)) == ["kernel"]


def test_what_others_read_is_stored_too() -> None:
    g = Graph("both")
    x, w = g.input("x", (6, 8)), g.input("w", (8, 8))
    y = g.exp(x * 2.0) + 1.0
    top = g.max(y, axis=-1, keepdims=True)
    g.output(g.relu(y - top))
    g.output(top)
    g.output(y @ w)
    assert _kinds(_same(g)) == ["kernel", "matmul"]


def test_a_product_between_members_keeps_them_apart() -> None:
    g = Graph("apart")
    x, w = g.input("x", (6, 8)), g.input("w", (8, 8))
    y = g.exp(x) + 1.0
    z = y * (y @ w)  # reads y, which was there, and a product, which was not
    g.output(g.sqrt(g.abs(z)) + y)
    assert _kinds(_same(g)) == ["kernel", "matmul", "kernel"]


def test_operands_that_lie_otherwise_stay_outside() -> None:
    g = Graph("mask")
    x, mask = g.input("x", (2, 3, 4, 8)), g.input("m", (2, 1, 1, 8))
    s = x * 0.5 + mask
    e = g.exp(s - g.max(s, axis=-1, keepdims=True))
    g.output(e / g.sum(e, axis=-1, keepdims=True))
    assert _kinds(_same(g)).count("kernel") == 1
    assert "add" in _kinds(_same(g))


def test_weights_are_still_prepared_once() -> None:
    g = Graph("weights")
    x, w = g.input("x", (6, 8)), g.input("w", (8, 8), weight=True)
    g.output(x @ (g.exp(w) * 2.0))
    assert _kinds(_same(g)) == ["exp", "mul", "matmul"]
    assert fuse_rows(g).core.is_weight(1)
