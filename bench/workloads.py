"""The programs that the benchmarks run: Mirage's six (OSDI'25, §8.1) in several shapes each.

A program is written once over a `Kit`: the few functions that every array library spells in its own
way, each in that library's best formulation. Names are `workload@variant`; the batch B is a
parameter of its own. Where Mirage's paper and repository differ, both are here:

- gqa, qknorm: softmax subtracts the maximum, as every library's does; `gqa@nomax` is the literal
  exp(S) / sum exp(S) of Mirage's scripts.
- qknorm: queries and keys are normalised, as the paper says; `qknorm@repo` normalises Q and V.
- ntrans: nGPT's RMS(X + α(RMS(H) − X)); `@paper` is RMS(X + α RMS(H − X)), `@repo` adds X.
- gqa@decode1k, @decode8k: a quarter of LLaMA-3-70B's heads (tensor parallelism of 4); @llama8k:
  LLaMA-3-8B; @qwen1k: Qwen3-30B; qknorm@chameleon: Chameleon-7B; gatedmlp@llama: LLaMA-3-8B.
- rmsnorm, ntrans: Mirage has no eps; here it is 1e-6 except in plain `rmsnorm`, as is usual.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tessera.errors import UsageError
from tessera.graph import Graph
from tessera.tensor import Tensor
from tessera.types import to_numpy

Array = np.ndarray[Any, np.dtype[Any]]
Program = Callable[..., Any]
Shapes = dict[str, tuple[int, ...]]


class Kit:
    """What the programs need of an array library, spelled out in NumPy's functions."""

    def __init__(self, xp: Any = np) -> None:
        self.xp = xp

    def matmul(self, a: Any, b: Any) -> Any:
        return self.xp.matmul(a, b)

    def transposed(self, a: Any) -> Any:
        return self.xp.swapaxes(a, -1, -2)

    def rms(self, x: Any, eps: float = 1e-6, axis: int = -1) -> Any:
        mean = self.xp.mean(x * x, axis=axis, keepdims=True)
        return x / self.xp.sqrt(mean + eps if eps else mean)

    def softmax(self, s: Any) -> Any:
        e = self.xp.exp(s - self.xp.amax(s, axis=-1, keepdims=True))
        return e / self.xp.sum(e, axis=-1, keepdims=True)

    def exp(self, x: Any) -> Any:
        return self.xp.exp(x)

    def sum(self, x: Any) -> Any:
        return self.xp.sum(x, axis=-1, keepdims=True)

    def silu(self, x: Any) -> Any:
        return x / (1 + self.xp.exp(-x))

    def relu(self, x: Any) -> Any:
        return self.xp.maximum(x, 0)

    def conv(self, x: Any, w: Any) -> Any:
        """3×3 filters (out, in, 3, 3) over images (batch, in, height, width), zeros around."""
        if isinstance(x, Tensor):
            return x.builder.emit("conv", [x, w], {"low": [1, 1], "high": [1, 1]})
        h, n = x.shape[-2:]
        x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        return sum(np.einsum("bchw,oc->bohw", x[:, :, i:i + h, j:j + n], w[:, :, i, j])
                   for i in range(3) for j in range(3))  # fmt: skip


# --- the programs -----------------------------------------------------------------------------


def rmsnorm(kit: Kit, X: Any, W: Any) -> Any:
    """RMSNorm without gain or eps, then a linear layer (Mirage's script)."""
    return kit.matmul(kit.rms(X, 0.0), W)


def rmsnorm_gain(kit: Kit, X: Any, G: Any, W: Any) -> Any:
    """RMSNorm with gain, then a linear layer (Mirage's Fig. 3)."""
    return kit.matmul(kit.rms(X) * G, W)


def gatedmlp(kit: Kit, X: Any, W1: Any, W2: Any) -> Any:
    """silu(X·W1) ∘ (X·W2)."""
    return kit.silu(kit.matmul(X, W1)) * kit.matmul(X, W2)


def lora(kit: Kit, X: Any, W: Any, A: Any, B: Any) -> Any:
    """A linear layer with a low-rank correction: X·W + (X·A)·B."""
    return kit.matmul(X, W) + kit.matmul(kit.matmul(X, A), B)


def gqa(kit: Kit, Q: Any, K: Any, V: Any) -> Any:
    """Attention of grouped queries, no scale: softmax(Q·K)·V with K of shape (heads, d, length)."""
    return kit.matmul(kit.softmax(kit.matmul(Q, K)), V)


def gqa_nomax(kit: Kit, Q: Any, K: Any, V: Any) -> Any:
    """The same as Mirage's scripts write it, without the shift that keeps exp finite."""
    e = kit.exp(kit.matmul(Q, K))
    return kit.matmul(e / kit.sum(e), V)


def gqa_decode(kit: Kit, Q: Any, K: Any, V: Any) -> Any:
    """softmax(Q·Kᵀ/√128)·V with K of shape (heads, length, d), as a KV cache has it."""
    scores = kit.matmul(Q, kit.transposed(K)) * 128**-0.5
    return kit.matmul(kit.softmax(scores), V)


def qknorm(kit: Kit, Q: Any, K: Any, V: Any) -> Any:
    """gqa on RMS-normalised queries and keys."""
    return gqa(kit, kit.rms(Q), kit.rms(K, axis=-2), V)


def qknorm_repo(kit: Kit, Q: Any, K: Any, V: Any) -> Any:
    """gqa with Q and V normalised, as Mirage's script has it."""
    return gqa(kit, kit.rms(Q), K, kit.rms(V))


def qknorm_decode(kit: Kit, Q: Any, K: Any, V: Any) -> Any:
    """gqa_decode on RMS-normalised queries and keys."""
    return gqa_decode(kit, kit.rms(Q), kit.rms(K), V)


def ntrans(kit: Kit, H: Any, X: Any, alpha: Any) -> Any:
    """The normalised transformer's residual step (nGPT): RMS(X + α(RMS(H) − X))."""
    return kit.rms(X + alpha * (kit.rms(H) - X))


def ntrans_paper(kit: Kit, H: Any, X: Any, alpha: Any) -> Any:
    """As Mirage's paper prints it: RMS(X + α RMS(H − X))."""
    return kit.rms(X + alpha * kit.rms(H - X))


def ntrans_repo(kit: Kit, H: Any, X: Any, alpha: Any) -> Any:
    """As Mirage's script computes it: RMS(X + α(RMS(H) + X))."""
    return kit.rms(X + alpha * (kit.rms(H) + X))


def conv_relu(kit: Kit, X: Any, W: Any) -> Any:
    """A layer of a residual net: a 3×3 convolution and an activation."""
    return kit.relu(kit.conv(X, W))


# --- their shapes -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Attention:
    """What an expert needs to call a library's own attention instead: softmax(s·q·kᵀ)·v."""

    key_axis: int  # the head axis of K: -2 where keys are columns
    scale: float
    normalised: str = ""  # which of Q, K, V are RMS-normalised first


@dataclass(frozen=True)
class Workload:
    """A program with shapes, in which "B" stands for multiples of the batch."""

    name: str  # workload or workload@variant
    program: Program  # (kit, *tensors) → tensor
    shapes: Mapping[str, tuple[int | str, ...]]
    batches: tuple[int, ...] = (1, 8, 16)  # on a CPU; none: too large for one
    weights: tuple[str, ...] = ()  # inputs that stay the same from call to call
    attention: Attention | None = None
    spread: Mapping[str, float] = field(default_factory=dict)  # standard deviations, default 1
    cuda_batches: tuple[int, ...] | None = None  # on a GPU, where they are others

    @property
    def family(self) -> str:
        return self.name.partition("@")[0]

    def batches_on(self, target: str) -> tuple[int, ...]:
        """The batch sizes that are measured on a target (its name begins with "cuda", or not)."""
        on_gpu = target.startswith("cuda") and self.cuda_batches is not None
        return self.cuda_batches if on_gpu and self.cuda_batches is not None else self.batches

    def at(self, batch: int) -> Shapes:
        """The shapes for one batch."""
        return {name: tuple(_extent(d, batch) for d in dims) for name, dims in self.shapes.items()}

    def graph(self, batch: int, dtype: str = "f32") -> Graph:
        """The program for Tessera."""
        g = Graph(self.name.replace("@", "_"))
        tensors = [
            g.input(name, shape, dtype, weight=name in self.weights)
            for name, shape in self.at(batch).items()
        ]
        g.output(self.program(Kit(), *tensors), "O")
        return g

    def arrays(self, batch: int, dtype: str = "f32", seed: int = 0) -> list[Array]:
        """Random arguments: normal, weights scaled so that results stay near 1."""
        rng = np.random.default_rng(seed)
        arrays = []
        for name, shape in self.at(batch).items():
            values = rng.standard_normal(shape, dtype=np.float32)
            values *= np.float32(self.deviation(name, shape))
            arrays.append(values.astype(to_numpy(dtype), copy=False))
        return arrays

    def deviation(self, name: str, shape: tuple[int, ...]) -> float:
        """The standard deviation of a random argument."""
        if name in self.weights and len(shape) == 4:  # filters
            return float(np.prod(shape[1:]) ** -0.5)
        if name in self.weights and len(shape) > 1:
            return float(shape[-2] ** -0.5)
        return self.spread.get(name, 1.0)

    def exact(self, arrays: Sequence[Array]) -> Array:
        """The result in f64 on the same (already rounded) arguments."""
        return np.asarray(self.program(Kit(), *[a.astype(np.float64) for a in arrays]))


def _extent(dim: int | str, batch: int) -> int:
    if isinstance(dim, int):
        return dim
    factor = dim.removesuffix("B")
    return batch * int(factor or 1)


_GQA = {"Q": ("2B", 256, 64), "K": ("2B", 64, 4096), "V": ("2B", 4096, 64)}
_UNSCALED = {"K": 0.125}  # scores near 1 without a scale
_DECODE = 128**-0.5
_ROWS = dict.fromkeys(("H", "X", "alpha"), ("8B", 4096))


def _decode(heads: int, queries: int, length: int) -> dict[str, tuple[int | str, ...]]:
    return {
        "Q": ("B", heads, queries, 128),
        "K": ("B", heads, length, 128),
        "V": ("B", heads, length, 128),
    }


def _matmuls(name: str, program: Program, shapes: Mapping[str, tuple[int | str, ...]],
             batches: tuple[int, ...] = (1, 8, 16)) -> Workload:  # fmt: skip
    weights = tuple(n for n in shapes if n != "X")
    return Workload(name, program, shapes, batches, weights)


WORKLOADS: dict[str, Workload] = {
    w.name: w
    for w in (
        _matmuls("rmsnorm", rmsnorm, {"X": ("2B", 4096), "W": (4096, 6144)}),
        _matmuls("rmsnorm@fig3", rmsnorm_gain,
                 {"X": (16, 1024), "G": (1024,), "W": (1024, 4096)}, (1,)),
        _matmuls("rmsnorm@real", rmsnorm_gain,
                 {"X": ("B", 4096), "G": (4096,), "W": (4096, 4096)}),
        _matmuls("gatedmlp", gatedmlp,
                 {"X": (8, 4096), "W1": (4096, 4096), "W2": (4096, 4096)}, (8,)),
        _matmuls("gatedmlp@b", gatedmlp,
                 {"X": ("B", 4096), "W1": (4096, 4096), "W2": (4096, 4096)}),
        _matmuls("gatedmlp@llama", gatedmlp,
                 {"X": ("B", 4096), "W1": (4096, 14336), "W2": (4096, 14336)}),
        _matmuls("lora", lora,
                 {"X": (16, 256), "W": (256, 4096), "A": (256, 16), "B": (16, 4096)}, (16,)),
        _matmuls("lora@real", lora,
                 {"X": ("B", 4096), "W": (4096, 4096), "A": (4096, 16), "B": (16, 4096)}),
        Workload("gqa", gqa, _GQA, attention=Attention(-2, 1.0), spread=_UNSCALED),
        Workload("gqa@nomax", gqa_nomax, _GQA, attention=Attention(-2, 1.0), spread=_UNSCALED),
        Workload("gqa@decode1k", gqa_decode, _decode(2, 8, 1024),
                 attention=Attention(-1, _DECODE)),
        Workload("gqa@decode8k", gqa_decode, _decode(2, 8, 8192), (1, 8),
                 attention=Attention(-1, _DECODE), cuda_batches=(1, 8, 16)),
        Workload("gqa@qwen1k", gqa_decode, _decode(4, 8, 1024), (),
                 attention=Attention(-1, _DECODE), cuda_batches=(1, 8, 16)),
        Workload("gqa@llama8k", gqa_decode, _decode(8, 4, 8192), (),
                 attention=Attention(-1, _DECODE), cuda_batches=(1, 8, 16)),
        Workload("qknorm", qknorm, _GQA, attention=Attention(-2, 1.0, "QK")),
        Workload("qknorm@repo", qknorm_repo, _GQA, attention=Attention(-2, 1.0, "QV"),
                 spread=_UNSCALED),
        Workload("qknorm@decode", qknorm_decode, _decode(32, 1, 1024),
                 attention=Attention(-1, _DECODE, "QK")),
        Workload("qknorm@chameleon", qknorm_decode, _decode(32, 1, 4096), (),
                 attention=Attention(-1, _DECODE, "QK"), cuda_batches=(1, 8, 16)),
        Workload("qknorm@prefill64", qknorm_decode, _decode(32, 64, 1024), (1, 8),
                 attention=Attention(-1, _DECODE, "QK")),
        Workload("ntrans", ntrans, _ROWS),
        Workload("ntrans@paper", ntrans_paper, _ROWS),
        Workload("ntrans@repo", ntrans_repo, _ROWS),
        Workload("ntrans@decode", ntrans, dict.fromkeys(("H", "X", "alpha"), ("B", 4096)), (),
                 cuda_batches=(1, 8, 16)),
        Workload("ntrans@large", ntrans,
                 dict.fromkeys(("H", "X", "alpha"), (1024, 4096)), (1,)),
    )
}  # fmt: skip
# Beside Mirage's six, on a GPU: what cuDNN does in one call.
CONVOLUTIONS: dict[str, Workload] = {
    "conv@resnet": Workload("conv@resnet", conv_relu,
                            {"X": ("B", 256, 14, 14), "W": (256, 256, 3, 3)}, (),
                            weights=("W",), cuda_batches=(1, 8)),
}  # fmt: skip
FAMILIES = tuple(dict.fromkeys(w.family for w in WORKLOADS.values()))
# One small case of each family.
QUICK = (
    ("rmsnorm@fig3", 1), ("gatedmlp@b", 1), ("lora", 16), ("gqa@decode1k", 1),
    ("qknorm@decode", 1), ("ntrans", 1),
)  # fmt: skip


# The cases of a GPU: as Mirage's paper and scripts have them, then the shapes of real models.
PAPER = ("rmsnorm", "gatedmlp", "lora", "gqa", "qknorm", "ntrans")
REAL = (
    "gqa@qwen1k", "rmsnorm@real", "gatedmlp@b", "lora@real", "gqa@decode8k", "qknorm@chameleon",
    "ntrans@decode", "gatedmlp@llama", "gqa@decode1k", "gqa@llama8k",
)  # fmt: skip


def choose(case: str | None) -> list[Workload]:
    """The workloads that `--case` names: one, or all variants of a family; all by default.

    `gqa@` is gqa without its variants. Convolutions are there for those who ask.
    """
    if case is None:
        return list(WORKLOADS.values())
    known = WORKLOADS | CONVOLUTIONS
    if case.endswith("@") and case[:-1] in known:
        return [known[case[:-1]]]
    if case in known and "@" in case:
        return [known[case]]
    chosen = [w for w in known.values() if w.family == case]
    if not chosen:
        raise UsageError(f"--case {case} is not one of {', '.join(known)}")
    return chosen
