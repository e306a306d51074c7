"""A process of the suites models and plus: one contestant, one model."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from bench.model_zoo import LENGTH, ZOO, build, result_of
from bench.worker import die_with_parent, pin, serve

Row = dict[str, Any]
MOVED = {"input", "const", "iota", "transpose", "reshape", "broadcast", "unsqueeze", "squeeze",
         "slice", "concat", "gather", "repeat", "cast"}  # fmt: skip
_CALLS = 60  # within which calls race what a search found; in turns of so many
_SETTLED_S = 600.0  # for searches behind calls


def resident_mb() -> float:
    """Memory of this process that is in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def in_dtype(value: Any, dtype: str) -> Any:
    """A model, or a tensor of floats, in f32 or bf16."""
    import torch

    if isinstance(value, torch.Tensor) and not value.is_floating_point():
        return value
    return value.to({"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}[dtype])


class Server:
    """Answers orders with dicts."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.runs: dict[int, Callable[[], Any]] = {}  # by length; 0: the case's own
        self.model: Any = None
        self.compiled: Any = None

    def exact(self, case: str, batch: int, decode: bool, folder: str) -> Row:
        """Writes the result in f64 for the contestants; what it is like."""
        import torch

        with torch.no_grad():
            inputs = {n: in_dtype(x, "f64") for n, x in inputs_of(case, batch, decode).items()}
            result = result_of(build(case).double()(**inputs))
        torch.save(result, Path(folder) / "exact.pt")
        return {"facts": {"scale": float(result.abs().max())}}

    def prepare(self, name: str, case: str, batch: int, decode: bool = False, dtype: str = "f32",
                folder: str = "") -> Row:  # fmt: skip
        """Makes the contestant; seconds until its first result, and its error relative to the
        largest number of the result in f64 where `folder` has that."""
        import torch

        torch.set_num_threads(self.threads)
        model = in_dtype(build(case), dtype)
        inputs = {n: in_dtype(x, dtype) for n, x in inputs_of(case, batch, decode).items()}
        facts: Row = {}
        with torch.no_grad():
            eager = result_of(model(**inputs))
            before = resident_mb()
            start = time.perf_counter()
            run = self._contestant(name, model, inputs)
            run()
            facts["compile_s"] = time.perf_counter() - start
            if name.startswith("tessera"):
                facts |= self._settled(run)
            got = run()
            facts["memory_mb"] = resident_mb() - before
        facts["max_abs_diff"] = float((got - eager).abs().max())
        if folder:
            exact = torch.load(Path(folder) / "exact.pt", weights_only=True)
            facts["max_rel_err"] = float((got.double() - exact).abs().max() / exact.abs().max())
        self.runs[0] = run
        return {"facts": facts}

    def _contestant(self, name: str, model: Any, inputs: Row) -> Callable[[], Any]:
        import torch

        compiled = model
        if name in ("ort", "openvino"):
            return {"ort": onnxruntime_of, "openvino": openvino_of}[name](
                model, inputs, self.threads)  # fmt: skip
        if name.startswith("tessera"):
            importlib.import_module("tessera.torch_backend")  # registers the backend
            _, _, without = name.partition(":")
            options: Row = {"wait": True}
            if without == "search":
                options["budget"] = 0.0
            elif without:
                options["disable"] = (without,)
            compiled = torch.compile(model, backend="tessera", options=options)
        elif name != "eager":
            torch._inductor.config.freezing = name == "inductor_max"
            mode = "max-autotune" if name == "inductor_max" else None
            compiled = torch.compile(model, mode=mode)

        def run() -> Any:
            with torch.no_grad():
                return result_of(compiled(**inputs))

        return run

    @staticmethod
    def _settled(run: Callable[[], Any]) -> Row:
        """Calls it until nothing is searched or raced any longer; what runs then."""
        from tessera import torch_backend

        start = time.perf_counter()
        torch_backend.wait(_SETTLED_S)
        for _ in range(_CALLS):  # race what was found
            run()
            if time.perf_counter() - start > _SETTLED_S:
                break
        reports = torch_backend.REPORTS
        parts = [p for r in reports for p in r.parts]
        return {"settled_s": time.perf_counter() - start,
                "ops": sum(r.operators for r in reports),
                "kernels": sum(r.kernels for r in reports),
                "build_s": sum(p.compile_s for p in parts),
                "searched": sorted({p.searched for p in parts if p.searched}),
                "eager": sorted({n for r in reports for n in r.eager})}  # fmt: skip

    def patterns(self, case: str, batch: int, seconds: float) -> Row:
        """Kernels where patterns alone fuse: each operator that computes something is one, and so
        is each place that a pattern takes (PluS, Table 1); of all choices the one with fewest."""
        import torch

        from tessera import _core, torch_backend
        from tessera.graph import Graph
        from tessera.options import Options

        def kernels(graph: Graph) -> int:
            return sum(op["op"] not in MOVED for op in graph.ops)

        torch.set_num_threads(self.threads)
        compiled = torch.compile(build(case), backend="tessera",
                                 options={"budget": 0.0, "wait": True})  # fmt: skip
        with torch.no_grad():
            compiled(**inputs_of(case, batch, False))
        fields = Options(budget=seconds).fields() | {"engine": "patterns"}
        ops = fused = sum(len(r.eager) for r in torch_backend.REPORTS)
        for part in (p for r in torch_backend.REPORTS for p in r.parts):
            program = part.programs[-1].source
            found = _core.search(program.core, fields)["candidates"]
            ops += kernels(program)
            fused += min(kernels(g) for g in (program, *(Graph.from_core(c["graph"])
                                                         for c in found)))  # fmt: skip
        return {"facts": {"ops": ops, "kernels": fused}}

    def lengths(self, name: str, case: str, dynamic: bool) -> Row:
        """Prepares a model for lengths that are known only at the call, or one of them."""
        import torch

        torch.set_num_threads(self.threads)
        if self.model is None:
            self.model = build(case)
            options = {"dynamic": "wait", "wait": True} if name == "tessera" else None
            importlib.import_module("tessera.torch_backend")

            self.compiled = torch.compile(self.model, backend=name, dynamic=dynamic,
                                          options=options)  # fmt: skip
        return {"facts": {}}

    def add_length(self, case: str, batch: int, length: int) -> Row:
        """Runs a further length once; seconds of that, and graphs that Dynamo has made so far."""
        import torch

        inputs = ZOO[case].inputs(batch, length)
        start = time.perf_counter()

        def run() -> Any:
            with torch.no_grad():
                return result_of(self.compiled(**inputs))

        run()  # which returns what it was checked against
        first = time.perf_counter() - start
        got = run()
        with torch.no_grad():
            difference = float((got - result_of(self.model(**inputs))).abs().max())
        self.runs[length] = run
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        from tessera.torch_backend import REPORTS

        packed = sum(p.weights.bytes for r in REPORTS for p in r.parts) / 1e6
        return {"first_s": first, "graphs": graphs, "max_abs_diff": difference,
                "programs": sum(len(p.programs) for r in REPORTS for p in r.parts),
                "packed_mb": packed, "resident_mb": resident_mb()}  # fmt: skip

    def time(self, length: int = 0) -> Row:
        """Seconds of one run, after one that wakes the threads."""
        run = self.runs[length]
        run()
        start = time.perf_counter()
        run()
        return {"seconds": time.perf_counter() - start}


def inputs_of(case: str, batch: int, decode: bool) -> Mapping[str, Any]:
    """The arguments of a prompt, or of the step that follows it."""
    entry = ZOO[case]
    if not decode:
        return entry.inputs(batch, LENGTH)
    assert entry.decode is not None
    return entry.decode(batch)


@contextlib.contextmanager
def written_out() -> Iterator[None]:
    """Lets F.rms_norm and F.scaled_dot_product_attention be what ONNX's opset 17 can say of them,
    in the form that onnxruntime fuses."""
    import torch
    from torch.nn import functional as f

    def rms_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
        axes = tuple(range(-len(shape), 0))
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        y = x / torch.sqrt(x.pow(2).mean(axes, keepdim=True) + eps)
        return y if weight is None else y * weight

    def attention(q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0,
                  is_causal: bool = False, scale: float | None = None,
                  enable_gqa: bool = False) -> Any:  # fmt: skip
        if enable_gqa:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -3e38)
        elif attn_mask is not None:
            scores = scores + attn_mask
        return scores.softmax(-1) @ v

    with (mock.patch.object(f, "rms_norm", rms_norm),
          mock.patch.object(f, "scaled_dot_product_attention", attention)):  # fmt: skip
        yield


def exported(model: Any, inputs: Row, path: Path) -> None:
    """The model as ONNX, as PyTorch's tracing exporter writes it."""
    import torch

    class Wrapped(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: Any) -> Any:
            given = dict(zip(inputs, values, strict=True))
            kind = getattr(getattr(model, "config", None), "model_type", "")
            if kind in ("llama", "qwen2", "gpt2"):
                # Without a mask transformers looks for packed sequences, which is not traced.
                given["attention_mask"] = torch.ones_like(given["input_ids"])
            return result_of(self.model(**given))

    config: Any = getattr(model, "config", None)
    before = getattr(config, "_attn_implementation", None)
    with warnings.catch_warnings(), written_out():
        warnings.simplefilter("ignore")
        if before is not None:
            config._attn_implementation = "eager"
        torch.onnx.export(Wrapped(), tuple(inputs.values()), str(path), dynamo=False,
                          opset_version=17, input_names=list(inputs))  # fmt: skip
        if before is not None:
            config._attn_implementation = before


def onnxruntime_of(model: Any, inputs: Row, threads: int) -> Callable[[], Any]:
    """The exported model in onnxruntime with all optimisations."""
    import onnxruntime
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        exported(model, inputs, path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    arrays = {n: x.numpy() for n, x in inputs.items()}
    return lambda: torch.from_numpy(session.run(None, arrays)[0])


def openvino_of(model: Any, inputs: Row, threads: int) -> Callable[[], Any]:
    """The exported model in OpenVINO, in f32."""
    import openvino
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        exported(model, inputs, path)
        compiled = openvino.Core().compile_model(
            str(path), "CPU",
            {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"})  # fmt: skip
    arrays = [x.numpy() for x in inputs.values()]
    return lambda: torch.from_numpy(compiled(arrays)[0])


def main() -> None:
    die_with_parent()
    threads = int(sys.argv[1])
    pin(threads)
    server = Server(threads)
    serve({"exact": server.exact, "prepare": server.prepare, "time": server.time,
           "patterns": server.patterns, "lengths": server.lengths,
           "add_length": server.add_length})  # fmt: skip


if __name__ == "__main__":
    main()
