"""`tessera patterns`: experts' kernels that are known, adding more, and checking them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click
from rich.table import Column, Table

from tessera.cli import common
from tessera.errors import UsageError
from tessera.patterns import (
    SUFFIX,
    Checked,
    Learnt,
    add_pattern,
    body_states,
    check_pattern,
    find_pattern,
    forget,
    learnt,
    read_patterns,
    remove_pattern,
)


def _import(modules: tuple[str, ...]) -> None:
    """Imports what registers operators of PyTorch, from this folder too, as `python -m` would."""
    if modules and "" not in sys.path:
        sys.path.insert(0, "")
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UsageError(f"--import {module}: {error}") from None


import_option = click.option(
    "--import", "modules", multiple=True, metavar="MODULE",
    help="Imported first: it registers an operator of PyTorch that a pattern calls.",
)  # fmt: skip


@click.group()
def patterns() -> None:
    """Experts' kernels: what they compute, where they fit, and how they run.

    \b
    docs/patterns.md tells how to write one, in about 20 lines. Examples:
      tessera patterns list                 those that are known
      tessera patterns show rmsnorm         with its loops and its text
      tessera patterns check my.pattern     is the kernel what it says it computes?
      tessera patterns add my.pattern       from now on it is used wherever it fits
      tessera search prog.ug --engine patterns
    """


@patterns.command("list")
@click.argument("words", nargs=-1)
@common.json_option
def list_patterns(words: tuple[str, ...], as_json: bool) -> int:
    """List the patterns whose text contains all WORDS; all without WORDS.

    \b
    Examples:
      tessera patterns list
      tessera patterns list softmax
    """
    known, broken = read_patterns()
    found = [p for p in known if all(w in p.text for w in words)]
    if as_json:
        listed = [{**p.json(), "code": [s.json() for s in body_states(p)]} for p in found]
        common.print_json({
            "patterns": listed, "broken": [b.json() for b in broken],
            "learnt": learnt().json(),
        })  # fmt: skip
        return 0
    names = ("name", "inputs", "result", "holes", "when", "code", "in")
    table = Table(*(Column(n, overflow="fold") for n in names), box=None, pad_edge=False)
    for p in found:
        holes = [f"before {x}" for x in p.prologue] + (["behind"] if p.epilogue else [])
        table.add_row(
            p.name, " ".join(f"{name}:{type_}" for name, type_ in p.inputs), p.output,
            ", ".join(holes), ", ".join(p.when), ", ".join(map(str, body_states(p))),
            str(Path(p.file).parent),
        )  # fmt: skip
    console = common.stdout()
    if found:
        console.print(table, markup=False)
    console.print(f"{len(found)} patterns")
    for b in broken:
        console.print(f"left out: {b.why}", markup=False, soft_wrap=True)
    waiting = sum(s.state == "unchecked" for p in found for s in body_states(p))
    if waiting:
        told = f"{waiting} bodies of code are unchecked, and not used before"
        console.print(f"{told} `tessera patterns check`", soft_wrap=True)
    kept = learnt()
    if kept.patterns or kept.searches:
        console.print(f"{_learnt_line(kept)}; `tessera patterns forget` removes it", soft_wrap=True)
    return 0


def _learnt_line(kept: Learnt) -> str:
    return (
        f"{kept.patterns} found by searches and {kept.searches} searches remembered, "
        f"{kept.bytes / 1024:.0f} KiB in {kept.folder}"
    )


@patterns.command("forget")
def forget_learnt() -> int:
    """Forget what searches found and what they searched in vain: they begin anew.

    \b
    One of the kernels: `tessera patterns remove NAME`; for one program: `optimize --refresh`.
    """
    common.stdout().print(f"forgot: {_learnt_line(forget())}", markup=False, soft_wrap=True)
    return 0


@patterns.command()
@click.argument("name")
@common.json_option
def show(name: str, as_json: bool) -> int:
    """Show a pattern: its text, the +Graphs it is matched by, and where it is kept."""
    found = find_pattern(name)
    if as_json:
        common.print_json(found.json())
        return 0
    click.echo(found.text, nl=False)
    for number, loops in enumerate(found.loops):
        click.echo(("\nmatched by\n" if number == 0 else "\nor by\n") + loops, nl=False)
    click.echo(f"\nin {found.file}")
    return 0


@patterns.command()
@click.argument("file")
@click.option("--project", is_flag=True, help="For this folder's project: .tessera/patterns.")
@click.option("--unchecked", is_flag=True,
              help="Without `check`: its code is not used, the rest is proved anyway.")  # fmt: skip
@import_option
def add(file: str, project: bool, unchecked: bool, modules: tuple[str, ...]) -> int:
    """Check the pattern in FILE and use it from now on, wherever it fits.

    \b
    Examples:
      tessera patterns add my.pattern
      tessera patterns add my.pattern --project
    """
    _import(modules)
    path = Path(file)
    if not unchecked:
        checked = check_pattern(path)
        if not checked.holds:
            common.stderr().print(f"{checked.name}: {checked.why}", markup=False)
            return 1
    place = add_pattern(path, Path(".tessera") / "patterns" if project else None)
    common.stdout().print(f"added as {place}", markup=False, soft_wrap=True)
    return 0


@patterns.command()
@click.argument("name")
def remove(name: str) -> int:
    """Remove a pattern of your own, of this folder's project, or that a search found."""
    common.stdout().print(f"removed {remove_pattern(name)}", markup=False, soft_wrap=True)
    return 0


@patterns.command()
@click.argument("files", nargs=-1)
@click.option("--sizes", type=click.IntRange(1, 100), default=2, show_default=True, metavar="N",
              help="Different sizes at which each body is proved.")  # fmt: skip
@click.option("--seed", type=int, default=1, metavar="N", help="Of sizes and of proofs.")
@click.option("--cuda", metavar="TARGET", help="Also emulate for an architecture, as cuda:sm_80.")
@click.option("--timeout", type=click.FloatRange(0.1, 3600), default=10, show_default=True,
              metavar="SECONDS", help="Of one run of a body of C++ or CUDA.")  # fmt: skip
@import_option
@common.json_option
def check(
    files: tuple[str, ...], sizes: int, seed: int, cuda: str | None, timeout: float,
    modules: tuple[str, ...], as_json: bool,
) -> int:  # fmt: skip
    """Prove that the kernels of FILES are what they say they compute; of all known without FILES.

    \b
    Examples:
      tessera patterns check
      tessera patterns check my.pattern --sizes 5 --cuda cuda:sm_80

    The file is read, its +Graphs are derived, the kernel is proved at sizes that the guards allow
    for every setting, compiled and run. A body of C++ or CUDA is run against the meaning in a
    process of its own, and used from then on; an operator of PyTorch or oneDNN is called and
    compared with it. Needs no GPU. Exit code 1 if one does not hold.
    """
    if any(not file.endswith(SUFFIX) for file in files):
        raise UsageError(f"patterns are files that end in {SUFFIX}")
    _import(modules)
    found = []
    if not files:
        known, broken = read_patterns()
        files = tuple(p.file for p in known)
        found = [Checked(Path(b.file).stem, False, b.why, 0, ()) for b in broken]
    with common.ProgressLine(not as_json) as line:
        for number, file in enumerate(files):
            if line is not None:
                line({"stage": f"{number} of {len(files)} patterns"})
            found.append(
                check_pattern(Path(file), seed=seed, sizes=sizes, cuda=cuda, timeout=timeout)
            )
    if as_json:
        common.print_json({"patterns": [c.json() for c in found]})
    else:
        for c in found:
            ran = [f"ran on {', '.join(c.ran)}"] if c.ran else []
            told = ", ".join([f"holds: proved {c.instances} times", *ran, *map(str, c.bodies)])
            common.stdout().print(f"{c.name}: {told if c.holds else c.why}", markup=False)
    return 0 if all(c.holds for c in found) else 1
