"""The weight update after several local steps: what a client of federated averaging sends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from torch import Tensor

from leakgauge.channels.gradient import gradient
from leakgauge.channels.optimizers import SGD, AdamW, Moments, Optimizer, smooth
from leakgauge.channels.targets import of_samples
from leakgauge.core import Signal, Targets, Victim
from leakgauge.core.examples import example
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked


@example()
@example(steps=3, lr=0.05, minibatch=1, order=(1, 0), optimizer=SGD(momentum=0.9))
@example(steps=3, lr=0.01, minibatch=1, optimizer=AdamW())
@checked
@dataclass(frozen=True)
class FedAvg:
    """Δ = θ_K − θ_0 with θ_{k+1} = θ_k − η·step(∇loss(θ_k; minibatch k)).

    K is ``steps``, η is ``lr``, and the ``optimizer`` makes the step: SGD (the gradient itself by default), Adam or AdamW. The
    client takes its samples in ``order`` (default: as given), cuts them into minibatches of ``minibatch`` samples (default: all
    at once) and cycles through these until K steps are done. The samples are anonymous, so an adversary who replays the default
    order loses nothing as long as the client uses the same order in every epoch.

    Ref: McMahan et al. 2017, Algorithm 1 — the update of federated averaging
    """

    steps: int = 1
    lr: float = 0.1
    minibatch: int | None = None
    order: tuple[int, ...] | None = None
    optimizer: Optimizer = field(default_factory=SGD)

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise BadInput(f"FedAvg needs at least 1 local step, got {self.steps}")
        if not 0 < self.lr < math.inf:  # NaN is refused too
            raise BadInput(f"FedAvg needs a positive learning rate, got {self.lr}")
        if self.minibatch is not None and self.minibatch < 1:
            raise BadInput(f"FedAvg needs a minibatch of at least 1 sample, got {self.minibatch}")
        if self.order is not None and sorted(self.order) != list(range(len(self.order))):
            raise BadInput(f"FedAvg needs an order that lists every sample once, got {self.order}")

    def __call__(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal:
        return self._train(victim, x, y)[0]

    def buffers(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal:
        """Buffers after the last local step."""
        return self._train(victim, x, y)[1]

    def batches(self, samples: int, /) -> list[list[int]]:
        """The samples of each local step, step by step."""
        order = list(range(samples) if self.order is None else self.order)
        if len(order) != samples:
            raise BadInput(f"FedAvg has an order of {len(order)} samples but the client has {samples}; list each once")
        size = self.minibatch or samples
        epoch = [order[i : i + size] for i in range(0, samples, size)]
        return [epoch[k % len(epoch)] for k in range(self.steps)]

    def smooth(self) -> FedAvg:
        """The channel as an attack replays it."""
        return replace(self, optimizer=smooth(self.optimizer))

    def _train(self, victim: Victim, x: Tensor, y: Targets) -> tuple[Signal, Signal]:
        start, buffers = victim.parameters(), victim.buffers()
        at, moments = dict(start), dict[str, Moments]()
        for number, rows in enumerate(self.batches(len(x)), start=1):
            grads = gradient(victim, x[rows], of_samples(y, rows, samples=len(x)), parameters=at, buffers=buffers)
            for name, g in grads.items():
                at[name], moments[name] = self.optimizer(at[name], g, moments.get(name, ()), lr=self.lr, number=number)
        return {name: p - start[name] for name, p in at.items()}, buffers
