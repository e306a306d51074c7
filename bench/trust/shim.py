"""Runs a campaign in a process with shim.cpp preloaded."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.trust.work import scratch

HERE = Path(__file__).resolve().parent


def preloaded(module: str, count: int, seed: int) -> dict[str, Any]:
    """What `module`.tries(count, seed) returns there."""
    with scratch() as folder:
        library = folder / "shim.so"
        subprocess.run(
            [os.environ.get("CXX", "g++"), "-O1", "-shared", "-fPIC", "-o", library,
             HERE / "shim.cpp", "-ldl"], check=True,
        )  # fmt: skip
        answer = folder / "answer.json"
        code = (f"import json, pathlib, {module} as m\n"
                f"row = m.tries({count}, {seed})\n"
                f"pathlib.Path({str(answer)!r}).write_text(json.dumps(row))\n")  # fmt: skip
        env = {**os.environ, "LD_PRELOAD": str(library)}
        subprocess.run([sys.executable, "-c", code], env=env, cwd=HERE.parents[1], check=True)
        row: dict[str, Any] = json.loads(answer.read_text())
        return row


def arm(write: int = -1, allocation: int = -1) -> None:
    """Which write to a file fails (and all after it), and which allocation of C++."""
    os.environ.pop("LD_PRELOAD", None)  # not for compilers
    function = ctypes.CDLL(None).trust_arm
    function.argtypes = [ctypes.c_long, ctypes.c_long]
    function(write, allocation)
