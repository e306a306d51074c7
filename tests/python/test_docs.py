"""What the docs list is what the code has: environment variables, folders, links, the stub."""

import ast
import re
from pathlib import Path

import pytest

from tessera import _core
from tessera.graph import Graph

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
PAGES = [p for p in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if p.is_file()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_tour_visits_every_folder() -> None:
    tour = (ROOT / "docs/tour.md").read_text()
    for folder in (ROOT / "src").iterdir():
        assert f"`src/{folder.name}/`" in tour, f"docs/tour.md says nothing about src/{folder.name}"


def test_environment_variables_are_all_listed_and_all_exist() -> None:
    listed = set(re.findall(r"^\| `(TESSERA_\w+)`", (ROOT / "docs/env_vars.md").read_text(), re.M))
    used = set()
    for folder in ("src", "python/tessera"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".cpp", ".h", ".py"):
                used |= set(re.findall(r'"(TESSERA_[A-Z0-9_]+)"', path.read_text()))
    assert listed == used


def test_the_stub_names_what_the_extension_has() -> None:
    tree = ast.parse((ROOT / "python/tessera/_core.pyi").read_text())
    for node in [n for n in tree.body if isinstance(n, ast.ClassDef)]:
        methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
        methods |= {
            n.target.id
            for n in node.body
            if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
        }
        real = {n for n in vars(getattr(_core, node.name)) if not n.startswith("_")}
        assert {m for m in methods if not m.startswith("_")} == real, node.name
    stub = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    stub = {name for name in stub if not name.startswith("_")}
    real = {
        n for n in vars(_core) if not n.startswith("_") and n not in ("version", "verifier_version")
    }
    assert stub == real


def test_the_site_has_every_page() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    docs = ROOT / "docs"
    assert listed == {
        str(p.relative_to(docs)) for p in [*docs.glob("*.md"), *docs.glob("papers/*.md")]
    }


UG = (ROOT / "docs/ug.md").read_text()


def test_the_text_format_is_as_described() -> None:
    programs = re.findall(r"```ug\n(.*?)```", UG, re.S)
    assert len(programs) == 2
    for text in programs:
        graph = Graph.parse(text)
        assert str(Graph.parse(str(graph))) == str(graph)


def test_every_operator_is_described_with_its_attributes() -> None:
    table = (ROOT / "src/ir/ops.def").read_text()
    for name, attributes in re.findall(r'\(\w+, +"(\w+)", .*?(\w+Attrs)', table):
        row = next((r for r in UG.splitlines() if re.match(rf"\| .*`{name}[ `]", r)), "")
        assert row, f"docs/ug.md does not describe {name}"
        body = (ROOT / "src/ir/op.h").read_text().split(f"struct {attributes} {{")[1]
        for field in re.findall(r'f\("(\w+)"', body.split("TESSERA_EQUAL")[0]):
            assert f"{field}=" in row or f"`{field}`" in row, f"{name}: {field}"
