"""The mean of several clients' updates, which is all the server sees under secure aggregation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakgauge.channels.facts import is_gradient, public, reseed, smooth
from leakgauge.channels.fedavg import FedAvg
from leakgauge.channels.gradient import Gradient
from leakgauge.channels.targets import of_samples
from leakgauge.core import Adaptable, Channel, Mode, PerSample, SharesBuffers, Signal, Targets, Victim
from leakgauge.core.examples import example
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked


@example(clients=2, of=FedAvg(steps=2))
@checked
@dataclass(frozen=True)
class Aggregate:
    """Σ_k n_k/n · u_k, with u_k the update (channel ``of``) of client k on its n_k of the n samples.

    The samples are dealt to ``clients`` clients in turn, as evenly as possible. The adversary knows how many samples each client
    holds. It does not know which client holds which sample, nor what a single client sent. In eval mode the aggregate of
    gradients is the gradient of one large batch; in train mode each client has its own batch statistics.

    Clients in ``dropped`` drop out before their update is added: n counts the samples of the others. The server knows who answered. If it
    gets two sums of one round, with and without a client that was only late, their difference is that client's update
    (:func:`~leakgauge.measures.participation.unmix`), which is why protocols mask twice.

    Ref: Bonawitz et al. 2017, section 1 — the server learns the sum of the updates alone
    Ref: McMahan et al. 2017, Algorithm 1 — weights n_k/n
    """

    clients: int = 2
    of: Channel = field(default_factory=Gradient)
    dropped: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise BadInput(f"Aggregate needs at least 1 client, got {self.clients}")
        if not all(0 <= k < self.clients for k in self.dropped) or len(set(self.dropped)) == self.clients:
            raise BadInput(
                f"Aggregate can lose some of its clients 0 to {self.clients - 1}, but not all, got dropped={self.dropped}"
            )
        if isinstance(self.of, PerSample):
            raise BadInput(
                f"Aggregate adds updates, but {self.of!r} sends one message per sample; use an update channel"
            )
        if isinstance(self.of, Adaptable):
            raise BadInput(
                f"Aggregate adds updates that the adversary can replay, but {self.of!r} protects by what it does not know; use that "
                "channel without Aggregate"
            )

    def __call__(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal:
        return self._mean(x, y, lambda client, x, y: client(victim, x, y))

    def buffers(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal:
        """The clients' buffers after their work, averaged like the updates; counters are those of the first client."""

        def after(client: Channel, x: Tensor, y: Targets) -> Signal:
            if not isinstance(client, SharesBuffers):
                raise BadInput(f"{client!r} has no buffers to reveal; drop Buffers() from reveal")
            return client.buffers(victim, x, y)

        return self._mean(x, y, after)

    def public(self) -> Aggregate:
        """The channel as the server knows it."""
        return replace(self, of=public(self.of))

    def reseed(self, number: int, /) -> Aggregate:
        """The same with its own random draws, also inside nested aggregates."""
        return replace(self, of=reseed(self.of, self.clients * number))

    def smooth(self) -> Aggregate:
        """The channel as an attack replays it."""
        return replace(self, of=smooth(self.of))

    def is_gradient(self, mode: Mode, /) -> bool:
        """In eval mode, where no sample changes the gradient of another, or with a single client."""
        return is_gradient(self.of, mode) and not self.dropped and (mode == "eval" or self.clients == 1)

    def batch_sizes(self) -> range:
        """At least one sample for each client."""
        return range(self.clients, sys.maxsize)

    def _mean(self, x: Tensor, y: Targets, sent: Callable[[Channel, Tensor, Targets], Signal]) -> dict[str, Tensor]:
        if len(x) < self.clients:
            raise BadInput(
                f"Aggregate needs a sample for each of its {self.clients} clients, got {len(x)}; enlarge the batch"
            )
        mean: dict[str, Tensor] = {}
        held = {k: torch.arange(k, len(x), self.clients, device=x.device) for k in range(self.clients)}
        present = {k: rows for k, rows in held.items() if k not in self.dropped}
        total = sum(map(len, present.values()))
        for k, rows in present.items():
            mine = of_samples(y, rows, samples=len(x))
            for name, value in sent(reseed(self.of, k), x[rows], mine).items():
                if not value.is_floating_point():
                    mean.setdefault(name, value)
                    continue
                part = len(rows) / total * value
                mean[name] = mean[name] + part if name in mean else part
        return mean
