"""Who is the fastest of programs in several spellings, under the library that is to run them."""

from __future__ import annotations

import functools
import importlib.util
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tessera import race
from tessera.clock import Clock
from tessera.drop_in import DropIn
from tessera.emit import IDIOMS, compile_source, emit
from tessera.errors import Error, UsageError
from tessera.frameworks import Run
from tessera.frontends.traced import parts
from tessera.graph import Graph
from tessera.options import Options
from tessera.race import Entrant, Race
from tessera.special_values import differs_at_edges
from tessera.types import Arguments, Array, Function, Object, Value

_RUNS = 6  # of each program, the least that races take
ALIKE = 1.02  # times that close are the same
_FINALISTS = 3  # programs that are also tried in other idioms
HOPE = 1.5  # what another spelling may gain
_DUEL_S = 0.03  # seconds for a first comparison of two spellings


def medians_of(held: Race) -> list[float]:
    return [math.inf if t is None else t.median for t in held.times]


@dataclass
class Contestant:
    """One spelling of one program; `run` gives its results."""

    run: Run
    graph: Graph
    source: str
    derivation: str = ""
    idioms: tuple[str, ...] = ()
    place: int = 0  # of its program among all, the cheapest by the model first
    entrant: Entrant = field(default_factory=Entrant)


def fastest_first(
    contestants: Sequence[Contestant], medians: Sequence[float], near: float = ALIKE
) -> list[int]:
    """All but the first; of those within the noise of the fastest, the plainest spelling first, and
    of those the one that the model takes for the cheapest."""
    order = sorted(range(1, len(contestants)), key=lambda n: medians[n])
    alike = [n for n in order if medians[n] < medians[order[0]] * near]
    plain = sorted(alike, key=lambda n: (len(contestants[n].idioms), contestants[n].place))
    return plain + order[len(alike) :]


class Arena:
    """The original and what may be faster, ready to run with the same arguments."""

    def __init__(
        self,
        programs: Sequence[tuple[Graph, str, str]],
        flavour: str,
        drop_in: DropIn,
        clock: Clock,
    ) -> None:
        if importlib.util.find_spec(flavour) is None:
            raise UsageError(
                f"programs for {flavour} are timed before one is chosen, and {flavour} is not "
                f"installed: pip install {flavour}"
            )
        self._flavour, self._drop_in, self._clock = flavour, drop_in, clock
        self.skipped: list[str] = []  # sources that the library refuses, and why
        graph, source, _ = programs[0]
        own = self._entrant(graph, source)
        if own.run is not None:
            args, kwargs = drop_in.bind(drop_in.arrays)
            call = functools.partial(drop_in.original, *args, **kwargs)
            own = Entrant(call, own.library, own.text, own.run)
        self.original = Contestant(self._results(own), graph, source, entrant=own)
        if own.run is not None:
            start = time.perf_counter()
            with np.errstate(all="ignore"):
                self.original.run()
            clock.require(_RUNS * len(programs) * (time.perf_counter() - start))
        self.others = [c for p in programs if (c := self._contestant(*p)) is not None]
        for place, contestant in enumerate(self.others):
            contestant.place = place

    def _entrant(self, graph: Graph, source: str, **spelling: Object) -> Entrant:
        """What races: here and in a process of NumPy's, or in one of another library's alone."""
        drop_in = self._drop_in
        text = {"source": drop_in.plain(graph, self._flavour, **spelling), "name": drop_in.name}
        if self._flavour != "numpy":
            return Entrant(None, self._flavour, text)
        args, kwargs = drop_in.bind_source(drop_in.arrays)
        made = compile_source(source, drop_in.name)
        return Entrant(functools.partial(made, *args, **kwargs), "numpy", text)

    def _results(self, entrant: Entrant) -> Run:
        return entrant.run or functools.partial(race.results, entrant, self._drop_in.arrays)

    def _contestant(
        self, graph: Graph, source: str, derivation: str, idioms: tuple[str, ...] = ()
    ) -> Contestant | None:
        self._clock.require()
        try:
            if _code(compile_source(source, self._drop_in.name)) == _code(self._drop_in.original):
                return None  # only noise would tell them apart
            entrant = self._entrant(graph, source, idioms=idioms)
            run = self._results(entrant)
            if entrant.run is not None:
                with np.errstate(all="ignore"):
                    run()
        except Error:
            raise
        except Exception as error:  # the library's own refusal
            self.skipped.append(f"{type(error).__name__}: {error}\n{source}")
            return None
        return Contestant(run, graph, source, derivation, idioms, entrant=entrant)

    def race(self, contestants: Sequence[Contestant], seconds: float) -> Race:
        """How long each takes."""
        until = time.monotonic() + self._clock.left()
        held = race.hold([c.entrant for c in contestants], self._drop_in.arrays, seconds, until)
        for n, why in held.failed.items():
            self.skipped.append(f"{why}\n{contestants[n].source}")
        return held

    def decide(
        self, contestants: Sequence[Contestant], gain: float, seconds: float, budget: float
    ) -> Race:
        """The race that counts."""
        entrants = [c.entrant for c in contestants]
        budget = min(budget, self._clock.left())
        return race.decide(entrants, gain, self._drop_in.arrays, seconds, budget)

    def finalists(self, seconds: float, below: float) -> list[Contestant]:
        """The original, the fastest programs, and those in the idioms that make them faster.

        The first of the others is the original's own source: the same program, which needs no
        proof but that of emission.
        """
        medians = medians_of(self.race([self.original, *self.others], seconds))
        order = sorted(range(len(self.others)), key=lambda n: medians[n + 1])[:_FINALISTS]
        best = [self.others[n] for n in order if medians[n + 1] < HOPE * below]
        idiomatic = []
        for plain in best:
            now = plain
            for idiom in IDIOMS[self._flavour]:
                idioms = (*now.idioms, idiom)
                source = self._drop_in.source(plain.graph, self._flavour, idioms=idioms)
                if source == now.source:
                    continue
                other = self._contestant(plain.graph, source, plain.derivation, idioms)
                if other is None:
                    continue
                times = self.race([now, other], _DUEL_S).times[1]
                if times is not None and times.ratio > ALIKE:
                    now = other
                    now.place = plain.place
            if now is not plain:
                idiomatic.append(now)
        return [self.original, *best, *idiomatic]

    def differs(self, contestant: Contestant) -> str:
        """How the source's results differ from the program's; empty where only by rounding.

        Against the program in f64: at most four times the original's error, or what adding in
        another order may cost.
        """
        arrays = self._drop_in.arrays
        with np.errstate(all="ignore"):
            ours, theirs = _results(contestant.run()), _results(self.original.run())
            plain = compile_source(emit(self.original.graph, name="plain"), "plain")
            exact = _results(plain(*map(_widened, arrays)))
        if len(theirs) != len(exact):  # a constant array of the function's, which is no program's
            theirs = _results(self._drop_in.of_program(self.original.run()))
            if len(ours) != len(exact):
                ours = _results(self._drop_in.of_program(contestant.run()))
        largest = max([1.0, *(float(np.size(a)) for a in arrays)])
        inputs = max([1.0, *(_magnitude(a) for a in arrays)])
        for n, (a, b, x) in enumerate(zip(ours, theirs, exact, strict=True)):
            where = f"output {n + 1}" if len(ours) > 1 else "the output"
            if (a.dtype, a.shape) != (b.dtype, b.shape):
                return f"{where} is {a.dtype} {a.shape} instead of {b.dtype} {b.shape}"
            if b.dtype.kind != "f":
                if not np.array_equal(a, b):
                    return f"{where} differs"
                continue
            known = np.isfinite(b) & np.isfinite(x)
            if not np.isfinite(a[known]).all():
                return f"{where} is not finite where the original is"
            error = np.abs(np.subtract(a, x, dtype=np.float64)[known]).max(initial=0.0)
            was = np.abs(np.subtract(b, x, dtype=np.float64)[known]).max(initial=0.0)
            rounding = float(np.finfo(b.dtype).eps) * (largest**0.5)
            allowed = max(4 * was, 64 * rounding * max(inputs, _magnitude(b[known])))
            if error > allowed:
                return f"{where} is off by {error:.3g}, the original by {was:.3g}"
        return ""

    def differs_at_edges(self, contestant: Contestant, options: Options) -> str:
        """How the source's NaN and infinities (at level bitwise: bits) differ from the original's,
        under NumPy."""
        bits = options.level == "bitwise"
        if self._flavour != "numpy" or not (bits or self.original.graph.asks_for_nan):
            return ""
        drop_in = self._drop_in
        made = compile_source(contestant.source, drop_in.name)
        given, fixed = drop_in.arrays[: drop_in.given], drop_in.arrays[drop_in.given :]

        def original(*arrays: Array) -> Value:
            args, kwargs = drop_in.bind([*arrays, *fixed])
            return drop_in.original(*args, **kwargs)

        def rewritten(*arrays: Array) -> Value:
            args, kwargs = drop_in.bind_source([*arrays, *fixed])
            return made(*args, **kwargs)

        return differs_at_edges(original, rewritten, given, options.seed, bits=bits)


def _code(function: Function) -> Arguments:
    code = getattr(function, "__code__", None)
    return (function,) if code is None else (code.co_code, code.co_names, code.co_consts)


def _results(value: Object) -> list[Array]:
    """The arrays of a result, however nested; numbers between them are not the program's."""
    return [np.asarray(v) for v in parts(value) if hasattr(v, "dtype")]


def _widened(array: Array) -> Array:
    wide = np.asarray(array).dtype.kind == "f"
    return np.asarray(array, np.float64) if wide else array


def _magnitude(array: Array) -> float:
    values = np.abs(np.asarray(array, np.float64))
    return float(values[np.isfinite(values)].max(initial=0.0))
