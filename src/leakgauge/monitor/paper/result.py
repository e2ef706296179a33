"""The result of paper mode: per checkpoint the published number, labelled for what it is, and its controls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from leakgauge.monitor.paper.critic import Gap

Reading = Literal["once", "warm", "fresh"]
Shuffle = Literal["all", "sub_epoch"]

LABEL = "critic gap, not mutual information: read it beside decoy, null and held_out"


@dataclass(frozen=True)
class PaperControls:
    """What the same recipe reads if the data cannot have leaked.

    ``held_out``: the same critic on batches that took no part in training, at the checkpoint's weights.
    ``decoy``: the same critic on the collected pairs, with features of *other* data made by the same weights.
    ``null``: a critic trained the same way on pairs with shuffled gradients, read on those same pairs.
    """

    held_out: Gap
    decoy: Gap | None
    null: Gap | None


@dataclass(frozen=True)
class Checkpoint:
    """One row of the paper's Table 1: ``paper`` at frozen weights, ``collected`` on pairs gathered since the start.

    ``paper`` reads evaluation batches of the training data at this checkpoint's weights, shuffled among themselves.
    ``collected`` reads the pairs that the training has produced so far; their weights differ, so it can tell the time.
    It is None at sub-epoch 0, where there are no pairs.
    """

    sub_epoch: int
    accuracy: float
    paper: Gap
    collected: Gap | None
    controls: PaperControls


@dataclass(frozen=True)
class PaperCost:
    """``critic_steps`` is the cost of a reading; ``stored`` are the bytes of the collected pairs at the end."""

    critic_steps: int
    critic_parameters: int
    stored: int
    seconds_model: float
    seconds_critic: float


@dataclass(frozen=True)
class PaperResult:
    """All checkpoints of one run, its settings, and its cost."""

    checkpoints: tuple[Checkpoint, ...]
    reading: Reading
    shuffle: Shuffle
    token: str
    seed: int
    cost: PaperCost
    label: str = LABEL
