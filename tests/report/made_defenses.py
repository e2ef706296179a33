"""Trials of defenses made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from leakgauge.audit.case import Case
from leakgauge.audit.questions import defense_records as store
from leakgauge.audit.questions.defense_records import DefenseRecord
from leakgauge.audit.verdict import Outcome
from leakgauge.core import Assumption
from tests import made
from tests.made import FEASIBLE, INFEASIBLE, PARTIAL, scores

CASE = Case(model="cnn<b>", options={"steps": 200})


def tried(spec: str, outcome: Outcome | None, ssim: float, **changes: Any) -> DefenseRecord:
    known = {"case": CASE, "assumptions": (Assumption("eval mode", "diagnostic"),), "null": scores(0.125, 7.0)}
    return made.tried(spec, outcome, ssim, **{**known, **changes})


NONE = tried("", FEASIBLE, 0.95, auc=1.0)
STOPPED = tried("gaussian_noise:relative=10.0", INFEASIBLE, 0.2, cost=0.06)
RECORDS = [
    NONE,
    tried("gaussian_noise:relative=0.1", FEASIBLE, 0.96),
    STOPPED,
    tried("prune:0.9", PARTIAL, 0.5, cost=0.02),
    tried("quantize:4", FEASIBLE, 0.9, cost=-0.004),
    tried("withhold:head", None, 0, cost=0.04, status="refused", reason="not shared: <head>", scores=None, null=None),
    tried("clip:1.0", None, 0, status="error", reason="RuntimeError: boom", scores=None, leakage={}, accuracy={}),
    tried("prune:0.99", PARTIAL, 0.4, cost=None),
]


def store_defenses(folder: Path, records: list[DefenseRecord] = RECORDS) -> None:
    for number, record in enumerate(records):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        names = {"truth": "0.png", "reconstruction": f"{number}.png"} if record.status == "done" else {}
        store.append(folder, replace(record, pictures=names))
