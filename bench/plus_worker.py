"""A process of the suite plus: one contestant, one model."""

from __future__ import annotations

import importlib
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from bench.worker import die_with_parent, pin, serve

Row = dict[str, Any]
LENGTH = 128


def build(name: str, batch: int, length: int = LENGTH) -> tuple[Any, dict[str, Any]]:
    """A model with random weights (a transformers config) and its inputs."""
    import torch
    import transformers as hf

    torch.manual_seed(0)
    tokens = {"input_ids": torch.randint(0, 30000, (batch, length))}
    if name == "vit":
        return hf.ViTModel(hf.ViTConfig()).eval(), {
            "pixel_values": torch.randn(batch, 3, 224, 224)}  # fmt: skip
    if name == "bert":
        return hf.BertModel(hf.BertConfig()).eval(), tokens
    if name == "albert":
        config = hf.AlbertConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072)
        return hf.AlbertModel(config).eval(), tokens
    if name == "gpt2":
        return hf.GPT2Model(hf.GPT2Config(use_cache=False)).eval(), tokens
    if name == "t5":
        config = hf.T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12, use_cache=False)
        return hf.T5Model(config).eval(), tokens | {"decoder_input_ids": tokens["input_ids"]}
    sizes = dict(hidden_size=1024, intermediate_size=2816, num_hidden_layers=2,  # noqa: C408
                 num_attention_heads=16, num_key_value_heads=4, use_cache=False)  # fmt: skip
    if name == "llama":
        return hf.LlamaModel(hf.LlamaConfig(**sizes)).eval(), tokens
    return hf.Qwen2Model(hf.Qwen2Config(**sizes)).eval(), tokens


def resident_mb() -> float:
    """Memory of this process that is in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Server:
    """Answers orders with dicts."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.runs: dict[int, Callable[[], Any]] = {}  # by length; 0: the case's own
        self.model: Any = None
        self.compiled: Any = None
        self.facts: Row = {}

    def prepare(self, name: str, case: str, batch: int, exact: bool) -> Row:
        """Makes the contestant; seconds until its first result, errors against f64."""
        import torch

        torch.set_num_threads(self.threads)
        model, inputs = build(case, batch)
        facts: Row = {}
        with torch.no_grad():
            eager = model(**inputs)[0]
            yardstick: Any = None
            if exact:
                wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
                yardstick = build(case, batch)[0].double()(**wide)[0]
            before = resident_mb()
            start = time.perf_counter()
            run = self._contestant(name, model, inputs)
            run()
            facts["compile_s"] = time.perf_counter() - start
            got = run()
            facts["memory_mb"] = resident_mb() - before
        if name.startswith("tessera"):
            facts |= self._reports()
        difference = (got - eager).abs()
        facts |= {"max_abs_diff": float(difference.max()),
                  "mean_abs_diff": float(difference.mean())}  # fmt: skip
        if yardstick is not None:
            facts["max_abs_err"] = float((got.double() - yardstick).abs().max())
        self.runs[0] = run
        return {"facts": facts}

    def _contestant(self, name: str, model: Any, inputs: Row) -> Callable[[], Any]:
        import torch

        compiled = model
        if name == "ort":
            return onnxruntime_of(model, inputs, self.threads)
        if name.startswith("tessera"):
            importlib.import_module("tessera.torch_backend")  # registers the backend
            compiled = torch.compile(model, backend="tessera", options={"wait": True})
        elif name != "eager":
            torch._inductor.config.freezing = name == "inductor_max"
            mode = "max-autotune" if name == "inductor_max" else None
            compiled = torch.compile(model, mode=mode)

        def run() -> Any:
            with torch.no_grad():
                return compiled(**inputs)[0]

        return run

    @staticmethod
    def _reports() -> Row:
        import tessera.torch_backend

        reports = tessera.torch_backend.REPORTS
        return {"ops": sum(r.operators for r in reports),
                "kernels": sum(r.kernels for r in reports),
                "build_s": sum(p.compile_s for r in reports for p in r.parts),
                "eager": sorted({n for r in reports for n in r.eager})}  # fmt: skip

    def lengths(self, name: str, case: str, batch: int, dynamic: bool) -> Row:
        """Prepares a model for lengths that are known only at the call, or one of them."""
        import torch

        torch.set_num_threads(self.threads)
        if self.model is None:
            self.model = build(case, batch)[0]
            options = {"dynamic": "wait", "wait": True} if name == "tessera" else None
            importlib.import_module("tessera.torch_backend")

            self.compiled = torch.compile(self.model, backend=name, dynamic=dynamic,
                                          options=options)  # fmt: skip
        return {"facts": {}}

    def add_length(self, case: str, batch: int, length: int) -> Row:
        """Runs a further length once; seconds of that, and graphs that Dynamo has made so far."""
        import torch

        inputs = build_inputs(batch, length)
        start = time.perf_counter()

        def run() -> Any:
            with torch.no_grad():
                return self.compiled(**inputs)[0]

        run()  # which returns what it was checked against
        first = time.perf_counter() - start
        got = run()
        with torch.no_grad():
            difference = float((got - self.model(**inputs)[0]).abs().max())
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


def build_inputs(batch: int, length: int) -> Row:
    import torch

    torch.manual_seed(length)
    return {"input_ids": torch.randint(0, 30000, (batch, length))}


def onnxruntime_of(model: Any, inputs: Row, threads: int) -> Callable[[], Any]:
    """The model as PyTorch's tracing exporter writes it, in onnxruntime with all optimisations."""
    import tempfile
    from pathlib import Path

    import onnxruntime
    import torch

    class Wrapped(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: Any) -> Any:
            given = dict(zip(inputs, values, strict=True))
            if "llama" in self.model.config.model_type or self.model.config.model_type in (
                "qwen2", "gpt2"):  # fmt: skip
                # Without a mask transformers looks for packed sequences, which is not traced.
                given["attention_mask"] = torch.ones_like(given["input_ids"])
            return self.model(**given)[0]

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        names = list(inputs)
        before = model.config._attn_implementation
        model.config._attn_implementation = "eager"
        torch.onnx.export(Wrapped(), tuple(inputs.values()), str(path), dynamo=False,
                          opset_version=17, input_names=names)  # fmt: skip
        model.config._attn_implementation = before
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    arrays = {n: inputs[n].numpy() for n in names}

    def run() -> Any:
        return torch.from_numpy(session.run(None, arrays)[0])

    return run


def main() -> None:
    die_with_parent()
    threads = int(sys.argv[1])
    pin(threads)
    server = Server(threads)
    serve({"prepare": server.prepare, "time": server.time, "lengths": server.lengths,
           "add_length": server.add_length})  # fmt: skip


if __name__ == "__main__":
    main()
