"""Prints the results in bench/results as Markdown tables: `python bench/table.py [FILE…]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = {
    "mirage": (
        "case",
        "batch",
        "dtype",
        "threads",
        "cache",
        "ours_us",
        "original_us",
        "best_peer",
        "speedup_vs_best",
        "limit_us",
        "max_rel_err",
        "verdict",
    ),
    "search": ("case", "max_block_ops", "search_s", "values", "edges", "graphs", "tilings"),
    "verify": (
        "case",
        "count",
        "accepted",
        "missed",
        "refuted",
        "unknown",
        "harmless",
        "undecided",
        "seconds",
    ),
}


def cell(value: Any) -> str:
    """A value for a reader."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {cell(v)}" for k, v in value.items())
    return str(value)


def table(rows: list[dict[str, Any]]) -> str:
    """One Markdown table for the rows of one suite."""
    columns = COLUMNS[rows[0]["suite"]]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(row.get(c)) for c in columns) + " |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    files = [Path(a) for a in sys.argv[1:]]
    for file in files or sorted(Path(__file__).parent.glob("results/*.json")):
        rows = json.loads(file.read_text())
        if not rows:
            continue
        machine = rows[0].get("machine", {})
        threads = machine.get("threads", "?")
        print(f"## {file.stem}\n\n{machine.get('processor', '')}, {threads} threads\n")
        print(table(rows) + "\n")


if __name__ == "__main__":
    main()
