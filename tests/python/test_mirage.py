"""Mirage's six benchmark programs through `tessera.mirage`, at sizes that suit a test."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
import tessera.mirage as mi
from tessera.errors import BadInputError, UsageError

Array = np.ndarray[Any, np.dtype[Any]]
Build = Callable[[mi.KernelGraph, Any], tuple[list[tuple[int, ...]], Callable[..., Array]]]


def rms(x: Array) -> Array:
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True)))


def attention(q: Array, k: Array, v: Array) -> Array:
    e = np.exp(q @ k)
    return np.asarray(e / e.sum(-1, keepdims=True) @ v)


def group_query_attention(graph: mi.KernelGraph, dtype: Any) -> Any:
    Q = graph.new_input(dims=(2, 16, 32), dtype=dtype)
    K = graph.new_input(dims=(2, 32, 128), dtype=dtype)
    V = graph.new_input(dims=(2, 128, 32), dtype=dtype)
    E = graph.exp(graph.matmul(Q, K))
    graph.mark_output(graph.matmul(graph.div(E, graph.reduction(E, 2)), V))
    return attention


def qknorm_gqa(graph: mi.KernelGraph, dtype: Any) -> Any:
    Q = graph.new_input(dims=(2, 16, 32), dtype=dtype)
    K = graph.new_input(dims=(2, 32, 128), dtype=dtype)
    V = graph.new_input(dims=(2, 128, 32), dtype=dtype)
    Q = graph.rms_norm(Q, normalized_shape=(32,))
    V = graph.rms_norm(V, normalized_shape=(32,))
    E = graph.exp(graph.matmul(Q, K))
    graph.mark_output(graph.matmul(graph.div(E, graph.reduction(E, 2)), V))
    return lambda q, k, v: attention(rms(q), k, rms(v))


def rmsnorm(graph: mi.KernelGraph, dtype: Any) -> Any:
    X = graph.new_input(dims=(4, 256), dtype=dtype)
    W = graph.new_input(dims=(256, 96), dtype=dtype)
    graph.mark_output(graph.matmul(graph.rms_norm(X, normalized_shape=(256,)), W))
    return lambda x, w: rms(x) @ w


def lora(graph: mi.KernelGraph, dtype: Any) -> Any:
    X = graph.new_input(dims=(16, 64), dtype=dtype)
    W = graph.new_input(dims=(64, 128), dtype=dtype)
    A = graph.new_input(dims=(64, 4), dtype=dtype)
    B = graph.new_input(dims=(4, 128), dtype=dtype)
    graph.mark_output(graph.add(graph.matmul(graph.matmul(X, A), B), graph.matmul(X, W)))
    return lambda x, w, a, b: x @ w + (x @ a) @ b


def gated_mlp(graph: mi.KernelGraph, dtype: Any) -> Any:
    X = graph.new_input(dims=(8, 128), dtype=dtype)
    W1 = graph.new_input(dims=(128, 96), dtype=dtype)
    W2 = graph.new_input(dims=(128, 96), dtype=dtype)
    graph.mark_output(graph.mul(graph.silu(graph.matmul(X, W1)), graph.matmul(X, W2)))
    return lambda x, a, b: (x @ a) / (1 + np.exp(-(x @ a))) * (x @ b)


def norm_transformer(graph: mi.KernelGraph, dtype: Any) -> Any:
    H = graph.new_input(dims=(8, 128), dtype=dtype)
    X = graph.new_input(dims=(8, 128), dtype=dtype)
    alpha = graph.new_input(dims=(8, 128), dtype=dtype)
    A = graph.add(graph.rms_norm(H, normalized_shape=(128,)), X)
    O = graph.add(X, graph.mul(alpha, A))  # noqa: E741
    graph.mark_output(graph.rms_norm(O, normalized_shape=(128,)))
    return lambda h, x, a: rms(x + a * (rms(h) + x))


PROGRAMS = [group_query_attention, qknorm_gqa, rmsnorm, lora, gated_mlp, norm_transformer]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("dtype", [mi.float32, mi.bfloat16])
def test_their_programs_run(program: Any, dtype: str) -> None:
    graph = mi.new_kernel_graph()
    expected = program(graph, dtype)
    rng = np.random.default_rng(0)
    inputs = [
        (rng.standard_normal(shape) / np.sqrt(shape[-2])).astype(kind)
        for kind, shape in graph.graph.input_types().values()
    ]
    exact = expected(*[x.astype(np.float64) for x in inputs])
    with pytest.warns(UserWarning, match="config not needed here"):
        fast = graph.superoptimize(config="attention", budget=5)
    (output,) = fast(inputs=inputs)
    tolerance = 1e-5 if dtype == mi.float32 else 5e-2
    scale = np.abs(exact).max()
    assert np.abs(output.astype(np.float64) - exact).max() < tolerance * scale
    (interpreted,) = graph(inputs=inputs)
    assert np.abs(interpreted.astype(np.float64) - exact).max() < tolerance * scale
    assert isinstance(fast.result, ts.Result)


def test_operators() -> None:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(4, 8), dtype=mi.float32)
    Y = graph.new_input(dims=(4, 8), dtype=mi.float32)
    for op in (graph.relu, graph.gelu, graph.sqrt, graph.square, graph.exp, graph.silu):
        graph.mark_output(op(X))
    graph.mark_output(graph.clamp(X, 0.5, 1.0))
    graph.mark_output(graph.sub(X, Y))
    graph.mark_output(graph.pow(X, 2))
    x = np.linspace(0.1, 2, 32, dtype=np.float32).reshape(4, 8)
    relu, gelu, sqrt, square, _, silu, clamp, sub, power = graph(inputs=[x, 2 * x])
    np.testing.assert_allclose(relu, x)
    assert (gelu < x).all()
    np.testing.assert_allclose(sqrt, np.sqrt(x), rtol=1e-6)
    np.testing.assert_allclose(square, x * x, rtol=1e-6)
    np.testing.assert_allclose(silu, x / (1 + np.exp(-x)), rtol=1e-6)
    np.testing.assert_allclose(clamp, np.clip(x, 0.5, 1.0))
    np.testing.assert_allclose(sub, -x)
    np.testing.assert_allclose(power, x * x, rtol=1e-6)


def test_a_kernel_by_hand() -> None:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(4, 64), dtype=mi.float32)
    W = graph.new_input(dims=(64, 32), dtype=mi.float32)
    block = mi.new_threadblock_graph(
        grid_dim=(8, 1, 1), block_dim=(128, 1, 1), forloop_range=4, reduction_dimx=64
    )
    x = block.new_input(dtensor=X, input_map=(-1, -1, -1), forloop_dim=1)
    w = block.new_input(dtensor=W, input_map=(1, -1, -1), forloop_dim=0)
    product = block.forloop_accum(block.matmul(x, w))
    norm = block.forloop_accum(x, "rms")
    block.new_output(stensor=block.div(product, norm), output_map=(1, -1, -1))
    (O,) = graph.customized([X, W], block)  # noqa: E741
    graph.mark_output(O)

    spec = mi.new_kernel_graph()
    X = spec.new_input(dims=(4, 64), dtype=mi.float32)
    W = spec.new_input(dims=(64, 32), dtype=mi.float32)
    spec.mark_output(spec.matmul(spec.rms_norm(X), W))
    assert ts.verify(spec.graph, graph.graph)


def test_mistakes_are_named() -> None:
    graph = mi.new_kernel_graph()
    with pytest.raises(UsageError, match="row-major"):
        graph.new_input(dims=(4, 8), strides=(1, 4), dtype=mi.float32)
    X = graph.new_input(dims=(4, 8), strides=(8, 1), dtype=mi.float32)
    with pytest.raises(BadInputError, match="normalized_shape"):
        graph.rms_norm(X, normalized_shape=(4,))
    graph.mark_output(graph.exp(X))
    with pytest.raises(UsageError, match="backend 'cuda'"):
        graph.superoptimize(backend="cuda")
    with pytest.raises(UsageError, match="no option 'bogus'"):
        graph.superoptimize(bogus=1)
