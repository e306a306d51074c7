"""What goes to workers and comes back: entries of the store, and the checks that need no proof.

The key of a request follows from all that it asks, and its answer is kept under it: what is in the
store is not asked again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tessera import _core
from tessera.options import Options
from tessera.store.entry import Entry, RefusedError
from tessera.store.receive import program_of
from tessera.types import Object, Record

# Options that the work of others depends on; who measures has all of them.
_SEARCH = ("level", "accept", "seed", "tf32", "max_block_ops", "disable", "settings",
           "threads")  # fmt: skip
_MEASURE = (*_SEARCH, "target", "budget", "tune", "verify_seed")
_MOST_FOUND = 4096


@dataclass(frozen=True)
class Request:
    """One task: what is asked, and the key of its answer."""

    text: str
    entry: Entry = field(compare=False)

    @classmethod
    def of(cls, task: str, fields: Mapping[str, str]) -> Request:
        asked = {"task": task, **fields}
        told = {name: value for name, value in asked.items() if name != "program"}  # but its hash
        key = hashlib.sha256(json.dumps(told).encode()).hexdigest()
        entry = Entry({"kind": "proposals", "key": key, **asked})
        return cls(entry.text, entry)

    @property
    def key(self) -> str:
        return self.entry.key

    @property
    def task(self) -> str:
        return self.entry["task"]


@dataclass(frozen=True)
class Proposal:
    """A program that searches found for a part, and the keys of their tasks."""

    told: dict[str, str]  # what an optimisation is given: of, graph, origin, derivation, between
    cost: float
    tasks: tuple[str, ...]


def search_request(part: _core.Graph, fields: Mapping[str, str]) -> Request:
    """Looks with one engine through one slice of what there is for a part, whatever its values are
    called: what is found has the same text whichever program asks for it first."""
    return Request.of("search", {**fields, "of": _core.program_hash(part),
                                 "program": str(_core.unnamed(part))})  # fmt: skip


def race_request(task: str, program: _core.Graph, proposals: Sequence[Proposal],
                 fields: Mapping[str, str]) -> Request:  # fmt: skip
    """Compiles and tries proposals ("prepare"), or has them race ("measure"), where the device is
    the one that they are for."""
    told = json.dumps([p.told for p in proposals])
    return Request.of(task, {**fields, "of": _core.program_hash(program), "proposals": told,
                             "program": str(program)})  # fmt: skip


def options_text(options: Options, special: bool, measure: bool) -> str:
    """What a search, or a measurement, depends on, as one line."""
    told = {name: getattr(options, name) for name in (_MEASURE if measure else _SEARCH)}
    told["threads"] = options.threads or _core.default_threads()  # those of results
    return json.dumps({**told, "special": special}, sort_keys=True)


def options_of(text: str, **others: Object) -> tuple[Options, bool]:
    """The options that a request tells, and whether NaN is an answer."""
    told = json.loads(text)
    special = bool(told.pop("special"))
    told |= {name: tuple(told[name]) for name in ("disable", "settings")}
    return Options(**told | others), special


def answer(request: Entry, **fields: str) -> str:
    """The text of an answer."""
    names = ("task", "name", "of", "engine", "slice", "tasks")
    same = {name: request[name] for name in names if request[name]}
    return Entry({"kind": "proposals", "key": request.key, **same, **fields}).text


def read_answer(request: Request, text: str) -> Entry:
    """An answer to this request; RefusedError where it is another's, damaged, or makes no sense."""
    if not isinstance(text, str):
        raise RefusedError(f"the answer is no text but {type(text).__name__}")
    entry = Entry.parse(text)
    for name in ("kind", "key", "task", "of", "engine", "slice"):
        if entry[name] != request.entry[name]:
            raise RefusedError(f"it answers another question: {name} is {entry[name][:80]!r}")
    for name in ("seconds", "cpu_s", "alone_s"):
        entry.number(name)
    if not entry["failed"]:
        _READ[request.task](request.entry, entry)
    return entry


def proposals_of(request: Entry, entry: Entry) -> list[Proposal]:
    """What a search found, each program of the part's own types, best first."""
    found = _json_list(entry["found"])
    if len(found) > _MOST_FOUND:
        raise RefusedError(f"{len(found)} programs are more than any search finds")
    proposals = []
    for item in found:
        names = ("graph", "origin", "derivation", "between")
        told = {"of": request["program"], **{name: item.get(name, "") for name in names}}
        cost = item.get("cost")
        if not (isinstance(cost, float) and math.isfinite(cost) and cost >= 0):
            raise RefusedError(f"a cost of {cost}")
        if not all(isinstance(t, str) for t in told.values()):
            raise RefusedError("what was found is not told in full")
        _require_alternative(told["graph"], request["program"])
        _require_alternative(told["between"] or told["graph"], request["program"])
        proposals.append(Proposal(told, float(cost), (request.key,)))
    return proposals


@functools.lru_cache(4096)  # engines are asked about the same parts
def _require_alternative(text: str, program: str) -> None:
    program_of(text, "answer", _core.parse(program))


def _read_prepared(request: Entry, entry: Entry) -> None:
    count = len(json.loads(request["proposals"]))
    if not all(isinstance(i, int) and 0 <= i < count for i in _json_list(entry["wrong"], int)):
        raise RefusedError("it names proposals that there are not")


def _read_measured(request: Entry, entry: Entry) -> None:
    """The result is for this program and this device; whether it holds is Claim's to say."""
    for item in _json_list(entry["raced"]):
        texts = all(isinstance(item.get(name), str) for name in ("graph", "fate", "origin", "why"))
        gain = item.get("speedup")
        if not texts or not isinstance(gain, (int, float)) or not math.isfinite(gain):
            raise RefusedError("the race is not told in full")
        program_of(item["graph"], "answer")
    result = Entry.parse(entry["result"])
    wanted = {"kind": "program", "program": request["of"], "device": request["device"],
              "tools": request["tools"],
              "level": json.loads(request["options"])["level"]}  # fmt: skip
    for name, value in wanted.items():
        if result[name] != value:
            raise RefusedError(f"its result is another's: {name} is {result[name][:80]!r}")


def _json_list(text: str, of: type = dict) -> list[Record]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"not JSON: {error}") from None
    if not isinstance(found, list) or not all(isinstance(item, of) for item in found):
        raise RefusedError("not a list of what was found")
    return found


_READ = {"search": proposals_of, "prepare": _read_prepared, "measure": _read_measured}
