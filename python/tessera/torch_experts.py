"""Experts' own patterns in programs from PyTorch: found, proved in their places, raced, remembered.

Own are all but those that ship: the user's, a project's, and those that installed packages bring.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from tessera import _core
from tessera.cache_folder import kept_json
from tessera.graph import Graph
from tessera.options import Options, own_pattern_folders
from tessera.patterns import grouped
from tessera.torch_cache import digest, origin

log = logging.getLogger("tessera.torch")
SECONDS = 10.0  # for one program: after these no other candidate is begun
_FINDING = 0.6  # of them, at most, for finding and proving places
_MOST = 3  # programs with kernels of own patterns that race ours


@dataclass(frozen=True)
class Choice:
    """The program with kernels of own patterns ("": ours is faster), and a line for each that was
    tried."""

    program: str
    told: list[str]


def _place(graph: Graph, key: str) -> str:
    facts = f"{_core.verifier_version} {origin()} {key} {_core.default_threads()}"
    return digest(f"experts {facts} {graph}")


def recall(graph: Graph, key: str) -> Choice | None:
    """What an earlier race came to, of this process or another; `key`: torch_cache.own_key."""
    match kept_json(_place(graph, key)):
        case {"program": str(program), "told": list(told), **other} if not other:
            return Choice(program, [str(t) for t in told])
    return None


def choose(
    graph: Graph, key: str, name: str, threads: int, seconds: Callable[[Graph | None], float]
) -> Choice:
    """Races programs with kernels of own patterns against ours, and remembers what came of it.

    `seconds`: of a call of a program, None: of ours; raises Error where its results are wrong."""
    start = time.perf_counter()
    options = Options(budget=_FINDING * SECONDS, threads=threads, disable=("learnt",))
    fields = {**options.fields(), "engine": "patterns", "proved": True, "candidates": _MOST,
              "pattern_folders": ["", *own_pattern_folders()]}  # fmt: skip
    record = _core.search(graph.core, fields, None)
    refused = grouped(record["report"]["refused"])
    for line in refused:
        if ": refuted: " in line:
            log.warning("tessera: %s: pattern %s", name, line)
    over = record["report"]["stop"] == "time budget"
    tried: list[tuple[float, str, str]] = []
    told: list[str] = []
    ours = seconds(None) if record["candidates"] else 0.0
    for candidate in record["candidates"]:
        if told and time.perf_counter() - start > SECONDS:
            over = True
            break
        what = "; ".join(grouped(candidate["derivation"].splitlines()))
        try:
            found = graph.with_core(candidate["graph"])
            tried.append((seconds(found), str(found), what))
            told.append(f"{what}: {tried[-1][0] * 1e6:.0f} µs, without {ours * 1e6:.0f}")
        except Exception as error:  # no reason to fail
            told.append(f"{what}: refused: {error}")
    if over:
        log.warning("tessera: %s: own patterns were not tried everywhere within %g s", name,
                    SECONDS)  # fmt: skip
    best = min(tried, default=(ours, "", ""))
    program = best[1] if best[0] < ours else ""
    told = [f"{'used' if program and t.startswith(best[2] + ': ') else 'not used'}: {t}"
            for t in told] + [f"not used: {line}" for line in refused]  # fmt: skip
    choice = Choice(program, told)
    _core.store_text(_place(graph, key), json.dumps(asdict(choice)))
    return choice
