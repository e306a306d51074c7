"""`tessera bench`: measured tables, one JSON row per case."""

from __future__ import annotations

import sys
from typing import Any

import click
from rich.table import Table

from tessera.bench import peers as peer_module
from tessera.bench import suites
from tessera.bench.timing import machine_description
from tessera.cli import common


@click.command()
@click.argument("suite", type=click.Choice(suites.SUITES))
@click.option("--case", metavar="NAME", help="Only this case.")
@click.option("--quick", is_flag=True, help="One case and little time: a smoke test.")
@click.option("--peers", "peer_names", metavar="A,B",
              help="numpy, torch, inductor, jax; default: those installed.")  # fmt: skip
@click.option("--json", "output", metavar="OUT", help="Write the rows there; - for the terminal.")
@common.search_options
def bench(
    suite: str,
    case: str | None,
    quick: bool,
    peer_names: str | None,
    output: str | None,
    **values: Any,
) -> int:
    """Measure a suite side by side with its peers, in one process, medians of interleaved runs.

    \b
    Suites:
      mirage    Mirage's workloads end to end, warm and cold cache
      search    the search alone: states, pruning, time, without and with limits
      verify    the verifier against injected faults and known-equal pairs
    \b
    Examples:
      tessera bench mirage --case rmsnorm_linear --json bench/results/rmsnorm.json
      tessera bench search --quick
      tessera bench verify --json -
    """
    options = common.options_from(**values)
    err = common.stderr()

    def tell(text: str) -> None:
        if sys.stderr.isatty():
            err.print(text, style="dim", markup=False)

    settings = suites.Settings(options, case, quick, tuple(peer_module.choose(peer_names)), tell)
    rows = []
    try:
        for row in suites.run(suite, settings):
            row["machine"] = machine_description()
            rows.append(row)
            if output != "-":
                show(row)
    except KeyboardInterrupt:
        err.print("interrupted; these are the rows so far")
    if output is not None:
        common.write_output(output, common.to_json(rows, indent=1) + "\n")
    return 0 if rows else 2


def show(row: dict[str, Any]) -> None:
    """One row, for a reader."""
    table = Table(box=None, show_header=False, pad_edge=False, title=row["case"],
                  title_justify="left")  # fmt: skip
    skip = {"suite", "case", "machine", "target", "dtype", "kinds", "failures"}
    for key, value in row.items():
        if key in skip or value is None:
            continue
        if isinstance(value, float):
            text = f"{value:.4g}"
        elif isinstance(value, dict):
            text = ", ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in value.items()
            )
        else:
            text = str(value)
        table.add_row(key, text)
    for failure in row.get("failures", [])[:1]:
        table.add_row("first failure", failure)
    common.stdout().print(table)
