"""The weight update after several local epochs, each in a random order that only the client knows."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakgauge.channels.fedavg import FedAvg
from leakgauge.channels.optimizers import SGD, Optimizer, smooth
from leakgauge.channels.targets import of_samples
from leakgauge.core import Signal, Targets, Victim
from leakgauge.core.examples import example
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked


@example(epochs=2, lr=0.05, minibatch=1, seed=3)
@checked
@dataclass(frozen=True)
class ShuffledFedAvg:
    """``epochs`` passes over the client's samples in minibatches of ``minibatch``, in a new order each time.

    The orders come from ``seed``, which only the client knows: an observation holds the channel with seed None, where every
    epoch uses the given order. The number of samples must be a multiple of ``minibatch``.

    Ref: McMahan et al. 2017, Algorithm 1 — ClientUpdate with E epochs and batches of size B
    """

    epochs: int = 1
    lr: float = 0.1
    minibatch: int | None = None
    optimizer: Optimizer = field(default_factory=SGD)
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise BadInput(f"ShuffledFedAvg needs at least 1 epoch, got {self.epochs}")
        FedAvg(lr=self.lr, minibatch=self.minibatch, optimizer=self.optimizer)  # checks these options

    def __call__(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal:
        rows = self._rows(len(x)).to(x.device)
        return self.unroll(len(x))(victim, x[rows], of_samples(y, rows, samples=len(x)))

    def buffers(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal:
        """Buffers after the last local step."""
        rows = self._rows(len(x)).to(x.device)
        return self.unroll(len(x)).buffers(victim, x[rows], of_samples(y, rows, samples=len(x)))

    def public(self) -> ShuffledFedAvg:
        """The channel as the server knows it: without the orders."""
        return replace(self, seed=None)

    def reseed(self, number: int, /) -> ShuffledFedAvg:
        """The same with its own orders."""
        return self if self.seed is None else replace(self, seed=self.seed + number)

    def smooth(self) -> ShuffledFedAvg:
        """The channel as an attack replays it."""
        return replace(self, optimizer=smooth(self.optimizer))

    def batches(self, samples: int, /) -> list[list[int]]:
        """The samples of each local step, step by step."""
        rows = self._rows(samples).tolist()
        return [[rows[place] for place in step] for step in self.unroll(samples).batches(len(rows))]

    def batch_sizes(self) -> range:
        """Multiples of the minibatch."""
        size = self.minibatch or 1
        return range(size, sys.maxsize, size)

    def unroll(self, samples: int) -> FedAvg:
        """The same training as one pass over epochs · samples samples."""
        size = min(self.minibatch or samples, samples)
        if samples % size:
            raise BadInput(f"ShuffledFedAvg needs a multiple of {size} samples (its minibatch), got {samples}")
        return FedAvg(steps=self.epochs * samples // size, lr=self.lr, minibatch=size, optimizer=self.optimizer)

    def _rows(self, samples: int) -> Tensor:
        if self.seed is None:
            return torch.arange(samples).repeat(self.epochs)
        rng = torch.Generator().manual_seed(self.seed)
        return torch.cat([torch.randperm(samples, generator=rng) for _ in range(self.epochs)])
