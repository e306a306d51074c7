"""Other systems that run the same workload in the same process, as far as they are installed.

torch and jax are never needed: a peer that cannot be imported is left out and named in the notes.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera import _core
from tessera.bench.timing import BlasThreads
from tessera.bench.workloads import Workload
from tessera.errors import UsageError

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[], Any]

NAMES = ("numpy", "torch", "inductor", "jax")


def available() -> list[str]:
    """The peers that this Python has."""
    found = ["numpy"]
    if importlib.util.find_spec("torch"):
        found += ["torch", "inductor"]
    if importlib.util.find_spec("jax"):
        found.append("jax")
    return found


def choose(names: str | None) -> list[str]:
    """The peers of `--peers a,b`; all that are installed by default."""
    if names is None:
        return available()
    chosen = [n for n in names.split(",") if n]
    for name in chosen:
        if name not in NAMES:
            raise UsageError(f"--peers: '{name}' is not one of {', '.join(NAMES)}")
        if name not in available():
            raise UsageError(
                f"--peers: {name} is not installed; try pip install "
                f"{'jax' if name == 'jax' else 'torch'}"
            )
    return chosen


def make(name: str, workload: Workload, arrays: Sequence[Array]) -> Run:
    """The workload in one peer, ready to run on its own copies of the arrays."""
    return {"numpy": _numpy, "torch": _torch, "inductor": _inductor, "jax": _jax}[name](
        workload, arrays
    )


def _numpy(workload: Workload, arrays: Sequence[Array]) -> Run:
    program = workload.numpy()
    return lambda: program(*arrays)


def _torch_tensors(arrays: Sequence[Array]) -> tuple[Any, list[Any]]:
    import torch

    torch.set_num_threads(int(_core.machine()["threads"]))
    return torch, [
        torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
        if a.dtype.name == "bfloat16"
        else torch.from_numpy(a)
        for a in arrays
    ]


def _torch(workload: Workload, arrays: Sequence[Array]) -> Run:
    torch, tensors = _torch_tensors(arrays)

    def run() -> Any:
        with torch.no_grad():
            return workload.function(torch, *tensors)

    return run


def on_one_thread(name: str, run: Run) -> Run | None:
    """The same peer on one thread, where that can be chosen per call."""
    if name == "numpy":
        return BlasThreads().single(run)
    if name != "torch":
        return None
    import torch

    threads = torch.get_num_threads()

    def single() -> Any:
        torch.set_num_threads(1)
        try:
            return run()
        finally:
            torch.set_num_threads(threads)

    return single


def _inductor(workload: Workload, arrays: Sequence[Array]) -> Run:
    torch, tensors = _torch_tensors(arrays)

    def program(*xs: Any) -> Any:
        return workload.function(torch, *xs)

    compiled = torch.compile(program, dynamic=False)

    def run() -> Any:
        with torch.no_grad():
            return compiled(*tensors)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()
    return run


def _jax(workload: Workload, arrays: Sequence[Array]) -> Run:
    import jax
    import jax.numpy as jnp

    device = jax.devices("cpu")[0]
    xs = [jax.device_put(a, device) for a in arrays]
    compiled = jax.jit(lambda *args: workload.function(jnp, *args))
    return lambda: compiled(*xs).block_until_ready()
