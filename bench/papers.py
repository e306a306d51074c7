"""Writes docs/papers/NAME.md, one page per paper, from bench/results: `python -m bench.papers`.

What the papers report (from their text, where a figure's bars have no numbers only what the text
says of them) beside what was measured here, with what differs. `--check` writes nothing and fails
where a page is not what the results give.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from bench.page import RESULTS, ROOT
from bench.page_tables import _MODELS

Row = dict[str, Any]
COMMAND = "python -m bench.papers"
FOLDER = ROOT / "docs/papers"
_FAMILIES = {"rmsnorm": "RMSNorm", "gatedmlp": "GatedMLP", "lora": "LoRA", "gqa": "GQA",
             "qknorm": "QKNorm", "ntrans": "nTrans"}  # fmt: skip


def rows(name: str, **wanted: Any) -> list[Row]:
    """Rows of a file of results that have these values."""
    found = json.loads((RESULTS / f"{name}.json").read_text())
    return [r for r in found if all(r.get(k) == v for k, v in wanted.items())]


def one(name: str, **wanted: Any) -> Row:
    """The only such row."""
    (row,) = rows(name, **wanted)
    return row


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Markdown, numbers to the right."""
    line = ["---", *["--:"] * (len(head) - 1)]
    return ["| " + " | ".join(cells) + " |" for cells in (head, line, *body)]


def place(row: Row) -> str:
    """Where a row was measured."""
    machine = row["machine"]
    processor = machine["processor"].replace("(R)", "").removesuffix(" Processor")
    return f"{machine['cpus']} cores of {processor} ({machine['isa']})"


def times(x: float | None) -> str:
    """A ratio."""
    return "" if not x else f"{x:.2f}"


def seconds(x: float) -> str:
    """A time of a search."""
    return f"{x:.2g} s" if x >= 0.01 else f"{1000 * x:.1g} ms"


# --- Mirage -------------------------------------------------------------------------------------

# On A100 and H100 over the best of the baselines, as the text has it (§3, §8.2).
_MIRAGE = {"rmsnorm": "1.9", "gatedmlp": "1.5; 2.7 to 3.3", "lora": "1.1 to 2.4",
           "gqa": "up to 2.2", "qknorm": "up to 1.4", "ntrans": "slower than TensorRT"}  # fmt: skip
_TABLE5 = {5: (11, 58, "768"), 6: (16, 93, "19,934"), 7: (22, 150, "over 36,000"),
           8: (24, 152, "over 36,000"), 9: (26, 166, "over 36,000"),
           10: (26, 166, "over 36,000"), 11: (28, 183, "over 36,000")}  # fmt: skip


def mirage() -> list[str]:
    """Figure 7 and Table 5."""
    cpu = {c: one("mirage", case="geomean", dtype="f32", threads=2, cache=c)
           for c in ("warm", "cold")}  # fmt: skip
    gpu = next(r for r in rows("cuda", case="geomean", dtype="f16", cache="warm"))
    figure7 = [
        [name, _MIRAGE[f], times(gpu["per_workload"].get(f)),
         *(times(cpu[c]["per_workload"].get(f)) for c in cpu)]
        for f, name in _FAMILIES.items()
    ]  # fmt: skip
    whole = {r["max_block_ops"]: r for r in rows("search", case="rmsnorm", threads=2, without=None,
                                                 exhaustive=False)}  # fmt: skip
    alone = one("search", case="rmsnorm", threads=1, exhaustive=False)
    plain = {(r["max_block_ops"], r["without"] is None): r
             for r in rows("search", case="rmsnorm", exhaustive=True)}  # fmt: skip
    table5 = []
    for limit, (theirs, single, unpruned) in _TABLE5.items():
        pruned, full = (plain.get((limit, p)) for p in (True, False))
        table5.append([
            str(limit), f"{theirs} s", f"{single} s", f"{unpruned} s",
            seconds(whole[limit]["search_s"]), f"{whole[limit]['states']:,}",
            f"{pruned['states']:,}" if pruned else "", f"{full['states']:,}" if full else "",
        ])  # fmt: skip
    return [
        "## Figure 7: six workloads",
        "",
        "Times as fast as the best of the others.",
        "",
        *table(("", "Mirage, A100; H100", f"here, {gpu['gpu']['device']}, f16",
                "here, CPU, f32, warm", "CPU, cold caches"), figure7),
        "",
        f"The GPU's rows are of {gpu['date']}, {gpu['count']} cases at batch 1 whose others are "
        "PyTorch, its attention kernels and cuBLASLt, each in a CUDA graph (Inductor and Triton had"
        " time for one case each); Mirage's are TASO/PET, PyTorch, TensorRT, FlashAttention and "
        "Triton. On the CPU the others are NumPy, PyTorch, Inductor, JAX and onnxruntime. A CPU has"
        " no launch to save and no shared memory: what is gained there is memory traffic and calls."
        " Below 1 the others are faster.",
        "",
        "## Table 5: time of the search, RMSNorm",
        "",
        *table(("block operators", "Mirage", "one thread", "no pruning", "here", "states",
                "plain enumeration", "without pruning"), table5),
        "",
        f"Here: {place(whole[11])}. The search is another one: it saturates values and extracts "
        "kernels by branch and bound, where Mirage enumerates graphs. The last two columns are "
        "Mirage's own enumeration of one block graph, kept as an oracle of the tests: what pruning "
        "by goals leaves, and without it all states until it was stopped. Threads gain nothing "
        f"here: without a limit one thread took {seconds(alone['search_s'])} on a loaded machine.",
    ]  # fmt: skip


# --- PET ----------------------------------------------------------------------------------------

_PET_SECONDS = {"resnet18": "89 s", "csrnet14": "88 s", "bert_paper": "91 s",
                "resnet3d18": "165 s", "inception": "about 25 min"}  # fmt: skip
_PET_GAIN = {"resnet18": "up to 1.21", "csrnet14": "up to 2.5", "bert_paper": "up to 2.5",
             "resnet3d18": "up to 1.28", "inception": "", "table3_conv": "7",
             "table3_dilated": "1.94"}  # fmt: skip


def pet() -> list[str]:
    """Figure 8, Table 4, Figure 12, §8.6."""
    found = rows("zen5-pet", threads=1, batch=1)
    body = []
    for name, theirs in _PET_GAIN.items():
        row = next(r for r in found if r["case"] == name)
        alone = row["rewrites_alone"]
        body.append([
            _MODELS[name], theirs, times(row["speedup_vs_best"]),
            *(times(alone[m]["ratio"]) for m in ("all", "common", "none")),
            _PET_SECONDS.get(name, ""), seconds(row["search_s"]),
        ])  # fmt: skip
    return [
        "## Figures 8 and 12, Table 4, §8.6",
        "",
        "Batch 1. PET: over the best baseline on a V100 (models), over the same library (Table 3). "
        "Here: over the best of onnxruntime, PyTorch, Inductor and OpenVINO, then what the search "
        "alone gains over the same back end with all of its transforms (Winograd), with those that "
        "libraries have, and with none.",
        "",
        *table(("", "PET", "here", "search alone: all", "common", "none", "PET's search",
                "search here"), body),
        "",
        f"Here: {place(found[0])}, one thread, f32. PET gains where a dilated or small convolution "
        "has no fast algorithm in cuDNN. A back end that has Winograd's transforms for dilated "
        "windows leaves nothing to gain; with those of libraries only, the search finds what PET "
        "found (CSRNet, Table 3's dilated convolution). Direct convolutions run at the rate of the "
        "multipliers, so that tiles (Table 3's conv) gain nothing on a CPU.",
        *_pet_ablation(),
    ]  # fmt: skip


def _pet_ablation() -> list[str]:
    if not (RESULTS / "pet-ablate.json").exists():
        return []
    kinds = [
        [r["case"], f"{r['mutants']:,}", f"{r['partial']}", f"{r['proved_equal']}",
         f"{r['proved_corrected']}", *(times(r["model_gain"][k])
                                       for k in ("equal", "corrected", "both"))]
        for r in rows("pet-ablate", ablation="transformations")
    ]  # fmt: skip
    lines = [
        "",
        "## Figure 13: equal, partially equal, both",
        "",
        *table(("", "mutants", "equal somewhere", "proved: equal", "corrected",
                "gain by the model: equal", "corrected", "both"), kinds),
        "",
        "By counts and by the cost model of the machine, not by times: `tessera bench pet "
        "--ablate`. In the paper both together are best in all five models. Mutants that are equal "
        "everywhere need no correction; some that PET corrects are among them here, such as the "
        "phases of dilated windows.",
    ]  # fmt: skip
    deeper = rows("pet-ablate", ablation="depth and rounds")
    for name in dict.fromkeys(r["case"] for r in deeper):
        mine = [r for r in deeper if r["case"] == name]
        counts = {(r["depth"], r["rounds"]): r for r in mine}
        rounds = sorted({r["rounds"] for r in mine})
        lines += [
            "",
            f"## Figure 14: depth and rounds, {name}",
            "",
            *table(
                ("depth", *(f"{n} rounds: mutants, kept, gain" for n in rounds)),
                [
                    [str(d), *(f"{c['mutants']:,}, {c['alternatives']}, "
                               f"{c['model_gain']['best']:.2f}"
                               for n in rounds if (c := counts[d, n]))]
                    for d in sorted({r["depth"] for r in mine})
                ],
            ),
        ]  # fmt: skip
    return lines


# --- STENSO -------------------------------------------------------------------------------------

_STENSO = (("numpy", "NumPy", "3.7 to 3.8"), ("jax", "JAX", "1.5 to 1.9"),
           ("torch", "PyTorch", "1.2 to 1.6"))  # fmt: skip
_FIGURE8 = {"vec_lerp": "16.4", "log_exp_1": "23.6 (log_exp)", "reshape_dot": "6.1"}
_FIGURE7 = {"vectorization": "10.7", "identity replacement": "6.1", "strength reduction": "",
            "redundancy elimination": "", "algebraic simplification": ""}  # fmt: skip


def stenso() -> list[str]:
    """Figures 4 to 8."""
    means = {(r["framework"], r["output"]): r
             for r in rows("stenso", case="geomean", scale="as published")}  # fmt: skip
    first = one("stenso", case="vec_lerp", framework="numpy", output="source")
    figure4 = [
        [name, theirs, times(means[f, "source"]["speedup_vs_original"]),
         times(means[f, "source"]["best_known_vs_original"]),
         f"{means[f, 'source']['as_good_as_best_known']} of {means[f, 'source']['cases']}"]
        for f, name, theirs in _STENSO
    ]  # fmt: skip
    numpy = means["numpy", "source"]
    classes = numpy["classes"]
    figure8 = [
        [name, theirs, *(times(one("stenso", case=name, framework=f, output="source")
                               .get("speedup_vs_original")) for f, _, _ in _STENSO)]
        for name, theirs in _FIGURE8.items()
    ]  # fmt: skip
    return [
        "## Figure 4: source rewritten, over the original",
        "",
        *table(("", "STENSO, three CPUs", "here", "the paper's programs here",
                "as good or better"), figure4),
        "",
        f"Here: {place(first)}; geometric means over the 33 programs at the published shapes. "
        f"Compiled kernels instead of source: {means['numpy', 'kernel']['speedup_vs_original']:.1f}"
        " over NumPy.",
        "",
        "## Figure 5: time of the synthesis",
        "",
        *table(("", "STENSO", "here"), [
            ["all 33 programs, seconds in all", "", seconds(numpy["search_s"])],
            ["the slowest", "just over 200 s", seconds(numpy["slowest_search_s"])],
            ["bottom-up enumeration alone", "fails beyond small programs",
             seconds(numpy["bottom_up_s"])],
        ]),
        "",
        "Values at random inputs of finite fields are compared by a hash, where STENSO solves "
        "symbolic equations with SymPy, and rules that were learnt earlier are applied first. "
        "That is why a plain enumeration is as quick for these programs, which have at most six "
        "operations.",
        *_stenso_ablation(),
        "",
        "## Figure 8: single programs, NumPy in the paper",
        "",
        *table(("", "STENSO", *(f"here, {name}" for _, name, _ in _STENSO)), figure8),
        "",
        "## Figures 6 and 7: classes of rewrites, NumPy",
        "",
        *table(("", "STENSO: speedup", "here: programs", "speedup"), [
            [name, theirs, str(classes[name]["programs"]), times(classes[name]["speedup"])]
            for name, theirs in _FIGURE7.items()
        ]),
        "",
        "STENSO's authors sort programs by hand (nine and eight of algebraic simplification and "
        "strength reduction); here the operators of both programs decide "
        "(bench/stenso_classes.py).",
    ]  # fmt: skip


def _stenso_ablation() -> list[str]:
    if not (RESULTS / "stenso-ablate.json").exists():
        return []
    body = [
        [r["output"], f"{r['finds_the_best']} of {r['cases']}", f"{r['cut_short']}",
         f"{r['values']:,}"]
        for r in rows("stenso-ablate", case="geomean")
    ]  # fmt: skip
    return [
        "",
        *table(("configuration", "finds the cheapest that any finds", "cut short",
                "values built"), body),
        "",
        "`tessera bench stenso --ablate`, all but the first without known rules; counts, since "
        "the machine was not idle. No bound: what is dearer than the best known is kept too.",
    ]  # fmt: skip


# --- PluS ---------------------------------------------------------------------------------------


def plus() -> list[str]:
    """Figure 10, Table 1, and the overheads of §6.2."""
    counts = {r["case"]: r["paper"] for r in rows("plus", batch=1) if r.get("paper")}
    compared = [r for r in rows("models", batch=1, dtype="f32", threads=2)
                if r["case"] in counts and r["phase"] == "prompt"]  # fmt: skip
    table1 = [
        [_MODELS[r["case"]], *(str(n) for n in counts[r["case"]]), str(r["ops"]),
         str(r["kernels"]), times(r["speedup_vs_inductor"]), times(r["speedup_vs_best"])]
        for r in compared
    ]  # fmt: skip
    bert = next(r for r in compared if r["case"] == "bert")
    inductor = geometric_mean([r["speedup_vs_inductor"] for r in compared])
    return [
        "## Table 1 and Figure 10: operators, kernels, and time over Inductor",
        "",
        *table(("", "PluS: operators", "layers", "here: operators", "kernels",
                "over Inductor", "over the best of all"), table1),
        "",
        f"Here: {place(bert)}, batch 1, f32, through torch.compile; the others are eager, "
        "Inductor, frozen Inductor, onnxruntime and OpenVINO. PluS: 4.04 over Inductor on "
        f"average on an A100 (4.59 on a 4090), batches 1 and 16; here {inductor:.2f} in the "
        "geometric mean. Operators are counted after PyTorch's own decomposition, which leaves "
        "fewer than PluS counts. Kernels are made by all engines, not by patterns alone.",
        "",
        "## §6.2 and §6.3: overheads and accuracy, BERT",
        "",
        *table(("", "PluS", "here"), [
            ["compilation, first", "1 to 2 min", seconds(bert["compile_s"])],
            ["compilation, cached", "18 to 25 s", seconds(bert["compile_cached_s"])],
            ["memory beside the model", "130 to 190 MB",
             f"{bert['memory_mb']['tessera']:.0f} MB"],
            ["largest absolute difference from eager", "1.9e-3", f"{bert['max_abs_diff']:.1e}"],
        ]),
        "",
        "Weights are read where they lie; packed ones (`options={\"freeze\": True}`) let products "
        "be fused with more: 75 kernels for BERT ([torch.md](../torch.md)).",
    ]  # fmt: skip


PAGES: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "mirage": ("Mirage (OSDI'25), ours beside theirs", mirage),
    "pet": ("PET (OSDI'21), ours beside theirs", pet),
    "stenso": ("STENSO (CGO'26), ours beside theirs", stenso),
    "plus": ("PluS (ATC'25), ours beside theirs", plus),
}


def page(name: str) -> str:
    """The text of one page."""
    title, lines = PAGES[name]
    made = f"Made by `{COMMAND}` from [bench/results](../../bench/results); what there is, and the "
    head = [f"# {title}", "", f"{made}commands: [README](README.md).", ""]
    return "\n".join([*head, *lines()]) + "\n"


def stale() -> list[Path]:
    """Pages that are not what the results give."""
    paths = {name: FOLDER / f"{name}.md" for name in PAGES}
    return [p for n, p in paths.items() if not p.exists() or p.read_text() != page(n)]


def main() -> None:
    """Writes the pages, or checks them."""
    found = stale()
    if sys.argv[1:] == ["--check"] and found:
        sys.exit(f"The pages differ from bench/results: run `{COMMAND}`")
    for path in found:
        path.write_text(page(path.stem))


if __name__ == "__main__":
    main()
