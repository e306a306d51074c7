"""The programs that the benchmarks run, written once over an array namespace (NumPy, torch, jax).

Shapes follow Mirage (OSDI'25, §8.1 and Fig. 3) where it has the program; variants are named in
`case` as workload@variant.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tessera.types import to_numpy

Function = Callable[..., Any]


@dataclass(frozen=True)
class Workload:
    """A function of an array namespace and arrays, with the shapes of its variants."""

    name: str
    function: Function  # (xp, *arrays) → array
    shapes: dict[str, tuple[int, ...]]
    variants: dict[str, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    flops: Callable[[dict[str, tuple[int, ...]]], float] = lambda shapes: 0.0

    def cases(self) -> list[tuple[str, dict[str, tuple[int, ...]]]]:
        """Case names with their shapes, the plain one first."""
        return [(self.name, self.shapes)] + [
            (f"{self.name}@{variant}", {**self.shapes, **changed})
            for variant, changed in self.variants.items()
        ]

    def numpy(self) -> Function:
        """The program as a plain NumPy function."""

        def program(*arrays: Any) -> Any:
            return self.function(np, *arrays)

        program.__name__ = self.name
        # Parameters are named like the arrays, for reports.
        program.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in self.shapes]
        )
        return program

    def arrays(
        self, shapes: dict[str, tuple[int, ...]], dtype: str = "f32", seed: int = 0
    ) -> list[np.ndarray[Any, np.dtype[Any]]]:
        """Random arguments; weights scaled so that results stay near 1."""
        rng = np.random.default_rng(seed)
        return [
            (rng.standard_normal(s, dtype=np.float32) / np.sqrt(s[-2] if len(s) > 1 else 1)).astype(
                to_numpy(dtype)
            )
            for s in shapes.values()
        ]


def _rms(xp: Any, x: Any) -> Any:
    return xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def rmsnorm_linear(xp: Any, X: Any, G: Any, W: Any) -> Any:
    """Mirage's Fig. 3: RMSNorm with gain, then a linear layer."""
    return xp.matmul(X * G / _rms(xp, X), W)


def gated_mlp(xp: Any, X: Any, W1: Any, W2: Any) -> Any:
    """silu(X·W1) ∘ (X·W2)."""
    a = xp.matmul(X, W1)
    return a / (1 + xp.exp(-a)) * xp.matmul(X, W2)


def lora(xp: Any, X: Any, W: Any, A: Any, B: Any) -> Any:
    """A linear layer with a low-rank correction: X·W + (X·A)·B."""
    return xp.matmul(X, W) + xp.matmul(xp.matmul(X, A), B)


def attention(xp: Any, Q: Any, K: Any, V: Any) -> Any:
    """Grouped-query attention, with the shift that keeps exp finite."""
    scores = xp.matmul(Q, K)
    weights = xp.exp(scores - xp.amax(scores, axis=-1, keepdims=True))
    return xp.matmul(weights / xp.sum(weights, axis=-1, keepdims=True), V)


def qknorm_attention(xp: Any, Q: Any, K: Any, V: Any) -> Any:
    """Attention on RMS-normalised queries and keys."""
    q = Q / _rms(xp, Q)
    k = K / xp.sqrt(xp.mean(K * K, axis=-2, keepdims=True) + 1e-6)
    return attention(xp, q, k, V)


def ntrans(xp: Any, H: Any, X: Any, A: Any) -> Any:
    """The normalised transformer's residual step: N(X + α(N(H) − X))."""
    step = X + A * (H / _rms(xp, H) - X)
    return step / _rms(xp, step)


def softmax(xp: Any, X: Any) -> Any:
    """Softmax over the last axis, with the shift that keeps exp finite."""
    e = xp.exp(X - xp.amax(X, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def layernorm(xp: Any, X: Any, G: Any, B: Any) -> Any:
    """LayerNorm with gain and bias."""
    d = X - xp.mean(X, axis=-1, keepdims=True)
    return d / xp.sqrt(xp.mean(d * d, axis=-1, keepdims=True) + 1e-5) * G + B


def _rows(s: dict[str, tuple[int, ...]], left: str, right: str) -> float:
    *batch, m, k = s[left]
    return 2.0 * float(np.prod(batch)) * m * k * s[right][-1]


WORKLOADS: dict[str, Workload] = {
    w.name: w
    for w in (
        Workload(
            "rmsnorm_linear",
            rmsnorm_linear,
            {"X": (16, 1024), "G": (1024,), "W": (1024, 4096)},
            {"b1": {"X": (1, 1024)}, "b8": {"X": (8, 1024)}},
            lambda s: _rows(s, "X", "W"),
        ),
        Workload(
            "gated_mlp",
            gated_mlp,
            {"X": (8, 4096), "W1": (4096, 4096), "W2": (4096, 4096)},
            {},
            lambda s: 2 * _rows(s, "X", "W1"),
        ),
        Workload(
            "lora",
            lora,
            {"X": (16, 256), "W": (256, 4096), "A": (256, 16), "B": (16, 4096)},
            {},
            lambda s: _rows(s, "X", "W") + _rows(s, "X", "A") + 2.0 * s["X"][0] * 16 * 4096,
        ),
        Workload(
            "attention",
            attention,
            {"Q": (2, 256, 64), "K": (2, 64, 4096), "V": (2, 4096, 64)},
            {},
            lambda s: 2 * _rows(s, "Q", "K"),
        ),
        Workload(
            "qknorm_attention",
            qknorm_attention,
            {"Q": (2, 256, 64), "K": (2, 64, 4096), "V": (2, 4096, 64)},
            {},
            lambda s: 2 * _rows(s, "Q", "K"),
        ),
        Workload("ntrans", ntrans, {"H": (8, 4096), "X": (8, 4096), "A": (4096,)}),
        Workload("softmax", softmax, {"X": (512, 1024)}),
        Workload("layernorm", layernorm, {"X": (512, 1024), "G": (1024,), "B": (1024,)}),
    )
}
# The suites that run workloads; the others of Mirage's six join as their engines are ready.
MIRAGE = ("rmsnorm_linear", "gated_mlp", "lora", "attention", "qknorm_attention", "ntrans")
