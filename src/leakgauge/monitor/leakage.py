"""The monitor's result at a step: frozen, with flat names for loggers and one JSON line for records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from leakgauge.measures.membership import Rate
from leakgauge.monitor.whitebox import WhiteBox

View = Literal["raw", "clipped", "released"]
VIEWS: tuple[View, ...] = ("raw", "clipped", "released")


SETTLED = 8
"""Scored steps from which a number of the critic counts; with fewer its interval is most of its range."""
CONTROL_LIMIT = 0.05
"""Nats. A control must read about 0; where even its lower bound is above this, the critic learned something else than the data."""
NOISE_LIMIT = 0.1
"""Nats. Under noise with ten times the gradient's norm nothing is left to read; wider than the other controls, for it has no bound."""


def failing(controls: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """Of controls with the most that they are sure to read, those that read more than chance explains."""
    limits = {"null": CONTROL_LIMIT, "decoy": CONTROL_LIMIT}
    return tuple((name, value) for name, value in controls if value > limits.get(name, NOISE_LIMIT))


@dataclass(frozen=True)
class Controls:
    """What the same measurement reads if nothing can leak; a value only counts above these.

    ``null``: a critic trained and scored on shuffled pairs. ``decoy``: the critic itself, at the same weights, with a wrong
    batch declared true. ``noise``: the critic itself, with noise of 1 and 10 times the gradient's norm.
    """

    null: Rate
    decoy: Rate
    noise: tuple[float, ...]


@dataclass(frozen=True)
class Leakage:
    """The state of the measurement after ``step`` optimizer steps. Values that are not known yet, or switched off, are None.

    ``infonce`` in nats, at most ``ceiling`` = ln K; ``top1`` the share of steps where the true batch ranked first among K =
    ``choices``, by chance 1/K; both over the last ``pairs`` scored steps. ``log_wealth`` is the evidence of the alarm, which fires
    at ln(1/α) and ``peak_wealth`` the most that it was; ``alarm_at`` the step at which it fired. ``layers`` in nats by layer, without
    the joint critic. ``whitebox`` is the newest look of the white-box probe, ``members`` the AUC of all ``probes`` looks together.
    ``told`` is the AUC of a probe of the updates for whether more samples than usual have the property that was asked about,
    without an interval (:class:`~leakgauge.monitor.properties.ShareColumn`).
    """

    step: int
    view: View
    choices: int
    pairs: int
    infonce: Rate | None
    top1: Rate | None
    controls: Controls | None
    layers: Mapping[str, float]
    log_wealth: float
    alpha: float
    alarm_at: int | None
    whitebox: WhiteBox | None
    epsilon: float | None = None
    peak_wealth: float = 0.0
    members: Rate | None = None
    probes: int = 0
    told: float | None = None
    notes: tuple[str, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)

    @property
    def ceiling(self) -> float:
        return math.log(self.choices)

    @property
    def settled(self) -> bool:
        """Whether enough steps were scored for the critic's numbers to count."""
        return self.pairs >= SETTLED

    @property
    def trusted(self) -> bool:
        """Whether the critic's controls are clean, as far as they count."""
        if self.controls is None or not self.settled:
            return True
        read = {"null": self.controls.null.low, "decoy": self.controls.decoy.low, "noise 10×": self.controls.noise[-1]}
        return not failing(read.items())

    @property
    def alarmed(self) -> bool:
        return self.alarm_at is not None

    def scalars(self) -> dict[str, float]:
        """Flat ``privacy/…`` names for a logger, with the controls next to each value."""
        flat: dict[str, float] = {
            "privacy/alarm": float(self.alarmed),
            "privacy/log_wealth": self.log_wealth,
            "privacy/log_wealth_peak": self.peak_wealth,
            "privacy/infonce_ceiling": self.ceiling,
            "privacy/pairs": float(self.pairs),
        }
        if self.infonce is not None and self.top1 is not None and self.controls is not None:
            flat |= _flat("privacy/infonce_nats", self.infonce)
            flat |= _flat("privacy/top1", self.top1)
            flat["privacy/top1_chance"] = 1 / self.choices
            flat |= _flat("privacy/control/null_nats", self.controls.null)
            flat |= _flat("privacy/control/decoy_nats", self.controls.decoy)
            for level, value in zip(("1x", "10x"), self.controls.noise, strict=True):
                flat[f"privacy/control/noise_{level}_nats"] = value
        flat |= {f"privacy/layer/{name}": value for name, value in self.layers.items()}
        if self.whitebox is not None:
            flat |= _flat("privacy/whitebox/auc", self.whitebox.auc)
            flat |= _flat("privacy/whitebox/tpr_at_1pct_fpr", self.whitebox.tpr)
            if self.whitebox.upper_nats is not None:
                flat["privacy/whitebox/upper_nats"] = self.whitebox.upper_nats
        if self.members is not None:
            flat |= _flat("privacy/whitebox/pooled_auc", self.members)
            flat["privacy/whitebox/probes"] = float(self.probes)
        if self.told is not None:
            flat["privacy/property/auc"] = self.told
        if self.epsilon is not None:
            flat["privacy/epsilon"] = self.epsilon
        return flat

    def record(self) -> dict[str, Any]:
        """One JSON line: the scalars, and everything that is not a number."""
        return {
            "step": self.step,
            "view": self.view,
            "choices": self.choices,
            "alpha": self.alpha,
            "alarm_at": self.alarm_at,
            "scalars": self.scalars(),
            "layers": dict(self.layers),
            "whitebox_step": None if self.whitebox is None else self.whitebox.step,
            "notes": list(self.notes),
            "skipped": dict(self.skipped),
        }


def _flat(name: str, rate: Rate) -> dict[str, float]:
    return {name: rate.value, f"{name}_low": rate.low, f"{name}_high": rate.high}
