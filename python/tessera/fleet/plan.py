"""The tasks of one program, in waves: what each search finds bounds those of later waves alone, so
that the winners are the same for any number of workers and any order of their answers.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tessera import _core
from tessera.errors import UnsupportedError
from tessera.fleet.messages import (
    Proposal,
    Request,
    options_text,
    proposals_of,
    race_request,
    search_request,
)
from tessera.fleet.tasks import computes_otherwise
from tessera.graph import Graph
from tessera.options import Options
from tessera.store.entry import Entry
from tessera.types import Record

ENGINES = ("patterns", "synth", "mutate", "mugraph")
_OF_WHOLES = ("synth", "mutate")  # which also look at all parts at once
_OF_PARTS = ("patterns", "mugraph")  # which give kernels to what synthesis leaves
_LARGE, _SLICES, _WAVE = 12, 4, 2  # operators; slices of a larger part's search, two at a time
Answers = Mapping[str, Entry]  # by key
Plan = Generator[list[Request], Answers, Entry]


@dataclass(frozen=True)
class Settings:
    """How a campaign works, the same for all of its programs."""

    options: Options = field(default_factory=Options)
    steps: int = 20_000  # of each search
    keep: int = 2  # winners by cost model, for each part and engine
    engines: Sequence[str] = ENGINES
    measure: bool = True
    check: float = 1.0  # share of results that the driver proves again itself
    patience: float = 900.0  # seconds until a task is asked for again, elsewhere
    tries: int = 3
    wait: float = 60.0  # a shard, for others' answers

    @functools.cached_property
    def target(self) -> str:
        """The machine that is searched for, as text."""
        return _core.resolve_target(self.options.fields())

    def cuts(self, part: _core.Graph, engine: str) -> int:
        """Slices of a search: a matter of the program, not of the workers."""
        return _SLICES if part.num_ops > _LARGE and engine != "patterns" else 1


@dataclass
class Liar(Exception):  # noqa: N818 (told to the campaign, which asks again)
    """Tasks whose answers turned out to be wrong."""

    keys: list[str]


class ProgramPlan:
    """What one program needs; `steps` yields requests and is sent their answers."""

    def __init__(self, name: str, program: Graph, settings: Settings) -> None:
        for argument, (_, shape) in program.input_types().items():
            if any(isinstance(extent, str) for extent in shape):
                raise UnsupportedError(f"{argument} has symbolic extents; bind them first")
        self.name, self.program, self.settings = name, program.core, settings
        here, special = _core.entry_key(self.program, {}), program.asks_for_nan
        self._search = {
            "steps": str(settings.steps), "keep": str(settings.keep), "tools": here["tools"],
            "options": options_text(settings.options, special, False), "target": settings.target,
        }  # fmt: skip
        self._measure = {"name": name, "steps": str(settings.steps), "device": here["device"],
                         "tools": here["tools"],
                         "options": options_text(settings.options, special, True)}  # fmt: skip
        engines = [e for e in settings.engines if e not in settings.options.disable]
        parts = {_core.program_hash(part): part for part in _core.parts(self.program)}
        self._units = [(part, engine) for part in parts.values() for engine in engines]
        if _core.program_hash(self.program) not in parts:
            self._units += [(self.program, e) for e in engines if e in _OF_WHOLES]
        self._kernels = [e for e in engines if e in _OF_PARTS]
        self._known = parts
        self.winners: list[Proposal] = []

    def tasks(self) -> int:
        """How many there will be, about."""
        return sum(self.settings.cuts(*unit) for unit in self._units) + 1 + self.settings.measure

    def run(self) -> Plan:
        """The waves, then compilation, then the race; returns the measured answer."""
        found: list[list[Proposal]] = [[] for _ in self._units]
        self._tried = [set[str]() for _ in self._units]
        asked: list[Request] = []
        for wave in range(-(-_SLICES // _WAVE)):
            requests = self._wave(wave, found)
            if not requests:
                break
            answers = yield list(requests)
            for request, place in requests.items():
                found[place] += _found(request, answers[request.key])
                self._tried[place] |= set(answers[request.key]["tried"].split())
            asked += requests
        self.winners = [p for some in found for p in self._best(some)]
        yield from self._parts_of_winners(found, asked)
        race = self._race("prepare", asked)
        prepared = (yield [race])[race.key]
        self._require_honest(json.loads(prepared["wrong"] or "[]"))
        if not self.settings.measure:
            return prepared
        race = self._race("measure", asked)
        measured = (yield [race])[race.key]
        self._require_honest(self._refuted(json.loads(measured["raced"] or "[]")))
        return measured

    def _wave(self, wave: int, found: Sequence[Sequence[Proposal]]) -> dict[Request, int]:
        requests = {}
        for place, (part, engine) in enumerate(self._units):
            best = self._best(found[place])
            bound = best[-1].cost if len(best) == self.settings.keep else 0.0
            known = bound, self._tried[place]
            count = self.settings.cuts(part, engine)
            for index in range(count)[_WAVE * wave : _WAVE * (wave + 1)]:
                requests[self._request(part, engine, (index, count), *known)] = place
        return requests

    def _request(self, part: _core.Graph, engine: str, slices: tuple[int, int] = (0, 1),
                 bound: float = 0.0, tried: Iterable[str] = ()) -> Request:  # fmt: skip
        where = {"engine": engine, "slice": f"{slices[0]} {slices[1]}", "bound": repr(bound),
                 "tried": " ".join(sorted(tried))}  # fmt: skip
        return search_request(part, {**where, **self._search})

    def _parts_of_winners(
        self, found: Sequence[Sequence[Proposal]], asked: list[Request]
    ) -> Generator[list[Request], Answers, None]:
        """What has less work may have parts of its own, which kernels are sought for, too."""
        for (_, engine), some in zip(self._units, found, strict=True):
            if engine != "synth" or not (best := self._best(some)):
                continue
            less = _core.parse(best[0].told["graph"])
            new = [p for p in _core.parts(less) if _core.program_hash(p) not in self._known]
            requests = [self._request(part, e) for part in new for e in self._kernels]
            if not requests:
                continue
            answers = yield requests
            asked += requests
            pairs, tasks = [], list(best[0].tasks)
            for i, part in enumerate(new):
                mine = requests[i * len(self._kernels) : (i + 1) * len(self._kernels)]
                kernels = [p for r in mine for p in _found(r, answers[r.key])]
                if chosen := self._best(kernels)[:1]:
                    pairs.append((part, _core.parse(chosen[0].told["graph"])))
                    tasks += chosen[0].tasks
            if pairs:
                graph = str(_core.with_parts(less, pairs))
                told = {**best[0].told, "graph": graph, "between": best[0].told["graph"]}
                self.winners.append(Proposal(told, 0.0, tuple(tasks)))

    def _best(self, found: Sequence[Proposal]) -> list[Proposal]:
        """The winners: by cost, then by text; slices may find the same."""
        different = {p.told["graph"]: p for p in sorted(found, key=lambda p: p.tasks)}
        by_cost = sorted(different.values(), key=lambda p: (p.cost, p.told["graph"]))
        return by_cost[: self.settings.keep]

    def _race(self, task: str, asked: Sequence[Request]) -> Request:
        tasks = {"tasks": " ".join(r.key for r in asked)}
        return race_request(task, self.program, self.winners, {**self._measure, **tasks})

    def _refuted(self, raced: Sequence[Record]) -> list[int]:
        """Winners that whoever measured found to be wrong."""
        texts = [r["graph"] for r in raced if r["fate"] in ("refuted", "check failed")]
        hashes = {_core.program_hash(_core.parse(text)) for text in texts}

        def whole(told: Mapping[str, str]) -> str:
            part, graph = _core.parse(told["of"]), _core.parse(told["graph"])
            if _core.program_hash(part) != _core.program_hash(self.program):
                graph = _core.with_parts(self.program, [(part, graph)])
            return _core.program_hash(graph)

        return [i for i, p in enumerate(self.winners) if hashes and whole(p.told) in hashes]

    def _require_honest(self, suspects: Sequence[int]) -> None:
        """Raises Liar where a winner that a worker calls wrong is wrong."""
        lies: list[str] = []
        for i in suspects:
            winner = self.winners[i]
            part, other = (Graph.parse(winner.told[name]) for name in ("of", "graph"))
            level = self.settings.options.level
            if computes_otherwise(part, other) or (
                _core.verify(part.core, other.core, level, 0, budget=60.0)["verdict"] == "refuted"
            ):
                lies += winner.tasks
        if lies:
            raise Liar(lies)


def _found(request: Request, entry: Entry) -> list[Proposal]:
    return [] if entry["failed"] else proposals_of(request.entry, entry)
