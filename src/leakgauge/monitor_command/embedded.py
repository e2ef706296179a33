"""The training that ``leakgauge monitor`` runs by itself: a small convolutional network on embedded images."""

from __future__ import annotations

import torch
from torch import nn

from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.models.lenet import LeNet
from leakgauge.monitor_command.recording import Recording

BATCH = 20
RATE = 9e-4
"""Batch size and Adam's learning rate of the privacy-token paper."""
STEPS = 1500


def train(recording: Recording, *, steps: int, seed: int) -> None:
    """Trains LeNet from its initialisation for ``steps`` of Adam on 3000 images of Fashion-MNIST."""
    images, labels = fashion()
    x = (images - MEAN[0]) / STD[0]
    model, criterion = LeNet(in_channels=1, side=28, seed=seed), nn.CrossEntropyLoss()
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
