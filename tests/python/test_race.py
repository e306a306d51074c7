"""Races that nobody disturbs: whose time counts, what noise and load do, and processes that end."""

from __future__ import annotations

import io
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera import race, race_processes, racer
from tessera.race import Entrant
from tessera.race_processes import LostError

Facts = dict[str, Any]
MS = 1_000_000


class Stand:
    """In place of a process: each of its contestants takes what a script says."""

    pid, alive = 0, True

    def __init__(self, scripts: dict[str, Callable[[int], Facts]]) -> None:
        self.scripts, self.turns, self.names = scripts, 0, dict[int, str]()

    told: Any = race_processes.Child.told

    def ask(self, order: Facts, arrays: Any = (), limit_s: float = 0) -> tuple[Facts, list[Any]]:
        if order["do"] == "prepare":
            self.names[order["key"]] = order["name"]
        if order["do"] != "turn":
            return {}, []
        self.turns += 1
        return self.scripts[self.names[order["key"]]](self.turns), []


class Stands:
    """In place of all processes."""

    def __init__(self, of: dict[str, Callable[[], Stand]]) -> None:
        self.of, self.now, self.closed = of, dict[str, Stand](), 0
        self.lock = threading.RLock()

    def get(self, library: str, threads: str) -> Stand:
        return self.now.setdefault(threads, self.of[threads]())

    def close(self) -> None:
        self.now, self.closed = {}, self.closed + 1

    def pids(self) -> list[int]:
        return []


def takes(wall: float, helpers: float = 0.0, cpu: float | None = None) -> Callable[[int], Facts]:
    return lambda turn: {"wall": wall, "cpu": wall if cpu is None else cpu, "helpers": helpers}


def alone(**of: Callable[[int], Facts]) -> dict[str, Callable[[], Stand]]:
    """Contestants that run on one thread wherever they are."""
    return {threads: lambda: Stand(of) for threads in ("one", "all")}


Hold = Callable[[dict[str, Callable[[], Stand]]], Stands]


@pytest.fixture
def stands(monkeypatch: pytest.MonkeyPatch) -> Hold:
    monkeypatch.setattr(race, "asleep", lambda *_, **__: True)
    monkeypatch.setattr(race_processes.Load, "is_busy", lambda self: False)

    def install(of: dict[str, Callable[[], Stand]]) -> Stands:
        made = Stands(of)
        monkeypatch.setattr(race, "children", lambda: made)
        return made

    return install


def named(*names: str) -> list[Entrant]:
    return [Entrant(None, "numpy", {"source": "", "name": name}) for name in names]


def test_the_better_of_one_thread_and_all_counts(stands: Hold) -> None:
    def two(first: Callable[[int], Facts]) -> Callable[[], Stand]:
        return lambda: Stand({"a": first, "b": takes(1 * MS)})

    for one, threaded, which, ratio in ((4, 2, "all", 2), (2, 1450, "one", 2), (2, 3, "one", 2)):
        helped = takes(threaded * MS, threaded * MS)
        stands({"one": two(takes(one * MS)), "all": two(helped)})
        first, second = race.hold(named("a", "b"), seconds=0.02).times
        assert first is not None
        assert second is not None
        assert (first.threads, second.threads) == (which, "one")
        assert second.ratio == pytest.approx(ratio)
        assert second.faster(1.03)
        assert first.median == pytest.approx(min(one, threaded) * 1e-3)


def test_beside_other_work_the_time_of_one_thread_counts(
    stands: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disturbed() -> Stand:
        return Stand({"a": takes(9 * MS, 0, 2 * MS), "b": takes(2 * MS, 0, 1 * MS)})

    stands({"one": disturbed, "all": lambda: Stand({n: takes(MS, MS) for n in "ab"})})
    monkeypatch.setattr(race_processes.Load, "is_busy", lambda self: True)
    held = race.hold(named("a", "b"), seconds=0.02)
    assert held.provisional
    assert [t.median for t in held.times if t] == [pytest.approx(2e-3), pytest.approx(1e-3)]
    assert held.times[1] is not None
    assert held.times[1].threads == "one"


def noisy(turn: int) -> Facts:
    return takes(2 * MS if turn // 2 % 2 else MS // 2)(turn)


def test_noise_is_told_and_raced_again(stands: Hold) -> None:
    made = stands(alone(a=takes(MS), b=noisy))
    held = race.decide(named("a", "b"), 1.03, seconds=0.01)
    assert held.faster(1.03) == [False, None]
    assert held.undecided(1.03)
    turns = made.now["one"].turns
    race.hold(named("a", "b"), seconds=0.01)
    assert turns > 2 * (made.now["one"].turns - turns)  # three races, not one
    # One that is not faster, however the samples lie, is no matter of doubt.
    stands(alone(a=takes(MS), b=takes(1.01 * MS)))
    assert not race.decide(named("a", "b"), 1.03, seconds=0.01).undecided(1.03)


def test_a_race_that_calms_down_is_decided(stands: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    stands(alone(a=takes(MS), b=noisy))
    races = [race.Race([None, None]), race.Race([None, None]), race.Race([None, None])]
    for n, (low, high) in enumerate([(0.5, 2.0), (1.3, 1.5), (0.1, 9.0)]):
        times = race.Times(1e-3, 1e-3, 0.1, 1.4, low, high, 30)
        races[n] = race.Race([race.Times(1e-3, 1e-3), times])
    left = iter(races)
    monkeypatch.setattr(race, "hold", lambda *_: next(left))
    assert race.decide(named("a", "b"), 1.03) is races[1]
    left = iter(races)
    assert race.decide(named("a", "b"), 1.03, budget=0.0) is races[0]  # no time for another


def test_gains_beyond_belief_are_timed_from_scratch(stands: Hold) -> None:
    for again, counts in ((5, 5), (2000, 725)):
        slow = itertools.chain([725], itertools.repeat(again))
        made = stands(
            {t: lambda slow=slow: Stand({"a": takes(next(slow) * MS), "b": takes(MS)})
             for t in ("one",)} | {"all": lambda: Stand({"a": takes(3000 * MS), "b": takes(MS)})}
        )  # fmt: skip
        held = race.decide(named("a", "b"), 1.03, seconds=0.01)
        assert made.closed == 1
        assert held.times[1] is not None
        assert held.times[1].ratio == pytest.approx(counts)
        assert held.times[0] is not None
        assert held.times[0].median / held.times[1].median == pytest.approx(counts)  # told as well
    made = stands(alone(a=takes(9 * MS), b=takes(MS)))
    race.decide(named("a", "b"), 1.03, seconds=0.01)
    assert not made.closed


def test_a_function_that_is_faster_than_its_text_counts(stands: Hold) -> None:
    stands(alone(a=takes(8 * MS), b=takes(4 * MS)))

    def lasts(steps: int) -> Callable[[], list[None]]:
        return lambda: [None for _ in range(steps)]

    fast = Entrant(lasts(50_000), "numpy", {"name": "a"}, plain=lasts(500_000))
    assert fast.scale < 0.7
    slow = Entrant(lasts(500_000), "numpy", {"name": "a"}, plain=lasts(50_000))
    assert slow.scale == 1.0
    other = np.ones((900, 900))
    product = Entrant(lambda: other @ other, "numpy", {"name": "a"}, plain=lasts(9_000_000))
    assert product.scale == 1.0 or os.cpu_count() == 1
    times = race.hold([fast, *named("b")], seconds=0.01).times[1]
    assert times is not None
    assert times.ratio == pytest.approx(2 * fast.scale)


def test_who_has_help_from_threads_is_not_raced_in_this_process() -> None:
    other = np.ones((900, 900))
    for runs, here in (([lambda: 1, lambda: 2], True), ([lambda: 1, lambda: other @ other], False)):
        assert race._here([Entrant(run, "numpy") for run in runs]) is here
    assert race._here([Entrant(lambda: other @ other)])  # it has no text


# --- processes -----------------------------------------------------------------------------------

SLOW = "import numpy as np\nimport time\ndef f(x):\n    time.sleep(0.001)\n    return x * 2\n"
DIES = "import os\nN = [0]\ndef f(x):\n    N[0] += 1\n    if N[0] > 6: os._exit(3)\n    return x\n"


@pytest.fixture
def own() -> Iterator[race_processes.Children]:
    race_processes.children().close()
    yield race_processes.children()
    race_processes.children().close()


def gone(pid: int) -> bool:
    """Whether it has ended and nobody needs to wait for it."""
    for _ in range(400):
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.025)
    return False


def test_arrays_arrive_as_they_are() -> None:
    a = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    given = [a, np.float32(2.5), -0.0, float("inf"), np.array(3), np.zeros((0, 2), np.int8)]
    stream = io.BytesIO()
    racer.write(stream, {"do": "begin"}, given)
    stream.seek(0)
    facts, got = racer.read(stream)
    assert facts == {"do": "begin"}
    assert [type(x) for x in got] == [type(x) for x in given]
    assert str(got) == str(given)
    assert got[0].flags.f_contiguous
    assert got[1].dtype == np.float32


def test_nothing_is_unpickled(own: race_processes.Children, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "sprung"),)

    with pytest.raises(ValueError, match="Object arrays"):
        own.get("numpy", "one").ask({"do": "begin"}, [np.array([Trap()], object)])
    planted = io.BytesIO()
    np.save(planted, np.array([Trap()], object), allow_pickle=True)
    child = own.get("numpy", "one")
    child.ask({"do": "begin"})
    child._orders.write(b'{"do": "begin", "arrays": ["ndarray"]}\n' + planted.getvalue())
    child._orders.flush()
    with pytest.raises(LostError):
        child._answer(60)
    assert not (tmp_path / "sprung").exists()


def test_who_dies_drops_out_and_the_race_goes_on(own: race_processes.Children) -> None:
    for threads in ("one", "all"):
        own._of["other", threads] = race_processes.Child("numpy", threads)
    entrants = [
        Entrant(None, "numpy", {"source": SLOW, "name": "f"}),
        Entrant(None, "other", {"source": DIES, "name": "f"}),
    ]
    held = race.hold(entrants, [np.ones(3)], 0.1)
    assert held.times[0] is not None
    assert held.times[0].rounds >= 3
    assert held.times[1] is None
    assert held.faster(1.03) == [False, False]


def test_a_process_that_dies_between_races_is_started_again(own: race_processes.Children) -> None:
    entrants = [Entrant(None, "numpy", {"source": SLOW, "name": "f"})] * 2
    first = own.get("numpy", "one")
    assert race.hold(entrants, [np.ones(3)], 0.05).times[1] is not None
    os.kill(first.pid, signal.SIGKILL)
    assert race.hold(entrants, [np.ones(3)], 0.05).times[1] is not None
    assert own.get("numpy", "one").pid != first.pid
    assert gone(first.pid)
    (result,) = race.results(entrants[0], [np.ones(3)])
    assert result.tolist() == [2, 2, 2]


PARENT = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
import numpy as np
from tessera import race, race_processes
entrants = [race.Entrant(None, "numpy", {{"source": {SLOW!r}, "name": "f"}})] * 2
race.hold(entrants, [np.ones(3)], 0.01)
print(*race_processes.children().pids(), flush=True)
if "end" in sys.argv:
    sys.exit()
if "fork" in sys.argv and not os.fork():  # has no part in its parent's processes
    assert race_processes.children().pids() == []
    sys.exit()
while True:
    race.hold(entrants, [np.ones(3)], 0.5)
"""


@pytest.mark.parametrize("how", ["end", "SIGINT", "SIGTERM", "SIGKILL", "fork"])
def test_processes_end_with_their_parent(how: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    if how == "fork":
        time.sleep(0.3)
        assert not any(gone_now(pid) for pid in pids)
    if how != "end":
        parent.send_signal(signal.SIGINT if how == "fork" else getattr(signal, how))
    try:
        parent.wait(60)
    finally:
        parent.kill()
    assert all(gone(pid) for pid in pids)
    assert list(tmp_path.iterdir()) == []


def gone_now(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_who_spins_is_waited_for(own: race_processes.Children) -> None:
    code = "import time\nprint('on', flush=True)\nend = time.monotonic() + 60\n"
    code += "while time.monotonic() < end: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as spinning:
        assert spinning.stdout is not None
        spinning.stdout.readline()
        assert not race_processes.asleep([spinning.pid], own=False, limit_s=0.05)
        spinning.kill()
    child = own.get("numpy", "one")
    assert race_processes.asleep([child.pid], own=False, limit_s=30)
    stop = threading.Event()
    thread = threading.Thread(target=lambda: [None for _ in iter(stop.is_set, True)])
    thread.start()
    assert not race_processes.asleep([], limit_s=0.05)
    stop.set()
    thread.join()
    assert race_processes.asleep([], limit_s=30)
