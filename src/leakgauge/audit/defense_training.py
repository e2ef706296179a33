"""What a defense costs: the same short training with and without it, on the same batches, judged on held-out images."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.audit.session import Setup
from leakgauge.channels import DPSGD, Gradient
from leakgauge.channels.dpsgd import require_separate_samples
from leakgauge.channels.gradient import each_gradient, gradient
from leakgauge.core import Defense, Victim, apply_defenses
from leakgauge.core.randomness import private_randomness
from leakgauge.errors import Inapplicable
from leakgauge.measures.binomial import clopper_pearson
from leakgauge.measures.bootstrap import mean_interval
from leakgauge.measures.rdp import spent_epsilon

ENOUGH = 200
"""Images that the data must hold; with fewer a difference in accuracy would be chance."""
MOST_HELD_OUT = 500
LEARNING_RATE = 1e-3
PIXELS = 1 << 21
"""Numbers that the samples run together may hold."""
START = "weights drawn anew"
DELTA = 1e-5
"""For which an ε is stated."""
OPTIMIZER = f"Adam, learning rate {LEARNING_RATE:g}"


@dataclass(frozen=True, kw_only=True)
class Training:
    """``steps`` steps with ``batch`` images each; ``seed`` draws the fresh weights, the split and the batches."""

    steps: int
    batch: int
    seed: int


def fresh(model: nn.Module, *, seed: int, device: torch.device) -> nn.Module:
    """A copy of the model as before any training, so that a defense under which nothing is learned cannot look free.

    Layers with a ``reset_parameters`` are drawn anew by it; other trainable tensors (a position embedding) keep their own
    values in shuffled order, which keeps their scale and nothing that was learned. What is frozen stays as it is.
    """
    made = copy.deepcopy(model)
    done: set[int] = set()
    with private_randomness(seed, device), torch.no_grad():
        for module in made.modules():
            own = list(module.parameters(recurse=False))
            reset = getattr(module, "reset_parameters", None)
            if own and callable(reset) and all(p.requires_grad for p in own):
                reset()
                done |= {id(p) for p in own}
        for parameter in made.parameters():
            if parameter.requires_grad and id(parameter) not in done:
                flat = parameter.flatten()
                parameter.copy_(flat[torch.randperm(len(flat)).to(flat.device)].view_as(parameter))
    return made


@dataclass(frozen=True, eq=False)
class Trained:
    """A model after its training: what to run it with."""

    model: nn.Module
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]


def classified(setup: Setup, defenses: Sequence[Defense], how: Training, private: DPSGD | None = None) -> Tensor:
    """Trains from fresh weights, each gradient through the defenses, and says which held-out images come out right."""
    return judged(setup, trained(setup, defenses, how, private), held_out(setup, how.seed)[1])


def trained(setup: Setup, defenses: Sequence[Defense], how: Training, private: DPSGD | None = None) -> Trained:
    """The model after ``how.steps`` steps in train mode, with ``private`` steps if given. What is not sent is not updated."""
    train, _ = held_out(setup, how.seed)
    model = fresh(setup.victim.model, seed=how.seed, device=setup.victim.device)
    victim = Victim(model, setup.victim.space, setup.victim.loss, mode="train", name=setup.victim.name)
    if private is not None:
        require_separate_samples(victim)
    parameters, buffers = {n: p.clone() for n, p in victim.parameters().items()}, victim.buffers()
    optimizer = torch.optim.Adam(list(parameters.values()), lr=LEARNING_RATE)
    rng, noise = (torch.Generator().manual_seed(how.seed + more) for more in (1, 2))
    size = min(how.batch, len(train))
    epochs = [train[torch.randperm(len(train), generator=rng)] for _ in range(-(-how.steps * size // len(train)) or 1)]
    order = torch.cat(epochs)
    with private_randomness(how.seed, victim.device):
        for step in range(how.steps):
            x, y = _model_space(setup, order[step * size : (step + 1) * size])
            if private is None:
                sent = gradient(victim, x, y, parameters=parameters, buffers=buffers)
            else:
                sent = private.release(each_gradient(victim, x, y, parameters=parameters, buffers=buffers), noise)
            sent = apply_defenses(victim, Gradient(), sent, defenses, rng=noise)
            for name, parameter in parameters.items():
                parameter.grad = sent.get(name)
            optimizer.step()
    return Trained(model, parameters, buffers)


def judged(setup: Setup, found: Trained, rows: Tensor) -> Tensor:
    """Which of the images are classified rightly, shape (images,), bool; a prediction that is not a number is wrong."""
    judge = Victim(found.model, setup.victim.space, setup.victim.loss, mode="eval", name=setup.victim.name)
    right = []
    with torch.no_grad():
        for some in rows.split(at_once(setup.victim.space.shape)):
            x, y = _model_space(setup, some)
            scores = judge(x, parameters=found.parameters, buffers={n: b.clone() for n, b in found.buffers.items()})
            right.append((scores.argmax(-1) == y) & scores.isfinite().all(-1))
    return torch.cat(right).cpu()


def at_once(shape: Sequence[int]) -> int:
    """How many samples of a shape are run together: many small ones, few large ones."""
    return max(1, PIXELS // math.prod(shape))


def accuracy(setup: Setup, right: Tensor, without: Tensor | None, how: Training) -> Mapping[str, Any]:
    """The accuracy and its cost against the training ``without`` defense, as a record keeps it.

    The interval of the accuracy is exact binomial; that of the cost a bootstrap over the held-out images, which both
    trainings share.
    """
    train, tested = held_out(setup, how.seed)
    hits = int(right.sum())
    low, high = clopper_pearson(hits, len(right))
    found = {
        "value": hits / len(right), "low": low, "high": high, "images": len(right), "steps": how.steps,
        "batch": min(how.batch, len(train)), "trained_on": len(train), "start": START, "optimizer": OPTIMIZER,
        "right": "".join("01"[int(r)] for r in right), "cost": None, "unknown": "",
    }  # fmt: skip
    if without is None:
        return {**found, "unknown": "the training without defense, which it is compared with, did not come to its end"}
    commonest = float(setup.labels[tested].bincount().max()) / len(tested)
    if clopper_pearson(int(without.sum()), len(without))[0] <= commonest:
        reached = float(without.double().mean())
        reason = (
            f"without defense {how.steps} steps reach an accuracy of {reached:.2f}, no better than "
            f"the commonest class ({commonest:.2f}); take more steps"
        )
        return {**found, "unknown": reason}
    cost = mean_interval(without.double() - right.double(), seed=how.seed)
    return {**found, "cost": {"value": cost.value, "low": cost.low, "high": cost.high}}


def privacy_of(setup: Setup, how: Training, private: DPSGD) -> str:
    """The guarantee of such a training, as a sentence; an accountant takes batches as drawn at random."""
    if not private.noise:
        return "clipping without noise gives no guarantee of privacy"
    train, _ = held_out(setup, how.seed)
    rate = min(how.batch, len(train)) / len(train)
    epsilon = spent_epsilon(noise=private.noise, rate=rate, steps=how.steps, delta=DELTA)
    return f"the short training has ε = {epsilon:.3g} at δ = {DELTA:g} ({how.steps} steps, sampling rate {rate:.2g})"


def held_out(setup: Setup, seed: int) -> tuple[Tensor, Tensor]:
    """Places of the images to train on and of those held out: half of the data, at most ``MOST_HELD_OUT``."""
    if len(setup.images) < ENOUGH:
        raise Inapplicable(f"an accuracy needs at least {ENOUGH} images, the data holds {len(setup.images)}")
    order = torch.randperm(len(setup.images), generator=torch.Generator().manual_seed(seed))
    count = min(MOST_HELD_OUT, len(order) // 2)
    return order[count:], order[:count]


def _model_space(setup: Setup, rows: Tensor) -> tuple[Tensor, Tensor]:
    victim = setup.victim
    return victim.to_input(victim.space.encode(setup.images[rows])), setup.labels[rows].to(victim.device)
