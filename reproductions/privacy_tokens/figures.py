"""Draws the figures of the README from the results: strips (Figs. 2-3), curves (4-15), heat maps (16-19) and the noise schedules."""

from __future__ import annotations

from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from reproductions.common import drawing
from reproductions.common.runner import Row, read, read_pictures
from reproductions.privacy_tokens.claims import WRITTEN, rows_of
from reproductions.privacy_tokens.published import PUBLISHED

SHOWN = {"lenet": (0, 8, 60, 200), "alexnet": (0, 30, 120, 200), "cnn": (0, 10, 20, 100), "mlp": (0, 10, 20, 100)}
"""Sub-epochs that the paper shows in its Figs. 4-7."""


def draw(folder: Path) -> list[Path]:
    """Every figure whose part has been run; returns what was written."""
    made: list[Path] = []
    for model in PUBLISHED:
        path = folder / f"{model}.jsonl"
        if not path.is_file():
            continue
        rows = [row for row in rows_of(folder, model) if row["seed"] == 0]
        made += _of_model(model, rows, folder)
        sizes = folder / f"batch_sizes_{model}.jsonl"
        if sizes.is_file():
            made.append(folder / f"heat_{model}.svg")
            made[-1].write_text(heat_map(model, rows, read(sizes)), encoding="utf-8")
    if (folder / "noise.jsonl").is_file():
        made.append(folder / "noise.svg")
        _noise(read(folder / "noise.jsonl"), made[-1])
    return made


def _of_model(model: str, rows: list[Row], folder: Path) -> list[Path]:
    made = [folder / f"{kind}_{model}.svg" for kind in ("batches", "differences", "trends")]
    paper = [r for r in rows if r["kind"] == "paper" and r["reading"] == WRITTEN]
    tokens = sorted({r["token"] for r in paper})
    present = [r["sub_epoch"] for r in paper if r["token"] == tokens[0]]
    chosen = [s for s in SHOWN[model] if s in present]
    chosen = chosen if len(chosen) == 4 else present[:4]
    panels = [
        drawing.Panel(
            f"sub-epoch {r['sub_epoch']} ({r['token']})", "batch", "critic value",
            [drawing.Line(n, list(enumerate(r[f"each_{n}"]))) for n in ("matched", "mismatched")],
        )
        for token in tokens for r in paper if r["token"] == token and r["sub_epoch"] in chosen
    ]  # fmt: skip
    drawing.svg(made[0], panels, columns=4, title=f"{model}: matched and mismatched pairs, batch by batch")
    panels = [
        drawing.Panel(
            token, "batch", "matched − mismatched",
            [
                drawing.Line(
                    f"sub-epoch {r['sub_epoch']}",
                    [(i, a - b) for i, (a, b) in enumerate(zip(r["each_matched"], r["each_mismatched"], strict=True))],
                )
                for r in paper if r["token"] == token
            ],
        )
        for token in tokens
    ]  # fmt: skip
    drawing.svg(made[1], panels, title=f"{model}: differences, batch by batch")
    drawing.svg(made[2], [_trend(model, token, rows) for token in tokens], title=f"{model}: the average difference")
    pictures = read_pictures(folder, model)
    kinds = [k for k in ("attack", "single") if any(name.startswith(k + " ") for name in pictures)]
    if kinds:
        found = [
            (f"{kind}, target {i + 1}", np.stack([pictures["truth"][i], *(pictures[f"{kind} {s}"][i] for s in present)]))
            for kind in kinds for i in range(min(4, len(pictures[f"{kind} {present[0]}"])))
        ]  # fmt: skip
        made.append(folder / f"strips_{model}.png")
        drawing.grid(made[-1], found, heads=["truth", *map(str, present)])
    return made


def _trend(model: str, token: str, rows: list[Row]) -> drawing.Panel:
    """Differences over the training. One whose standard error is above the paper's largest would hide all others; the table has it."""
    mine = [r for r in rows if r["kind"] == "paper" and r["token"] == token]
    wanted = (
        ("as written", WRITTEN, "gap"),
        ("critic trained on", "warm, within sub-epochs", "gap"),
        ("collected pairs, negatives from all", "once", "collected"),
        ("their decoy", "once", "decoy"),
    )
    published = [(s, values[1 if token == "autoencoder" else 2]) for s, values in PUBLISHED[model].items()]
    lines, largest = [drawing.Line("paper", published, dashed=True)], max(value for _, value in published)
    for name, reading, key in wanted:
        told = [r for r in mine if r["reading"] == reading and r[key] is not None]
        points = [(r["sub_epoch"], r[key]) for r in told if key != "gap" or r["gap_error"] <= largest]
        lines += [drawing.Line(name, points)] if points else []
    return drawing.Panel(token, "sub-epoch", "matched − mismatched", lines)


def heat_map(model: str, table: list[Row], others: list[Row]) -> str:
    """Batch size against sub-epoch: colour is the difference, the words are the accuracy; left at frozen weights, right collected."""
    base = [r for r in table if r["kind"] == "paper" and (r["token"], r["reading"]) == ("transformer", WRITTEN)]
    cells = [{**r, "batch": 20} for r in base] + [
        r for r in others if r["kind"].startswith("batch_size") and r["shuffle"] == "sub_epoch"
    ]
    rows = sorted({r["batch"] for r in cells})
    columns = [r["sub_epoch"] for r in base]
    width, height, left, top = 62, 40, 60, 50
    panel = left + width * len(columns) + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * panel}" height="{top + height * len(rows) + 50}" '
        'font-family="sans-serif" font-size="11">',
        f"<title>{escape(model)}: difference by batch size</title>",
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (key, title) in enumerate((("gap", "frozen weights"), ("collected", "collected pairs"))):
        values = [r[key] for r in cells if r[key] is not None]
        high = max([1.0, *values])  # from 0 to at least 1 nat: noise is to look like noise
        at = number * panel
        out.append(_words(at + left, 20, f"{model}, {title}: 0 (light) to {high:.1f} (dark)", "start"))
        for i, batch in enumerate(rows):
            y = top + i * height
            out.append(_words(at + left - 8, y + 24, str(batch), "end"))
            for j, s in enumerate(columns):
                (cell,) = [r for r in cells if (r["batch"], r["sub_epoch"]) == (batch, s)]
                share = max(0.0, (cell[key] or 0.0) / high)
                x = at + left + j * width
                out.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{_colour(share)}"/>')
                ink = "white" if share > 0.5 else "#333333"
                shown = "–" if cell[key] is None else f"{cell[key]:.2f}"
                out.append(_words(x + width / 2, y + 17, shown, "middle", ink))
                out.append(_words(x + width / 2, y + 32, f"{cell['accuracy']:.0%}", "middle", ink))
        for j, s in enumerate(columns):
            out.append(_words(at + left + (j + 0.5) * width, top + len(rows) * height + 16, str(s), "middle"))
        out.append(
            _words(
                at + left,
                top + len(rows) * height + 36,
                "sub-epoch; rows are batch sizes, per cent held-out accuracy",
                "start",
            )
        )
    return "\n".join([*out, "</svg>"]) + "\n"


def _colour(share: float) -> str:
    light, dark = (237, 245, 252), (8, 64, 129)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(light, dark, strict=True))


def _words(x: float, y: float, words: str, anchor: str, ink: str = "#333333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{ink}">{escape(words)}</text>'


def _noise(rows: list[Row], path: Path) -> None:
    names = list(dict.fromkeys(r["schedule"] for r in rows))

    def lines(kind: str, value: Any) -> list[Any]:
        found = []
        for name in names:
            mine = [r for r in rows if r["kind"] == kind and r["schedule"] == name]
            at = sorted({r["fraction"] for r in mine})
            means = [(f, [value(r) for r in mine if r["fraction"] == f]) for f in at]
            found.append(drawing.Line(name, [(f, fmean(v)) for f, v in means if None not in v]))
        return found

    drawing.svg(
        path,
        [
            drawing.Panel(
                "accuracy, held out", "share of training", "accuracy", lines("noise", lambda r: r["accuracy"])
            ),
            drawing.Panel(
                "ε so far (infinite: not drawn)", "share of training", "ε", lines("noise", lambda r: r["epsilon"])
            ),
            drawing.Panel(
                "decoder on the release", "share of training", "AUC", lines("noise", lambda r: r["decoder"]["auc"])
            ),
            drawing.Panel(
                "attack on one image's release",
                "share of training",
                "PSNR, dB",
                lines("noise attack", lambda r: fmean(r["psnr"])),
            ),
        ],
        title="The same noise early and late in training",
    )
