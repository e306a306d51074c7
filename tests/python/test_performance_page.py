"""The tables of README and docs are what bench/results gives, number by number."""

from pathlib import Path

import pytest

from bench import page

PERFORMANCE = page.ROOT / "docs/performance.md"


@pytest.mark.parametrize("path", page.PAGES, ids=lambda path: path.name)
def test_tables_are_what_the_results_give(path: Path) -> None:
    lines = "\n".join(page.differences(path))
    assert not lines, f"{path.name} differs from bench/results: run `{page.COMMAND}`\n{lines}"


def test_a_table_of_every_kind_is_shown() -> None:
    text = PERFORMANCE.read_text()
    assert [n for n in page.TABLES if f"{page.MARK}/{n}.json" not in text] == []
    assert f"{page.MARK} -->" in (page.ROOT / "README.md").read_text()


def test_a_number_in_a_table_that_is_altered_is_seen(tmp_path: Path) -> None:
    text = PERFORMANCE.read_text()
    for number in ("3,332 / 3,661", "| 24.0 |", "load 0.71", "2026-11-22 on"):
        assert number in text
        altered = tmp_path / "altered.md"
        altered.write_text(text.replace(number, number.translate({ord("2"): "7", ord("7"): "2"})))
        assert page.differences(altered), number
        assert page.filled(altered.read_text()) == text


def test_what_stands_outside_the_marks_stays() -> None:
    text = "Ours are 1.23 times as fast.\n" + PERFORMANCE.read_text() + "\n| by hand | 5 |\n"
    assert page.filled(text) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{page.MARK}/mirage.json, 2026-11-22 -->\n", "end"),
        (f"{page.MARK}/mirage.json, soon -->\n<!-- end -->", "misspelt"),
        (f"{page.MARK}/mirage.json -->\n<!-- end -->", "must say when"),
        (f"{page.MARK}/nonsense.json -->\n<!-- end -->", "nonsense"),
    ],
)
def test_marks_that_mean_nothing_are_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        page.filled(text)
