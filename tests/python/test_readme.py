"""What the README and the docs show is what happens: their Python code runs as it stands, and
commands print what is printed below them."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench import picture

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
CODE = {page.name: blocks for page in PAGES if (blocks := BLOCK.findall(page.read_text()))}


@pytest.mark.parametrize("page", sorted(CODE))
def test_code_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page are one program, as a reader would type them one after the other."""
    if page == "torch.md":
        pytest.importorskip("torch")
    has_torch = importlib.util.find_spec("torch") is not None
    blocks = [b for b in CODE[page] if has_torch or "import torch" not in b]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "example.py"  # a file, because tracing may want to read its source
    file.write_text("\n".join(blocks))
    spec = importlib.util.spec_from_file_location("example", file)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_the_readme_has_code() -> None:
    assert "README.md" in CODE


def test_the_readme_is_short_and_its_picture_is_of_its_table() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 120
    table = picture.rows(readme)
    assert len(table) == 10
    assert picture.PICTURE.read_text() == picture.svg(table)


TRANSCRIPT = re.compile(
    r"^```\n\$ (?:\.venv/bin/)?tessera (.*?)\n(.*?)^```", re.MULTILINE | re.DOTALL
)
TRANSCRIPTS = [
    (page, *found)
    for page in PAGES
    for found in TRANSCRIPT.findall(page.read_text())
    if "examples/" in found[0]
]


def masked(line: str) -> str:
    """Without what differs from run to run: numbers and units of time."""
    return re.sub(r"[0-9.]+ (\N{MICRO SIGN}s|us|ms|s)\b", "# s", re.sub(r"[0-9.]+x", "#x", line))


@pytest.mark.parametrize(("page", "command", "shown"), TRANSCRIPTS)
def test_commands_print_what_is_shown(page: Path, command: str, shown: str, tmp_path: Path) -> None:
    words = [str(ROOT / w) if w.startswith("examples/") else w for w in shlex.split(command)]
    printed = subprocess.run(
        [sys.executable, "-m", "tessera", *words],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    lines = iter([masked(line) for line in printed.stdout.splitlines()])
    for line in shown.splitlines():
        assert line == "..." or masked(line) in lines, f"{page.name}: {line}\n{printed.stdout}"


def test_there_are_transcripts() -> None:
    assert TRANSCRIPTS
