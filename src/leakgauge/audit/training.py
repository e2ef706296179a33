"""A short training of any victim on its own data under the monitor: how leakage moves while a model learns."""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakgauge.audit import monitor_records
from leakgauge.audit.case import Case
from leakgauge.audit.recording import Recording, Settings
from leakgauge.audit.session import Setup, check_fits
from leakgauge.audit.timing import Cost
from leakgauge.core import Loss
from leakgauge.core.randomness import private_randomness
from leakgauge.errors import BadInput
from leakgauge.monitor import Monitor, MonitorWarning

BATCH = 20
RATE = 9e-4
"""Batch size and Adam's learning rate of the privacy-token paper."""
BATCHES = 16
"""Batches in an epoch at least: the monitor tells the true one from so many."""
SMALLEST_BATCH = 2
REPORTS = 12
"""Looks at the training, spread evenly over its steps."""
FEWEST_STEPS, MOST_STEPS = 60, 3000
TRIAL_STEPS, TRIAL_EVERY, TRIAL_SECONDS, TRIAL_PATIENCE = 24, 4, 2.0, 8.0
"""Of the trial that tells what a step takes. After so many seconds it ends with its second look, for the first one also warms up;
where even the first look took all patience, with that one."""
SLOW_ATTENTION = "There is a performance drop because we have not yet implemented the batching rule"
"""What torch warns of where the white-box probe takes gradients sample by sample through attention."""

OnStep = Callable[[int, int], None]
"""Is told the steps done and the steps in all."""


@dataclass(frozen=True)
class TrainingPlan:
    """Plain data: which case's model and data are trained, for how long, and how often the monitor looks."""

    case: dict[str, object]
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
            f"a monitored training needs at least {fewest} images, so that batches can be told apart; "
            f"the data holds {len(setup.images)}; give more with --data"
        )
    batch = min(BATCH, len(setup.images) // BATCHES)
    return TrainingPlan(asdict(case), steps, max(1, steps // REPORTS), batch, command)


def trained(folder: Path) -> bool:
    """Whether a monitored training has come to its end there."""
    return monitor_records.exists(folder) and monitor_records.read(folder).end.get("how") == "finished"


def train(setup: Setup, plan: TrainingPlan, folder: Path, *, seed: int, on_step: OnStep | None = None) -> None:
    """Trains a copy of the victim in train mode with a fresh Adam, and writes what the monitor sees into ``monitor.jsonl``.

    What an earlier, unfinished training left there is dropped: it starts anew, and so gives the same numbers.
    """
    (folder / monitor_records.FILE).unlink(missing_ok=True)
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
        },
    )
    recording = Recording(folder, settings)
    with private_randomness(seed, setup.victim.device), warnings.catch_warnings():
        warnings.simplefilter("ignore", MonitorWarning)  # what they say stands among the notes of every report
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
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=RATE)
    monitor: Monitor = recording.attach(model, optimizer, criterion)
    images, labels = setup.images, setup.labels.to(setup.victim.device)
    order = torch.Generator().manual_seed(seed)
    done = 0
    while done < plan.steps:
        whole = len(images) // plan.batch  # a short last batch would give itself away by its size
        for index in torch.randperm(len(images), generator=order).split(plan.batch)[:whole][: plan.steps - done]:
            x = setup.victim.to_input(setup.victim.space.encode(images[index]))
            optimizer.zero_grad()
            criterion(model(x), labels[index]).backward()
            optimizer.step()
            done += 1
            if on_step is not None:
                on_step(done, plan.steps)
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
