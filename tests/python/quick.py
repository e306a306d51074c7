"""Options of tests that want the program's own compiled code, and no search for a faster one."""

from __future__ import annotations

from typing import Any

UNSEARCHED = ("synth", "mugraph", "patterns", "mutate", "cover", "fold")
QUICK: dict[str, Any] = {"budget": 60, "disable": UNSEARCHED}
