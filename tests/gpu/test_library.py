"""Products by cuBLASLt among kernels, on the device, against the interpreter in f64."""

from __future__ import annotations

import pytest

import tessera as ts
from gpu.running import difference, on_device, random_arrays
from tessera import _core

PLAIN = """graph plain {{
  x = input : {t}[{b}48,72]
  w = input : {t}[72,40]
  e = tanh x
  p = matmul e, w
  y = tanh p
  return y
}}
"""
# One block: so slow that any call is faster.
FUSED = """graph fused {{
  X = input : {t}[64,2048]
  W = input : {t}[2048,64]
  B = input : {t}[64]
  O = kernel X, W, B grid[x=1] loops[i=32] {{
    X = input : {t}[64,2048]
    W = input : {t}[2048,64]
    B = input : {t}[64]
    x = iter X {{fmap={{i:1}}}}
    w = iter W {{fmap={{i:0}}}}
    p = matmul x, w
    a = accum p {{loops=[0]}}
    b = iter B {{}}
    c = add a, b
    r = {activation} c
    o = save r {{}} : {t}[64,64]
    return o
  }}
  return O
}}
"""
PROGRAMS = {
    f"{name}-{t}": text.format(t=t, **more)
    for t in ("f16", "bf16", "f32")
    for name, text, more in (
        ("plain", PLAIN, {"b": ""}),
        ("batched", PLAIN, {"b": "3,"}),
        ("relu", FUSED, {"activation": "relu"}),
        ("gelu", FUSED, {"activation": "gelu_tanh"}),
    )
}


@pytest.fixture(autouse=True)
def library() -> None:
    problem = _core.cuda_machine()["cublaslt_problem"]
    if problem:
        pytest.skip(problem)


@pytest.mark.parametrize("name", PROGRAMS)
def test_products_with_epilogues(name: str) -> None:
    graph = ts.Graph.parse(PROGRAMS[name])
    result = ts.superoptimize(
        graph, target="cuda", budget=30, cache=False, disable=("mugraph", "fold")
    )
    assert [k["library"] for k in result.kernels if "library" in k] == ["cuBLASLt"]
    arrays = random_arrays(graph, 1)
    for _ in range(2):
        wrong = difference(graph, arrays, on_device(result, arrays))
        assert not wrong, f"{wrong}\n{graph}"
