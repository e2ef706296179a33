"""Draws who imports whom: one row per level, a line from each importer down to what it imports. Pure functions that give SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

COLUMN, ROW, BOX, HIGH, EDGE = 132, 62, 104, 30, 16
"""Distances between columns and rows, size of a box, margin; in pixels."""

COLUMNS = {
    "integrations": -1.2, "report": 1.2, "monitor": -1.7, "split": -0.8, "defenses": 1.5, "measures": -2.3,
    "families": 0.75,
}  # fmt: skip
"""Where a name stands in its row, in columns from the middle, chosen so that lines keep clear of boxes; others: in the middle."""

BESIDE = {"testing": (2.1, 2), "models": (2.35, 8), "data": (3.2, 8)}
"""Names without a level: column and row."""

STYLE = """
  .ground { fill: #ffffff; stroke: #d5dde2 } .box { fill: #e6f4f1; stroke: #00796b } .side { fill: #f1f3f5; stroke: #78909c }
  .line { fill: none; stroke: #90a4ae; stroke-width: 1.4 } text { font: 14px system-ui, sans-serif; fill: #263238 }
  .tip { fill: #90a4ae }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #1f2430; stroke: #3a4150 } .box { fill: #17403b; stroke: #4db6ac } .side { fill: #2b313d; stroke: #90a4ae }
    .line { stroke: #7b8794 } .tip { fill: #7b8794 } text { fill: #e6eaf0 }
  }
"""


def without_detours(pairs: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """The pairs that no longer way implies (transitive reduction; the imports have no circle).

    >>> sorted(without_detours({("a", "b"), ("b", "c"), ("a", "c")}))
    [('a', 'b'), ('b', 'c')]
    """
    below: dict[str, set[str]] = {}
    for a, b in pairs:
        below.setdefault(a, set()).add(b)

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        left = list(below.get(start, ()))
        while left:
            name = left.pop()
            if name not in seen:
                seen.add(name)
                left.extend(below.get(name, ()))
        return seen

    return {(a, b) for a in below for b in below[a] if not any(b in reached(c) for c in below[a] - {b})}


def places(rows: Sequence[Sequence[str]], present: Iterable[str]) -> dict[str, tuple[float, float]]:
    """The middle of each box: by row, and by ``COLUMNS`` within it."""
    at = {name: (COLUMNS.get(name, 0.0), float(i)) for i, row in enumerate(rows) for name in row}
    at |= {name: (float(x), float(y)) for name, (x, y) in BESIDE.items() if name in set(present)}
    left = min(x for x, _ in at.values())
    return {n: (EDGE + BOX / 2 + (x - left) * COLUMN, EDGE + HIGH / 2 + y * ROW) for n, (x, y) in at.items()}


def picture(rows: Sequence[Sequence[str]], pairs: Iterable[tuple[str, str]], present: Iterable[str]) -> str:
    """The whole SVG. ``rows`` are the levels from the top; ``pairs`` the lines to draw."""
    at = places(rows, present)
    wide = max(x for x, _ in at.values()) + BOX / 2 + EDGE
    high = max(y for _, y in at.values()) + HIGH / 2 + EDGE
    lines = [_line(at[a], at[b], at.values()) for a, b in sorted(pairs) if a in at and b in at]
    boxes = [_box(name, *at[name], "side" if name in BESIDE else "box") for name in sorted(at)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}" role="img">',
            "<title>Who imports whom</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="ground" x="0.5" y="0.5" width="{wide - 1:.0f}" height="{high - 1:.0f}" rx="8"/>',
            *lines,
            *boxes,
            "</svg>",
            "",
        ]
    )


def _line(start: tuple[float, float], end: tuple[float, float], boxes: Iterable[tuple[float, float]]) -> str:
    """Straight down from the importer with a bend just above the imported; the other way round where a box is in the way."""
    (x1, y1), (x2, y2) = start, end
    blocked = any(abs(x - x1) < 0.6 * BOX and y1 < y < y2 for x, y in boxes)
    x2 += max(-0.3 * BOX, min(0.3 * BOX, (x1 - x2) / 3))  # who comes from the left arrives on the left
    top, tip = y1 + HIGH / 2, y2 - HIGH / 2 - 6
    long = ROW - HIGH - 6  # what lies between two rows: bends keep clear of boxes
    begin, stop = (top, top + long) if blocked else (tip - long, tip)
    bend = 0.7 * long
    curve = f"C{x1:.1f} {begin + bend:.1f} {x2:.1f} {stop - bend:.1f} {x2:.1f} {stop:.1f}"
    path = f"M{x1:.1f} {top:.1f}V{begin:.1f}{curve}V{tip:.1f}"
    return f'<path class="line" d="{path}"/><path class="tip" d="M{x2 - 4:.1f} {tip:.1f}h8l-4 6z"/>'


def _box(name: str, x: float, y: float, kind: str) -> str:
    left, top = x - BOX / 2, y - HIGH / 2
    rect = f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{BOX}" height="{HIGH}" rx="5"/>'
    return f'{rect}<text x="{x:.1f}" y="{y + 5:.1f}" text-anchor="middle">{escape(name)}</text>'
