"""`tessera rules`: the rewrite rules that are known, learning more, and checking them."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Column, Table

from tessera import _core
from tessera.cli import common
from tessera.errors import BadInputError, CancelledError, NotFoundError, UsageError
from tessera.files import read_text, require_folder, write_text
from tessera.rules import (
    Rule,
    add_to_user_rules,
    exercises,
    learn,
    load_rules,
    read_rules,
    rule_files,
    teachers,
)
from tessera.types import Record

_MOST_INSTANCES = 100_000


@click.group()
def rules() -> None:
    """Rewrite rules: equal expressions, for all shapes, learnt by searching programs.

    \b
    A rule looks like this; docs/rules.md tells all of the form.
      rule diagonal-of-product
        A [m n], B [n m]
        diagonal(A @ B) = sum(transpose(A) * B, axis=-2)
        holds for real, integer
        learned from stenso/diag_dot
        checked on 64 instances by the verifier; the second opinion (Z3) agrees on 2

    \b
    Examples:
      tessera rules list matmul             those with a matrix product
      tessera rules show diagonal-of-product
      tessera rules learn stats.py          what the search finds in these programs becomes rules
      tessera rules check                   put every rule to the verifier again
    """


@rules.command("list")
@click.argument("words", nargs=-1)
@common.json_option
def list_rules(words: tuple[str, ...], as_json: bool) -> int:
    """List the rules whose name or text contains all WORDS; all rules without WORDS.

    \b
    Examples:
      tessera rules list
      tessera rules list sum exp
    """
    found = [r for r in load_rules() if all(w in r.text for w in words)]
    if as_json:
        common.print_json({"rules": [r.json() for r in found]})
        return 0
    columns = [Column(name, overflow="fold") for name in ("name", "equation")]
    table = Table(*columns, box=None, pad_edge=False, show_header=False)
    for rule in found:
        table.add_row(rule.name, f"{rule.left} = {rule.right}")
    console = common.stdout()
    if found:
        console.print(table, markup=False)
    console.print(f"{len(found)} rules in {len(rule_files())} files")
    return 0


@rules.command()
@click.argument("name")
@common.json_option
def show(name: str, as_json: bool) -> int:
    """Show a rule: shapes, equation, conditions, where it comes from and where it is kept."""
    known = load_rules()
    found = next((r for r in known if r.name == name), None)
    if found is None:
        close = [r.name for r in known if name in r.name][:5]
        hint = f"; there is {', '.join(close)}" if close else "; `tessera rules list` names them"
        raise NotFoundError(f"no rule '{name}'{hint}")
    if as_json:
        common.print_json(found.json())
        return 0
    click.echo(found.text, nl=False)
    click.echo(f"in {found.file}:{found.line}")
    return 0


@rules.command("learn")
@click.argument("files", nargs=-1)
@click.option("--exercises", "random", type=int, default=0, metavar="N",
              help="Also learn from N small random programs.")  # fmt: skip
@click.option("--seed", type=int, default=0, metavar="N", help="The first of those, and of checks.")
@click.option("--instances", type=int, default=64, show_default=True, metavar="N",
              help="Random sizes at which a rule must hold.")  # fmt: skip
@click.option("--z3", metavar="FILE", help="Also ask this solver about each rule.")
@click.option("-o", "--output", metavar="FILE",
              help="Where the rules go; default: the cache folder; -: only print.")  # fmt: skip
@common.json_option
def learn_command(files: tuple[str, ...], random: int, seed: int, instances: int, z3: str | None,
                  output: str | None, as_json: bool) -> int:  # fmt: skip
    """Learn rules from the programs in FILES (.ug, .py with annotated functions, .rules).

    \b
    Examples:
      tessera rules learn stats.py -o -
      tessera rules learn bench/corpus/numpy/*.py --exercises 500 -o new.rules

    Python files are executed. Each program is searched; each discovery is generalised as far as
    random instances allow, proved at many sizes, and kept unless it follows from what is known;
    so is each rule that a file of rules states.
    """
    if not files and random <= 0:
        raise UsageError("name files to learn from, or --exercises N")
    _require_instances(instances)
    if output and output != "-":
        require_folder(output)
    paths = [Path(file) for file in files]
    stated = [r for path in paths if path.suffix == ".rules" for r in read_rules(path)]
    programs = [p for path in paths if path.suffix != ".rules" for p in teachers(path)]
    programs += exercises(max(0, random), seed)
    line = common.ProgressLine(not as_json)
    with line:
        found = learn(
            programs, load_rules(), stated=stated, instances=instances, seed=seed, z3=z3,
            progress=lambda done: line.update(
                {"stage": f"{done[0]} of {len(programs)} programs, {done[1]} rules"}
            ),
        )  # fmt: skip
    place = _keep(found.rules, output)
    if as_json:
        common.print_json({"rules": [r.json() for r in found.rules], "refused": found.refused,
                           "counts": found.counts, "file": place})  # fmt: skip
        return 0
    if output != "-":
        for rule in found.rules:
            click.echo(rule.text)
    c = found.counts
    common.stderr().print(
        f"{c['programs']} programs, {c['discoveries']} discoveries, {c['kept']} new rules; "
        f"{c['derived']} follow from known ones, {c['refused']} were refused"
        + (f"; kept in {place}" if place and found.rules else ""),
        markup=False,
    )
    return 0


def _keep(found: list[Rule], output: str | None) -> str:
    if output is None:
        return str(add_to_user_rules(found)) if found else ""
    text = "\n".join(rule.text for rule in found)
    if output == "-":
        click.echo(text, nl=False)
        return ""
    write_text(Path(output), text)
    return output


def _require_instances(instances: int) -> None:
    if not 1 <= instances <= _MOST_INSTANCES:
        raise UsageError(f"--instances must be from 1 to {_MOST_INSTANCES}, not {instances}")


@rules.command()
@click.argument("files", nargs=-1)
@click.option("--instances", type=int, default=32, show_default=True, metavar="N",
              help="Random sizes for each rule.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, metavar="N", help="Of the sizes.")
@click.option("--z3", metavar="FILE", help="Also ask this solver about small instances.")
@common.json_option
def check(files: tuple[str, ...], instances: int, seed: int, z3: str | None, as_json: bool) -> int:
    """Check rules again: those in FILES, or all that are known.

    \b
    Examples:
      tessera rules check
      tessera rules check my.rules --instances 200 --json

    Exit code 0 when all hold, 1 when some do not (it is told where), 65 for files that are no
    rules, with file:line:col.
    """
    _require_instances(instances)
    paths = [Path(f) for f in files] or rule_files()
    if not paths:
        raise BadInputError("there are no rules")
    results: list[Record] = []
    line = common.ProgressLine(not as_json)
    with line:
        for path in paths:

            def tell(done: int, path: Path = path) -> None:
                line.update({"stage": f"{path.name}: {done} rules"})

            found = _core.check_rules(
                read_text(path), str(path), instances, seed, z3 is not None, z3 or "", tell
            )
            results += [{"file": str(path), **r} for r in found if r["why"] != "cancelled"]
            if any(r["why"] == "cancelled" for r in found):
                held = sum(r["holds"] for r in results)
                raise CancelledError(f"interrupted; of {len(results)} rules so far {held} hold")
    wrong = [r for r in results if not r["holds"]]
    if as_json:
        common.print_json({"rules": results, "wrong": len(wrong)})
        return 1 if wrong else 0
    console = common.stdout()
    common.print_lines(f"{r['file']}:{r['line']}: {r['name']}: {r['why']}" for r in wrong)
    general = sum(r["holds"] and r["all_sizes"] for r in results)
    held = f"{len(results) - len(wrong)} hold, {general} of them proved for all sizes"
    console.print(f"{len(results)} rules, {held}")
    return 1 if wrong else 0
