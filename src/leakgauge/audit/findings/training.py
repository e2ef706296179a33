"""The training that was watched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from leakgauge.audit.questions.answers import Unanswered
from leakgauge.audit.questions.training import MonitorRun
from leakgauge.data.facts import USUAL, DataFacts, facts_from
from leakgauge.monitor.leakage import CONTROL_LIMIT, SETTLED, failing

ALMOST_ALL_MEMBERS = 0.8
"""Lower bound of the AUC from which almost all members are recognised; 0.5 is guessing."""
GUESSING = 0.5
"""The AUC of a guess."""
EARLY = 0.25
"""Share of the training in which a peak counts as early."""
CRITIC = ("infonce_nats", "top1", *(f"control/{name}_nats" for name in ("null", "decoy", "noise_1x", "noise_10x")))
"""Numbers of the critic and of its controls."""


@dataclass(frozen=True)
class Measured:
    """A number with its interval, where one was recorded, at a step of a training."""

    step: int
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Training:
    """A monitored training. ``peak`` and ``last`` are the critic's nats, None where too few steps were scored for a number to count.

    ``ceiling`` is the most the critic can read, ``auc`` how well a white-box adversary recognises members over all its
    looks, ``top1`` how often the critic picked the right one of ``choices`` batches. ``controls``
    holds for each control the most that it is sure to read; a clean one is about 0. ``layers`` are nats by layer, largest first.
    ``scored`` counts the steps that the newest numbers rest on, ``epsilon`` is the guarantee of DP-SGD. ``ended`` is how it ended,
    ``audited`` whether it is part of an audit, which can be resumed.
    """

    steps: int
    alarm_at: int | None = None
    alpha: float = 0.05
    view: str = "released"
    peak: Measured | None = None
    last: Measured | None = None
    ceiling: float | None = None
    auc: Measured | None = None
    top1: Measured | None = None
    choices: int = 16
    controls: tuple[tuple[str, float], ...] = ()
    layers: tuple[tuple[str, float], ...] = ()
    scored: int = 0
    epsilon: float | None = None
    seconds: float | None = None
    ended: str = "finished"
    audited: bool = True
    data: DataFacts = USUAL

    @property
    def failed_controls(self) -> tuple[tuple[str, float], ...]:
        """Controls that read more than chance explains; curve and alarm do not count then."""
        return failing(self.controls)

    @property
    def alarmed(self) -> bool:
        """The alarm fired, and its controls are clean."""
        return self.alarm_at is not None and not self.failed_controls

    @property
    def too_short(self) -> bool:
        return self.scored < SETTLED

    @property
    def exposes_members(self) -> bool:
        """Almost all members are recognised."""
        return self.auc is not None and self.auc.low is not None and self.auc.low >= ALMOST_ALL_MEMBERS

    @property
    def beats_guessing(self) -> bool:
        """Some members are recognised, beyond what chance explains. Without an interval the value itself counts."""
        return self.auc is not None and (self.auc.value if self.auc.low is None else self.auc.low) > GUESSING

    @property
    def loudest_layer(self) -> tuple[str, float] | None:
        """The layer that says most by itself, where that is more than a control may read."""
        return self.layers[0] if self.layers and self.layers[0][1] > CONTROL_LIMIT else None

    @property
    def steps_stated(self) -> tuple[int, ...]:
        """Steps with numbers that a statement about the training quotes."""
        quoted = {one.step for one in (self.peak, self.last, self.auc) if one is not None}
        return tuple(sorted(quoted))

    @property
    def peaks_early(self) -> bool:
        """The critic read most in the beginning, clearly more than at the end."""
        if self.peak is None or self.last is None or self.failed_controls:
            return False
        apart = self.peak.low is not None and self.last.high is not None and self.peak.low > self.last.high
        return apart and self.peak.step <= EARLY * self.steps


def training_of(run: MonitorRun) -> Training | Unanswered:
    """The training as far as it was watched; the numbers of the critic from the reports that rest on enough steps."""
    if not run.reports:
        return Unanswered("training", str(run.end.get("why") or "no step was measured"), run.end.get("how") == "failed")
    newest = run.reports[-1]
    settled = [r for r in run.reports if scalar(r, "infonce_nats") is not None and is_settled(r)]
    top = max(settled, key=lambda r: scalar(r, "infonce_nats") or -math.inf, default=None)
    looks = [r for r in run.reports if scalar(r, "whitebox/auc") is not None]
    read = {str(n): float(v) for n, v in (newest.get("layers") or {}).items() if v is not None}
    layers = sorted(read.items(), key=lambda pair: -pair[1])
    seconds = run.end.get("seconds")
    return Training(
        steps=int(run.end.get("step") or newest["step"]),
        alarm_at=newest.get("alarm_at"),
        alpha=float(newest.get("alpha") or 0.05),
        view=str(newest.get("view") or run.about.get("view") or "released"),
        peak=None if top is None else _measured(top, "infonce_nats"),
        last=_measured(settled[-1], "infonce_nats") if settled else None,
        ceiling=scalar(newest, "infonce_ceiling"),
        auc=_members(looks[-1]) if looks else None,
        top1=_measured(settled[-1], "top1") if settled and scalar(settled[-1], "top1") is not None else None,
        choices=int(newest.get("choices") or 16),
        controls=() if top is None else _controls((top, settled[-1])),
        layers=tuple(layers),
        scored=int(scalar(newest, "pairs") or 0),
        epsilon=scalar(newest, "epsilon"),
        seconds=None if seconds is None else float(seconds),
        ended=str(run.end.get("how") or "not on record"),
        audited=bool(run.about.get("audited")),
        data=facts_from(run.about.get("data") or {}),
    )


def scalar(report: Mapping[str, Any], name: str) -> float | None:
    """A number of one report of a monitored training, None where it was not measured."""
    found = report["scalars"].get(f"privacy/{name}")
    return None if found is None else float(found)


def is_settled(report: Mapping[str, Any]) -> bool:
    """Whether enough steps were scored for the critic's numbers in this report to count."""
    return (scalar(report, "pairs") or 0.0) >= SETTLED


def counted(report: Mapping[str, Any], name: str, end: Literal["", "_low", "_high"] = "") -> float | None:
    """A number of one report, or an end of its interval; None where it was not measured or rests on too few steps to count."""
    return None if name in CRITIC and not is_settled(report) else scalar(report, name + end)


def _measured(report: Mapping[str, Any], name: str) -> Measured:
    """For reports that hold the number."""
    value = float(report["scalars"][f"privacy/{name}"])
    return Measured(int(report["step"]), value, scalar(report, f"{name}_low"), scalar(report, f"{name}_high"))


def _members(report: Mapping[str, Any]) -> Measured:
    """The AUC over all looks so far; of the last one in reports that do not pool them."""
    pooled = scalar(report, "whitebox/pooled_auc") is not None
    return _measured(report, "whitebox/pooled_auc" if pooled else "whitebox/auc")


def _controls(reports: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, float], ...]:
    """For each control the most that it is sure to read: the lower bound, or the value itself where noise has no bound."""
    names = {"null": "null_nats_low", "decoy": "decoy_nats_low", "noise 10×": "noise_10x_nats"}
    found = {}
    for shown, name in names.items():
        values = [value for report in reports if (value := scalar(report, f"control/{name}")) is not None]
        if values:
            found[shown] = max(values)
    return tuple(found.items())
