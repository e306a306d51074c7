"""Runs the tests of this folder in processes of their own, several at a time.

A kernel that hangs, or ends its CUDA context, costs its own test: the process is ended, and the
others go on. `python -m tests.gpu [--results FILE] [--resume] [--workers N] [--limit SECONDS]
[pytest's arguments]` keeps in FILE, with date, device and driver, what came out of each test; with
`--resume` tests that this device has passed with this build are not run again. No test begins
after TESSERA_GPU_SECONDS.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TIME_IS_UP = "time is up (TESSERA_GPU_SECONDS)"
SHORT = ("test_fragments", "test_library", "test_streams")  # eight of one function in a process
LEAST_S = 15.0  # for a test to begin
Outcome = dict[str, Any]


class Results:
    """A file with the outcome of each test."""

    def __init__(self, path: Path | None, here: dict[str, Any], resume: bool) -> None:
        self.path, self.here = path, here
        self.tests: dict[str, Outcome] = {}
        if resume and path is not None and path.exists():
            kept = json.loads(path.read_text())
            if all(kept.get(k) == v for k, v in here.items()):
                self.tests = {n: t for n, t in kept["tests"].items() if t["outcome"] == "passed"}

    def add(self, found: dict[str, Outcome]) -> None:
        """Says what is new, and keeps it."""
        for name, test in found.items():
            print(f"{test['outcome']:8}{test.get('seconds', 0):7.1f} s  {name}", flush=True)
        self.tests |= found
        if self.path is None:
            return
        told = {"date": time.strftime("%Y-%m-%d", time.gmtime()), **self.here,
                **self.counts(), "tests": self.tests}  # fmt: skip
        beside = self.path.with_suffix(".part")
        beside.write_text(json.dumps(told, indent=1) + "\n")
        beside.replace(self.path)

    def counts(self) -> dict[str, int]:
        outcomes = [t["outcome"] for t in self.tests.values()]
        return {o: outcomes.count(o) for o in ("passed", "failed", "skipped")}


def jobs(names: list[str]) -> list[list[str]]:
    """What runs in one process: a test, or some neighbours of those that take little."""
    found = []
    for function, group in groupby(names, key=lambda n: n.partition("[")[0]):
        same = list(group)
        size = 8 if Path(function.partition("::")[0]).stem in SHORT else 1
        found += [same[i : i + size] for i in range(0, len(same), size)]
    return found


def run_job(
    names: list[str], command: Callable[[list[str], Path], list[str]], limit_s: float, in_time: bool
) -> tuple[dict[str, Outcome], list[str]]:
    """Outcomes of one process, and the tests that it did not come to.

    Where it is lost, the first of its tests without an outcome has failed; where it is late, one
    that was alone has failed, or, if there was no time for it (`in_time` false), is left out."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tessera-gpu-test-") as folder:
        told, log = Path(folder) / "results.json", Path(folder) / "log"
        environment = os.environ | {"TESSERA_GPU_SECONDS": str(limit_s)}
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command(names, told), f"--basetemp={folder}/tmp"], stdout=output,
                stderr=output, env=environment, start_new_session=True,
            )  # fmt: skip
        try:
            ended: int | None = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            ended = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        found: dict[str, Outcome] = json.loads(told.read_text()) if told.exists() else {}
        if in_time:  # what its neighbours left no time for has a process of its own next
            found = {n: t for n, t in found.items() if t.get("why") != TIME_IS_UP}
        rest = [n for n in names if n not in found]
        crowded = ended is None and len(names) > 1  # nobody's fault, perhaps
        if rest and ended not in (0, 1) and not crowded:
            seconds = round(time.monotonic() - start, 2)
            if ended is None:
                lost = f"no answer in {limit_s:.0f} s: its process was ended"
            else:
                text = log.read_text()
                crash = text.find("Fatal Python error")  # what was said before it, and where it was
                told_last = text[max(0, crash - 500) : crash + 2500] if crash >= 0 else text[-2000:]
                lost = f"its process ended with {ended}\n{told_last}"
            late = ended is None and not in_time
            found[rest.pop(0)] = {
                "outcome": "skipped" if late else "failed", "seconds": seconds,
                "why": TIME_IS_UP if late else lost,
            }  # fmt: skip
        return found, rest


def run_all(
    names: list[str], results: Results, command: Callable[[list[str], Path], list[str]],
    workers: int, limit_s: float, end: float,
) -> None:  # fmt: skip
    """All tests, the first first; those that no time is left for are skipped."""
    todo = deque(jobs(names))
    lock = threading.Lock()

    def work() -> None:
        while True:
            left = end - time.monotonic()
            with lock:
                if not todo:
                    return
                job = todo.popleft()
                if left < LEAST_S:
                    results.add({n: {"outcome": "skipped", "why": TIME_IS_UP} for n in job})
                    continue
            found, rest = run_job(job, command, min(limit_s, left), left >= limit_s)
            with lock:
                results.add(found)
                todo.extendleft([n] for n in reversed(rest))

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def main() -> int:
    begin = time.monotonic()
    processors = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(prog="tests.gpu", description=__doc__)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--workers", type=int, default=max(1, min(8, processors // 2)))
    parser.add_argument("--limit", type=float, default=150.0)
    options, more = parser.parse_known_args()
    os.environ.setdefault("TESSERA_THREADS", str(max(1, processors // options.workers)))
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *more]
    asked = [*pytest, str(HERE), "--collect-only", "--where"]
    collected = subprocess.run(asked, text=True, capture_output=True, check=False)
    if collected.returncode != 0:
        print((collected.stdout + collected.stderr).strip(), file=sys.stderr)
        return collected.returncode
    lines = collected.stdout.splitlines()
    names = [line for line in lines if "::" in line]
    here = json.loads(next(line for line in lines if line.startswith("{")))
    results = Results(options.results, here, options.resume)
    left = [n for n in names if n not in results.tests]
    print(
        f"{here['device']}: {len(left)} tests, {len(names) - len(left)} passed before", flush=True
    )
    end = begin + float(os.environ.get("TESSERA_GPU_SECONDS", "560"))
    run_all(left, results, lambda some, told: [*pytest, "-x", "--outcomes", str(told), *some],
            options.workers, options.limit, end)  # fmt: skip
    for name, test in results.tests.items():
        if test["outcome"] == "failed":
            print(f"\n{name}\n{test['why']}")
    counts = results.counts()
    print(", ".join(f"{n} {outcome}" for outcome, n in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
