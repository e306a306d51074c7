"""The text-test runner runs what it is told, and it can fail in every way it should."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import texttest
from texttest import run_file

TEXT = "// RUN: tessera echo %s\n// CHECK: graph\n// CHECK-NEXT: body\ngraph\nbody 1.5 ms\n"


def echo(arguments: list[str]) -> tuple[int, str, str]:
    """A stand-in for the command line: prints its file without comments, or fails on `bad`."""
    text = Path(arguments[1]).read_text()
    if "bad" in text.replace("// ERROR: bad", ""):
        return 65, "", f"{arguments[1]}:2:1: bad word\n"
    return 0, "".join(x for x in text.splitlines(keepends=True) if x[:2] != "//"), ""


def same(text: str) -> str:
    return text


def make(folder: Path, text: str, golden: str | None = None) -> Path:
    path = folder / "a.ug"
    path.write_text(text)
    if golden is not None:
        (folder / "a.ug.golden").write_text(golden)
    return path


GOLDEN = "$ tessera echo %s\ngraph\nbody <time>\n"


def test_passes(tmp_path: Path) -> None:
    assert run_file(make(tmp_path, TEXT, GOLDEN), echo, same) == []


def test_missing_golden_fails_in_every_treatment(tmp_path: Path) -> None:
    failures = run_file(make(tmp_path, TEXT), echo, same)
    assert len(failures) == len(texttest.TREATMENTS)
    assert "missing" in failures[0]


def test_different_golden_fails_with_a_diff(tmp_path: Path) -> None:
    failures = run_file(make(tmp_path, TEXT, GOLDEN.replace("graph", "giraffe")), echo, same)
    assert "-giraffe" in failures[0]
    assert "+graph" in failures[0]


def test_update_writes_a_golden_that_then_passes(tmp_path: Path) -> None:
    path = make(tmp_path, TEXT)
    assert run_file(path, echo, same, update=True) == []
    assert (tmp_path / "a.ug.golden").read_text() == GOLDEN
    assert run_file(path, echo, same) == []


def test_update_does_not_hide_a_failing_treatment(tmp_path: Path) -> None:
    failures = run_file(make(tmp_path, TEXT), echo, lambda text: text + "more\n", update=True)
    assert len(failures) == 1
    assert "[reprint]" in failures[0]


def test_reprint_that_changes_the_output_fails(tmp_path: Path) -> None:
    path = make(tmp_path, TEXT, GOLDEN)
    assert "[reprint]" in run_file(path, echo, lambda text: text + "more\n")[0]


def test_without_golden_the_treatments_must_agree(tmp_path: Path) -> None:
    path = make(tmp_path, "// GOLDEN: none (test)\n" + TEXT)
    assert run_file(path, echo, same) == []
    failures = run_file(path, echo, lambda text: text + "more\n")
    assert len(failures) == 1
    assert "differs from that of the first treatment" in failures[0]


def test_thread_treatment_reaches_the_command(tmp_path: Path) -> None:
    import os

    seen: list[object] = []

    def command(arguments: list[str]) -> tuple[int, str, str]:
        seen.append(os.environ.get("TESSERA_THREADS"))
        return echo(arguments)

    run_file(make(tmp_path, TEXT, GOLDEN), command, same)
    assert seen == [None, None, "1", "8"]

    def search(arguments: list[str]) -> tuple[int, str, str]:
        seen.append(arguments[2:])
        return 0, "same\n", ""

    seen.clear()
    path = make(tmp_path, "// RUN: tessera search %s\n", "$ tessera search %s\nsame\n")
    assert run_file(path, search, same) == []
    assert seen == [[], [], ["--threads", "1"], ["--threads", "8"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph\n", "no RUN line"),
        ("// CHECK: x\n// RUN: tessera echo %s\n", "before the first RUN"),
        ("// RUN: tessera echo %s\n// CHEK: x\n", "unknown directive CHEK"),
        ("// RUN: tessera echo %s\n// CHECK:\n", "without a text"),
        ("// RUN: tessera echo %s\n// GOLDEN: none\n", "the reason"),
        ("// RUN: tessera echo %s\n// GOLDEN: none (slow)\n", "tests nothing"),
        ("// RUN: tessera echo %s\n// TREATMENTS: plain wet\n", "unknown treatment wet"),
        ("// RUN: rm -rf %s\n// CHECK: x\n", "only tessera"),
    ],
)
def test_malformed_tests_fail(tmp_path: Path, text: str, message: str) -> None:
    assert message in run_file(make(tmp_path, text, ""), echo, same)[0]


@pytest.mark.parametrize(
    ("directives", "message"),
    [
        ("// CHECK: nowhere", "no 'nowhere'"),
        ("// CHECK: two\n// CHECK: one", "no 'one' after line 2"),
        ("// CHECK: one\n// CHECK-NEXT: three", "line 2 is not 'three'"),
        ("// CHECK-NOT: two", "forbidden 'two'"),
        ("// EXIT: 1", "exit 0, not 1"),
        ("// ERROR: x", "no error 'x'"),
    ],
)
def test_wrong_output_fails(tmp_path: Path, directives: str, message: str) -> None:
    text = f"// RUN: tessera echo %s\n{directives}\n// GOLDEN: none (test)\n// CHECK: three\n"
    assert message in run_file(make(tmp_path, text + "one\ntwo\nthree\n"), echo, same)[0]


def test_expected_error_passes_and_an_unexpected_one_fails(tmp_path: Path) -> None:
    text = "// RUN: tessera echo %s\n// ERROR: a.ug:2:1: bad word\nbad\n"
    golden = "$ tessera echo %s\n[stderr]\na.ug:2:1: bad word\n[exit 65]\n"
    assert run_file(make(tmp_path, text, golden), echo, same) == []
    assert "exit 65" in run_file(make(tmp_path, TEXT + "bad\n", GOLDEN), echo, same)[0]


def test_parts_become_files(tmp_path: Path) -> None:
    text = "// RUN: tessera echo %{b.ug}\none\n//--- b.ug\ntwo\n"
    assert run_file(make(tmp_path, text, "$ tessera echo %{b.ug}\ntwo\n"), echo, same) == []


def test_an_empty_folder_fails(tmp_path: Path) -> None:
    assert texttest.main([str(tmp_path)]) == 1


def test_a_crash_is_the_failure_of_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import os

    good = make(tmp_path, TEXT, GOLDEN)
    (tmp_path / "crash.ug").write_text("// RUN: tessera echo %s\n// EXIT: 0\n")

    def command(arguments: list[str]) -> tuple[int, str, str]:
        if "crash" in arguments[1]:
            os._exit(1)
        return echo(arguments)

    monkeypatch.setattr(texttest, "tessera_command", command)
    monkeypatch.setattr(texttest, "tessera_reprint", same)
    assert texttest.main([str(tmp_path), "-j1"]) == 1
    output = capsys.readouterr().out
    assert "crash.ug: the process died" in output
    assert str(good) not in output
