"""`tessera optimize`, `search` and `emit`: from a program to a winner and its source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera import _core, costs
from tessera.api import Progress, optimize_traced, superoptimize
from tessera.candidate import Candidate
from tessera.cli import common
from tessera.emit import FLAVOURS, call_of, valid_name
from tessera.emit import emit as emit_source
from tessera.errors import UnsupportedError, UsageError
from tessera.files import require_folder
from tessera.graph import Graph
from tessera.options import Options, is_gpu, target_directory
from tessera.result import Result
from tessera.rewrite import Rewrite, rewrite
from tessera.rules import add_to_user_rules, learn, load_rules
from tessera.source import Program
from tessera.types import Object

if TYPE_CHECKING:
    from tessera.frontends.onnx.rewrite import ModelRewrite
from tessera.cli.show import candidate_table, counts, show_result, show_rewrite, show_search

_OF_KERNELS = "--target is of kernels; source and models run where their library does"
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
@click.option("--learn", "keep_rules", is_flag=True, hidden=True,
              help="Keep what the search of SRC finds as rules (see `tessera rules`).")  # fmt: skip
@click.option("-o", "--output", metavar="OUT",
              help="Save the winner as OUT.ug, .cpp, or .py and .onnx (see --emit), "
              "the whole run as OUT.json or .html.")  # fmt: skip
@click.option("--emit", "flavour", type=click.Choice([*FLAVOURS, "onnx"]),
              help="Rewrite as source (or model) with less work in it, not as kernels; -o OUT.py "
              "alone means numpy, -o OUT.onnx means onnx.")  # fmt: skip
@common.json_option  # fmt: skip
def optimize(src: str, shapes: tuple[str, ...], output: str | None, flavour: str | None,
             as_json: bool, no_cache: bool, keep_rules: bool, **values: Object) -> int:  # fmt: skip
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

    The original is always a candidate, so the result is never slower by choice: where nothing
    faster is found of a function, -o OUT.py saves a copy of its file (or says why nothing), and
    --emit its translation, which may be slower. Ctrl-C ends the
    search within a second, with the best that is proved by then; without any, the exit code is 2.
    A search that Ctrl-C or the budget cut short is kept, and goes on with --resume.
    """
    if output is not None and Path(output).suffix not in OUTPUTS:
        raise UsageError(f"-o {output}: the name must end in {', '.join(OUTPUTS)}")
    if output:
        require_folder(output, src)
    suffix = Path(output).suffix if output else ""
    to_model = flavour == "onnx" or (suffix == ".onnx" and flavour is None)
    program = common.read_program(src, shapes, whole=to_model)
    options = common.options_from(cache=not no_cache, **values)
    if (to_model or flavour or suffix == ".py") and is_gpu(options.target):
        raise UsageError(_OF_KERNELS)
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
                        seconds=options.budget, translate=flavour is not None)  # fmt: skip
    else:
        with common.ProgressLine(not as_json) as progress:
            found = optimize_program(program, options, progress)
    if not as_json and not isinstance(found, Result):
        show_rewrite(found)
    saved = ""
    if output and isinstance(found, Result) and suffix in (".json", ".html"):
        found.report(output, min(20.0, options.budget))
    elif output:
        saved = found.save(output) or f"saved {output}"
    if as_json:
        common.print_json(found.json() | ({} if isinstance(found, Result) else {"saved": saved}))
    elif isinstance(found, Result):
        show_result(found, output)
    elif saved:
        common.stdout().print(saved, markup=False)
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


def optimize_program(program: Program, options: Options, progress: Progress | None) -> Result:
    """The Result for what SRC named."""
    if program.traced is not None and program.function is not None:
        return optimize_traced(program.function, program.traced, options, progress)
    return superoptimize(program.graph, options=options, progress=progress)


@click.command(epilog=common.SRC_HELP)
@common.source_options
@common.search_options
@common.resume_option
@click.option("--engine", type=click.Choice(["mugraph", "synth", "mutate", "patterns"]),
              default="mugraph", show_default=True,
              help="mugraph: fused kernels; synth: less work, at the costs of NumPy's own "
              "functions; mutate: other shapes of convolutions and products, corrected where they "
              "differ; patterns: experts' kernels (see `tessera patterns`).")  # fmt: skip
@click.option(
    "--top", type=click.IntRange(min=0), default=10, show_default=True, help="Candidates to show."
)
@click.option("--show", type=click.IntRange(min=1), metavar="RANK", help="Print this candidate.")
@common.json_option
def search(src: str, shapes: tuple[str, ...], engine: str, top: int, show: int | None,
           as_json: bool, **values: Object) -> int:  # fmt: skip
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
        told = [{"rank": c.rank, "model_us": c.model_us, "notes": list(c.notes),
                 "derivation": c.derivation, "graph": str(c.graph)}
                for c in candidates]  # fmt: skip
        ended = {key: record[key] for key in ("interrupted", "resumable", "resumed")}
        common.print_json({"program": program.graph.name, "engine": engine, **report, **ended,
                           "candidates": told})  # fmt: skip
    else:
        console = common.stdout()
        show_search(program.graph.name, f"{len(candidates)} candidates", report)
        console.print(counts(report))
        if pruned := common.prunes(report["pruned"], 10):
            console.print(f"pruned: {pruned}")
        common.show_resume(record)
        if engine == "patterns":
            common.print_lines(f"nearly: {line}" for line in report["refused"])
        console.print(candidate_table(candidates, top))
        if show is not None:
            console.print(str(candidates[show - 1].graph), markup=False)
    if candidates:
        return 0
    return 1 if report["stop"] in ("exhausted", "unsupported") else 2


@click.command(epilog=common.SRC_HELP)
@common.source_options
@click.option("--target", default="cpu", show_default=True, metavar="NAME",
              help="cpu, or cpu-generic, cpu-avx2, cpu-avx512; cuda, cuda:sm_90a, "
              "h200 ….")  # fmt: skip
@click.option("--emit", "flavour", type=click.Choice(["cpp", *FLAVOURS]), default="cpp",
              show_default=True,
              help="C++ kernels, or the program as NumPy, JAX or PyTorch.")  # fmt: skip
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
    kernels = flavour == "cpp"
    if not kernels and target != "cpu":
        raise UsageError(_OF_KERNELS)
    program = common.read_program(src, shapes)
    if output != "-":
        require_folder(output, src)
    source = _kernel_source(program.graph, target) if kernels else _spelled(program, flavour)
    if as_json:
        how = {"target": target} if kernels else {"emit": flavour}
        common.print_json({"program": program.graph.name, **how, "source": source})
    else:
        common.write_output(output, source)
    return 0


def _spelled(program: Program, flavour: str) -> str:
    call, notes = None, []
    if program.function is not None and program.traced is not None:
        try:
            call = call_of(program.function, program.traced, program.constants)
        except UnsupportedError as error:
            notes = [error.message]
    own = getattr(program.function, "__name__", "")
    return emit_source(program.graph, flavour, constants=program.constants, call=call, notes=notes,
                       name=own if valid_name(own) else "")  # fmt: skip


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
