"""The section on defenses: what each of them buys and costs, made from the records of their trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from leakgauge.audit.phrasing import duration, metric, number, plural
from leakgauge.audit.questions.defense_records import DefenseRecord, evidence, worth_having
from leakgauge.audit.scoring import Scores
from leakgauge.audit.verdict import Outcome
from leakgauge.audit.wording import ENDINGS, Statement, cost_unknown, defense_words, guarantee
from leakgauge.report.charts import Mark, Plot, between, pictures, scatter_chart
from leakgauge.report.sources import anchor, of_defenses

_AT_MOST = 4
NONE = "No defense"
MEASURES = {"ssim": "SSIM", "layout": "Layout", "pieces_lead": "Patches", "correlation": "Correlation"}
"""How a column and an axis name what the attack sees."""
SHAPES = {
    Outcome.FEASIBLE: "triangle",
    Outcome.PARTIAL: "diamond",
    Outcome.INCONCLUSIVE: "square",
    Outcome.INFEASIBLE: "circle",
}
"""Marks in the chart."""


def section(records: Sequence[DefenseRecord], folder: Path, statement: Statement) -> dict[str, Any]:
    """All that the template shows of these trials, with pictures from ``folder``."""
    best, measure = worth_having(records), evidence(records)
    rows = [_row(number, record, record.key in best, measure, folder) for number, record in enumerate(records, start=1)]
    points = [row["point"] for row in rows if row["point"] is not None]
    first = records[0]
    truth = first.pictures.get("truth")
    return {
        "statement": statement,
        "unknown": cost_unknown(records),
        "training": _training(records),
        "adapted": all(record.adapted for record in records if record.defenses),
        "static": any(record.static is not None for record in records),
        "diagnostic": list(first.assumed("diagnostic")),
        "rows": rows,
        "measure": MEASURES[measure],
        "svg": defense_chart(points, uid="defense-pareto", measure=MEASURES[measure]) if points else None,
        "fronted": bool(best),
        "left_out": len(rows) - len(points),
        "truth": None if truth is None else _picture(folder, truth, first),
        "facts": _facts(records),
        "made_from": f"trials of {plural(len(records) - 1, 'defense')}",
        "sources": of_defenses(records),
        "versions": [record.versions for record in records],
    }


def _row(place: int, record: DefenseRecord, front: bool, measure: str, folder: Path) -> dict[str, Any]:
    named = [defense_words(spec) for spec in record.defenses] or [(NONE, "")]
    name, strength = " + ".join(n for n, _ in named), " + ".join(filter(None, (s for _, s in named)))
    cost = record.accuracy.get("cost") or {}
    lost, low, high = (100 * float(cost[k]) if cost else math.nan for k in ("value", "low", "high"))
    seen = _number(getattr(record, measure))
    point = None
    outcome = record.outcome
    if outcome is not None and math.isfinite(lost) and math.isfinite(seen):
        css, shape = f"mark {outcome}", SHAPES[outcome]
        known = math.nan if record.static is None else _number(getattr(record.static, measure))
        point = Mark(
            place, _short(named), lost, seen, css, outcome.label, shape, low=low, high=high, front=front, was=known
        )
    picture = record.pictures.get("reconstruction")
    done = record.status == "done"
    return {
        "id": f"defense-{place}",
        "number": place,
        "name": name,
        "strength": strength,
        "spec": record.name,
        "outcome": ENDINGS[(record.outcome or "unjudged") if done else record.status],
        "reason": record.reason,
        "psnr": metric("psnr", _mean(record.scores, "psnr")) if done else "–",
        "seen": metric(measure, getattr(record, measure)) if done else "–",
        "ignored": record.ignored,
        "static": metric(measure, getattr(record.static, measure)) if done and record.static is not None else "",
        "null": metric(measure, getattr(replace(record, scores=record.null), measure)) if done else "",
        "auc": _rate(record.leakage.get("auc")),
        "tpr": _rate(record.leakage.get("tpr")),
        "accuracy": _rate(record.accuracy if "value" in record.accuracy else None, scale=100, places=1),
        "cost": _rate(cost or None, scale=100, places=1),
        "privacy": str(record.accuracy.get("privacy") or ""),
        "guarantee": guarantee(record),
        "missing": [str(part["unknown"]) for part in (record.leakage, record.accuracy) if part.get("unknown")],
        "front": front,
        "point": point,
        "picture": None if picture is None or not done else _picture(folder, picture, record),
        "source": anchor("defense", place),
    }


def _short(named: Sequence[tuple[str, str]]) -> str:
    """A label for the figure."""
    if named[0][0] == NONE:
        return NONE.lower()
    each = [f"{_kind(name)} {strength}".strip() for name, strength in named]
    return " + ".join(each).replace(" gradient norm", "").replace(" of entries", "")


def _kind(name: str) -> str:
    """
    >>> _kind("DP-SGD"), _kind("Gaussian noise"), _kind("Signs only")
    ('DP-SGD', 'noise', 'signs only')
    """
    return name if name == "DP-SGD" else "noise" if name.endswith(" noise") else name.lower()


def _rate(found: Mapping[str, Any] | None, *, scale: float = 1, places: int = 3) -> tuple[str, str]:
    """A value and its interval, as written; a dash where it was not measured."""
    if not found:
        return "–", ""
    value, low, high = (number(scale * float(found[key]), places) for key in ("value", "low", "high"))
    return value, f"{low} to {high}"


def _mean(scores: Scores | None, name: str) -> float | None:
    return None if scores is None else scores.mean(name)


def _picture(folder: Path, name: str, record: DefenseRecord) -> Any:
    count = record.trial.case.images
    return pictures(folder, name, count=count, at_most=_AT_MOST, only_first=True)[0]


def _training(records: Sequence[DefenseRecord]) -> str:
    """What the accuracy is the accuracy of."""
    found = next((r.accuracy for r in records if "value" in r.accuracy), None)
    if found is None:
        return ""
    return (
        f"after {plural(int(found['steps']), 'step')} of training from {found['start']} ({found['optimizer']}, "
        f"{found['batch']} images in each step, {found['trained_on']} in all), on {found['images']} held-out images"
    )


def _facts(records: Sequence[DefenseRecord]) -> list[tuple[str, str]]:
    first = records[0]
    case = first.trial.case
    leak = next((r.leakage for r in records if "auc" in r.leakage), None)
    decoder = "not measured"
    if leak is not None:
        decoder = f"{leak['releases']} updates, each of {leak['batch']} out of {leak['candidates']} candidates"
    return [
        ("Model", case.model),
        ("Mode of the model", case.mode),
        ("Data", case.data),
        ("Batch size", str(case.batch_size)),
        ("What is shared", first.channel),
        ("Attack", ", ".join([case.attack, *([plural(case.steps, "step")] if case.steps else [])])),
        ("Known to the adversary", "; ".join(a.what for a in first.assumptions) or "the model"),
        ("Membership decoder", decoder),
        ("Seed", str(case.seed)),
        ("Time of all trials", duration(sum(r.seconds for r in records))),
    ]


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def defense_chart(marks: Sequence[Mark], *, uid: str, measure: str = "SSIM") -> Markup:
    """What the attack sees, by ``measure``, over accuracy lost in percentage points; lower left is better.

    A line joins each mark to what the same attack sees without knowing the defense. Whiskers are the intervals of the cost, cut off where
    the axis ends. Each verdict has its own shape and colour.
    """
    front = ", ".join(f"{one.number} {one.name}" for one in marks if one.front)
    kinds = {one.kind: f"{one.shape} {one.css}" for shape in SHAPES.values() for one in marks if one.shape == shape}
    keys = [(kind, (part,)) for kind, part in kinds.items()] + ([("Pareto front", ("line front",))] if front else [])
    static = [one for one in marks if not math.isnan(one.was)]
    keys += [("attack that does not know the defense", ("line was",))] if static else []
    costs = [0.0, *(one.x for one in marks)]
    span = max(max(costs) - min(costs), 2.0)
    lowest = (
        min([0.0, *(one.y for one in marks), *(one.was for one in static)]) - 0.07
    )  # room for the label of the lowest mark
    plot = Plot(
        marks,
        between(min(costs) - 0.1 * span, max(costs) + 0.12 * span, about=6),
        between(lowest, 1.0, about=6),
        "accuracy lost, percentage points",
        f"{measure} of the attack",
        front=bool(front),
        height=244,
    )
    said = "; ".join(
        f"{one.number} {one.name}: {measure} {number(one.y, 2)}"
        + (f" ({number(one.was, 2)} without knowing the defense)" if one in static else "")
        + f", {number(one.x, 1)} points of accuracy lost, {one.kind}"
        for one in marks
    )
    return scatter_chart(
        [plot],
        uid=uid,
        title="What each defense buys and costs",
        desc=f"{said}. " + (f"On the Pareto front: {front}." if front else "There is no front."),
        keys=[*keys, ("95 % interval", ("line spread",)), ("↙ better", ())],
    )
