"""What operations cost on this machine, by library: measured once, kept in the cache.

The search chooses among equal programs by these times before any of them runs (`cost="measured"`,
src/search/synth/rates.h). NumPy and JAX take a second or two to measure, and are measured when they
are first needed and the machine has nothing else to do; PyTorch compiles for half a minute, so only
`tessera doctor --calibrate` measures it. Until then, and without a library, the built-in figures
hold.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
from functools import cache
from pathlib import Path

import numpy as np

from tessera import _core
from tessera.cache_folder import cache_directory, kept_json
from tessera.frameworks import FRAMEWORKS
from tessera.machine import processor_facts
from tessera.race import Entrant, least_on_one_thread
from tessera.race_processes import LostError
from tessera.types import Record

# Kinds of operations, as the core names them, each with the programs that stand for it: `m` is the
# library, `x`, `y` matrices and `v` a vector, f32. Work is elements, of products multiplications.
_PROGRAMS: dict[str, str] = {
    "simple": "x + y",
    "square": "x * x",
    "compare": "x < y",
    "select": "m.where(x < 0.5, x, y)",  # less what the comparison takes
    "exponential": "m.exp(x)",
    "trigonometric": "m.tanh(x)",
    "power": "x ** 2.7",
    "reduce_last": "x.sum(1)",
    "reduce_other": "x.sum(0)",
    "matrix_vector": "x @ v",
    "matrix_product": "x @ y",
    "stack": "m.stack([x, y])",
    "triangle": "m.triu(x)",
}
_SIDES = (12, 200, 1000)  # of the matrices: shape classes of calls, of caches, of memory
_LARGEST_PRODUCT = 400
_SECONDS = 0.004  # for one kind and size, and at least three runs
LIBRARIES = tuple(flavour for flavour in FRAMEWORKS if importlib.util.find_spec(flavour))
_WHEN_NEEDED = ("numpy", "jax")  # cheap enough to measure without being asked
_FUSED = ("jax", "torch")

Curves = dict[str, list[tuple[float, float]]]
CostsOf = tuple[str, str, str]  # a library, its version and the machine


def fields(cost: str, flavour: str) -> Record:
    """What the core is told of costs: its options `cost` and `costs`.

    `cost` is "flops", or "measured": as measured for the library of `flavour`, where that was done
    or is quickly done, else as built in.
    """
    if cost == "flops":
        return {"cost": "flops", "costs": {}}
    return {"cost": "fused" if flavour in _FUSED else "times", "costs": measured(flavour)}


def measured(flavour: str) -> Curves:
    """Nanoseconds by kind of operation and work; empty where nothing was measured."""
    curves = _remembered(cache_directory(), _of(flavour))
    if not curves and flavour in _WHEN_NEEDED and flavour in LIBRARIES and not busy():
        with contextlib.suppress(LostError, OSError):  # no process: what is built in
            curves = calibrate(flavour)
    return curves


def busy() -> bool:
    """Whether other work would be measured too: what is kept has to hold for long."""
    return os.getloadavg()[0] > 0.75 * (os.cpu_count() or 1)


@cache
def _remembered(folder: Path, of: CostsOf) -> Curves:
    """What was kept in the cache folder; nothing where that is damaged."""
    try:
        known = (kept_json(_key(of)) or {}).items()
        return {kind: [(float(work), float(ns)) for work, ns in curve] for kind, curve in known}
    except (AttributeError, TypeError, ValueError):
        return {}


def _key(of: CostsOf) -> str:
    return hashlib.sha256(f"costs {of}".encode()).hexdigest()


def calibrate(flavour: str) -> Curves:
    """Measures the operations of a library, and keeps the times."""
    curves = measure(flavour)
    _core.store_text(_key(_of(flavour)), json.dumps(curves))
    _remembered.cache_clear()
    return curves


def measure(flavour: str, sides: tuple[int, ...] = _SIDES) -> Curves:
    """Times of every kind of operation at these sizes, by the library's clock alone.

    In a process of its own and on one thread: what threads wait for each other on a machine that
    has other work is a thousand times what the operations take.
    """
    curves: Curves = {}
    for name, expression in _PROGRAMS.items():
        if name == "square" and flavour == "numpy":
            expression = "m.square(x)"  # how source says it where that is faster
        curve: list[tuple[float, float]] = []
        for side in sides:
            if name == "matrix_product":
                side = min(side, _LARGEST_PRODUCT)
            work = float(side**3 if name == "matrix_product" else side**2)
            ns = _nanoseconds(flavour, expression, side)
            if not curve or work > curve[-1][0]:
                curve.append((work, ns))
        curves[name] = curve
    pairs = zip(curves["select"], curves["compare"], strict=True)
    curves["select"] = [(work, max(ns - less, 0.0)) for (work, ns), (_, less) in pairs]
    return curves


def _nanoseconds(flavour: str, expression: str, side: int) -> float:
    rng = np.random.default_rng(0)
    arrays = [rng.random(shape, np.float32) for shape in ((side, side), (side, side), (side,))]
    module = {"numpy": "numpy", "jax": "jax.numpy", "torch": "torch"}[flavour]
    source = f"import {module} as m\n\n\ndef f(x, y, v):\n    return {expression}\n"
    entrant = Entrant(None, flavour, {"source": source, "name": "f"})
    return least_on_one_thread(entrant, arrays, _SECONDS) * 1e9  # more was somebody else's


def is_known(flavour: str) -> bool:
    """Whether the costs of a library were measured here."""
    return bool(_remembered(cache_directory(), _of(flavour)))


def _of(flavour: str) -> CostsOf:
    """The library, its version and how it was measured, and where."""
    known = flavour in LIBRARIES
    version = f"{importlib.metadata.version(flavour)}, one thread, least" if known else ""
    return flavour, version, _machine()


@cache
def _machine() -> str:
    """The processor and how many of it."""
    known, model = processor_facts(), platform.processor() or platform.machine()
    parts = (known.get("model name", model), known.get("model", ""), f"x{os.cpu_count()}")
    return " ".join(p for p in parts if p)
