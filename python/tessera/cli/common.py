"""What the verbs share: options, reading SRC, progress on a terminal, JSON, tables."""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from tessera import _core
from tessera.clock import duration as duration
from tessera.errors import Error, Location, UsageError
from tessera.files import to_json, write_text
from tessera.options import LEVELS, Options
from tessera.source import Program, load_program
from tessera.types import Fields, Function, Object, Record, Value

F = TypeVar("F", bound=Function)

SRC_HELP = """\b
SRC is one of
  file.ug           a program in Tessera's text format
  file.py           a Python file that defines one program: a NumPy function or a ts.Graph;
                    it is executed, with all that it does, so give only files you trust
  file.py:name      the function or graph of that name
  -                 a program in the text format on standard input

\b
Types of a function's arguments come from --shape, else from `example_inputs` in the
file (a dict of arrays or types), else from annotations: def f(X: "f32[16,1024]"),
else from the first call that the file makes of it when it runs as a script.
"""


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """The reader went away: left to `cli.run`, where rich would exit with code 1."""
        raise BrokenPipeError


def stdout() -> Console:
    """Standard output; plain text when it is not a terminal."""
    return _Output(highlight=False, soft_wrap=not sys.stdout.isatty())


def stderr() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object instead of text."
)


def source_options(function: F) -> F:
    """SRC and --shape."""
    function = click.option(
        "--shape", "shapes", multiple=True, metavar="NAME=TYPE",
        help="Type of an argument, e.g. X=f32[16,1024]; for .ug and .onnx a "
        "symbol, e.g. N=128. Several: N=128,K=64.",
    )(function)  # fmt: skip
    return click.argument("src")(function)


def _help_all(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        for option in context.command.params:
            if isinstance(option, click.Option):
                option.hidden = False
        click.echo(context.get_help())
        context.exit()


def search_options(function: F) -> F:
    """What `optimize`, `search` and `bench` have in common; those for experts: --help-all."""
    for option in reversed(
        [
            click.option("--target", default="cpu", show_default=True, metavar="NAME",
                         help="Machine: cpu (this one), cpu-avx2, cuda (its GPU), cuda:sm_90a, "
                              "h200, … or a .target file."),
            click.option("--budget", type=float, default=30, show_default=True,
                         metavar="SECONDS", help="Wall time for everything; for the other "
                         "libraries of a report as much again."),
            click.option("--threads", type=int, default=0, metavar="N",
                         help="Worker threads; 0 for all."),
            click.option("--seed", hidden=True, type=int, default=0, metavar="N",
                         help="Seed of search and measurement."),
            click.option("--max-block-ops", hidden=True, type=int, default=None, metavar="N",
                         help="Largest block graph, counted as Mirage does; default: no limit."),
            click.option("--tf32", hidden=True, is_flag=True,
                         help="GPUs: f32 products may round their factors to 10 bits (TF32)."),
            click.option("--cost", hidden=True, type=click.Choice(["measured", "flops"]),
                         default="measured", show_default=True,
                         help="What synthesis minimises: times measured here, or flops."),
            click.option("--disable", hidden=True, multiple=True, metavar="ENGINE[:PASS]",
                         help="Switch off an engine, or one of its pruning rules."),
            click.option("--set", "settings", hidden=True, multiple=True,
                         metavar="ENGINE.NAME=VALUE",
                         help="A number inside an engine, say mutate.depth=5 (docs/mutate.md)."),
            click.option("--help-all", is_flag=True, is_eager=True, expose_value=False,
                         callback=_help_all, help="Show all options, experts' as well."),
        ]
    ):  # fmt: skip
        function = option(function)
    return function


# For the verbs whose searches are kept.
resume_option = click.option(
    "--resume", is_flag=True, hidden=True,
    help="Go on where an unfinished search of SRC with these options stopped.",
)  # fmt: skip
# How near results are to the original's (options.py).
level_option = click.option(
    "--level", type=click.Choice(LEVELS), default="close", show_default=True,
    help="bitwise: the original's bits. close: as accurate where that is finite and accurate. "
    "fast: as accurate at ordinary magnitudes.",
)  # fmt: skip


accept_option = click.option(
    "--accept", type=click.Choice(["proved", "tested"]), default="proved",
    help="tested: also what was tried on both sides of every decision.",
)  # fmt: skip


def options_from(**values: Value) -> Options:
    """Options from the values of `search_options`."""
    return Options(**values)


def read_program(src: str, shapes: Sequence[str], whole: bool = False) -> Program:
    """The program that SRC names; `whole` is frontends.onnx.load's."""
    types: dict[str, str] = {}
    # Several may stand behind one --shape; extents have commas of their own.
    for item in (part for s in shapes for part in re.split(r",(?![^\[]*\])", s)):
        name, sep, text = item.partition("=")
        if not sep or not name or not text:
            raise UsageError(f"--shape {item}: write NAME=TYPE, for example X=f32[16,1024]")
        types[name] = text
    return load_program(src, types, whole)


def print_json(data: Object) -> None:
    """One JSON document on standard output."""
    click.echo(to_json(data))


def write_output(path: str, text: str) -> None:
    """Writes a result to a file, all or nothing; `-` is standard output."""
    if path == "-":
        click.echo(text, nl=not text.endswith("\n"))
    else:
        write_text(Path(path), text)


def print_lines(lines: Iterable[str]) -> None:
    """Lines on standard output as they are: nothing in them is markup."""
    console = stdout()
    for line in lines:
        console.print(line, markup=False)


def count(n: float) -> str:
    """A number with thousands separators."""
    return f"{n:,.0f}"


def prunes(pruned: Mapping[str, int], most: int = 4) -> str:
    """The busiest pruning rules: "bound 1,204 · memory 88"."""
    rules = sorted(pruned.items(), key=lambda item: -item[1])[:most]
    return " · ".join(f"{rule} {count(n)}" for rule, n in rules if n)


class ProgressLine:
    """One live line on standard error while the core works; silent when not on a terminal."""

    def __init__(self, enabled: bool = True) -> None:
        self._live: Live | None = None
        if enabled and sys.stderr.isatty():
            self._live = Live(console=stderr(), transient=True, refresh_per_second=10)
        self._start = time.monotonic()

    def __enter__(self) -> Callable[[Record], None] | None:
        if self._live is None:
            return None
        self._live.__enter__()
        return self.update

    def __exit__(self, *error: Value) -> None:
        if self._live is not None:
            self._live.__exit__(*error)

    def step(self, text: str) -> None:
        """Shows what a proof is doing."""
        self.update({"stage": f"proof: {text}"})

    def update(self, news: Record) -> None:
        """Shows what the core reports."""
        if self._live is not None:
            self._live.update(Text(progress_text(news, time.monotonic() - self._start)))


def progress_text(news: Fields, elapsed: float) -> str:
    """The progress line for one report of the core."""
    part = f" {news['part']}" if news.get("part") else ""
    text = f"{elapsed:6.1f} s  {news['stage']}{part}"
    if search := news.get("search"):
        rate = search["states"] / search["seconds"] if search["seconds"] > 0 else 0
        text += f"  {count(search['states'])} states ({count(rate)}/s)"
        if search["best_cost"] > 0:
            text += f"  best {duration(search['best_cost'])}"
        if pruned := prunes(search["pruned"], 3):
            text += f"  pruned: {pruned}"
    elif news.get("total"):
        text += f"  {news['done']}/{news['total']}"
    if news.get("best_speedup", 1) > 1:
        text += f"  best so far {news['best_speedup']:.2f}x"
    return text + "  (Ctrl-C: take the best so far)"


def show_resume(search: Fields) -> None:
    """What was resumed, and how to go on with a search that was cut short."""
    print_lines([search["resumed"]] if search["resumed"] else [])
    if search["resumable"]:
        stdout().print("the search was cut short; the same command with --resume goes on from here")


def show_error(error: Error, as_json: bool) -> None:
    """A user's mistake: one message, no traceback."""
    if as_json:
        place = error.location._asdict() if error.location else dict.fromkeys(Location._fields)
        print_json({"error": {"kind": error.kind, "message": error.message, **place}})
    place_text = f"{error.location}: " if error.location else ""
    stderr().print(Text.assemble((place_text, "bold"), ("error: ", "bold red"), error.message))


def in_short(certificate: _core.Certificate, most: int = 3) -> str:
    """The certificate for reading: of many lines of one kind in a row only the first few."""
    lines: list[str] = []
    for kind, run in itertools.groupby(str(certificate).splitlines(), lambda x: x.split(" ")[0]):
        same = list(run)
        lines += same if len(same) <= most + 1 else same[:most]
        if len(same) > most + 1:
            lines.append(f"… and {len(same) - most} more lines of `{kind}`")
    return "\n".join(lines)


def error_table(certificate: _core.Certificate) -> Table:
    """Errors of both programs against f64 (of f64, against long double), by kind of input.

    Relative to the sum of the terms' magnitudes: about 1e-7 is one rounding in f32. `of allowed`
    is the largest share of its tolerance that any element of the rewrite uses.
    """
    numbers = ("original: max", "mean", "rewrite: max", "mean", "of allowed", "elements")
    columns = [Column(name, justify="right") for name in numbers]
    table = Table("inputs", *columns, box=None, pad_edge=False, title="error against f64",
                  title_justify="left")  # fmt: skip
    for row in certificate.record()["gate"]:
        if row["elements"] == 0:  # inf and NaN inputs are compared, not measured
            continue
        errors = (row[k] for k in ("spec_error", "spec_mean", "candidate_error", "candidate_mean"))
        table.add_row(row["family"], *("exact" if e == 0 else f"{e:.1e}" for e in errors),
                      f"{100 * row['worst_ratio']:.1f} %", count(row["elements"]))  # fmt: skip
    return table
