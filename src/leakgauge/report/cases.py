"""What the report shows of each attacked set-up: sentences, scores beside their controls, pictures, figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from leakgauge.audit import records as store
from leakgauge.audit.phrasing import duration, plural
from leakgauge.audit.records import Record
from leakgauge.errors import BadInput
from leakgauge.report import words
from leakgauge.report.figures import Panel, Picture, bars_svg, curve_svg, pictures
from leakgauge.report.sources import case_anchor

_ROWS = (("metrics", "Attack"), ("null", "Null run"), ("baseline", "Trivial baseline"))
_STRIPS = (
    ("truth", "Original", ""),
    ("reconstruction", "Reconstruction", "metrics"),
    ("null", "Null run", "null"),
    ("baseline", "Trivial baseline", ""),  # its score is the best of several guesses, of which one is shown
)
_ALWAYS = ("feasible", "partial", "infeasible_within_budget")  # shown in the legend even where no set-up ended so
_MOST_FRAMES = 12
_AT_MOST = 4  # images side by side: what a phone shows without scrolling


def section(records: Sequence[Record], folder: Path) -> dict[str, Any]:
    """All that the template shows of the set-ups. A set-up that was run again counts once, as it ended last."""
    latest = store.latest(records)
    cases = [_case(number, record, folder) for number, record in enumerate(latest, start=1)]
    count = Counter(case["outcome"].key for case in cases)
    return {
        "headline": words.headline(latest),
        "qualifiers": words.qualifiers(latest),
        "tally": [(o, count[k]) for k, o in words.OUTCOMES.items() if count[k] or k in _ALWAYS],
        "cases": cases,
        "replaced": len(records) - len(latest),
        "private": any(case["shows_truth"] for case in cases),
    }


def _case(number: int, record: Record, folder: Path) -> dict[str, Any]:
    """All that the template shows of one record. A record without a result has no score, no figure and no picture."""
    case = record.case
    done = record.status == "done"
    batch = case.get("batch_size")
    groups = _groups(record, folder) if done else []
    return {
        "id": f"case-{number}",
        "number": number,
        "name": str(case.get("name") or record.key),
        "record": record,
        "done": done,
        "outcome": words.outcome(record),
        "sentence": words.case_sentence(record),
        "bound": words.bound_sentence(record),
        "model": case.get("model") or record.victim.get("name") or "–",
        "mode": case.get("mode") or record.victim.get("mode") or "–",
        "batch": "–" if batch is None else batch,
        "local_steps": case.get("local_steps") or "–",
        "defenses": [str(d) for d in (case.get("defenses") or record.defenses)],
        "attack": case.get("attack") or record.attack,
        "psnr": _mean(record.metrics, "psnr") if done else "–",
        "ssim": _mean(record.metrics, "ssim") if done else "–",
        "lpips": _mean(record.metrics, "lpips") if done else "–",
        "null_psnr": _mean(record.null, "psnr") if done else "–",
        "facts": _facts(record),
        "groups": groups,
        "shows_truth": any(s["picture"].uri for g in groups for s in g["strips"] if s["kind"] == "truth"),
        "frames": _frames(record, folder) if done else {"shown": [], "total": 0, "count": 1},
        "curve": _curve(number, record) if done else None,
        "bars": _bars(number, record) if done else None,
        "metrics": _metric_table(record) if done else [],
        "restarts": _restart_table(record) if done else [],
        "source": case_anchor(number),
    }


def _mean(summary: Mapping[str, Any], metric: str) -> str:
    return words.number(metric, words.mean(summary, metric), unit=False)


def _facts(record: Record) -> list[tuple[str, str]]:
    """The set-up as name and value, in the order of a methods section."""
    case, victim = record.case, record.victim
    model = str(case.get("model") or victim.get("name") or "–")
    if victim.get("parameters"):
        model += f" ({victim['parameters']:,} parameters)".replace(",", "\u202f")
    mode = str(case.get("mode") or victim.get("mode") or "–")
    data = str(case.get("data") or "–")
    if victim.get("shape"):
        data += ", " + " × ".join(str(n) for n in victim["shape"])
    if victim.get("classes"):
        data += f", {plural(int(victim['classes']), 'class', 'classes')}"
    if case.get("first") is not None:
        data += f", from image {case['first']}"
    steps = str(case.get("local_steps") or "–")
    if case.get("local_lr") is not None and not record.channel.startswith(
        "Gradient("
    ):  # a gradient knows no learning rate
        steps += f" (learning rate {case['local_lr']:g})"
    options = ", ".join(f"{k} = {v}" for k, v in (case.get("options") or {}).items())
    return [
        ("Model", model),
        ("Mode of the model", mode),
        ("Data", data),
        ("Batch size", str(case.get("batch_size", "–"))),
        ("Local steps", steps),
        ("What is shared", record.channel or "–"),
        *([("Server", f"malicious: {case['server']}")] if case.get("server") else []),
        ("Defenses", ", ".join(record.defenses) or ", ".join(map(str, case.get("defenses") or ())) or "none"),
        ("Attack", record.attack or str(case.get("attack") or "–")),
        ("Options", options or "defaults"),
        ("Seed", str(record.seed)),
        ("Time", duration(record.seconds)),
        ("Peak memory", words.memory(record.peak_bytes)),
    ]


def _groups(record: Record, folder: Path) -> list[dict[str, Any]]:
    """Pictures in groups of a few images: within a group, original, reconstruction, null run and baseline match."""
    count = int(record.case.get("batch_size") or 1)
    columns = []
    for kind, label, source in _STRIPS:
        name = record.pictures.get(kind)
        if name:
            found = pictures(folder, name, count=count, at_most=_AT_MOST)
        elif kind in ("truth", "reconstruction"):
            found = [Picture(problem="picture missing: none was recorded")]
        else:
            continue
        each = (getattr(record, source).get("psnr") or {}).get("per_image") or [] if source else []
        columns.append((kind, label, found, each if len(each) == count else []))
    groups = []
    for place in range(max((len(found) for _, _, found, _ in columns), default=0)):
        strips = []
        for kind, label, found, each in columns:
            if place < len(found):
                piece = found[place]
                scores = each[piece.first : piece.first + piece.count]
                strips.append(
                    {
                        "kind": kind,
                        "label": label,
                        "picture": piece,
                        "alt": _alt(label, piece, scores),
                        "scores": [words.number("psnr", v, unit=False) for v in scores],
                    }
                )
        shown = strips[0]["picture"]
        groups.append({"strips": strips, "first": shown.first + 1, "last": shown.first + shown.count})
    return groups


def _alt(label: str, piece: Picture, scores: Sequence[float | None]) -> str:
    start, end = piece.first + 1, piece.first + piece.count
    which = f"image {start}" if start == end else f"images {start} to {end}"
    each = ", ".join(words.number("psnr", v) for v in scores)
    return f"{label}, {which}" + (f"; PSNR {each}" if each else "")


def _frames(record: Record, folder: Path) -> dict[str, Any]:
    """The chosen candidate over the steps: at most a handful of frames, always with the first and the last."""
    count = int(record.case.get("batch_size") or 1)
    total = len(record.progress)
    chosen = sorted({round(i) for i in np.linspace(0, total - 1, min(total, _MOST_FRAMES)).tolist()}) if total else []
    shown = []
    for index in chosen:
        frame = record.progress[index]
        piece = pictures(folder, str(frame["picture"]), count=count, at_most=_AT_MOST, only_first=True)[0]
        step = frame["step"]
        shown.append({"step": step, "picture": piece, "alt": _alt(f"Candidate at step {step}", piece, ())})
    return {"shown": shown, "total": total, "count": min(count, _AT_MOST), "cut": count > _AT_MOST}


def _curve(number: int, record: Record) -> Markup | str | None:
    """The curve as SVG (our own escaped markup), a sentence why it cannot be drawn, or None for a closed form."""
    steps, losses = record.curve.get("steps") or [], record.curve.get("losses") or []
    if not steps and not losses:
        return None
    try:
        return Markup(curve_svg(steps, losses, uid=f"curve-{number}"))
    except BadInput as problem:
        return f"The curve cannot be drawn: {problem}."


def _bars(number: int, record: Record) -> Markup | None:
    panels = []
    for metric, top, name in (("psnr", 30.0, "PSNR in dB"), ("ssim", 1.0, "SSIM")):
        rows = [(label, getattr(record, source).get(metric)) for source, label in _ROWS]
        if rows[0][1]:
            panels.append(Panel(name, top, partial(words.number, metric, unit=False), rows))
    return Markup(bars_svg(panels, uid=f"bars-{number}")) if panels else None


def _metric_table(record: Record) -> list[dict[str, Any]]:
    known = [
        m
        for m in words.METRICS
        if m in ("psnr", "ssim", "lpips")
        or (m in record.metrics and (record.metrics[m] or m not in words.OF_LARGE_IMAGES))
    ]
    rows = []
    for metric in known + [m for m in record.metrics if m not in words.METRICS]:
        name, direction = words.METRICS.get(metric, (metric, ""))
        cells = [_cell(metric, getattr(record, source).get(metric)) for source, _ in _ROWS]
        unit = " (dB)" if metric in ("psnr", "psnr_reduced") else ""
        rows.append({"name": name + unit, "direction": direction, "cells": cells})
    return rows


def _cell(metric: str, summary: Mapping[str, Any] | None) -> tuple[str, str]:
    """Mean, and the range over the images where there is more than one value."""
    if not summary or summary.get("mean") is None:
        return words.MISSING, ""
    write = partial(words.number, metric, unit=False)
    low, high = summary.get("min"), summary.get("max")
    spread = "" if low is None or high is None or low == high else f"[{write(low)} .. {write(high)}]"
    return write(summary["mean"]), spread


def _restart_table(record: Record) -> list[dict[str, str]]:
    rows = []
    for metric, values in record.restarts.items():
        found = [v for v in values if v is not None]
        if len(found) > 1:  # one alone has no spread
            write = partial(words.number, metric, unit=False)
            name = words.METRICS.get(metric, (metric, ""))[0] + (" (dB)" if metric == "psnr" else "")
            with np.errstate(invalid="ignore"):
                middle = float(np.median(found))
            rows.append(
                {
                    "name": name,
                    "count": str(len(found)),
                    "low": write(min(found)),
                    "middle": write(middle),
                    "high": write(max(found)),
                    "interval": _interval(record, metric),
                }
            )
    return rows


def _interval(record: Record, metric: str) -> str:
    found = record.intervals.get(metric)
    if not found:
        return ""
    write = partial(words.number, metric, unit=False)
    return f"{write(found['low'])} to {write(found['high'])}"
