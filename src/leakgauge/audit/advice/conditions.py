"""When a piece of advice applies: one small function per rule. What findings mean is decided in :mod:`leakgauge.audit.findings`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from leakgauge.audit.case import adds_noise, has_prior
from leakgauge.audit.cause import Cause
from leakgauge.audit.findings import Defended, Defenses, Findings, Flip, Update
from leakgauge.audit.phrasing import number, plural
from leakgauge.audit.verdict import Outcome
from leakgauge.audit.wording import (
    by_cause,
    cheapest,
    effort,
    interval,
    points,
    property_sentence,
    quality,
    remedy,
    seen,
    trained_too_little,
    waiting,
)
from leakgauge.core import LABELS_GIVEN
from leakgauge.measures.rero import noise_for

TRAINING, SPLIT, DEFENSES, PROPERTIES = "training", "split", "defenses", "properties"
"""Anchors of the report's sections, by question."""

LABELS_READ = 0.9
"""Share of labels that were found; below it a server is often wrong about a single one."""
LUCK = 0.01
"""Chance that guessing finds so many labels; above it a handful of right ones proves nothing."""
FEWEST_IMAGES = 20
"""Below it a clean result still allows that more than one image in seven is reconstructed: 1 - 0.05^(1/20) = 14 %."""


@dataclass(frozen=True)
class Match:
    """Anchors of the evidence, most important first, and what is filled into title and reason."""

    evidence: tuple[str, ...]
    facts: Mapping[str, object] = field(default_factory=dict)


Condition = Callable[[Findings], Match | None]


def _anchors(places: Iterable[Update | Defended]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(place.anchor for place in places))


def _own(found: Findings) -> tuple[Update, ...]:
    return () if found.updates is None else found.updates.own


def _realistic(found: Findings) -> tuple[Update, ...]:
    return () if found.updates is None else found.updates.realistic


# Updates


def plain_updates_leak(found: Findings) -> Match | None:
    return _leaking_most(found, Outcome.FEASIBLE)


def plain_updates_leak_partly(found: Findings) -> Match | None:
    return None if plain_updates_leak(found) else _leaking_most(found, Outcome.PARTIAL)


def _leaking_most(found: Findings, outcome: Outcome) -> Match | None:
    hit = sorted((u for u in _realistic(found) if u.outcome is outcome), key=lambda u: -(u.ssim or 0.0))
    if not hit:
        return None
    sizes = sorted({u.batch for u in hit})
    return Match(_anchors(hit), {"batches": _batches(sizes), "name": hit[0].name, "quality": quality(hit[0])})


def _batches(sizes: Sequence[int]) -> str:
    shown = [str(size) for size in sizes]
    return f"a batch of {shown[0]}" if len(shown) == 1 else f"batches of {', '.join(shown[:-1])} and {shown[-1]}"


def properties_told(found: Findings) -> Match | None:
    leaking = [record for record in found.properties or () if record.leaks]
    return Match((PROPERTIES,), {"said": property_sentence(leaking[0])}) if leaking else None


def defense_did_not_hold(found: Findings) -> Match | None:
    """Defended set-ups that leak, those that leak most first."""
    leaking = [u for u in _own(found) if u.defenses and u.leaks]
    hit = sorted(leaking, key=lambda u: -_severity(u))
    if not hit:
        return None
    worst = hit[0]
    shown = (
        "Private images were reconstructed"
        if worst.outcome is Outcome.FEASIBLE
        else "Some images or some of their content were seen"
    )
    facts = {"defense": " with ".join(worst.defenses), "seen": shown, "name": worst.name, "quality": quality(worst)}
    return Match(_anchors(hit), facts)


def malicious_server_leaks(found: Findings) -> Match | None:
    """Set-ups with a malicious server that leak, the clearest first."""
    tried = (*_own(found), *(found.updates.dishonest if found.updates else ()))
    hit = sorted((u for u in tried if u.malicious and u.leaks), key=lambda u: -(u.ssim or 0.0))
    return Match(_anchors(hit), {"name": hit[0].name, "quality": quality(hit[0])}) if hit else None


def keep_buffers(found: Findings) -> Match | None:
    return _flipped(found, lambda flip: flip.change == "running statistics shared")


def keep_train_mode(found: Findings) -> Match | None:
    return _flipped(found, lambda flip: (flip.leaking.mode, flip.holding.mode) == ("eval", "train"))


def more_local_steps(found: Findings) -> Match | None:
    return _flipped(found, lambda flip: flip.leaking.local_steps < flip.holding.local_steps)


def larger_batches(found: Findings) -> Match | None:
    """The smaller batch leaks more, and nothing was reconstructed from a batch of the advised size or a larger one."""

    def fits(flip: Flip[Update]) -> bool:
        enough = flip.holding.batch
        return flip.leaking.batch < enough and not any(
            u.outcome is Outcome.FEASIBLE and u.batch >= enough for u in _realistic(found)
        )

    return _flipped(found, fits)


def _flipped(found: Findings, fits: Callable[[Flip[Update]], bool]) -> Match | None:
    """The flip that fits and helps most, between undefended set-ups of which at least the better one asks for no diagnostic help."""
    every = () if found.updates is None else found.updates.flips
    for flip in sorted(every, key=lambda flip: _severity(flip.holding)):
        pair = (flip.leaking, flip.holding)
        if fits(flip) and not flip.holding.diagnostic and all(u.plain for u in pair):
            return Match(
                _anchors(pair),
                {
                    "batch": flip.holding.batch,
                    "steps": flip.holding.local_steps,
                    "leaking": _label(flip.leaking),
                    "leaking_quality": quality(flip.leaking),
                    "smaller": flip.leaking.batch,
                    "holding": _label(flip.holding),
                    "holding_quality": quality(flip.holding),
                },
            )
    return None


def only_upper_bound(found: Findings) -> Match | None:
    """Something leaks with diagnostic help, and nothing without; what eval mode does has its own rule."""
    updates, ordinary = found.updates, _realistic(found)
    if updates is None or not ordinary or any(u.outcome is not Outcome.INFEASIBLE for u in ordinary):
        return None
    covered, known = keep_train_mode(found), labels_read(found)

    def helped(update: Update) -> list[str]:
        """What the server cannot get by itself; labels that it reads from the update are no help."""
        return [what for what in update.diagnostic if known is None or what != LABELS_GIVEN]

    honest = [u for u in updates.judged if not u.protocol_broken]
    hit = [u for u in honest if u.leaks and helped(u) and not (covered and u.anchor in covered.evidence)]
    helps = list(dict.fromkeys(what for u in hit for what in helped(u)))
    if not hit:
        return None
    return Match(_anchors(hit), {"help": "; ".join(helps), "name": hit[0].name, "quality": quality(hit[0])})


def only_diagnostic_run(found: Findings) -> Match | None:
    plain = [u for u in _own(found) if u.plain]
    if not plain or _realistic(found):
        return None
    helps = list(dict.fromkeys(what for u in plain for what in u.diagnostic))
    return Match(_anchors(plain), {"count": plural(len(plain), "undefended set-up"), "help": "; ".join(helps)})


def labels_read(found: Findings) -> Match | None:
    """The largest batch size whose labels were read, more of them than guessing explains."""
    for batch in sorted({u.images for u in _realistic(found)}, reverse=True):
        read = {u.first: u for u in _realistic(found) if u.images == batch and u.labels is not None}.values()
        count = batch * len(read)
        right = round(sum((u.labels or 0.0) * batch for u in read))
        classes = min((u.classes for u in read if u.classes is not None), default=2)
        if count and right >= LABELS_READ * count and _luck(right, batch, len(read), classes) <= LUCK:
            return Match(_anchors(read), {"batch": batch, "right": right, "count": count, "classes": classes})
    return None


def _luck(right: int, batch: int, batches: int, classes: int) -> float:
    """How often guessing every class equally often finds as many labels, in any order, of batches that are drawn at random.

    >>> _luck(4, 4, 1, 10) < 0.01, _luck(32, 32, 1, 10) < 0.01, _luck(116, 128, 1, 10) > 0.1
    (True, True, True)
    """
    drawn = np.random.default_rng(0).multinomial(batch, [1 / classes] * classes, size=(2000, batches))
    guess = np.bincount(np.arange(batch) % classes, minlength=classes)
    return float((np.minimum(drawn, guess).sum((1, 2)) >= right).mean())


def more_steps(found: Findings) -> Match | None:
    short = [
        u
        for u in _own(found)
        if u.outcome in (Outcome.PARTIAL, Outcome.INFEASIBLE)
        and u.steps is not None
        and u.usual_steps is not None
        and u.steps < u.usual_steps
    ]
    if not short:
        return None
    least = min(short, key=lambda u: (u.steps or 0) / (u.usual_steps or 1))
    spent = sorted({u.steps for u in short if u.steps is not None})
    steps = plural(spent[-1], "step") if len(spent) == 1 else f"{spent[0]} to {spent[-1]} steps"
    facts = {"count": plural(len(short), "set-up"), "steps": steps, "usual": least.usual_steps}
    return Match(_anchors(short), facts | {"attack": least.attack})


def not_enough_effort(found: Findings) -> Match | None:
    """Set-ups whose negative says nothing, because the search was too short."""
    short = [u for u in _own(found) if u.verdict is not None and u.verdict.cause is Cause.EFFORT]
    if not short:
        return None
    least = min(short, key=lambda u: u.steps or 0)
    facts = {
        "count": plural(len(short), "set-up"),
        "steps": plural(least.steps or 0, "step"),
        "enough": least.enough_steps,
    }
    return Match(_anchors(short), facts | {"usual": least.usual_steps})


def not_evidence(found: Findings) -> Match | None:
    """Set-ups whose negative says nothing although the search was long enough."""
    open_ = [
        u
        for u in _own(found)
        if u.verdict is not None and u.outcome is Outcome.INCONCLUSIVE and u.verdict.cause is not Cause.EFFORT
    ]
    if not open_:
        return None
    reasons = by_cause([u.verdict for u in open_ if u.verdict is not None])
    return Match(_anchors(open_), {"count": plural(len(open_), "set-up"), "reasons": reasons})


def _unproven(found: Findings) -> bool:
    return not_enough_effort(found) is not None or not_evidence(found) is not None


def prior_too(found: Findings) -> Match | None:
    """Images that attacks without a learned prior did not find, in an audit without an attack that has one."""
    own = [u for u in _own(found) if any(map(has_prior, u.attacks))]
    searched = [u for u in _realistic(found) if any(has_prior(one) is False for one in u.attacks)]
    held = [u for u in searched if u.verdict is not None and u.verdict.cause in (Cause.INFORMATION, Cause.SEARCH)]
    if not held or own:
        return None
    return Match(_anchors(held), {"count": plural(len(held), "undefended set-up"), "attack": held[0].attack})


def more_images(found: Findings) -> Match | None:
    judged = [u for u in _own(found) if u.plain]
    images = {index for u in judged for index in range(u.first, u.first + min(u.images, FEWEST_IMAGES))}
    if _unproven(found) or not judged or len(images) >= FEWEST_IMAGES or any(u.leaks for u in judged):
        return None
    allowed = 1 - 0.05 ** (1 / len(images))
    return Match(_anchors(judged), {"images": plural(len(images), "image"), "allowed": f"{100 * allowed:.0f} %"})


def _severity(update: Update) -> int:
    return -1 if update.outcome is None else update.outcome.severity


def _label(update: Update) -> str:
    return "not judged" if update.outcome is None else update.outcome.label


# Training


def controls_failed(found: Findings) -> Match | None:
    failed = () if found.training is None else found.training.failed_controls
    each = ", ".join(f"{name} reads {number(value, 2)} nats" for name, value in failed)
    return Match((TRAINING,), {"controls": each}) if failed else None


def gradients_reveal(found: Findings) -> Match | None:
    training = found.training
    if training is None or not training.alarmed or training.peak is None:
        return None
    return Match(
        (TRAINING,),
        {
            "view": training.view,
            "alarm": training.alarm_at,
            "steps": training.steps,
            "alpha": f"{100 * training.alpha:g} %",
            "peak": interval(training.peak),
            "at": training.peak.step,
            "ceiling": "ln K" if training.ceiling is None else number(training.ceiling, 2),
        },
    )


def members_recognised(found: Findings) -> Match | None:
    training = found.training
    if training is None or training.auc is None or not training.exposes_members:
        return None
    return Match((TRAINING,), {"auc": interval(training.auc), "step": training.auc.step})


def early_steps_leak_most(found: Findings) -> Match | None:
    training = found.training
    if training is None or training.peak is None or training.last is None or not training.peaks_early:
        return None
    facts = {"step": training.peak.step, "steps": training.steps}
    return Match((TRAINING,), {**facts, "peak": interval(training.peak), "last": interval(training.last)})


def longer_monitoring(found: Findings) -> Match | None:
    training = found.training
    if training is None or not training.too_short:
        return None
    return Match((TRAINING,), {"scored": plural(training.scored, "scored step"), "steps": training.steps})


# Split


def cut_here(found: Findings) -> Match | None:
    split = found.split
    if split is None or split.recommended is None or split.fvu is None or split.bytes is None or split.only_output:
        return None
    raw = split.raw_bytes
    more = f"more than the raw image of {raw}" if raw and split.bytes > raw else f"the raw image has {raw or 'unknown'}"
    facts = {"cut": split.recommended, "fvu": number(split.fvu, 2), "threshold": f"{split.threshold:g}"}
    facts |= {"left": f"{100 * split.fvu:.0f} %"}
    return Match(
        (SPLIT,), facts | {"bytes": split.bytes, "numbers": split.numbers, "more": more, "budget": effort(split)}
    )


def keep_it_whole(found: Findings) -> Match | None:
    split = found.split
    if split is None or split.recommended is None or split.fvu is None or not split.only_output:
        return None
    facts = {"cut": split.recommended, "fvu": number(split.fvu, 2), "threshold": f"{split.threshold:g}"}
    better = "".join(f" {sentence}" for sentence in remedy(split))
    return Match(
        (SPLIT,), facts | {"cuts": split.cuts, "bytes": split.bytes, "budget": effort(split), "remedy": better}
    )


def no_safe_cut(found: Findings) -> Match | None:
    split = found.split
    if split is None or not split.finished or split.recommended is not None or split.undertrained:
        return None
    wanted = f"an FVU of {split.threshold:g}" + (f" and {split.require}" if split.require else "")
    best = (
        "no cut could be attacked"
        if split.safest_fvu is None
        else f"{split.safest} keeps most, {number(split.safest_fvu, 2)}"
        + (", but its images are re-identified" if split.safest in split.blurred else "")
    )
    none = "The one cut that was scanned does not keep" if split.cuts == 1 else f"None of {split.cuts} cuts keeps"
    better = "".join(f" {sentence}" for sentence in remedy(split))
    return Match((SPLIT,), {"none": none, "wanted": wanted, "best": best, "remedy": better})


def decoders_too(found: Findings) -> Match | None:
    split = found.split
    if split is None:
        return None
    if split.undertrained and split.candidate is not None:
        why = trained_too_little(split)
        why = f"{why[0].upper()}{why[1:]}."
        return Match((SPLIT,), {"cut": split.candidate, "why": why})
    if split.recommended is None or split.decoder_epochs or split.only_output:
        return None
    why = f"Regression at {plural(split.cuts, 'cut')} and least squares are all that was tried; no decoder was trained."
    return Match((SPLIT,), {"cut": split.recommended, "why": why})


# Defenses


def use_defense(found: Findings) -> Match | None:
    """The undefended attack leaks, and a row makes it infeasible at a small price: on the Pareto front, then the cheapest."""
    defenses = found.defenses
    best = None if defenses is None else defenses.best
    if defenses is None or best is None:
        return None
    members = (
        "Membership was not measured."
        if best.auc is None
        else f"Batch membership can still be inferred with an AUC of {number(best.auc, 2)}."
    )
    budget = "its budget" if defenses.steps is None else plural(defenses.steps, "step")
    facts = {"defense": best.name, "cost": points(best), "membership": members, "budget": budget}
    facts |= {"before": seen(defenses, defenses.undefended), "after": seen(defenses, best)}
    return Match((best.anchor, DEFENSES), facts)


def no_cheap_defense(found: Findings) -> Match | None:
    """None is cheap on the update of one client, which a sum over clients would hide."""
    defenses = found.defenses
    return None if defenses is None or defenses.clients != 1 else _none_is_cheap(defenses)


def more_clients(found: Findings) -> Match | None:
    """None is cheap, and what was attacked is a sum over clients already."""
    defenses = found.defenses
    match = None if defenses is None or defenses.clients == 1 else _none_is_cheap(defenses)
    if defenses is None or match is None:
        return None
    return Match(match.evidence, {**match.facts, "clients": defenses.clients, "more": 4 * defenses.clients})


def _none_is_cheap(defenses: Defenses) -> Match | None:
    if not defenses.none_is_cheap:
        return None
    return Match((DEFENSES,), {"count": plural(len(defenses.rows), "defense"), "best": cheapest(defenses)})


def nothing_to_defend(found: Findings) -> Match | None:
    defenses = found.defenses
    if defenses is None or defenses.undefended.outcome is not Outcome.INFEASIBLE or not defenses.rows:
        return None
    base = defenses.undefended
    return Match((base.anchor,), {"before": seen(defenses, base), "count": plural(len(defenses.rows), "defense")})


def noise_is_not_dp(found: Findings) -> Match | None:
    """Noise was tried without an accountant: as a defense of updates or features, or as a row that holds."""
    used = [(u.anchor, spec) for u in _own(found) if u.bound is None for spec in u.defenses]
    rows = [row for row in (found.defenses.holding if found.defenses else ()) if row.epsilon is None]
    used += [(row.anchor, spec) for row in rows for spec in row.defenses]
    used += [(SPLIT, spec) for spec in (found.split.defenses if found.split else ())]
    noisy = [(anchor, spec) for anchor, spec in used if adds_noise(spec)]
    if not noisy:
        return None
    specs = list(dict.fromkeys(spec for _, spec in noisy))
    return Match(tuple(dict.fromkeys(anchor for anchor, _ in noisy)), {"defense": " or ".join(specs[:3])})


GUESSES, WISHED = 10, 0.2
"""Equally likely candidates, and the rate of success that no attack shall exceed: twice that of guessing."""
TRAINING_STEPS, SAMPLING = 1000, 0.01
"""A training that the advice computes the noise for too."""


@cache
def _noise_of_a_training() -> float:
    return noise_for(WISHED, 1 / GUESSES, rate=SAMPLING, steps=TRAINING_STEPS)


def noise_for_a_bound(found: Findings) -> Match | None:
    """Something leaks without noise that bounds it, or the noise bounds less than is wished."""
    weak = [u for u in _own(found) if u.bound is not None and u.bound.noise < noise_for(WISHED, 1 / GUESSES)]
    hit = [*(u for u in _realistic(found) if u.leaks and u.bound is None), *weak]
    if not hit:
        return None
    facts = {
        "noise": f"{noise_for(WISHED, 1 / GUESSES):.2g}",
        "bound": f"{100 * WISHED:.0f} %",
        "candidates": GUESSES,
        "guess": f"{100 / GUESSES:.0f} %",
        "steps": TRAINING_STEPS,
        "rate": f"{100 * SAMPLING:.0f} %",
        "sampled": f"{_noise_of_a_training():.2g}",
        "now": ""
        if not weak
        else f" The noise multiplier tried here is {min(u.bound.noise for u in weak if u.bound):.2g}.",
    }
    return Match(_anchors(hit), facts)


# The audit itself


def repair_errors(found: Findings) -> Match | None:
    """A set-up or a defense broke, or a whole question failed."""
    broken = [u for u in (found.updates.every if found.updates else ()) if u.status in ("error", "withdrawn")]
    failed = [row for row in (found.defenses.rows if found.defenses else ()) if row.status == "error"]
    each = [(u.name, u.reason) for u in broken] + [(row.name, row.reason) for row in failed]
    each += [(f"the question on {u.question}", u.reason) for u in found.unanswered if u.failed]
    if not each:
        return None
    name, reason = each[0]
    facts = {"count": plural(len(each), "part"), "name": name, "reason": reason or "no reason was recorded"}
    return Match(_anchors([*broken, *failed]), facts)


def resume(found: Findings) -> Match | None:
    left: dict[str, str] = {}
    if found.split is not None and not found.split.finished:
        left[SPLIT] = "the scan of cuts has no conclusion yet"
    if found.training is not None and found.training.ended != "finished":
        left[TRAINING] = (
            f"the monitored training ended after {plural(found.training.steps, 'step')} ({found.training.ended})"
        )
    begun: dict[str, str] = {late.question: waiting(late) for late in found.waiting}
    late = [u.question for u in found.unanswered if not u.reached]
    ways = ["`leakgauge audit --resume`"] if begun or late else []
    if SPLIT in left and found.split is not None:
        ways.append(f"`leakgauge {'audit' if found.split.audited else 'scan'} --resume`")
    if TRAINING in left and found.training is not None:
        ways.append("`leakgauge audit --resume`" if found.training.audited else "watch the training again")
    every = [*begun.values(), *left.values(), *([f"not reached: {', '.join(late)}"] if late else [])]
    if not every:
        return None
    return Match((*begun, *left), {"what": "; ".join(every), "how": ", ".join(dict.fromkeys(ways))})


def no_proof(found: Findings) -> Match | None:
    """Nothing was reconstructed from updates, neither in a set-up nor in the comparison of defenses."""
    judged = [u for u in (found.updates.judged if found.updates else ()) if not u.protocol_broken]
    tried = () if found.defenses is None else (found.defenses.undefended, *found.defenses.rows)
    if _unproven(found) or not judged or any(row.leaks for row in tried) or any(u.leaks for u in judged):
        return None
    spent = sum(u.seconds for u in judged)
    return Match(_anchors(judged), {"count": plural(len(judged), "set-up"), "seconds": f"{spent:.0f} s"})


def not_answered(found: Findings) -> Match | None:
    """A question that was not asked, not reached or refused; one that failed is an error."""
    left = [u for u in found.unanswered if not u.failed]
    names = [u.question for u in left if not u.reason] + [f"{u.question} ({u.reason})" for u in left if u.reason]
    return Match((), {"questions": ", ".join(names)}) if names else None
