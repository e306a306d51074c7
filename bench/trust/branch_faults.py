"""Faults that decide otherwise at rare inputs that are known, planted in random programs: none may
be called equal (docs/verifier.md). Laws of branches are asked about beside them; one that is not
proved is no finding."""

from __future__ import annotations

from collections import Counter
from typing import Any

from bench import _bench
from bench.trust.work import sorted_counts


def run(count: int, seed: int) -> dict[str, Any]:
    """`count` faults and as many laws."""
    rows, interrupted = _bench.bench_verify(0, 0, seed=seed, branches=count)
    if interrupted:
        raise KeyboardInterrupt
    faults, laws = ({r["name"]: r for r in rows}[name] for name in ("branch_faults", "branch_laws"))
    fates = Counter[str]()
    for row in (faults, laws):
        for verdict in ("accepted", "refuted", "unknown"):
            fates[f"{row['name'].removeprefix('branch_')}: {verdict}"] = row[verdict]
    findings = [
        f"{kind}: {fates['equal']} of {fates['count']} called equal"
        for kind, fates in faults["kinds"].items()
        if fates["equal"]
    ]
    return {
        "tried": faults["count"], "found": faults["accepted"],
        "survived": faults["count"] - faults["accepted"],
        "details": {**sorted_counts(fates), "findings": findings},
    }  # fmt: skip
