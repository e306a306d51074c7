#!/usr/bin/env python3
"""Run the text tests: each tests/text/**/*.ug says what to run and what must come out.

    // RUN: tessera verify %s %{b.ug}    a command line; several RUN lines are run in order
    // CHECK: substring                  on some later line of that run's standard output
    // CHECK-NEXT: substring             on the very next line
    // CHECK-NOT: substring              nowhere in that run's standard output
    // ERROR: message                    in its standard error; the exit code must then be 65
    // EXIT: 1                           its exit code, where it is not 0 (or 65 after ERROR)
    // TREATMENTS: plain                 where a treatment makes no sense for this file
    // GOLDEN: none (why)                no golden: all treatments must print the same; otherwise
                                         they must print the golden file beside it, foo.ug.golden
    //--- b.ug                           the rest is another file, named %{b.ug} in RUN lines

One file runs under several treatments against the one golden: as it is, printed and parsed again,
with 1 and with 8 threads. In what is compared, folders are left out and times read <time>.
A missing golden, a file that runs nothing or checks nothing, and an unknown directive are failures.
`--update-golden` writes the goldens from the plain treatment; read the diff before committing it.
"""

import argparse
import contextlib
import difflib
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREATMENTS = ("plain", "reprint", "threads=1", "threads=8")
DIRECTIVE = re.compile(r"^\s*//\s?([A-Z][A-Z-]+):\s?(.*?)\s*$")
PART = re.compile(r"^//---\s*(\S+)\s*$")
TIME = re.compile(r"\b\d+(?:\.\d+)?(?:e-?\d+)? ?(?:ns|us|µs|ms|s|seconds)\b")
THREADED = {"optimize", "search", "verify"}  # verbs that take --threads
BAD_INPUT = 65

# Runs one command line (without the leading "tessera"): exit code, standard output and error.
Command = Callable[[list[str]], tuple[int, str, str]]
Reprint = Callable[[str], str]


class TestError(Exception):
    """The test failed, or its file is not a well-formed test."""


@dataclass
class Run:
    """One RUN line with what must come out of it."""

    command: str
    checks: list[tuple[str, str]] = field(default_factory=list)  # (directive, text)
    errors: list[str] = field(default_factory=list)
    exit_code: int | None = None

    @property
    def expected_exit(self) -> int:
        if self.exit_code is not None:
            return self.exit_code
        return BAD_INPUT if self.errors else 0


@dataclass
class TextTest:
    """A parsed test file; the first of its parts bears the file's own name."""

    runs: list[Run]
    parts: dict[str, str]
    golden: bool
    treatments: tuple[str, ...]


def parse_test(name: str, text: str) -> TextTest:
    """Read the directives of one test file."""
    test = TextTest([], {name: ""}, True, TREATMENTS)
    part = name
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if found := PART.match(line):
            part = found[1]
            test.parts[part] = ""
            continue
        test.parts[part] += line
        if (directive := DIRECTIVE.match(line)) is None:
            continue
        key, value = directive[1], directive[2]
        if key == "RUN":
            test.runs.append(Run(value))
        elif key == "GOLDEN":
            if not re.fullmatch(r"none \(.+\)", value):
                raise TestError(f"line {number}: write GOLDEN: none (and the reason)")
            test.golden = False
        elif key == "TREATMENTS":
            test.treatments = tuple(value.split())
            if unknown := set(test.treatments) - set(TREATMENTS):
                raise TestError(f"line {number}: unknown treatment {unknown.pop()}")
        elif key in ("CHECK", "CHECK-NEXT", "CHECK-NOT", "ERROR", "EXIT"):
            if not test.runs:
                raise TestError(f"line {number}: {key} before the first RUN")
            if not value:
                raise TestError(f"line {number}: {key} without a text")
            run = test.runs[-1]
            if key == "EXIT":
                run.exit_code = int(value)
            elif key == "ERROR":
                run.errors.append(value)
            else:
                run.checks.append((key, value))
        elif key not in ("NOTE", "TODO"):
            raise TestError(f"line {number}: unknown directive {key}")
    if not test.runs:
        raise TestError("no RUN line: it tests nothing")
    if not test.golden and not any(run.checks or run.errors for run in test.runs):
        raise TestError("neither golden nor CHECK nor ERROR: it tests nothing")
    return test


def check_output(run: Run, code: int, out: str, err: str) -> None:
    """Hold one run's output against its directives."""
    for error in run.errors:
        if error not in err:
            raise TestError(f"{run.command}: no error {error!r} in:\n{err}")
    if code != run.expected_exit:
        raise TestError(f"{run.command}: exit {code}, not {run.expected_exit}\n{out}{err}")
    lines = out.splitlines()
    position = 0  # the first line that is not matched yet
    for key, text in run.checks:
        if key == "CHECK-NOT":
            if text in out:
                raise TestError(f"{run.command}: forbidden {text!r} in:\n{out}")
        elif key == "CHECK-NEXT":
            if position >= len(lines) or text not in lines[position]:
                raise TestError(f"{run.command}: line {position + 1} is not {text!r} in:\n{out}")
            position += 1
        else:
            rest = (i for i in range(position, len(lines)) if text in lines[i])
            if (hit := next(rest, None)) is None:
                where = f" after line {position}" if position else ""
                raise TestError(f"{run.command}: no {text!r}{where} in:\n{out}")
            position = hit + 1


def execute(test: TextTest, treatment: str, command: Command, reprint: Reprint) -> str:
    """Run the test under one treatment; the transcript that goldens hold."""
    transcript = ""
    threads = treatment.partition("=")[2]
    with (
        tempfile.TemporaryDirectory(prefix="tessera-text-") as folder,
        environment(
            TESSERA_CACHE_DIR=f"{folder}/cache",
            TESSERA_THREADS=threads or None,
            TESSERA_ISA="generic",  # what is emitted and predicted must not depend on the machine
            COLUMNS="100",
        ),
    ):
        places = {}
        for name, text in test.parts.items():
            place = Path(folder, name)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(reprint(text) if treatment == "reprint" else text)
            places[name] = str(place)
        main = next(iter(places.values()))
        for run in test.runs:
            line = run.command.replace("%s", main).replace("%t", f"{folder}/out")
            line = line.replace("%S", str(ROOT / "tests/text"))
            for name, at in places.items():
                line = line.replace(f"%{{{name}}}", at)
            words = shlex.split(line)
            if words[:1] != ["tessera"]:
                raise TestError(f"RUN: {run.command}: only tessera can be run")
            if threads and words[1] in THREADED and "--threads" not in words:
                words += ["--threads", threads]
            code, out, err = command(words[1:])
            out, err = (TIME.sub("<time>", s.replace(folder + "/", "")) for s in (out, err))
            check_output(run, code, out, err)
            transcript += f"$ {run.command}\n{out}"
            transcript += f"[stderr]\n{err}" if err else ""
            transcript += f"[exit {code}]\n" if code else ""
    return transcript


def run_file(path: Path, command: Command, reprint: Reprint, update: bool = False) -> list[str]:
    """Run one test file under its treatments; the failures, empty when it passes."""
    try:
        test = parse_test(path.name, path.read_text())
    except (TestError, ValueError) as error:
        return [f"{path}: {error}"]
    golden_path = path.with_name(path.name + ".golden")
    failures = []
    golden: str | None = None  # without a golden file, what the first treatment printed
    if test.golden and golden_path.exists():
        golden = golden_path.read_text()
    malformed = any(run.errors for run in test.runs)  # cannot be parsed, hence not reprinted
    for treatment in test.treatments:
        if treatment == "reprint" and malformed:
            continue
        label = f"{path} [{treatment}]"
        try:
            transcript = execute(test, treatment, command, reprint)
        except TestError as error:
            failures.append(f"{label}: {error}")
            continue
        if not test.golden:
            golden = transcript if golden is None else golden
        elif update and treatment == "plain":
            if golden != transcript:
                golden_path.write_text(transcript)
            golden = transcript
        if golden is None:
            failures.append(f"{label}: {golden_path.name} is missing; see --update-golden")
        elif transcript != golden:
            diff = difflib.unified_diff(
                golden.splitlines(), transcript.splitlines(), "golden", treatment, lineterm=""
            )
            reference = golden_path.name if test.golden else "that of the first treatment"
            failures.append(f"{label}: the output differs from {reference}\n" + "\n".join(diff))
    return failures


@contextlib.contextmanager
def environment(**changes: str | None) -> Iterator[None]:
    """Set environment variables for a while; None leaves a variable as it is."""
    saved = {name: os.environ.get(name) for name in changes}
    os.environ.update({name: value for name, value in changes.items() if value is not None})
    try:
        yield
    finally:
        for name, old in saved.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old


def tessera_command(arguments: list[str]) -> tuple[int, str, str]:
    """Run the command line inside this process, catching what Python and C++ print."""
    from tessera import cli

    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        sys.stdout.flush()
        sys.stderr.flush()
        saved = os.dup(1), os.dup(2)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    code = cli.main(arguments)
                except SystemExit as stop:
                    code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        finally:
            out.flush()
            err.flush()
            for target, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, target)
                os.close(copy)
        out.seek(0)
        err.seek(0)
        return int(code or 0), out.read(), err.read()


def tessera_reprint(text: str) -> str:
    """Parse a program and print it in canonical form."""
    import tessera

    return str(tessera.Graph.parse(text))


def run_one(path: Path, update: bool) -> list[str]:
    return run_file(path, tessera_command, tessera_reprint, update)


def run_apart(path: Path, update: bool) -> list[str]:
    """Run one file in a process of its own, so that a crash is the failure of this file alone."""
    with ProcessPoolExecutor(1) as pool:
        try:
            return pool.submit(run_one, path, update).result()
        except BrokenProcessPool:
            return [f"{path}: the process died"]


def main(argv: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description="Run the text tests.")
    options.add_argument("paths", nargs="*", type=Path, default=[ROOT / "tests/text"])
    options.add_argument("--update-golden", action="store_true")
    options.add_argument("-j", "--jobs", type=int, default=min(os.cpu_count() or 1, 8))
    chosen = options.parse_args(argv)
    files = [f for p in chosen.paths for f in ([p] if p.is_file() else sorted(p.rglob("*.ug")))]
    if not files:
        print("texttest: no test found")
        return 1
    failures: list[str] = []
    with ProcessPoolExecutor(chosen.jobs) as pool:
        futures = [pool.submit(run_one, path, chosen.update_golden) for path in files]
        for path, future in zip(files, futures, strict=True):
            try:
                found = future.result()
            except BrokenProcessPool:
                found = run_apart(path, chosen.update_golden)
            failures += found
            for failure in found:
                print(f"FAILED {failure}\n")
    print(f"texttest: {len(files)} files, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
