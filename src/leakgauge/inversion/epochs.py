"""Several local epochs in unknown orders: each epoch gets its own images, and all epochs must hold the same ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.channels import ShuffledFedAvg
from leakgauge.core import Observation, Reconstruction, Space, Trace, Use, Victim, as_images
from leakgauge.errors import Inapplicable
from leakgauge.inversion.added import Added
from leakgauge.inversion.labels import batch_size, read_class_labels
from leakgauge.inversion.matching import Matching
from leakgauge.inversion.terms import Candidate, Term, per_restart
from leakgauge.measures.image import pair


@dataclass(frozen=True)
class EpochsAgree(Term):
    """1/E² Σ_{e,e'} mean (g(X_e) − g(X_e'))² with g the mean image of an epoch, which does not depend on the order.

    X_e are the images of epoch e of E; candidates hold all epochs one after another.

    Ref: Dimitrov et al. 2022, section 4.3 — order-invariant prior over epochs
    """

    epochs: int

    def __call__(self, at: Candidate, /) -> Tensor:
        means = at.x.unflatten(1, (self.epochs, -1)).mean(2)
        return 2 * per_restart(means.var(1, unbiased=False))


@dataclass(frozen=True)
class OverEpochs(Added):
    """``matching`` with separate images for every epoch, plus ``weight`` · ``EpochsAgree``; averages the epochs at the end.

    Labels are assigned to the positions of each epoch at random, because nobody knows in which step a sample was used. Before
    averaging, the images of each epoch are paired with those of the first. Other channels go to ``matching`` unchanged.
    """

    matching: Matching
    weight: float

    ADDED: ClassVar[str] = "the prior over epochs"
    NEEDS: ClassVar[frozenset[Use]] = frozenset({"epochs"})

    def _attack(self, victim: Victim, seen: Observation, seed: int) -> Reconstruction:
        channel = seen.channel
        if not isinstance(channel, ShuffledFedAvg) or channel.epochs == 1:
            found = self.matching(victim, seen, seed=seed)
            return replace(found, made_by=repr(self))
        rng = torch.Generator().manual_seed(seed)
        size, epochs = batch_size(seen), channel.epochs
        read = read_class_labels(self.matching.labels, victim, seen, rng=rng)
        labels = read.labels
        if labels is None:
            raise Inapplicable("several epochs need labels, but none could be read; reveal the labels")
        places = torch.stack([torch.randperm(size, generator=rng) for _ in range(epochs)])
        unrolled = replace(
            seen,
            channel=channel.unroll(size),
            size=epochs * size,
            labels=labels[places.flatten().to(labels.device)],
            near=None,
        )
        attack = replace(self.matching, objective=self.matching.objective + self.weight * EpochsAgree(epochs))
        found = attack(victim, unrolled, seed=seed)
        back = torch.argsort(places, 1)

        def folded(x: Tensor) -> Tensor:
            return _average_epochs(x, back.to(x.device), victim.space)

        candidates = torch.stack([folded(x) for x in found.candidates])
        snapshots = torch.stack([folded(x) for x in found.trace.snapshots])
        return replace(
            found,
            x=folded(found.x),
            y=labels,
            label_accuracy=read.accuracy,
            candidates=candidates,
            made_by=repr(self),
            trace=Trace(found.trace.steps, found.trace.losses, found.trace.snapshot_steps, snapshots),
            notes=(*found.notes, f"{epochs} epochs of {size} images in unknown orders, paired and averaged"),
        )


def _average_epochs(x: Tensor, back: Tensor, space: Space) -> Tensor:
    """Mean over epochs of x (E·N, ...): each epoch is put in label order (``back``), then paired with the first."""
    epochs = [images[order] for images, order in zip(x.unflatten(0, back.shape), back, strict=True)]
    first = epochs[0]
    orders = [torch.argsort(pair(as_images(space, images), as_images(space, first))) for images in epochs]
    return torch.stack([images[order] for images, order in zip(epochs, orders, strict=True)]).mean(0)
