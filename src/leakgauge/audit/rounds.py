"""One attack on one batch that a server saw in several rounds, from the private data to a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from leakgauge.attacks import inverting_gradients
from leakgauge.audit.case import earns_negative
from leakgauge.audit.cause import Client
from leakgauge.audit.control import Controls
from leakgauge.audit.evaluate import Result, assess
from leakgauge.channels import Rounds, share_rounds
from leakgauge.core import Attack, Channel, Defense, Reveal, Size, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.randomness import own_stream
from leakgauge.errors import Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.inversion.labels import infer_labels, read_or_none


@checked
@plain_defaults()
def evaluate_rounds(
    victims: Sequence[Victim],
    channel: Channel,
    x: Tensor,
    y: Tensor,
    *,
    attack: Attack | None = None,
    defenses: Sequence[Defense] = (),
    reveal: Sequence[Reveal] = (Size(),),
    seed: int = 0,
    pool: Tensor | None = None,
) -> Result:
    """As :func:`~leakgauge.audit.evaluate.evaluate`, of a batch that is shared in every round, at the weights of each of ``victims``.

    ``attack`` searches by matching; it is :func:`~leakgauge.attacks.inverting_gradients` unless another is named. Its objective is summed
    over the rounds (:class:`~leakgauge.channels.Rounds`). Labels are read in each round, and those that their rule is surest of are used. A
    bound, where there is one, is that of all rounds together.

    >>> from leakgauge import testing
    >>> from leakgauge.channels import Gradient
    >>> victim, x, y = testing.tiny_case("cnn")
    >>> print(evaluate_rounds([victim, victim], Gradient(), x, y, attack=inverting_gradients(steps=40)).victim)
    cnn, 2 rounds in eval mode
    """
    rounds = share_rounds(victims, channel, x, y, defenses=defenses, reveal=reveal, seed=seed)
    victim, seen = rounds.joint()
    attack = inverting_gradients() if attack is None else attack
    return assess(
        attack,
        victim,
        replace(seen, labels=read_in_rounds(rounds, seed=seed)),
        x,
        y,
        seed=seed,
        pool=pool,
        enough=earns_negative(attack),
        client=Client(y, channel, own_stream(seed, "client in round 0")),
        control_of=partial(Controls(), x=x[:1], y=y[:1], seed=seed),
        defenses=defenses,
    )


def read_in_rounds(rounds: Rounds, *, seed: int = 0) -> Tensor:
    """The labels of the batch: revealed, or read in the round of which the rule expects most to be right."""
    known = rounds.seen[0].labels
    if isinstance(known, Tensor):
        return known
    read = [
        read_or_none(infer_labels(), victim, seen, seed=seed)
        for victim, seen in zip(rounds.victims, rounds.seen, strict=True)
    ]
    sure = [one for one in read if one.labels is not None]
    if not sure:
        raise Inapplicable("the labels cannot be read in any of the rounds; reveal them")
    best = max(sure, key=lambda one: one.accuracy or 0.0).labels
    assert best is not None
    return best
