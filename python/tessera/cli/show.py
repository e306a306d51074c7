"""What became of a program, for a reader: times, proofs, candidates, kernels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.table import Column, Table

from tessera import _core
from tessera.candidate import Candidate
from tessera.cli import common
from tessera.race import Times
from tessera.result import Result
from tessera.rewrite import Improvement, Rewrite
from tessera.store import receive
from tessera.types import Fields, Record

if TYPE_CHECKING:
    from tessera.frontends.onnx.rewrite import ModelRewrite


def show_search(name: str, found: str, search: Fields) -> None:
    """What a search found, in a line."""
    common.stdout().print(
        f"[bold]{name}[/]: {found} in {common.duration(search['seconds'])}, stopped: "
        f"{search['stop']}" + (f" ({search['detail']})" if search["detail"] else "")
    )


def show_proof(certificate: _core.Certificate | None) -> None:
    """The lines of a certificate that say most; nothing where there is none."""
    if certificate is None:
        return
    common.stdout().print("\n[bold]proved equal[/]")
    told = ("level", "coverage", "error_log2", "basis")
    lines = str(certificate).splitlines()
    common.print_lines(f"  {line}" for line in lines if line.startswith(told))


def show_speedup(found: Improvement | Result, how: str) -> None:
    """Both times and their ratio."""
    common.stdout().print(
        f"[bold green]{found.speedup:.2f}x[/]: {common.duration(found.measured_us / 1e6)} "
        f"against {common.duration(found.original_us / 1e6)}{how}"
    )


NOISY = "too noisy to tell whether anything is faster; the next run will race again"
PROVISIONAL = "provisional: other programs kept the machine busy; times of one thread, where told"


def show_times(contestants: Iterable[tuple[str, Times]], noisy: bool, provisional: bool) -> None:
    """What each contestant took, and what to think of it."""
    console = common.stdout()
    common.print_lines(f"  {what}: {times}" for what, times in contestants)
    for said, why in ((noisy, NOISY), (provisional, PROVISIONAL)):
        if said:
            console.print(f"[yellow]{why}[/]")


def show_rewrite(found: Rewrite | ModelRewrite) -> None:
    """The report of one rewriting, as source or as a model, for a reader."""
    console = common.stdout()
    show_search(found.name, f"{common.count(found.search['values'])} values", found.search)
    if found.derivation:
        console.print(found.derivation.rstrip(), markup=False)
    source = found if isinstance(found, Rewrite) else None
    if source is not None:
        console.print()
        console.print(source.source.rstrip(), markup=False, highlight=False)
    show_proof(found.certificate)
    show_conditions(found)
    console.print()
    if found.improved and found.not_measured:
        console.print("[bold green]less work[/] by the cost model; nothing was timed: ", end="")
        console.print(found.not_measured, markup=False)
    elif found.improved:
        who = "onnxruntime" if source is None else found.flavour
        show_speedup(found, f" for the original, both run by {who}, measured side by side")
    else:
        what = found.translation or f"the {'model' if source is None else 'program'} as it was"
        console.print(f"nothing faster was found and proved; this is {what}", markup=False)
        common.print_lines(f"not taken: {why.splitlines()[0]}" for why in found.rejected[:3])
    if source is not None:
        show_times(source.contestants, source.undecided, source.provisional)


def show_conditions(found: Improvement) -> None:
    """Where the original is not finite and the rewrite may be."""
    if found.conditions:
        console = common.stdout()
        where = ", ".join(found.conditions)
        console.print(f"  equal where {where}; elsewhere the original is not finite", markup=False)
        console.print("  --level bitwise refuses rewrites that differ there", markup=False)


def show_result(result: Result, output: str | None = None) -> None:
    """The report of one optimisation, for a reader."""
    console = common.stdout()
    data = result.json()
    console.print(f"[bold]{data['program']}[/] on {data['target']}, {data['threads']} thread(s)")
    if result.details["from_cache"]:
        console.print("result remembered from an earlier run; proved, compiled and checked again")
    else:
        took = common.duration(data["search_s"])
        console.print(f"searched {common.count(data['states'])} states in {took}: {counts(data)}")
        if pruned := common.prunes(data["pruned"], 6):
            console.print(f"pruned: {pruned}")
    stores = result.details.get("stores", ())
    common.print_lines(f"{r['origin']}: {receive.Received(**r)}" for r in stores)
    if convolutions := result.details.get("convolutions"):
        common.print_lines(["convolutions:", *(f"  {line}" for line in convolutions)])
    common.print_lines(subprogram_lines(result.details))
    if simplified := result.details.get("simplified"):
        console.print("simplified before the search for kernels:")
        console.print(str(simplified).rstrip(), markup=False)
    if result.interrupted:
        console.print("[yellow]interrupted; this is the best so far[/]")
    common.show_resume(result.details)
    console.print(candidate_table(result.candidates))
    if result.improved:
        console.print("\n[bold]winner[/]")
        console.print(str(result.graph).rstrip(), markup=False)
        console.print("\n[bold]certificate[/]")
        if result.certificate is not None:
            console.print(common.in_short(result.certificate), markup=False)
            console.print()
            console.print(common.error_table(result.certificate))
        for line in result.details["bodies"]:
            console.print(line, markup=False, soft_wrap=True)
        alone = bool(result.details["not_measured"])
        measured = "by the cost model alone" if alone else "measured side by side"
        console.print()
        show_speedup(result, f" for the original compiled as it is, {measured}")
    else:
        took = f", which takes {common.duration(us / 1e6)}" if (us := result.original_us) else ""
        late = any(c.fate == "measured" and c.speedup > 1.02 for c in result.candidates)
        found = "nothing faster was found"
        if late and not result.details["too_noisy"]:
            found = "what seems faster was not proved and raced in the time there was (--budget)"
        console.print(f"\n{found}; the original is kept{took}")
    if result.details["too_noisy"]:
        console.print(f"[yellow]{NOISY}[/]")
    show_kernels(result)
    choice = result.choice
    if choice.times:
        console.print(
            f"calls run the {choice.runs}; against NumPy, at the better of one thread and all:"
        )
    show_times(choice.times.items(), choice.undecided, choice.provisional)
    if output:
        console.print(f"saved {output}")


def counts(search: Fields) -> str:
    kinds = ("values", "edges", "graphs", "tilings")
    return ", ".join(f"{common.count(search[kind])} {kind}" for kind in kinds)


def subprogram_lines(details: Record, alternatives: bool = False) -> list[str]:
    """What the partially equivalent engine tried for each subprogram, and what came of it."""
    found: list[Record] = details.get("subprograms", [])
    if not found:
        return []
    lines = ["linear subprograms:"]
    for s in found:
        times = f"{s['times']}x " if s["times"] > 1 else ""
        lines.append(f"  {times}{s['name']}: {s['verdict']}")
        if not s["tried"]:
            continue
        timed = f", {common.duration(s['measured_s'])} timed" if s["measured_s"] else ""
        lines.append(
            f"    {common.count(s['tried'])} operators tried in {s['rounds']} round(s), "
            f"{common.count(s['mutants'])} mutants, {s['partial']} equal on a part, "
            f"{len(s['alternatives'])} equal, {s['proven']} proven, best {s['gain']:.2f}x{timed}; "
            f"{s['stop']}"
        )
        for a in s["alternatives"] if alternatives else ():
            lines.extend(_alternative_lines(a, s["measured_s"]))
    if cover := details.get("cover"):
        proved = "the cheapest" if cover["proved"] else "not proved the cheapest"
        lines.append(
            f"cover: {cover['chosen']} of {cover['offered']} offered kernels chosen, {proved} "
            f"({cover['variables']} variables in {cover['pieces']} pieces, {cover['solver']}, "
            f"{common.duration(cover['seconds'])}), expected "
            f"{common.duration(cover['expected_s'])} against {common.duration(cover['original_s'])}"
        )
    return lines


def _alternative_lines(a: Record, original_s: float) -> list[str]:
    cost = "not timed"
    if seconds := a["measured_s"]:
        cost = f"timed {common.duration(seconds)} ({original_s / seconds:.2f}x)"
    said = "chosen, " if a["chosen"] else ""
    said += "proven, " if a["proven"] else f"not proven: {a['why_not']}, " if a["why_not"] else ""
    first = f"    - {said}round {a['round']}, modelled {common.duration(a['model_s'])}, {cost}"
    steps = [f"        {line}" for line in a["derivation"].splitlines()]
    return [first, *steps, *(f"        ({note})" for note in a["notes"])]


def show_kernels(result: Result) -> None:
    """What a program for a GPU is made of, and whether it ran."""
    console = common.stdout()
    for k in result.kernels:
        if "library" in k:
            console.print(f"{k['library']}: {k['call']}", markup=False)
            continue
        grid = "x".join(str(n) for n in k["grid"])
        line = f"{k['name']}: {grid} blocks of {k['threads']} threads, "
        line += f"{k['shared_bytes'] / 1024:.1f} KiB of shared memory"
        if "registers" in k:
            line += f", {k['registers']} registers"
        if k.get("spilled_bytes"):
            line += f", {k['spilled_bytes']} bytes spilled"
        if "serialized" in k:
            line += f", products wait for each other: {k['serialized']}"
        console.print(line, markup=False)
    if model := result.details["model"]:
        line = f"cost model: rank correlation {model['rank']:.2f} with {model['programs']} programs"
        line += f" measured on this GPU, error {100 * model['error']:.0f} %"
        if model["used"]:
            line += f" (fitted: {model['fitted_rank']:.2f}, {100 * model['fitted_error']:.0f} %)"
        console.print(line, markup=False)
    if reason := result.details["not_measured"]:
        console.print(
            "[yellow]nothing was measured[/]: the kernels were compiled, and run in the emulator "
            "at reduced size"
        )
        console.print(f"({reason})", markup=False)


def candidate_table(candidates: list[Candidate], most: int = 12) -> Table:
    """Candidates by rank, with what became of them."""
    numbers = ("rank", "model", "median", "least", "spread", "speed-up", "kernels")
    columns = [Column(name, justify="right") for name in numbers]
    table = Table(*columns, "fate", box=None, pad_edge=False)
    for c in candidates[:most]:
        table.add_row(
            str(c.rank),
            common.duration(c.model_us / 1e6),
            common.duration(c.measured_us / 1e6) if c.measured_us else "",
            common.duration(c.least_us / 1e6) if c.least_us else "",
            f"{c.spread:.0%}" if c.least_us else "",
            f"{c.speedup:.2f}x" if c.speedup else "",
            str(sum(op["op"] == "kernel" for op in c.graph.ops)),
            c.fate + (f": {c.why.splitlines()[0]}" if c.why else ""),
        )
    if len(candidates) > most:
        table.add_row("…", "", "", "", "", "", "", f"{len(candidates) - most} more")
    return table
