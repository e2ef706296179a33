"""The section on updates: what the report shows of each attacked set-up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from leakgauge.audit import records as store
from leakgauge.audit.phrasing import MISSING, duration, memory, metric, plural, thousands
from leakgauge.audit.records import Record
from leakgauge.audit.scoring import Scores
from leakgauge.audit.verdict import Outcome
from leakgauge.audit.wording import (
    ENDINGS,
    METRICS,
    OF_IMAGES,
    OPTIONAL,
    UNITS,
    Statement,
    bound_sentence,
    captured_warnings,
    case_sentence,
    cause_rows,
    certificates,
    ending,
    explained,
    figures,
    identifiable,
    labels_of,
    learned,
    local_steps,
    raced,
    read_at,
    rule,
)
from leakgauge.audit.wording.bracket import bracket_rows, bracket_sentence, hidden_unit, scratch_sentence
from leakgauge.errors import BadInput
from leakgauge.report.charts import (
    Bar,
    Line,
    Panel,
    Picture,
    Values,
    bar_chart,
    between,
    line_chart,
    linear,
    logarithmic,
    pictures,
)
from leakgauge.report.sections import samples
from leakgauge.report.sources import anchor, of_cases

_ROWS = (("scores", "Attack"), ("null", "Null run"), ("baseline", "Trivial baseline"))
_STRIPS = (
    ("truth", "Original", ""),
    ("reconstruction", "Reconstruction", "scores"),
    ("null", "Null run", "null"),
    ("baseline", "Trivial baseline", ""),  # its score is the best of several guesses, of which one is shown
)
_ALWAYS = tuple(one for one in Outcome if one.conclusive)  # shown in the legend even where no set-up ended so
_MOST_FRAMES = 12
_AT_MOST = 4  # images side by side: what a phone shows without scrolling


def section(records: Sequence[Record], folder: Path, statement: Statement) -> dict[str, Any] | None:
    """All that the template shows of the set-ups, None where there are none. One that was run again counts once, as it ended last."""
    latest = store.latest(records)
    if not latest:
        return None
    sources = of_cases(latest)  # first of all: it refuses what is not a number
    cases = [_case(number, record, folder) for number, record in enumerate(latest, start=1)]
    count = Counter(case["outcome"].key for case in cases)
    return {
        "statement": statement,
        "tally": [(o, count[k]) for k, o in ENDINGS.items() if count[k] or k in _ALWAYS],
        "cases": cases,
        "replaced": len(records) - len(latest),
        "private": any(case["shows_truth"] for case in cases),
        "captured": any(record.captured is not None for record in latest),
        "made_from": plural(len(latest), "recorded set-up"),
        "sources": sources,
        "versions": [record.versions for record in latest],
    }


def _case(number: int, record: Record, folder: Path) -> dict[str, Any]:
    """All that the template shows of one record. A record without a result has no score, no figure and no picture."""
    case = record.case
    done = record.status == "done"
    groups = _groups(record, folder) if done else []
    scored = done and record.scores is not None
    return {
        "id": f"case-{number}",
        "number": number,
        "name": case.name,
        "record": record,
        "done": done,
        "scored": scored,
        "outcome": ending(record),
        "rule": "" if record.verdict is None else rule(record.verdict),
        "sentence": case_sentence(record),
        "bound": bound_sentence(record),
        "bracket": bracket_sentence(record),
        "bracket_rows": bracket_rows(record),
        "hidden_unit": "" if record.bound is None else hidden_unit(record.bound),
        "scratch": scratch_sentence(record),
        "warnings": captured_warnings(record),
        "explained": explained(record) if done else [],
        "model": case.model,
        "mode": case.mode,
        "batch": case.batch_size,
        "local_steps": 1 if record.local is None else record.local.steps,
        "defenses": list(case.defenses) if record.captured is None else ["not known"],
        "attack": case.attack,
        "figures": _figures(record) if done else "",
        "units": UNITS["image" if record.verdict is None else record.verdict.unit],
        "psnr": _mean(record.scores, "psnr") if done else "–",
        "ssim": _mean(record.scores, "ssim") if done else "–",
        "lpips": _mean(record.scores, "lpips") if done else "–",
        "null_psnr": _mean(record.null, "psnr") if done else "–",
        "facts": _facts(record),
        "groups": groups,
        "text": samples.text(record) if done else None,
        "table": samples.table(record) if done else None,
        "series": samples.series(number, record) if done else [],
        "shows_truth": (record.text is not None and bool(record.text.scores))
        or record.series is not None
        or record.table is not None
        or any(s["picture"].uri for g in groups for s in g["strips"] if s["kind"] == "truth"),
        "frames": _frames(record, folder) if done else {"shown": [], "total": 0, "count": 1},
        "curve": _curve(number, record) if done else None,
        "bars": _bars(number, record) if done else None,
        "metrics": _metric_table(record) if scored else [],
        "labels": labels_of(record),
        "identifiable": identifiable(record) if done else "",
        "directions": _directions(record, folder) if done else [],
        "certificates": certificates(record) if done else "",
        "learned": learned(record) if done else "",
        "gallery": _gallery(record, folder) if done else None,
        "restarts": _restart_table(record) if done else [],
        "source": anchor("case", number),
    }


def _figures(record: Record) -> str:
    """The scores of a set-up on anything but images, for the overview; empty for images, which have columns of their own."""
    if record.text is not None and not record.text.scores:
        return (
            f"certified exact: {record.text.verdict.certified} of {plural(record.text.verdict.sentences, 'sentence')}"
        )
    is_image = record.text is None and record.table is None and record.series is None
    return "" if is_image else ", ".join(f"{name} {value}" for name, value in figures(record))


def _mean(scores: Scores | None, name: str) -> str:
    return metric(name, None if scores is None else scores.mean(name))


def _facts(record: Record) -> list[tuple[str, str]]:
    """The set-up as name and value, in the order of a methods section."""
    case, victim, captured = record.case, record.victim, record.captured
    model = case.model + (f" ({thousands(victim.parameters)} parameters)" if victim.parameters else "")
    data = [case.data] if captured is None else [captured.truth or "not known here"]
    data += [" × ".join(map(str, victim.shape))] if victim.shape else []
    if not record.data.labelled:
        data.append("no classes (labels made up, not scored)")
    elif victim.classes:
        data.append(plural(victim.classes, "class", "classes"))
    data += [f"read {how}"] if (how := read_at(record.data.levels)) else []
    data += [f"from image {case.first}"] if captured is None else []
    return [
        ("Model", model),
        ("Mode of the model", case.mode),
        ("Data", ", ".join(data)),
        ("Batch size", str(case.batch_size)),
        ("Local steps", local_steps(record.local)),
        ("What is shared", record.channel),
        *([] if captured is None else [("Captured update", f"{captured.update} ({captured.holds})")]),
        *([] if captured is None else [("Weights before it", captured.weights or f"those of {case.model}")]),
        *([("Server", f"malicious: {case.server}")] if case.server else []),
        ("Defenses", "not known" if captured is not None else ", ".join(record.defenses) or "none"),
        ("Attack", record.attack),
        *([("What was tried", raced(record))] if record.raced else []),
        *cause_rows(record),
        ("Options", ", ".join(f"{k} = {v}" for k, v in case.options.items()) or "defaults"),
        ("Seed", str(case.seed)),
        ("Time", duration(record.seconds)),
        ("Peak memory", memory(record.peak_bytes)),
    ]


def _groups(record: Record, folder: Path) -> list[dict[str, Any]]:
    """Pictures in groups of a few images: within a group, original, reconstruction, null run and baseline match."""
    count = record.case.images
    if record.series is not None:
        return []
    columns = []
    for kind, label, source in _STRIPS:
        name = record.pictures.get(kind)
        if name:
            found = pictures(folder, name, count=count, at_most=_AT_MOST)
        elif kind == "reconstruction" or (kind == "truth" and record.scores is not None):
            found = [Picture(problem="picture missing: none was recorded")]
        else:
            continue
        scores = getattr(record, source) if source else None
        each = [] if scores is None else list(scores.psnr)
        columns.append((kind, label, found, each if len(each) == count else []))
    groups = []
    for place in range(max((len(found) for _, _, found, _ in columns), default=0)):
        strips = []
        for kind, label, found, each in columns:
            if place < len(found):
                piece = found[place]
                shown = each[piece.first : piece.first + piece.count]
                strips.append(
                    {
                        "kind": kind,
                        "label": label,
                        "picture": piece,
                        "alt": _alt(label, piece, shown),
                        "scores": [metric("psnr", v) for v in shown],
                    }
                )
        first = strips[0]["picture"]
        groups.append({"strips": strips, "first": first.first + 1, "last": first.first + first.count})
    return groups


_DIRECTIONS = (("kept", "What is determined"), ("lost", "What is lost (white)"))


def _directions(record: Record, folder: Path) -> list[dict[str, Any]]:
    """Pictures of the directions that are determined and of the pixels that are lost: the first few images of the batch."""
    strips = []
    for kind, label in _DIRECTIONS:
        if record.identifiable is not None and (name := record.pictures.get(kind)):
            first = pictures(folder, name, count=record.case.images, at_most=_AT_MOST)[0]
            strips.append({"kind": kind, "label": label, "picture": first, "alt": _alt(label, first, ()), "scores": []})
    return [{"strips": strips, "first": 1, "last": min(_AT_MOST, record.case.images)}] if strips else []


def _gallery(record: Record, folder: Path) -> Picture | None:
    """What the adversary's prior makes by itself."""
    name = record.pictures.get("prior")
    return pictures(folder, name, count=1)[0] if name else None


def _alt(label: str, piece: Picture, scores: Sequence[float | None]) -> str:
    start, end = piece.first + 1, piece.first + piece.count
    which = f"image {start}" if start == end else f"images {start} to {end}"
    each = ", ".join(metric("psnr", v, unit=True) for v in scores)
    return f"{label}, {which}" + (f"; PSNR {each}" if each else "")


def _frames(record: Record, folder: Path) -> dict[str, Any]:
    """The chosen candidate over the steps: at most a handful of frames, always with the first and the last."""
    count = record.case.images
    total = len(record.progress)
    chosen = sorted({round(i) for i in np.linspace(0, total - 1, min(total, _MOST_FRAMES)).tolist()}) if total else []
    shown = []
    for index in chosen:
        frame = record.progress[index]
        piece = pictures(folder, frame.picture, count=count, at_most=_AT_MOST, only_first=True)[0]
        step = frame.step
        shown.append({"step": step, "picture": piece, "alt": _alt(f"Candidate at step {step}", piece, ())})
    return {"shown": shown, "total": total, "count": min(count, _AT_MOST), "cut": count > _AT_MOST}


def _curve(number: int, record: Record) -> Markup | str | None:
    """The curve as SVG, a sentence why it cannot be drawn, or None for a closed form."""
    steps, losses = record.curve.steps, record.curve.losses
    if not steps and not losses:
        return None
    try:
        return loss_chart(steps, losses, uid=f"curve-{number}")
    except BadInput as problem:
        return f"The curve cannot be drawn: {problem}."


def loss_chart(steps: Sequence[int], losses: Sequence[Values], *, uid: str) -> Markup:
    """Loss over steps, one line per restart (``losses[restart][step]``); the restart that the adversary would choose is thick.

    The vertical axis is logarithmic, or linear where a loss is negative. Zeros are drawn at the bottom edge. Missing and infinite values
    leave gaps.
    """
    if not losses or not steps or any(len(values) != len(steps) for values in losses):
        sizes = sorted({len(values) for values in losses})
        raise BadInput(
            f"a curve needs one loss per step and restart, got {len(steps)} steps and losses of {sizes} steps"
        )
    known = [[v if v is not None and math.isfinite(v) else None for v in values] for values in losses]
    lowest = [min((v for v in values if v is not None), default=math.inf) for values in known]
    best = lowest.index(min(lowest))
    if lowest[best] == math.inf:
        raise BadInput("a curve needs at least one finite loss")
    each = [v for values in known for v in values if v is not None]
    log = min(each) >= 0 and max(each) > 0
    others = [values for restart, values in enumerate(known) if restart != best]
    lines = [Line("chosen: lowest loss", "chosen", known[best])]
    lines += [
        Line("" if i else plural(len(others), "other restart"), "other", values) for i, values in enumerate(others)
    ]
    start = next(v for v in known[best] if v is not None)
    return line_chart(
        steps,
        lines,
        uid=uid,
        title="Optimisation curve of the attack",
        desc=f"{plural(len(losses), 'restart')} over steps {steps[0]:g} to {steps[-1]:g}. The chosen restart, number {best + 1}, "
        f"starts at a loss of {start:.3g} and reaches {lowest[best]:.3g}.",
        across="optimisation step",
        up=f"loss ({'log' if log else 'linear'} scale)",
        x=between(steps[0], max(steps[-1], steps[0] + 1), about=4),
        y=logarithmic(each) if log else linear(each),
    )


def _bars(number: int, record: Record) -> Markup | None:
    """Attack, null run and trivial baseline: a bar is the mean over the images, a whisker goes from the lowest to the highest image."""
    panels = []
    shown = (("psnr", 30.0, "PSNR in dB"), ("ssim", 1.0, "SSIM"))
    for name, top, title in shown if record.series is None else (("correlation", 1.0, "Correlation"),):
        rows = [_bar(label, name, _summary(getattr(record, source), name)) for source, label in _ROWS]
        if rows[0].value is not None:
            panels.append(Panel(title, top, rows))
    title = "Attack compared with the null run and the trivial baseline"
    return bar_chart(panels, uid=f"bars-{number}", title=title, left=116) if panels else None


def _bar(label: str, name: str, summary: Mapping[str, Any] | None) -> Bar:
    mean, low, high = ((summary or {}).get(key) for key in ("mean", "min", "max"))
    return Bar(label, mean, metric(name, mean), "bar-main" if label == _ROWS[0][1] else "bar-soft", low, high)


def _summary(scores: Scores | None, name: str) -> Mapping[str, Any] | None:
    return None if scores is None else scores.summary().get(name)


def _metric_table(record: Record) -> list[dict[str, Any]]:
    rows = []
    missing = (*OPTIONAL, *(() if record.data.labelled else ("labels",)), *(() if record.series is None else OF_IMAGES))
    for name, (title, direction) in METRICS.items():
        measured = record.scores is not None and record.scores.mean(name) is not None
        if measured or name not in missing:
            cells = [_cell(name, _summary(getattr(record, source), name)) for source, _ in _ROWS]
            rows.append({"name": title + _unit(name), "direction": direction, "cells": cells})
    return rows


def _unit(name: str) -> str:
    return " (dB)" if name in ("psnr", "psnr_reduced") else ""


def _cell(name: str, summary: Mapping[str, Any] | None) -> tuple[str, str]:
    """Mean, and the range over the images where there is more than one value."""
    if not summary:
        return MISSING, ""
    low, high = summary["min"], summary["max"]
    spread = "" if low == high else f"[{metric(name, low)} .. {metric(name, high)}]"
    return metric(name, summary["mean"]), spread


def _restart_table(record: Record) -> list[dict[str, str]]:
    rows = []
    for name, values in record.restarts.items():
        found = [v for v in values if v is not None]
        if len(found) > 1:  # one alone has no spread
            with np.errstate(invalid="ignore"):
                middle = float(np.median(found))
            interval = record.intervals.get(name)
            rows.append(
                {
                    "name": METRICS.get(name, (name, ""))[0] + _unit(name),
                    "count": str(len(found)),
                    "low": metric(name, min(found)),
                    "middle": metric(name, middle),
                    "high": metric(name, max(found)),
                    "interval": f"{metric(name, interval.low)} to {metric(name, interval.high)}" if interval else "",
                }
            )
    return rows
