"""Small charts as SVG: colours come from the page's style, so they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from tessera.clock import duration
from tessera.types import Fields


class Axis:
    """A logarithmic axis from data to pixels."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        positive = [v for v in values if v > 0] or [1.0]
        low, high = math.log10(min(positive)), math.log10(max(positive))
        room = max(0.08 * (high - low), 0.12)
        self.low, self.high = low - room, high + room
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = (math.log10(max(value, 1e-300)) - self.low) / (self.high - self.low)
        return float(self.start + share * (self.end - self.start))

    def ticks(self) -> list[float]:
        """Round values: decades, with 2 and 5 where there is room for them."""
        decades = self.high - self.low
        fine = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
        steps = fine if decades < 0.8 else (1, 2, 5) if decades < 2.2 else (1,)
        stride = max(1, round((self.high - self.low) / 6))
        found = [
            m * 10.0**e
            for e in range(math.floor(self.low), math.ceil(self.high) + 1)
            if e % stride == 0
            for m in steps
        ]
        return [t for t in found if self.low <= math.log10(t) <= self.high]


def _svg(width: int, height: int, body: str, label: str) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(label)}">{body}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _dot(x: float, y: float, kind: str, title: str, radius: float = 5) -> str:
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="{kind}">'
        f"<title>{escape(title)}</title></circle>"
    )


def _flops(rate: float) -> str:
    return f"{rate / 1e9:,.3g} G" if rate < 1e12 else f"{rate / 1e12:.3g} T"


def _frame(x: Axis, y: Axis) -> str:
    """Grid lines, ticks and labels of the roofline; y grows upwards."""
    out = ""
    for t in x.ticks():
        out += _line(x(t), y.start, x(t), y.end, "grid")
        out += _text(x(t), y.start + 16, f"{t:g}", kind="tick")
    for t in y.ticks():
        out += _line(x.start, y(t), x.end, y(t), "grid")
        out += _text(x.start - 6, y(t) + 4, _flops(t), "end", "tick")
    middle = (x.start + x.end) / 2
    out += _text(middle, y.start + 34, "FLOP per byte moved by kernels", kind="axis")
    return out + _text(x.start, y.end - 8, "FLOP/s", "start", "axis")


def time_strip(data: Fields) -> str:
    """Where the time of the whole run went, as one bar."""
    stages = [(label, data[key]) for key, label in _STAGES]
    rest = data["total_s"] - sum(s for _, s in stages)
    stages.append(("the rest", max(rest, 0.0)))
    total = sum(s for _, s in stages) or 1.0
    width, x, bar, legend = 640, 0.0, "", ""
    for n, (label, seconds) in enumerate(stages):
        w = width * seconds / total
        title = f"{label}: {duration(seconds)}"
        bar += (
            f'<rect x="{x:.1f}" y="4" width="{max(w - 1, 0.5):.1f}" height="22" class="stage{n}">'
            f"<title>{title}</title></rect>"
        )
        x += w
        legend += f'<i class="stage{n}"></i>{label} {duration(seconds)} '
    return _svg(width, 30, bar, "time of the run by stage") + f'<p class="legend">{legend}</p>'


_STAGES = (
    ("search_s", "search"), ("compile_s", "compiling"), ("tune_s", "measuring"),
    ("verify_s", "proofs"), ("check_s", "checking code"),
)  # fmt: skip


def search_chart(data: Fields) -> str:
    """The best predicted time so far."""
    events = [(max(e["t"], 1e-4), e["search"]) for e in data["timeline"] if e.get("search")]
    known = [(t, search["best_cost"] * 1e6) for t, search in events if search["best_cost"] > 0]
    if not known or min(cost for _, cost in known) > 0.999 * known[0][1]:
        took = duration(data["search_s"])
        return f"<p>The search took {took}; what it was seen to have first stayed the best.</p>"
    width, height, end = 520, 220, known[-1][0] * 1.02

    def x(t: float) -> float:
        return 70 + float(t / end) * (width - 90)

    y = Axis([c for _, c in known], height - 44, 26)
    out, path = "", ""
    for cost in y.ticks()[:8]:
        out += _line(70, y(cost), width - 20, y(cost), "grid")
        out += _text(64, y(cost) + 4, duration(cost / 1e6), "end", "tick")
    for i in range(5):
        out += _text(x(end * i / 4), height - 28, duration(end * i / 4) if i else "0",
                     kind="tick")  # fmt: skip
    best = known[0][1]
    for t, cost in known:
        path += f"{x(t):.1f},{y(best):.1f} "
        best = min(best, cost)  # parts of a program have bests of their own
        path += f"{x(t):.1f},{y(best):.1f} "
    out += f'<polyline points="{path.strip()}" class="line cost"/>'
    out += _text(70, 14, "best predicted time so far", "start", "axis")
    out += _text(width / 2, height - 8, "time since the run began", kind="axis")
    return _svg(width, height, out, "best predicted time so far")


def times_bars(rows: Sequence[tuple[str, float]]) -> str:
    """Microseconds of a call, by who ran it."""
    most = max(us for _, us in rows)
    bars = "".join(
        f'<div class="bar-row"><span>{escape(who)}</span><div class="track">'
        f'<div style="width:{max(0.5, 100 * us / most):.1f}%"></div></div>'
        f"<b>{duration(us / 1e6)}</b></div>"
        for who, us in rows
    )
    return f'<div class="bars">{bars}</div>'


def roofline(data: Fields) -> str:
    """Arithmetic intensity against rate, under what the machine can do."""
    limits, work = data["limits"], data["work"]
    rate, dram, cache = (limits.get(k, 0.0) for k in ("flops_s", "dram_bytes_s", "cache_bytes_s"))
    points = []
    for name, key, us in (
        ("original", "before", data["original_us"]),
        ("result", "after", data["ours_us"]),
    ):
        # The same useful arithmetic for both: extra work of a rewrite is no merit.
        flops, moved = work["before"]["flops"], work[key]["bytes"]
        if flops and moved and us:
            points.append((name, flops / moved, flops / (us * 1e-6)))
    if not points:
        return ""
    width, height = 640, 340
    intensities = [p[1] for p in points] + [rate / dram * 3, min(p[1] for p in points) / 3]
    x = Axis(intensities, 78, width - 20)
    y = Axis([p[2] for p in points] + [rate * 1.3, 10**x.low * dram], height - 48, 26)
    out = _frame(x, y)
    for bandwidth, kind, label in ((cache, "roof2", "caches"), (dram, "roof", "memory")):
        low, knee = 10**x.low, rate / bandwidth
        if knee > low:
            out += _line(x(low), y(low * bandwidth), x(knee), y(rate), kind)
            at = 10 ** ((x.low + min(math.log10(knee), x.high)) / 2)
            text = f"{label} {bandwidth / 1e9:.0f} GB/s"
            out += _text(x(at) + 12, y(at * bandwidth) + 18, text, "start", "tick")
        if bandwidth == dram:
            out += _line(x(max(rate / cache, low)), y(rate), x.end, y(rate), "roof")
    out += _text(x.end - 4, y(rate) - 8, f"multiply-adds {_flops(rate)}FLOP/s", "end", "tick")
    for name, intensity, speed in points:
        title = f"{name}: {intensity:.3g} FLOP/byte, {_flops(speed)}FLOP/s"
        out += _dot(x(intensity), y(speed), "chosen" if name == "result" else "point", title, 7)
        above = name == "result"
        out += _text(x(intensity), y(speed) + (-12 if above else 22), name, kind="axis")
    share = _share(points[-1], rate, dram, cache)
    return (
        _svg(width, height, out, "roofline")
        + '<p class="note">Both dots count the arithmetic of the program as written; a rewrite '
        "that moves less between kernels goes right, a faster one goes up. Limits were probed when "
        f"this page was made ({limits['dtype']}). {share}</p>"
    )


def _share(point: tuple[str, float, float], rate: float, dram: float, cache: float) -> str:
    _, intensity, speed = point
    by_memory, by_cache = min(rate, intensity * dram), min(rate, intensity * cache)
    if speed <= by_memory:
        return f"The result reaches {100 * speed / by_memory:.0f} % of what memory would allow."
    return (
        "The result runs from the caches, beyond what memory alone would allow, and reaches "
        f"{min(100 * speed / by_cache, 100):.0f} % of what the caches would."
    )
