"""A workload in Triton: which kernel, which choices of sizes (triton_kernels.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from bench.cuda import triton_kernels as kernels
from bench.workloads import Workload

Program = Callable[..., Any]  # tensors in the workload's order → the result


def programs(
    workload: Workload, tensors: Sequence[Any], multiprocessors: int
) -> list[tuple[kernels.Choice, Program]]:
    """The workload with each choice of sizes; all compute the same."""
    name = workload.program.__name__
    if workload.attention is not None:
        return _attention(workload, tensors, multiprocessors)
    if workload.family == "ntrans":
        form = kernels.NTRANS_FORMS[name]

        def step(choice: kernels.Choice) -> Program:
            return lambda H, X, alpha: kernels.ntrans(H, X, alpha, choice, form=form)

        return [(c, step(c)) for c in kernels.ntrans_choices()]
    x, w = tensors[0], tensors[1 if name != "rmsnorm_gain" else 2]
    choices = kernels.linear_choices(x.shape[0], w.shape[1], x.shape[1], multiprocessors)
    makers: dict[str, Callable[[kernels.Choice], Program]] = {
        "rmsnorm": lambda c: lambda X, W: kernels.linear(X, W, c, eps=0.0),
        "rmsnorm_gain": lambda c: lambda X, G, W: kernels.linear(X, W, c, gain=G, eps=1e-6),
        "gatedmlp": lambda c: lambda X, W1, W2: kernels.linear(X, W1, c, gate=W2),
        "lora": lambda c: lambda X, W, A, B: kernels.linear(X, W, c, low_rank=(A, B)),
    }
    return [(c, makers[name](c)) for c in choices]


def _attention(
    workload: Workload, tensors: Sequence[Any], multiprocessors: int
) -> list[tuple[kernels.Choice, Program]]:
    facts = workload.attention
    assert facts is not None
    q, k, _ = tensors
    *heads, m, _ = q.shape
    rows = facts.key_axis == -1
    length = k.shape[-2] if rows else k.shape[-1]
    count = math.prod(heads)

    def program(choice: kernels.Choice) -> Program:
        def run(Q: Any, K: Any, V: Any) -> Any:
            q, k, v = (x.reshape(count, *x.shape[-2:]) for x in (Q, K, V))
            result = kernels.attention(
                q, k, v, choice, scale=facts.scale, keys_are_rows=rows, normalised=facts.normalised
            )
            return result.reshape(Q.shape)

        return run

    choices = kernels.attention_choices(count, m, length, multiprocessors)
    return [(c, program(c)) for c in choices]
