"""`tessera cache`: what is remembered between runs, and how to forget it."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import click
from rich.table import Table

from tessera.cache_folder import MeasurementStore, cache_directory
from tessera.cli import common
from tessera.files import told_of
from tessera.types import Record


@click.group()
def cache() -> None:
    """Compiled kernels, results and measurements kept between runs.

    \b
    Examples:
      tessera cache info
      tessera cache clear
    """


@cache.command()
@common.json_option
def info(as_json: bool) -> int:
    """Where the cache is, what it holds, and the newest measurements."""
    folder = cache_directory()
    files = [p for p in folder.rglob("*") if p.is_file()] if folder.is_dir() else []
    measured = MeasurementStore.default().recent()
    data: Record = {
        "directory": str(folder),
        "files": len(files),
        "bytes": sum(p.stat().st_size for p in files),
        "measurements": len(measured),
        "recent": measured[:10],
    }
    if as_json:
        common.print_json(data)
        return 0
    console = common.stdout()
    told = f"{data['files']} files, {_size(data['bytes'])}, {data['measurements']} measurements"
    console.print(f"{folder}: {told}", markup=False)
    if measured:
        columns = ("when", "program", "target", "original", "ours", "speed-up")
        table = Table(*columns, box=None, pad_edge=False)
        for row in data["recent"]:
            when = datetime.datetime.fromtimestamp(row["time"]).strftime("%Y-%m-%d %H:%M")
            table.add_row(when, row["program"], row["target"],
                          common.duration(row["original_us"] / 1e6),
                          common.duration(row["ours_us"] / 1e6),
                          f"{row['speedup']:.2f}x")  # fmt: skip
        console.print(table)
    return 0


def _size(n: int) -> str:
    return f"{n / 2**20:.1f} MiB" if n >= 2**20 else f"{n / 1024:.0f} KiB"


@cache.command()
@common.json_option
def path(as_json: bool) -> int:
    """Print the cache folder."""
    if as_json:
        common.print_json({"directory": str(cache_directory())})
    else:
        click.echo(cache_directory())
    return 0


# What the core and the store put into the folder; nothing else is ever deleted.
_MADE_AGAIN = ("objects", "index", "results", "searches", "learnt", "bodies",
               "measurements.jsonl", "measurements.sqlite", "measurements.sqlite-wal",
               "measurements.sqlite-shm", "measurements.damaged", "store-uses.jsonl")  # fmt: skip
_OWN = ("rules", "patterns")  # what `rules` and `patterns add` were given


@cache.command()
@click.option("--all", "own", is_flag=True, help="Your own rules and patterns, too.")
@common.json_option
def clear(own: bool, as_json: bool) -> int:
    """Delete what can be made again: compiled kernels, results, measurements.

    Rules and patterns that were added stay, unless --all is given.
    """
    folder = cache_directory()
    removed = []
    for name in (*_MADE_AGAIN, *(_OWN if own else ())):
        item: Path = folder / name
        with told_of(item, "deleted"):
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item)
            elif item.exists():
                item.unlink()
            else:
                continue
        removed.append(name)
    if as_json:
        common.print_json({"directory": str(folder), "removed": removed})
    else:
        click.echo(f"cleared {folder}" if removed else f"there was nothing to clear in {folder}")
    return 0
