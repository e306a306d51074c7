"""Draws the README's table of speed-ups: `python -m bench.picture` writes docs/speedups.svg."""

from __future__ import annotations

from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/speedups.svg"
_ROW, _LEFT, _WIDTH, _RIGHT = 26, 330, 360, 110
_STYLE = """text{font:13px system-ui,sans-serif;fill:#24292f}.n{font-weight:600}
.b{fill:#2f81f7}.s{fill:#d29922}.l{stroke:#8c959f;stroke-dasharray:3 3}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}}"""


def rows(readme: str) -> list[tuple[str, str, float]]:
    """What was measured, beside whom, and how often as fast Tessera was."""
    found = []
    for line in readme.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 4:
            try:
                peer = cells[2].rstrip("0123456789. mµs")
                found.append((cells[0], peer.strip(), float(cells[3])))
            except ValueError:  # the table's head
                continue
    return found


def svg(table: list[tuple[str, str, float]]) -> str:
    """A bar for each; a line where both are as fast. Bars longer than the picture are cut off."""
    most = sorted(ratio for *_, ratio in table)[-2] * 1.1
    height = _ROW * len(table) + 30
    at = _LEFT + _WIDTH / most
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + _RIGHT}" '
        f'height="{height}" role="img" aria-label="times as fast as the best peer">',
        f"<style>{_STYLE}</style>",
        f'<line class="l" x1="{at:.0f}" x2="{at:.0f}" y1="18" y2="{height}"/>',
        f'<text x="{at:.0f}" y="12" text-anchor="middle">as fast as the best peer</text>',
    ]
    for n, (what, peer, ratio) in enumerate(table):
        y, width = 24 + n * _ROW, min(ratio / most, 1) * _WIDTH
        cut = " (cut off)" if ratio > most else ""
        lines += [
            f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(what)}</text>',
            f'<rect class="{"b" if ratio >= 1 else "s"}" x="{_LEFT}" y="{y}" '
            f'width="{width:.0f}" height="18" rx="3"><title>{escape(peer)}</title></rect>',
            f'<text class="n" x="{_LEFT + width + 6:.0f}" y="{y + 14}">{ratio:g}x{cut}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(svg(rows((ROOT / "README.md").read_text())))
