"""This tree beside an earlier commit: `python -m bench.compare BASE` (make compare BASE=COMMIT).

Both are built and optimise the same programs, each in a process of its own; then their programs run
in turns. Told are other verdicts, errors that grew, and new time ÷ old: at most 1.03 in geometric
mean, and no case above 1.10 without its reason in the commit. For CUDA, kernels' registers, spills,
shared memory and emulated errors are compared, and no time. Ends with 1 where a limit is broken.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from bench.corpus import programs
from bench.race import ROOT, Late, Process
from bench.worker import aligned, die_with_parent, pin, serve
from bench.workloads import FAMILIES, WORKLOADS

Row = dict[str, Any]
_MEAN, _CASE = 1.03, 1.10  # limits of new time ÷ old
_TURNS = 9
_TURN_S = 5e-3  # runs of one turn take about as long
_BUDGET_S = 10
_LIMIT_S = 120  # after which a tree has no answer
_CLI = "import sys; from tessera.cli import main; sys.exit(main())"  # of earlier trees, too


# --- one tree: what its process does --------------------------------------------------------------


def names(pattern: str = "") -> Iterator[str]:
    """The programs of this tree: `group/name`."""
    cases = [f"ug/{path.stem}" for path in sorted((ROOT / "tests" / "corpus").glob("*.ug"))]
    cases += [f"workload/{family}" for family in FAMILIES]
    cases += [f"numpy/{p.group}.{p.name}" for p in programs()]
    yield from (case for case in cases if pattern in case)


class Tree:
    """Optimises a program and runs it when told."""

    run: Callable[[], Any]
    repeats: int

    def prepare(self, case: str) -> Row:
        """The verdict, the largest error relative to the largest element, and seconds of a run."""
        import tessera as ts

        program, arrays, exact = _program(case)
        given = () if isinstance(program, ts.Graph) else arrays
        result = ts.superoptimize(program, *given, budget=_BUDGET_S, cache=False, seed=1)
        self.run = lambda: result(*arrays)
        error = _error(self.run(), exact)
        start = time.perf_counter()
        self.run()
        once = max(time.perf_counter() - start, 1e-9)
        self.repeats = max(1, min(10_000, int(_TURN_S / once)))
        certificate = result.certificate
        return {
            "improved": result.improved,
            "basis": "" if certificate is None else certificate.record()["basis"].split(":")[0],
            "error": error,
            "once_s": once,
        }

    def time(self) -> Row:
        """Seconds of one run, after an untimed one."""
        self.run()
        start = time.perf_counter_ns()
        for _ in range(self.repeats):
            self.run()
        return {"seconds": (time.perf_counter_ns() - start) / self.repeats * 1e-9}


def _program(case: str) -> tuple[Any, list[Any], list[Any]]:
    """What is optimised, arguments, and what it gives with f64 in place of floats."""
    import tessera as ts

    group, _, name = case.partition("/")
    if group == "numpy":
        file, _, name = name.partition(".")
        found = next(p for p in programs(file) if p.name == name)
        arrays: list[Any] = [aligned(a) for a in found.arguments()]
        with np.errstate(all="ignore"):
            return found.function, arrays, _leaves(found.function(*map(_wide, arrays)))
    if group == "workload":
        workload = WORKLOADS[name]
        batch = workload.batches[0]
        graph, arrays = workload.graph(batch), workload.arrays(batch)
    else:
        graph = ts.load(ROOT / "tests" / "corpus" / f"{name}.ug")
        rng = np.random.default_rng(1)
        arrays = [
            rng.standard_normal(shape).astype(dtype)
            for dtype, shape in graph.input_types().values()
        ]
    arrays = [aligned(a) for a in arrays]
    return graph, arrays, _leaves(graph.run(*arrays, exact=True))


def _wide(array: Any) -> Any:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _leaves(value: Any) -> list[Any]:
    return (
        [np.asarray(v) for v in value] if isinstance(value, (list, tuple)) else [np.asarray(value)]
    )


def _error(value: Any, exact: list[Any]) -> float:
    worst = 0.0
    for got, right in zip(_leaves(value), exact, strict=True):
        with np.errstate(all="ignore"):
            off = np.abs(got.astype(np.float64) - right.astype(np.float64))
        finite = np.isfinite(right)
        scale = float(np.max(np.abs(right[finite]), initial=0))
        worst = max(worst, float(np.max(off[finite], initial=0)) / max(scale, 1e-300))
    return worst


def _serve() -> None:
    die_with_parent()
    pin(int(sys.argv[1]))
    tree = Tree()
    serve({"prepare": tree.prepare, "time": tree.time,
           "names": lambda pattern: {"names": list(names(pattern))}})  # fmt: skip


# --- both -----------------------------------------------------------------------------------------


def built(base: str) -> Path:
    """A tree of that commit in build/compare, with its core built."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"compare: git {words[0]}: {done.stderr.strip()}")
        return done.stdout.strip()

    commit = git("rev-parse", "--verify", f"{base}^{{commit}}")
    tree = ROOT / "build" / "compare" / commit[:12]
    if not tree.exists():
        git("worktree", "prune")
        git("worktree", "add", "--detach", str(tree), commit)
    if not (tree / "bench" / "compare.py").exists():
        sys.exit(f"compare: {base} is older than bench/compare.py and has no programs to compare")
    tools = Path(sys.executable).parent
    configure = [str(tools / "cmake"), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}",
                 f"-DPython_EXECUTABLE={sys.executable}", "-DTESSERA_TESTS=OFF",
                 "-DCMAKE_BUILD_TYPE=Release", "-S", str(tree),
                 "-B", str(tree / "build/release")]  # fmt: skip
    for command in (configure, [str(tools / "ninja"), "-C", str(tree / "build/release"), "_core"]):
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            sys.exit(f"compare: {' '.join(command)} failed")
    return tree


def compare(case: str, new: Process, old: Process) -> Row:
    """One program in both trees; one that has no answer is named."""
    row: Row = {"case": case}
    for tree, process in (("new", new), ("old", old)):
        row[tree] = process.ask(_LIMIT_S, do="prepare", case=case)
    if any("failed" in row[tree] for tree in ("new", "old")):
        return row
    seconds: dict[str, list[float]] = {"new": [], "old": []}
    for turn in range(_TURNS):
        order = [("new", new), ("old", old)]
        for tree, process in order if turn % 2 else reversed(order):
            seconds[tree].append(process.ask(_LIMIT_S, do="time")["seconds"])
    row |= {f"{tree}_us": median(s) * 1e6 for tree, s in seconds.items()}
    row["ratio"] = median(n / o for n, o in zip(seconds["new"], seconds["old"], strict=True))
    return row


def told(row: Row) -> str:
    """What is worth a line about a program besides its times."""
    new, old = row["new"], row["old"]
    failed = [f"{t}: {row[t]['failed']}" for t in ("new", "old") if "failed" in row[t]]
    if failed:
        return "; ".join(failed)
    notes = [f"{what}: {old[what]} before, {new[what]} now"
             for what in ("improved", "basis") if new[what] != old[what]]  # fmt: skip
    if new["error"] > 4 * old["error"] + 1e-12:
        notes.append(f"error {old['error']:.1e} before, {new['error']:.1e} now")
    return "; ".join(notes)


def cuda(tree: Path) -> dict[str, Row]:
    """What this tree's kernels for GPUs take, and their emulated errors, by case."""
    out = tree / "build" / "compare-cuda.json"
    command = [sys.executable, "-c", _CLI, "bench", "mirage", "--target", "cuda",
               "--emulate", "--quick", "--json", str(out)]  # fmt: skip
    path = os.pathsep.join([str(tree / "python"), str(tree)])
    out.unlink(missing_ok=True)
    subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.DEVNULL)
    rows = json.loads(out.read_text()) if out.exists() else []
    # Neither times nor facts of the machine.
    return {f"{r['case']} B={r.get('batch')} {r['dtype']}":
            {k: v for k, v in r.items() if not k.endswith("_s") and k != "machine"}
            for r in rows}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.compare", description=__doc__)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--only", default="", metavar="TEXT", help="programs whose name has it")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-cuda", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    trees = {"new": ROOT, "old": built(options.base)}

    def start(tree: str) -> Process:
        return Process(options.threads, "bench.compare", {"TESSERA_COMPARE": "1"}, trees[tree])

    new, old = start("new"), start("old")
    rows: list[Row] = []
    known = set(old.ask(_LIMIT_S, do="names", pattern=options.only)["names"])
    for case in names(options.only):
        if case not in known:
            print(f"{case:44}not in the other tree")
            continue
        try:
            rows.append(compare(case, new, old))
        except Late as late:
            print(f"{case:44}{late}")
            for process in (new, old):
                process.close()
            new, old = start("new"), start("old")
            continue
        ratio = f"{rows[-1]['ratio']:.2f}" if "ratio" in rows[-1] else "-"
        print(f"{case:44}{ratio:>6}  {told(rows[-1])}", flush=True)
    for process in (new, old):
        process.close()
    kernels = {} if options.no_cuda else {t: cuda(path) for t, path in trees.items()}
    for case, row in kernels.get("new", {}).items():
        before = kernels["old"].get(case, {})
        for what in sorted(row.keys() | before.keys()):
            if row.get(what) != before.get(what):
                print(f"cuda {case}: {what}: {before.get(what)} before, {row.get(what)} now")
    if options.json:
        options.json.write_text(json.dumps({"base": options.base, "rows": rows}, indent=1) + "\n")
    return _verdict(rows)


def _verdict(rows: list[Row]) -> int:
    ratios = {r["case"]: r["ratio"] for r in rows if "ratio" in r}
    mean = geometric_mean(ratios.values()) if ratios else math.nan
    slower = {case: ratio for case, ratio in ratios.items() if ratio > _CASE}
    changed = sum(bool(told(r)) for r in rows)
    print(f"{len(ratios)} programs: new / old {mean:.3f} (limit {_MEAN}), {len(slower)} above "
          f"{_CASE}, {changed} with another verdict or error")  # fmt: skip
    return int(not ratios or mean > _MEAN or bool(slower) or changed > 0)


if __name__ == "__main__":
    if "TESSERA_COMPARE" in os.environ:
        _serve()
    else:
        sys.exit(main())
