"""Disks that are full from the i-th write on, files that may not grow, folders that are closed."""

from __future__ import annotations

import ctypes
import functools
import os
import random
import resource
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from bench.trust.shim import arm, preloaded
from bench.trust.work import Tally, child, filled, scratch, work


def run(count: int, seed: int) -> dict[str, Any]:
    """`count` failures, two thirds of them of the i-th write."""
    return preloaded("bench.trust.failing_writes", count, seed)


def tries(count: int, seed: int) -> dict[str, Any]:
    """In a process with the shim."""
    rng, tally = random.Random(seed), Tally(refusals=True)
    with scratch() as parent:
        whole = parent / "whole"
        filled(whole)
        for number in range(count):
            folder = parent / str(number)
            if number % 2:
                shutil.copytree(whole, folder)
            else:
                (folder / "cache").mkdir(mode=0o700, parents=True)
            kind, at = ("write", rng.randrange(1, 120))
            if number % 3 == 2:
                kind, at = rng.choice(
                    [("size", rng.choice([0, 100, 5000, 50_000])), ("closed", 0), ("full", 0)]
                )
            tally.add(kind, str(at), child(functools.partial(fail, kind, at, folder), folder))
            reopened(folder)
            tally.add("afterwards", f"{kind} {at}", child(work, folder))
            shutil.rmtree(folder)
    return tally.row()


def fail(kind: str, at: int, folder: Path) -> None:
    """The work, with the failure."""
    cache = folder / "cache"
    if kind == "write":
        arm(write=at)
    elif kind == "size":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        os.environ["TMPDIR"] = str(folder)
        resource.setrlimit(resource.RLIMIT_FSIZE, (at, at))
    elif kind == "closed":
        for path in [*cache.rglob("*"), cache]:
            path.chmod(0o500 if path.is_dir() else 0o400)
        obey_modes()
    elif subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", cache],
                        capture_output=True).returncode:  # fmt: skip
        arm(write=1)  # nobody lets us make a small disk
    try:
        work()
    finally:
        if kind == "full":
            subprocess.run(["umount", "-l", cache], capture_output=True)


def obey_modes() -> None:
    """Takes from root, whom modes do not stop, what has them not stop it."""
    version, pid, override = 0x20080522, 0, 0b1110
    words = (ctypes.c_uint32 * 6)(*[0xFFFFFFFF & ~override, 0xFFFFFFFF, 0, 0x1FF, 0x1FF, 0])
    ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(version, pid), words)


def reopened(folder: Path) -> None:
    """Has all of it be ours and open again."""
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else 0o600)
