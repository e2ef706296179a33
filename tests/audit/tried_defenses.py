"""Findings about one defense that holds, and changes of them."""

from __future__ import annotations

from dataclasses import replace

from leakgauge.audit.findings import Defenses, Findings
from tests.made import INFEASIBLE, defended

BASE = defended(1, "", "feasible", ssim=0.88, auc=1.0, cost=0.0)
ROW = defended(2, "prune:0.99", INFEASIBLE, ssim=0.13, auc=0.71, cost=1.25, cost_low=-0.5, cost_high=3.0, front=True)
TRIED = Defenses(BASE, (ROW,), setting="cnn, train mode, batch 1", steps=100, train_steps=60, seconds=80.0)


def defenses(**changes: object) -> Findings:
    return Findings(defenses=replace(TRIED, **changes))
