"""The part of a report that shows what defenses buy, made from the records of their trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from leakgauge.audit import defense_records as store
from leakgauge.audit.advice.sentences import broken_in_words
from leakgauge.audit.defense_records import SEEN, DefenseRecord, in_words, told_by, worth_having
from leakgauge.audit.findings import read_findings
from leakgauge.audit.phrasing import duration, plural
from leakgauge.report import words
from leakgauge.report.defense_figures import Tried, drawable, pareto_svg
from leakgauge.report.figures import pictures
from leakgauge.report.sources import defense_anchor

COIN = 0.5
"""The AUC of one who guesses."""
_AT_MOST = 4
NONE = "No defense"
MEASURES = {"ssim": "SSIM", "layout": "Layout", "pieces_lead": "Pieces"}
"""How a column and an axis name what the attack sees."""


def context(folder: Path) -> dict[str, Any] | None:
    """All that the template shows of the trials in ``folder``; None where there are none."""
    if not store.exists(folder):
        return None
    records = store.read(folder)
    if not records:
        return None
    best, measure = worth_having(records), told_by(records)
    rows = [_row(number, record, record.key in best, measure, folder) for number, record in enumerate(records, start=1)]
    points = [row["point"] for row in rows if row["point"] is not None]
    first = records[0]
    truth = first.pictures.get("truth")
    return {
        "headline": headline(records),
        "sentences": [s for s in (broken_in_words(read_findings(folder)), membership(records), _unknown(records)) if s],
        "training": _training(records),
        "diagnostic": [a["what"] for a in first.assumptions if a.get("kind") == "diagnostic"],
        "rows": rows,
        "measure": MEASURES[measure],
        "svg": Markup(pareto_svg(points, uid="defense-pareto", measure=MEASURES[measure])) if points else None,
        "fronted": bool(best),
        "left_out": len(rows) - len(points),
        "truth": None if truth is None else _picture(folder, truth, first),
        "facts": _facts(records),
        "versions": first.versions,
    }


def headline(records: Sequence[DefenseRecord]) -> str:
    """What the defenses did to the attack, in one sentence."""
    plain = next((r for r in records if not r.defenses), None)
    tried = [r for r in records if r.defenses]
    judged = [r for r in tried if r.status == "done" and r.verdict is not None]
    if plain is None or plain.verdict is None:
        return "The set-up without defense gave no result, so nothing can be said about what defenses buy."
    if plain.verdict == "infeasible_within_budget":
        return (
            "Already without defense the attack found nothing within its budget, so these trials cannot show what "
            "defenses buy against it."
        )
    if not judged:
        return "No trial of a defense gave a result."
    if len(judged) == 1:
        return _headline_of_one(judged[0], plain)
    of = plural(len(judged), "defense")
    stopped = [r for r in judged if r.verdict == "infeasible_within_budget"]
    if not stopped:
        weakest = min(judged, key=lambda r: _number(getattr(r, plain.told_by)))
        return (
            f"None of the {of} stopped the attack within its budget; it saw least under {_phrase(weakest)} "
            f"({_seen(weakest, plain)})."
        )
    said = f"{len(stopped)} of {of} stopped the attack within its budget"
    known = [r for r in stopped if r.cost is not None]
    if not known:
        return f"{said}: {', '.join(_phrase(r) for r in stopped)}."
    cheapest = min(known, key=lambda r: _number(r.cost))
    return f"{said}; the cheapest, {_phrase(cheapest)}, {_price(_number(cheapest.cost))}."


def _seen(record: DefenseRecord, plain: DefenseRecord) -> str:
    """In the number that says what was seen without a defense."""
    before, after = (_number(getattr(one, plain.told_by)) for one in (plain, record))
    return f"{SEEN[plain.told_by]} {after:.2f} instead of {before:.2f}"


def _headline_of_one(only: DefenseRecord, plain: DefenseRecord) -> str:
    seen = _seen(only, plain)
    if only.verdict != "infeasible_within_budget":
        return f"The one defense that was judged, {_phrase(only)}, did not stop the attack within its budget ({seen})."
    price = "" if only.cost is None else f" and {_price(_number(only.cost))}"
    return f"The one defense that was judged, {_phrase(only)}, stopped the attack within its budget ({seen}){price}."


def _price(cost: float) -> str:
    points = round(100 * cost, 1)
    return f"costs {points:g} points of accuracy" if points > 0 else "costs no accuracy that could be measured"


def membership(records: Sequence[DefenseRecord]) -> str:
    """What the defenses did to one who wants to know who was in the batch."""
    tried = [r for r in records if r.defenses and r.auc is not None]
    if not tried:
        return ""
    hidden = [r for r in tried if r.leakage["auc"]["low"] <= COIN]
    meaning = "1 is certain, 0.5 is a coin"
    if not hidden:
        least = min(tried, key=lambda r: _number(r.auc))
        return (
            "None of them hides who was in the batch: one with the weights and a list of candidates still reaches an AUC of "
            f"at least {least.auc:.2f} ({meaning})."
        )
    names = ", ".join(_phrase(r) for r in hidden)
    return f"Who was in the batch could not be told from a coin’s guess (AUC interval reaches 0.5; {meaning}) under: {names}."


def _unknown(records: Sequence[DefenseRecord]) -> str:
    reasons = dict.fromkeys(r.accuracy.get("unknown") for r in records if r.accuracy.get("unknown"))
    return f"The cost in accuracy is unknown in part: {'; '.join(map(str, reasons))}." if reasons else ""


def _phrase(record: DefenseRecord) -> str:
    """The defense inside a sentence."""
    if not record.defenses:
        return "no defense"
    found = []
    for name, strength in map(in_words, record.defenses):
        proper = name.startswith(("Gaussian", "Laplacian", "DP-SGD"))
        plain = f"{name if proper else name.lower()} ({strength})" if strength else name.lower()
        found.append(f"withholding the {strength}" if name == "Withheld" else plain)
    return " and ".join(found)


def _row(number: int, record: DefenseRecord, front: bool, measure: str, folder: Path) -> dict[str, Any]:
    named = [in_words(spec) for spec in record.defenses] or [(NONE, "")]
    name, strength = " + ".join(n for n, _ in named), " + ".join(filter(None, (s for _, s in named)))
    cost = record.accuracy.get("cost") or {}
    lost, low, high = (100 * float(cost[k]) if cost else math.nan for k in ("value", "low", "high"))
    seen = _number(getattr(record, measure))
    point = None
    if drawable(lost, seen, record.verdict) and record.verdict is not None:
        point = Tried(number, _short(named), record.verdict, lost, low, high, seen, front)
    picture = record.pictures.get("reconstruction")
    done = record.status == "done"
    return {
        "id": f"defense-{number}",
        "number": number,
        "name": name,
        "strength": strength,
        "spec": record.name,
        "outcome": words.OUTCOMES.get(record.verdict or "unjudged", words.OUTCOMES["unjudged"])
        if done
        else words.OUTCOMES[record.status],
        "reason": record.reason,
        "psnr": words.number("psnr", words.mean(record.metrics, "psnr"), unit=False) if done else "–",
        "seen": words.number(measure, getattr(record, measure)) if done else "–",
        "null": words.number(measure, getattr(replace(record, metrics=record.null), measure)) if done else "",
        "auc": _rate(record.leakage.get("auc")),
        "tpr": _rate(record.leakage.get("tpr")),
        "accuracy": _rate(record.accuracy if "value" in record.accuracy else None, scale=100, places=1),
        "cost": _rate(cost or None, scale=100, places=1),
        "privacy": str(record.accuracy.get("privacy") or ""),
        "missing": [str(part["unknown"]) for part in (record.leakage, record.accuracy) if part.get("unknown")],
        "front": front,
        "point": point,
        "picture": None if picture is None or not done else _picture(folder, picture, record),
        "source": defense_anchor(number),
    }


def _short(named: Sequence[tuple[str, str]]) -> str:
    """A label for the figure."""
    if named[0][0] == NONE:
        return NONE.lower()
    each = [f"{name if name == 'DP-SGD' else name.split()[-1].lower()} {strength}".strip() for name, strength in named]
    return " + ".join(each).replace(" gradient length", "").replace(" of entries", "")


def _rate(found: Mapping[str, Any] | None, *, scale: float = 1, places: int = 3) -> tuple[str, str]:
    """A value and its interval, as written; a dash where it was not measured."""
    if not found:
        return "–", ""
    value, low, high = (_written(scale * float(found[key]), places) for key in ("value", "low", "high"))
    return value, f"{low} to {high}"


def _written(value: float, places: int) -> str:
    text = f"{value:.{places}f}"
    return (text.lstrip("-") if float(text) == 0 else text).replace("-", "−")


def _picture(folder: Path, name: str, record: DefenseRecord) -> Any:
    count = int(record.trial["case"].get("batch_size") or 1)
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
    case = first.trial["case"]
    steps = case["options"].get("steps")
    leak = next((r.leakage for r in records if "auc" in r.leakage), None)
    told = "not measured"
    if leak is not None:
        told = f"{leak['releases']} updates, each of {leak['batch']} out of {leak['candidates']} candidates"
    return [
        ("Model", str(case["model"])),
        ("Mode of the model", str(case["mode"])),
        ("Data", str(case["data"])),
        ("Batch size", str(case["batch_size"])),
        ("What is shared", first.channel),
        ("Attack", ", ".join([str(case["attack"]), *([plural(steps, "step")] if steps else [])])),
        ("Known to the adversary", "; ".join(str(a["what"]) for a in first.assumptions) or "the model"),
        ("Membership decoder", told),
        ("Seed", str(case["seed"])),
        ("Time of all trials", duration(sum(r.seconds for r in records))),
    ]


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
