"""Programs as drawings: operators from top to bottom, kernels as boxes, with shapes."""

from __future__ import annotations

from collections import defaultdict
from html import escape

from tessera.report.boxes import KIND
from tessera.types import Fields

_WIDE, _HIGH, _GAP, _DOWN = 148, 40, 16, 34  # of a node, and between nodes and rows
_MOST = 80  # nodes; what is larger is no picture any more


def drawing(graph: Fields) -> str:
    """A kernel graph as SVG; empty where it has too many operators."""
    ops = [op for op in graph["ops"] if op["op"] != "const"]
    if len(ops) > _MOST:
        return ""
    maker = {r["id"]: n for n, op in enumerate(ops) for r in op["results"]}
    operands = [sorted({maker[t["id"]] for t in op["inputs"] if t["id"] in maker}) for op in ops]
    row = [0] * len(ops)
    for n in range(len(ops)):
        row[n] = max((row[m] + 1 for m in operands[n]), default=0)
    for n in reversed(range(len(ops))):  # inputs stand above who reads them
        readers = [row[m] for m in range(len(ops)) if n in operands[m]]
        if not operands[n] and readers:
            row[n] = min(readers) - 1
    rows = defaultdict(list)
    for n in range(len(ops)):
        rows[row[n]].append(n)
    most = max(map(len, rows.values()), default=1)
    x: dict[int, float] = {}
    bottom: dict[int, float] = {}
    y, svg, edges = 4.0, "", ""
    for r in sorted(rows):
        # Below the middle of their operands, as far as there is room.
        wish = {n: sum(x[m] for m in operands[n]) / len(operands[n]) if operands[n] else 1e9
                for n in rows[r]}  # fmt: skip
        left = (most - len(rows[r])) / 2
        high = float(_HIGH)
        for i, n in enumerate(sorted(rows[r], key=lambda n: (wish[n], n))):
            x[n] = (left + i) * (_WIDE + _GAP)
            node, height = _node(ops[n], x[n], y)
            svg, bottom[n], high = svg + node, y + height, max(high, height)
            for m in operands[n]:
                start, end = x[m] + _WIDE / 2, x[n] + _WIDE / 2
                aside = 125 if row[n] > row[m] + 1 else 0  # around what stands between
                edges += (
                    f'<path class="edge" d="M{start:.0f},{bottom[m]:.0f} C{start + aside:.0f},'
                    f"{bottom[m] + _DOWN:.0f} {end + aside:.0f},{y - _DOWN:.0f} "
                    f'{end:.0f},{y:.0f}"/>'
                )
        y += high + _DOWN
    width = most * (_WIDE + _GAP) + _GAP
    return (
        f'<svg class="drawing" viewBox="-1 0 {width} {y - _DOWN + 6:.0f}" role="img" '
        f'style="width:max(100%,{width * 2 // 3}px);max-width:{width}px" '
        f'aria-label="{escape(graph["name"])}">{edges}{svg}</svg>'
    )


def _node(op: Fields, x: float, y: float) -> tuple[str, float]:
    result, body = op["results"][0], op["body"] or {"ops": []}
    inner = [o["op"] for o in body["ops"] if o["op"] not in ("input", "iter", "save")]
    lines = [" ".join(inner[i : i + 3]) for i in range(0, min(len(inner), 9), 3)]
    if len(inner) > 9:
        lines[-1] = f"… {len(inner)} operators"
    title = result["name"] if op["op"] == "input" else op["op"]
    height = _HIGH + 14 * len(lines)
    text = f'<text x="{x + 8}" y="{y + 17}" class="title">{escape(title)}</text>'
    for n, line in enumerate([*lines, result["type"]]):
        text += f'<text x="{x + 8}" y="{y + 32 + 14 * n}">{escape(line[:20])}</text>'
    kind = "kernel" if op["body"] is not None else KIND.get(op["op"], "pointwise")
    return (
        f'<g class="node k-{kind}"><rect x="{x}" y="{y}" width="{_WIDE}" height="{height}" rx="7">'
        f"<title>{escape(result['name'])}</title></rect>{text}</g>"
    ), height
