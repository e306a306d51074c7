"""Who may work on this machine: many search at once, one measures and is then alone.

Locks of files, which end with their process whatever becomes of it. All processes of a user share
them, of whichever campaign.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager

from tessera.cache_folder import cache_directory, make_own


@contextmanager
def searching() -> Iterator[None]:
    """Works beside others that search; waits while somebody measures, or waits to."""
    with _locked("turn", fcntl.LOCK_EX):
        work = _open("work")
        fcntl.flock(work, fcntl.LOCK_SH)
    try:
        yield
    finally:
        os.close(work)


@contextmanager
def measuring() -> Iterator[None]:
    """Works alone. Who waits here has the next turn, so that no stream of searches starves it."""
    with _locked("turn", fcntl.LOCK_EX), _locked("work", fcntl.LOCK_EX):
        yield


@contextmanager
def _locked(name: str, how: int) -> Iterator[None]:
    file = _open(name)
    try:
        fcntl.flock(file, how)
        yield
    finally:
        os.close(file)


def _open(name: str) -> int:
    """The host is part of the name: homes are shared, processors are not."""
    folder = cache_directory() / "fleet"
    make_own(folder)
    host = re.sub(r"[^\w.-]", "_", platform.node())
    return os.open(folder / f"{host}.{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
