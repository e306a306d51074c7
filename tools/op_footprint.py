#!/usr/bin/env python3
"""Print which source files name each operator of src/ir/ops.def (the goal: 12 in the mean)."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\s*[A-Z][A-Z0-9_]*\(\s*(\w+)\s*,", re.MULTILINE)
FOLDERS, SUFFIXES = ("src", "include", "python", "tools"), {".h", ".cpp", ".def", ".py"}


def footprints(root: Path = ROOT) -> dict[str, list[Path]]:
    """For each operator of ops.def the source files that name it, ops.def included."""
    files = [p for f in FOLDERS for p in (root / f).rglob("*") if p.suffix in SUFFIXES]
    texts = {p.relative_to(root): p.read_text() for p in sorted(files)}
    result = {}
    for op in ROW.findall((root / "src/ir/ops.def").read_text()):
        named = re.compile(rf"(?:\bOpKind::|\bOp::|^\s*[A-Z_0-9]+\(\s*){op}\b", re.MULTILINE)
        result[op] = [path for path, text in texts.items() if named.search(text)]
    return result


if __name__ == "__main__":
    counted = sorted(footprints().items(), key=lambda item: -len(item[1]))
    for op, files in counted:
        print(len(files), op, *files)
    mean = sum(len(files) for _, files in counted) / len(counted)
    print(f"op_footprint: mean {mean:.1f}, largest {len(counted[0][1])}")
