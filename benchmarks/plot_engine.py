"""Draws docs/images/engine-scaling.svg from benchmarks/results/engine_h200.jsonl: time per restart against restarts.

python benchmarks/plot_engine.py
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results/engine_h200.jsonl"
PICTURE = HERE.parent / "docs/images/engine-scaling.svg"
CASES = {"convnet": "#0072b2", "resnet18_pre": "#d55e00", "vit": "#009e73"}
LEFT, RIGHT, TOP, BOTTOM, WIDTH, HEIGHT = 70, 170, 30, 50, 760, 420


def x_of(restarts: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(restarts) / 7


def y_of(milliseconds: float) -> float:
    low, high = math.log10(0.03), math.log10(60)
    return TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(milliseconds)) / (high - low)


def line(points: list[tuple[float, float]], colour: str, dashes: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>'


def text(x: float, y: float, words: str, *, anchor: str = "start", colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def drawn(rows: list[dict[str, Any]]) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">'
    ]
    parts.append("<title>Milliseconds per restart and iteration on one H200 against the number of restarts</title>")
    parts.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
    parts += [text(x_of(n), HEIGHT - BOTTOM + 20, str(n), anchor="middle") for n in (1, 8, 32, 128)]
    for tick in (0.1, 1, 10):
        parts.append(text(LEFT - 8, y_of(tick) + 4, f"{tick:g} ms", anchor="end"))
        parts.append(line([(LEFT, y_of(tick)), (WIDTH - RIGHT, y_of(tick))], "#ddd"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "restarts in one batch", anchor="middle"))
    labels: list[tuple[float, str, str]] = []
    for case, colour in CASES.items():
        for precision, dashes in (("fp32", ""), ("tf32", "5 4")):
            own = sorted(
                (r["restarts"], r["ours_ms_per_restart"], r["plain_ms"])
                for r in rows
                if (r["case"], r["precision"], r["distance"]) == (case, precision, "cosine")
                and not r["own_observations"]
                and r["restarts"] <= 128
            )
            parts.append(line([(x_of(n), y_of(ms)) for n, ms, _ in own], colour, dashes))
            labels.append((y_of(own[-1][1]), f"{case} {precision}", colour))
            if precision == "fp32":
                plain = [(x_of(n), y_of(ms)) for n, _, ms in own]
                parts.append(line(plain, colour, "1 4"))
                labels.append((plain[-1][1], f"{case}, plain loop", colour))
    lowest = 0.0
    for y, words, colour in sorted(labels):  # from the top down, none on top of another
        lowest = max(y, lowest + 15)
        parts.append(text(WIDTH - RIGHT + 8, lowest + 4, words, colour=colour))
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    rows = [json.loads(row) for row in RESULTS.read_text(encoding="utf-8").splitlines()[1:]]
    PICTURE.write_text(drawn(rows), encoding="utf-8")
    print(f"written: {PICTURE}")


if __name__ == "__main__":
    main()
