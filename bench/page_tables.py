"""One function for each kind of table in the docs, from rows of bench/results to Markdown."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

Row = dict[str, Any]
_PROGRAMS = Path(__file__).parent / "corpus/numpy/stenso.py"
_PEERS = {
    "numpy": "NumPy", "torch": "PyTorch", "torch_sdpa": "PyTorch sdpa", "jax": "JAX",
    "ort": "onnxruntime", "inductor": "Inductor", "inductor_max": "Inductor, max-autotune",
    "openvino": "OpenVINO", "eager": "PyTorch",
    "cublaslt": "cuBLASLt", "sdpa_flash": "PyTorch flash", "sdpa_cudnn": "PyTorch cuDNN",
}  # fmt: skip
_MODELS = {
    "csrnet14": "CSRNet back end, 14²", "csrnet28": "CSRNet back end, 28²",
    "csrnet56": "CSRNet back end, 56²", "resnet18": "ResNet-18", "inception": "Inception-v3",
    "resnet3d18": "ResNet3D-18", "r2plus1d18": "R(2+1)D-18", "bert": "BERT-base",
    "bert_paper": "PET's BERT", "table3_conv": "Table 3: convolution",
    "table3_dilated": "Table 3: dilated convolution",
    "table3_parallel": "Table 3: parallel convolutions", "table3_matmul": "Table 3: product",
    "albert": "ALBERT", "gpt2": "GPT-2", "t5": "T5", "vit": "ViT", "llama": "LLaMA block",
    "qwen": "Qwen block",
}  # fmt: skip
_VERIFIER = {
    "injected": "unsound rewrites", "equal": "sound rewrites",
    "injected_deep": "unsound rewrites of deep programs",
    "equal_deep": "sound rewrites of deep programs", "branch_faults": "faults of branches",
    "branch_laws": "laws of branches", "kernel_faults": "faults in compiled kernels",
}  # fmt: skip
_SELECTED = (
    ("RMSNorm + Linear, batch 8, f32", "mirage", {"case": "rmsnorm", "batch": 8}),
    ("gated MLP of LLaMA, batch 8, f32", "mirage", {"case": "gatedmlp@llama", "batch": 8}),
    ("LoRA, batch 16, f32", "mirage", {"case": "lora", "batch": 16}),
    ("grouped-query attention, 8k keys, f32", "mirage", {"case": "gqa@decode8k"}),
    ("attention with normalised queries and keys, f32", "mirage", {"case": "qknorm"}),
    ("33 NumPy programs of STENSO, geometric mean", "stenso",
     {"case": "geomean", "scale": "as published", "output": "kernel"}),
    ("CSRNet back end, 56² (ONNX)", "pet", {"case": "csrnet56"}),
    ("ResNet-18 (torch.compile)", "models", {"case": "resnet18", "phase": "prompt"}),
    ("BERT-base (torch.compile)", "models", {"case": "bert", "phase": "prompt"}),
    ("ViT (torch.compile)", "models", {"case": "vit", "phase": "prompt"}),
)  # fmt: skip


def number(x: float) -> str:
    """Three digits, or all of those before the point."""
    return f"{x:,.0f}" if x >= 99.95 else f"{x:#.3g}"


def ratio(x: float) -> str:
    return f"{x:.2f}" if x < 9.995 else number(x)


def table(head: str, rows: Iterable[Iterable[object]]) -> list[str]:
    """A Markdown table; its head has the columns' titles with bars between."""
    columns = [title.strip() for title in head.split("|")]

    def line(cells: Iterable[object]) -> str:
        return "|" + "".join(f" {cell} |" if cell != "" else " |" for cell in cells)

    return [line(columns), "|" + "---|" * len(columns), *map(line, rows)]


def _peer(row: Row) -> str:
    """The fastest of the others."""
    peers: dict[str, float] = row["peers"]
    return min(peers, key=peers.__getitem__)


def _warm_and_cold(rows: list[Row], show: Callable[[Row], str]) -> str:
    return " / ".join(show(r) for cache in ("warm", "cold") for r in rows if r["cache"] == cache)


def workloads(rows: list[Row]) -> list[str]:
    """Mirage's workloads, and geometric means over them; caches are warm and cold."""
    families = list(dict.fromkeys(row["case"].partition("@")[0] for row in rows))

    def place(row: Row) -> tuple[Any, ...]:
        family = families.index(row["case"].partition("@")[0])
        return -(row.get("threads") or 0), row["dtype"] == "bf16", family, row["case"], row["batch"]

    timed = sorted((r for r in rows if r.get("ours_us")), key=place)
    lines = []
    for at in dict.fromkeys(map(place, timed)):
        both = [row for row in timed if place(row) == at]
        lines.append([
            both[0]["case"], both[0]["batch"], both[0]["dtype"], both[0].get("threads", ""),
            _warm_and_cold(both, lambda r: number(r["ours_us"])),
            _warm_and_cold(both, lambda r: f"{_PEERS[_peer(r)]} {number(r['peers'][_peer(r)])}"),
            _warm_and_cold(both, lambda r: ratio(r["speedup_vs_best"])),
            _warm_and_cold(both, lambda r: f"{r['of_limit']:.2f}"), both[0]["verdict"],
        ])  # fmt: skip
    means = [[row["dtype"], row.get("threads") or "", row["cache"], row["count"],
              ratio(row["speedup_vs_best"]), ", ".join(row["below_1"]) or "none"]
             for row in rows if row["case"] == "geomean" and row["dtype"]]  # fmt: skip
    head = "workload | B | dtype | threads | Tessera | best peer | best peer ÷ Tessera"
    return [
        *table(f"{head} | of the limit | verdict", lines),
        "",
        *table("dtype | threads | caches | cases | geometric mean | behind the best peer", means),
    ]


def searches(rows: list[Row]) -> list[str]:
    """How long the search alone takes."""
    most = max(rows, key=lambda row: float(row["search_s"]))
    seconds, memory = sum(row["search_s"] for row in rows), max(row["rss_mb"] for row in rows)
    longest = f"{most['case']} {most['search_s']:.2f} of it"
    return [
        f"The search for all {len(rows)} workloads takes {seconds:.2f} s ({longest}) "
        f"and {memory:.0f} MB."
    ]


def models(rows: list[Row]) -> list[str]:
    """PET's models; if rows tell, what a rewrite gains on the transforms that libraries have."""
    peers = {"ort": "onnxruntime", "torch": "eager", "inductor": "torch.compile"}
    alone = any("common" in row.get("rewrites_alone", {}) for row in rows)
    names = list(_MODELS)
    lines = []
    for row in sorted(rows, key=lambda r: (names.index(r["case"]), r["batch"], r["threads"])):
        times = [row["ours_us"], *(row["peers"].get(peer) for peer in peers)]
        line = [_MODELS[row["case"]], row["batch"], row["threads"]]
        line += [number(us / 1e3) if us else "" for us in times] + [ratio(row["speedup_vs_best"])]
        if alone:
            gain = row["rewrites_alone"]["common"]
            line.append(ratio(gain["ratio"]) if gain["verdict"] == "equal" else "")
        lines.append(line)
    head = f"model | batch | threads | Tessera | {' | '.join(peers.values())} | best peer ÷ Tessera"
    return table(head + " | rewrites alone" * alone, lines)


def transformers(rows: list[Row]) -> list[str]:
    """Transformers through torch.compile, and geometric means for each batch."""
    peers = {"eager": "eager", "inductor": "Inductor", "inductor_max": "max-autotune, frozen",
             "ort": "onnxruntime"}  # fmt: skip
    names = ["bert", *_MODELS]
    gains = ("speedup_vs_inductor", "speedup_vs_best")
    lines: list[list[Any]] = []
    for batch in sorted({row["batch"] for row in rows}):
        some = sorted(
            (r for r in rows if r["batch"] == batch), key=lambda r: names.index(r["case"])
        )
        for row in some:
            times = [row["ours_us"], *(row["peers"][peer] for peer in peers)]
            lines.append([_MODELS[row["case"]], batch, *(number(us / 1e3) for us in times),
                          *(ratio(row[gain]) for gain in gains)])  # fmt: skip
        means = [ratio(geometric_mean(row[gain] for row in some)) for gain in gains]
        lines.append(["geometric mean", batch, "", *("" for _ in peers), *means])
    head = f"model | batch | Tessera | {' | '.join(peers.values())} | over Inductor | over the best"
    return table(head, lines)


def whole_models(rows: list[Row]) -> list[str]:
    """The papers' models: milliseconds, gains over peers, and what is lost without engines."""
    peers = {"eager": "eager", "inductor": "Inductor", "inductor_max": "max-autotune, frozen",
             "ort": "onnxruntime", "openvino": "OpenVINO"}  # fmt: skip
    engines = dict.fromkeys(n for row in rows for n in row.get("engines", {}))
    lines: list[list[Any]] = []
    for row in rows:
        name = row["case"] + ("" if row["phase"] == "prompt" else ", decode")
        us = [row.get("ours_us"), *(row.get("peers", {}).get(p) for p in peers)]
        gains = [row.get(g) for g in ("speedup_vs_inductor", "speedup_vs_best")]
        gains += [row.get("engines", {}).get(n) for n in engines]
        lines.append([name, row["batch"], row["dtype"], row["threads"],
                      *(number(t / 1e3) if t else "" for t in us),
                      *(ratio(g) if g else "" for g in gains)])  # fmt: skip
    without = [f"without {n}" for n in engines]
    head = " | ".join(["model", "batch", "dtype", "threads", "Tessera", *peers.values(),
                       "over Inductor", "over the best", *without])  # fmt: skip
    return table(head, lines)


def outside(rows: list[Row]) -> list[str]:
    """Programs that nobody tuned for: each group, and each program that runs slower than eager."""
    raced = [row for row in rows if "us" in row]
    groups = {g: [r for r in raced if r["group"] == g] for g in dict.fromkeys(
        row["group"] for row in raced)}  # fmt: skip
    sets = {g.replace("_", " "): some for g, some in groups.items()}
    sets |= {"all": raced, "of these by Tessera": [r for r in raced if r["own"]]}

    def numbers(some: list[Row]) -> list[object]:
        gains = [row["speedup"] for row in some]
        return [len(some), sum(row["own"] for row in some), ratio(geometric_mean(gains)),
                ratio(min(gains)), ratio(max(gains)), sum(g < 0.97 for g in gains)]  # fmt: skip

    slower = sorted((r for r in raced if r["speedup"] < 0.97), key=lambda r: float(r["speedup"]))
    return [
        *table("group | programs | run by Tessera | eager ÷ Tessera | least | most | below 0.97",
               [[name, *numbers(some)] for name, some in sets.items() if some]),
        "",
        *table("slower than eager | eager, µs | Tessera, µs | eager ÷ Tessera | run by",
               [[f"`{r['case']}`", number(r["us"]["eager"]), number(r["us"]["tessera"]),
                 ratio(r["speedup"]), "Tessera" if r["own"] else "PyTorch"] for r in slower]),
    ]  # fmt: skip


def numpy_programs(rows: list[Row]) -> list[str]:
    """STENSO's programs: geometric means by library and size, and each in NumPy."""
    kinds = {("numpy", "source"): "NumPy", ("jax", "source"): "`jax.jit`",
             ("torch", "source"): "`torch.compile`",
             ("numpy", "kernel"): "`@ts.optimize` over NumPy"}  # fmt: skip
    sizes = {"as published": "as published", "small": "a quarter", "large": "four times"}
    found = {(r["case"], r.get("scale"), r["framework"], r["output"]): r for r in rows}
    means = []
    for scale, size in sizes.items():
        of = [found["geomean", scale, *kind] for kind in kinds]
        known = [row for row in of if "best_known_vs_original" in row]
        as_good = [f"{row['as_good_as_best_known']} of {row['cases']}" for row in known]
        means += [
            [size, "ours", *(ratio(row["speedup_vs_original"]) for row in of)],
            ["", "best known", *(ratio(row["best_known_vs_original"]) for row in known), ""],
            ["", "as good, within 3 %", *as_good, ""],
            ["", "slowest of ours", *(ratio(row["slowest"]) for row in of)],
        ]
    programs = []
    for function in ast.parse(_PROGRAMS.read_text()).body:
        if isinstance(function, ast.FunctionDef):
            source, kernel = (found[function.name, None, "numpy", k] for k in ("source", "kernel"))
            code = (_code(function), _code(ast.parse(source["source"]).body[0]))
            gains = [row["speedup_vs_original"] for row in (source, kernel)]
            programs.append((*gains, [*(f"`{c}`" for c in code), *map(ratio, gains)]))
    programs.sort(key=lambda program: -program[1])
    search = found["geomean", "as published", "numpy", "source"]
    return [
        *table(f"extents | | {' | '.join(kinds.values())}", means),
        "",
        f"NumPy's search takes {search['search_s']:.1f} s for all of them together, "
        f"{search['slowest_search_s']:.2f} s at most.",
        "",
        *table("program | becomes | NumPy | `@ts.optimize`", (line for *_, line in programs)),
    ]


def _code(function: ast.stmt) -> str:
    """What a function does, in one line, without the tests of its arguments."""
    assert isinstance(function, ast.FunctionDef)
    lines = [ast.unparse(node) for node in function.body if not isinstance(node, ast.If)]
    last = lines.pop().removeprefix("return ")
    return "; ".join(lines + [last] * (not lines or not last.isidentifier()))


def verifier(rows: list[Row]) -> list[str]:
    """What was accepted and refused; of faults in kernels, what the check of compiled code saw."""
    lines = []
    for row in rows:
        accepted = row.get("accepted", row.get("missed"))
        counts = [len(row.get("kinds", "")) or "", row["count"], accepted,
                  row.get("refuted", row.get("caught")), row.get("unknown", ""),
                  row["harmless"] + row["undecided"]]  # fmt: skip
        cells = [f"{n:,}" if n != "" else "" for n in counts]
        lines.append([_VERIFIER[row["case"]], *cells, f"{row['seconds']:.0f}"])
    return table(" | kinds | count | accepted | refuted | unknown | set aside | seconds", lines)


def first_calls(rows: list[Row]) -> list[str]:
    """What first calls of `@ts.optimize` take beyond the function's own time."""

    def of(turn: str, what: str) -> list[float]:
        return [row[turn][what] for row in rows]

    def both(seconds: list[float], unit: float, form: str) -> str:
        return ", ".join(format(x * unit, form) for x in (median(seconds), max(seconds)))

    waiting = of("waiting", "winner_s")
    late = [a / b for a, b in zip(of("first", "winner_s"), waiting, strict=True)]
    first, second = (both(of(turn, "extra_s"), 1e3, ".0f") for turn in ("first", "second"))
    winners = [median(of(turn, "winner_s")) for turn in ("first", "second")]
    return table(f"{len(rows)} functions | takes (median, most) | goal", [
        ["first call over the function's own time", f"{first} ms", "20 ms"],
        ["the same in a second process, everything in its cache", f"{second} ms", "30 ms"],
        ["until the winner runs, first process (median)", f"{winners[0]:.1f} s", ""],
        ["until the winner runs, second process (median)", f"{winners[1]:.1f} s", ""],
        ["`wait=True`: first call", f"{both(of('waiting', 'extra_s'), 1, '.1f')} s", "1.5 s"],
        ["the winner in the background, in times of `wait=True` (median)",
         f"{median(late):.2f}", "2"],
    ])  # fmt: skip


def selected(load: Callable[[str], list[Row]]) -> list[str]:
    """The README's rows: f32, two threads, warm caches, batch 1 where no other is named."""
    lines = []
    for what, name, wanted in _SELECTED:
        wanted = {"dtype": "f32", "threads": 2, "cache": "warm", "batch": 1} | wanted
        (row,) = (r for r in load(name) if all(r.get(k, v) == v for k, v in wanted.items())
                  and not r.get("ablated"))  # fmt: skip
        times = ["", "NumPy", ratio(row.get("speedup_vs_original", 0))]
        if "peers" in row:
            peer = _peer(row)
            times = [f"{number(row['ours_us'] / 1e3)} ms",
                     f"{_PEERS[peer]} {number(row['peers'][peer] / 1e3)} ms",
                     ratio(row["speedup_vs_best"])]  # fmt: skip
        lines.append([what, *times])
    return table("program | Tessera | best peer | ratio", lines)
