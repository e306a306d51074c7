"""The closing line of `make test`: passed, failed, skipped, and why, from the runs' own records.

python tests/summary.py FOLDER   (*.xml of GoogleTest and pytest)
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path


def outcomes(folder: Path) -> Counter[tuple[str, str]]:
    """How often each outcome came, with the reason of what was skipped."""
    found: Counter[tuple[str, str]] = Counter()
    for path in folder.glob("*.xml"):
        for case in ET.parse(path).iter("testcase"):
            if case.get("status") == "notrun":  # another half's, or filtered out
                continue
            skip = case.find("skipped")
            if skip is not None:
                found["skipped", _reason(skip.get("message", ""))] += 1
            else:
                bad = case.find("failure") is not None or case.find("error") is not None
                found["failed" if bad else "passed", ""] += 1
    return found


def _reason(message: str) -> str:
    """Its last line, without the place that GoogleTest puts before it."""
    lines = [line for line in message.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def main() -> int:
    found = outcomes(Path(sys.argv[1]))
    total = {kind: sum(n for (k, _), n in found.items() if k == kind)
             for kind in ("passed", "failed", "skipped")}  # fmt: skip
    for (kind, reason), n in sorted(found.items()):
        if kind == "skipped":
            print(f"skipped {n}: {reason or 'WITHOUT A REASON'}")
    print(", ".join(f"{n:,} {kind}" for kind, n in total.items()))
    return int(total["failed"] > 0 or ("skipped", "") in found)


if __name__ == "__main__":
    sys.exit(main())
