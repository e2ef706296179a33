"""The picture of what defenses buy, as inline SVG: what the attack still sees against what training loses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leakgauge.audit.verdict import Outcome
from leakgauge.report.axes import WIDTH, Frame, line, nice, svg, text

LEFT, RIGHT, TOP, BOTTOM, HEIGHT = 48, WIDTH - 14, 62, 306, 352
SIZE = 5.2
"""Half the width of a mark."""
CHARACTER, LINE = 6.1, 12
"""Room that a letter and a line of a label take; wider than most letters are."""
VERDICTS = {one.value: one.label for one in Outcome}
"""Verdicts that have a mark: a triangle, a diamond and a circle."""


@dataclass(frozen=True)
class Tried:
    """One trial in the figure: ``cost`` (with its interval) is accuracy lost in percentage points, ``seen`` what the attack sees."""

    number: int
    label: str
    verdict: str
    cost: float
    low: float
    high: float
    seen: float
    front: bool


def pareto_svg(points: Sequence[Tried], *, uid: str, measure: str = "SSIM") -> str:
    """What the attack sees, by ``measure``, over accuracy lost, the front as a staircase; lower left is better.

    Whiskers are the intervals of the cost, cut off where the axis ends. Each verdict has its own shape and colour.
    """
    lowest = min([0.0, *(p.seen for p in points)]) - 0.07  # room for the label of the lowest mark
    ends = [0.0, *(p.cost for p in points)]
    span = max(max(ends) - min(ends), 2.0)
    left, right = min(ends) - 0.1 * span, max(ends) + 0.12 * span

    def x(value: float) -> float:
        return LEFT + (min(max(value, left), right) - left) / (right - left) * (RIGHT - LEFT)

    def y(value: float) -> float:
        return BOTTOM - (value - lowest) / (1.0 - lowest) * (BOTTOM - TOP)

    frame = Frame(LEFT, RIGHT, TOP, BOTTOM)
    body = frame.grid((y(value), _written(value)) for value in nice(lowest, 1.0, 6))
    body += [*frame.marks((x(value), _written(value)) for value in nice(left, right, 6)), *frame.edges()]
    body.append(_staircase([(x(p.cost), y(p.seen)) for p in points if p.front]))
    body += [line(x(p.low), y(p.seen), x(p.high), y(p.seen), "spread") for p in points if p.high > p.low]
    placed = [(x(p.cost), y(p.seen)) for p in points]
    leaders, labels = _labels(points, placed)
    body += [*leaders, *(_mark(p.verdict, *at) for p, at in zip(points, placed, strict=True)), *labels]
    body += _legend({p.verdict for p in points}, front=any(p.front for p in points))
    body += frame.names("accuracy lost, percentage points", f"{measure} of the attack")
    return svg(uid, "What each defense buys and costs", _told(points, measure), body, height=HEIGHT)


def _mark(verdict: str, x: float, y: float) -> str:
    s = SIZE
    if verdict == "infeasible_within_budget":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{s:g}" class="mark {verdict}"/>'
    corners = {
        "feasible": f"M{x:.1f} {y - s * 1.15:.1f}l{s * 1.15:g} {s * 2:g}h{-s * 2.3:g}z",
        "partial": f"M{x:.1f} {y - s * 1.3:.1f}l{s * 1.2:g} {s * 1.3:g}l{-s * 1.2:g} {s * 1.3:g}l{-s * 1.2:g} {-s * 1.3:g}z",
    }
    return f'<path d="{corners[verdict]}" class="mark {verdict}"/>'


def _staircase(points: Sequence[tuple[float, float]]) -> str:
    """From each point of the front to the right, then down to the next: what lies above it is beaten."""
    ordered = sorted(set(points), key=lambda p: (p[0], -p[1]))
    if len(ordered) < 2:
        return ""
    path = f"M{ordered[0][0]:.1f} {ordered[0][1]:.1f}" + "".join(f"H{px:.1f}V{py:.1f}" for px, py in ordered[1:])
    return f'<path d="{path}" class="front"/>'


Box = tuple[float, float, float, float]
AWAY = (0, 14, 28, 42)
"""How far a label may move from its mark to find a free place; a moved one is tied to its mark by a line."""


@dataclass(frozen=True)
class _Place:
    """Where a label may stand: its anchor point, and the room it takes."""

    x: float
    y: float
    anchor: str
    box: Box
    away: int


def _labels(points: Sequence[Tried], placed: Sequence[tuple[float, float]]) -> tuple[list[str], list[str]]:
    """Lines, and a label beside each mark, where it covers neither a mark nor another label; marks on the front choose first.

    On the front a label holds number and name, elsewhere (or where there is no room) the number alone.
    """
    taken: list[Box] = [(px - SIZE, py - SIZE, px + SIZE, py + SIZE) for px, py in placed]
    lines, drawn = [], []
    for p, at in sorted(zip(points, placed, strict=True), key=lambda pair: not pair[0].front):
        wanted = [f"{p.number} {p.label}", str(p.number)] if p.front else [str(p.number)]
        tries = [(label, place) for label in wanted for away in AWAY for place in _places(*at, label, away)]
        free = [one for one in tries if _free(one[1], at, placed, taken)]
        label, place = free[0] if free else tries[-1]
        taken.append(place.box)
        if place.away:
            left, top, right, bottom = place.box
            end = (min(max(at[0], left), right), min(max(at[1], top), bottom))
            lines.append(line(round(at[0], 1), round(at[1], 1), round(end[0], 1), round(end[1], 1), "leader"))
        css = "tick named" if p.front else "tick"
        drawn.append(text(round(place.x, 1), round(place.y, 1), label, anchor=place.anchor, css=css))
    return lines, drawn


def _places(x: float, y: float, label: str, away: int) -> list[_Place]:
    """Off the corners of the mark, where no interval runs, then above and below it."""
    width = len(label) * CHARACTER
    side = SIZE + 2 + away / 2
    found = []
    for down in (-4 - away, 13 + away):
        for px, anchor in ((x + side, "start"), (x - side, "end"), (x, "middle")):
            py = y + down + (math.copysign(4, down) if anchor == "middle" else 0)
            left = {"start": px, "end": px - width, "middle": px - width / 2}[anchor]
            found.append(_Place(px, py, anchor, (left, py - LINE + 2, left + width, py + 2), away))
    return found


def _free(place: _Place, own: tuple[float, float], placed: Sequence[tuple[float, float]], taken: Sequence[Box]) -> bool:
    """Whether the label is inside the plot, covers nothing and, without a line, cannot be taken for another mark's."""
    if not _inside(place.box) or any(_meet(place.box, box) for box in taken):
        return False
    return place.away > 0 or all(at == own or _distance(place.box, at) > _distance(place.box, own) for at in placed)


def _distance(box: Box, at: tuple[float, float]) -> float:
    across = max(box[0] - at[0], 0.0, at[0] - box[2])
    return math.hypot(across, max(box[1] - at[1], 0.0, at[1] - box[3]))


def _inside(box: Box) -> bool:
    return box[0] >= LEFT + 2 and box[2] <= WIDTH and box[1] >= TOP - 12 and box[3] <= BOTTOM


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _legend(verdicts: set[str], *, front: bool) -> list[str]:
    """Two rows above the plot: the verdicts that occur, then the lines."""
    drawn, at = [], LEFT + 6.0
    for verdict, word in VERDICTS.items():
        if verdict in verdicts:
            drawn += [_mark(verdict, at, 12), text(at + 12, 16, word, css="tick")]
            at += 30 + len(word) * CHARACTER
    at = LEFT
    for css, word in (("front", "Pareto front"), ("spread", "95 % interval")):
        if front or css != "front":
            drawn += [line(at, 34, at + 20, 34, css), text(at + 27, 38, word, css="tick")]
            at += 118
    drawn.append(text(RIGHT, 38, "↙ better", anchor="end", css="tick"))
    return drawn


def _written(value: float) -> str:
    return f"{value:g}".replace("-", "−")


def _told(points: Sequence[Tried], measure: str) -> str:
    each = "; ".join(
        f"{p.number} {p.label}: {measure} {p.seen:.2f}, {p.cost:.1f} points of accuracy lost, {VERDICTS[p.verdict]}"
        for p in points
    )
    front = ", ".join(f"{p.number} {p.label}" for p in points if p.front)
    return f"{each}. " + (f"On the Pareto front: {front}." if front else "There is no front.")


def drawable(cost: float, seen: float, verdict: str | None) -> bool:
    """Whether a trial has a place in the figure."""
    return math.isfinite(cost) and math.isfinite(seen) and verdict in VERDICTS
