"""Dask, Ray and killed drivers: the same winners as one process, and nothing lost."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fleet_programs import SEARCH, TEXTS, programs, run, winners

from tessera.errors import IoError, UsageError
from tessera.fleet.campaign import Campaign
from tessera.fleet.executors import DaskExecutor, LocalExecutor, RayExecutor, make_executor
from tessera.store.stores import FolderStore

needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="dask's distributed is not installed"
)
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed"
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ...]]:
    return winners(run(tmp_path_factory.mktemp("alone"), LocalExecutor()).progress.outcomes)


def killed_on_the_way(campaign: Campaign) -> int:
    """Runs a campaign, of which the worker that answers first is killed then."""
    pids: list[int] = []

    def kill() -> None:
        while not campaign.progress.by_worker:
            time.sleep(0.01)
        pids.append(int(next(iter(campaign.progress.by_worker)).rpartition(":")[2]))
        os.kill(pids[0], signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    campaign.run()
    killer.join(10)
    return pids[0]


@needs_dask
@pytest.mark.filterwarnings("ignore")
def test_dask_has_the_same_winners_though_a_worker_is_killed(
    tmp_path: Path, alone: dict[str, tuple[str, ...]]
) -> None:
    executor = DaskExecutor(workers=2)
    assert executor.workers == 2
    assert not executor.apart
    campaign = Campaign(programs(), SEARCH, FolderStore(tmp_path), executor)
    dead = killed_on_the_way(campaign)
    assert winners(campaign.progress.outcomes) == alone
    assert not Path(f"/proc/{dead}").exists()
    assert len(campaign.progress.by_worker) >= 2


@needs_ray
@pytest.mark.filterwarnings("ignore")
def test_ray_has_the_same_winners_though_a_worker_is_killed(
    tmp_path: Path, alone: dict[str, tuple[str, ...]]
) -> None:
    executor = RayExecutor(workers=2)
    # Its workers may need seconds to start; now and then it never notices that one is gone.
    impatient = dataclasses.replace(SEARCH, patience=25.0, tries=5)
    some = programs("factor", "long")
    campaign = Campaign(some, impatient, FolderStore(tmp_path), executor)
    killed_on_the_way(campaign)
    assert winners(campaign.progress.outcomes) == {p.name: alone[p.name] for p in some}
    assert len(campaign.progress.by_worker) >= 2


@needs_dask
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("lost", "patience", "why"), [
    ("cluster", 60, "the Dask cluster of this machine: "),
    ("workers", 0.5, "no worker was left for 0.5 s"),
])  # fmt: skip
def test_a_campaign_ends_with_its_cluster(
    tmp_path: Path, lost: str, patience: float, why: str
) -> None:
    executor = DaskExecutor(workers=1)
    impatient = dataclasses.replace(SEARCH, patience=patience)
    campaign = Campaign(programs(), impatient, FolderStore(tmp_path), executor)

    def lose() -> None:
        while not campaign.progress.by_worker:
            time.sleep(0.01)
        if lost == "cluster":
            executor._client.cluster.close()
        else:
            executor._client.cluster.scale(0)

    killer = threading.Thread(target=lose, daemon=True)
    killer.start()
    with pytest.raises(IoError, match=why):
        campaign.run()
    assert campaign.progress.done
    killer.join(10)


@needs_dask
def test_a_scheduler_that_says_nothing_has_no_workers() -> None:
    class Silent:
        def scheduler_info(self) -> dict[str, object]:
            return {}

        def get_executor(self, **_: object) -> ThreadPoolExecutor:
            return ThreadPoolExecutor(1)

    assert DaskExecutor(client=Silent()).workers == 0


@pytest.mark.parametrize(
    "name", [pytest.param("dask", marks=needs_dask), pytest.param("ray", marks=needs_ray)]
)
def test_addresses_of_nobody_are_usage_errors(name: str) -> None:
    with pytest.raises(UsageError, match="--address nonsense: "):
        make_executor(name, "nonsense", 1, "")


def entries(folder: Path) -> dict[str, int]:
    """What is in a store, and when it was written."""
    return {p.name: p.stat().st_mtime_ns for p in folder.glob("*/*.entry")}


def children_of(pid: int) -> set[int]:
    """The processes that one started, and those that they did."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*"):
        for child in map(int, (task / "children").read_text().split()):
            found |= {child} | children_of(child)
    return found


def test_a_driver_killed_twice_goes_on(tmp_path: Path, alone: dict[str, tuple[str, ...]]) -> None:
    sources, store = tmp_path / "programs", tmp_path / "store"
    sources.mkdir()
    for name, text in TEXTS.items():
        (sources / f"{name}.ug").write_text(f"graph {name} {{ {text} }}")
    options = "--steps 300 --budget 2 --no-measure --workers 2 --store"
    command = [sys.executable, "-m", "tessera", "tune", str(sources), *options.split(), str(store)]
    kept: dict[str, int] = {}
    for more in (2, 4):
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while len(entries(store)) < len(kept) + more and driver.poll() is None:
            time.sleep(0.005)
        assert driver.poll() is None
        workers = children_of(driver.pid)
        driver.kill()
        driver.wait()
        end = time.monotonic() + 10
        while any(Path(f"/proc/{w}").exists() for w in workers) and time.monotonic() < end:
            time.sleep(0.01)
        assert not any(Path(f"/proc/{w}").exists() for w in workers)  # nobody works on
        now = entries(store)
        assert {name: now[name] for name in kept} == kept
        kept = now
    last = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    found = json.loads(last.stdout)
    now = entries(store)
    assert {name: now[name] for name in kept} == kept  # nothing is done twice
    assert found["kept"] == len(kept)
    assert found["kept"] + found["tasks"] == len(now)
    assert {o["name"]: tuple(o["winners"]) for o in found["outcomes"]} == alone
