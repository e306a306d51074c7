"""docs/papers: the options, files and settings of every command exist."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import click
import pytest

from bench import papers
from tessera import _core
from tessera.cli.app import cli
from tessera.errors import UsageError
from tessera.options import Options
from tessera.rules import load_rules

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/papers/README.md"
STATES = ("works", "partly", "needs a GPU", "absent")
TABLES = re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for table in TABLES
    for line in table.splitlines()
    if line.startswith("| ") and not line.startswith("| paper | ")
]


def parse(command: str) -> None:
    """Reads a command line as the shell and the command would, without running it."""
    program, *words = shlex.split(command)
    if program == "python":
        assert words[0] == "-c"
        compile(words[1], "<page>", "exec")
        return
    assert program == "tessera", command
    at: click.Command = cli
    context = click.Context(cli, info_name="tessera")
    while isinstance(at, click.Group):
        name, found, words = at.resolve_command(context, words)
        assert found is not None, command
        at = found
        if not isinstance(at, click.Group):
            context = at.make_context(name, list(words), parent=context)
    for word in words:
        path = word.partition(":")[0]
        if "/" in path and not path.startswith("-"):
            assert (ROOT / path).is_file(), f"{command}: there is no {path}"
    if at.name == "show" and "rules" in command:
        assert words[0] in {r.name for r in load_rules()}, f"{command}: there is no such rule"
    settings, disable = (context.params.get(name) or () for name in ("settings", "disable"))
    _core.resolve_target(Options(settings=settings, disable=tuple(disable)).fields())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2].strip("`"))
def test_every_command_can_be_run(row: list[str]) -> None:
    assert len(row) == 4, row
    assert row[3].startswith(STATES), row[3]
    if row[2] == "none":
        assert row[3].startswith("absent")
        return
    assert re.fullmatch("`[^`]+`", row[2])
    parse(row[2].strip("`"))


def test_a_command_that_is_wrong_is_found() -> None:
    for wrong in ("tessera search examples/lora.ug --no-such", "tessera find examples/lora.ug",
                  "tessera bench pet --batch many"):  # fmt: skip
        with pytest.raises(click.UsageError):
            parse(wrong)
    with pytest.raises(AssertionError, match="there is no examples/nothing"):
        parse("tessera search examples/nothing.ug")
    with pytest.raises(AssertionError, match="no such rule"):
        parse("tessera rules show nothing")
    with pytest.raises(UsageError, match="unknown engine"):
        parse("tessera search examples/lora.ug --disable nothing")
    with pytest.raises(UsageError, match="there is no setting"):
        parse("tessera search examples/lora.ug --set mutate.speed=9")


def test_each_paper_has_its_table_and_the_rows_their_numbers() -> None:
    assert [t.split(" ")[0] for t in TABLES] == ["Mirage", "PET", "STENSO", "PluS"]
    counts = Counter(next(s for s in STATES if row[3].startswith(s)) for row in ROWS)
    assert counts.total() >= 44
    told = ", ".join(f"{counts[s]} {s}" for s in STATES)
    assert f"{counts.total()} rows: {told}" in PAGE.read_text()


def test_the_pages_are_what_the_results_give() -> None:
    assert not papers.stale(), f"run `{papers.COMMAND}`"
    assert all(path.exists() for path in map(papers.FOLDER.joinpath, ("mirage.md", "plus.md")))


def test_settings_are_checked() -> None:
    for wrong, why in (
        ("mutate.depth=0", "a whole number, 1 to 8, as in mutate.depth=8"),
        ("mutate.depth=2.5", "a whole number, 1 to 8"),
        ("mutate.depth", "a whole number, 1 to 8"),
        ("mutate.least_equal=1.5", "is a number, 0 to 1"),
        ("depth=4", "there are mutate.depth"),
    ):
        with pytest.raises(UsageError, match=why):
            _core.resolve_target(Options(settings=(wrong,)).fields())
    with pytest.raises(UsageError, match="set twice"):
        _core.resolve_target(Options(settings=("synth.size=2", "synth.size=3")).fields())
    with pytest.raises(UsageError, match="tuple of texts"):
        Options(settings="synth.size=2")  # type: ignore[arg-type]


def test_settings_are_part_of_what_results_depend_on() -> None:
    graph = _core.parse((ROOT / "bench/corpus/pet/fig1.ug").read_text(), "fig1.ug")
    plain = _core.entry_key(graph, Options().fields())
    deeper = _core.entry_key(graph, Options(settings=("mutate.depth=5",)).fields())
    assert plain["key"] != deeper["key"]
    assert "set mutate.depth 5" in deeper["options"]


def test_deeper_searches_find_more() -> None:
    """At depth 1 nothing, usually what PET's Figure 1 shows; equal ones alone by a setting."""
    graph = _core.parse(
        "graph g { x = input : f32[2,4,6,6]\n  w = input {weight=true} : f32[4,4,3,3]\n"
        "  y = conv x, w {low=[1,1], high=[1,1]}\n  return y }", "g.ug")  # fmt: skip

    def found(*settings: str) -> list[str]:
        fields = Options(settings=("mutate.steps=4000", *settings)).fields()
        record = _core.search(graph, fields | {"engine": "mutate"}, None)
        return [c["derivation"] for c in record["candidates"]]

    assert not found("mutate.depth=1")
    usual = found()
    assert any("corrected: " in d for d in usual)
    assert len(found("mutate.candidates=2")) <= 2
    assert not any("corrected: " in d for d in found("mutate.least_equal=1"))
