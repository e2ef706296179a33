"""How leakage moves while a model learns: a training under the monitor, and the file that it writes while it runs.

``monitor.jsonl`` is plain JSON lines, so a broken run keeps what was seen. The first line (``"kind": "run"``) says what was watched, the
following ones (``"report"``) are the monitor's reports, one per look, ``"paper"`` is a checkpoint of the privacy-token paper's recipe, and
the last one (``"end"``) says how it ended.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Required, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakgauge.audit import evidence
from leakgauge.audit.case import Case
from leakgauge.audit.files import JsonLines, finite, safe_command
from leakgauge.audit.migrate import migrated_run
from leakgauge.audit.run import versions
from leakgauge.audit.session import Setup, check_fits
from leakgauge.audit.timing import Cost
from leakgauge.audit.typed import Misfit, typed
from leakgauge.core import Loss
from leakgauge.core.randomness import private_randomness
from leakgauge.errors import BadInput, CannotWrite
from leakgauge.monitor import Monitor, MonitorWarning, View, watch
from leakgauge.monitor.monitor import Log, ScalarWriter, as_log
from leakgauge.monitor.ring import Thinning

FILE = "monitor.jsonl"
FORMAT = 3
"""Of the file, written into its first line; files of 0.1 have none."""


@dataclass(frozen=True)
class MonitorRun:
    """A monitored training as far as it was recorded. ``end`` is empty while it runs, or where it was killed."""

    about: Mapping[str, Any]
    reports: tuple[Mapping[str, Any], ...] = ()
    paper: tuple[Mapping[str, Any], ...] = ()
    end: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """One line of the file."""

    kind: str
    content: Mapping[str, Any]


class _About(TypedDict, total=False):
    training: str
    model: str
    parameters: int
    optimizer: str
    loss: str | None
    every: int
    batch: int
    steps: int
    view: str
    seed: int
    alpha: float
    choices: int
    command: str
    versions: Mapping[str, str]
    audited: bool


class _Report(TypedDict, total=False):
    step: Required[int]
    scalars: Required[Mapping[str, float | None]]
    view: str
    choices: int
    alpha: float
    alarm_at: int | None
    layers: Mapping[str, float | None] | None
    notes: Sequence[str]
    skipped: Mapping[str, int] | None


class _Checkpoint(TypedDict, total=False):
    sub_epoch: Required[int]
    collected: float | None
    decoy: float | None
    null: float | None
    held_out: float | None


class _End(TypedDict, total=False):
    how: str
    why: str
    step: int
    seconds: float | None


MOST_WAITING = 10_000
"""Lines that are kept while the disk is full; then the oldest are lost."""
KINDS: Mapping[str, Any] = {"run": _About, "report": _Report, "paper": _Checkpoint, "end": _End}
"""What a line of each kind holds at least; other fields are kept as they are."""


def _decode(found: Any) -> Line:
    fields = dict(typed(Mapping[str, Any], found))
    kind = typed(str, fields.pop("kind", None), "kind")
    if kind not in KINDS:
        raise Misfit(f"kind is {kind!r}, but it should be one of {', '.join(KINDS)}")
    content = typed(KINDS[kind], migrated_run(fields) if kind == "run" else fields)
    return Line(kind, {**content, "command": safe_command(content["command"])} if content.get("command") else content)


STORE = JsonLines(
    FILE,
    encode=lambda line: {"kind": line.kind, **finite(line.content)},
    decode=_decode,
    missing="{folder} holds no monitored training: it has no {file}; make one with `leakgauge monitor`",
)
exists = STORE.exists


def append(folder: Path, kind: str, line: Mapping[str, Any]) -> None:
    """Adds one line, whole or not at all. What is not a number is written as null: it was not measured."""
    STORE.append(folder, Line(kind, line))


def read(folder: Path) -> MonitorRun:
    """All whole lines of the run. Of two reports at one step the later one counts."""
    found: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in KINDS}
    for line in STORE.read(folder):
        found[line.kind].append(line.content)
    reports = {report["step"]: report for report in found["report"]}
    return MonitorRun(
        about=found["run"][-1] if found["run"] else {},
        reports=tuple(reports.values()),
        paper=tuple(found["paper"]),
        end=found["end"][-1] if found["end"] else {},
    )


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
        self.folder: Path = folder.absolute()  # the training may change the working directory
        self.monitor: Monitor | None = None
        self.text: str = ""
        """The monitor's own summary, at the end."""
        self._settings, self._shows = settings, shows
        self._began = time.monotonic()
        self._run = MonitorRun(about={})
        self._history: Thinning[Mapping[str, Any]] = Thinning()
        self._last: Mapping[str, Any] = {}
        self._waiting: deque[Line] = deque(maxlen=MOST_WAITING)
        self._also: Log | None = None

    def attach(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss | nn.Module | None,
        *,
        log: Log | ScalarWriter | None = None,
        **options: Any,
    ) -> Monitor:
        """Watches the training and writes the first line of the file; ``log`` and ``options`` are further ones of :func:`watch`."""
        settings = self._settings
        self._also = as_log(log)
        monitor = watch(
            model,
            optimizer,
            loss=loss,
            every=settings.every,
            view=settings.view,
            seed=settings.seed,
            log=self._log,
            **options,
        )
        about = {
            **settings.about,
            "model": type(model).__name__,
            "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "optimizer": type(optimizer).__name__,
            "loss": None if loss is None else getattr(loss, "__name__", type(loss).__name__),
            "every": settings.every,
            "view": settings.view,
            "seed": settings.seed,
            "alpha": monitor.alpha,
            "choices": monitor.choices,
            "command": settings.command,
            "model_hash": evidence.hash_model(model),
            "settings_hash": evidence.hash_settings(asdict(settings)),
            "format": FORMAT,
            "versions": versions(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self.monitor = monitor
        self._write("run", about)
        self._run = MonitorRun(about=about)
        self._show()
        return monitor

    def add_paper(self, checkpoint: Mapping[str, Any]) -> None:
        """One checkpoint of the paper's recipe, which is measured beside the training."""
        self._write("paper", checkpoint)
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
        self._run = MonitorRun(self._run.about, self._run.reports, self._run.paper, end)
        self._show()
        self._waiting.append(Line("end", end))
        self._write_waiting()

    def _log(self, scalars: dict[str, float], step: int) -> None:
        if self.monitor is not None:  # the newest record is the one these scalars belong to
            *_, newest = self.monitor.records()
            self._take(newest)
        if self._also is not None:
            self._also(scalars, step)

    def _take(self, report: Mapping[str, Any]) -> None:
        self._last = report
        self._history.append(report)
        self._write("report", report)
        self._run = MonitorRun(self._run.about, tuple(self._history), self._run.paper)
        self._show()

    def _write(self, kind: str, line: Mapping[str, Any]) -> None:
        """Writes the line after those that could not be written before. A full disk must not end the training: they wait."""
        self._waiting.append(Line(kind, line))
        with contextlib.suppress(CannotWrite):  # tried again with the next line, and raised at the end
            self._write_waiting()

    def _write_waiting(self) -> None:
        while self._waiting:
            STORE.append(self.folder, self._waiting[0])
            self._waiting.popleft()

    def _show(self) -> None:
        for show in self._shows:
            show(self._run)


BATCH = 20
RATE = 9e-4
"""Batch size and Adam's learning rate of the privacy-token paper."""
BATCHES = 16
"""Batches in an epoch at least: the monitor picks the true one out of so many."""
SMALLEST_BATCH = 2
REPORTS = 12
"""Looks at the training, spread evenly over its steps."""
FEWEST_STEPS, MOST_STEPS = 60, 3000
TRIAL_STEPS, TRIAL_EVERY, TRIAL_SECONDS, TRIAL_PATIENCE = 24, 4, 2.0, 8.0
"""Of the trial that measures what a step takes. After so many seconds it ends with its second look, for the first one also warms up;
where even the first look took all patience, with that one."""
SLOW_ATTENTION = "There is a performance drop because we have not yet implemented the batching rule"
"""What torch warns of where the white-box probe takes gradients sample by sample through attention."""

OnStep = Callable[[int, int], None]
"""Called with the steps done and the steps in all."""


@dataclass(frozen=True)
class TrainingPlan:
    """Plain data: which case's model and data are trained, for how long, and how often the monitor looks."""

    case: Case
    steps: int
    every: int
    batch: int
    command: str


def plan_training(setup: Setup, case: Case, *, steps: int, command: str = "") -> TrainingPlan:
    """What the training will do; refuses data that are too few to tell batches apart."""
    check_fits(setup)
    fewest = BATCHES * SMALLEST_BATCH
    if len(setup.images) < fewest:
        raise BadInput(
            f"a monitored training needs at least {fewest} images, so batches can be distinguished; "
            f"the data holds {len(setup.images)}; give more with --data"
        )
    batch = min(BATCH, len(setup.images) // BATCHES)
    return TrainingPlan(case, steps, max(1, steps // REPORTS), batch, command)


def trained(folder: Path) -> bool:
    """Whether a monitored training has come to its end there."""
    return exists(folder) and read(folder).end.get("how") == "finished"


def train(setup: Setup, plan: TrainingPlan, folder: Path, *, seed: int, on_step: OnStep | None = None) -> None:
    """Trains a copy of the victim in train mode with a fresh Adam, and writes what the monitor sees into ``monitor.jsonl``.

    What an earlier, unfinished training left there is dropped: it starts again, and so gives the same numbers.
    """
    (folder / FILE).unlink(missing_ok=True)
    settings = Settings(
        every=plan.every,
        view="released",
        seed=seed,
        command=plan.command,
        about={
            "training": f"Training of {setup.victim.name}",
            "batch": plan.batch,
            "steps": plan.steps,
            "audited": True,
            "data": asdict(setup.facts),
        },
    )
    recording = Recording(folder, settings)
    with private_randomness(seed, setup.victim.device), warnings.catch_warnings():
        warnings.simplefilter("ignore", MonitorWarning)  # what they say is among the notes of every report
        warnings.filterwarnings("ignore", message=SLOW_ATTENTION)
        _loop(setup, plan, recording, seed=seed, on_step=on_step)
    recording.finish("finished")


def trial_cost(setup: Setup, plan: TrainingPlan, folder: Path, *, seed: int) -> Cost:
    """What such a training costs with its looks, from a few of its steps in an empty ``folder``.

    A look probes every sample of a batch, and there are as many of them however long the training is.
    """
    times: list[float] = []

    def on_step(done: int, total: int) -> None:
        if setup.victim.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter())
        looked, took = (done - 1) // TRIAL_EVERY, times[-1] - began
        if (looked >= 2 and took > TRIAL_SECONDS) or (looked >= 1 and took > TRIAL_PATIENCE):
            raise _Enough

    began = time.perf_counter()
    trial = TrainingPlan(plan.case, TRIAL_STEPS, TRIAL_EVERY, plan.batch, "")
    with contextlib.suppress(_Enough):
        train(setup, trial, folder, seed=seed, on_step=on_step)
    spent = [after - before for before, after in itertools.pairwise(times)]
    looks = [s for i, s in enumerate(spent, start=2) if i % TRIAL_EVERY == 0]
    steps = [s for i, s in enumerate(spent, start=2) if i % TRIAL_EVERY != 0]
    step = sum(steps) / len(steps)
    look = max(0.0, min(looks) - step)  # the first look warms up
    return Cost(times[0] - began + REPORTS * look, step)


class _Enough(Exception):
    """Ends a trial."""


def _loop(setup: Setup, plan: TrainingPlan, recording: Recording, *, seed: int, on_step: OnStep | None) -> None:
    model, criterion = copy.deepcopy(setup.victim.model).train(), _module(setup.victim.loss)
    images, labels, victim = setup.images, setup.labels.to(setup.victim.device), setup.victim

    def batch(rows: Tensor) -> tuple[Tensor, Tensor]:
        return victim.to_input(victim.space.encode(images[rows])), labels[rows]

    sizes = {"samples": len(images), "size": plan.batch, "steps": plan.steps}
    train_watched(model, criterion, batch, recording, **sizes, seed=seed, on_step=on_step)


def train_watched(
    model: nn.Module,
    criterion: nn.Module,
    batch: Callable[[Tensor], tuple[Tensor, Tensor]],
    recording: Recording,
    *,
    samples: int,
    size: int = BATCH,
    steps: int,
    seed: int,
    on_step: OnStep | None = None,
) -> None:
    """Trains ``model`` with a fresh Adam while ``recording`` watches; ``batch`` gives the samples with these numbers and their labels.

    Batches are of one ``size``, in another order in each epoch: a short last one would give itself away.
    """
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=RATE)
    monitor: Monitor = recording.attach(model, optimizer, criterion)
    order, done = torch.Generator().manual_seed(seed), 0
    while done < steps:
        for rows in torch.randperm(samples, generator=order).split(size)[: samples // size][: steps - done]:
            x, y = batch(rows)
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
            done += 1
            if on_step is not None:
                on_step(done, steps)
        monitor.flush()


def _module(loss: Loss) -> nn.Module:
    """The loss as a module, which the monitor can hook to see labels."""
    if isinstance(loss, nn.Module):
        return loss
    return nn.CrossEntropyLoss() if loss is F.cross_entropy else VictimLoss(loss)


class VictimLoss(nn.Module):
    """A loss that is a plain function."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self._loss = loss

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return self._loss(output, target)
