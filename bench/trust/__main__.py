"""Runs the campaigns: `python -m bench.trust [--long] [--only NAME] [--seed N]` (make trust).

Writes bench/results/trust.json: what each tried, found and survived, when, and on what machine.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import sys
import time
from pathlib import Path

import tessera
from tessera import _core

# Of a campaign: its module, which has run(count, seed) -> {tried, found, survived, details}, and
# how many it tries in minutes and in hours.
CAMPAIGNS: dict[str, tuple[str, int, int]] = {
    "cache faults": ("bench.trust.cache_faults", 300, 10_000),
    "kills": ("bench.trust.kills", 25, 500),
    "crowds": ("bench.trust.crowds", 4, 40),
    "failing writes": ("bench.trust.failing_writes", 30, 600),
    "failing allocations": ("bench.trust.failing_allocations", 200, 3000),
    "hostile files": ("bench.trust.hostile_files", 300, 10_000),
    "branch faults": ("bench.trust.branch_faults", 440, 10_000),
    "NumPy state": ("bench.trust.numpy_state", 500, 20_000),
}
RESULTS = Path(__file__).resolve().parents[1] / "results" / "trust.json"


def machine() -> dict[str, object]:
    """What the campaigns ran on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(), "cores": os.cpu_count(),
        "isa": _core.machine()["isa"],
        "system": platform.platform(), "python": platform.python_version(),
        "compiler": _core.machine()["compiler_version"], "tessera": tessera.__version__,
        "verifier": _core.verifier_version,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.trust", description=__doc__)
    parser.add_argument("--long", action="store_true", help="hours instead of minutes")
    parser.add_argument("--only", choices=CAMPAIGNS, action="append")
    parser.add_argument("--count", type=int, help="of each, instead of the usual")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    known = json.loads(options.json.read_text()) if options.json.exists() else {}
    rows = known.get("campaigns", {})
    found = 0
    print(f"{'campaign':22}{'tried':>8}{'found':>8}{'survived':>10}{'seconds':>9}")
    for name in options.only or CAMPAIGNS:
        module, short, long = CAMPAIGNS[name]
        count = options.count or (long if options.long else short)
        start = time.monotonic()
        row = importlib.import_module(module).run(count, options.seed)
        row |= {"seconds": round(time.monotonic() - start), "seed": options.seed,
                "date": datetime.date.today().isoformat(), "machine": machine()}  # fmt: skip
        rows[name] = row
        found += row["found"]
        print(f"{name:22}{row['tried']:8}{row['found']:8}{row['survived']:10}{row['seconds']:9}")
        for text in row["details"].get("findings", []):
            print(f"    {text}")
        options.json.write_text(json.dumps({"campaigns": rows}, indent=1) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
