"""Programs with kernels (src/plan: row_groups, fuse, join_products)."""

from __future__ import annotations

import numpy as np
import pytest

from tessera import _core
from tessera.graph import Graph
from tessera.tensor import Tensor


def fuse(g: Graph) -> Graph:
    return Graph.from_core(_core.compile(g.core).graph)


def _norm(g: Graph, x: Tensor) -> Tensor:
    centred = x - g.mean(x, axis=-1, keepdims=True)
    variance = g.mean(g.sqr(centred), axis=-1, keepdims=True)
    scaled: Tensor = centred * g.rsqrt(variance + 1e-5)
    return scaled


def _softmax(g: Graph, x: Tensor) -> Tensor:
    e = g.exp(x - g.max(x, axis=-1, keepdims=True))
    made: Tensor = e / g.sum(e, axis=-1, keepdims=True)
    return made


def _kinds(g: Graph) -> list[str]:
    return [op["op"] for op in g.ops if op["op"] not in ("input", "const", "reshape", "slice")]


def _same(g: Graph) -> Graph:
    fused = fuse(g)
    fused.validate()
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 4, t.shape).astype(t.dtype) if t.dtype.kind == "i"
              else rng.standard_normal(t.shape).astype(t.dtype) for t in g.inputs]  # fmt: skip
    for a, b in zip(g.run(*arrays), fused.run(*arrays), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return fused


def _compiled(g: Graph) -> list[str]:
    """Kinds of the operators that are left; compiled code computes what the program does."""
    fused = _same(g)
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(t.shape).astype(t.dtype) for t in g.inputs]
    module = _core.compile(g.core)
    results = [np.empty(t.shape, t.dtype) for t in fused.outputs]
    module.run(arrays, results)
    for a, b in zip(results, g.run(*arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)
    return _kinds(fused)


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


def test_what_a_product_reads_and_what_reads_it_stay_apart() -> None:
    g = Graph("apart")
    x, w = g.input("x", (6, 8)), g.input("w", (8, 8))
    y = g.exp(x) + 1.0
    z = y * (y @ w)
    g.output(g.sqrt(g.abs(z)) + y)
    assert _kinds(_same(g)) == ["kernel", "kernel"]


def test_masks_that_repeat_are_read_where_they_lie() -> None:
    g = Graph("mask")
    x, mask = g.input("x", (2, 3, 4, 8)), g.input("m", (2, 1, 1, 8))
    g.output(_softmax(g, x * 0.5 + mask))
    assert _kinds(_same(g)) == ["kernel"]


def test_weights_are_still_prepared_once() -> None:
    g = Graph("weights")
    x, w = g.input("x", (6, 8)), g.input("w", (8, 8), weight=True)
    g.output(x @ (g.exp(w) * 2.0))
    assert _kinds(_same(g)) == ["exp", "mul", "matmul"]
    assert fuse(g).core.is_weight(1)


def test_bias_gelu_and_residual_end_a_product() -> None:
    g = Graph("linear")
    x, w = g.input("x", (2, 3, 8)), g.input("w", (32, 8), weight=True)
    b, r = g.input("b", (32,)), g.input("r", (2, 3, 32))
    y = g.reshape(x, (6, 8)) @ g.transpose(w)
    g.output(g.gelu(g.reshape(y, (2, 3, 32)) + b) + r)
    assert _compiled(g) == ["kernel"]


def test_a_norm_behind_a_product_is_part_of_it() -> None:
    g = Graph("postnorm")
    x, w, r = g.input("x", (6, 8)), g.input("w", (8, 512)), g.input("r", (6, 512))
    s = x @ w + r
    g.output(_norm(g, s))
    g.output(s)
    assert _compiled(g) == ["kernel"]


def test_a_norm_behind_large_weights_is_a_kernel_of_its_own() -> None:
    for depth, kernels in ((1024, 1), (1056, 2)):  # of 1024 columns: up to 4 MB
        g = Graph("norm")
        x, w, r = g.input("x", (16, depth)), g.input("w", (depth, 1024)), g.input("r", (16, 1024))
        g.output(_norm(g, x @ w + r))
        assert _kinds(fuse(g)) == ["kernel"] * kernels


@pytest.mark.parametrize("groups", [1, 2])
def test_joined_heads_go_through_attention_without_copies(groups: int) -> None:
    g = Graph("attention")
    b, s, h, d = 2, 5, 4, 8
    x = g.input("x", (b * s, 16))
    q, k, v = (
        g.transpose(
            g.reshape(x @ g.transpose(g.input(n, (m * d, 16), weight=True)) + g.input(
                "b" + n, (m * d,), weight=True), (b, s, m, d)), (0, 2, 1, 3))
        for n, m in (("q", h), ("k", h // groups), ("v", h // groups))
    )  # fmt: skip
    if groups > 1:  # keys and values that heads share
        k, v = (g.reshape(g.broadcast_to(g.expand_dims(t, 2), (b, h // groups, groups, s, d)),
                          (b, h, s, d)) for t in (k, v))  # fmt: skip
    mask = g.input("mask", (b, 1, s, s))
    p = _softmax(g, (q @ g.transpose(k, (0, 1, 3, 2))) * 0.3 + mask)
    y = g.reshape(g.transpose(p @ v, (0, 2, 1, 3)), (b * s, h * d))
    g.output(y @ g.transpose(g.input("o", (16, h * d), weight=True)))
    kinds = [k for k in _compiled(g) if k not in ("concat", "transpose", "broadcast")]
    assert kinds == ["kernel", "kernel", "kernel"]
    assert _core.compile(g.core).plan_facts["run_tasks"] == 3


def test_gate_and_up_are_one_kernel() -> None:
    g = Graph("swiglu")
    x = g.input("x", (6, 8))
    gate, up = (x @ g.transpose(g.input(n, (24, 8), weight=True)) for n in ("gate", "up"))
    g.output(g.silu(gate) * up)
    assert _compiled(g) == ["kernel"]


def test_halves_that_rotate_are_one_kernel() -> None:
    g = Graph("rotary")
    x = g.transpose(g.input("x", (2, 5, 3, 8)), (0, 2, 1, 3))
    cos, sin = g.input("cos", (2, 1, 5, 8)), g.input("sin", (2, 1, 5, 8))
    turned = g.concatenate([-x[..., 4:], x[..., :4]], -1)
    g.output(x * cos + turned * sin)
    assert _compiled(g) == ["kernel"]


def test_embedding_sum_and_norm_are_one_kernel() -> None:
    g = Graph("embedding")
    at, kind = g.input("at", (1, 6), "i64"), g.input("kind", (1, 6), "i64")
    words, kinds = g.input("words", (4, 8)), g.input("kinds", (4, 8))
    rows = [g.emit("gather", [t, i + 0], {"axis": 0}) for t, i in ((words, at), (kinds, kind))]
    g.output(_norm(g, rows[0] + rows[1]))
    assert _kinds(_same(g)) == ["kernel"]


def test_sums_end_rows_of_their_own_length() -> None:
    g = Graph("sums")
    x, w = g.input("x", (2, 3, 8)), g.input("w", (3,))
    inner = g.sum(x * x, axis=-1)  # of 6 rows
    outer = g.sum(inner * w, axis=-1, keepdims=True)  # of 2
    g.output(g.reshape(x, (2, 24)) * outer)
    _compiled(g)


def test_nothing_is_computed_twice_or_for_nobody() -> None:
    g = Graph("twice")
    x = g.input("x", (10, 8))
    g.exp(x)
    g.output((g.sqrt(x * x)) @ g.transpose(g.sqrt(x * x)))
    assert [o["op"] for o in fuse(g).ops if o["op"] == "exp"] == []
    assert _kinds(_same(g)) == ["kernel", "matmul"]


def test_a_cycle_of_kernels_is_not_made() -> None:
    g = Graph("cycle")
    x, y, w = g.input("x", (6, 8)), g.input("y", (6, 8)), g.input("w", (8, 8))
    a, b = g.exp(x), g.exp(y)
    c = g.exp(b @ w) + a  # a's rows end behind a product of b's
    d = g.exp((a + 1.0) @ w) + b
    g.output(c)
    g.output(d)
    _same(g)


def test_what_depends_on_a_kernel_is_not_part_of_it() -> None:
    g = Graph("behind")
    y = g.exp(g.input("x", (6, 8)) * 0.5) + 1.0
    g.output(y * g.cumsum(y, axis=1))
    assert _compiled(g) == ["kernel", "cumsum", "mul"]


def test_a_part_of_a_transposed_value_is_read_where_it_lies() -> None:
    g = Graph("scan")
    x, y = g.input("x", (12, 8, 4)), g.input("y", (12, 8, 4))
    e = g.exp(x + y)
    g.output(e)
    first = g.transpose(e, [1, 0, 2])[:1]
    g.output(g.emit("concat", [first, g.transpose(x, [1, 0, 2])[1:]], {"axis": 0}))
    fused = _same(g)
    (kernel,) = (op for op in fused.ops if op["op"] == "kernel")
    assert len(kernel["results"]) == 1


def test_what_is_transposed_and_back_is_not_moved() -> None:
    g = Graph("back")
    x, y = g.input("x", (3, 4, 5)), g.input("y", (3, 4, 5))
    there = g.transpose(g.emit("concat", [x, y], {"axis": 0}), [1, 0, 2])
    g.output(g.cumsum(g.transpose(there, [1, 0, 2]), axis=1))
    assert _kinds(_same(g)) == ["concat", "cumsum"]


def test_blocks_take_pieces_of_the_axis_that_operands_are_furthest_apart_along() -> None:
    g = Graph("scan")
    x, y = g.input("x", (512, 64, 16)), g.input("y", (512, 64, 16))
    g.output(g.transpose(x, [1, 0, 2]) * g.transpose(y, [1, 0, 2]))
    assert "iter x {imap={x:0}} : f32[16,64,16]" in str(_same(g))


def test_what_slices_share_is_computed_once() -> None:
    g = Graph("steps")
    y = g.log(g.abs(g.input("x", (100,))) + 1.0)
    g.output(y[1:] - y[:-1])
    assert _compiled(g) == ["kernel"]
    _, code = _core.compile(g.core).source.split("void k0")
    assert code.count("t_log(") == 1


def test_what_follows_from_the_last_sum_is_part_of_the_kernel() -> None:
    g = Graph("loss")
    x, y = g.input("x", (100,)), g.input("y", (100,))
    g.output(-g.mean(g.sqr(x - y)) * 2.0)
    assert _compiled(g) == ["kernel"]


def test_scalars_and_lone_operators_are_no_kernels() -> None:
    g = Graph("lone")
    x, s = g.input("x", (6, 8)), g.input("s", ())
    g.output(x[:, :4] + x[:, 4:])  # slices are read where they lie
    g.output(g.exp(s * 2.0))
    assert _compiled(g) == ["add", "mul", "exp"]


def test_narrow_products_stay_apart() -> None:
    for columns, kinds in ((4, ["matmul", "kernel"]), (16, ["kernel"])):
        g = Graph("narrow")
        x, w = g.input("x", (30, 8)), g.input("w", (8, columns))
        g.output(g.tanh(g.relu(x @ w)))
        assert _compiled(g) == kinds


@pytest.mark.parametrize("turned", ["read", "written"])
@pytest.mark.parametrize("compares", [True, False])
def test_what_compares_and_calls_functions_lies_in_order(turned: str, compares: bool) -> None:
    """Compilers make no vectors of it otherwise; of functions alone they do."""
    g = Graph("soft")
    x = g.input("x", [4, 24, 40])
    t = g.transpose(x, [0, 2, 1]) if turned == "read" else x
    soft = g.log1p(g.exp(t))
    if compares:
        soft = g.where(t > 20.0, t, soft)
    soft = g.tanh(soft)
    g.output(soft if turned == "read" else g.transpose(soft, [0, 2, 1]))
    assert ("transpose" in _kinds(_same(g))) == compares
