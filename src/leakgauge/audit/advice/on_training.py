"""When advice on a monitored training applies: one small function per rule, each with its threshold as a named number."""

from __future__ import annotations

from leakgauge.audit.advice.match import TRAINING, Match, interval
from leakgauge.audit.findings import SETTLED, Findings
from leakgauge.audit.phrasing import plural
from leakgauge.audit.summaries import Training

CONTROL_LIMIT = 0.05
"""Nats. A control must read about 0; where even its lower bound is above this, the critic learned something else than the data."""
NOISE_LIMIT = 0.1
"""Nats. Under noise ten times as long as the gradient nothing is left to read; wider than the other controls, for it has no bound."""
AUC_TOLD = 0.8
"""Lower bound of the AUC from which on almost all members are told from others; 0.5 is guessing."""
EARLY = 0.25
"""Share of the training in which a peak counts as early; later ones are no reason to treat the beginning otherwise."""


def controls_failed(found: Findings) -> Match | None:
    failed = [] if found.training is None else unclean(found.training)
    said = ", ".join(f"{name} reads {value:.2f} nats" for name, value in failed)
    return Match((TRAINING,), {"controls": said}) if failed else None


def gradients_tell(found: Findings) -> Match | None:
    training = found.training
    if training is None or training.alarm_at is None or training.peak is None or unclean(training):
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
            "ceiling": "ln K" if training.ceiling is None else f"{training.ceiling:.2f}",
        },
    )


def members_told(found: Findings) -> Match | None:
    auc = None if found.training is None else found.training.auc
    if auc is None or auc.low is None or auc.low < AUC_TOLD:
        return None
    return Match((TRAINING,), {"auc": interval(auc), "step": auc.step})


def early_steps_leak_most(found: Findings) -> Match | None:
    training = found.training
    if training is None or training.peak is None or training.last is None or unclean(training):
        return None
    peak, last = training.peak, training.last
    apart = peak.low is not None and last.high is not None and peak.low > last.high
    if peak.step > EARLY * training.steps or not apart:
        return None
    facts = {"step": peak.step, "steps": training.steps, "peak": interval(peak), "last": interval(last)}
    return Match((TRAINING,), facts)


def longer_monitoring(found: Findings) -> Match | None:
    training = found.training
    if training is None or training.scored >= SETTLED:
        return None
    return Match((TRAINING,), {"scored": plural(training.scored, "scored step"), "steps": training.steps})


def unclean(training: Training) -> list[tuple[str, float]]:
    limits = {"null": CONTROL_LIMIT, "decoy": CONTROL_LIMIT}
    return [(name, value) for name, value in training.controls if value > limits.get(name, NOISE_LIMIT)]
