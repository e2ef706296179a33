"""Loggers for the monitor: each is one callable ``log(scalars, step)`` with the flat names ``privacy/…``.

The numbers derive from private data. A file on this machine keeps them here; a tracking server elsewhere is a release.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leakgauge.errors import MissingExtra

Log = Callable[[dict[str, float], int], None]


def csv_log(path: str | Path) -> Log:
    """Appends rows ``step,name,value``: the names grow while the monitor learns more, so each has its own row."""
    file = Path(path)

    def log(scalars: dict[str, float], step: int) -> None:
        fresh = not file.exists() or file.stat().st_size == 0
        with file.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            if fresh:
                writer.writerow(("step", "name", "value"))
            writer.writerows((step, name, value) for name, value in scalars.items())

    return log


def jsonl_log(path: str | Path) -> Log:
    """Appends one JSON object per report: ``{"step": …, "privacy/…": …}``."""
    file = Path(path)

    def log(scalars: dict[str, float], step: int) -> None:
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"step": step, **scalars}) + "\n")

    return log


def tensorboard_log(folder: str | Path) -> Log:
    """Scalars of TensorBoard event files in ``folder``. A ``SummaryWriter`` of your own can be given as ``log`` itself."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtra("tensorboard", "loggers") from error
    writer = SummaryWriter(str(folder))

    def log(scalars: dict[str, float], step: int) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log


def mlflow_log(*, run_id: str | None = None) -> Log:
    """Metrics of an MLflow run, the active one by default."""
    try:
        import mlflow
    except ImportError as error:
        raise MissingExtra("mlflow", "loggers") from error

    def log(scalars: dict[str, float], step: int) -> None:
        mlflow.log_metrics(scalars, step=step, run_id=run_id)

    return log


def wandb_log(run: Any = None) -> Log:
    """History of a Weights & Biases ``run``, the current one by default; the step is logged as ``privacy/step``.

    W&B's own step only moves forward and belongs to the training loop, so it is not set here.
    """
    try:
        import wandb
    except ImportError as error:
        raise MissingExtra("wandb", "loggers") from error

    def log(scalars: dict[str, float], step: int) -> None:
        (run or wandb).log({**scalars, "privacy/step": step})

    return log
