"""What all campaigns share: some programs to run, children to run them in, and their fates."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera.cache_folder import MeasurementStore
from tessera.errors import Error
from tessera.patterns import read_patterns
from tessera.rules import load_rules

SECONDS = 120  # after which a child hangs
QUIET = os.environ.get("TRUST_VERBOSE") is None


def rms(x: Any, w: Any) -> Any:
    return (x / np.sqrt((x * x).mean(-1, keepdims=True) + 1)) @ w


def folded(x: Any, w: Any) -> Any:
    return np.exp(x) * 2 + np.exp(x) * w.sum(0)


def work(budget: float = 1.0) -> None:
    """Optimises, runs and compares two programs; raises AssertionError where something is wrong."""
    rng = np.random.default_rng(7)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((16, 32), (32, 32)))
    for program in (rms, folded):
        result = ts.superoptimize(program, x, w, budget=budget)
        np.testing.assert_allclose(result(x, w), program(x, w), rtol=1e-3, atol=1e-3)
        if result.certificate is not None:
            assert ts.verify(result.original, result.graph).equal, "a certificate of what differs"
    function = ts.optimize(budget=budget, wait=True)(rms)
    np.testing.assert_allclose(function(x, w), rms(x, w), rtol=1e-3, atol=1e-3)
    MeasurementStore.default().recent()
    load_rules()
    read_patterns()


def child(action: Callable[[], None], folder: Path, seconds: float = SECONDS) -> str:
    """What came of an action in a process of its own, its group and output apart: "" (it went
    well), "refused: …" (an error of ours), or a finding."""
    pid = start(action, folder)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return fate(status, folder)
        time.sleep(0.005)
    kill(pid)
    return f"hangs after {seconds} s"


def start(action: Callable[[], None], folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        out = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(folder)
        os.environ["TESSERA_CACHE_DIR"] = str(folder / "cache")
        action()
        code = 0
    except (Error, MemoryError) as error:
        with contextlib.suppress(OSError):
            print(f"REFUSED {type(error).__name__}: {error}"[:300], flush=True)
        code = 3
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    return 0


def kill(pid: int) -> None:
    """Ends a child and whatever it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def fate(status: int, folder: Path) -> str:
    output = (folder / "output").read_text(errors="replace") if (folder / "output").exists() else ""
    last = (output.strip().splitlines() or ["no word"])[-1][:200]
    if os.WIFSIGNALED(status):
        return f"dies of {signal.Signals(os.WTERMSIG(status)).name}: {last}"
    if os.WEXITSTATUS(status) == 3:
        return f"refused: {last.removeprefix('REFUSED ')}"
    return "" if os.WEXITSTATUS(status) == 0 else f"fails: {last}"


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder."""
    folder = Path(tempfile.mkdtemp(prefix="trust-"))
    try:
        yield folder
    finally:
        for path in folder.rglob("*"):  # what a campaign closed
            with contextlib.suppress(OSError):
                path.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)


def filled(folder: Path) -> None:
    """Has `folder/cache` filled by the work."""
    (folder / "cache").mkdir(mode=0o700, parents=True)
    if why := child(work, folder):
        raise RuntimeError(f"the work alone {why}")


class Tally:
    """Counts of what was tried, and what was found."""

    def __init__(self, refusals: bool = False) -> None:
        self._refusals = refusals  # whether they are fine
        self.tried = 0
        self.fates: Counter[str] = Counter()
        self.findings: list[str] = []

    def add(self, kind: str, what: str, came: str) -> None:
        """One try of a kind, and what came of it (as of `child`)."""
        self.tried += 1
        if not came or (self._refusals and came.startswith("refused: ")):
            self.fates[f"{kind}: {'refused' if came else 'right'}"] += 1
            return
        self.fates[f"{kind}: found"] += 1
        self.findings.append(f"{kind}: {what}: {came}")
        if not QUIET:
            print(self.findings[-1], flush=True)

    def row(self, **details: Any) -> dict[str, Any]:
        """As `run` of a campaign returns it."""
        found = len(self.findings)
        return {
            "tried": self.tried, "found": found, "survived": self.tried - found,
            "details": {**sorted_counts(self.fates), "findings": self.findings[:50], **details},
        }  # fmt: skip


def sorted_counts(counts: Counter[str]) -> dict[str, int]:
    """By name."""
    return dict(sorted(counts.items()))
