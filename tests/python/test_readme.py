"""The Python code of the README and the docs runs as it stands, so it cannot rot."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = [(page, code) for page in PAGES for code in BLOCK.findall(page.read_text())]


@pytest.mark.parametrize(("page", "code"), CODE, ids=lambda v: getattr(v, "name", "code"))
def test_code_runs(page: Path, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block is a module of its own: tracing may want its source, so it lies in a file."""
    import importlib.util

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TESSERA_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "example.py"
    file.write_text(code)
    spec = importlib.util.spec_from_file_location("example", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.pop("example", None)
    spec.loader.exec_module(module)


def test_readme_has_code() -> None:
    assert any(page.name == "README.md" for page, _ in CODE)
