"""Experts' kernels: where patterns are kept, and whether one is what it says it computes.

Patterns that ship lie in `patterns/*.pattern`, those of installed packages where their entry points
of the group `tessera.patterns` say, a user's own in the cache folder, a project's in
`.tessera/patterns`, and what searches found in the cache folder's `learnt`. All are plain text in
the form of docs/patterns.md; reading one executes nothing.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tessera import _core
from tessera.cache_folder import make_own
from tessera.errors import BadInputError, Error, Location, NotFoundError, ToolMissingError
from tessera.files import Plain, read_text, told_of, write_text
from tessera.graph import Graph
from tessera.options import Options, pattern_folders, shipped, target_directory, users
from tessera.types import Record, Value

if TYPE_CHECKING:
    from tessera.pattern_authoring import register as register
    from tessera.pattern_authoring import unregister as unregister

SUFFIX = ".pattern"
# Of the largest element of a result: what f32 sums of a few thousand terms may be off by.
_TOLERANCE = 2e-4


def __getattr__(name: str) -> Value:
    """`register` and `unregister`, which build on this module."""
    if name not in ("register", "unregister"):
        raise AttributeError(f"module 'tessera.patterns' has no attribute '{name}'")
    return getattr(importlib.import_module("tessera.pattern_authoring"), name)


@dataclass(frozen=True)
class Pattern(Plain):
    """One pattern as the core read it; `text` is its canonical form."""

    name: str
    text: str
    inputs: tuple[tuple[str, str], ...]  # of its meaning: name and type
    output: str
    loops: tuple[str, ...]  # the +Graphs it is matched by
    keys: tuple[str, ...]
    prologue: tuple[str, ...]
    epilogue: bool
    when: tuple[str, ...]
    bodies: tuple[Record, ...]
    settings: int
    file: str = ""

    def written(self) -> list[int]:
        """Which of its bodies a person wrote in a language, by number."""
        return [number for number, body in enumerate(self.bodies) if body["language"]]

    def json(self) -> Record:
        """Plain data, as `--json` prints it."""
        return super().json() | {"inputs": dict(self.inputs)}


def read_pattern(path: Path) -> Pattern:
    """The pattern of a file; raises BadInputError with file, line and column."""
    record = _core.parse_pattern(read_text(path), str(path))
    for name in ("inputs", "loops", "keys", "prologue", "when", "bodies"):
        record[name] = tuple(record[name])
    return Pattern(**record, file=str(path))


def pattern_files() -> list[Path]:
    """All files of patterns, those that ship first."""
    folders = [*(Path(f) for f in pattern_folders() if f), users("learnt")]
    return [p for f in folders if f.is_dir() for p in sorted(f.glob("*" + SUFFIX))]


@dataclass(frozen=True)
class Broken(Plain):
    """A file in a folder of patterns that cannot be read, and why. Nothing else suffers from it."""

    file: str
    why: str


def read_patterns() -> tuple[list[Pattern], list[Broken]]:
    """All patterns there are, of two with one name the later one, and the files that are none."""
    found: dict[str, Pattern] = {}
    broken = []
    for path in pattern_files():
        try:
            pattern = read_pattern(path)
        except Error as error:
            broken.append(Broken(str(path), str(error)))
            continue
        found.pop(pattern.name, None)
        found[pattern.name] = pattern
    return list(found.values()), broken


def load_patterns() -> list[Pattern]:
    """All patterns there are, of two with one name the later one; those that cannot be read are
    left out with one warning."""
    found, broken = read_patterns()
    if broken:
        count = len(broken) - 1
        more = f" (and {count} more: `tessera patterns list`)" if count else ""
        warnings.warn(f"pattern left out{more}: {broken[0].why}", RuntimeWarning, stacklevel=2)
    return found


def find_pattern(name: str) -> Pattern:
    """The pattern of this name; raises NotFoundError with names that are close."""
    known = {pattern.name: pattern for pattern in load_patterns()}
    if name in known:
        return known[name]
    close = [other for other in known if name in other or other in name][:5]
    hint = f"; there is {', '.join(close)}" if close else "; `tessera patterns list` names them"
    raise NotFoundError(f"no pattern '{name}'{hint}")


def add_pattern(path: Path, folder: Path | None = None) -> Path:
    """Copies a pattern into a folder, the user's own by default, where it is found from now on."""
    pattern = read_pattern(path)
    folder = users("patterns") if folder is None else folder
    with told_of(folder, "written"):
        make_own(folder)
    target = folder / (pattern.name + SUFFIX)
    write_text(target, read_text(path))
    return target


def remove_pattern(name: str) -> Path:
    """Removes a user's or a project's own pattern; those that ship can only be replaced."""
    found, broken = read_patterns()
    # Of a file that cannot be read the name is the file's.
    known = {Path(b.file).stem: b.file for b in broken} | {p.name: p.file for p in found}
    path = Path(known[name] if name in known else find_pattern(name).file)
    own = [users("patterns"), users("learnt"), Path(".tessera") / "patterns"]
    if path.resolve().parent not in [folder.resolve() for folder in own]:
        package = shipped("patterns")
        ships = package is not None and path.is_relative_to(package)
        raise BadInputError(
            f"'{name}' {'ships with Tessera' if ships else 'belongs to a package'}; add a pattern "
            f"of that name to replace it, or switch all off with --disable patterns",
            Location(str(path)),
        )
    with told_of(path, "removed"):
        path.unlink()
    return path


@dataclass(frozen=True)
class Places(Plain):
    """Where experts' kernels fit a program, and where they nearly do: one line for equal places."""

    fits: tuple[str, ...]
    nearly: tuple[str, ...]

    def lines(self) -> list[str]:
        """For people: the places that fit first."""
        return [f"fits: {x}" for x in self.fits] + [f"nearly: {x}" for x in self.nearly]


def pattern_places(graph: Graph, options: Options | None = None) -> Places:
    """Where the patterns that are known match a program, and what is missing where they nearly do.

    `graph` has static shapes; of a model, layers that are alike share a line. Each place is the
    largest that the pattern fits there, with the setting that the cost model likes best; uses of it
    are proved only when they are chosen. Takes at most the options' budget.
    """
    options = Options() if options is None else options
    if "patterns" in options.disable:
        return Places((), ())
    fields = {**options.fields(), "engine": "patterns"}
    record = _core.search(graph.core, fields, None)
    fits: dict[str, str] = {}
    for candidate in record["candidates"]:
        for line in candidate["derivation"].splitlines():
            fits.setdefault(line.split(" with ", 1)[0], line)
    return Places(grouped(fits.values()), grouped(record["report"]["refused"]))


_PLACE = re.compile(r"(?:pattern )?(\S+) at \S+ \((.*?)\)")


def grouped(lines: Iterable[str]) -> tuple[str, ...]:
    """One line for each pattern and list of operators, with the number of places.

    Lists that are part of a longer one of the same pattern are left out.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        found = _PLACE.match(line)
        groups.setdefault((found[1], f" {found[2]} ") if found else ("", line), []).append(line)
    return tuple(
        same[0] + (f"; {len(same) - 1} more places like it" if len(same) > 1 else "")
        for (pattern, ops), same in groups.items()
        if not any(p == pattern and ops != longer and ops in longer for p, longer in groups)
    )


@dataclass(frozen=True)
class Learnt(Plain):
    """What searches left behind: kernels as patterns, and what each search came to."""

    patterns: int
    searches: int
    bytes: int
    folder: str


def learnt() -> Learnt:
    """What is kept of searches; `forget` removes it."""
    files = _learnt_files()
    kinds = [path.suffix for path in files]
    size = sum(path.stat().st_size for path in files)
    return Learnt(kinds.count(SUFFIX), kinds.count(".entry"), size, str(users("learnt")))


def forget() -> Learnt:
    """Removes what is kept of searches, which begin anew from now on; says what that was."""
    found = learnt()
    for path in _learnt_files():
        with told_of(path, "removed"):
            path.unlink(missing_ok=True)
    return found


def _learnt_files() -> list[Path]:
    folder = users("learnt")
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in found if path.suffix in (SUFFIX, ".entry"))


@dataclass(frozen=True)
class BodyState(Plain):
    """What is known here of a body that a person wrote in C++ or CUDA.

    `checked`: run against its meaning on this machine (CUDA: in the emulator; raw CUDA: on this
    GPU), and used. `compiled-only`: raw CUDA without a GPU. `refused`: `why` says what is wrong.
    `unchecked`: by this compiler, for these instructions, in this version; `check` does it.
    """

    line: int  # of the file
    language: str  # "cpp", "cuda", "raw"
    state: str
    runs: int  # against the meaning
    instances: int  # sizes, settings, element types and holes
    why: str = ""

    def __str__(self) -> str:
        target = {"cpp": "cpu", "raw": "raw cuda"}.get(self.language, self.language)
        runs = f" ({self.runs} runs)" if self.state == "checked" else ""
        return f"{target} {self.state}{runs}"


def body_states(pattern: Pattern) -> list[BodyState]:
    """What is known here of each body of a pattern that a person wrote in a language."""
    text, path = pattern.text, pattern.file
    return [_state(pattern.bodies[n], _core.body_record(text, path, n)) for n in pattern.written()]


def _state(body: Record, record: Record) -> BodyState:
    state = str(record["state"])
    return BodyState(
        body["line"], body["language"], state, int(record["runs"]), int(record["instances"]),
        str(record["what"]) if state == "refused" else "",
    )  # fmt: skip


@dataclass(frozen=True)
class Checked(Plain):
    """What `check` found of one pattern."""

    name: str
    holds: bool
    why: str  # empty where it holds
    instances: int  # sizes and settings at which the kernel was proved to be the meaning
    ran: tuple[str, ...]  # what was compiled and run: "cpu", "cuda:sm_80 emulated"
    bodies: tuple[BodyState, ...] = ()  # those that a person wrote


def check_pattern(path: Path, *, seed: int = 1, sizes: int = 2, cuda: str | None = None,
                  timeout: float = 10,
                  progress: Callable[[Record], None] | None = None) -> Checked:  # fmt: skip
    """Proves the kernel of a pattern to be its meaning, compiles it and runs it.

    The verifier is asked at `sizes` sizes that the guards allow, for every setting; then each body
    is compiled for this processor and run against the meaning, and with `cuda` ("cuda:sm_80") also
    emulated for that architecture. No GPU is needed.

    A body in C++ or CUDA cannot be proved: it is run against the meaning at `sizes` sizes for each
    element type, in a process of its own, for at most `timeout` seconds each time. What came of it
    is kept in the cache folder, and only what was checked there is ever used.
    """
    text = read_text(path)
    pattern = read_pattern(path)
    found = _core.check_pattern(text, str(path), seed, sizes, progress)

    def checked(number: int, raw: bool) -> Record:
        """Runs a body in a language; raw CUDA stays as it is where NVRTC is missing."""
        target = "cuda" if raw else cuda or "cuda:sm_80"
        try:
            return _core.check_body(
                text, str(path), number, seed, max(sizes, 2), timeout, target, target_directory()
            )
        except ToolMissingError:
            if not raw:
                raise
            return _core.body_record(text, str(path), number)

    why = str(found["why"])
    ran: list[str] = []
    states: list[BodyState] = []
    for number, body in enumerate(pattern.bodies):
        if why:
            break
        if body["language"]:
            states.append(_state(body, checked(number, raw=body["language"] == "raw")))
            if states[-1].state == "refused":
                why = f"the body in line {body['line']}: {states[-1].why}"
            continue
        targets = ["cpu"] if body["target"] in ("", "cpu") else []
        if cuda is not None and body["target"] in ("", "cuda"):
            targets.append(cuda)
        meaning, kernel = _core.pattern_example(text, str(path), number)
        for target in targets:
            why = _run(meaning, kernel, target, seed)
            if why:
                why = f"the body in line {body['line']} for {target}: {why}"
                break
            shown = target if target == "cpu" else f"{target} emulated"
            if shown not in ran:
                ran.append(shown)
    return Checked(pattern.name, not why, why, int(found["instances"]), tuple(ran), tuple(states))


def _run(meaning: _core.Graph, kernel: _core.Graph, target: str, seed: int) -> str:
    """Where compiled or emulated code leaves the meaning; empty if nowhere."""
    rng = np.random.default_rng(seed)
    try:
        module = _core.compile(kernel) if target == "cpu" else None
        types = [(dtype, shape) for dtype, shape in _core.compile(meaning).input_types]
        arrays = [rng.standard_normal(shape).astype(np.float32) for _, shape in types]
        expected = np.asarray(_core.evaluate(meaning, arrays, exact=True)[0])
        output = np.empty(expected.shape, np.float32)
        if module is not None:
            module.run(arrays, [output])
        else:
            fault = _core.cuda_emulated(kernel, arrays, [output], target, target_directory())
            if fault:
                return fault
    except Error as error:
        return str(error)
    off = float(np.max(np.abs(output - expected)) / max(1e-30, float(np.max(np.abs(expected)))))
    if not off <= _TOLERANCE:
        return f"its result is off by {off:.1g} of the largest element"
    return ""
