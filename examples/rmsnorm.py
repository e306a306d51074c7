"""RMSNorm followed by a linear layer, as anybody would write it in NumPy (Mirage, OSDI'25, Fig. 3).

tessera optimize examples/rmsnorm.py
"""

import numpy as np

example_inputs = {"X": "f32[16,1024]", "G": "f32[1024]", "W": "f32[1024,4096]"}


def rmsnorm_linear(X, G, W):  # type: ignore[no-untyped-def]
    norm = np.sqrt(np.mean(X * X, axis=-1, keepdims=True) + 1e-6)
    return (X * G / norm) @ W
