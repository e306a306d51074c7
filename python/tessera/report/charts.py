"""Small charts as SVG: colours come from the page's style, so they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

Data = Mapping[str, Any]


def duration(us: float) -> str:
    """A time in microseconds with a unit that suits it.

    >>> duration(0.5), duration(1234), duration(2.5e6)
    ('500 ns', '1.23 ms', '2.5 s')
    """
    if us < 1:
        return f"{us * 1e3:.3g} ns"
    if us < 1e3:
        return f"{us:.3g} µs"
    if us < 1e6:
        return f"{us / 1e3:.3g} ms"
    return f"{us / 1e6:.3g} s"


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


def _frame(x: Axis, y: Axis, x_format: Any, y_format: Any, x_label: str, y_label: str) -> str:
    """Grid lines, ticks and labels; y grows upwards."""
    out = ""
    for t in x.ticks():
        out += _line(x(t), y.start, x(t), y.end, "grid")
        out += _text(x(t), y.start + 16, x_format(t), kind="tick")
    for t in y.ticks():
        out += _line(x.start, y(t), x.end, y(t), "grid")
        out += _text(x.start - 6, y(t) + 4, y_format(t), "end", "tick")
    out += _text((x.start + x.end) / 2, y.start + 34, x_label, kind="axis")
    out += _text(x.start, y.end - 8, y_label, "start", "axis")
    return out


def time_strip(data: Data) -> str:
    """Where the time of the whole run went, as one bar."""
    stages = [(label, data[key]) for key, label in _STAGES]
    rest = data["total_s"] - sum(s for _, s in stages)
    stages.append(("the rest", max(rest, 0.0)))
    total = sum(s for _, s in stages) or 1.0
    width, x, bar, legend = 640, 0.0, "", ""
    for n, (label, seconds) in enumerate(stages):
        w = width * seconds / total
        title = f"{label}: {duration(seconds * 1e6)}"
        bar += (
            f'<rect x="{x:.1f}" y="4" width="{max(w - 1, 0.5):.1f}" height="22" class="stage{n}">'
            f"<title>{title}</title></rect>"
        )
        x += w
        legend += f'<i class="stage{n}"></i>{label} {duration(seconds * 1e6)} '
    return _svg(width, 30, bar, "time of the run by stage") + f'<p class="legend">{legend}</p>'


_STAGES = (
    ("search_s", "search"), ("compile_s", "compiling"), ("tune_s", "measuring"),
    ("verify_s", "proofs"), ("check_s", "checking code"),
)  # fmt: skip


def search_chart(data: Data) -> str:
    """States looked at and the best predicted cost, over time."""
    events = [e for e in data["timeline"] if e.get("search")]
    if len(events) < 2:
        return (
            f"<h3>As it went</h3><p>The search took {duration(data['search_s'] * 1e6)}, too short "
            "to be watched: it was over before it had anything to report on the way.</p>"
        )
    width, height = 520, 260
    times = [max(e["t"], 1e-4) for e in events]
    costs = [e["search"]["best_cost"] * 1e6 for e in events]
    states = [max(e["search"]["states"], 1) for e in events]
    out = ""
    end = max(times) * 1.02

    def x(t: float) -> float:
        return 58 + float(t / end) * (width - 58 - 58)

    most = max(states)
    step = 10 ** math.floor(math.log10(most))
    step = step / 2 if most / step < 2.5 else step * 2 if most / step > 5 else step

    def y_states(n: float) -> float:
        return float(height - 44 - n / most * (height - 70))

    tick = 0.0
    while tick <= most:
        out += _line(58, y_states(tick), width - 58, y_states(tick), "grid")
        out += _text(52, y_states(tick) + 4, _short(tick), "end", "tick")
        tick += step
    times, states = [0.0, *times], [0, *states]
    for i in range(5):
        t = end * i / 4
        out += _text(x(t), height - 28, duration(t * 1e6) if t else "0", kind="tick")
    path = " ".join(f"{x(t):.1f},{y_states(s):.1f}" for t, s in zip(times, states, strict=True))
    out += f'<polyline points="{path}" class="line states"/>'
    for t, s in zip(times, states, strict=True):
        out += _dot(x(t), y_states(s), "states", f"{s:,.0f} states after {duration(t * 1e6)}", 3)
    known = [(t, c) for t, c in zip(times[1:], costs, strict=True) if c > 0]
    if known:
        y_cost = Axis([c for _, c in known], height - 44, 26)
        for cost in y_cost.ticks()[:8]:
            out += _text(width - 52, y_cost(cost) + 4, duration(cost), "start", "tick")
        steps = ""
        for n, (t, c) in enumerate(known):
            steps += f"{x(t):.1f},{y_cost(known[n - 1][1]):.1f} " if n else ""
            steps += f"{x(t):.1f},{y_cost(c):.1f} "
        out += f'<polyline points="{steps.strip()}" class="line cost"/>'
        for t, c in known:
            title = f"best so far {duration(c)} after {duration(t * 1e6)}"
            out += _dot(x(t), y_cost(c), "cost", title, 3)
    out += _text(58, 14, "states", "start", "axis states-text")
    out += _text(width - 58, 14, "best predicted time", "end", "axis cost-text")
    out += _text(width / 2, height - 8, "time since the run began", kind="axis")
    return "<h3>As it went</h3>" + _svg(width, height, out, "states and best cost over time")


def _short(n: float) -> str:
    """A count in few letters: 150k."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return f"{n:.3g}"


def candidates_chart(data: Data) -> str:
    """Predicted against measured time; on the diagonal the model is right."""
    points = [c for c in data["candidates"] if c["measured_us"]]
    if not points:
        return ""
    width, height = 520, 320
    x = Axis([c["model_us"] for c in points], 70, width - 20)
    original = data["original_us"]
    measured = [c["measured_us"] for c in points]
    y = Axis([*measured, original] if original else measured, height - 48, 26)
    out = _frame(x, y, duration, duration, "predicted by the cost model", "measured")
    low, high = 10 ** max(x.low, y.low), 10 ** min(x.high, y.high)
    if low < high:
        out += _line(x(low), y(low), x(high), y(high), "diagonal")
    if original:
        out += _line(x.start, y(original), x.end, y(original), "original")
        out += _text(x.end - 4, y(original) - 6, "the original", "end", "original-text")
    for c in sorted(points, key=lambda c: c["fate"] == "chosen"):
        chosen = c["fate"] == "chosen"
        title = (
            f"rank {c['rank']}: predicted {duration(c['model_us'])}, "
            f"measured {duration(c['measured_us'])}, {c['fate']}"
        )
        out += _dot(x(c["model_us"]), y(c["measured_us"]), "chosen" if chosen else "point", title,
                    7 if chosen else 5)  # fmt: skip
        if chosen:
            out += _text(x(c["model_us"]) + 10, y(c["measured_us"]) + 16, "chosen", "start", "axis")
    return _svg(width, height, out, "predicted and measured time of candidates")


def roofline(data: Data) -> str:
    """Arithmetic intensity against rate, under what the machine can do."""
    limits, work = data["limits"], data["work"]
    rate, dram, cache = limits["flops_s"], limits["dram_bytes_s"], limits["cache_bytes_s"]
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

    def flops_text(v: float) -> str:
        return f"{v / 1e9:,.3g} G" if v < 1e12 else f"{v / 1e12:.3g} T"

    out = _frame(x, y, lambda v: f"{v:g}", flops_text, "FLOP per byte moved by kernels", "FLOP/s")
    for bandwidth, kind, label in ((cache, "roof2", "caches"), (dram, "roof", "memory")):
        low, knee = 10**x.low, rate / bandwidth
        if knee > low:
            out += _line(x(low), y(low * bandwidth), x(knee), y(rate), kind)
            at = 10 ** ((x.low + min(math.log10(knee), x.high)) / 2)
            text = f"{label} {bandwidth / 1e9:.0f} GB/s"
            out += _text(x(at) + 12, y(at * bandwidth) + 18, text, "start", "tick")
        if bandwidth == dram:
            out += _line(x(max(rate / cache, low)), y(rate), x.end, y(rate), "roof")
    out += _text(x.end - 4, y(rate) - 8, f"multiply-adds {flops_text(rate)}FLOP/s", "end", "tick")
    for name, intensity, speed in points:
        title = f"{name}: {intensity:.3g} FLOP/byte, {flops_text(speed)}FLOP/s"
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


def error_bars(rows: Sequence[Data]) -> str:
    """Largest and mean relative errors of original and result, on a logarithmic scale."""
    width, left = 640, 130
    height = 46 + 44 * len(rows)
    values = [v for r in rows for v in (r["original"], r["result"]) if 0 < v < math.inf]
    x = Axis([*values, min(values, default=1e-7) / 3], left, width - 140)
    out = ""
    for t in x.ticks():
        out += _line(x(t), 8, x(t), height - 30, "grid")
        out += _text(x(t), height - 14, f"{t:.0e}", kind="tick")
    for n, r in enumerate(rows):
        top = 12 + 44 * n
        out += _text(left - 10, top + 20, r["family"], "end", "axis")
        for k, key in enumerate(("original", "result")):
            value = r[key]
            known = 0 < value < math.inf
            length = max(2.0, x(value) - left) if known else 2.0
            out += (
                f'<rect x="{left}" y="{top + 17 * k}" width="{length:.1f}" height="13" rx="3" '
                f'class="bar-{key}"><title>{key}: {value:.2e}</title></rect>'
            )
            text = f"{value:.1e}" if value else "exact"
            if value and (mean := r.get(key + "_mean")) is not None:
                text += f" (mean {mean:.1e})"
            out += _text(left + length + 6, top + 17 * k + 11, text, "start", "tick")
    return (
        '<p class="legend"><i class="bar-original"></i>original <i class="bar-result"></i>result '
        "· largest (and mean) difference from f64, relative to the largest value; random inputs</p>"
        + _svg(width, height, out, "errors against f64")
    )
