"""Races between ways of computing the same, in which nobody disturbs anybody.

Every library runs in processes of its own, one with a single thread and one with all, which wait
for their turns (racer.py); the better counts. A turn begins when all other threads of the race are
asleep. Short calls on one thread race in this process.
"""

from __future__ import annotations

import contextlib
import functools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from tessera.frameworks import Run
from tessera.race_processes import Child, Load, LostError, activity, asleep, children
from tessera.racer import turn
from tessera.types import Fields, Record, Value, Values

_SHORT_NS = 200_000  # calls for which being called matters, and threads do not
_SLOW_NS = 10_000_000  # calls that need no other call before them
_TURN_NS = {"here": 200_000, "one": 1_000_000, "all": 1_000_000}
_HELPED = 0.05  # of the time of a call, from where on other threads take part in it
_ENOUGH = 24  # samples, for bounds that mean something
_MATTERS = 1.05  # a gain that nobody wants to miss
_BELIEVED = 10.0  # more than that is timed again from scratch
_ATTEMPTS = 3


@dataclass(frozen=True)
class Entrant:
    """One way to compute what all in a race compute.

    `run` is a call in this process. `text` is what the process of `library` makes one of: `source`
    of a function of the race's arrays and its `name`; or a `graph`, what to `disable` and whether
    to be `exact`. `plain` is a call of that text in this process, where it stands for another
    function.
    """

    run: Run | None = None
    library: str = ""
    text: Fields = field(default_factory=dict)
    plain: Run | None = None

    @functools.cached_property
    def is_short(self) -> bool:
        """Whether calls here are short, and wake no other threads."""
        assert self.run is not None
        looks: list[Record] = []
        quiet = asleep()
        while len(looks) < 3 and not any(s["wall"] > _SLOW_NS for s in looks):
            try:
                looks.append(turn(self.run, 1, False))
            except Exception:  # it drops out wherever it is
                return True
        wakes = quiet and activity((), True)[0]  # they look for work for a while
        least = min(looks, key=lambda s: float(s["wall"]))
        return (least["wall"] < _SHORT_NS and not wakes
                and bool(least["helpers"] <= _HELPED * least["wall"]))  # fmt: skip

    @functools.cached_property
    def scale(self) -> float:
        """Of the time of its text, what the function itself takes; 1 where it takes more.

        The text is what processes of their own can run; no figure is to be better for it. Where
        other threads help here, as in products, there is no telling, and that is most of the time.
        """
        if self.run is None or self.plain is None:
            return 1.0
        asleep()
        least, end = [float("inf")] * 2, time.monotonic() + 0.2
        for n in range(5):
            if n == 0 or time.monotonic() < end:
                for k, run in enumerate((self.run, self.plain)):
                    look = turn(run, 1, n == 0)
                    if look["helpers"] > _HELPED * look["wall"]:
                        return 1.0
                    least[k] = min(least[k], look["cpu"])
        return min(1.0, least[0] / least[1])


@dataclass(frozen=True)
class Times:
    """Seconds of a call, and how often as fast as the first entrant it is, taken turn by turn."""

    least: float
    median: float
    spread: float = 0.0  # what the middle half of the samples differ by, in medians
    ratio: float = 1.0
    low: float = 1.0  # the true median of the ratios lies between these two
    high: float = 1.0
    rounds: int = 1
    threads: str = "here"  # one, all, or here: in this process

    def faster(self, gain: float) -> bool | None:
        """Than the first, by this factor; None where that is too noisy to tell."""
        if self.ratio >= gain and self.low > 1:
            return True
        return None if self.high > max(gain, 1.0) * _MATTERS else False

    def __str__(self) -> str:
        where = {"one": "one thread", "all": "all threads", "here": "in this process"}
        least, middle = (f"{s * 1e6:.3g} us" for s in (self.least, self.median))
        return f"median {middle}, least {least}, spread {self.spread:.0%}, {where[self.threads]}"

    def json(self) -> Record:
        """Plain data, in microseconds."""
        return {"least_us": self.least * 1e6, "median_us": self.median * 1e6,
                "spread": self.spread, "threads": self.threads, "rounds": self.rounds}  # fmt: skip


@dataclass
class Race:
    """How a race ended."""

    times: list[Times | None]  # in the order of the entrants; None of those that dropped out
    provisional: bool = False  # others kept the machine busy: times are one thread's, where told
    failed: dict[int, str] = field(default_factory=dict)  # why entrants had no seat

    def faster(self, gain: float) -> list[bool | None]:
        """Of each entrant, whether it is that much faster than the first."""
        others = self.times[1:]
        return [False, *(False if t is None else t.faster(gain) for t in others)]

    def undecided(self, gain: float) -> bool:
        """Whether nobody is known to be faster, but somebody may be."""
        verdicts = self.faster(gain)
        return True not in verdicts and None in verdicts


@dataclass
class _Seat:
    """An entrant in one process."""

    entrant: int
    threads: str
    turn: Callable[[int, bool], Record]
    samples: dict[int, Record] = field(default_factory=dict)  # by round, -1 the first look
    gone: bool = False

    def sample(self, number: int, repeats: int, warm: bool) -> None:
        """Has its turn; what fails leaves the race."""
        try:
            self.samples[number] = self.turn(repeats, warm)
        except Exception:  # whatever it is: the caller sees it where this is the winner
            self.gone = True

    def median(self, kind: str) -> float:
        return float(median(s[kind] for s in self.samples.values()))

    def on_one_thread(self) -> bool:
        """Whether its thread's own time is all that it takes."""
        return all(s["helpers"] <= _HELPED * s["wall"] for s in self.samples.values())


def _here(entrants: Sequence[Entrant]) -> bool:
    """Whether calls are so short, and single-threaded, that they race in this process."""
    runs = all(e.run is not None for e in entrants)
    return runs and (not all(e.library for e in entrants) or all(e.is_short for e in entrants))


class _Ring:
    """One race: seats, turns, and what came of them."""

    def __init__(
        self, entrants: Sequence[Entrant], arrays: Values, seconds: float, until: float
    ) -> None:
        self._entrants, self._arrays = entrants, arrays
        self._seconds, self._until = seconds, until
        self._looked = 0.0  # seconds of first looks
        self._own = True  # threads of this process are waited for
        self._load = Load(children().pids)
        self._disturbed = False
        self._failed: dict[int, str] = {}
        self._begun: dict[Child, bool] = {}

    def run(self, here: bool) -> Race:
        try:
            return self._summary(self._raced(here))
        finally:
            for child in self._begun:  # arrays may be large
                if child.alive:
                    with contextlib.suppress(LostError):
                        child.ask({"do": "begin"})

    def _raced(self, here: bool) -> list[_Seat]:
        seats: list[_Seat] = []
        for threads in ("here",) if here else ("one", "all"):
            for n, entrant in enumerate(self._entrants):
                late = self._looked > 4 * self._seconds or time.monotonic() > self._until
                if threads == "all" and late:
                    continue
                seat = self._seat(n, entrant, threads)
                # Where no thread helps, all threads are one.
                if seat is not None and not (threads == "all" and seat.on_one_thread()):
                    seats.append(seat)
        self._end = min(time.monotonic() + self._seconds, self._until)
        self._late = min(self._end + 3 * self._seconds, self._until)
        once = {id(s): s.median("wall") for s in seats}
        shuffle = random.Random(0).shuffle
        near, rounds = list(seats), 0
        while near and (rounds < 3 or self._goes_on(rounds, near)):
            if rounds in (0, 3):
                first = min((s.median("wall") for s in near if s.entrant == 0), default=1e300)
                near = [s for s in near if s.entrant == 0 or s.median("wall") < 3 * first + 10_000]
            if time.monotonic() > self._late:
                break
            # In no fixed order: who always came behind the slowest would find its caches.
            shuffle(near)
            for seat in near:
                self._wait()
                wall = once[id(seat)]
                repeats = max(1, min(1000, int(_TURN_NS[seat.threads] / max(wall, 1))))
                seat.sample(rounds, repeats, wall < _SLOW_NS)
            rounds += 1
            # Beside other work threads wait for each other, and tell nothing.
            self._disturbed |= self._load.is_busy()
            busy = self._disturbed
            near = [s for s in near if not s.gone and not (busy and s.threads == "all")]
        for seat in seats:
            if len(seat.samples) > 3:
                del seat.samples[-1]
        return [s for s in seats if not s.gone]

    def _goes_on(self, rounds: int, near: Sequence[_Seat]) -> bool:
        # Few samples say little: a slow program gets more time, one without a rival needs none.
        if len({s.entrant for s in near}) == 1 < len(self._entrants):
            return rounds < 8
        return rounds < 500 and time.monotonic() < (self._end if rounds >= _ENOUGH else self._late)

    def _wait(self) -> None:
        """Until all others are asleep."""
        if not asleep(children().pids(), self._own):
            self._disturbed = True
            self._own = False

    def _seat(self, n: int, entrant: Entrant, threads: str) -> _Seat | None:
        if threads == "here":
            run = entrant.run
            assert run is not None
            seat = _Seat(n, threads, functools.partial(turn, run))
        elif time.monotonic() > self._until:  # processes take a while to start
            return None
        else:
            try:
                child = self._prepared(n, entrant, threads)
            except (LostError, OSError, ValueError) as error:
                self._failed[n] = str(error)
                return None
            seat = _Seat(n, threads, functools.partial(_ask_turn, child, n))
        self._wait()
        for _ in range(2):  # the better: who is left out for one interruption does not come back
            before = seat.samples.get(-1)
            seat.sample(-1, 1, False)
            self._looked += 1e-9 * seat.samples.get(-1, {"wall": 0.0})["wall"]
            if seat.gone or seat.samples[-1]["wall"] > _SLOW_NS:
                break
            if before is not None and before["wall"] < seat.samples[-1]["wall"]:
                seat.samples[-1] = before
        return None if seat.gone else seat

    def _prepared(self, n: int, entrant: Entrant, threads: str) -> Child:
        child = children().get(entrant.library, threads)
        if child not in self._begun:
            self._begun[child] = True
            child.told({"do": "begin"}, self._arrays)
        child.told({"do": "prepare", "key": n, **entrant.text})
        return child

    def _summary(self, seats: Sequence[_Seat]) -> Race:
        busy = self._disturbed or self._load.is_busy()
        single = [s for s in seats if s.threads != "all" and s.on_one_thread()]
        by_thread = busy and {s.entrant for s in single} == {s.entrant for s in seats}
        kind = "cpu" if by_thread else "wall"
        best: dict[int, _Seat] = {}
        for seat in single if by_thread else seats:
            now = best.get(seat.entrant)
            if now is None or seat.median(kind) < now.median(kind):
                best[seat.entrant] = seat
        scaled = {}
        for n, seat in best.items():
            scale = 1e-9 * (1.0 if seat.threads == "here" else self._entrants[n].scale)
            scaled[n] = {r: s[kind] * scale for r, s in seat.samples.items()}
        first = scaled.get(0, {})
        times = [
            _times(scaled[n], first, best[n].threads) if n in best else None
            for n in range(len(self._entrants))
        ]
        return Race(times, busy, self._failed)


def _times(own: Mapping[int, float], first: Mapping[int, float], threads: str) -> Times:
    samples = sorted(max(s, 1e-10) for s in own.values())
    middle = median(samples)
    spread = samples[3 * len(samples) // 4] - samples[len(samples) // 4]
    ratios = [first[r] / max(own[r], 1e-10) for r in own.keys() & first.keys()]
    if not ratios and first:
        ratios = [median(first.values()) / middle]
    low, high = bounds(ratios) if ratios else (0.0, float("inf"))
    return Times(samples[0], middle, spread / middle, median(ratios) if ratios else 1.0, low, high,
                 len(samples), threads)  # fmt: skip


def bounds(ratios: Sequence[float]) -> tuple[float, float]:
    """Between what their true median lies with three sigmas, however heavy the tails.

    >>> bounds([1.0, 1.1, 1.2])
    (1.0, 1.2)
    """
    if len(ratios) < 3:  # says little
        return min(ratios) / 1.5, max(ratios) * 1.5
    rank = max(0, int(len(ratios) / 2 - 1.5 * len(ratios) ** 0.5))
    ordered = sorted(ratios)
    return ordered[rank], ordered[-1 - rank]


def hold(
    entrants: Sequence[Entrant],
    arrays: Values = (),
    seconds: float = 1.0,
    until: float = float("inf"),
) -> Race:
    """One race of about so many seconds, and not beyond `until` (time.monotonic)."""
    with children().lock:
        here = _here(entrants)
        race = _Ring(entrants, arrays, seconds, until).run(here)
        if race.failed and not here and all(e.run for e in entrants):  # text that is not enough
            race = _Ring(entrants, arrays, seconds, until).run(True)
        return race


def decide(
    entrants: Sequence[Entrant],
    gain: float,
    arrays: Values = (),
    seconds: float = 1.0,
    budget: float = float("inf"),
) -> Race:
    """A race that is run again, for longer, while it is too noisy to tell whether anybody is
    faster than the first by `gain`, and `budget` seconds have not passed.

    Gains of more than 10x are timed again from scratch, and the smaller ones count.
    """
    until = time.monotonic() + budget
    for attempt in range(1, _ATTEMPTS + 1):
        race = hold(entrants, arrays, seconds * attempt, until)
        if not race.undecided(gain) or time.monotonic() + seconds > until:
            break
    return _confirmed(race, entrants, arrays, seconds, until)


def _confirmed(
    race: Race, entrants: Sequence[Entrant], arrays: Values, seconds: float, until: float
) -> Race:
    doubtful = [n for n, t in enumerate(race.times) if t is not None and t.ratio > _BELIEVED]
    if not doubtful:
        return race
    chosen = [entrants[n] for n in (0, *doubtful)]
    with children().lock:
        children().close()
        again = _Ring(chosen, arrays, seconds, until).run(not all(e.library for e in chosen))
    times = list(race.times)
    if again.times[0] is not None and times[0] is not None:  # what made the others look so fast?
        times[0] = min(times[0], again.times[0], key=lambda x: x.median)
    for n, t in zip(doubtful, again.times[1:], strict=True):
        before = times[n]
        times[n] = t if t is None or before is None else min(t, before, key=lambda x: x.ratio)
    return Race(times, race.provisional or again.provisional, race.failed)


def results(entrant: Entrant, arrays: Values) -> list[Value]:
    """What the text of an entrant computes, in its library's own process."""
    with children().lock:
        return _ready(entrant, arrays).told({"do": "results", "key": 0})[1]


def least_on_one_thread(entrant: Entrant, arrays: Values, seconds: float) -> float:
    """Seconds of a call of its text, at best, of about so many seconds of them; no comparison."""
    with children().lock:
        child = _ready(entrant, arrays)
        least, end, repeats = float("inf"), time.monotonic() + seconds, 1
        for n in range(10_000):
            least = min(least, _ask_turn(child, 0, repeats, True)["wall"])
            repeats = max(1, min(1000, int(50_000 / max(least, 50))))
            if n >= 3 and time.monotonic() > end:
                break
        return least * 1e-9


def _ready(entrant: Entrant, arrays: Values) -> Child:
    """The process that holds an entrant's text, alone and on one thread."""
    child = children().get(entrant.library, "one")
    child.told({"do": "begin"}, arrays)
    child.told({"do": "prepare", "key": 0, **entrant.text})
    return child


def _ask_turn(child: Child, key: int, repeats: int, warm: bool) -> Record:
    return child.told({"do": "turn", "key": key, "repeats": repeats, "warm": warm})[0]
