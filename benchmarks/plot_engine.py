"""Draws the pictures of docs/engine.md from benchmarks/results: time per restart against restarts, batch size and side.

python -m benchmarks.plot_engine
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.json_lines import read_lines

HERE = Path(__file__).parent
PICTURES = HERE.parent / "docs/images"
COLOURS = {"convnet": "#0072b2", "resnet18_pre": "#d55e00", "vit": "#009e73"}
LEFT, RIGHT, TOP, BOTTOM, WIDTH, HEIGHT = 70, 190, 40, 50, 780, 400
SOLID, DASHED, DOTTED = "", "6 4", "1 4"
Row = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    """Milliseconds over whatever stands on the x axis."""

    label: str
    colour: str
    dashes: str
    points: list[tuple[float, float]]


def text(x: float, y: float, words: str, *, anchor: str = "start", colour: str = "#333", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>{words}</text>'


def line(points: list[tuple[float, float]], colour: str, dashes: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>'


def panel(title: str, below: str, ticks: list[int], curves: list[Curve], *, offset: float = 0) -> list[str]:
    """One picture with logarithmic axes; the labels stand on the right, none on top of another."""
    values = [ms for curve in curves for _, ms in curve.points]
    low, high = math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1
    first, last = math.log2(ticks[0]), math.log2(ticks[-1])

    def x_of(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(value) - first) / (last - first)

    def y_of(ms: float) -> float:
        return offset + TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(ms)) / (high - low)

    parts = [text(LEFT, offset + 22, title, bold=True)]
    for power in range(math.ceil(low), math.floor(high) + 1):
        parts.append(text(LEFT - 8, y_of(10**power) + 4, f"{10**power:g} ms", anchor="end"))
        parts.append(line([(LEFT, y_of(10**power)), (WIDTH - RIGHT, y_of(10**power))], "#ddd", SOLID))
    parts += [text(x_of(n), offset + HEIGHT - BOTTOM + 20, str(n), anchor="middle") for n in ticks]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, offset + HEIGHT - 10, below, anchor="middle"))
    for curve in curves:
        parts.append(line([(x_of(v), y_of(ms)) for v, ms in curve.points], curve.colour, curve.dashes))
    lowest = 0.0
    for y, curve in sorted(((y_of(c.points[-1][1]), c) for c in curves), key=lambda pair: pair[0]):
        lowest = max(y, lowest + 15)
        parts.append(text(WIDTH - RIGHT + 8, lowest + 4, curve.label, colour=curve.colour))
    return parts


def drawn(title: str, panels: list[list[str]]) -> str:
    height = HEIGHT * len(panels)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">'
    parts = [head, f"<title>{title}</title>", f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
    return "\n".join([*parts, *(part for one in panels for part in one), "</svg>"]) + "\n"


def rows_of(name: str) -> list[Row]:
    return read_lines(HERE / "results" / name)[1:]


def against_restarts() -> str:
    curves = []
    for case, colour in COLOURS.items():
        for precision, dashes in (("fp32", SOLID), ("tf32", DASHED)):
            own = sorted(
                (r["restarts"], r["ours_ms_per_restart"], r["plain_ms"])
                for r in rows_of("engine_h200.jsonl")
                if (r["case"], r["precision"], r["distance"]) == (case, precision, "cosine")
                and not r["own_observations"]
                and r["restarts"] <= 128
            )
            curves.append(Curve(f"{case} {precision}", colour, dashes, [(n, ms) for n, ms, _ in own]))
            if precision == "fp32":
                curves.append(Curve(f"{case}, plain loop", colour, DOTTED, [(n, ms) for n, _, ms in own]))
    title = "Milliseconds per restart and step on one H200"
    return drawn(title, [panel(title, "restarts in one batch", [1, 8, 32, 128], curves)])


def against_size() -> str:
    """Ours, and the least time that the same kernels would need at the measured ceilings."""
    panels = []
    wanted = (("vit", "batch"), ("resnet18_pre", "batch"), ("vit", "side"), ("resnet18_pre", "side"))
    for index, (case, axis) in enumerate(wanted):
        curves, ticks = [], []
        for precision, colour in (("fp32", COLOURS["convnet"]), ("tf32", COLOURS["resnet18_pre"])):
            rows = [
                r
                for r in rows_of("scaling_h200.jsonl")
                if (r["case"], r["axis"], r["precision"]) == (case, axis, precision) and "error" not in r
            ]
            ticks = [r["value"] for r in rows]
            for label, key, dashes in (
                (precision, "ours_ms_per_restart", SOLID),
                (f"{precision}, roofline", "floor_ms_per_restart", DASHED),
            ):
                curves.append(Curve(label, colour, dashes, [(r["value"], r[key]) for r in rows]))
        below = "images in the batch" if axis == "batch" else "side of the image in pixels"
        title = f"{case}, 32 restarts: milliseconds per restart and step"
        panels.append(panel(title, below, ticks, curves, offset=index * HEIGHT))
    return drawn("Time against batch size and resolution, beside the roofline", panels)


def main() -> None:
    for name, picture in (("engine-scaling", against_restarts()), ("engine-size", against_size())):
        (PICTURES / f"{name}.svg").write_text(picture, encoding="utf-8")
        print(f"written: {PICTURES / name}.svg")


if __name__ == "__main__":
    main()
