"""What figures were measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import numpy as np

from tessera import _core
from tessera.types import Record


def machine_description() -> Record:
    """What the figures were measured on."""
    facts = _core.machine()
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else ""
    return {
        "processor": model or platform.processor(),
        "isa": facts["isa"],
        "threads": facts["threads"],
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "compiler": facts["compiler_version"],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tessera": _core.version,
    }
