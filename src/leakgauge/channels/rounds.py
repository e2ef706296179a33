"""One private batch, seen in several rounds at other weights: one observation of a model that holds every round's weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from leakgauge.channels.facts import is_gradient, is_weight_update, optimizer_of, reseed
from leakgauge.channels.optimizers import SGD
from leakgauge.core import Assumption, Channel, Loss, Observation, Sent, Targets, Victim, share
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.randomness import own_stream
from leakgauge.core.running import deep_copy
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked

MOST_ROUNDS = 1000


class AllRounds(nn.Module):
    """The models of all rounds side by side; the output is the list of theirs."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.rounds = nn.ModuleList(
            deep_copy(model) for model in models
        )  # the same model twice has weights of its own twice

    def forward(self, x: Tensor) -> list[Any]:
        return [model(x) for model in self.rounds]


@dataclass(frozen=True)
class SumOfRounds:
    """Σ_t w_t · loss(z_t, y). No parameter belongs to two rounds, so its gradient holds the gradient of every round, times w_t."""

    loss: Loss
    weights: tuple[float, ...]

    def __call__(self, outputs: Sequence[Any], y: Any, /) -> Tensor:
        each = [weight * self.loss(output, y) for weight, output in zip(self.weights, outputs, strict=True)]
        return torch.stack(each).sum()


@checked
@dataclass(frozen=True, eq=False)
class Rounds:
    """What a server holds of one batch after several rounds: a victim (the weights that it had sent) and an observation for each.

    ``joint`` is the same as one victim with one observation, which any attack by matching takes: its signal has the names
    ``rounds.0.…``, ``rounds.1.…``. Gradients are scaled to length 1 round by round, so none drowns the others; changes of weights are left
    as they are, because local steps are not linear in the loss. Rounds add noise of their own, which is why many of them tell more.

    Ref: Li et al. 2023, temporal gradient inversion — one batch, several temporal gradients
    """

    victims: tuple[Victim, ...]
    seen: tuple[Observation, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "victims", tuple(self.victims))
        object.__setattr__(self, "seen", tuple(self.seen))
        if not 1 <= len(self.victims) <= MOST_ROUNDS or len(self.victims) != len(self.seen):
            raise BadInput(
                f"Rounds needs a victim for each observation, 1 to {MOST_ROUNDS}; got {len(self.victims)} and {len(self.seen)}"
            )
        first, known = self.victims[0], self.seen[0]
        for number, (victim, seen) in enumerate(zip(self.victims, self.seen, strict=True), start=1):
            if (victim.space, victim.loss, victim.mode) != (first.space, first.loss, first.mode):
                raise BadInput(
                    f"round {number} has another space, loss or mode than the first; one batch has one of each"
                )
            if (type(seen.channel), seen.size) != (type(known.channel), known.size):
                raise BadInput(
                    f"round {number} was sent by another channel, or with another batch size, than the first; one batch has one of each"
                )

    def __len__(self) -> int:
        return len(self.victims)

    def joint(self) -> tuple[Victim, Observation]:
        """All rounds as one victim and one observation."""
        channel = self.seen[0].channel
        if not is_gradient(channel, self.victims[0].mode) and not is_weight_update(channel):
            raise Inapplicable(
                f"{channel!r} is no gradient and no change of weights, so its rounds cannot be replayed together"
            )
        if not isinstance(optimizer_of(channel), SGD):
            raise Inapplicable("rounds are replayed together for clients that use SGD")
        lengths = [_length(one) for one in self.seen]
        weights = tuple(1.0 if is_weight_update(channel) else 1 / length for length in lengths)
        victim = replace(
            self.victims[0],
            model=AllRounds([one.model for one in self.victims]),
            loss=SumOfRounds(self.victims[0].loss, weights),
            name=f"{self.victims[0].name}, {len(self)} rounds",
        )
        signal = {
            f"rounds.{number}.{name}": weight * value
            for number, (one, weight) in enumerate(zip(self.seen, weights, strict=True))
            for name, value in one.signal.items()
        }
        said = dict.fromkeys(fact for one in self.seen for fact in one.assumptions)
        many = Assumption(f"the same batch seen in {len(self)} rounds", "deployable")
        known = tuple(said) if len(self) == 1 else (*said, many)
        return victim, replace(self.seen[0], signal=signal, assumptions=known, buffers=None)


def _length(seen: Observation) -> float:
    length = float(torch.stack([value.double().norm() for value in seen.signal.values()]).norm())
    if not 0 < length < float("inf"):
        raise Inapplicable(
            "an update of one round is zero or not finite, so its direction is unknown; leave that round out"
        )
    return length


def client_in_round(number: int) -> str:
    """The stream that a client's draws in a round come from."""
    return f"client in round {number}"


@checked
@plain_defaults()
def share_rounds(victims: Sequence[Victim], channel: Channel, x: Tensor, y: Targets, **sent: Unpack[Sent]) -> Rounds:
    """:func:`~leakgauge.core.share` of one batch in several rounds, at the weights of each of ``victims``; each draws its own noise."""
    seed = sent.get("seed", 0)
    seen = [
        share(victim, reseed(channel, number), x, y, **sent, secret=own_stream(seed, client_in_round(number)))
        for number, victim in enumerate(victims)
    ]
    return Rounds(tuple(victims), tuple(seen))
