"""The page of a campaign: programs by engines, who won, who lost, and what it took."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from statistics import geometric_mean

from tessera.clock import duration
from tessera.errors import Error
from tessera.report.page import document, tile
from tessera.store.entry import Entry


@dataclass
class _Row:
    """A program: the best speed-up of each engine's programs, and the seconds each searched."""

    name: str
    result: Entry
    measure_s: float
    gains: dict[str, float] = field(default_factory=dict)
    search_s: dict[str, float] = field(default_factory=dict)

    @property
    def speedup(self) -> float:
        return self.result.number("speedup") if self.result.improved else 1.0

    @property
    def winner(self) -> str:
        return self.result["origin"] if self.result.improved else ""


def campaign_page(name: str, entries: Iterable[Entry]) -> str:
    """The page about what a store has of campaigns."""
    rows = _rows(list(entries))
    engines = list(dict.fromkeys(e for r in rows for e in (*r.search_s, *r.gains)))
    body = [
        ("result", "Result", _summary(rows)),
        ("engines", "Engines", _engines(rows, engines)),
        ("programs", "Programs by engines", _programs(rows, engines)),
    ]
    return document(f"campaign {name}", body, time.strftime("%Y-%m-%d %H:%M"))


def _rows(entries: Sequence[Entry]) -> list[_Row]:
    searches = {e.key: e for e in entries if e["task"] == "search"}
    rows = []
    for entry in entries:
        if entry["task"] != "measure":
            continue
        try:
            row = _Row(entry["name"], Entry.parse(entry["result"]), entry.number("seconds"))
            raced = [(str(i["origin"]), float(i["speedup"])) for i in json.loads(entry["raced"])]
        except (Error, ValueError, TypeError, KeyError, RecursionError):
            continue  # nothing to tell
        for key in entry["tasks"].split():
            if (search := searches.get(key)) is not None:
                engine = search["engine"]
                spent = row.search_s.get(engine, 0.0)
                row.search_s[engine] = spent + search.number("seconds")
        for engine, gain in raced:
            if gain > 0:
                row.gains[engine] = max(gain, row.gains.get(engine, 0.0))
        rows.append(row)
    return sorted(rows, key=lambda r: (-r.speedup, r.name))


def _summary(rows: Sequence[_Row]) -> str:
    faster = [r for r in rows if r.winner]
    mean = geometric_mean(max(r.speedup, 1e-9) for r in rows) if rows else 1.0
    tiles = [
        tile(f"{mean:.2f}×", "geometric mean of all programs", "good" if faster else ""),
        tile(f"{len(faster)} of {len(rows)}", "programs are faster"),
        tile(f"{max((r.speedup for r in rows), default=1.0):.2f}×", "at most"),
        tile(duration(sum(sum(r.search_s.values()) for r in rows)), "of workers, to search"),
        tile(duration(sum(r.measure_s for r in rows)), "to compile, race and prove"),
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _engines(rows: Sequence[_Row], engines: Sequence[str]) -> str:
    lines = []
    for engine in engines:
        wins = sum(r.winner == engine for r in rows)
        raced = sum(engine in r.gains for r in rows)
        spent = sum(r.search_s.get(engine, 0.0) for r in rows)
        lines.append(
            f"<tr><th>{escape(engine)}</th><td>{wins}</td><td>{raced - wins}</td>"
            f"<td>{len(rows) - raced}</td><td>{duration(spent) if spent else ''}</td></tr>"
        )
    return (
        '<p class="note">A loss: what the engine found raced, and something else was faster. '
        "“parts” are programs of which several parts were replaced at once.</p>"
        '<table class="facts"><tr><th></th><th>wins</th><th>losses</th><th>nothing raced</th>'
        f"<th>time of workers</th></tr>{''.join(lines)}</table>"
    )


def _programs(rows: Sequence[_Row], engines: Sequence[str]) -> str:
    heads = "".join(f"<th>{escape(e)}</th>" for e in engines)
    lines = []
    for r in rows:
        cells = "".join(_cell(r, engine) for engine in engines)
        lines.append(
            f"<tr><th>{escape(r.name)}</th><td>{duration(r.result.number('original_s'))}</td>"
            f"<td>{f'{r.speedup:.2f}×' if r.winner else ''}</td>{cells}"
            f"<td>{duration(sum(r.search_s.values()) + r.measure_s)}</td></tr>"
        )
    return (
        '<div class="scroll"><table><thead><tr><th>program</th><th>original</th>'
        f"<th>speed-up</th>{heads}<th>time of workers</th></tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(row: _Row, engine: str) -> str:
    gain = row.gains.get(engine)
    text = f"{gain:.2f}×" if gain else ""
    return f"<td><b>{text}</b></td>" if engine == row.winner else f"<td>{text}</td>"
