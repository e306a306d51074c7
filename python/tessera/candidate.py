"""A program that a search proposed."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tessera.graph import Graph
from tessera.types import Fields, Record


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A program that the search proposed, and what became of it."""

    graph: Graph
    rank: int = 0  # by the cost model, from 1
    origin: str  # the engine
    derivation: str
    notes: tuple[str, ...]
    model_us: float  # what the cost model expects
    # proposed, refuted, unknown, not compiled, check failed, measured, chosen
    fate: str = "proposed"
    why: str = ""
    measured_us: float = 0.0  # 0: not measured
    speedup: float = 0.0  # over the original, measured side by side
    part: int = 0
    # On a GPU: with the arguments in its L2 cache, where measured_us is without; 0: not measured.
    warm_us: float = 0.0
    least_us: float = 0.0  # of what measured_us is the median
    spread: float = 0.0  # what the middle half of the samples differ by, in medians

    @classmethod
    def of(cls, record: Fields) -> Candidate:
        same = {f.name: record[f.name] for f in fields(cls) if f.name in record}
        seconds = {"measured": "seconds", "model": "model_s", "warm": "warm_s", "least": "least_s"}
        times = {f"{name}_us": record.get(key, 0.0) * 1e6 for name, key in seconds.items()}
        graph, notes = Graph.from_core(record["graph"]), tuple(record["notes"])
        return cls(**same | times | {"graph": graph, "notes": notes})

    def json(self) -> Record:
        """Plain data, with the program as text; None for what was not measured."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("measured_us", "least_us", "warm_us", "speedup"):
            plain[name] = plain[name] or None
        spread = self.spread if self.least_us else None
        return plain | {"spread": spread, "notes": list(self.notes), "graph": str(self.graph)}
