"""Whole models of the four papers' evaluations, with random weights from a fixed seed.

Those of Mirage (OSDI'25, Fig. 11) are written out here, at widths of small models of today, with a
decode step beside the prompt: its caches are arguments. PluS's are made from transformers' configs,
and the subgraphs of BERT that its Table 2 lists (ATC'25) are here, too; PET's are in pet_models.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench import pet_models

SEED = 20251
LENGTH = 128  # of prompts, in tokens
CONTEXT = 512  # tokens that a decode step attends to
WIDTH, LAYERS, HEADS, INNER, WORDS = 2048, 2, 16, 5632, 8000
HEAD = WIDTH // HEADS
TABLE_2 = "table2"


@dataclass(frozen=True)
class Entry:
    """How to make a model, and inputs by name for a batch."""

    paper: str
    make: Callable[[], Any]
    inputs: Callable[[int, int], Mapping[str, Any]]  # of a batch and a length
    # Of the step that follows a prompt, by the batch; None: the model has none.
    decode: Callable[[int], Mapping[str, Any]] | None = None


# --- Mirage's: decoders of two layers that differ in their norms and products


def _decoder(kind: str) -> Any:
    """`kind`: llama3 (grouped queries, RMSNorm), llama_lora (the same with LoRA of rank 16 on all
    products), chameleon (norms of queries and keys, one key per query), ngpt (all on a sphere,
    in place of RMSNorm)."""
    import torch
    from torch import nn
    from torch.nn import functional as f

    keys = HEADS if kind in ("chameleon", "ngpt") else HEADS // 4
    sphere = kind == "ngpt"

    def unit(x: Any) -> Any:
        return x / x.norm(dim=-1, keepdim=True)

    class Lora(nn.Module):  # type: ignore[misc]
        """W·x + B·A·x: Hu et al., 2021."""

        def __init__(self, c: int, d: int) -> None:
            super().__init__()
            self.base = nn.Linear(c, d, bias=False)
            self.a, self.b = nn.Linear(c, 16, bias=False), nn.Linear(16, d, bias=False)

        def forward(self, x: Any) -> Any:
            return self.base(x) + self.b(self.a(x))

    def linear(c: int, d: int) -> Any:
        made = Lora(c, d) if kind == "llama_lora" else nn.Linear(c, d, bias=False)
        if sphere:
            with torch.no_grad():
                made.weight.copy_(unit(made.weight))
        return made

    def norm(width: int) -> Any:
        return nn.Identity() if sphere else nn.RMSNorm(width, eps=1e-5)

    def rotated(x: Any, positions: Any) -> Any:
        """Rotary embedding (Su et al., 2021) of [batch, heads, length, HEAD]."""
        rates = 10000.0 ** (-torch.arange(0, HEAD, 2, dtype=torch.float32) / HEAD)
        angles = positions[:, None].to(torch.float32) * rates
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x[..., : HEAD // 2], x[..., HEAD // 2 :]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.q, self.o = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
            self.k, self.v = linear(WIDTH, keys * HEAD), linear(WIDTH, keys * HEAD)
            self.gate, self.up = linear(WIDTH, INNER), linear(WIDTH, INNER)
            self.down = linear(INNER, WIDTH)
            self.norms = nn.ModuleList(norm(WIDTH) for _ in range(2))
            if kind == "chameleon":
                self.q_norm, self.k_norm = nn.LayerNorm(HEAD), nn.LayerNorm(HEAD)
            if sphere:  # learnt scales of the paper: of scores, of the MLP, of both steps
                self.scale = nn.Parameter(torch.full((HEADS, 1, HEAD), math.sqrt(HEAD)))
                self.inner = nn.Parameter(torch.ones(INNER))
                self.steps = nn.ParameterList(torch.full((WIDTH,), 0.05) for _ in range(2))

        def attention(self, x: Any, positions: Any, past: Any) -> Any:
            b, s, _ = x.shape

            def heads(y: Any, n: int) -> Any:
                return y.reshape(b, s, n, HEAD).transpose(1, 2)

            q, k, v = heads(self.q(x), HEADS), heads(self.k(x), keys), heads(self.v(x), keys)
            if kind == "chameleon":
                q, k = self.q_norm(q), self.k_norm(k)
            q, k = rotated(q, positions), rotated(k, positions)
            if sphere:
                q, k = unit(q) * self.scale, unit(k)
            if past is not None:
                k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            y = f.scaled_dot_product_attention(
                q, k, v, is_causal=past is None, scale=1.0 if sphere else None,
                enable_gqa=keys != HEADS,
            )  # fmt: skip
            return self.o(y.transpose(1, 2).reshape(b, s, WIDTH))

        def mlp(self, x: Any) -> Any:
            gate, up = self.gate(x), self.up(x)
            if sphere:
                gate, up = gate * (self.inner * math.sqrt(WIDTH)), up * self.inner
            return self.down(f.silu(gate) * up)

        def forward(self, x: Any, positions: Any, past: Any) -> Any:
            y = self.attention(self.norms[0](x), positions, past)
            if sphere:  # a step towards y, along the sphere: Loshchilov et al., 2024, §2.2
                x = unit(x + self.steps[0] * (unit(y) - x))
                return unit(x + self.steps[1] * (unit(self.mlp(x)) - x))
            x = x + y
            return x + self.mlp(self.norms[1](x))

    class Decoder(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(WORDS, WIDTH)
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.norm, self.head = norm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

        def forward(self, tokens: Any, keys: Any = None, values: Any = None) -> Any:
            """Logits of [batch, length] tokens, behind `keys` and `values` of
            [layer, batch, head, CONTEXT, HEAD] if they are given."""
            before = 0 if keys is None else keys.shape[3]
            positions = torch.arange(before, before + tokens.shape[1])
            x = self.words(tokens)
            x = unit(x) if sphere else x
            for i, layer in enumerate(self.layers):
                x = layer(x, positions, None if keys is None else (keys[i], values[i]))
            return self.head(self.norm(x))

    return Decoder()


def _prompt(batch: int, length: int, name: str = "tokens", words: int = WORDS) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(SEED + length)
    return {name: torch.randint(0, words, (batch, length), generator=generator)}


def _step(kind: str, batch: int) -> dict[str, Any]:
    import torch

    heads = HEADS if kind in ("chameleon", "ngpt") else HEADS // 4
    generator = torch.Generator().manual_seed(SEED + batch)
    keys, values = (torch.randn(LAYERS, batch, heads, CONTEXT, HEAD, generator=generator)
                    for _ in range(2))  # fmt: skip
    if kind == "ngpt":
        keys = keys / keys.norm(dim=-1, keepdim=True)
    return _prompt(batch, 1) | {"keys": keys, "values": values}


# --- PluS's, by transformers' configs


def _of_config(name: str) -> Any:
    import transformers as hf

    if name == "vit":
        return hf.ViTModel(hf.ViTConfig())
    if name == "bert":
        return hf.BertModel(hf.BertConfig())
    if name == "albert":
        config = hf.AlbertConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072)
        return hf.AlbertModel(config)
    if name == "gpt2":
        return hf.GPT2Model(hf.GPT2Config(use_cache=False))
    if name == "t5":
        config = hf.T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12, use_cache=False)
        return hf.T5Model(config)
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 2,
             "num_attention_heads": 16, "num_key_value_heads": 4, "use_cache": False}  # fmt: skip
    if name == "llama":
        return hf.LlamaModel(hf.LlamaConfig(**sizes))
    return hf.Qwen2Model(hf.Qwen2Config(**sizes))


def _of_transformer(name: str, batch: int, length: int) -> dict[str, Any]:
    import torch

    if name == "vit":
        generator = torch.Generator().manual_seed(SEED)
        return {"pixel_values": torch.randn(batch, 3, 224, 224, generator=generator)}
    tokens = _prompt(batch, length, "input_ids", 30000)
    return tokens | ({"decoder_input_ids": tokens["input_ids"]} if name == "t5" else {})


# --- BERT's subgraphs: S0 to S4 of Table 2 at batch 16, S5 to S9 at batch 1


def _subgraph(name: str) -> Any:
    import torch
    from torch import nn

    class Attention(nn.Module):  # type: ignore[misc]
        """Of [batch, length, 3 · 768], behind the product of S0."""

        def forward(self, x: Any, mask: Any) -> Any:
            b, s, _ = x.shape
            q, k, v = (y.reshape(b, s, 12, 64).transpose(1, 2) for y in x.split(768, -1))
            scores = torch.softmax(q @ k.transpose(2, 3) / 8 + mask, -1)
            return (scores @ v).transpose(1, 2).reshape(b, s, 768)

    class WithNorm(nn.Module):  # type: ignore[misc]
        def __init__(self, inner: int) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(inner, 768), nn.LayerNorm(768, eps=1e-12)

        def forward(self, x: Any, residual: Any) -> Any:
            return self.norm(self.linear(x) + residual)

    made: dict[str, Any] = {
        "s0_qkv": lambda: nn.Linear(768, 2304),
        "s1_attention": Attention,
        "s2_out_norm": lambda: WithNorm(768),
        "s3_up_gelu": lambda: nn.Sequential(nn.Linear(768, 3072), nn.GELU()),
        "s4_down_norm": lambda: WithNorm(3072),
    }
    return made[name]()


SUBGRAPHS = {  # arguments by name, with their last extents
    "s0_qkv": {"input": 768}, "s1_attention": {"x": 2304, "mask": 0},
    "s2_out_norm": {"x": 768, "residual": 768}, "s3_up_gelu": {"input": 768},
    "s4_down_norm": {"x": 3072, "residual": 768},
}  # fmt: skip


def _of_subgraph(name: str, batch: int, length: int) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(SEED + batch)
    shapes = {n: (batch, length, d) if d else (batch, 1, 1, length)
              for n, d in SUBGRAPHS[name].items()}  # fmt: skip
    return {n: torch.randn(s, generator=generator) for n, s in shapes.items()}


def _of_pet(name: str, batch: int, length: int) -> dict[str, Any]:
    return {"input": pet_models.example(name, batch)}


def _entries() -> dict[str, Entry]:
    entries = {
        kind: Entry("mirage", functools.partial(_decoder, kind), _prompt,
                    functools.partial(_step, kind))
        for kind in ("llama3", "llama_lora", "chameleon", "ngpt")
    }  # fmt: skip
    for name in ("bert", "albert", "gpt2", "t5", "vit", "llama", "qwen"):
        entries[name] = Entry("plus", functools.partial(_of_config, name),
                              functools.partial(_of_transformer, name))  # fmt: skip
    for name in ("inception", "resnet18", "resnet3d18", "csrnet28"):
        entries[name] = Entry("pet", functools.partial(pet_models.build, name),
                              functools.partial(_of_pet, name))  # fmt: skip
    for name in SUBGRAPHS:
        entries[name] = Entry(TABLE_2, functools.partial(_subgraph, name),
                              functools.partial(_of_subgraph, name))  # fmt: skip
    return entries


ZOO: dict[str, Entry] = _entries()


def build(name: str) -> Any:
    """The model in evaluation mode; its weights are the same in every process."""
    import torch

    torch.manual_seed(SEED)
    return ZOO[name].make().eval()


def result_of(output: Any) -> Any:
    """The tensor that counts: transformers' models return records."""
    import torch

    return output if isinstance(output, torch.Tensor) else output[0]
