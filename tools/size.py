#!/usr/bin/env python3
"""Keep the code small: soft 500 and hard 1000 lines per file, and a budget for the whole product.

Over the soft limit is printed; over the hard limit or the budget is exit code 1. A budget is
raised on purpose, in the commit that needs it, never by accident.
"""

import sys
from pathlib import Path

SOFT, HARD = 500, 1000
BUDGET = 137_996  # lines of product: src, include, python, tools
PRODUCT = ("src", "include", "python", "tools")
REST = ("tests", "bench", "examples")
SUFFIXES = {".h", ".cpp", ".def", ".inc", ".py", ".pyi", ".sh", ".cu", ".cuh"}


def lines_by_file(root: Path, folders: tuple[str, ...]) -> dict[Path, int]:
    """Number of lines of every source file below the given folders."""
    files = (p for folder in folders for p in (root / folder).rglob("*") if p.suffix in SUFFIXES)
    return {p.relative_to(root): len(p.read_text().splitlines()) for p in sorted(files)}


def main(argv: list[str]) -> int:
    root = Path(argv[1]) if len(argv) > 1 else Path(__file__).resolve().parents[1]
    product, rest = lines_by_file(root, PRODUCT), lines_by_file(root, REST)
    failed = False
    for path, lines in sorted((product | rest).items(), key=lambda item: -item[1]):
        if lines > HARD:
            print(f"{path}: {lines} lines, the hard limit is {HARD}: split it by concept")
            failed = True
        elif lines > SOFT:
            print(f"{path}: {lines} lines, over the soft limit of {SOFT}")
    total = sum(product.values())
    if total > BUDGET:
        print(f"the product has {total} lines, the budget is {BUDGET}")
        failed = True
    print(f"size: {total} of {BUDGET} lines of product, {sum(rest.values())} of tests and examples")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
