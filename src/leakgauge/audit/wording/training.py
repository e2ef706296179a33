"""What a monitored training showed."""

from __future__ import annotations

from leakgauge.audit.findings import Measured, Training
from leakgauge.audit.phrasing import duration, number, plural
from leakgauge.audit.questions import QUESTIONS
from leakgauge.audit.questions.training import MonitorRun
from leakgauge.audit.wording.data import data_notes
from leakgauge.audit.wording.statement import Statement, Tone
from leakgauge.audit.wording.terms import interval
from leakgauge.measures.membership import Rate
from leakgauge.monitor.summary import conclusion

TOO_SHORT = "Too few steps were scored for a leakage estimate."


def on_training(training: Training) -> Statement:
    said = [conclude_training(training), alarm(training), critic(training)]
    failed = training.failed_controls
    if failed:
        names = ", ".join(name for name, _ in failed)
        said.append(f"Controls failed ({names}), so the curve and the alarm do not count.")
    elif training.controls:
        said.append("The controls (null, decoy, noise) are clean.")
        if training.loudest_layer is not None:
            name, nats = training.loudest_layer
            said.append(f"The layer that leaks most by itself is {name} ({number(nats, 2)} nats).")
    said += data_notes(training.data)
    tone: Tone
    if training.alarmed or training.exposes_members:
        tone, badge = "bad", "Alarm" if training.alarmed else "Members recognised"
    elif failed:
        tone, badge = "partly", "Controls failed"
    elif training.beats_guessing:
        tone, badge = "partly", "Some members recognised"
    else:
        tone, badge = ("none", "Too short to say") if training.peak is None else ("good", "Alarm silent")
    assumed = [("deployable", f"the adversary sees every {training.view} gradient and has seen earlier steps")]
    if training.auc is not None:
        assumed.append(("diagnostic", "for the AUC also the weights at each step and a list of candidates"))
    time = "" if training.seconds is None else f", {duration(training.seconds)}"
    budget = f"{plural(training.steps, 'training step')}, the last numbers over {plural(training.scored, 'scored step')}{time}"
    state = "answered" if training.ended == "finished" else "unfinished"
    return Statement("training", QUESTIONS["training"], tone, badge, tuple(said), tuple(assumed), budget, state)


def conclude_training(training: Training) -> str:
    """The sentence on top of every view of a training."""
    return conclusion(
        steps=training.steps,
        choices=training.choices,
        members=_as_rate(training.auc),
        top1=_as_rate(training.top1),
        alarm_at=training.alarm_at,
        trusted=not training.failed_controls,
    )


def _as_rate(found: Measured | None) -> Rate | None:
    if found is None:
        return None
    low = found.value if found.low is None else found.low
    return Rate(found.value, low, found.value if found.high is None else found.high)


def training_ended(run: MonitorRun) -> str:
    """How a training ended, where that was not as planned."""
    how, step = run.end.get("how"), plural(int(run.end.get("step") or 0), "step")
    if how == "finished":
        return ""
    if how == "interrupted":
        return f"The training was interrupted after {step}; these are the measurements up to then."
    if how:
        return f"The training failed after {step} ({run.end.get('why') or 'no reason was recorded'})."
    return "The end of the training was not recorded: it is still running, or it was killed."


def alarm(training: Training) -> str:
    """Whether the alarm fired."""
    if training.alarm_at is not None:
        return f"The alarm fired at step {training.alarm_at} of {training.steps}: gradients reveal their batches."
    return f"The alarm stayed silent for {plural(training.steps, 'step')}, which is no evidence of safety."


def critic(training: Training) -> str:
    """What the critic estimated, once enough steps were scored."""
    if training.peak is None or training.last is None:
        return TOO_SHORT
    most = "" if training.ceiling is None else f"; the most it can show is {number(training.ceiling, 2)} nats"
    return (
        f"The leakage estimate peaked at step {training.peak.step} with {interval(training.peak)} nats and ended at "
        f"{interval(training.last)}{most}."
    )
