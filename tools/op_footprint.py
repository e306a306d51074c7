#!/usr/bin/env python3
"""Print how many non-test source files name each operator of src/ir/ops.def (aim: at most 8).

The number tells how adding an operator will feel. Files are listed with --files.
"""

import re
import sys
from pathlib import Path

AIM = 8
ROW = re.compile(r"^\s*[A-Z][A-Z0-9_]*\(\s*(\w+)\s*,", re.MULTILINE)
FOLDERS = ("src", "include", "python", "tools")
SUFFIXES = {".h", ".cpp", ".def", ".py"}


def footprints(root: Path) -> dict[str, list[Path]]:
    """For each operator of ops.def the source files that name it, ops.def included."""
    ops = ROW.findall((root / "src/ir/ops.def").read_text())
    texts = {
        p.relative_to(root): p.read_text()
        for folder in FOLDERS
        for p in sorted((root / folder).rglob("*"))
        if p.suffix in SUFFIXES
    }
    result: dict[str, list[Path]] = {}
    for op in ops:
        named = re.compile(rf"(?:\bOpKind::|\bOp::|^\s*[A-Z_0-9]+\(\s*){op}\b", re.MULTILINE)
        result[op] = [path for path, text in texts.items() if named.search(text)]
    return result


def main(argv: list[str]) -> int:
    root = Path(__file__).resolve().parents[1]
    counted = footprints(root)
    for op, files in sorted(counted.items(), key=lambda item: (-len(item[1]), item[0])):
        print(f"{len(files):3} {op}" + ("  over the aim" if len(files) > AIM else ""))
        if "--files" in argv:
            for path in files:
                print(f"      {path}")
    counts = [len(files) for files in counted.values()]
    mean = sum(counts) / len(counts)
    print(f"op_footprint: {len(counts)} operators, mean {mean:.1f}, largest {max(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
