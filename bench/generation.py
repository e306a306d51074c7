"""Text generation by transformers' `model.generate`, each call of the model compiled.

Models of four layers and realistic width with random weights, two threads, wall time of a token,
contestants by turns in a process each. Part of the suite outside, as its group `generation`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from bench.race import Late, Process
from bench.worker import die_with_parent, pin, serve

Row = dict[str, Any]
THREADS = 2
CASES = {f"{model}_{cache}": (model, cache)
         for model in ("llama", "qwen2", "gpt2") for cache in ("dynamic", "static")}  # fmt: skip
_WORDS, _PROMPT, _NEW, _ROUNDS = 8000, 32, 48, 7
_LENGTHS = (32, 32, 17, 50, 32)  # of the prompts before it counts


def make(model: str) -> Any:
    """A model with random weights, which are the same in every process."""
    import torch
    import transformers as tf

    torch.manual_seed(0)
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4,
             "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": _WORDS}  # fmt: skip
    made = {
        "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**sizes)),
        "qwen2": lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**sizes)),
        "gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(
            n_embd=1024, n_layer=4, n_head=16, vocab_size=_WORDS, bos_token_id=0)),
    }[model]().eval()  # fmt: skip
    made.generation_config.pad_token_id = 0
    made.generation_config.eos_token_id = None
    return made


def row(name: str, limit_s: float, peers: Sequence[str], cache: str) -> Row:
    """Microseconds of wall time a token, medians of turns; whether all make the same tokens."""
    names = ["eager", "tessera", *peers]
    there = {n: Process(THREADS, "bench.generation", {"TESSERA_CACHE_DIR": cache}) for n in names}

    def ask(contestant: str, **order: Any) -> Row:
        answer = there[contestant].ask(limit_s, **order)
        if "failed" in answer:
            raise Late(f"{contestant}: {answer['failed']}")
        return answer

    try:
        made = {n: ask(n, do="prepare", name=name, backend=n) for n in names}
        times: dict[str, list[float]] = {n: [] for n in names}
        for _ in range(_ROUNDS):
            for n in names:
                times[n].append(ask(n, do="generate")["seconds"] / _NEW)
    except Late as late:
        return {"failed": str(late)}
    finally:
        for process in there.values():
            process.close()
    ratios = {n: median(a / b for a, b in zip(t, times["tessera"], strict=True))
              for n, t in times.items()}  # fmt: skip
    return {
        "threads": THREADS, "us": {n: 1e6 * median(t) for n, t in times.items()},
        "speedup": ratios["eager"], "speedup_vs_inductor": ratios.get("inductor"),
        "own": made["tessera"]["own"], "graphs": {n: m["graphs"] for n, m in made.items()},
        "first_s": {n: m["first_s"] for n, m in made.items()},
        "same_tokens": {n: m["tokens"] == made["eager"]["tokens"] for n, m in made.items()},
    }  # fmt: skip


class Contestant:
    """One model in a process of its own."""

    def prepare(self, name: str, backend: str) -> Row:
        """Compiles it and generates until nothing is made or searched any longer."""
        import torch

        from tessera import torch_backend

        model, self.cache = CASES[name]
        torch.set_num_threads(THREADS)
        self.model, graphs = make(model), [0]
        if backend != "eager":

            def counting(graph: Any, inputs: Any, **more: Any) -> Any:
                graphs[0] += 1
                return torch._dynamo.lookup_backend(backend)(graph, inputs, **more)

            self.model.forward = torch.compile(self.model.forward, backend=counting)
        start = time.perf_counter()
        tokens = self._tokens(_PROMPT)
        first = time.perf_counter() - start
        for length in _LENGTHS:
            torch_backend.wait()
            self._tokens(length)
        own = any(p.programs for r in torch_backend.REPORTS for p in r.parts)
        return {"tokens": tokens, "first_s": first, "graphs": graphs[0], "own": own}

    def generate(self) -> Row:
        """Seconds that a text takes."""
        start = time.perf_counter()
        self._tokens(_PROMPT)
        return {"seconds": time.perf_counter() - start}

    def _tokens(self, length: int) -> list[int]:
        import torch

        kind = None if self.cache == "dynamic" else self.cache
        prompt = torch.arange(length)[None] * 37 % _WORDS
        with torch.no_grad():
            made = self.model.generate(prompt, max_new_tokens=_NEW, min_new_tokens=_NEW,
                                       do_sample=False, cache_implementation=kind)  # fmt: skip
        tokens: list[int] = made[0, length:].tolist()
        return tokens


def main() -> None:
    import sys

    die_with_parent()
    pin(int(sys.argv[1]))
    contestant = Contestant()
    serve({"prepare": contestant.prepare, "generate": contestant.generate})


if __name__ == "__main__":
    main()
