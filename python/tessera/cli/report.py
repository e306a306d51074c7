"""`tessera report`: one self-contained HTML page about one run, or about a campaign."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tessera.cli import common
from tessera.cli.optimize import optimize_program
from tessera.errors import BadInputError, Location
from tessera.files import read_text, require_folder, write_text
from tessera.report import campaign_page, page, record
from tessera.report.record import FORMAT
from tessera.store.stores import open_store
from tessera.types import Object, Record


@click.command(epilog=common.SRC_HELP)
@click.argument("run", metavar="RUN")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=TYPE",
              help="Type of an argument, where RUN is a program.")  # fmt: skip
@click.option("-o", "--output", default="report.html", show_default=True, metavar="OUT",
              help="Where the page goes.")  # fmt: skip
@common.search_options
def report(run: str, shapes: tuple[str, ...], output: str, **values: Object) -> int:
    """Write a page about RUN: programs before and after, search, candidates, proof, source.

    \b
    Examples:
      tessera optimize prog.ug -o run.json && tessera report run.json -o report.html
      tessera report prog.ug -o report.html        searches first
      tessera report .tessera/store -o page.html   what `tessera tune` did there

    RUN is a .json that `tessera optimize -o` wrote, a program (SRC), or the store of a campaign:
    its programs by engines, wins, losses, time. The page works without a network.
    """
    require_folder(output)
    if Path(run).is_dir() or "://" in run or run.startswith("sqlite:"):
        entries = list(open_store(run).list("proposals"))
        if not any(entry["task"] == "measure" for entry in entries):
            raise BadInputError("there is no campaign that measured", Location(run))
        write_text(Path(output), campaign_page(run, entries))
    elif Path(run).suffix == ".json":
        write_text(Path(output), page(_read(Path(run))))
    else:
        # Searched anew, because a remembered result has no search to tell about.
        options = common.options_from(cache=False, **values)
        with common.ProgressLine() as progress:
            found = optimize_program(common.read_program(run, shapes), options, progress)
            data = record(found, min(20.0, options.budget))
        write_text(Path(output), page(data))
    click.echo(f"wrote {output}")
    return 0


def _read(path: Path) -> Record:
    where = Location(str(path))
    try:
        data = json.loads(read_text(path))
    except ValueError as error:
        raise BadInputError(f"not JSON: {error}", where) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BadInputError(
            "this is not the record of a run; `tessera optimize SRC -o run.json` writes one", where
        )
    return data
