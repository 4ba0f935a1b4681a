"""Charts as SVG, on logarithmic scales: bars for how many times as fast, lines for what grows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from math import log10
from xml.sax.saxutils import escape

BAR, THIN, GAP, LEFT, WIDTH, TOP = 18, 13, 8, 330, 900, 44
DARK, LIGHT, MARK = "#2b6cb0", "#90b4d8", "#c05621"
COLOURS = ("#444", DARK, MARK, "#2f855a", "#805ad5")
PLOT, BELOW, BESIDE = 260, 46, 200


def bars(title: str, rows: Sequence[tuple[str, float]], mark: float) -> str:
    """One bar for each row, a line at 1 and one at the mark that is expected."""
    most = max([mark, *(value for _, value in rows)]) * 1.3
    least = min([1.0, *(value for _, value in rows)]) / 1.3
    room = WIDTH - LEFT - 70
    height = TOP + len(rows) * (BAR + GAP) + 24

    def at(value: float) -> float:
        return LEFT + room * (log10(value) - log10(least)) / (log10(most) - log10(least))

    parts = _begin(title, height)
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


def groups(title: str, rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], series: Sequence[str]) -> str:
    """Bars for each row, one for each of the series that it has, and a line at 1; the series are named above."""
    values = [value for _, bars in rows for _, value in bars]
    least, most = min([1.0, *values]) / 1.3, max([1.0, *values]) * 1.3
    room = WIDTH - LEFT - 70
    top = TOP + 24
    height = top + sum(len(bars) * THIN + GAP for _, bars in rows) + 24

    def at(value: float) -> float:
        return LEFT + room * (log10(value) - log10(least)) / (log10(most) - log10(least))

    colours = dict(zip(series, cycle(COLOURS[1:]), strict=False))
    parts = _begin(title, height)
    for number, (name, colour) in enumerate(colours.items()):
        x = LEFT + number * 140
        parts += [
            f'<rect x="{x}" y="{TOP - 8}" width="12" height="12" fill="{colour}"/>',
            f'<text x="{x + 18}" y="{TOP + 3}">{escape(name)}</text>',
        ]
    y = top
    for label, bars in rows:
        middle = y + len(bars) * THIN / 2 + 4
        parts.append(f'<text x="{LEFT - 10}" y="{middle:.1f}" text-anchor="end">{escape(label)}</text>')
        for name, value in bars:
            start, end = sorted((at(1.0), at(value)))
            parts += [
                f'<rect x="{start:.1f}" y="{y}" width="{end - start:.1f}" height="{THIN - 2}" fill="{colours[name]}"/>',
                f'<text x="{end + 6:.1f}" y="{y + 10}" font-size="11">{value:.2g} ×</text>',
            ]
            y += THIN
        y += GAP
    parts += [
        f'<line x1="{at(1.0):.1f}" y1="{top - 6}" x2="{at(1.0):.1f}" y2="{height - 22}" stroke="#444" '
        'stroke-dasharray="4 3"/>',
        f'<text x="{at(1.0):.1f}" y="{height - 6}" text-anchor="middle">1 ×</text>',
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def lines(title: str, rows: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> str:
    """One line for each row through its points, named at its end; only upwards the scale is logarithmic."""
    xs = [x for _, points in rows for x, _ in points]
    ys = [y for _, points in rows for _, y in points]
    marks = _round_numbers(min(ys), max(ys))
    least, most = min([*ys, *marks]) / 1.1, max([*ys, *marks]) * 1.1
    left, right, bottom = 60, WIDTH - BESIDE, TOP + PLOT

    def across(x: float) -> float:
        return left + (right - left) * (x - min(xs)) / ((max(xs) - min(xs)) or 1)

    def up(y: float) -> float:
        return bottom - PLOT * (log10(y) - log10(least)) / (log10(most) - log10(least))

    parts = _begin(title, bottom + BELOW)
    for value in marks:
        parts += [
            f'<line x1="{left}" y1="{up(value):.1f}" x2="{right}" y2="{up(value):.1f}" stroke="#ddd"/>',
            f'<text x="{left - 8}" y="{up(value) + 4:.1f}" text-anchor="end">{value:g}</text>',
        ]
    for value in sorted(set(xs)):
        parts.append(f'<text x="{across(value):.1f}" y="{bottom + 22}" text-anchor="middle">{value:,.0f}</text>')
    names = _apart([up(points[-1][1]) + 4 for _, points in rows])
    for (label, points), colour, name in zip(rows, cycle(COLOURS), names, strict=False):
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
        parts += [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
            *(f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3.5" fill="{colour}"/>' for x, y in points),
            f'<text x="{right + 8}" y="{name:.1f}" fill="{colour}">{escape(label)}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _begin(title: str, height: int) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="22" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]


def _round_numbers(least: float, most: float) -> list[float]:
    """1, 2, 5, 10 and so on, from one below the least to one above the most."""
    all_of_them = [step * 10.0**power for power in range(-3, 7) for step in (1, 2, 5)]
    below = max(each for each in all_of_them if each <= least)
    above = min(each for each in all_of_them if each >= most)
    return [each for each in all_of_them if below <= each <= above]


def _apart(heights: Sequence[float]) -> list[float]:
    """The heights of texts, moved so that none covers another."""
    placed: dict[int, float] = {}
    last = float("-inf")
    for number in sorted(range(len(heights)), key=lambda each: heights[each]):
        placed[number] = last = max(heights[number], last + 16)
    return [placed[number] for number in range(len(heights))]
