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
    "mirage cuda": (
        "case",
        "batch",
        "dtype",
        "cache",
        "ours_us",
        "best_peer",
        "speedup_vs_best",
        "limit_us",
        "of_limit",
        "limit_by",
        "peer_of_limit",
        "launch_us",
        "max_rel_err",
        "verdict",
    ),
    "mirage emulated": (
        "case",
        "batch",
        "dtype",
        "compiled_for",
        "kernels",
        "registers",
        "spills",
        "smem_bytes",
        "max_rel_err",
        "verdict",
    ),
    "onnx": ("case", "count", "passed", "skipped", "rewritten", "failures", "seconds"),
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
    "pet": (
        "case",
        "batch",
        "threads",
        "ours_us",
        "original_us",
        "peers",
        "speedup_vs_best",
        "rewrites_alone",
        "max_rel_err",
        "search_s",
        "verdict",
    ),
    "models": (
        "case",
        "phase",
        "batch",
        "dtype",
        "threads",
        "ours_us",
        "peers",
        "speedup_vs_compiled",
        "speedup_vs_best",
        "engines",
        "errors",
        "compile_s",
        "compile_cached_s",
        "memory_mb",
    ),
    "plus": (
        "case",
        "batch",
        "ours_us",
        "peers",
        "speedup_vs_inductor",
        "speedup_vs_best",
        "ops",
        "kernels",
        "paper",
        "compile_s",
        "compile_cached_s",
        "memory_mb",
        "errors",
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
    suite = rows[0]["suite"]
    if "gpu" in rows[0]:
        suite += " cuda"
    elif "compiled_for" in rows[0]:
        suite += " emulated"
    plain = (
        c for c, value in rows[0].items() if c != "suite" and not isinstance(value, dict | list)
    )
    columns = COLUMNS.get(suite) or tuple(plain)
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(row.get(c)) for c in columns) + " |" for row in rows]
    return "\n".join(lines)


def model(rows: list[dict[str, Any]]) -> str:
    """What a GPU's rows say about the cost model, and its factors for a file in targets/."""
    found: dict[str, Any] = max(
        (m for r in rows if (m := r.get("model"))), key=lambda m: m["programs"], default={}
    )
    if not found:
        return ""
    plain = f"rank correlation {found['rank']:.2f}, error {found['error']:.0%}"
    fitted = f"{found['fitted_rank']:.2f} and {found['fitted_error']:.0%}"
    used = "used" if found["used"] else "not used"
    programs = f"Cost model over {found['programs']} programs"
    lines = [f"{programs}: {plain}; fitted {fitted} ({used}):", ""]
    lines += [f"    scale {name} {factor:.3g}" for name, factor in found["scales"].items()]
    return "\n".join([*lines, "", ""])


def by_machine(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each GPU, or of the processor, by what they were measured on."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if gpu := row.get("gpu"):
            where = f"{gpu['device']}, driver {gpu.get('driver')}, torch {gpu.get('torch')}"
        else:
            machine = rows[0].get("machine", {})
            where = f"{machine.get('processor', '')}, {machine.get('threads', '?')} threads"
        groups.setdefault(where, []).append(row)
    return groups


def main() -> None:
    files = [Path(a) for a in sys.argv[1:]]
    for file in files or sorted(Path(__file__).parent.glob("results/*.json")):
        rows = json.loads(file.read_text())
        if not rows:
            continue
        print(f"## {file.stem}\n")
        for where, some in by_machine(rows).items():
            print(f"{where}\n\n{table(some)}\n\n{model(some)}", end="")


if __name__ == "__main__":
    main()
