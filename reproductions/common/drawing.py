"""Curves as SVG and grids of images as PNG, with nothing but Pillow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#000000", "#f0e442", "#882255",
)  # fmt: skip
"""Okabe and Ito's palette, which colour-blind readers can tell apart, and two more: ten classes need ten."""

INK, PALE = "#333333", "#dddddd"


@dataclass(frozen=True)
class Line:
    """Points in order; ``spread`` is a band of (x, lowest, highest) behind them, and without ``joined`` they stand alone."""

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    spread: Sequence[tuple[float, float, float]] = ()
    joined: bool = True


@dataclass(frozen=True)
class Panel:
    """One pair of axes. Logarithmic axes drop points that are not positive. ``words`` stand at ``ticks`` in place of numbers."""

    title: str
    across: str
    up: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    bounds: tuple[float, float] | None = None
    ticks: Sequence[float] = field(default_factory=tuple)
    words: Sequence[str] = ()


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 400, 290, 62, 14, 34, 48


def svg(path: Path, panels: Sequence[Panel], *, columns: int = 2, title: str = "") -> None:
    """Panels side by side with one legend; lines of one name have one colour in all panels."""
    first = {line.name: line for panel in reversed(panels) for line in reversed(panel.lines)}
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    legend, legend_height = _legend([first[name] for name in names], colours, columns * WIDTH)
    height = rows * HEIGHT + legend_height + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {columns * WIDTH} {height}" '
        f'width="{columns * WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title or path.stem)}</title>",
        f'<rect width="{columns * WIDTH}" height="{height}" fill="white"/>',
    ]
    for i, panel in enumerate(panels):
        parts.append(f'<g transform="translate({i % columns * WIDTH} {i // columns * HEIGHT})">')
        parts += [*_panel(panel, colours), "</g>"]
    parts += [f'<g transform="translate(0 {rows * HEIGHT + 4})">', *legend, "</g>", "</svg>"]
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")


def _legend(lines: Sequence[Line], colours: dict[str, str], width: int) -> tuple[list[str], int]:
    parts: list[str] = []
    x, y = LEFT, 14
    for line in lines:
        needed = 40 + 6.6 * len(line.name)
        if x + needed > width and x > LEFT:
            x, y = LEFT, y + 20
        if line.joined:
            parts.append(_line([(x, y - 4), (x + 22, y - 4)], colours[line.name], 3, "6 4" if line.dashed else ""))
        else:
            parts.append(_diamond(x + 11, y - 4, colours[line.name]))
        parts.append(_text(x + 28, y, line.name))
        x += round(needed)
    return parts, y + 8


def _panel(panel: Panel, colours: dict[str, str]) -> list[str]:
    kept = [
        [(x, y) for x, y in line.points if _drawable(x, panel.log_x) and _drawable(y, panel.log_y)]
        for line in panel.lines
    ]
    bands = [
        [(x, low, high) for x, low, high in line.spread if _drawable(low, panel.log_y) and _drawable(high, panel.log_y)]
        for line in panel.lines
    ]
    every = [point for points in kept for point in points] or [(1.0, 1.0)]
    every += [(x, y) for band in bands for x, *ends in band for y in ends]
    across = _Axis([x for x, _ in every], panel.log_x, LEFT, WIDTH - RIGHT)
    up = _Axis(panel.bounds or [y for _, y in every], panel.log_y, HEIGHT - BOTTOM, TOP)
    parts = [_text((LEFT + WIDTH - RIGHT) / 2, 20, panel.title, anchor="middle", weight="bold")]
    for tick in up.ticks():
        parts.append(_line([(LEFT, up(tick)), (WIDTH - RIGHT, up(tick))], PALE, 1))
        parts.append(_text(LEFT - 6, up(tick) + 4, _number(tick), anchor="end"))
    ticks = panel.ticks or across.ticks()
    for tick, word in zip(ticks, panel.words or [_number(tick) for tick in ticks], strict=True):
        parts.append(_line([(across(tick), HEIGHT - BOTTOM), (across(tick), HEIGHT - BOTTOM + 4)], INK, 1))
        parts.append(_text(across(tick), HEIGHT - BOTTOM + 18, word, anchor="middle"))
    parts.append(_line([(LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM)], INK, 1))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, panel.across, anchor="middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<g transform="translate(14 {middle}) rotate(-90)">{_text(0, 0, panel.up, anchor="middle")}</g>')
    for line, band in zip(panel.lines, bands, strict=True):
        edge = [(across(x), up(y)) for x, y, _ in band] + [(across(x), up(y)) for x, _, y in reversed(band)]
        around = " ".join(f"{x:.1f},{y:.1f}" for x, y in edge)
        if band:
            parts.append(f'<polygon points="{around}" fill="{colours[line.name]}" fill-opacity="0.18"/>')
    for line, points in zip(panel.lines, kept, strict=True):
        placed = [(across(x), up(y)) for x, y in points]
        if not line.joined:
            parts += [_diamond(x, y, colours[line.name]) for x, y in placed]
            continue
        parts.append(_line(placed, colours[line.name], 2, "6 4" if line.dashed else ""))
        if len(placed) <= 16 and not (line.dashed and len(placed) == 2):  # a level has no points of its own
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colours[line.name]}"/>' for x, y in placed]
    return parts


def _drawable(value: float, log: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not log)


class _Axis:
    """Values to places on the page."""

    def __init__(self, values: Sequence[float], log: bool, start: float, end: float) -> None:
        self.log, self.start, self.end = log, start, end
        low, high = min(values), max(values)
        if log:
            self.low, self.high = math.log10(low), math.log10(high)
        else:
            self.low, self.high = low, high
        if self.high - self.low < 1e-12:
            self.low, self.high = self.low - 0.5, self.high + 0.5

    def __call__(self, value: float) -> float:
        place = math.log10(value) if self.log else value
        return self.start + (self.end - self.start) * (place - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.log:
            exponents = range(math.floor(self.low), math.ceil(self.high) + 1)
            factors = (1, 2, 5) if self.high - self.low < 2 else (1,)  # within few decades powers of ten are too rare
            every = max(1, len(exponents) // 6)
            wanted = [factor * 10.0**e for e in exponents[::every] for factor in factors]
            inside = [v for v in wanted if self.low - 1e-9 <= math.log10(v) <= self.high + 1e-9]
            return inside if len(inside) > 1 else [10**self.low, 10**self.high]
        step = 10 ** math.floor(math.log10((self.high - self.low) / 4))
        step *= next((k for k in (1, 2, 5, 10) if (self.high - self.low) / (k * step) <= 6), 10)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        digits, exponent = f"{value:.0e}".split("e")
        return f"{digits}e{int(exponent)}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _line(points: Sequence[tuple[float, float]], colour: str, width: float, dashes: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>'


def _diamond(x: float, y: float, colour: str) -> str:
    around = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in ((0, -6), (6, 0), (0, 6), (-6, 0)))
    return f'<polygon points="{around}" fill="{colour}" stroke="white" stroke-width="1"/>'


def _text(x: float, y: float, words: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="{INK}">{escape(words)}</text>'


GAP, WORDS = 4, 15


def grid(path: Path, rows: Sequence[tuple[str, np.ndarray]], *, side: int = 84, heads: Sequence[str] = ()) -> None:
    """One named row of images (N, C, H, W, uint8) under another; ``heads`` stand over the columns."""
    font = ImageFont.load_default(13)
    margin = 16 + max(round(font.getlength(name)) for name, _ in rows)
    columns = max(len(images) for _, images in rows)
    top = WORDS + 8 if heads else GAP
    page = Image.new("RGB", (margin + columns * (side + GAP), top + len(rows) * (side + GAP)), "white")
    pen = ImageDraw.Draw(page)
    for column, head in enumerate(heads):
        pen.text((margin + column * (side + GAP) + side / 2, top / 2), head, fill=INK, font=font, anchor="mm")
    for row, (name, images) in enumerate(rows):
        y = top + row * (side + GAP)
        pen.text((margin - 10, y + side / 2), name, fill=INK, font=font, anchor="rm")
        for column, pixels in enumerate(images):
            page.paste(_picture(pixels, side), (margin + column * (side + GAP), y))
    page.save(path, optimize=True)


def _picture(pixels: np.ndarray, side: int) -> Image.Image:
    """Small images keep their pixels; large ones are averaged down."""
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).convert("RGB")
    way = Image.Resampling.NEAREST if picture.width <= side else Image.Resampling.LANCZOS
    return picture.resize((side, side), way)
