"""A function that is optimised while it is used.

python examples/decorator.py
"""

import numpy as np

import tessera as ts


@ts.optimize(budget=10)
def attention(Q, K, V):  # type: ignore[no-untyped-def]
    scores = Q @ K.swapaxes(-1, -2) / 8
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ V


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 512, 64), dtype=np.float32)
    print(attention(q, k, v)[0, :4])  # the original
    print(*attention.status())
    attention.wait()
    print(attention(q, k, v)[0, :4])
    print(*attention.status())
