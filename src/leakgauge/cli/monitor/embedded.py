"""The training that ``leakgauge monitor`` runs by itself: a small convolutional network on embedded images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakgauge.audit.recording import Recording
from leakgauge.core import Signal
from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.models.lenet import LeNet
from leakgauge.monitor import SignBucket
from leakgauge.monitor.paper import Schedule, paper_mode
from leakgauge.monitor.token_critic import Gap

BATCH = 20
RATE = 9e-4
"""Batch size and Adam's learning rate of the privacy-token paper."""
STEPS = 1500
PAPER = Schedule(sub_epochs=10, checkpoints=(0, 1, 2, 4, 6, 8, 10), evaluation=20)


def train(recording: Recording, *, steps: int, seed: int) -> None:
    """Trains LeNet from its initialisation for ``steps`` of Adam on 3000 images of Fashion-MNIST."""
    x, labels = _data()
    model, criterion = _model(seed), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    monitor = recording.attach(model, optimizer, criterion)
    order = torch.Generator().manual_seed(seed)
    done = 0
    while done < steps:
        for index in torch.randperm(len(x), generator=order).split(BATCH)[: steps - done]:
            optimizer.zero_grad()
            criterion(model(x[index]), labels[index]).backward()
            optimizer.step()
            done += 1
        monitor.flush()


def read_paper(recording: Recording, *, seed: int, schedule: Schedule = PAPER) -> None:
    """The privacy-token paper's recipe, to the letter but for sketched gradients, on the same network and images."""
    model = _model(seed)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if name.startswith("body.")}
    plan = SignBucket(total=384, layers=3).plan(shapes, device=torch.device("cpu"), seed=seed)

    def sketch(signal: Signal) -> Tensor:
        return plan({name: signal[name] for name in shapes})

    found = paper_mode(
        model, nn.CrossEntropyLoss(), _data(), feature_layer="body.5", gradient_layers=("body.0", "body.2", "body.4"),
        schedule=schedule, sketch=sketch, seed=seed,
    )  # fmt: skip
    for checkpoint in found.checkpoints:
        recording.add_paper(
            {
                "sub_epoch": checkpoint.sub_epoch,
                "accuracy": checkpoint.accuracy,
                "reading": found.reading,
                "paper": checkpoint.paper.gap,
                "collected": _gap(checkpoint.collected),
                "decoy": _gap(checkpoint.controls.decoy),
                "null": _gap(checkpoint.controls.null),
                "held_out": checkpoint.controls.held_out.gap,
            }
        )


def _gap(found: Gap | None) -> float | None:
    return None if found is None else found.gap


def _data() -> tuple[Tensor, Tensor]:
    images, labels = fashion()
    return (images - MEAN[0]) / STD[0], labels


def _model(seed: int) -> nn.Module:
    return LeNet(in_channels=1, side=28, seed=seed)
