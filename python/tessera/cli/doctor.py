"""`tessera doctor`: what this machine has, what is missing, and how fast it is."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys

import click
import numpy as np

from tessera import _core, costs
from tessera.calibrate import calibrate, calibrated_path
from tessera.cli import common
from tessera.compilers import find_compiler
from tessera.cuda import find_libraries
from tessera.options import Options
from tessera.types import Record


@click.command()
@click.option("--calibrate", "run_calibration", is_flag=True,
              help="Measure bandwidths, rates and libraries, and use them.")  # fmt: skip
@click.option("--target", metavar="NAME",
              help="Show another machine instead: a100, h200, … or a .target file.")  # fmt: skip
@common.json_option
def doctor(run_calibration: bool, target: str | None, as_json: bool) -> int:
    """Check the machine: compiler, instruction set, cache, packages, speed.

    \b
    Examples:
      tessera doctor
      tessera doctor --calibrate        measure this machine; `--target cpu` then uses it
      tessera doctor --target h200      what that description says

    Exit code 0 when everything needed is there, 1 otherwise.
    """
    if target is not None:
        return _describe(target, as_json)
    text = calibrate() if run_calibration else _core.resolve_target(Options().fields())
    for library in costs.LIBRARIES if run_calibration else ():
        costs.calibrate(library)
    checks = examine()
    ok = all(c["ok"] for c in checks if c["needed"])
    if as_json:
        common.print_json({"ok": ok, "checks": checks, "target": text})
        return 0 if ok else 1
    console = common.stdout()
    for c in checks:
        mark = "[green]ok[/]  " if c["ok"] else "[red]no[/]  " if c["needed"] else "[dim]--[/]  "
        console.print(f"{mark}{c['what']:<22} ", end="")
        console.print(c["found"], markup=False)
    console.print("\ntarget description in use:")
    console.print(text.rstrip(), markup=False)
    return 0 if ok else 1


def _describe(target: str, as_json: bool) -> int:
    fields = Options(target=target).fields()
    text, summary = _core.resolve_target(fields), _core.target_summary(fields)
    if as_json:
        common.print_json({"target": text, "summary": summary})
    else:
        console = common.stdout()
        console.print(summary, markup=False)
        console.print(text.rstrip(), markup=False)
    return 0


def _row(what: str, ok: bool, found: str, needed: bool = True) -> Record:
    return {"what": what, "ok": ok, "found": found, "needed": needed}


def examine() -> list[Record]:
    """One row per thing that Tessera uses."""
    find_compiler()
    machine = _core.machine()
    cache = machine["cache_directory"]
    problem = machine["cache_problem"]
    free = shutil.disk_usage(cache).free if os.path.isdir(cache) else 0
    rows = [
        _row("tessera", True, f"{_core.version}, Python {platform.python_version()}, "
                              f"NumPy {np.__version__}"),
        _row("processor", True, f"{machine['isa']} ({', '.join(machine['runnable'])} run), "
                                f"{machine['threads']} thread(s), last-level cache "
                                f"{machine['last_level_cache_bytes'] / 2**20:.0f} MiB"),
        _row("C++ compiler", machine["compiler"] is not None,
             f"{machine['compiler']}: {machine['compiler_version']}" if machine["compiler"]
             else machine["compiler_version"]),
        _row("cache folder", not problem, problem or cache),
        _row("free disk", free > 100 * 2**20, f"{free / 2**30:.1f} GiB"),
        _row("calibrated", calibrated_path().exists(),
             str(calibrated_path()) if calibrated_path().exists()
             else "run tessera doctor --calibrate", needed=False),
    ]  # fmt: skip
    onednn = machine["onednn"]
    rows.append(_row("oneDNN", bool(onednn), f"version {onednn}" if onednn
                     else machine["onednn_problem"], needed=False))  # fmt: skip
    for package in ("torch", "jax", "onnx"):
        found = importlib.util.find_spec(package) is not None
        rows.append(_row(package, found, "found" if found else "not installed (optional)", False))
    known = [library for library in costs.LIBRARIES if costs.is_known(library)]
    rows.append(_row("costs of operations", bool(known), f"measured: {', '.join(known)}" if known
                     else "measured when first needed, or by --calibrate", False))  # fmt: skip
    rows += _cuda_rows()
    rows.append(_row("platform", sys.platform == "linux", platform.platform()))
    return rows


def _cuda_rows() -> list[Record]:
    """What of CUDA is here; nothing of it is needed."""
    find_libraries()
    found = _core.cuda_machine()
    devices = [
        f"cuda:{d['ordinal']} {d['name']} ({d['arch']}, {d['multiprocessors']} multiprocessors, "
        f"{d['memory_bytes'] / 2**30:.0f} GiB, {d['shared_bytes'] / 1024:.0f} KiB of shared memory "
        "a block)"
        for d in found["devices"]
    ]
    driver = f"for CUDA {found['driver']}" if found["driver"] else found["driver_problem"]
    rows = [
        _row("CUDA driver", found["driver"] is not None, driver, False),
        _row("CUDA devices", bool(devices), "; ".join(devices) or "none", False),
    ]
    for name in ("NVRTC", "cuBLASLt", "cuDNN"):
        version, problem = found[name.lower()], found[f"{name.lower()}_problem"]
        rows.append(_row(name, not problem, problem or f"version {version}", False))
    return rows
