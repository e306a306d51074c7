"""Rewrite rules: where they are kept, and how new ones are learnt from programs.

Rules that ship lie in `rules/*.rules`, a user's own in the cache folder's `rules/learnt.rules`.
Both are plain text in the form of docs/rules.md; reading one executes nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tessera import _core
from tessera.cache_folder import make_own
from tessera.errors import BadInputError, Error, Location
from tessera.files import Plain, read_text, told_of, write_text
from tessera.frontends.trace import trace_call
from tessera.frontends.traced import Spec
from tessera.graph import Graph
from tessera.options import rule_folders, users
from tessera.source import run_file
from tessera.types import Record

LEARNT = "learnt.rules"


@dataclass(frozen=True)
class Rule(Plain):
    """One rule as the core read it; `text` is its block."""

    name: str
    text: str
    left: str
    right: str
    conditions: tuple[Record, ...]
    real: bool
    integer: bool
    learned: str
    checked: str
    operations: tuple[int, int]  # of the left and the right side
    file: str = ""
    line: int = 0

    def json(self) -> Record:
        """Plain data, as `--json` prints it."""
        return {name: v for name, v in super().json().items() if name != "operations"}


def rule_of(record: Record, file: str = "") -> Rule:
    """A core's record as a rule."""
    fields = {**record, "conditions": tuple(record["conditions"])}
    return Rule(**fields, file=file)


def rule_files() -> list[Path]:
    """All files of rules, those that ship first."""
    folders = [Path(f) for f in rule_folders() if f]
    return [p for f in folders if f.is_dir() for p in sorted(f.glob("*.rules"))]


def read_rules(path: Path) -> list[Rule]:
    """The rules of one file; raises BadInputError with file, line and column."""
    return [rule_of(r, str(path)) for r in _core.parse_rules(read_text(path), str(path))]


def load_rules(paths: Iterable[Path] | None = None) -> list[Rule]:
    """The rules of these files, or of all there are; of two with one name the first."""
    found: dict[str, Rule] = {}
    for path in rule_files() if paths is None else paths:
        for rule in read_rules(path):
            found.setdefault(rule.name, rule)
    return list(found.values())


def teachers(path: Path) -> Iterator[tuple[Graph, str]]:
    """The programs of a file to learn from, with their names.

    Of a Python file (which is executed) every function whose arguments are all annotated with types
    and that can be traced; a `.ug` file is one program.
    """
    if path.suffix != ".py":
        yield Graph.from_core(_core.parse(read_text(path), str(path))), path.stem
        return
    found = False
    path = path.resolve()
    for name, function in run_file(path).items():
        if not inspect.isfunction(function) or function.__code__.co_filename != str(path):
            continue
        parameters = inspect.signature(function).parameters.values()
        if not parameters or any(not isinstance(p.annotation, str) for p in parameters):
            continue
        found = True
        try:
            specs = {p.name: Spec.parse(p.annotation) for p in parameters}
            yield trace_call(function, [], specs).graph, f"{path.stem}/{name}"
        except Error:
            continue
    if not found:
        raise BadInputError(
            "no function here has a type for each argument; write them as annotations, as in "
            'def f(A: "f32[200,200]")',
            Location(str(path)),
        )


def exercises(count: int, seed: int = 0) -> Iterator[tuple[Graph, str]]:
    """Small random programs to learn from."""
    for n in range(seed, seed + count):
        yield Graph.from_core(_core.rule_exercise(n)), f"exercise/{n}"


@dataclass(frozen=True)
class Learnt:
    """What programs taught: new rules, why others were refused, and counts."""

    rules: list[Rule]
    refused: list[str]
    counts: dict[str, int]


def learn(programs: Iterable[tuple[Graph, str]], known: Iterable[Rule] = (), *,
          stated: Iterable[Rule] = (), instances: int = 64, seed: int = 0, z3: str | None = None,
          progress: Callable[[tuple[int, int]], None] | None = None) -> Learnt:  # fmt: skip
    """Searches programs and keeps what the search discovers as rules beside those known.

    Rules that people `stated` are generalised and checked like discoveries, before those.

    Every rule is checked by the verifier at `instances` random sizes, and with `z3` (its
    executable) by a solver too. Nothing is written.
    """
    record = _core.learn_rules(
        [(graph.core, name) for graph, name in programs],
        "".join(rule.text for rule in known),
        "".join(rule.text for rule in stated),
        instances,
        seed,
        2.0,
        z3 is not None,
        z3 or "",
        progress,
    )
    return Learnt([rule_of(r) for r in record["rules"]], record["refused"], record["counts"])


def add_to_user_rules(rules: Iterable[Rule]) -> Path:
    """Appends rules to the user's own, all or nothing; the file they are in."""
    path = users("rules") / LEARNT
    text = read_text(path) if path.exists() else ""
    blocks = [text.rstrip()] if text.strip() else []
    blocks += [rule.text.rstrip() for rule in rules]
    with told_of(path, "written"):
        make_own(path.parent)
    write_text(path, "\n\n".join(blocks) + "\n")
    return path
