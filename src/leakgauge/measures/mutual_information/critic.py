"""The small network that scores pairs, and the fitting code that all neural estimators share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.errors import BadInput
from leakgauge.measures.mutual_information.estimate import (
    Bound,
    Estimate,
    Pairs,
    check_pairs,
    normal_interval,
    split_pairs,
)
from leakgauge.measures.mutual_information.scale import tame_tails

ROWS = 4096
"""Most pairs of the product distribution scored at once; this bounds the memory."""


@dataclass(frozen=True)
class CriticFit:
    """How to fit a critic: Adam on minibatches, stopped when the validation pairs no longer improve.

    ``shifts`` is the number of mismatched partners per pair when a value is computed.
    """

    hidden: tuple[int, ...] = (64, 32)
    steps: int = 500
    batch: int = 64
    lr: float = 5e-3
    weight_decay: float = 1e-2
    every: int = 20
    patience: int = 10
    shifts: int = 63

    def __post_init__(self) -> None:
        if min(*self.hidden, self.steps, self.every, self.patience, self.shifts) < 1 or self.batch < 2 or self.lr <= 0:
            raise BadInput(f"training needs positive sizes and steps, a batch of two or more and a positive lr: {self}")


class Scorer(nn.Module):
    """A multilayer perceptron on pairs, T(a, b) = tail(A a + B b). The last layer starts at zero, so T = 0 at first.

    Both sides meet in the first layer, so scoring every row of a batch with every other only costs the tail.
    """

    def __init__(self, p: int, q: int, *, hidden: tuple[int, ...], out: int = 1, rng: torch.Generator) -> None:
        super().__init__()
        sizes = (p + q, *hidden, out)
        self.split = p
        self.weights = nn.ParameterList(_uniform(sizes[i + 1], sizes[i], rng) for i in range(len(sizes) - 1))
        self.biases = nn.ParameterList(torch.zeros(size) for size in sizes[1:])
        nn.init.zeros_(self.weights[-1])

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        left, right = self.weights[0][:, : self.split], self.weights[0][:, self.split :]
        x = F.linear(a, left, self.biases[0]) + F.linear(b, right)
        for weight, bias in zip(self.weights[1:], self.biases[1:], strict=True):
            x = F.linear(F.elu(x), weight, bias)
        return x


def _uniform(rows: int, columns: int, rng: torch.Generator) -> Tensor:
    bound = math.sqrt(3 / columns)  # unit gain
    return torch.empty(rows, columns).uniform_(-bound, bound, generator=rng)


@dataclass(frozen=True)
class Scores:
    """Critic values: ``joint`` (n,) for true pairs and ``product`` (n, s) for the first side of pair i with shifted second sides.

    Column k of ``product`` pairs row i with row i + ``shifts[k]`` (mod n): no row is paired with its own partner.
    """

    joint: Tensor
    product: Tensor
    shifts: Tensor

    def by_row(self, values: Tensor) -> Tensor:
        """For each first side, the mean over partners of ``values`` (shaped like ``product``)."""
        return values.mean(1)

    def by_column(self, values: Tensor) -> Tensor:
        """The same for each second side."""
        n = len(values)
        partner = (torch.arange(n)[:, None] + self.shifts) % n
        total = torch.zeros(n, dtype=values.dtype).index_add_(0, partner.flatten(), values.flatten())
        return total / values.shape[1]


def scores(critic: nn.Module, pairs: Pairs, *, shifts: int) -> Scores:
    """``critic`` on all true pairs and on ``shifts`` mismatched partners of each (fewer if there are fewer)."""
    n = len(pairs)
    count = min(shifts, n - 1)
    offsets = 1 + (torch.arange(count) * (n - 1)) // count  # spread evenly over 1 … n - 1
    joint = critic(pairs.a, pairs.b)[:, 0]
    step = max(1, ROWS // count)
    rows = [torch.arange(i, min(i + step, n)) for i in range(0, n, step)]
    parts = [critic(pairs.a[r][:, None], pairs.b[(r[:, None] + offsets) % n])[..., 0] for r in rows]
    return Scores(joint, torch.cat(parts), offsets)


Gain = Callable[[Scores], Tensor]
"""What fitting maximises: a differentiable scalar."""


def fit(
    module: nn.Module,
    gain: Callable[[nn.Module, Pairs], Tensor],
    check: Callable[[nn.Module, Pairs], Tensor],
    *,
    train: Pairs,
    valid: Pairs,
    training: CriticFit,
    rng: torch.Generator,
) -> None:
    """Maximises ``gain`` on minibatches of ``train`` and keeps the weights with the highest ``check`` on ``valid``."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=training.lr, weight_decay=training.weight_decay)
    best, kept, waited = -math.inf, _copy(module), 0
    batch = min(training.batch, len(train))
    for step in range(training.steps + 1):
        if step % training.every == 0:
            with torch.no_grad():
                value = float(check(module, valid))
            waited += 1
            if value > best:  # false for NaN
                best, kept, waited = value, _copy(module), 0
            if waited >= training.patience or step == training.steps:
                break
        rows = torch.randperm(len(train), generator=rng)[:batch]
        optimizer.zero_grad()
        (-gain(module, train[rows])).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
    module.load_state_dict(kept)


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


@dataclass(frozen=True)
class Reading:
    """A value from critic scores and the contribution of each pair (see :func:`normal_interval`)."""

    value: Tensor
    influences: Tensor


def estimate_with_critic(
    a: Tensor,
    b: Tensor,
    *,
    gain: Gain,
    read: Callable[[Scores], Reading],
    check: Gain | None = None,
    training: CriticFit,
    bound: Bound,
    seed: int,
    ceiling: float = math.inf,
) -> Estimate:
    """Fits a critic by ``gain`` and takes ``read`` of held-out and of training pairs. All critic estimators use this.

    ``check`` decides when to stop; the default is the value of ``read``, the reported bound.
    """
    rng = torch.Generator().manual_seed(seed)
    train, valid, held = (part.to(torch.float32) for part in tame_tails(*split_pairs(check_pairs(a, b), seed)))
    critic = Scorer(train.a.shape[1], train.b.shape[1], hidden=training.hidden, rng=rng)
    stop = check or (lambda found: read(found).value)
    fit(
        critic,
        lambda module, pairs: gain(scores(module, pairs, shifts=len(pairs) - 1)),
        lambda module, pairs: stop(scores(module, pairs, shifts=training.shifts)),
        train=train,
        valid=valid,
        training=training,
        rng=rng,
    )
    with torch.no_grad():
        critic = critic.double()
        outside, inside = (
            read(scores(critic, part.to(torch.float64), shifts=training.shifts)) for part in (held, train)
        )
    low, high = normal_interval(float(outside.value), outside.influences)
    return Estimate(float(outside.value), low, high, float(inside.value), len(held), bound, ceiling)
