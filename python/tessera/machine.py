"""What figures were measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import numpy as np

from tessera import _core
from tessera.types import Record


def processor_facts() -> dict[str, str]:
    """What Linux says of a processor, such as its "model name"; nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    return {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}


def machine_description() -> Record:
    """What the figures were measured on."""
    facts = _core.machine()
    return {
        "processor": processor_facts().get("model name") or platform.processor(),
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
