#!/usr/bin/env python3
"""Write the list of rules that ship into docs/rules.md, below the line that says so."""

import sys
from pathlib import Path

MARK = "<!-- what follows is written by tools/rules_page.py -->\n"


def blocks(path: Path) -> list[list[str]]:
    """The rules of a file, each as its lines."""
    found: list[list[str]] = []
    for line in path.read_text().splitlines():
        if line.startswith("rule "):
            found.append([line[5:]])
        elif line.startswith("  ") and found:
            found[-1].append(line.strip())
    return found


def page(root: Path) -> str:
    """The page as it should be."""
    text = (root / "docs" / "rules.md").read_text().split(MARK)[0] + MARK
    for path in sorted((root / "rules").glob("*.rules")):
        title = path.stem.replace("_", " ")
        text += f"\n## {title.capitalize()}\n\n"
        text += f"`rules/{path.name}`, {len(blocks(path))} rules.\n\n"
        text += "| rule | shapes | says | under | from |\n|---|---|---|---|---|\n"
        for name, *lines in blocks(path):
            equation = next(i for i, line in enumerate(lines) if " = " in line)
            shapes, said = " ".join(lines[:equation]), lines[equation]
            under = "; ".join(x for x in lines if x.startswith(("assumes ", "where ")))
            learned = next((x[8:] for x in lines if x.startswith("learned ")), "")
            source = learned.removeprefix("from ").replace("as stated in textbooks", "textbooks")
            text += f"| {name} | {shapes} | `{said}` | {under} | {source} |\n"
    return text


def main(argv: list[str]) -> int:
    root = Path(argv[1]) if len(argv) > 1 else Path(__file__).resolve().parents[1]
    (root / "docs" / "rules.md").write_text(page(root))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
