"""A monitored training made by hand."""

from __future__ import annotations

import math
from pathlib import Path

from leakgauge.audit.questions import training
from leakgauge.audit.questions.training import MonitorRun

from .eight_setups import VERSIONS


def make_monitored(*, reports: int = 30, alarm: bool = True, probe: bool = True, name: str = "body.0.weight"):
    """A monitored training by hand: leakage that falls, controls around 0, three layers, an alarm at step 60."""
    lines = []
    for i in range(1, reports + 1):
        step, nats = 25 * i, 1.2 * math.exp(-i / 8)
        scalars: dict[str, float | None] = {
            "privacy/alarm": float(alarm and step >= 60),
            "privacy/log_wealth": 0.4 * i if alarm else -0.01 * i,
            "privacy/infonce_ceiling": math.log(16),
            "privacy/pairs": float(min(10 * i, 256)),
        }
        if i > 1:
            bounded = {
                "infonce_nats": nats,
                "top1": nats / 2,
                "control/null_nats": 0.01,
                "control/decoy_nats": -nats / 2,
            }
            for key, value in bounded.items():
                ends = {"": value, "_low": value - 0.1, "_high": value + 0.1}
                scalars |= {f"privacy/{key}{end}": v for end, v in ends.items()}
            scalars |= {"privacy/control/noise_1x_nats": nats / 3, "privacy/control/noise_10x_nats": 0.0}
        if probe:
            for key in ("auc", "tpr_at_1pct_fpr"):
                scalars |= {
                    f"privacy/whitebox/{key}{end}": v for end, v in (("", 0.98), ("_low", 0.85), ("_high", 1.0))
                }
        lines.append(
            {
                "step": step, "view": "released", "choices": 16, "alpha": 0.05,
                "alarm_at": 60 if alarm and step >= 60 else None, "scalars": scalars,
                "layers": {name: nats, "body.2.weight": nats / 2, "fc.bias": -0.01} if i > 1 else {},
                "whitebox_step": step if probe else None, "notes": ["probe reads 2 of 8"], "skipped": {"no input": 3},
            }
        )  # fmt: skip
    about = {
        "training": "train.py", "model": "LeNet", "parameters": 13426, "optimizer": "Adam", "loss": "CrossEntropyLoss",
        "every": 25, "view": "released", "seed": 0, "alpha": 0.05, "choices": 16, "command": "leakgauge monitor train.py",
        "versions": VERSIONS,
    }  # fmt: skip
    end = {"how": "finished", "why": "", "step": 25 * reports, "seconds": 12.5}
    return MonitorRun(about=about, reports=tuple(lines), end=end)


def store_monitored(folder: Path, run: MonitorRun) -> None:
    for kind, lines in (("run", [run.about]), ("report", run.reports), ("end", [run.end])):
        for line in lines:
            training.append(folder, kind, line)
