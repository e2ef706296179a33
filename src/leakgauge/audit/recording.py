"""Attaches the monitor to a training and passes each of its reports on: to the run's file and to whoever shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leakgauge.audit import monitor_records
from leakgauge.audit.monitor_records import MonitorRun
from leakgauge.audit.run import versions
from leakgauge.monitor import Monitor, View, watch
from leakgauge.monitor.ring import Thinning

Show = Callable[[MonitorRun], None]
"""Is given the run so far, each time that there is more of it."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the user chose. ``every``: optimizer steps between two reports."""

    every: int
    view: View
    seed: int
    command: str
    about: Mapping[str, Any] = field(default_factory=dict)


class Recording:
    """One monitored training. The file holds every report; those who show it get a thinned history of fixed length."""

    def __init__(self, folder: Path, settings: Settings, *, shows: tuple[Show, ...] = ()) -> None:
        self.folder: Path = folder
        self.monitor: Monitor | None = None
        self.text: str = ""
        """The monitor's own summary, at the end."""
        self._settings, self._shows = settings, shows
        self._began = time.monotonic()
        self._run = MonitorRun(about={})
        self._history: Thinning[Mapping[str, Any]] = Thinning()
        self._last: Mapping[str, Any] = {}
        self._trouble: OSError | None = None

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: nn.Module | None) -> Monitor:
        """Watches the training and writes the first line of the file."""
        settings = self._settings
        monitor = watch(
            model, optimizer, loss=loss, every=settings.every, view=settings.view, seed=settings.seed, log=self._log
        )
        about = {
            **settings.about,
            "model": type(model).__name__,
            "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "optimizer": type(optimizer).__name__,
            "loss": None if loss is None else type(loss).__name__,
            "every": settings.every,
            "view": settings.view,
            "seed": settings.seed,
            "alpha": monitor.alpha,
            "choices": monitor.choices,
            "command": settings.command,
            "versions": versions(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self.monitor = monitor
        monitor_records.append(self.folder, "run", about)
        self._run = MonitorRun(about=about)
        self._show()
        return monitor

    def add_paper(self, checkpoint: Mapping[str, Any]) -> None:
        """One checkpoint of the paper's recipe, which is measured beside the training."""
        monitor_records.append(self.folder, "paper", checkpoint)
        self._run = MonitorRun(self._run.about, self._run.reports, (*self._run.paper, checkpoint))
        self._show()

    def finish(self, how: str, why: str = "") -> None:
        """Ends the run with a last report. ``how``: finished, interrupted, failed or refused."""
        if self.monitor is None:
            return
        self.monitor.flush()
        last = self.monitor.compute().record()
        if last != self._last and last["step"]:
            self._take(last)
        self.text = self.monitor.report()
        self.monitor.close()
        end = {"how": how, "why": why, "step": self.monitor.step, "seconds": round(time.monotonic() - self._began, 2)}
        if self._trouble is not None:
            raise self._trouble
        monitor_records.append(self.folder, "end", end)
        self._run = MonitorRun(self._run.about, self._run.reports, self._run.paper, end)
        self._show()

    def _log(self, scalars: dict[str, float], step: int) -> None:
        if self.monitor is not None:  # the newest record is the one these scalars belong to
            *_, newest = self.monitor.records()
            self._take(newest)

    def _take(self, report: Mapping[str, Any]) -> None:
        self._last = report
        self._history.append(report)
        if self._trouble is None:
            try:
                monitor_records.append(self.folder, "report", report)
            except OSError as trouble:  # a full disk must not end the training; it is told at the end
                self._trouble = trouble
        self._run = MonitorRun(self._run.about, tuple(self._history), self._run.paper)
        self._show()

    def _show(self) -> None:
        for show in self._shows:
            show(self._run)
