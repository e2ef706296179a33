"""A monitor inside somebody else's trainer that leaves a run folder: ``monitor.jsonl`` while it runs, ``report.html`` at the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leakgauge.audit.files import make_private
from leakgauge.audit.questions import training
from leakgauge.audit.questions.training import Recording, Settings
from leakgauge.errors import BadInput
from leakgauge.monitor import Monitor, watch
from leakgauge.report import page


class Watched:
    """One watched training. Without ``out`` nothing is written; ``options`` are those of :func:`leakgauge.monitor.watch`."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        out: str | Path | None,
        trainer: str,
        options: Mapping[str, Any],
    ) -> None:
        given = dict(options)
        self._recording: Recording | None = None
        if out is None:
            self.monitor: Monitor = watch(model, optimizer, **given)
            return
        folder = Path(out)
        refuse_used(folder)
        make_private(folder)
        settings = Settings(
            every=given.pop("every", 50),
            view=given.pop("view", "released"),
            seed=given.pop("seed", 0),
            command="",
            about={"training": f"{type(model).__name__} under {trainer}"},
        )
        self._recording = Recording(folder, settings)
        self.monitor = self._recording.attach(model, optimizer, given.pop("loss", None), **given)

    def end_epoch(self) -> None:
        """Scores what has been collected since the last report."""
        with self.monitor.guard.around("scoring the last block", then=self.monitor.close):
            self.monitor.flush()

    def finish(self, how: str = "finished", why: str = "") -> None:
        """Closes the monitor; with a folder also writes the last report and the page. ``how``: finished, interrupted or failed."""
        if self._recording is None:
            self.monitor.close()
            return
        recording, self._recording = self._recording, None
        try:
            recording.finish(how, why)
        finally:
            page.write(recording.folder)


def refuse_used(folder: Path) -> None:
    """Refuses a folder that already holds a monitored training."""
    if training.exists(folder):
        raise BadInput(f"{folder} already holds a monitored training; choose another folder with out=")
