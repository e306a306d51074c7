"""The same program built by hand, with the fused kernel of Mirage's Fig. 3b beside it.

tessera verify examples/builder.py:spec examples/builder.py:fused
"""

import tessera as ts

spec = ts.Graph("rmsnorm_linear")
X = spec.input("X", (16, 1024), "f32")
G = spec.input("G", (1024,), "f32")
W = spec.input("W", (1024, 4096), "f32")
spec.output(spec.matmul(X * G / spec.sqrt(spec.mean(X * X, axis=-1, keepdims=True)), W))

fused = ts.Graph("rmsnorm_linear_fused")
X = fused.input("X", (16, 1024), "f32")
G = fused.input("G", (1024,), "f32")
W = fused.input("W", (1024, 4096), "f32")
# 128 blocks share the columns of W, each walks along the contracted axis in 16 steps.
with fused.kernel([X, G, W], grid=[128], loops=[16]) as k:
    x = k.iter(X, fmap=[1])
    g = k.iter(G, fmap=[0])
    w = k.iter(W, imap=[1], fmap=[0])
    product = k.accum(k.matmul(x * g, w))
    squares = k.accum(k.sum(k.square(x), axis=1, keepdims=True))
    k.save(product / k.sqrt(squares / 1024), omap=[1], name="O")
fused.output(k.outputs[0])
