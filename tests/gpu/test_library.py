"""Calls of cuBLASLt and cuDNN among kernels, on the device, against the interpreter in f64."""

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
PLAIN_ONLY = ("mugraph", "patterns", "mutate", "fold")  # nothing that could beat the call
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


CONVOLUTION = """graph convolution {{
  x = input : {t}[2,16,{sizes}]
  w = input : {t}[24,{channels},{taps}]
  b = input : {t}[24{ones}]
  y = conv x, w {{{how}}}
  z = add y, b
  r = relu z
  return r
}}
"""
ATTENTION = """graph attention {{
  Q = input : {t}[2,{group}32,64]
  K = input : {t}[2,{one}48,64]
  V = input : {t}[2,{one}48,64]
  kt = transpose K {{perm=[{perm}]}}
  f = const {{value=0.125}} : {t}[]
  s = matmul Q, kt
  {scaled} = mul s, f
  {mask}
  m = reduce_max z {{axes=[{last}], keepdims=true}}
  c = sub z, m
  e = exp c
  d = sum e {{axes=[{last}], keepdims=true}}
  p = div e, d
  O = matmul p, V
  return O
}}
"""
CAUSAL = """big = const {{value=-60000}} : {t}[32,48]
  up = triu big {{k=1}}
  z = add u, up"""
HEADS = {"group": "3,", "one": "1,", "perm": "0,1,3,2", "last": 3}
PLANE = {"group": "", "one": "", "perm": "0,2,1", "last": 2}
CUDNN = {
    f"{name}-{t}": text.format(t=t, **more)
    for t in ("f16", "bf16", "f32")
    for name, text, more in (
        ("conv1", CONVOLUTION, {"sizes": "40", "channels": 16, "taps": "5", "ones": ",1",
                                "how": "strides=[2], low=[2], high=[2]"}),
        ("conv2", CONVOLUTION, {"sizes": "20,18", "channels": 16, "taps": "3,3", "ones": ",1,1",
                                "how": "low=[1,1], high=[1,1]"}),
        ("groups", CONVOLUTION, {"sizes": "20,18", "channels": 8, "taps": "3,3", "ones": ",1,1",
                                 "how": "dilations=[2,1], groups=2"}),
        ("uneven", CONVOLUTION, {"sizes": "20,18", "channels": 16, "taps": "3,3", "ones": ",1,1",
                                 "how": "low=[0,1], high=[2,0]"}),
        ("conv3", CONVOLUTION, {"sizes": "4,5,6", "channels": 16, "taps": "3,3,3",
                                "ones": ",1,1,1", "how": "low=[1,1,1], high=[1,1,1]"}),
    )
}  # fmt: skip
CUDNN |= {
    f"{name}-{t}": ATTENTION.format(
        t=t, mask=mask.format(t=t), scaled="u" if mask else "z", **heads
    )
    for t in ("f16", "bf16")
    for name, mask, heads in (
        ("attention", "", PLANE),
        ("causal", CAUSAL, PLANE),
        ("groups of heads", CAUSAL, HEADS),
    )
}

WINDOWS = {name: CUDNN[name] for name in CUDNN if "conv" in name or "groups-" in name}
WINDOWS |= {
    f"{kind}-{t}": f"graph g {{\nx = input : {t}[4,16,28,28]\nw = input : {t}[16,{c},3,3]\n"
    f"y = {kind} x, w {{{how}}}\np = pool_max y {{size=[3,3], strides=[2,2], low=[1,1]}}\n"
    "q = pool_sum y {size=[2,2]}\nreturn p, q\n}"
    for t in ("f16", "bf16", "f32")
    for kind, c, how in (("conv", 1, "groups=16"), ("conv_transpose", 16, "strides=[2,2]"))
}


def needs(library: str) -> None:
    problem = _core.cuda_machine()[f"{library}_problem"]
    if problem:
        pytest.skip(problem)


@pytest.mark.parametrize("name", PROGRAMS)
def test_products_with_epilogues(name: str) -> None:
    needs("cublaslt")
    graph = ts.Graph.parse(PROGRAMS[name])
    result = ts.superoptimize(graph, target="cuda", budget=30, cache=False, disable=PLAIN_ONLY)
    assert [k["library"] for k in result.kernels if "library" in k] == ["cuBLASLt"]
    arrays = random_arrays(graph, 1)
    for _ in range(2):
        wrong = difference(graph, arrays, on_device(result, arrays))
        assert not wrong, f"{wrong}\n{graph}"


@pytest.mark.parametrize("name", CUDNN)
def test_convolutions_and_attention(name: str) -> None:
    needs("cudnn")
    graph = ts.Graph.parse(CUDNN[name])
    result = ts.superoptimize(graph, target="cuda", budget=30, cache=False, disable=PLAIN_ONLY)
    assert [k["library"] for k in result.kernels if "library" in k] == ["cuDNN"]
    arrays = random_arrays(graph, 1)
    for _ in range(2):
        wrong = difference(graph, arrays, on_device(result, arrays))
        assert not wrong, f"{wrong}\n{graph}"


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_by_kernels(name: str) -> None:
    """Convolutions and pooling without a library."""
    graph = ts.Graph.parse(WINDOWS[name])
    result = ts.superoptimize(
        graph, target="cuda", budget=30, cache=False, disable=("library", *PLAIN_ONLY)
    )
    assert not any("library" in k for k in result.kernels)
    arrays = random_arrays(graph, 1)
    wrong = difference(graph, arrays, on_device(result, arrays))
    assert not wrong, f"{wrong}\n{graph}\n{result.kernel_source}"
