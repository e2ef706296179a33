"""Numbers and sentences of the report, in one place, so that the same thing always reads the same way."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leakgauge.audit.phrasing import duration, plural
from leakgauge.audit.records import Record
from leakgauge.errors import BadInput

MISSING = "not measured"
METRICS: Mapping[str, tuple[str, str]] = {
    "psnr": ("PSNR", "higher = closer to the original"),
    "ssim": ("SSIM", "higher = closer to the original"),
    "ssim_reduced": (
        "SSIM at reduced size",
        "of images averaged down to 64 pixels a side; higher = closer to the original",
    ),
    "psnr_reduced": (
        "PSNR at reduced size",
        "of images averaged down to 64 pixels a side; higher = closer to the original",
    ),
    "lpips": ("LPIPS", "lower = closer to the original"),
    "mse": ("MSE", "lower = closer to the original"),
    "reid": ("Re-identification rank", "1 = the original is the closest image"),
    "layout": ("Correlation of the layout", "1 = everything stands where it does in the original"),
    "layout_rank": ("Re-identification rank by layout", "1 = no other image is laid out more alike"),
    "pieces": ("Correlation of the pieces", "1 = every patch is there, in whatever order"),
    "pieces_lead": ("Lead of the pieces", "above 0 = they fit no other image as well"),
    "labels": ("Labels recovered", "higher = more labels told"),
}
OF_LARGE_IMAGES = ("ssim_reduced", "psnr_reduced")
"""Metrics that small images do not have, and that are not missed there."""
_DECIMALS = {
    "psnr": 1,
    "ssim": 3,
    "ssim_reduced": 3,
    "psnr_reduced": 1,
    "lpips": 3,
    "reid": 1,
    "layout": 2,
    "layout_rank": 1,
    "pieces": 2,
    "pieces_lead": 2,
}


@dataclass(frozen=True)
class Outcome:
    """One way a set-up can end: its badge text and what that means in plain words."""

    key: str
    label: str
    meaning: str


OUTCOMES: Mapping[str, Outcome] = {
    o.key: o
    for o in (
        Outcome(
            "feasible",
            "Feasible",
            "The attack reconstructed private images from what was shared, clearly better than without it.",
        ),
        Outcome(
            "partial",
            "Partial",
            "Some images, or some of their content, were reconstructed, but not reliably or not in full.",
        ),
        Outcome(
            "infeasible_within_budget",
            "Infeasible within budget",
            "The attack found no private image with the steps, restarts and time it was given.",
        ),
        Outcome("refused", "Refused", "The attack does not apply to this set-up and was not run. It has no score."),
        Outcome("error", "Error", "The run broke off before it could be judged. It has no score."),
        Outcome("unjudged", "No verdict", "The attack ran, but no verdict was recorded."),
    )
}


def outcome(record: Record) -> Outcome:
    """How the record ended. A refusal or an error never carries a verdict, whatever else the record holds."""
    if record.status in ("refused", "error"):
        return OUTCOMES[record.status]
    if record.status != "done":
        raise BadInput(f"record {record.key!r} has the unknown status {record.status!r}; know done, refused and error")
    if record.verdict is None:
        return OUTCOMES["unjudged"]
    if record.verdict not in ("feasible", "partial", "infeasible_within_budget"):
        raise BadInput(
            f"record {record.key!r} has the unknown verdict {record.verdict!r}; "
            "know feasible, partial and infeasible_within_budget"
        )
    return OUTCOMES[record.verdict]


def diagnostic(record: Record) -> list[str]:
    """The assumptions that make this record an upper bound."""
    return [a.get("what", "") for a in record.assumptions if a.get("kind") == "diagnostic"]


def malicious(record: Record) -> list[str]:
    """What the server of this record did against the protocol."""
    return [a.get("what", "") for a in record.assumptions if a.get("kind") == "malicious"]


def server_of(records: Sequence[Record]) -> str:
    """Whom these set-ups are about."""
    dishonest = [bool(malicious(r) or r.case.get("server")) for r in records]
    if not any(dishonest):
        return "an honest-but-curious server"
    return "a malicious server" if all(dishonest) else f"a server (malicious in {sum(dishonest)} of them)"


def headline(records: Sequence[Record]) -> str:
    """The verdict over all set-ups, in one sentence. Set-ups without a result are left to :func:`qualifiers`."""
    count = Counter(outcome(r).key for r in records)
    feasible, partial, infeasible = (count[k] for k in ("feasible", "partial", "infeasible_within_budget"))
    judged = feasible + partial + infeasible
    if judged == 0 and len(records) == 1:
        return "The set-up gave no result; this run says nothing about leakage."
    if judged == 0:
        return f"None of the {plural(len(records), 'set-up')} gave a result; this run says nothing about leakage."
    of = plural(judged, "set-up") if judged == len(records) else plural(judged, "judged set-up")
    server = server_of(records)
    if not feasible and not partial:
        if judged == 1:
            return f"In the {of[2:]} {server} could not reconstruct private images within the budget spent."
        return f"In none of the {of} could {server} reconstruct private images within the budget spent."
    rest = [f"{partial} partially"] if feasible and partial else []
    rest += [f"{infeasible} not within the budget spent"] if infeasible else []
    verb = "could reconstruct private images" if feasible else "could partially reconstruct private images"
    where = f"In the {of[2:]}" if judged == 1 else f"In {feasible or partial} of {of}"
    return "; ".join([f"{where} {server} {verb}", *rest]) + "."


def qualifiers(records: Sequence[Record]) -> list[str]:
    """What a reader must know beside the headline: set-ups without a result, and verdicts that are upper bounds."""
    count = Counter(outcome(r).key for r in records)
    said = []
    without = {"refused": count["refused"], "error": count["error"], "no verdict": count["unjudged"]}
    total = sum(without.values())
    if 0 < total < len(records):
        kinds = ", ".join(f"{n} {kind}" for kind, n in without.items() if n)
        verb = "counts" if total == 1 else "count"
        further = plural(total, "further set-up")
        said.append(f"{further} gave no result ({kinds}) and {verb} neither for nor against safety.")
    for key, noun in (("feasible", "feasible result"), ("partial", "partial result")):
        helped = sum(1 for r in records if outcome(r).key == key and diagnostic(r))
        if helped:
            rests = "rests" if helped == 1 else "rest"
            which = f"{helped} of the {plural(count[key], noun)}"
            if helped == count[key]:
                which = f"The {noun}" if helped == 1 else f"All {plural(helped, noun)}"
            said.append(
                f"{which} {rests} on diagnostic assumptions: help that a real "
                "server would not normally have, so read as an upper bound."
            )
    return said


def case_sentence(record: Record) -> str:
    """The verdict of one set-up in one sentence. The rule that decided and the reason of a refusal stand beside it."""
    budget = _budget(record)
    return {
        "feasible": "An adversary with the knowledge listed below could reconstruct private images.",
        "partial": "An adversary with the knowledge listed below could partially reconstruct private images.",
        "infeasible_within_budget": f"No private image was reconstructed within the budget spent{budget}.",
        "refused": "The attack does not apply to this set-up and was not run, so there is no score.",
        "error": "The run broke off before it could be judged, so there is no score.",
        "unjudged": "The attack ran, but no verdict was recorded.",
    }[outcome(record).key]


def bound_sentence(record: Record) -> str:
    """What diagnostic assumptions do to the verdict: success is an upper bound, failure failed in spite of the help."""
    count = len(diagnostic(record))
    if not count or record.status != "done":
        return ""
    granted = plural(count, "diagnostic assumption")
    if outcome(record).key == "infeasible_within_budget":
        return f"This is so although {granted} gave the adversary more than a real server has."
    return f"It rests on {granted} and is an upper bound."


def _budget(record: Record) -> str:
    spent = []
    steps = (record.case.get("options") or {}).get("steps")
    if isinstance(steps, int):
        spent.append(plural(steps, "step"))
    tries = len(record.curve.get("losses") or ()) or max((len(v) for v in record.restarts.values()), default=0)
    if tries:
        spent.append(plural(tries, "restart"))
    spent.append(duration(record.seconds))
    return f" ({', '.join(spent)})"


def number(metric: str, value: float | None, *, unit: bool = True) -> str:
    """A metric's value as the whole report writes it.

    >>> number("psnr", 23.456), number("psnr", float("inf")), number("ssim", 0.5), number("labels", 0.75)
    ('23.5 dB', '∞ dB', '0.500', '75 %')
    >>> number("lpips", None), number("psnr", -0.01, unit=False)
    ('not measured', '0.0')
    """
    if value is None:
        return MISSING
    if math.isnan(value):
        return "undefined"
    suffix = " dB" if unit and metric == "psnr" else ""
    if math.isinf(value):
        return ("∞" if value > 0 else "−∞") + suffix
    if metric == "labels":
        return f"{value * 100:.0f} %"
    places = _DECIMALS.get(metric)
    text = _plain(value) if places is None else f"{value:.{places}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", "−") + suffix


def _plain(value: float) -> str:
    """Four decimals, which suit an MSE; what would vanish in them, or is large, as a power of ten."""
    if value == 0:
        return "0"
    return f"{value:.4f}" if 0.001 <= abs(value) < 10_000 else f"{value:.1e}"


def mean(summary: Mapping[str, Any], metric: str) -> float | None:
    """The mean of one metric, or None where it was not measured."""
    found = summary.get(metric)
    return None if not found else found.get("mean")


def memory(size: int) -> str:
    """
    >>> memory(0), memory(512), memory(3 * 2**30)
    ('not measured', '512 B', '3.0 GiB')
    """
    if size <= 0:
        return MISSING
    if size < 1024:
        return f"{size} B"
    value, unit = float(size), "B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):  # noqa: B007
        value /= 1024
        if value < 1024:
            break
    return f"{value:.1f} {unit}"
