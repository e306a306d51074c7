"""What workers do: functions of a text to a text, which any process can import.

Searches depend on the request alone: on steps, not on time, on rules and patterns that ship, not on
those of the user who runs the worker.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable

import numpy as np

from tessera import _core
from tessera.api import find_highs
from tessera.cache_folder import cache_directory, make_own
from tessera.compilers import find_compiler
from tessera.errors import BadInputError, CancelledError, Error, UnsupportedError
from tessera.files import to_json, write_text
from tessera.fleet.locks import measuring, searching
from tessera.fleet.messages import answer, options_of
from tessera.frontends.traced import arguments
from tessera.graph import Graph
from tessera.options import Options
from tessera.store.entry import Entry, RefusedError
from tessera.store.stores import local_store
from tessera.types import Record

_SEARCH_S, _PROOF_S = 480.0, 100.0  # guards; nearly always steps end a search
_FAILURES = 2  # proofs of a task that may fail
_RACES = 3  # at most, where noise hides who is the fastest
_USUAL_STEPS, _WEAK_S = 20_000, 1.0  # fewer steps are remembered as a search of a second is
BUNDLE_S = 2.0  # after which a worker answers, and does not begin with another task
_TOLERANCE = 0.05  # of the largest number: what is further off is another program


def search_task(request: str) -> str:
    """Searches one slice of a part with one engine; the best few are proved."""
    asked = Entry.parse(request)
    with searching():
        return _answered(asked, lambda: _search(asked))


def prepare_task(request: str) -> str:
    """Compiles what will race, for the cache of this machine, and tells what computes something
    else at a first try."""
    asked = Entry.parse(request)
    with searching():
        return _answered(asked, lambda: {"wrong": json.dumps(_prepare(asked))})


def measure_task(request: str) -> str:
    """Has proposals race here, alone, and proves the fastest; the result is an entry."""
    asked = Entry.parse(request)
    return _answered(asked, lambda: _measure(asked))


def _answered(asked: Entry, work: Callable[[], dict[str, str]]) -> str:
    """The answer; a program that cannot be handled is one, too."""
    start, cpu = time.perf_counter(), time.process_time()
    try:
        found = work()
    except CancelledError:
        raise KeyboardInterrupt from None
    except RefusedError:
        raise  # this worker's own trouble, as other errors are: others may do better
    except (UnsupportedError, BadInputError) as error:
        found = {"failed": " ".join(error.message.split())}
    return answer(asked, worker=f"{platform.node()}:{os.getpid()}",
                  seconds=f"{time.perf_counter() - start:.6f}",
                  cpu_s=f"{time.process_time() - cpu:.6f}", **found)  # fmt: skip


def _require_tools(asked: Entry, program: _core.Graph) -> dict[str, str]:
    mine = _core.entry_key(program, {})
    if mine["tools"] != asked["tools"]:
        raise RefusedError(f"the request is for {asked['tools']}, this worker has {mine['tools']}")
    return mine


def _search(asked: Entry) -> dict[str, str]:
    program = Graph.parse(asked["program"]).core
    _require_tools(asked, program)
    fields = dict(_search_fields(asked["options"], asked["target"]))
    index, count = map(int, asked["slice"].split())
    fields |= {"engine": asked["engine"], "steps": int(asked["steps"]), "slice": (index, count),
               "bound": float(asked["bound"])}  # fmt: skip
    if asked["engine"] == "patterns":  # whose places are many, and each takes a proof
        fields |= {"proved": True, "candidates": int(asked["keep"]) + _FAILURES}
    try:
        record = _uninterrupted(_core.search(program, fields))
    except UnsupportedError:  # by this engine
        return {"found": "[]"}
    return _proved(program, record["candidates"], asked, fields)


@functools.lru_cache(16)
def _search_fields(options: str, target: str) -> Record:
    chosen, special = options_of(options, cache=False, budget=_SEARCH_S)
    fields = chosen.fields() | {"special": special, "target": _target(target), "workers": 1}
    for name in ("rule_folders", "pattern_folders"):
        fields[name] = fields[name][:1]  # those that ship
    return fields | {"disable": fields["disable"] | {"learnt"}}


def _uninterrupted(record: Record) -> Record:
    """What the core did in full; half of it would be another answer."""
    if record["interrupted"]:
        raise KeyboardInterrupt
    return record


def _proved(program: _core.Graph, candidates: list[Record], asked: Entry,
            fields: Record) -> dict[str, str]:  # fmt: skip
    """The best few that are proved, by cost and then by text; none that an earlier wave tried."""
    found, tried, keep = list[Record](), list[str](), int(asked["keep"])
    texts = {_core.canonical(c["graph"]): c for c in candidates}
    texts.pop(_core.canonical(program), None)
    best = sorted(texts.items(), key=lambda item: (item[1]["model_s"], item[0]))
    new = [c for _, c in best if _core.program_hash(c["graph"]) not in asked["tried"].split()]
    for c in new[: keep + _FAILURES]:
        if len(found) == keep:
            break
        tried.append(_core.program_hash(c["graph"]))
        proof = _core.verify(program, c["graph"], fields["level"], fields["seed"], 1,
                             budget=_PROOF_S, accept_tested=fields["accept_tested"],
                             special=fields["special"])  # fmt: skip
        if proof["verdict"] == "equal":
            found.append({"graph": str(c["graph"]), "cost": float(c["model_s"]),
                          "origin": c["origin"], "derivation": c["derivation"]})  # fmt: skip
    return {"found": to_json(found, indent=None), "tried": " ".join(tried)}


def _target(text: str) -> str:
    """A file that describes the machine that is searched for."""
    folder = cache_directory() / "fleet"
    make_own(folder)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.target"
    if not path.exists():
        write_text(path, text)
    return str(path)


def _prepare(asked: Entry) -> list[int]:
    program, fields = _race(asked)
    _core.optimize(program, fields | {"compile_only": True, "workers": 1})
    told = enumerate(json.loads(asked["proposals"]))
    return [i for i, p in told
            if computes_otherwise(Graph.parse(p["of"]), Graph.parse(p["graph"]))]  # fmt: skip


def computes_otherwise(spec: Graph, candidate: Graph) -> bool:
    """Whether two programs differ by far at random arguments: no proof, but soon done."""
    try:
        arrays = arguments(spec, None, 0)
        pairs = zip(_core.evaluate(spec.core, arrays), _core.evaluate(candidate.core, arrays),
                    strict=True)  # fmt: skip
    except (Error, ValueError):
        return False
    for a, b in pairs:
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        usual = np.isfinite(x)
        limit = _TOLERANCE * max(1e-30, np.abs(x[usual]).max(initial=0.0))
        if x.shape != y.shape or not bool(np.all(np.abs(x[usual] - y[usual]) <= limit)):
            return True
    return False


def _race(asked: Entry) -> tuple[_core.Graph, Record]:
    """The program, and the options of an optimisation that only has its proposals race."""
    program = _core.parse(asked["program"], "<request>")
    mine = _require_tools(asked, program)
    if mine["device"] != asked["device"]:
        raise RefusedError(f"the race is for {asked['device']}, this machine is {mine['device']}")
    options, special = options_of(asked["options"], refresh=True)
    find_compiler()
    find_highs()
    strong = int(asked["steps"]) >= _USUAL_STEPS  # others are not kept from searching further
    weak = {} if strong else {"kept_budget": _WEAK_S}
    return program, {**options.fields(), **weak, "special": special, "may_lack_code": True,
                     "proposals": json.loads(asked["proposals"]), "only_proposals": True,
                     "searched": True}  # fmt: skip


def _measure(asked: Entry) -> dict[str, str]:
    program, fields = _race(asked)
    with measuring():
        start = time.perf_counter()
        for _ in range(_RACES):
            record = _uninterrupted(_core.optimize(program, fields))
            if not record["report"]["too_noisy"]:
                break
        alone = time.perf_counter() - start
    # What is fastest of all that was found is kept as tuned, which it is.
    strong = "kept_budget" not in fields and fields["budget"] >= Options().budget
    tuned = strong and record["improved"]
    kept = fields | ({"tune": True, "budget": 0.0} if tuned else {})
    result = local_store().get(_core.entry_key(program, kept)["key"])
    if result is None:
        told = record["report"]
        why = "the result was not kept: see `tessera doctor` about the cache folder"
        if told["too_noisy"] or told["unfinished"]:
            why = ("noise hid which program is the fastest" if told["too_noisy"] else
                   "the race did not end: it takes a larger --budget")  # fmt: skip
        why = told["original_failed"] or why
        return {"failed": " ".join(why.split())}
    raced = [{"graph": str(c["graph"]), "origin": c["origin"], "fate": c["fate"],
              "speedup": c["speedup"], "why": c["why"]} for c in record["candidates"]]  # fmt: skip
    return {"alone_s": f"{alone:.6f}", "raced": to_json(raced, indent=None), "result": result.text}


TASKS: dict[str, Callable[[str], str]] = {
    "search": search_task, "prepare": prepare_task, "measure": measure_task,
}  # fmt: skip


def work(task: str, requests: list[str]) -> list[str]:
    """Does tasks of a kind one after the other, as many as fit into some seconds."""
    until, answers = time.monotonic() + BUNDLE_S, list[str]()
    for request in requests:
        if answers and time.monotonic() > until:
            break
        answers.append(TASKS[task](request))
    return answers
