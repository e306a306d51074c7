"""One process of the suite pet: one library, models prepared and timed when told."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.pet import OURS, TRANSFORMS
from bench.worker import die_with_parent, pin, serve

Run = Callable[[], Any]


def onnxruntime(folder: Path, x: Any, threads: int) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(
        str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, {"x": x})[0]


def openvino(folder: Path, x: Any, threads: int) -> Run:
    import openvino as ov

    model = ov.Core().compile_model(
        str(folder / "model.onnx"),
        "CPU",
        {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"},
    )
    return lambda: model(x)[0]


def torch_module(name: str, x: Any, threads: int, compiled: bool) -> Run:
    import torch

    from bench.pet_models import build

    torch.set_num_threads(threads)
    module: Any = build(name)
    if compiled:
        import torch._inductor.config

        torch._inductor.config.freezing = True
        module = torch.compile(module)
    given = torch.from_numpy(x)

    def run() -> Any:
        with torch.no_grad():
            return module(given).numpy()

    run()
    return run


def _tried(subprogram: dict[str, Any]) -> str:
    """A subprogram of the search's report in a line."""
    gain = subprogram["gain"]
    return f"{subprogram['times']} × {subprogram['name']}: {subprogram['verdict']}" + (
        f", {gain:.2f}×" if gain != 1 else ""
    )


class Server:
    """The contestants of one process, of one model."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.runs: dict[str, Run] = {}

    def prepare(self, name: str, case: str, folder: str, options: dict[str, Any]) -> dict[str, Any]:
        """Makes a contestant; its largest error relative to the largest result in f64."""
        import numpy as np

        at = Path(folder)
        x, exact = np.load(at / "x.npy"), np.load(at / "exact.npy")
        facts: dict[str, Any] = {}
        start = time.perf_counter()
        ours, _, transforms = name.partition(":")
        if ours in OURS:
            off = (*options.get("disable", ()), *TRANSFORMS[transforms or "all"])
            run = self._ours(at, x, {**options, "disable": off}, facts, ours == "tessera")
        elif name == "ort":
            run = onnxruntime(at, x, self.threads)
        elif name == "openvino":
            run = openvino(at, x, self.threads)
        else:
            run = torch_module(case, x, self.threads, name == "inductor")
        got = np.asarray(run(), np.float64)
        error = float(np.abs(got - exact).max() / np.abs(exact).max())
        self.runs[name] = run
        return {"prepare_s": time.perf_counter() - start, "error": error, "facts": facts}

    def _ours(
        self, folder: Path, x: Any, options: dict[str, Any], facts: dict[str, Any], search: bool
    ) -> Run:
        from tessera import _core
        from tessera.api import superoptimize
        from tessera.call_forms import GraphCall
        from tessera.frontends.onnx import load
        from tessera.options import Options
        from tessera.runner import Runner

        graph = load(folder / "model.onnx")
        arrays = graph.with_weights([x])
        if not search:
            off = {n for n in options["disable"] if n.startswith("plan:")}
            runner = Runner(_core.compile(graph.core, disable=off), GraphCall(graph).names)
            return lambda: runner(arrays)[0]
        result = superoptimize(graph, options=Options(**{**options, "threads": self.threads}))
        details = result.details
        facts |= {
            "verdict": "equal" if result.improved else "original",
            "search_s": details["search_s"],
            "tune_s": details["compile_s"] + details["check_s"] + details["measure_s"],
            "verify_s": details["verify_s"],
            "convolutions": details["convolutions"],
            "subprograms": [_tried(s) for s in details["subprograms"]],
        }
        return lambda: result(x)

    def time(self, name: str) -> dict[str, Any]:
        """Seconds of one run, after an untimed one that wakes the library's threads."""
        run = self.runs[name]
        run()
        start = time.perf_counter()
        run()
        return {"seconds": time.perf_counter() - start}


def main() -> None:
    die_with_parent()
    threads = int(sys.argv[1])
    pin(threads)
    server = Server(threads)
    serve({"prepare": server.prepare, "time": server.time})


if __name__ == "__main__":
    main()
