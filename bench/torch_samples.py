"""PyTorch's own operator samples (OpInfo) through torch.compile(backend="tessera").

    python bench/torch_samples.py [--ops add,softmax] [--samples 3] [--shard 0/20] [--update]

First runs are not checked against PyTorch here (option check), so that what is wrong shows. Per
operator and dtype the outcome is "compiled" (every operator of every sample), "partly", "eager" or
"wrong": further from PyTorch's result than its own tests allow, and of floats of less than 64 bits
also further than that from the result in f64 (torch_compare.closer). It must be what
bench/torch_samples.txt says, better ones included: an unexpected success fails until the file is
updated, and so does a case that is there no longer. Operators that PyTorch cannot run, or Dynamo
cannot trace, are left out; an error of any other kind is "wrong".
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch._dynamo import exc
from torch.testing._internal.common_methods_invocations import op_db

from tessera import torch_backend, torch_compare

EXPECTED = Path(__file__).with_suffix(".txt")
_SKIPPED = ("empty", "rand", "bernoulli", "normal", "multinomial", "dropout", "uniform",
            "exponential", "cauchy", "geometric", "log_normal", "resize", "sparse", "poisson",
            "svd_lowrank", "pca_lowrank")  # fmt: skip


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors of a result."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    return []


_USUAL = (torch.float32, torch.int64)
_NARROW = (torch.float16, torch.bfloat16, torch.float32)


def in_f64(function: Any, args: Any, kwargs: Any) -> list[torch.Tensor] | None:
    """The results for floats of 64 bits; None where there is no such operator."""

    def wide(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.double()
        if isinstance(value, torch.dtype) and value.is_floating_point:
            return torch.float64
        return type(value)(map(wide, value)) if type(value) in (list, tuple) else value

    try:
        return tensors(function(*map(wide, args), **{k: wide(v) for k, v in kwargs.items()}))
    except Exception:
        return None


def outcome(op: Any, dtype: torch.dtype, count: int) -> tuple[str, str]:
    """What becomes of an operator's samples, and why it is no better."""
    samples = []
    for sample in op.sample_inputs("cpu", dtype, requires_grad=False):
        samples.append(sample)
        if len(samples) >= count:
            break
    compiled = total = 0
    why = ""
    for sample in samples:

        def run(*args: Any, _kwargs: Any = sample.kwargs) -> Any:
            return op.op(*args, **_kwargs)

        args = (sample.input, *sample.args)
        try:
            expected = tensors(run(*args))
        except Exception:
            continue
        torch._dynamo.reset()
        made = torch.compile(run, backend="tessera", options={"check": False, "wait": True})
        try:
            made(*args)
            got = tensors(made(*args))
        except Exception as error:
            if isinstance(error, exc.TorchDynamoException) and not isinstance(
                error, exc.BackendCompilerFailed
            ):
                continue  # Dynamo's own
            return "wrong", f"{type(error).__name__}: {str(error).splitlines()[0]}"
        if not torch_backend.REPORTS or all(t.numel() == 0 for t in expected):
            continue  # nothing to compute
        total += 1
        for r in torch_backend.REPORTS:
            for name, reason in r.eager.items():
                why = f"{name}: {reason}"
        failed = any(p is None for r in torch_backend.REPORTS for part in r.parts
                     for p in part._programs.values())  # fmt: skip
        compiled += not failed and all(not r.eager for r in torch_backend.REPORTS)
        for at, (a, b) in enumerate(zip(got, expected, strict=True)):
            if a.shape != b.shape or a.dtype != b.dtype:
                return "wrong", f"{a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
            try:
                torch.testing.assert_close(a, b, equal_nan=True,
                                           **({"rtol": 1e-4, "atol": 1e-5}
                                              if b.dtype is torch.float32 else {}))  # fmt: skip
            except AssertionError as error:
                exact = in_f64(op.op, args, sample.kwargs)
                if b.dtype in _NARROW and exact is not None and len(exact) == len(expected) and (
                    torch_compare.closer(a, b, exact[at])
                ):  # fmt: skip
                    continue
                return "wrong", " ".join(str(error).split())[:160]
    if not total:
        return "", ""
    return ("compiled" if compiled == total else "partly" if compiled else "eager"), why


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", help="names, separated by commas; all without")
    parser.add_argument("--dtypes", default="float32,int64,float16,bfloat16,float64,bool")
    parser.add_argument("--samples", type=int, help="of each; 3 of f32 and i64, else 2")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th operator from the i-th")
    parser.add_argument("--update", action="store_true", help="write the outcomes down")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("tessera.torch").setLevel(logging.ERROR)
    torch._dynamo.config.suppress_errors = False
    names = set(chosen.ops.split(",")) if chosen.ops else None
    known = dict(line.rsplit(" ", 1) for line in EXPECTED.read_text().splitlines()) if (
        EXPECTED.exists()) else {}  # fmt: skip
    found: dict[str, str] = {}
    bad = 0
    first, step = (int(v) for v in chosen.shard.split("/"))
    for op in op_db[first::step]:
        full = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        if (names and op.name not in names) or (not names and any(s in op.name for s in _SKIPPED)):
            continue
        for dtype in (getattr(torch, d) for d in chosen.dtypes.split(",")):
            if dtype not in op.supported_dtypes("cpu"):
                continue
            key = f"{full} {str(dtype).removeprefix('torch.')}"
            try:
                result, why = outcome(op, dtype, chosen.samples or (3 if dtype in _USUAL else 2))
            except Exception as error:
                result, why = "wrong", f"{type(error).__name__}: {error}"
            if not result:
                if key in known and not chosen.update and not chosen.samples:
                    bad += 1
                    print(f"{key}: nothing was compared  expected {known[key]}", flush=True)
                continue
            found[key] = result
            expected = known.get(key)
            mark = "" if chosen.update or expected in (None, result) else f"  expected {expected}"
            bad += bool(mark) or (result == "wrong" and not chosen.update)
            print(f"{key}: {result}{mark}{'  ' + why if result != 'compiled' else ''}", flush=True)
    counts = {k: sum(v == k for v in found.values()) for k in ("compiled", "partly", "eager",
                                                               "wrong")}  # fmt: skip
    print(counts)
    if chosen.update:
        merged = sorted({**known, **found}.items())
        EXPECTED.write_text("".join(f"{key} {result}\n" for key, result in merged))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
