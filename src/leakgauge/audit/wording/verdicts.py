"""One verdict: what decided it, and how well the attack saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from leakgauge.audit.findings import Update
from leakgauge.audit.phrasing import metric, number, plural
from leakgauge.audit.verdict import Check, Outcome, Verdict, Way

if TYPE_CHECKING:
    from leakgauge.audit.evaluate import Result
from leakgauge.audit.wording.causes import why
from leakgauge.audit.wording.terms import CERTAIN_LABEL, METRICS, SEEN, TEXT_METRICS, UNITS


def rule(verdict: Verdict) -> str:
    """What decided a verdict, in one line.

    >>> rule(Verdict(Outcome.PARTIAL, "deployable", 4, 1, missed=Check("ssim", 0.38, above="zero")))
    '1 of 4 images passes every check; another misses: SSIM at least 0.38 (deployable)'
    >>> rule(Verdict(Outcome.PARTIAL, "deployable", 4, glimpsed={Way.CLOSENESS: 1, Way.LAYOUT: 1}, missed=Check("reid", 1, above="zero")))
    '2 of 4 images beat the null run (1 by layout alone); none is reconstructed, missed: re-identified at rank 1 or better (deployable)'
    """
    if not verdict.compared:
        are = f"{verdict.unit} is" if verdict.images == 1 else f"{UNITS[verdict.unit]} are"
        return f"{verdict.certified} of {verdict.images} {are} certified exact, without the truth ({verdict.kind})"
    missed = "" if verdict.missed is None else check(verdict.missed)
    count = f"{verdict.reconstructed} of {samples(verdict)}"
    if verdict.reconstructed:
        passes = "passes" if verdict.reconstructed == 1 else "pass"
        reduced = f" ({verdict.at_reduced_size} at reduced size)" if verdict.at_reduced_size else ""
        another = f"; another misses: {missed}" if missed and verdict.outcome is not Outcome.FEASIBLE else ""
        proven = f"; {verdict.certified} certified exact" if verdict.certified else ""
        return f"{count} {passes} every check{reduced}{another}{proven} ({verdict.kind})"
    seen = sum(verdict.glimpsed.values())
    if seen:
        alone = [f"{n} by {_WAYS[way]} alone" for way, n in verdict.glimpsed.items() if way in _WAYS]
        beat = "beats" if seen == 1 else "beat"
        how = f" ({', '.join(alone)})" if alone else ""
        none = "it is not reconstructed" if verdict.images == 1 else "none is reconstructed"
        return f"{seen} of {samples(verdict)} {beat} the null run{how}; {none}, missed: {missed} ({verdict.kind})"
    if verdict.outcome.leaks:  # an old record of which the outcome alone is known
        return f"{verdict.outcome.label} ({verdict.kind})"
    none = f"the {verdict.unit} does not beat" if verdict.images == 1 else f"none of {samples(verdict)} beats"
    reason = why(verdict)
    if reason:
        reason = f"; {'because' if verdict.outcome.conclusive else 'no evidence:'} {reason}"
    return f"{none} the null run{f'; missed: {missed}' if missed else ''}{reason} ({verdict.kind})"


def samples(verdict: Verdict) -> str:
    """How many samples the batch has, and of which kind."""
    return plural(verdict.images, verdict.unit, UNITS[verdict.unit])


_WAYS: Mapping[Way, str] = {
    Way.STRUCTURE: "SSIM",
    Way.LAYOUT: "layout",
    Way.PIECES: "patches",
    Way.TOKENS: "tokens in any order",
    Way.CELLS: "some of the cells",
}


def check(what: Check) -> str:
    """One check of the table.

    >>> check(Check("psnr", 2.6, above="null")), check(Check("lpips", 0.02, above="baseline"))
    ('PSNR at least 2.6 dB above the null run', 'LPIPS at least 0.02 below the trivial baseline')
    """
    bar = {"zero": "", "null": "the null run", "baseline": "the trivial baseline"}[what.above]
    if what.metric == "reid":
        return f"re-identified at rank {what.margin:g} or better"
    if what.metric == "layout_rank":
        return f"re-identified by layout at rank {what.margin:g} or better"
    if what.metric == "pieces_lead":
        than = f"patches of {bar}" if bar else "any other image"
        return f"patches fit the original better than {than}, by {what.margin:g}"
    if what.metric == "cells":
        return (
            f"{100 * what.margin:.0f} % of the cells right"
            if not bar
            else f"{100 * what.margin:.0f} points more cells right than {bar}"
        )
    if what.metric in TEXT_METRICS:
        return f"{TEXT_METRICS[what.metric]} at least {what.margin:g}{f' above {bar}' if bar else ''}"
    unit = " dB" if what.metric in ("psnr", "psnr_reduced") else ""
    side = "" if not bar else f" below {bar}" if what.metric == "lpips" else f" above {bar}"
    return f"{METRICS[what.metric][0]} at least {what.margin:g}{unit}{side}"


def counted(verdict: Verdict) -> str:
    """How many images of a batch a partial verdict is about."""
    return rule(replace(verdict, missed=None)).partition(";")[0].removesuffix(f" ({verdict.kind})")


def quality(update: Update) -> str:
    """How well an attack saw, beside its null run. In a batch that leaks in part the count comes first, since a mean says little.

    >>> held = Verdict(Outcome.FEASIBLE, "deployable", 1, 1)
    >>> quality(Update(1, "a", held, ssim=0.91, psnr=19.44, null_ssim=0.135, null_psnr=9.0))
    'SSIM 0.91, PSNR 19.4 dB; null run: SSIM 0.14, PSNR 9.0 dB'
    """
    said = []
    verdict = update.verdict
    if verdict is not None and (not verdict.compared or verdict.unit in ("sentence", "row")):
        return counted(verdict)
    if verdict is not None and verdict.outcome is Outcome.PARTIAL and update.images > 1:
        said.append(counted(verdict))
    if update.evidence == "correlation":
        mean = "on average " if said and update.images > 1 else ""
        value, null = number(update.correlation, 2), number(update.null_correlation, 2)
        return "; ".join([*said, f"{mean}correlation {value}; null run: correlation {null}"])
    if update.evidence != "ssim":
        value, null = (getattr(update, f"{side}{update.evidence}") for side in ("", "null_"))
        said.append(f"{SEEN[update.evidence]} {number(value, 2)}, null run {number(null, 2)}")
    mean = "on average " if said and update.images > 1 else ""
    said.append(
        f"{mean}SSIM {number(update.ssim, 2)}, PSNR {number(update.psnr, 1)} dB; "
        f"null run: SSIM {number(update.null_ssim, 2)}, PSNR {number(update.null_psnr, 1)} dB"
    )
    return "; ".join(said)


def labels_expected(batch: int, accuracy: float | None) -> str:
    """How many labels an attack expects to have read, before anybody compares them; empty if it does not say.

    >>> labels_expected(32, 0.9), labels_expected(4, 1.0)
    ('about 29 of 32 labels are expected to be right, in any order', 'all 4 labels are expected to be right, in any order')
    >>> labels_expected(1, 1.0), labels_expected(4, None)
    ('right with a probability of 100 %', '')
    """
    if accuracy is None:
        return ""
    if batch == 1:
        return f"right with a probability of {100 * accuracy:.0f} %"
    count = f"all {batch}" if accuracy >= CERTAIN_LABEL else f"about {round(accuracy * batch)} of {batch}"
    return f"{count} labels are expected to be right, in any order"


def labels_sentence(batch: int, accuracy: float | None, right: float | None) -> str:
    """What an attack expected of the labels of a batch, beside what was found.

    >>> labels_sentence(32, 0.9, 0.875)
    'About 29 of 32 labels are expected to be right, in any order; 28 are.'
    """
    said = labels_expected(batch, accuracy)
    if batch == 1 or not said:
        return ""
    found = "" if right is None else f"; {round(right * batch)} are"
    return f"{said[0].upper()}{said[1:]}{found}."


def evaluation(found: Result) -> str:
    """The result of one attack: what happened, by which numbers, and under which assumptions."""
    label, sides = found.outcome.label, {"null run": found.null, "trivial baseline": found.baseline}
    decided = rule(found.verdict)
    lines = [f"{one[0].upper()}{one[1:]}." for one in (f"{label}. {found.outcome.meaning.removesuffix('.')}", decided)]
    shown = ("correlation", "smape") if found.verdict.unit == "series" else ("ssim", "psnr", found.verdict.evidence)
    for name in dict.fromkeys(shown):
        others = [
            f"{side} {metric(name, m, unit=True)}" for side, one in sides.items() if (m := one.mean(name)) is not None
        ]
        lines.append(f"{METRICS[name][0]} {metric(name, found.scores.mean(name), unit=True)} ({', '.join(others)}).")
    said = labels_sentence(len(found.order), found.reconstruction.label_accuracy, found.scores.mean("labels"))
    lines += [said] if said else []
    known = "; ".join(assumption.what for assumption in found.assumptions) or "nothing beyond the signal"
    return "\n".join([*lines, f"{found.victim}, {found.channel}. Assumed: {known}."])
