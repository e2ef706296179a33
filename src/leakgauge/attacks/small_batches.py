"""The samples of a small batch, exactly, from the head of a fully connected network down to its first layer."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from leakgauge.attacks.certificate import EXACT, RESIDUAL, replay_residual
from leakgauge.attacks.found_images import batch_of, valid_range
from leakgauge.attacks.linear import first_layer_gradients
from leakgauge.channels import Gradient
from leakgauge.core import Observation, Reconstruction, Victim
from leakgauge.core.examples import example
from leakgauge.errors import Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.inversion.labels import batch_size
from leakgauge.inversion.output_gradient import samples_at_head


@dataclass(frozen=True)
class SmallBatches:
    """The attack made by :func:`small_batches`."""

    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        began, size = time.perf_counter(), batch_size(seen)
        name, _, _ = first_layer_gradients(victim, seen, seed=seed)
        found = samples_at_head(victim, seen)
        if found.layer != name:
            raise Inapplicable(
                f"samples were separated at the head and followed down to the inputs of {found.layer}, not to those of {name}"
            )
        x = found.inputs[: found.seen].view(-1, *victim.space.shape).to(victim.device, victim.dtype)
        dark, light = valid_range(victim, x)
        exact = (
            found.error[: found.seen].to(x.device) * x.flatten(1).square().mean(1).sqrt() / float((light - dark).min())
        )
        labels = found.labels.to(victim.device)
        # a channel of several clients takes no part of a batch
        replayable = found.seen == size or isinstance(seen.channel, Gradient)
        proven = replayable and replay_residual(victim, seen, x, labels[: found.seen], seed=seed) < RESIDUAL
        certified = torch.zeros(size, dtype=torch.bool, device=x.device)
        certified[: found.seen] = (exact < EXACT) & proven
        return Reconstruction.single(
            batch_of(victim.space.project(x), size, victim),
            labels,
            made_by=repr(self),
            began=began,
            notes=(
                f"{found.seen} of {size} samples separated at the head and followed down to {name}; the rest is grey",
            ),
            certified=certified,
        )


@example("mlp")
@checked
def small_batches() -> SmallBatches:
    """The samples of a small batch through a fully connected network, without a search for images. Not from a paper.

    Each sample alone satisfies the equations of the head's gradient, and a search over its few unknowns finds label, p − y and features of
    one sample after the other (:mod:`leakgauge.inversion.head_samples`). From there the gradient at each layer's output is known for every
    sample, and what enters the layer is the solution of a linear system (:mod:`leakgauge.inversion.beneath_head`), down to the image.

    It needs no ReLU and no wide layer, and trained networks are read as well as fresh ones. All samples are found in batches of at most
    half as many as there are classes, of larger ones those that the network is least sure of, if they stand out; at most eight samples
    and 100 classes (:func:`relu_batches` reads larger batches). A sample is certified if its equations
    agree, and if the replay of all makes the whole update. Of samples that the network is too sure of nothing is left in the gradient;
    they are grey.

    Deviations: none, since no paper describes it.
    """
    return SmallBatches()
