"""Others that run a workload on the GPU, each at its best; none is needed.

All run inside CUDA graphs (device.py), which spares torch.compile the copies of its own graphs.
Weights are arranged in advance at no cost to a peer. A peer that fails on a case is named in the
row with its reason.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.cuda.device import Device, Tensors
from bench.peers import sdpa, torch_kit
from bench.workloads import Workload
from tessera.errors import UsageError


@dataclass(frozen=True)
class Peer:
    """A program, and how a set of arguments is arranged for it beforehand."""

    program: Callable[..., Any]
    arrange: Callable[[Tensors], Tensors] = lambda tensors: tensors
    facts: str | None = None  # what it chose, for the row


NAMES = (
    "torch", "cublaslt", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "triton", "inductor",
    "inductor_sdpa",
)  # fmt: skip


def choose(names: str | None) -> list[str]:
    """The peers of `--peers a,b`; all by default."""
    if names is None:
        return [n for n in NAMES if n != "triton" or importlib.util.find_spec("triton")]
    chosen = [n for n in names.split(",") if n]
    for name in chosen:
        if name not in NAMES:
            raise UsageError(f"--peers: '{name}' is not one of {', '.join(NAMES)} (--target cuda)")
    return chosen


def applies(name: str, workload: Workload) -> bool:
    """Whether a peer has anything of its own to say about a workload."""
    if name.startswith("sdpa"):
        return workload.attention is not None
    if name == "inductor_sdpa":  # without norms around it there is nothing left to compile
        return workload.attention is not None and bool(workload.attention.normalised)
    if name == "cublaslt":
        return workload.attention is None and workload.family not in ("ntrans", "conv")
    if name == "triton":
        return workload.family != "conv"
    return True


def make(name: str, workload: Workload, tensors: Tensors, device: Device) -> Peer:
    """A peer for one workload, ready to run; raises whatever its library raises."""
    makers: dict[str, Callable[[Workload, Tensors, Device], Peer]] = {
        "torch": _torch,
        "cublaslt": _cublaslt,
        "sdpa_flash": lambda *a: _sdpa("FLASH_ATTENTION", *a),
        "sdpa_cudnn": lambda *a: _sdpa("CUDNN_ATTENTION", *a),
        "sdpa_efficient": lambda *a: _sdpa("EFFICIENT_ATTENTION", *a),
        "inductor": _inductor,
        "inductor_sdpa": _inductor_sdpa,
        "triton": _triton,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = makers[name](workload, tensors, device)
        device.run(peer.program, peer.arrange(tensors))
    return peer


def _torch(workload: Workload, tensors: Tensors, device: Device) -> Peer:
    kit = torch_kit()
    return Peer(lambda *xs: workload.program(kit, *xs))


@contextmanager
def _blas(torch: Any, library: str) -> Iterator[None]:
    choose_library: Callable[..., Any] = torch.backends.cuda.preferred_blas_library
    before = choose_library()
    choose_library(library)
    try:
        yield
    finally:
        choose_library(before)


def _cublaslt(workload: Workload, tensors: Tensors, device: Device) -> Peer:
    """cuBLASLt's products with as few launches as its interface allows.

    The two weights of GatedMLP lie side by side in one matrix; LoRA's last product adds to the
    first; a gain is multiplied into the weight beforehand.
    """
    torch, kit = device.torch, torch_kit()
    functional = torch.nn.functional
    arranges: dict[str, Callable[[Tensors], Tensors]] = {
        "gatedmlp": lambda t: [t[0], torch.cat([t[1], t[2]], dim=1)],
        "rmsnorm_gain": lambda t: [t[0], (t[1].double()[:, None] * t[2].double()).to(t[2].dtype)],
    }

    def gated(x: Any, both: Any) -> Any:
        left, right = torch.chunk(torch.mm(x, both), 2, dim=1)
        return functional.silu(left) * right

    programs: dict[str, Callable[..., Any]] = {
        "gatedmlp": gated,
        "rmsnorm_gain": lambda x, gw: torch.mm(kit.rms(x), gw),
        "lora": lambda x, w, a, b: torch.addmm(torch.mm(x, w), torch.mm(x, a), b),
    }
    name = workload.program.__name__
    inner: Callable[..., Any] = programs.get(name, lambda *xs: workload.program(kit, *xs))

    def program(*xs: Any) -> Any:
        with _blas(torch, "cublaslt"):
            return inner(*xs)

    return Peer(program, arranges.get(name, lambda t: t))


def _attention_arranged(workload: Workload, torch: Any) -> Callable[[Tensors], Tensors]:
    """Four axes, which the fused back ends ask for, and keys in rows."""
    assert workload.attention is not None
    columns = workload.attention.key_axis == -2

    def arrange(tensors: Tensors) -> Tensors:
        q, k, v = (t if t.dim() == 4 else t[None] for t in tensors)
        return [q, k.transpose(-1, -2).contiguous() if columns else k, v]

    return arrange


def _sdpa(backend: str, workload: Workload, tensors: Tensors, device: Device) -> Peer:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    assert workload.attention is not None
    inner = sdpa(workload.attention)

    def program(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return inner(q, k, v)

    return Peer(program, _attention_arranged(workload, device.torch))


def _compiled(function: Callable[..., Any], torch: Any) -> Callable[..., Any]:
    """torch.compile, all it can tune; its own CUDA graphs would copy arguments, ours do not."""
    torch._dynamo.reset()  # or the recompile limit silently turns it into eager
    compiled: Callable[..., Any] = torch.compile(
        function, dynamic=False, fullgraph=True, mode="max-autotune-no-cudagraphs"
    )
    return compiled


def _inductor(workload: Workload, tensors: Tensors, device: Device) -> Peer:
    kit = torch_kit()
    return Peer(_compiled(lambda *xs: workload.program(kit, *xs), device.torch))


def _inductor_sdpa(workload: Workload, tensors: Tensors, device: Device) -> Peer:
    assert workload.attention is not None
    program = _compiled(sdpa(workload.attention), device.torch)
    return Peer(program, _attention_arranged(workload, device.torch))


def _triton(workload: Workload, tensors: Tensors, device: Device) -> Peer:
    """Our own Triton kernels with the fastest sizes; those too large for the device are skipped."""
    from bench.cuda import triton_peer

    best: tuple[float, Any, Any] | None = None
    refusal: Exception | None = None
    for choice, program in triton_peer.programs(
        workload, tensors, device.properties.multi_processor_count
    ):
        try:
            seconds = device.once(program, tensors)
        except Exception as error:
            if not device.alive():  # the context is lost, and all that is in it
                raise
            refusal = error
            continue
        if best is None or seconds < best[0]:
            best = (seconds, choice, program)
    if best is None:
        raise refusal or RuntimeError("no choice of sizes")
    return Peer(best[2], facts=" ".join(f"{k}={v}" for k, v in best[1].items()))
