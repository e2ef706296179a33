"""Lines of run folders that versions 0.1 and 0.2 wrote, converted as they are read. This is the one place that reads a sentence back.

0.1 kept the verdict of a record as a word and a sentence (``rule``), and the single change of a set-up in the name of its case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from leakgauge.audit.typed import Misfit

_CHANGED = re.compile(r" \((relaxation|restriction): (.+)\)$")
_KIND = r" \((?P<kind>deployable|diagnostic|malicious)\)"
_RULES = (
    re.compile(
        r"(?P<reconstructed>\d+) of (?P<images>\d+) images pass every check(?: \((?P<reduced>\d+) at reduced size\))?"
        rf"(?:; another misses: (?P<missed>.+?))?{_KIND}$"
    ),
    re.compile(
        r"(?P<seen>\d+) of (?P<images>\d+) images beat the null run(?: \((?P<ways>.+?)\))?; "
        rf"not reconstructed, missed: (?P<missed>.+?){_KIND}$"
    ),
    re.compile(rf"no image of (?P<images>\d+) beats the null run; missed: (?P<missed>.+?){_KIND}$"),
)
_WAYS = {"by SSIM alone": "structure", "by the layout alone": "layout", "by their pieces alone": "pieces"}
_METRICS = {
    "SSIM": "ssim", "PSNR": "psnr", "LPIPS": "lpips", "correlation of the layout": "layout",
    "SSIM at reduced size": "ssim_reduced", "PSNR at reduced size": "psnr_reduced",
}  # fmt: skip
_ABOVE = {"": "zero", "the null run": "null", "the trivial baseline": "baseline"}


def migrated(fields: Mapping[str, Any], format: int) -> dict[str, Any]:
    """The fields of a record in the present ``format``; a line without a format number is one of 0.1."""
    if fields.get("format") == format:
        return dict(fields)
    if fields.get("format") in (3, 4):  # until 4 there was one attack each, so nothing raced
        raced = fields["raced"] if fields["format"] == 4 and "raced" in fields else ()
        return {**fields, "raced": raced, "verdict": unearned(fields.get("verdict")), "format": format}
    if "format" in fields:
        raise Misfit(f"format {fields['format']!r} is not known")
    old = dict(fields)
    for name in ("seed", "rule", "metrics"):
        old.pop(name, None)
    curve, start = fields.get("curve") or {}, fields.get("start") or None
    return old | {
        "case": case_of(fields["case"]),
        "scores": fields.get("metrics") or None,
        "null": fields.get("null") or None,
        "baseline": fields.get("baseline") or None,
        "start": start,
        "verdict": unearned(verdict_of(fields)),
        "stated": fields.get("stated") or (),
        "intervals": fields.get("intervals") or {},
        "progress": fields.get("progress") or (),
        "raced": (),
        "curve": {"steps": curve.get("steps") or (), "losses": curve.get("losses") or ()},
        "format": format,
    }


def migrated_defense(fields: Mapping[str, Any], format: int) -> dict[str, Any]:
    """As :func:`migrated`, for a trial of a defense."""
    if fields.get("format") == format:
        return dict(fields)
    if fields.get("format") in (3, 4):
        return {**fields, "verdict": unearned(fields.get("verdict")), "format": format}
    if "format" in fields:
        raise Misfit(f"format {fields['format']!r} is not known")
    old = {name: value for name, value in fields.items() if name not in ("rule", "metrics")}
    return old | {
        "trial": {**fields["trial"], "case": case_of(fields["trial"]["case"])},
        "scores": fields.get("metrics") or None,
        "null": fields.get("null") or None,
        "baseline": fields.get("baseline") or None,
        "verdict": unearned(verdict_of(fields)),
        "format": format,
    }


def migrated_run(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of a scan, or the first line of a monitored training. 0.1 knew those of an audit by their command line alone."""
    by_an_audit = str(fields.get("command") or "").startswith("leakgauge audit")
    return {**fields, "audited": fields.get("audited", by_an_audit)}


def migrated_conclusion(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The conclusion of a scan. 0.1 kept its sentences; they are made again from the facts."""
    return {name: value for name, value in fields.items() if name not in ("sentence", "threat", "budget", "notes")}


def case_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A case of 0.1, which left out empty lists."""
    return {"defenses": (), "reveal": ("size",), **migrated_case(fields)}


def migrated_case(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The case with the change that its name says. Until 0.2, local steps were steps on the same batch, which are epochs now."""
    found = _CHANGED.search(str(fields.get("name") or ""))
    change = None if found is None else {"name": found[2], "kind": found[1]}
    trained = {} if "local_epochs" in fields else {"local_steps": 1, "local_epochs": fields.get("local_steps", 1)}
    return {**fields, **trained, "change": fields.get("change", change)}


def unearned(verdict: Any) -> Any:
    """A negative of a version that did not test the truth: nobody knows why nothing was found, so it is no evidence."""
    if not isinstance(verdict, Mapping) or verdict.get("outcome") != "infeasible_within_budget":
        return verdict
    return {**verdict, "outcome": "inconclusive", "cause": "untested"}


def verdict_of(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """The facts that the sentence ``rule`` states; without one the outcome alone is known."""
    outcome, rule = fields.get("verdict"), str(fields.get("rule") or "")
    if outcome is None:
        return None
    found = next((match for pattern in _RULES if (match := pattern.match(rule))), None)
    if found is None:
        kinds = {a.get("kind") for a in fields.get("assumptions") or ()}
        kind = next((kind for kind in ("diagnostic", "malicious") if kind in kinds), "deployable")
        case = fields.get("case") or (fields.get("trial") or {}).get("case") or {}
        return {"outcome": outcome, "kind": kind, "images": int(case.get("batch_size") or 1)}
    said = found.groupdict()
    alone = [part.partition(" ") for part in (said.get("ways") or "").split(", ") if part]
    ways = {_WAYS[way]: int(count) for count, _, way in alone}
    close = int(said.get("seen") or 0) - sum(ways.values())
    return {
        "outcome": outcome,
        "kind": said["kind"],
        "images": int(said["images"]),
        "reconstructed": int(said.get("reconstructed") or 0),
        "at_reduced_size": int(said.get("reduced") or 0),
        "glimpsed": {**({"closeness": close} if close else {}), **ways},
        "missed": _check(said.get("missed") or ""),
    }


def _check(text: str) -> dict[str, Any] | None:
    """The check that a sentence of 0.1 describes."""
    if not text:
        return None
    if found := re.match(r"re-identified( by its layout)? at rank ([\d.]+) or better$", text):
        return {"metric": "layout_rank" if found[1] else "reid", "margin": float(found[2]), "above": "zero"}
    if found := re.match(r"its pieces fit the original better than (.+), by ([\d.]+)$", text):
        above = "zero" if found[1] == "any other image" else "null"
        return {"metric": "pieces_lead", "margin": float(found[2]), "above": above}
    if found := re.match(r"LPIPS at least ([\d.]+) below the (.+)$", text):
        return {"metric": "lpips", "margin": float(found[1]), "above": _ABOVE[f"the {found[2]}"]}
    if found := re.match(r"(.+?) at least ([\d.]+)(?: dB)?(?: above (.+))?$", text):
        return {"metric": _METRICS[found[1]], "margin": float(found[2]), "above": _ABOVE[found[3] or ""]}
    return None
