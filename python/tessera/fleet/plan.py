"""The tasks of one program, in waves: what each search finds bounds those of later waves alone, so
that the winners are the same for any number of workers and any order of their answers.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
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
_WHOLE = ("patterns",)  # which is never cut
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

    def cuts(self, part: _core.Graph, engine: str) -> int:
        """Slices of a search: a matter of the program, not of the workers."""
        large = part.num_ops > _LARGE and engine not in _WHOLE
        return _SLICES if large and engine not in self.options.disable else 1


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
        options, special = settings.options, program.asks_for_nan
        fields = options.fields()
        facts = _core.entry_key(self.program, fields)
        self._search = {
            "steps": str(settings.steps), "keep": str(settings.keep), "tools": facts["tools"],
            "options": options_text(options, special, False),
            "target": _core.resolve_target(fields),
        }  # fmt: skip
        self._measure = {"name": name, "device": facts["device"], "tools": facts["tools"],
                         "options": options_text(options, special, True)}  # fmt: skip
        self.parts = _core.parts(self.program)
        self.engines = [e for e in settings.engines if e not in settings.options.disable]
        self.winners: list[Proposal] = []

    def tasks(self) -> int:
        """How many there will be, if nobody lies."""
        searches = sum(self.settings.cuts(p, e) for p in self.parts for e in self.engines)
        return searches + (2 if self.settings.measure else 0)

    def run(self) -> Plan:
        """The waves, then compilation, then the race; returns the measured answer."""
        found: dict[tuple[int, str], list[Proposal]] = {}
        asked: list[Request] = []
        answers: Answers = {}
        for wave in range(-(-_SLICES // _WAVE)):
            requests = self._wave(wave, found)
            if not requests:
                break
            answers = yield list(requests)
            for request, place in requests.items():
                found.setdefault(place, []).extend(_found(request, answers[request.key]))
            asked += requests
        self.winners = [p for some in found.values() for p in self._best(some)]
        if not self.settings.measure:
            return answers[asked[-1].key]
        race = self._race("prepare", asked)
        prepared = (yield [race])[race.key]
        self._require_honest(json.loads(prepared["wrong"] or "[]"))
        race = self._race("measure", asked)
        measured = (yield [race])[race.key]
        self._require_honest(self._refuted(json.loads(measured["raced"] or "[]")))
        return measured

    def _wave(self, wave: int, found: Mapping[tuple[int, str], list[Proposal]]
              ) -> dict[Request, tuple[int, str]]:  # fmt: skip
        requests = {}
        s = self.settings
        for i, part in enumerate(self.parts):
            for engine in self.engines:
                best = self._best(found.get((i, engine), []))
                bound = best[-1].cost if len(best) == s.keep else 0.0
                count = s.cuts(part, engine)
                for index in range(count)[_WAVE * wave : _WAVE * (wave + 1)]:
                    request = search_request(part, {
                        "engine": engine, "slice": f"{index} {count}", "bound": repr(bound),
                        **self._search,
                    })  # fmt: skip
                    requests[request] = (i, engine)
        return requests

    def _best(self, found: Sequence[Proposal]) -> list[Proposal]:
        """The winners: by cost, then by text; slices may find the same."""
        different = {p.told["graph"]: p for p in sorted(found, key=lambda p: p.task)}
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
            pair = (_core.parse(told["of"]), _core.parse(told["graph"]))
            return _core.program_hash(_core.with_parts(self.program, [pair]))

        return [i for i, p in enumerate(self.winners) if hashes and whole(p.told) in hashes]

    def _require_honest(self, suspects: Sequence[int]) -> None:
        """Raises Liar where a winner that a worker calls wrong is wrong."""
        lies = []
        for i in suspects:
            winner = self.winners[i]
            part, other = (Graph.parse(winner.told[name]) for name in ("of", "graph"))
            level = self.settings.options.level
            if computes_otherwise(part, other) or (
                _core.verify(part.core, other.core, level, 0, budget=60.0)["verdict"] == "refuted"
            ):
                lies.append(winner.task)
        if lies:
            raise Liar(lies)


def _found(request: Request, entry: Entry) -> list[Proposal]:
    return [] if entry["failed"] else proposals_of(request.entry, entry)
