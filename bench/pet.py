"""The suite pet: whole models, as PET measured them, against what people run them with.

Contestants have processes of their own and take turns (race.py); "tessera-norewrite" is our back
end on the program as imported, which isolates what the search gains: a row's "rewrites_alone" has
that ratio with all of the back end's transforms (Winograd), with those alone that libraries have
too ("common": undilated square windows of images, as PET's had), and with none. --disable
plan:transforms makes rows of their own.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench import pet_models
from bench.race import Late, Process
from tessera.errors import UsageError
from tessera.options import Options

Row = dict[str, Any]
NEEDS = {"ort": "onnxruntime", "torch": "torch", "inductor": "torch", "openvino": "openvino"}
_QUICK = ("csrnet14",)
OURS = ("tessera", "tessera-norewrite")
# Transforms that the back end may choose, by what is switched off.
TRANSFORMS = {"all": (), "common": ("plan:rare-transforms",), "none": ("plan:transforms",)}


def cases(case: str | None, batch: int | None, quick: bool) -> list[tuple[str, int]]:
    """Models and batches; raises UsageError for a name that is none."""
    names = [case] if case else list(_QUICK if quick else pet_models.MODELS)
    for name in names:
        if name not in pet_models.MODELS:
            raise UsageError(
                f"--case: '{name}' is not one of {', '.join(sorted(pet_models.MODELS))}"
            )
    batches = (batch,) if batch else (1,) if quick else (1, 16)
    return [(n, b) for n in names for b in batches]


def key(row: Row) -> tuple[Any, ...]:
    """What tells a row from others: what was measured, and how."""
    return row["case"], row["batch"], row["threads"], tuple(row.get("disabled", ()))


def run(
    options: Options,
    case: str | None,
    batch: int | None,
    quick: bool,
    tell: Callable[[str], None],
    limit_s: float,
    peers: Collection[str] | None = None,
    known: Collection[tuple[Any, ...]] = (),
) -> Iterator[Row]:
    """A row for each model, batch and number of threads, less those that are known.

    `peers`: which of them take part; None: all that are installed.
    """
    for module in ("torch", "onnx"):
        if importlib.util.find_spec(module) is None:
            raise UsageError(f"bench pet builds its models with {module}; try pip install {module}")
    most = options.threads or len(os.sched_getaffinity(0))
    for name in peers or ():
        if name not in NEEDS:
            raise UsageError(f"--peers: '{name}' is not one of {', '.join(NEEDS)}")
    counts = sorted({1, most}) if options.threads == 0 else [most]
    off = tuple(sorted(options.disable))
    found = [n for n, m in NEEDS.items() if importlib.util.find_spec(m) is not None]
    found = [n for n in found if peers is None or n in peers]
    modes = ["all"] if quick or off else list(TRANSFORMS)
    for name, size in cases(case, batch, quick):
        wanted = [t for t in counts if (name, size, t, off) not in known]
        if not wanted:
            continue
        with tempfile.TemporaryDirectory(prefix="tessera-pet-") as folder:
            tell(f"pet: {name}, batch {size}: exporting")
            _write(name, size, Path(folder))
            for threads in wanted:
                row = _race(name, size, threads, options, folder, tell, 2.0 if quick else 10.0,
                            limit_s, modes, found)  # fmt: skip
                yield row | ({"disabled": list(off)} if off else {})


def _write(name: str, batch: int, folder: Path) -> None:
    import torch

    pet_models.export(name, batch, folder / "model.onnx")
    x = pet_models.example(name, batch)
    np.save(folder / "x.npy", x.numpy())
    with torch.no_grad():
        np.save(folder / "exact.npy", pet_models.build(name).double()(x.double()).numpy())


def _race(
    name: str,
    batch: int,
    threads: int,
    options: Options,
    folder: str,
    tell: Callable[[str], None],
    seconds: float,
    limit_s: float,
    modes: list[str],
    found: list[str],
) -> Row:
    processes: dict[str, Process] = {}
    errors: dict[str, float] = {}
    notes: dict[str, str] = {}
    facts: dict[str, Row] = {}
    ours = [f"{n}{'' if m == 'all' else ':' + m}" for m in modes for n in OURS]
    try:
        for contestant in (*ours, *found):
            tell(f"pet: {name}, batch {batch}, {threads} thread(s): {contestant}")
            process = processes[contestant] = Process(threads, "bench.pet_worker")
            try:
                answer = process.ask(
                    limit_s, do="prepare", name=contestant, case=name, folder=folder,
                    options=dataclasses.asdict(options),
                )  # fmt: skip
            except Late as late:
                answer = {"failed": str(late)}
            if "failed" in answer:
                notes[contestant] = answer["failed"]
                processes.pop(contestant).close()
                continue
            errors[contestant] = answer["error"]
            facts[contestant] = answer["facts"]
        times = _take_turns(processes, seconds)
    finally:
        for process in processes.values():
            process.close()
    least = {n: min(t) for n, t in times.items()}
    peers = {n: s * 1e6 for n, s in least.items() if n not in ours}
    best = least.get("tessera")
    row: Row = {
        "suite": "pet", "case": name, "shape": {"x": list(pet_models.MODELS[name].shape(batch))},
        "dtype": "f32", "target": options.target, "threads": threads, "batch": batch,
        "ours_us": best and best * 1e6,
        "original_us": least.get("tessera-norewrite", 0) * 1e6 or None,
        "peers": peers,
        "speedup_vs_best": min(peers.values()) / 1e6 / best if best and peers else None,
        "rewrites_alone": {m: alone for m in modes if (alone := _alone(m, least, facts))},
        "medians_us": {n: median(t) * 1e6 for n, t in times.items()},
        "rounds": min(map(len, times.values()), default=0),
        "max_rel_err": errors.get("tessera"),
        "errors": errors,
        "load": os.getloadavg()[0],
    }  # fmt: skip
    return row | facts.get("tessera", {}) | ({"notes": notes} if notes else {})


def _alone(mode: str, least: dict[str, float], facts: dict[str, Row]) -> Row | None:
    """What the search gains over the same back end; None where either did not run."""
    ours, original = (n if mode == "all" else f"{n}:{mode}" for n in OURS)
    if ours not in least or original not in least:
        return None
    row = {"original_us": least[original] * 1e6, "ours_us": least[ours] * 1e6,
           "ratio": least[original] / least[ours]}  # fmt: skip
    kept = ("verdict", "search_s", "tune_s", "verify_s", "subprograms") if mode != "all" else ()
    return row | {k: v for k, v in facts[ours].items() if k in kept}


def _take_turns(processes: dict[str, Process], seconds: float) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in processes}
    end = time.monotonic() + seconds
    turn = 0
    while turn < 3 or (time.monotonic() < end and turn < 200):
        names = list(processes)
        for name in names[turn % len(names) :] + names[: turn % len(names)] if names else []:
            time.sleep(0.02)  # pools spin for a while after their work
            times[name].append(processes[name].ask(120, do="time", name=name)["seconds"])
        turn += 1
        if not names:
            break
    return times
