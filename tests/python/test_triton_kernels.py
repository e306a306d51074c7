"""The benchmark's Triton kernels against f64: on a GPU, else in Triton's interpreter.

The interpreter multiplies bf16 matrices as integers, so products are tested in f16 and f32 there.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
pytest.importorskip("triton")

from bench.cuda import triton_kernels as kernels  # noqa: E402
from bench.cuda import triton_peer  # noqa: E402
from bench.workloads import WORKLOADS, Attention, Kit, Workload  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PRODUCTS = ("float16", "bfloat16", "float32") if DEVICE == "cuda" else ("float16", "float32")
EPS = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-11 if DEVICE == "cuda" else 2**-22}
# Depths, widths and lengths that no size of a block divides.
LINEAR: dict[str, dict[str, tuple[int | str, ...]]] = {
    "rmsnorm": {"X": (5, 104), "W": (104, 72)},
    "rmsnorm_gain": {"X": (17, 104), "G": (104,), "W": (104, 72)},
    "gatedmlp": {"X": (5, 104), "W1": (104, 72), "W2": (104, 72)},
    "lora": {"X": (5, 104), "W": (104, 72), "A": (104, 16), "B": (16, 72)},
}


def tensors_of(workload: Workload, dtype: str) -> tuple[list[Any], Any]:
    """Arguments, and the result in f64."""
    arrays = workload.arrays(1, "f32", seed=3)
    tensors = [torch.from_numpy(a).to(getattr(torch, dtype)) for a in arrays]
    rounded = [t.double().numpy() for t in tensors]
    return [t.to(DEVICE) for t in tensors], workload.program(Kit(), *rounded)


def check(run: Callable[..., Any], workload: Workload, dtype: str, roundings: float = 4) -> None:
    tensors, exact = tensors_of(workload, dtype)
    result = run(*tensors).double().cpu().numpy()
    error = np.max(np.abs(result - exact)) / np.max(np.abs(exact))
    assert error <= roundings * EPS[dtype], f"{workload.name} {dtype}: {error:.2e}"


@pytest.mark.parametrize("dtype", PRODUCTS)
@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("name", list(LINEAR))
def test_few_rows_times_a_matrix(name: str, split: int, dtype: str) -> None:
    from bench import workloads

    program = getattr(workloads, name)
    weights = tuple(n for n in LINEAR[name] if n != "X")
    workload = Workload(f"{name}@test", program, LINEAR[name], (1,), weights)
    choice = {"BM": 16, "BN": 32, "BK": 16, "SPLIT": split, "warps": 4, "stages": 2}
    runs: dict[str, Callable[..., Any]] = {
        "rmsnorm": lambda X, W: kernels.linear(X, W, choice, eps=0.0),
        "rmsnorm_gain": lambda X, G, W: kernels.linear(X, W, choice, gain=G, eps=1e-6),
        "gatedmlp": lambda X, W1, W2: kernels.linear(X, W1, choice, gate=W2),
        "lora": lambda X, W, A, B: kernels.linear(X, W, choice, low_rank=(A, B)),
    }
    check(runs[name], workload, dtype)


@pytest.mark.parametrize("dtype", PRODUCTS)
@pytest.mark.parametrize("split", [1, 4])
@pytest.mark.parametrize("key_axis", [-1, -2])
@pytest.mark.parametrize("normalised", ["", "QK", "QV"])
def test_attention(normalised: str, key_axis: int, split: int, dtype: str) -> None:
    def program(kit: Any, Q: Any, K: Any, V: Any) -> Any:
        if "Q" in normalised:
            Q = kit.rms(Q)
        if "K" in normalised:
            K = kit.rms(K, axis=key_axis)
        if "V" in normalised:
            V = kit.rms(V)
        scores = kit.matmul(Q, kit.transposed(K) if key_axis == -1 else K)
        return kit.matmul(kit.softmax(scores * 0.25), V)

    # Of four parts of 16 keys the last has none that exist.
    keys = (3, 36, 16) if key_axis == -1 else (3, 16, 36)
    shapes = {"Q": (3, 21, 16), "K": keys, "V": (3, 36, 16)}
    workload = Workload("gqa@test", program, shapes, (1,),
                        attention=Attention(key_axis, 0.25, normalised))  # fmt: skip
    choice = {"BM": 16, "BL": 16, "SPLIT": split, "warps": 4, "stages": 2}

    def run(Q: Any, K: Any, V: Any) -> Any:
        return kernels.attention(Q, K, V, choice, scale=0.25, keys_are_rows=key_axis == -1,
                                 normalised=normalised)  # fmt: skip

    check(run, workload, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ["ntrans", "ntrans@paper", "ntrans@repo"])
def test_rows(name: str, dtype: str) -> None:
    shapes = dict.fromkeys(("H", "X", "alpha"), (3, 100))
    workload = Workload(name, WORKLOADS[name].program, shapes, (1,))
    tensors, _ = tensors_of(workload, dtype)
    for _, run in triton_peer.programs(workload, tensors, 132):
        check(run, workload, dtype)


@pytest.mark.parametrize("name", ["rmsnorm@fig3", "lora", "gqa@decode1k", "ntrans"])
def test_every_choice_computes_the_workload(name: str) -> None:
    """The benchmark's own way in, at the benchmark's own shapes."""
    workload = WORKLOADS[name]
    tensors, _ = tensors_of(workload, "float16")
    choices = triton_peer.programs(workload, tensors, 132)
    assert 2 < len(choices) == len({tuple(c.items()) for c, _ in choices}) < 20
    for _, run in choices if DEVICE == "cuda" else choices[-1:]:
        check(run, workload, "float16", roundings=8)


def test_kernels_compile_for_a_gpu_that_is_not_here() -> None:
    """In a process of its own: in this one the interpreter may have taken the kernels' place."""
    root = Path(__file__).resolve().parents[2]
    environment = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = f"{root / 'python'}:{environment.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "tests.python.triton_compile"]
    done = subprocess.run(
        command, cwd=root, env=environment, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) == 19
