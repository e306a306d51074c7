"""The page: sections in the order of a story, from the program to the code that runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from tessera.clock import duration
from tessera.report.boxes import program
from tessera.report.charts import roofline, search_chart, time_strip, times_bars
from tessera.report.drawing import drawing
from tessera.types import Fields

_HERE = Path(__file__).parent


def page(data: Fields) -> str:
    """The whole HTML page for a record."""
    sections = [
        ("result", "Result", _summary(data)),
        ("programs", "Before and after", _programs(data)),
        ("times", "Times of a call", _times(data)),
        ("search", "The search", _search(data)),
        ("candidates", "Candidates", _candidates(data)),
        ("speed", "Where it stands", roofline(data)),
        ("errors", "Error against f64", _errors(data)),
        ("proof", "Certificate", _certificate(data)),
        ("source", "Generated source", _source(data)),
        ("machine", "Machine", _machine(data)),
    ]
    return document(str(data["program"]), sections, str(data.get("written", "")))


def document(title: str, sections: Sequence[tuple[str, str, str]], written: str) -> str:
    """A page that stands alone, of sections: anchor, heading, HTML (where it is empty, none)."""
    links = "".join(f'<a href="#{i}">{escape(t)}</a>' for i, t, _ in sections)
    body = "".join(
        f'<section id="{i}"><h2>{escape(t)}</h2>{html}</section>' for i, t, html in sections if html
    )
    name = escape(title)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name} · Tessera</title><style>{_asset('style.css')}</style></head><body>"
        f'<header><div class="bar"><h1>{name}</h1><nav>{links}</nav>'
        '<button id="theme" title="light or dark">◐</button></div></header>'
        f"<main>{body}</main><footer>Tessera · {escape(written)}</footer>"
        f"<script>{_asset('page.js')}</script></body></html>\n"
    )


def _asset(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def tile(value: str, label: str, kind: str = "") -> str:
    """A figure with what it is."""
    return f'<div class="tile {kind}"><b>{value}</b><span>{escape(label)}</span></div>'


def count(n: float) -> str:
    """A number with thin spaces between thousands."""
    return f"{n:,.0f}".replace(",", "\u202f")


def _time(us: float | None) -> str:
    return "not measured" if us is None else duration(us / 1e6)


def _summary(data: Fields) -> str:
    work = data["work"]
    tiles = [
        tile(f"{data['speedup']:.2f}×", "as fast as the original", "good")
        if data["improved"]
        else tile("original", "nothing faster was found"),
        tile(_time(data["original_us"]), "the original, compiled as it is"),
        tile(_time(data["ours_us"]), "the result"),
        tile(f"{work['before']['kernels']} → {work['after']['kernels']}", "kernels"),
        tile(
            f"{_bytes(work['before']['bytes'])} → {_bytes(work['after']['bytes'])}",
            "moved between kernels",
        ),
        tile(duration(data["search_s"]), "search"),
    ]
    if data["certificate"]:
        tiles.append(tile("equal", "proved, and its code checked", "good"))
    notes = []
    if data["from_cache"]:
        notes.append(
            "This result was remembered from an earlier run, then proved, compiled and checked "
            "again; the search below is therefore empty."
        )
    if data["interrupted"]:
        notes.append("The run was interrupted; this is the best it had.")
    inputs = " · ".join(
        f"<code>{escape(n)}: {escape(data['dtype'][n])}[{','.join(map(str, s))}]</code>"
        for n, s in data["shape"].items()
    )
    text = "".join(f'<p class="note">{escape(n)}</p>' for n in notes)
    return f'<p class="inputs">{inputs}</p><div class="tiles">{"".join(tiles)}</div>{text}'


def _bytes(n: float) -> str:
    for unit in ("B", "KB", "MB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} GB"


def _programs(data: Fields) -> str:
    before, after = data["programs"]["before"], data["programs"]["after"]
    legend = (
        '<p class="legend"><i class="k-memory"></i>memory <i class="k-product"></i>product '
        '<i class="k-reduction"></i>reduction <i class="k-pointwise"></i>pointwise '
        '<i class="k-movement"></i>movement · hover a value to see who uses it</p>'
    )
    shown = [("before", before), ("after", after)][: 1 + data["improved"]]
    one = "" if data["improved"] else " one"
    drawn = "".join(f'<div class="scroll"><h3>{title}</h3>{drawing(g)}</div>' for title, g in shown)
    boxes = "".join(program(g, title) for title, g in shown)
    return (
        f'{legend}<div class="programs{one}">{drawn}</div><details><summary>every operator, with '
        f'tiles and loops</summary><div class="programs{one}">{boxes}</div></details>'
    )


def _times(data: Fields) -> str:
    """Who could have run, where a contest was held; else the original as it is compiled."""
    names = {"kernel": "kernels", "source": "NumPy, rewritten", "function": "your function"}
    choice = data.get("choice", {})  # records of old have none
    rows = [(who, choice.get(f"{k}_us")) for k, who in names.items()]
    if choice.get("kernel_us") is None:
        rows += [("the original, compiled", data["original_us"]), ("the result", data["ours_us"])]
    known = [(who, us) for who, us in rows if us]
    rivals = list(data.get("rivals", {}).items())
    return "".join(
        f"<h4>{title}</h4>{times_bars(bars)}"
        for title, bars in (("raced where you call it", known),
                            ("the same program by libraries, in one race", rivals))
        if len(bars) > 0
    )  # fmt: skip


def _search(data: Fields) -> str:
    if data["from_cache"]:
        return ""
    tiles = "".join(
        tile(count(data[k]), k) for k in ("values", "edges", "graphs", "tilings")
    ) + tile(", ".join(dict.fromkeys(data["stop"])) or "none", "why it stopped")
    return f'<div class="tiles small">{tiles}</div>{time_strip(data)}{search_chart(data)}'


def _candidates(data: Fields) -> str:
    candidates = data["candidates"]
    if not candidates:
        return "<p>The search proposed none.</p>"
    rows = []
    for i, c in enumerate(candidates):
        kernels = c["graph"].count(" = kernel ") + c["graph"].count(", kernel ")
        measured = duration(c["measured_us"] / 1e6) if c["measured_us"] else ""
        speedup = f"{c['speedup']:.2f}×" if c["speedup"] else ""
        why = f"<p>{escape(c['why'])}</p>" if c["why"] else ""
        steps = c.get("derivation", "")
        derivation = f"<h4>how it came about</h4><pre>{escape(steps)}</pre>" if steps else ""
        hidden = " hidden" if i >= 10 and c["fate"] == "proposed" else ""
        rows.append(
            f'<tr class="fate-{c["fate"].replace(" ", "-")}{hidden}"><td>{c["rank"]}</td>'
            f"<td>{duration(c['model_us'] / 1e6)}</td><td>{measured}</td><td>{speedup}</td>"
            f'<td>{kernels or ""}</td><td><span class="fate">{escape(c["fate"])}</span>'
            f"<details><summary>{escape(c['origin'])}</summary>{why}"
            f"<pre>{escape(c['graph'])}</pre>{derivation}</details></td></tr>"
        )
    folded = sum(" hidden" in r.partition(">")[0] for r in rows)
    more = f'<button class="more" data-table="candidates-table">show {folded} more</button>'
    return (
        '<div class="scroll"><table id="candidates-table"><thead><tr><th>rank</th>'
        "<th>predicted</th><th>measured</th><th>speed-up</th><th>kernels</th><th>fate</th></tr>"
        f"</thead><tbody>{''.join(rows)}</tbody></table></div>{more if folded else ''}"
    )


def _errors(data: Fields) -> str:
    found = data["errors"]
    if not found.get("rows"):
        return "<p>The original was kept, so there is nothing to compare.</p>"
    rows = "".join(
        f"<tr><th>{escape(r['family'])}</th>"
        f"<td>{r['original']:.1e} (mean {r.get('original_mean', math.nan):.1e})</td>"
        f"<td>{r['result']:.1e} (mean {r.get('result_mean', math.nan):.1e})</td></tr>"
        for r in found["rows"]
    )
    return (
        '<p class="note">Largest and mean difference from f64, relative to the sum of the terms’ '
        "magnitudes: about 1e-7 is one rounding in f32.</p>"
        '<table class="facts"><tr><th></th><th>original</th><th>result</th></tr>'
        f"{rows}</table>"
    )


def _certificate(data: Fields) -> str:
    if not data["certificate"]:
        return "<p>The original was kept, so there is nothing to prove.</p>"
    said = ""
    for line in data["certificate"].splitlines():
        key, _, rest = line.partition(" ")
        if key in _SENTENCES:
            said += f"<tr><th>{_SENTENCES[key]}</th><td>{escape(rest)}</td></tr>"
    return (
        f'<table class="facts">{said}</table><p>Replay it with <code>tessera verify before.ug '
        "after.ug --certificate FILE</code>.</p><details><summary>all of it</summary>"
        f'<pre class="tall">{escape(data["certificate"])}</pre></details>'
    )


_SENTENCES = {
    "level": "equal means", "basis": "it is", "coverage": "compared were", "note": "note",
    "error_log2": "wrong with a chance of at most 2 to the", "all_sizes": "for all sizes",
    "assume": "assuming that",
}  # fmt: skip


def _source(data: Fields) -> str:
    if not data["source"]:
        return "<p>Calls are interpreted; there is no compiled code.</p>"
    plan = f"<summary>buffers and order of the kernels</summary><pre>{escape(data['plan'])}</pre>"
    plan = f"<details>{plan}</details>" if data["plan"] else ""
    lines = data["source"].count("\n")
    return (
        f'{plan}<details open><summary>{lines} lines of C++</summary><pre class="tall code">'
        f"{escape(data['source'])}</pre></details>"
    )


def _machine(data: Fields) -> str:
    facts = {**data["machine"], "target": data["target"], "threads": data["threads"]}
    rows = "".join(f"<tr><th>{escape(str(k))}</th><td>{escape(str(v))}</td></tr>"
                   for k, v in facts.items())  # fmt: skip
    return (
        f'<table class="facts">{rows}</table><details><summary>target description</summary>'
        f"<pre>{escape(data['target_text'])}</pre></details>"
    )
