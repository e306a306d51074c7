"""`tessera tune`: many programs by many processes, on one machine or a fleet."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tessera.cache_folder import cache_directory
from tessera.cli import common
from tessera.cli.benchmarks import in_clone
from tessera.clock import duration
from tessera.errors import Error, UsageError
from tessera.fleet.campaign import Campaign, Named
from tessera.fleet.executors import make_executor
from tessera.fleet.plan import Settings
from tessera.fleet.progress import Progress
from tessera.source import programs_in
from tessera.store.entry import Entry
from tessera.store.stores import Store, open_store
from tessera.types import Object, Record

_SUFFIXES = (".ug", ".py", ".onnx")
Note = Callable[[str], None]
_LAST = 6  # programs that the live table shows


@click.command("tune")
@click.argument("programs", nargs=-1, required=True, metavar="PROGRAMS...")
@click.option("--executor", type=click.Choice(["local", "dask", "ray", "shard"]), default="local",
              show_default=True, help="Who does the work; see above.")  # fmt: skip
@click.option("--address", default="", metavar="ADDRESS",
              help="Of Dask's scheduler (tls://HOST:8786) or Ray's head; default: a cluster of this"
              " machine, for this campaign.")  # fmt: skip
@click.option("--workers", type=click.IntRange(min=0), default=0, metavar="N",
              help="Processes on this machine; 0: as many as it has processors.")  # fmt: skip
@click.option("--shard", default="", metavar="I/N",
              help="Do the I-th of N shares, beside others with the same store.")  # fmt: skip
@click.option("--store", "where", default="", metavar="STORE",
              help="Where tasks and results are kept (see `tessera store`); default: in the cache"
              " folder.")  # fmt: skip
@click.option("--steps", type=click.IntRange(min=1), default=20_000, show_default=True, metavar="N",
              help="Of each search: what is found depends on them, not on time.")  # fmt: skip
@click.option("--keep", type=click.IntRange(min=1), default=2, show_default=True, metavar="N",
              help="Programs that race, for each engine and part.")  # fmt: skip
@click.option("--no-measure", is_flag=True, help="Search, prove, compile; measure another time.")
@click.option("--patience", type=float, default=900, show_default=True, metavar="SECONDS",
              help="After which a task is asked for again, of another worker; after twice that a"
              " process of this machine is ended.")  # fmt: skip
@click.option("--check", type=click.FloatRange(0, 1), default=1.0, show_default=True,
              metavar="SHARE", help="Of the results that this process proves again.")  # fmt: skip
@click.option("--wait", type=float, default=60, show_default=True, metavar="SECONDS",
              help="With --shard: after which it does others' tasks, too.")  # fmt: skip
@click.option("--shape", "shapes", multiple=True, metavar="NAME=TYPE",
              help="Type of an argument, where PROGRAMS is one file.")  # fmt: skip
@common.accept_option
@common.level_option
@common.search_options
@common.json_option
def tune_command(programs: tuple[str, ...], executor: str, address: str, workers: int, shard: str,
                 where: str, shapes: tuple[str, ...], as_json: bool, steps: int, keep: int,
                 no_measure: bool, patience: float, check: float, wait: float,
                 **values: Object) -> int:  # fmt: skip
    """Make many PROGRAMS faster, each search in pieces that any worker can do.

    \b
    PROGRAMS are
      prog.ug, model.onnx, file.py:name                as `tessera optimize` takes them
      file.py                                          all programs in it
      a folder                                         all such files in it
      stenso, onnx-nodes, outside, outside:20          suites (20 of one), in a clone

    \b
    Who does the work:
      local   processes of this machine
      dask    a Dask cluster (pip install 'tessera-opt[dask]')
      ray     a Ray cluster (pip install 'tessera-opt[ray]')
      shard   this process does its share of a job array; the store brings them together

    \b
    Examples:
      tessera tune kernels/ --workers 4
      tessera tune kernels/ --store .tessera/store       results for the project's git
      tessera tune stenso --executor dask --address tls://head:8786
      tessera tune kernels/ --executor ray --store s3://team/tessera
      tessera tune kernels/ --store /net/store --shard $SLURM_ARRAY_TASK_ID/8
      tessera report .tessera/store -o campaign.html     programs, engines, wins and losses

    Whatever dies on the way (workers, scheduler, this command), the same command goes on from
    there: all that was done is in the store. Searches and proofs run on any processor. Who measures
    is alone on its machine, which must be one like this; of a cluster it is any worker, or those
    with the resource `measure`, if there are such. Nothing that a worker says is believed: results
    are proved again here, and again by whoever takes them from the store. Ctrl-C: exit code 2.
    """
    options = common.options_from(**values)
    for name, given in (("patience", patience), ("check", check), ("wait", wait)):
        if not (math.isfinite(given) and given >= 0):
            raise UsageError(f"--{name} {given}: a number from 0 on")
    settings = Settings(options, steps=steps, keep=keep, measure=not no_measure,
                        patience=patience, check=check, wait=wait)  # fmt: skip
    store = open_store(where or str(cache_directory() / "campaigns"))
    trial = Entry.of_text("rule", "trial", f"rule trial {os.getpid()}")
    store.put(trial)  # work of hours had better find a place at its end
    store.delete(trial.key)
    err = common.stderr()
    chosen = list(read_programs(programs, shapes, lambda line: err.print(line, markup=False)))
    if not chosen:
        raise UsageError(f"there is no program to tune in {', '.join(programs)}")
    crew = make_executor(executor, address, workers, shard, patience)
    progress = Progress()
    interrupted = False
    before = signal.signal(signal.SIGINT, _stop)
    try:
        with _shown(progress, as_json):
            Campaign(chosen, settings, store, crew, progress).run()
    except _Stopped:
        interrupted = True
    except Error:  # such as of the store: what was found is told all the same
        _summarise(progress, store, as_json, interrupted)
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    _summarise(progress, store, as_json, interrupted)
    return 2 if interrupted or any(o.why for o in progress.outcomes) else 0


class _Stopped(BaseException):
    """Ctrl-C; not KeyboardInterrupt, which asks the core for the best so far."""


def _stop(*_: Object) -> None:
    raise _Stopped


# --- programs
def read_programs(sources: Sequence[str], shapes: Sequence[str], note: Note) -> Iterator[Named]:
    """What PROGRAMS name; of folders and suites what cannot be read is left out, with a note."""
    names = Counter[str]()
    for name, graph in (p for source in sources for p in _read(source, shapes, note)):
        names[name] += 1
        yield Named(name if names[name] == 1 else f"{name}#{names[name]}", graph)


def _read(source: str, shapes: Sequence[str], note: Note) -> Iterator[Named]:
    path = Path(source)
    if path.is_dir():
        for file in sorted(p for p in path.rglob("*") if p.suffix in _SUFFIXES):
            try:
                named = _named(file, str(file.relative_to(path).with_suffix("")))
            except Error as error:
                note(f"left out: {error}")
                continue
            for name, program in named:
                try:
                    yield Named(name, common.read_program(program, ()).graph)
                except Error as error:
                    note(f"left out: {error}")
    elif path.suffix in _SUFFIXES and path.exists():
        for name, program in _named(path, path.stem):
            yield Named(name, common.read_program(program, shapes).graph)
    elif path.suffix in _SUFFIXES or ".py:" in source or path.exists():
        yield Named(path.stem, common.read_program(source, shapes).graph)
    else:
        yield from _suite(source)


def _named(file: Path, name: str) -> list[tuple[str, str]]:
    """Names and places of the programs of a file: all functions of a file of Python."""
    own = programs_in(file) if file.suffix == ".py" else [""]
    if len(own) == 1:
        return [(name, str(file))]
    return [(f"{name}:{each}", f"{file}:{each}") for each in own]


def _suite(source: str) -> Iterator[Named]:
    """All of a suite, or so many of it, spread evenly."""
    name, _, count = source.partition(":")
    if not in_clone("tunable.py"):
        raise UsageError(
            f"there is no file or folder {source}; suites of programs are not part of the installed"
            " package: clone Tessera's repository, run `make core` there, and then"
            f" `.venv/bin/tessera tune {source}`"
        )
    from bench.tunable import suite

    found = [Named(*program) for program in suite(name)]
    if count and not count.isdecimal():
        raise UsageError(f"{source}: write {name}:20 for twenty programs of the suite")
    most = min(int(count or len(found)), len(found))
    yield from (found[i * len(found) // most] for i in range(most))


# --- what is shown
def _shown(progress: Progress, as_json: bool) -> Live:
    """A table that follows the campaign on a terminal, a line for each program elsewhere."""
    live = sys.stdout.isatty() and not as_json
    if not live:
        progress.tell = lambda line: click.echo(line, err=as_json)
    console = common.stdout()
    console.quiet = not live
    return Live(get_renderable=lambda: live_table(progress), console=console, transient=True,
                refresh_per_second=4)  # fmt: skip


def live_table(progress: Progress) -> Group:
    """Where a campaign is: workers, throughput, the best so far, the time that is left."""
    left = progress.left_s()
    best = progress.best
    facts = Table.grid(padding=(0, 3))
    done = sum(progress.done.values())
    facts.add_row(
        f"programs {len(progress.outcomes)}/{progress.programs}",
        f"workers {progress.workers}",
        f"{progress.throughput:.1f} tasks/s",
        f"best {best.speedup:.2f}x {best.name}" if best else "best: none yet",
        f"{duration(left)} left" if left is not None else "",
    )
    tasks = Table("task", "done", "seconds of workers", box=None, pad_edge=False)
    for name in ("search", "prepare", "measure"):
        tasks.add_row(name, common.count(progress.done[name]), f"{progress.spent[name]:.1f}")
    lines = map(str, progress.outcomes[-_LAST:])
    trouble = f"{len(progress.refused)} refused, {len(progress.lost)} lost"
    note = f"{done} tasks done, {progress.kept} were in the store, {trouble}"
    return Group(facts, tasks, *map(Text, lines), Text(f"{note}  (Ctrl-C: go on another time)"))


def _summarise(progress: Progress, store: Store, as_json: bool, interrupted: bool) -> None:
    data = summary(progress) | {"store": store.name, "interrupted": interrupted}
    if as_json:
        common.print_json(data)
        return
    console = common.stdout()
    if progress.outcomes:
        table = Table("program", "original", "speed-up", "by", box=None, pad_edge=False)
        for o in progress.outcomes:
            table.add_row(
                o.name, duration(o.original_s) if o.original_s else "",
                f"{o.speedup:.2f}x" if o.improved else "", o.origin or o.why,
            )  # fmt: skip
        console.print(table, markup=False)
    console.print(
        f"{data['faster']} of {data['programs']} programs are faster, {data['failed']} failed; "
        f"{data['geomean']:.2f}x on geometric mean; {duration(progress.elapsed)}, "
        f"{data['tasks']} tasks, {progress.kept} were in the store",
        markup=False,
    )
    if interrupted:
        console.print("interrupted: the same command goes on from here", markup=False)
    console.print(f"store: {store.name}", markup=False)


def summary(progress: Progress) -> Record:
    """What `--json` prints."""
    outcomes = progress.outcomes
    measured = [o for o in outcomes if not o.why]
    return {
        "programs": progress.programs,
        "faster": sum(o.improved for o in outcomes),
        "failed": sum(bool(o.why) for o in outcomes),
        "geomean": geometric_mean(o.speedup for o in measured) if measured else 1.0,
        "tasks": sum(progress.done.values()),
        "kept": progress.kept,
        "seconds": progress.elapsed,
        "worker_s": dict(progress.spent),
        "workers": dict(progress.by_worker),
        "refused": progress.refused,
        "lost": progress.lost,
        "outcomes": [
            {"name": o.name, "improved": o.improved, "speedup": o.speedup, "origin": o.origin,
             "original_us": o.original_s * 1e6, "us": o.seconds * 1e6, "key": o.key,
             "why": o.why or None, "winners": list(o.winners)}
            for o in outcomes
        ],
    }  # fmt: skip
