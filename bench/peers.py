"""Other systems that run the same workload, as far as they are installed, each at its best.

None of them is ever needed: a peer that cannot be imported is left out, one that fails on a case is
named in the row with its reason. Weights are constants to those that can pack them in advance
(onnxruntime, torch.compile with freezing).
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.workloads import Array, Attention, Kit, Workload
from tessera.errors import UnsupportedError, UsageError

Run = Callable[[], Any]

# Peer → the module that has to be there, and the process that it shares with others of its kind.
NEEDS = {
    "numpy": "numpy",
    "torch": "torch",
    "torch_sdpa": "torch",
    "inductor": "torch",
    "inductor_sdpa": "torch",
    "inductor_max": "torch",
    "jax": "jax",
    "ort": "onnxruntime",
}
NAMES = tuple(NEEDS)


def available() -> list[str]:
    """The peers that this Python has."""
    found = {m: importlib.util.find_spec(m) is not None for m in (*NEEDS.values(), "onnx")}
    return [n for n, m in NEEDS.items() if found[m] and (n != "ort" or found["onnx"])]


def choose(names: str | None) -> list[str]:
    """The peers of `--peers a,b`; all that are installed by default."""
    if names is None:
        return available()
    chosen = [n for n in names.split(",") if n]
    for name in chosen:
        if name not in NAMES:
            raise UsageError(f"--peers: '{name}' is not one of {', '.join(NAMES)}")
        if name not in available():
            package = "onnxruntime onnx" if name == "ort" else NEEDS[name]
            raise UsageError(f"--peers: {name} is not installed; try pip install {package}")
    return chosen


def applies(name: str, workload: Workload) -> bool:
    """Whether a peer has anything of its own to say about a workload."""
    if name == "torch_sdpa":
        return workload.attention is not None
    if name == "inductor_sdpa":  # without norms around it there is nothing left to compile
        return workload.attention is not None and bool(workload.attention.normalised)
    return True


def make(name: str, workload: Workload, arrays: Sequence[Array], threads: int) -> Run:
    """The workload in one peer, ready to run, its result of whatever kind."""
    makers: dict[str, Callable[[Workload, Sequence[Array], int], Run]] = {
        "numpy": _numpy,
        "torch": _torch,
        "torch_sdpa": _torch_sdpa,
        "inductor": _inductor,
        "inductor_sdpa": _inductor_sdpa,
        "inductor_max": _inductor_max,
        "jax": _jax,
        "ort": _ort,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = makers[name](workload, arrays, threads)
        run()
    return run


def to_f64(result: Any) -> Array:
    """A peer's result as a NumPy array of doubles."""
    if hasattr(result, "detach"):
        result = result.detach().double().numpy()
    return np.asarray(result).astype(np.float64)


def _numpy(workload: Workload, arrays: Sequence[Array], threads: int) -> Run:
    if arrays[0].dtype != np.float32:
        raise UnsupportedError("NumPy's own dtypes end at f32 and f16")
    kit = Kit()
    return lambda: workload.program(kit, *arrays)


def _ort(workload: Workload, arrays: Sequence[Array], threads: int) -> Run:
    from bench.onnx_peer import session

    run: Run = session(workload, arrays, threads)
    return run


def _jax(workload: Workload, arrays: Sequence[Array], threads: int) -> Run:
    import jax
    import jax.numpy as jnp

    class JaxKit(Kit):
        def softmax(self, s: Any) -> Any:
            return jax.nn.softmax(s, axis=-1)

        def silu(self, x: Any) -> Any:
            return jax.nn.silu(x)

    device = jax.devices("cpu")[0]
    xs = [jax.device_put(a, device) for a in arrays]
    kit = JaxKit(jnp)
    compiled = jax.jit(lambda *args: workload.program(kit, *args))
    return lambda: compiled(*xs).block_until_ready()


# --- torch ------------------------------------------------------------------------------------


def torch_kit() -> Kit:
    """The programs' functions in torch's best formulations."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    class TorchKit(Kit):
        def rms(self, x: Any, eps: float = 1e-6, axis: int = -1) -> Any:
            if axis == -1:  # eps=None means the machine epsilon of the dtype
                return F.rms_norm(x, x.shape[-1:], eps=eps)
            return super().rms(x, eps, axis)

        def softmax(self, s: Any) -> Any:
            return torch.softmax(s, dim=-1)

        def silu(self, x: Any) -> Any:
            return F.silu(x)

        def relu(self, x: Any) -> Any:
            return F.relu(x)

        def conv(self, x: Any, w: Any) -> Any:
            return F.conv2d(x, w, padding=1)

    return TorchKit(torch)


def _tensors(arrays: Sequence[Array], threads: int) -> list[Any]:
    import torch

    torch.set_num_threads(threads)
    return [
        torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
        if a.dtype.name == "bfloat16"
        else torch.from_numpy(a)
        for a in arrays
    ]


def _without_grad(function: Callable[..., Any], tensors: Sequence[Any]) -> Run:
    import torch

    def run() -> Any:
        with torch.no_grad():
            return function(*tensors)

    return run


def _torch(workload: Workload, arrays: Sequence[Array], threads: int) -> Run:
    kit = torch_kit()
    return _without_grad(lambda *xs: workload.program(kit, *xs), _tensors(arrays, threads))


def sdpa(attention: Attention) -> Callable[..., Any]:
    """torch's own attention; keys come as rows."""
    import torch.nn.functional as F  # noqa: N812

    kit = torch_kit()

    def program(Q: Any, K: Any, V: Any) -> Any:
        q, k, v = (
            kit.rms(x) if n in attention.normalised else x
            for n, x in zip("QKV", (Q, K, V), strict=True)
        )
        return F.scaled_dot_product_attention(q, k, v, scale=attention.scale)

    return program


def _sdpa_tensors(workload: Workload, arrays: Sequence[Array], threads: int) -> list[Any]:
    assert workload.attention is not None
    q, k, v = _tensors(arrays, threads)
    if workload.attention.key_axis == -2:  # arranged in advance, at no cost to the peer
        k = k.transpose(-1, -2).contiguous()
    return [q, k, v]


def _torch_sdpa(workload: Workload, arrays: Sequence[Array], threads: int) -> Run:
    assert workload.attention is not None
    return _without_grad(sdpa(workload.attention), _sdpa_tensors(workload, arrays, threads))


def _compiled(function: Callable[..., Any], tensors: Sequence[Any], **options: Any) -> Run:
    import torch

    torch._dynamo.reset()  # or the recompile limit silently turns it into eager

    def program(*xs: Any) -> Any:
        with torch.no_grad():
            return function(*xs)

    return _without_grad(torch.compile(program, dynamic=False, fullgraph=True, **options), tensors)


def _inductor(workload: Workload, arrays: Sequence[Array], threads: int) -> Run:
    kit = torch_kit()
    return _compiled(lambda *xs: workload.program(kit, *xs), _tensors(arrays, threads))


def _inductor_sdpa(workload: Workload, arrays: Sequence[Array], threads: int) -> Run:
    assert workload.attention is not None
    return _compiled(sdpa(workload.attention), _sdpa_tensors(workload, arrays, threads))


def _inductor_max(workload: Workload, arrays: Sequence[Array], threads: int) -> Run:
    """Everything that torch.compile can tune, with weights frozen so that they are packed."""
    import torch
    from torch import nn

    tensors = dict(zip(workload.shapes, _tensors(arrays, threads), strict=True))
    kit = torch_kit()

    class Model(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            for name in workload.weights:
                self.register_parameter(name, nn.Parameter(tensors[name], requires_grad=False))

        def forward(self, *xs: Any) -> Any:
            given = iter(xs)
            return workload.program(
                kit, *[getattr(self, n) if n in workload.weights else next(given)
                       for n in workload.shapes]
            )  # fmt: skip

    torch._dynamo.reset()
    torch._inductor.config.freezing = True
    try:
        module = torch.compile(Model().eval(), dynamic=False, fullgraph=True, mode="max-autotune")
        run = _without_grad(module, [t for n, t in tensors.items() if n not in workload.weights])
        run()
    finally:
        torch._inductor.config.freezing = False
    return run
