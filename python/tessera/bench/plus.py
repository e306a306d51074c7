"""The suite plus: transformers as PluS measured them (ATC'25, §6), through torch.compile.

Contestants have processes of their own and take turns (race.py). `ops` and `kernels` stand beside
the paper's Table 1; PyTorch's own f64 result is the yardstick of the errors.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from tessera.bench.race import Late, Process
from tessera.bench.worker import die_with_parent, pin, serve
from tessera.errors import UsageError
from tessera.options import Options

Row = dict[str, Any]
# Table 1 of the paper: operators, and layers of PluS; None: models that the paper lacks.
TABLE_1: dict[str, tuple[int, int] | None] = {
    "bert": (635, 87), "albert": (637, 88), "gpt2": (630, 87), "t5": (1460, 220),
    "vit": (655, 87), "llama": None, "qwen": None,
}  # fmt: skip
PEERS = ("eager", "inductor", "inductor_max")
_LENGTH = 128


def build(name: str, batch: int) -> tuple[Any, dict[str, Any]]:
    """A model with random weights (a transformers config) and its inputs."""
    import torch
    import transformers as hf

    torch.manual_seed(0)
    tokens = {"input_ids": torch.randint(0, 30000, (batch, _LENGTH))}
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


class Server:
    """One process: one contestant, one model."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.run: Callable[[], Any] = lambda: None

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
            compiled = model
            if name == "tessera":
                import tessera.torch_backend

                compiled = torch.compile(model, backend="tessera")
            elif name != "eager":
                torch._inductor.config.freezing = name == "inductor_max"
                mode = "max-autotune" if name == "inductor_max" else None
                compiled = torch.compile(model, mode=mode)
            start = time.perf_counter()
            compiled(**inputs)
            facts["compile_s"] = time.perf_counter() - start
            got = compiled(**inputs)[0]
        if name == "tessera":
            reports = tessera.torch_backend.REPORTS
            facts |= {"ops": sum(r.operators for r in reports),
                      "kernels": sum(r.kernels for r in reports),
                      "eager": sorted({n for r in reports for n in r.eager})}  # fmt: skip
        difference = (got - eager).abs()
        facts |= {"max_abs_diff": float(difference.max()),
                  "mean_abs_diff": float(difference.mean())}  # fmt: skip
        if yardstick is not None:
            facts["max_abs_err"] = float((got.double() - yardstick).abs().max())

        def run() -> None:
            with torch.no_grad():
                compiled(**inputs)

        self.run = run
        return {"facts": facts}

    def time(self) -> Row:
        """Seconds of one run, after one that wakes the threads."""
        self.run()
        start = time.perf_counter()
        self.run()
        return {"seconds": time.perf_counter() - start}


def run(
    options: Options, case: str | None, batch: int | None, quick: bool,
    tell: Callable[[str], None], limit_s: float,
) -> Iterator[Row]:  # fmt: skip
    """A row for each model and batch."""
    if case and case not in TABLE_1:
        raise UsageError(f"--case: '{case}' is not one of {', '.join(TABLE_1)}")
    for module in ("torch", "transformers"):
        if importlib.util.find_spec(module) is None:
            raise UsageError(f"bench plus needs {module}; try pip install {module}")
    names = [case] if case else ["qwen"] if quick else list(TABLE_1)
    for name in names:
        for size in (batch,) if batch else (1,) if quick else (1, 16):
            yield _race(name, size, options, quick, tell, limit_s)


def _race(
    name: str, batch: int, options: Options, quick: bool, tell: Callable[[str], None],
    limit_s: float,
) -> Row:  # fmt: skip
    threads = options.threads or len(os.sched_getaffinity(0))
    processes: dict[str, Process] = {}
    facts: dict[str, Row] = {}
    notes: dict[str, str] = {}
    times: dict[str, list[float]] = {}
    try:
        for contestant in ("tessera", *(PEERS[:2] if quick else PEERS)):
            tell(f"plus: {name}, batch {batch}: {contestant}")
            process = Process(threads, "tessera.bench.plus")
            try:
                answer = process.ask(limit_s, do="prepare", name=contestant, case=name,
                                     batch=batch, exact=not quick)  # fmt: skip
            except Late as late:
                answer = {"failed": str(late)}
            if "failed" in answer:
                notes[contestant] = answer["failed"]
                process.close()
                continue
            processes[contestant], facts[contestant] = process, answer["facts"]
        times = {n: [] for n in processes}
        for turn in range(5 if quick else 15):
            order = list(processes)
            for n in order[turn % len(order) :] + order[: turn % len(order)] if order else []:
                time.sleep(0.02)  # pools spin for a while after their work
                times[n].append(processes[n].ask(120, do="time")["seconds"])
    finally:
        for process in processes.values():
            process.close()
    least = {n: min(t) * 1e6 for n, t in times.items()}
    peers = {n: us for n, us in least.items() if n != "tessera"}
    ours = least.get("tessera")
    return {
        "suite": "plus", "case": name, "shape": {"batch": [batch]}, "dtype": "f32",
        "target": options.target, "threads": threads, "batch": batch, "ours_us": ours,
        "peers": peers, "speedup_vs_best": min(peers.values()) / ours if ours and peers else None,
        "medians_us": {n: median(t) * 1e6 for n, t in times.items()},
        "paper": TABLE_1[name], "facts": facts, "load": os.getloadavg()[0],
        **{k: v for k, v in facts.get("tessera", {}).items() if k in ("ops", "kernels",
                                                                     "compile_s")},
    } | ({"notes": notes} if notes else {})  # fmt: skip


def main() -> None:
    die_with_parent()
    threads = int(sys.argv[1])
    pin(threads)
    server = Server(threads)
    serve({"prepare": server.prepare, "time": server.time})


if __name__ == "__main__":
    main()
