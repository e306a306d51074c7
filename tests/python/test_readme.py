"""The Python code of the README and the docs runs as it stands, so it cannot rot."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
CODE = {page.name: blocks for page in PAGES if (blocks := BLOCK.findall(page.read_text()))}


@pytest.mark.parametrize("page", sorted(CODE))
def test_code_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page are one program, as a reader would type them one after the other."""
    if page == "torch.md":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "example.py"  # a file, because tracing may want to read its source
    file.write_text("\n".join(CODE[page]))
    spec = importlib.util.spec_from_file_location("example", file)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_the_readme_has_code() -> None:
    assert "README.md" in CODE
