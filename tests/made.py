"""Verdicts, scores, reconstructions, records and findings made by hand: the one maker for all tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from leakgauge.audit.case import Case
from leakgauge.audit.cause import Cause
from leakgauge.audit.findings import Defended, Update
from leakgauge.audit.questions.defense_records import DefenseRecord, Trial
from leakgauge.audit.questions.properties import PropertyRecord
from leakgauge.audit.records import Record, VictimFacts
from leakgauge.audit.scoring import Scores
from leakgauge.audit.verdict import Check, Outcome, Verdict, Way
from leakgauge.core import Assumption, Reconstruction
from leakgauge.measures.membership import Rate

FEASIBLE, PARTIAL, INFEASIBLE = Outcome.FEASIBLE, Outcome.PARTIAL, Outcome.INFEASIBLE
MISSED = Check("ssim", 0.38, above="zero")
SIZE_KNOWN = Assumption("batch size known (4)", "deployable")
EVAL_MODE = Assumption("client computes its update in eval mode", "diagnostic")


TOLD = PropertyRecord(
    name="bright", low=0.2, high=0.5, model="cnn", setting="train mode", batch=32, shadows=100, tests=100,
    auc=Rate(0.9, 0.8, 0.95), tpr=0.4, blind=Rate(0.5, 0.4, 0.6), null_low=0.4, null_high=0.6, disjoint=40,
)  # fmt: skip
"""A property that an update tells."""


def verdict(outcome: Outcome | str, *, images: int = 1, kind: str = "deployable", **facts: Any) -> Verdict:
    """A verdict with facts that fit its outcome."""
    found = Outcome(outcome)
    usual: dict[str, Any] = {
        FEASIBLE: {"reconstructed": images},
        PARTIAL: {"glimpsed": {Way.CLOSENESS: images}, "missed": MISSED},
        INFEASIBLE: {"missed": Check("ssim", 0.05, above="null"), "cause": Cause.INFORMATION},
        Outcome.INCONCLUSIVE: {"missed": Check("ssim", 0.05, above="null"), "cause": Cause.EFFORT},
    }[found]
    return Verdict(found, kind, images, **{**usual, **facts})  # type: ignore[arg-type]


def scores(ssim: float = 0.5, psnr: float = 12.0, *, images: int = 1, **more: float | Sequence[float] | None) -> Scores:
    """The same value for each image, or the values given."""

    def column(value: float | Sequence[float] | None) -> tuple[float, ...] | None:
        if value is None:
            return None
        return (float(value),) * images if isinstance(value, int | float) else tuple(map(float, value))

    known = {"ssim": ssim, "psnr": psnr, "mse": 0.1, **more}
    return Scores(**{name: column(value) for name, value in known.items()})  # type: ignore[arg-type]


def reconstruction(x: Tensor, y: Tensor | None = None) -> Reconstruction:
    return Reconstruction(x=x, y=y, loss=0.0, candidates=x[None], losses=torch.zeros(1), made_by="", seconds=0.0)


def record(outcome: Outcome | str | None = INFEASIBLE, *, case: Case | None = None, **changes: Any) -> Record:
    """A record as a run writes it. Without an outcome it was refused; ``status`` and ``reason`` may say otherwise."""
    made = Case() if case is None else case
    judged = outcome is not None
    known: dict[str, Any] = {
        "key": made.key(),
        "status": "done" if judged else "refused",
        "case": made,
        "victim": VictimFacts(made.model, made.mode, 1000, 10, (1, 28, 28), "cpu"),
        "attack": made.attack,
        "channel": "Gradient()",
        "defenses": made.defenses,
        "assumptions": (SIZE_KNOWN, EVAL_MODE) if made.mode == "eval" else (SIZE_KNOWN,),
        "versions": {"leakgauge": "1"},
        "seconds": 3.0,
        "peak_bytes": 0,
        "reason": "" if judged else "no such role",
        "command": "leakgauge attack",
    }
    if judged:
        known |= {
            "verdict": verdict(outcome, images=made.batch_size),
            "scores": scores(images=made.batch_size, labels=0.75),
            "null": scores(0.1, 8.0, images=made.batch_size),
            "baseline": scores(0.2, 10.0, images=made.batch_size),
        }
    return Record(**{**known, **changes})


def update(number: int, name: str, outcome: Outcome | str | None, *, batch: int = 1, **changes: Any) -> Update:
    """An attacked set-up as findings hold it."""
    return Update(number, name, None if outcome is None else verdict(outcome, images=batch), batch=batch, **changes)


def ended(thing: Any, outcome: Outcome | str, *, seen: Way | None = None, **changes: Any) -> Any:
    """The same set-up or row with another outcome; ``seen`` is the only way in which something was glimpsed."""
    facts = {} if seen is None else {"glimpsed": {seen: 1}}
    return replace(thing, verdict=verdict(outcome, images=getattr(thing, "batch", 1), **facts), **changes)


def defended(number: int, defense: str, outcome: Outcome | str | None, **changes: Any) -> Defended:
    """A row of the comparison of defenses; no name is no defense."""
    made = None if outcome is None else verdict(outcome)
    return Defended(number, (defense,) if defense else (), made, **changes)


def rate(value: float, spread: float = 0.02) -> dict[str, float]:
    return {"value": value, "low": value - spread, "high": value + spread}


def tried(
    spec: str,
    outcome: Outcome | str | None,
    ssim: float = 0.5,
    *,
    auc: float = 0.98,
    cost: float | None = 0.0,
    case: Case | None = None,
    **changes: Any,
) -> DefenseRecord:
    """One trial of a defense; no spec is the trial without any."""
    made = Case(options={"steps": 200}) if case is None else case
    accuracy = {
        **rate(0.8 - (cost or 0)), "images": 500, "steps": 60, "batch": 32, "trained_on": 480, "right": "01",
        "start": "fresh weights", "optimizer": "Adam", "unknown": "" if cost is not None else "learned <nothing>",
        "cost": None if cost is None else rate(cost),
    }  # fmt: skip
    known: dict[str, Any] = {
        "key": spec or "none",
        "status": "done",
        "trial": Trial(made, 60),
        "defenses": (spec,) if spec else (),
        "attack": "A",
        "channel": "Gradient()",
        "versions": {"torch": "2"},
        "command": f"leakgauge attack cnn --defense {spec}",
        "seconds": 2.0,
        "scores": scores(ssim),
        "null": scores(0.1, 8.0),
        "baseline": scores(0.2, 10.0),
        "verdict": None if outcome is None else verdict(outcome),
        "leakage": {"auc": rate(auc), "tpr": rate(0.5), "releases": 128, "batch": 1, "candidates": 64},
        "accuracy": accuracy,
    }
    return DefenseRecord(**{**known, **changes})
