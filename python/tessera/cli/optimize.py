"""`tessera optimize`, `search` and `emit`: from a program to a winner and its source."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Column, Table

from tessera import _core, costs
from tessera.api import Progress, optimize_traced, superoptimize
from tessera.cli import common
from tessera.emit import FLAVOURS, call_of
from tessera.emit import emit as emit_source
from tessera.errors import UsageError
from tessera.files import require_folder
from tessera.graph import Graph
from tessera.options import Options, is_gpu, target_directory
from tessera.race import Times
from tessera.result import Candidate, Result
from tessera.rewrite import Improvement, Rewrite, rewrite
from tessera.rules import add_to_user_rules, learn, load_rules
from tessera.source import Program
from tessera.types import Fields, Object, Record

if TYPE_CHECKING:
    from tessera.frontends.onnx.rewrite import ModelRewrite

OUTPUTS = (".ug", ".cpp", ".cu", ".py", ".onnx", ".json", ".html")


@click.command(epilog=common.SRC_HELP)
@common.source_options
@common.search_options
@common.resume_option
@common.accept_option
@common.level_option
@click.option("--tune", is_flag=True, hidden=True, help="Time more candidates, and other tiles.")
@click.option(
    "--no-cache", is_flag=True, hidden=True, help="Search even if the result is remembered."
)
@click.option("--refresh", is_flag=True, hidden=True,
              help="The same, and remember what is found instead.")  # fmt: skip
@click.option(
    "--learn",
    "keep_rules",
    is_flag=True,
    hidden=True,
    help="Keep what the search of SRC finds as rules (see `tessera rules`).",
)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    help="Save the winner as OUT.ug, .cpp, or .py and .onnx (see --emit), "
    "the whole run as OUT.json or .html.",
)
@click.option(
    "--emit",
    "flavour",
    type=click.Choice([*FLAVOURS, "onnx"]),
    help="Rewrite as source (or model) with less work in it, not as kernels; -o OUT.py alone means "
    "numpy, -o OUT.onnx means onnx.",
)
@common.json_option  # fmt: skip
def optimize(
    src: str,
    shapes: tuple[str, ...],
    output: str | None,
    flavour: str | None,
    as_json: bool,
    no_cache: bool,
    keep_rules: bool,
    **values: Object,
) -> int:
    """Make SRC faster, prove it equal, and measure it against the original.

    \b
    Examples:
      tessera optimize examples/rmsnorm.py
      tessera optimize model.py:attention --shape Q=f32[64,128] --budget 10 -o winner.ug
      tessera optimize prog.ug --json
      tessera optimize stats.py:zscore -o fast.py       NumPy in, NumPy out
      tessera optimize stats.py:zscore --emit jax
      tessera optimize model.onnx -o fast.onnx          ONNX in, ONNX for any runtime out
      tessera optimize model.onnx --shape batch=8       kernels of our own, to run from Python
      tessera optimize model.py --target cuda -o winner.cu       for the GPU of this machine
      tessera optimize model.py --target cuda:sm_90a             also without one

    The original is always a candidate, so the result is never slower by choice. Ctrl-C ends the
    search within a second, with the best that is proved by then; without any, the exit code is 2.
    A search that Ctrl-C or the budget cut short is kept, and goes on with --resume.
    """
    if output is not None and Path(output).suffix not in OUTPUTS:
        raise UsageError(f"-o {output}: the name must end in {', '.join(OUTPUTS)}")
    if output:
        require_folder(Path(output))
    suffix = Path(output).suffix if output else ""
    to_model = flavour == "onnx" or (suffix == ".onnx" and flavour is None)
    program = common.read_program(src, shapes, whole=to_model)
    options = common.options_from(cache=not no_cache, **values)
    if keep_rules:
        learnt = learn([(program.graph, program.graph.name)], load_rules()).rules
        place = f" kept in {add_to_user_rules(learnt)}" if learnt else ""
        common.stderr().print(f"{len(learnt)} new rules{place}", markup=False)
    found: Result | Rewrite | ModelRewrite
    if to_model:
        _require_suffix(output, ".onnx", "a model")
        found = _as_model(program, src, options, as_json)
    elif flavour or suffix == ".py":
        _require_suffix(output, ".py", f"source of {flavour}")
        found = rewrite(program.graph, flavour or "numpy", options=options,
                        function=program.function, traced=program.traced,
                        seconds=options.budget)  # fmt: skip
    else:
        with common.ProgressLine(not as_json) as progress:
            found = optimize_program(program, options, progress)
    if output and isinstance(found, Result) and suffix in (".json", ".html"):
        found.report(output)
    elif output:
        found.save(output)
    if as_json:
        common.print_json(found.json())
    elif isinstance(found, Result):
        show_result(found, output)
    else:
        show_rewrite(found, output)
    return 2 if isinstance(found, Result) and found.interrupted and not found.improved else 0


def _require_suffix(output: str | None, suffix: str, what: str) -> None:
    if output and Path(output).suffix != suffix:
        raise UsageError(f"-o {output}: {what} is saved as OUT{suffix}")


def _as_model(program: Program, src: str, options: Options, as_json: bool) -> ModelRewrite:
    """The program as an ONNX model with less work in it."""
    from tessera.frontends.onnx.rewrite import rewrite_model

    source = src if Path(src).suffix == ".onnx" else None
    with common.ProgressLine(not as_json) as line:
        tell = None if line is None else lambda stage: line({"stage": stage})
        return rewrite_model(program.graph, source=source, options=options, progress=tell)


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
    for line in str(certificate).splitlines():
        if line.startswith(("level", "coverage", "error_log2", "basis")):
            common.stdout().print(f"  {line}", markup=False)


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
    for what, times in contestants:
        console.print(f"  {what}: {times}", markup=False, highlight=False)
    for said, why in ((noisy, NOISY), (provisional, PROVISIONAL)):
        if said:
            console.print(f"[yellow]{why}[/]")


def show_rewrite(found: Rewrite | ModelRewrite, output: str | None) -> None:
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
        what = "model" if source is None else "program"
        console.print(f"nothing faster was found and proved; this is the {what} as it was")
        for reason in found.rejected[:3]:
            console.print(f"not taken: {reason.splitlines()[0]}", markup=False)
    if source is not None:
        show_times(source.contestants, source.undecided, source.provisional)
    if output:
        console.print(f"saved {output}")


def show_conditions(found: Improvement) -> None:
    """Where the original is not finite and the rewrite may be."""
    if found.conditions:
        console = common.stdout()
        where = ", ".join(found.conditions)
        console.print(f"  equal where {where}; elsewhere the original is not finite", markup=False)
        console.print("  --level bitwise refuses rewrites that differ there", markup=False)


def optimize_program(program: Program, options: Options, progress: Progress | None) -> Result:
    """The Result for what SRC named."""
    if program.traced is not None and program.function is not None:
        return optimize_traced(program.function, program.traced, options, progress)
    return superoptimize(program.graph, options=options, progress=progress)


def show_result(result: Result, output: str | None = None) -> None:
    """The report of one optimisation, for a reader."""
    console = common.stdout()
    data = result.json()
    console.print(f"[bold]{data['program']}[/] on {data['target']}, {data['threads']} thread(s)")
    if result.details["from_cache"]:
        console.print("result remembered from an earlier run; proved, compiled and checked again")
    else:
        took = common.duration(data["search_s"])
        console.print(f"searched {common.count(data['states'])} states in {took}: {_counts(data)}")
        if pruned := common.prunes(data["pruned"], 6):
            console.print(f"pruned: {pruned}")
    if convolutions := result.details.get("convolutions"):
        console.print("convolutions:")
        for line in convolutions:
            console.print(f"  {line}", markup=False, highlight=False)
    for line in subprogram_lines(result.details):
        console.print(line, markup=False, highlight=False)
    if simplified := result.details.get("simplified"):
        console.print("simplified before the search for kernels:")
        console.print(str(simplified).rstrip(), markup=False)
    if result.interrupted:
        console.print("[yellow]interrupted; this is the best so far[/]")
    for line in common.resume_lines(result.details["resumed"], result.details["resumable"]):
        console.print(line, markup=False)
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


def _counts(search: Fields) -> str:
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


@click.command(epilog=common.SRC_HELP)
@common.source_options
@common.search_options
@common.resume_option
@click.option(
    "--engine",
    type=click.Choice(["mugraph", "synth", "mutate", "patterns"]),
    default="mugraph",
    show_default=True,
    help="mugraph: fused kernels; synth: less work, at the costs of NumPy's own functions; "
    "mutate: other shapes of convolutions and products, corrected where they differ; "
    "patterns: experts' kernels (see `tessera patterns`).",
)
@click.option(
    "--top", type=click.IntRange(min=0), default=10, show_default=True, help="Candidates to show."
)
@click.option("--show", type=click.IntRange(min=1), metavar="RANK", help="Print this candidate.")
@common.json_option
def search(
    src: str,
    shapes: tuple[str, ...],
    engine: str,
    top: int,
    show: int | None,
    as_json: bool,
    **values: Object,
) -> int:
    """Search only: candidates by cost model, counters, and why the search stopped.

    \b
    Examples:
      tessera search prog.ug
      tessera search prog.ug --max-block-ops 9 --show 1
      tessera search prog.ug --disable mugraph:bound --json
      tessera search prog.ug --budget 60 --resume

    Nothing is run; only what mutate and patterns find is proved. Exit code 0 with candidates, 1
    when there are none, 2 when the budget ended before any was found.
    """
    program = common.read_program(src, shapes)
    options = common.options_from(**values)
    program.graph.validate()
    with common.ProgressLine(not as_json) as progress:
        fields = {**options.fields(), "engine": engine}
        if engine == "patterns":
            fields["proved"] = True
        if engine == "synth":
            fields |= costs.fields(options.cost, "numpy")
        record = _core.search(program.graph.core, fields, progress)
    report = record["report"]
    candidates = [
        Candidate.of({**c, "rank": rank}) for rank, c in enumerate(record["candidates"], 1)
    ]
    if show is not None and show > len(candidates):
        raise UsageError(f"--show {show}: there are {len(candidates)} candidates")
    if as_json:
        common.print_json(
            {
                "program": program.graph.name,
                "engine": engine,
                **report,
                **{key: record[key] for key in ("interrupted", "resumable", "resumed")},
                "candidates": [
                    {"rank": c.rank, "model_us": c.model_us, "notes": list(c.notes),
                     "derivation": c.derivation, "graph": str(c.graph)}
                    for c in candidates
                ],
            }
        )  # fmt: skip
    else:
        console = common.stdout()
        show_search(program.graph.name, f"{len(candidates)} candidates", report)
        console.print(_counts(report))
        if pruned := common.prunes(report["pruned"], 10):
            console.print(f"pruned: {pruned}")
        for line in common.resume_lines(record["resumed"], record["resumable"]):
            console.print(line, markup=False)
        if engine == "patterns":
            for line in report["refused"]:
                console.print(f"nearly: {line}", markup=False)
        console.print(candidate_table(candidates, top))
        if show is not None:
            console.print(str(candidates[show - 1].graph), markup=False)
    if candidates:
        return 0
    return 1 if report["stop"] in ("exhausted", "unsupported") else 2


@click.command(epilog=common.SRC_HELP)
@common.source_options
@click.option(
    "--target",
    default="cpu",
    show_default=True,
    metavar="NAME",
    help="cpu, or cpu-generic, cpu-avx2, cpu-avx512; cuda, cuda:sm_90a, h200 ….",
)
@click.option(
    "--emit",
    "flavour",
    type=click.Choice(["cpp", *FLAVOURS]),
    default="cpp",
    show_default=True,
    help="C++ kernels, or the program as NumPy, JAX or PyTorch.",
)
@click.option("-o", "--output", metavar="FILE", default="-", help="Where to; - for the terminal.")
@common.json_option  # fmt: skip
def emit(
    src: str, shapes: tuple[str, ...], target: str, flavour: str, output: str, as_json: bool
) -> int:
    """Print the source of SRC as it is, without searching.

    \b
    Examples:
      tessera emit winner.ug
      tessera emit winner.ug --target cpu-avx2 -o kernel.cpp
      tessera emit winner.ug --target cuda:sm_80 -o kernel.cu
      tessera emit prog.py --emit jax

    For the source of the best program: `tessera optimize SRC -o kernel.cpp`.
    """
    program = common.read_program(src, shapes)
    if output != "-":
        require_folder(Path(output))
    kernels = flavour == "cpp"
    source = _kernel_source(program.graph, target) if kernels else _spelled(program, flavour)
    if as_json:
        how = {"target": target} if kernels else {"emit": flavour}
        common.print_json({"program": program.graph.name, **how, "source": source})
    else:
        common.write_output(output, source)
    return 0


def _spelled(program: Program, flavour: str) -> str:
    call = None
    if program.function is not None and program.traced is not None:
        call = call_of(program.function, program.traced, program.constants)
    return emit_source(program.graph, flavour, constants=program.constants, call=call)


def _kernel_source(graph: Graph, target: str) -> str:
    graph.validate()
    if is_gpu(target):
        return _core.emit_cuda(graph.core, target, target_directory()).source
    kind, _, isa = target.partition("-")
    if kind != "cpu" or target == "cpu-":
        raise UsageError(
            f"target '{target}' is not supported yet; use cpu, cpu-generic, cpu-avx2, "
            "cpu-avx512, cuda or an architecture such as cuda:sm_90a"
        )
    return _core.emit_source(graph.core, isa)
