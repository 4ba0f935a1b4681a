"""A bar chart as SVG: how many times as fast as the other one, on a logarithmic scale."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from xml.sax.saxutils import escape

BAR, GAP, LEFT, WIDTH, TOP = 18, 8, 330, 900, 44
DARK, LIGHT, MARK = "#2b6cb0", "#90b4d8", "#c05621"


def bars(title: str, rows: Sequence[tuple[str, float]], mark: float) -> str:
    """One bar for each row, a line at 1 and one at the mark that is expected."""
    most = max([mark, *(value for _, value in rows)]) * 1.3
    least = min([1.0, *(value for _, value in rows)]) / 1.3
    room = WIDTH - LEFT - 70
    height = TOP + len(rows) * (BAR + GAP) + 24

    def at(value: float) -> float:
        return LEFT + room * (log10(value) - log10(least)) / (log10(most) - log10(least))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="22" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (label, value) in enumerate(rows):
        y = TOP + number * (BAR + GAP)
        colour = DARK if value >= mark else LIGHT
        start, end = sorted((at(1.0), at(value)))
        parts += [
            f'<text x="{LEFT - 10}" y="{y + 14}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{start:.1f}" y="{y}" width="{end - start:.1f}" height="{BAR}" fill="{colour}"/>',
            f'<text x="{end + 6:.1f}" y="{y + 14}">{value:.1f} ×</text>',
        ]
    for value, colour, label in ((1.0, "#444", "1 ×"), (mark, MARK, f"expected: {mark:g} ×")):
        parts += [
            f'<line x1="{at(value):.1f}" y1="{TOP - 6}" x2="{at(value):.1f}" y2="{height - 22}" '
            f'stroke="{colour}" stroke-dasharray="4 3"/>',
            f'<text x="{at(value):.1f}" y="{height - 6}" text-anchor="middle" fill="{colour}">{label}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
