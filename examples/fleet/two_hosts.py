"""A batch of programs tuned by Dask and by Ray, killed twice on the way, and used on another host.

    python examples/fleet/two_hosts.py            four programs, about a minute
    python examples/fleet/two_hosts.py --full     33 NumPy programs, ONNX node graphs and modules in
                                                  the style of KernelBench: 113 programs, an hour

What happens, each step by a command that one could type:

1. Two Dask workers tune the batch, over TLS. The driver, and the cluster with it, is killed twice
   with SIGKILL; the same command goes on from what is in the store.
2. Two Ray workers tune the same batch into another store. The programs that raced are the same.
3. `tessera store merge` puts both into a folder of a git repository, which is committed.
4. Another host (a cache folder of its own, and as root on Linux a network namespace of its own,
   without any network) clones the repository. `tessera store pull` proves every result again,
   compiles it and races it; what holds is then used without a search.

Dask and Ray need `pip install 'tessera-opt[dask,ray]'`; what is not installed is left out aloud.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import tessera as ts
from tessera.cli.tune import read_programs, summary
from tessera.errors import Error
from tessera.fleet.campaign import Campaign
from tessera.fleet.executors import DaskExecutor, RayExecutor, TaskExecutor
from tessera.fleet.plan import Settings
from tessera.fleet.progress import Progress
from tessera.options import Options
from tessera.source import example_arrays
from tessera.store.stores import FolderStore

SMALL = ["stenso:4"]
FULL = ["stenso", "onnx-nodes:40", "outside:40"]
MERGED = "results"  # the folder of the repository


def on_dask(workers: int) -> TaskExecutor:
    """A cluster of this machine whose connections are encrypted, with keys of this run alone."""
    from distributed import Client, LocalCluster, Security

    cluster = LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        security=Security.temporary(),
        dashboard_address=None,
        scheduler_port=0,
    )
    return DaskExecutor(client=Client(cluster))


def work(by: str, store: str, sources: list[str], steps: int, budget: float) -> None:
    """The driver: tunes the batch with two workers; prints what came of it as JSON."""
    settings = Settings(Options(budget=budget), steps=steps)
    programs = list(read_programs(sources, (), lambda line: print(line, file=sys.stderr)))
    progress = Progress(tell=lambda line: print(f"  {line}", file=sys.stderr, flush=True))
    executor = on_dask(2) if by == "dask" else RayExecutor(workers=2)
    Campaign(programs, settings, FolderStore(Path(store)), executor, progress).run()
    print(json.dumps(summary(progress)))


def use(store: str, sources: list[str], budget: float) -> None:
    """The second host, after its pull: runs what is known now, beside the original."""
    used = 0
    for name, graph in read_programs(sources, (), print):
        try:
            result = ts.superoptimize(graph, budget=budget)
            if not (result.improved and result.details["from_cache"]):
                continue
            used += 1
            arrays = example_arrays(graph)
            for got, wanted in zip(result.run_arrays(arrays), graph.run(*arrays), strict=True):
                finite = np.isfinite(wanted)  # what level "close" is about
                scale = np.abs(wanted[finite]).max(initial=1.0)
                assert np.allclose(got[finite], wanted[finite], 1e-2, 1e-3 * scale)
        except Error as error:
            print(f"  {name}: {error}")
    print(json.dumps({"used": used}))


def entries(store: Path) -> int:
    """How many tasks and results are in a store."""
    return sum(1 for _ in store.glob("*/*.entry"))


def say(text: str) -> None:
    """One step of the story."""
    print(f"\n== {text}", flush=True)


def driver(by: str, store: Path, options: argparse.Namespace, kills: int) -> dict[str, object]:
    """Runs the driver, kills it so many times, and lets it finish."""
    command = [sys.executable, __file__, "--work", by, "--at", str(store), *given(options)]
    known = 0
    for i in range(kills):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None and entries(store) < known + options.kill_after:
            time.sleep(0.01)
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        known = entries(store)
        print(f"  killed ({i + 1}); {known} entries are in the store", flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    print(f"  {found['tasks']} tasks, {found['kept']} were in the store; "
          f"{found['faster']} of {found['programs']} programs are faster")  # fmt: skip
    return found


def given(options: argparse.Namespace) -> list[str]:
    """The options that a driver is told."""
    return ["--steps", str(options.steps), "--budget", str(options.budget),
            "--programs", *options.programs]  # fmt: skip


def run(command: list[str], **environment: str) -> str:
    """Runs a command to its end; what it printed."""
    print("  $", " ".join(Path(c).name if "/" in c else c for c in command), flush=True)
    done = subprocess.run(command, env={**os.environ, **environment}, text=True, check=True,
                          stdout=subprocess.PIPE)  # fmt: skip
    return done.stdout


def other_host() -> list[str]:
    """What runs a command in a network namespace of its own; nothing where that is not allowed."""
    words = ["unshare", "--net"]
    if shutil.which("unshare") and subprocess.run([*words, "true"], capture_output=True,
                                                  check=False).returncode == 0:  # fmt: skip
        return words
    print("  network namespaces are not allowed here: the second host has a cache of its own only")
    return []


def winners(found: dict[str, object]) -> dict[str, list[str]]:
    """The programs that raced, by program."""
    outcomes = found["outcomes"]
    assert isinstance(outcomes, list)
    return {o["name"]: o["winners"] for o in outcomes}


def story(options: argparse.Namespace, folder: Path) -> None:
    """The four steps."""
    by = [name for name, package in (("dask", "distributed"), ("ray", "ray"))
          if importlib.util.find_spec(package)]  # fmt: skip
    found = {}
    for name in ("dask", "ray"):
        if name not in by:
            say(f"{name} is not installed: left out (pip install 'tessera-opt[{name}]')")
            continue
        kills = options.kills if name == by[0] else 0
        say(f"{name}, two workers" + (f", killed {kills} times" if kills else ""))
        found[name] = driver(name, folder / name, options, kills)
    if len(found) == 2:
        assert winners(found["dask"]) == winners(found["ray"])
        print("  the programs that raced are the same by Dask and by Ray")

    say("both stores into a repository of git")
    tessera = [sys.executable, "-m", "tessera"]
    repository = folder / "repository"
    run(["git", "init", "-q", str(repository)])
    merged = str(repository / MERGED)
    stores = [str(folder / name) for name in found]
    run([*tessera, "store", "merge", *(stores * 2)[:2], merged])
    git = ["git", "-C", str(repository), "-c", "user.name=fleet", "-c", "user.email=fleet@example"]
    run([*git, "add", "-A"])
    run([*git, "commit", "-qm", "What the fleet found"])
    print(f"  {entries(repository / MERGED)} entries")

    say("another host: clones, proves and races again, uses")
    host = other_host()
    clone, cache = folder / "clone", str(folder / "cache-of-the-other-host")
    run([*host, "git", "clone", "-q", str(repository), str(clone)])
    pull = [*host, *tessera, "store", "pull", str(clone / MERGED)]
    pull += ["--kind", "program", "--json"]
    received = json.loads(run(pull, TESSERA_CACHE_DIR=cache))
    fates: dict[str, int] = {}
    for entry in received["entries"]:
        fates[entry["fate"]] = fates.get(entry["fate"], 0) + 1
    print("  " + ", ".join(f"{n} {fate}" for fate, n in sorted(fates.items())))
    again = [*host, sys.executable, __file__, "--use", "--at", str(clone), *given(options)]
    used = json.loads(run(again, TESSERA_CACHE_DIR=cache).splitlines()[-1])["used"]
    print(f"  {used} programs run faster there, without a search")
    if fates.get("refused"):
        raise SystemExit("an entry was refused")
    run([*tessera, "report", stores[0], "-o", str(folder / "campaign.html")])
    print(f"  {folder / 'campaign.html'}: programs by engines")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="113 programs")
    parser.add_argument("--programs", nargs="+", default=None, help="as tessera tune takes them")
    parser.add_argument("--folder", default="", help="where everything goes; default: a new one")
    parser.add_argument("--steps", type=int, default=0, help="of each search")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of each race")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--kill-after", type=int, default=0, help="so many more entries")
    parser.add_argument("--work", choices=["dask", "ray"], help=argparse.SUPPRESS)
    parser.add_argument("--use", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--at", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.programs = options.programs or (FULL if options.full else SMALL)
    options.steps = options.steps or (5000 if options.full else 1000)
    options.kill_after = options.kill_after or (100 if options.full else 3)
    if options.work:
        work(options.work, options.at, options.programs, options.steps, options.budget)
    elif options.use:
        use(options.at, options.programs, options.budget)
    else:
        folder = Path(options.folder or tempfile.mkdtemp(prefix="tessera-fleet-")).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TESSERA_CACHE_DIR", str(folder / "cache"))
        story(options, folder)
        say(f"all is in {folder}")


if __name__ == "__main__":
    main()
