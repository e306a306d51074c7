"""`tessera explain`: how the original becomes the result, step by step."""

from __future__ import annotations

import math

import click

from tessera.cli import common
from tessera.cli.explain_torch import explain_model, model_in
from tessera.cli.optimize import optimize_program
from tessera.cli.show import show_conditions, show_speedup, subprogram_lines
from tessera.emit import FLAVOURS
from tessera.options import Options
from tessera.patterns import pattern_places
from tessera.rewrite import Rewrite, rewrite
from tessera.source import Program
from tessera.types import Value


@click.command(epilog=common.SRC_HELP)
@common.source_options
@common.search_options
@common.level_option
@click.option("--emit", "flavour", type=click.Choice(FLAVOURS), default="numpy", show_default=True,
              help="The library that runs the program.")  # fmt: skip
@common.json_option
def explain(src: str, shapes: tuple[str, ...], flavour: str, as_json: bool, **values: Value) -> int:
    """Show the derivation of the rewritten program: each step with what it replaces and its cost.

    \b
    Examples:
      tessera explain stats.py:zscore
      tessera explain prog.ug --json
      tessera explain model.onnx        what was tried for each of its linear subprograms
      tessera explain model.py          a PyTorch model: its kernels and their times

    First come experts' kernels that fit somewhere (see `tessera patterns`), and those that nearly
    do, with what was missing.

    Of a PyTorch model (the file has `model`, a torch.nn.Module or a function that makes one, and
    `example_inputs`) what torch.compile with the backend "tessera" makes of it is told.

    Costs are those of the model that steered the search; the last line is measured. Steps are
    found by comparing values, so what is proved is the whole: the result against the original.
    """
    if (found_model := model_in(src)) is not None:
        return explain_model(found_model, src, as_json)
    program = common.read_program(src, shapes)
    options = common.options_from(**values)
    if src.endswith(".onnx"):
        return _model(program, options, as_json)
    found = rewrite(program.graph, flavour, options=options, function=program.function,
                    traced=program.traced, seconds=options.budget)  # fmt: skip
    places = pattern_places(program.graph, options)
    if as_json:
        common.print_json({**found.json(), "steps": steps(found), "patterns": places.json()})
        return 0
    console = common.stdout()
    console.print(f"[bold]{found.name}[/]")
    common.print_lines(places.lines())
    if not found.improved:
        console.print("nothing faster was found and proved; the program stays as it is")
        return 0
    for number, (first, *more) in enumerate(steps(found), 1):
        common.print_lines([f"\n{number}. {first}", *(f"   {line}" for line in more)])
    console.print()
    console.print(found.source.split("\n\n\n", 1)[-1].rstrip(), markup=False, highlight=False)
    if found.certificate is not None:
        chance = f"2^{math.ceil(found.certificate.record()['error_log2'])}"
        console.print("\nproved equal to the original: wrong with a probability of at most "
                      + chance, highlight=False)  # fmt: skip
    show_conditions(found)
    show_speedup(found, f", run by {found.flavour}")
    return 0


def _model(program: Program, options: Options, as_json: bool) -> int:
    """A model is optimised as a whole: what was tried for each of its subprograms."""
    with common.ProgressLine(not as_json) as progress:
        result = optimize_program(program, options, progress)
    places = pattern_places(program.graph, options)
    if as_json:
        common.print_json({**result.json(), "patterns": places.json()})
        return 0
    console = common.stdout()
    console.print(f"[bold]{result.original.name}[/]")
    common.print_lines([*places.lines(), *subprogram_lines(result.details, alternatives=True)])
    for candidate in result.candidates:
        if candidate.fate == "chosen" and candidate.derivation:
            console.print(f"\n{candidate.origin}:\n{candidate.derivation.rstrip()}", markup=False)
    if result.improved:
        console.print(f"\n[bold green]{result.speedup:.2f}x[/], proved equal and measured")
    else:
        console.print("\nno gain found; the model stays as it is")
    return 0


def steps(found: Rewrite) -> list[list[str]]:
    """The derivation's steps: each a line, and more lines that say what its names mean."""
    result: list[list[str]] = []
    for line in found.derivation.splitlines():
        if line.startswith(" ") and result:
            result[-1].append(line.strip())
        elif line:
            result.append([line])
    return result
