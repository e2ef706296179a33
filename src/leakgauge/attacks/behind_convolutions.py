"""A fully connected layer behind convolutions: where its inputs cross the model, and the images that have these inputs."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from leakgauge.attacks.feature_matching import feature_matching
from leakgauge.channels import Features
from leakgauge.channels.facts import require_shared
from leakgauge.core import Observation, Victim
from leakgauge.engine import Observed
from leakgauge.engine.reference import inputs_of
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.graphs import find_point, trace_of
from leakgauge.inversion import Given
from leakgauge.measures.ridge import fit_ridge

STEPS = 300
"""Steps of the search for images that have given inputs."""
FEWEST = 20
"""Public images from which a regression to start from is fitted."""


def first_linear_behind(victim: Victim, seen: Observation, *, seed: int) -> tuple[str, Tensor, Tensor]:
    """Name of the first fully connected layer that runs, which must read a vector of each sample, and the gradients of weight and bias."""
    signal = Observed.check(seen.signal, victim).signal
    names = [name for name, module in victim.model.named_modules() if isinstance(module, nn.Linear)]
    noise = victim.to_input(victim.space.start(2, torch.Generator().manual_seed(seed)))
    entered = inputs_of(victim, names, noise, seed=seed)
    if not entered:
        raise Inapplicable("separating a batch needs a fully connected layer, and the model has none")
    name = next(iter(entered))
    if entered[name].dim() != 2 or len(entered[name]) != 2:
        raise Inapplicable(
            f"separating a batch needs a layer that reads one vector of each sample, and {name} does not"
        )
    return name, require_shared(signal, f"{name}.weight"), require_shared(signal, f"{name}.bias")


def cut_before(victim: Victim, name: str) -> str:
    """The cut at which the inputs of the layer cross, one vector of each sample."""
    try:
        traced = trace_of(victim)
    except BadInput as reason:
        raise Inapplicable(
            f"the model cannot be cut before {name}, so no image can be searched for: {reason}"
        ) from reason
    points = list(traced.points.values())
    place = points.index(find_point(traced, name))
    layer = victim.model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    if place and len(points[place - 1].tensors) == 1 and points[place - 1].tensors[0].shape == (layer.in_features,):
        return points[place - 1].name
    raise Inapplicable(
        f"the inputs of {name} do not cross the model as one vector, so no image can be searched for them"
    )


def images_behind(victim: Victim, seen: Observation, name: str, inputs: Tensor, *, seed: int) -> Tensor:
    """Images (n, ...) whose inputs to the layer are ``inputs`` (n, d), by :func:`feature_matching`; where the server has images of its own,
    from what a regression of images on features makes of them, as in a scan of cuts.
    """
    channel = Features(cut_before(victim, name))
    known = Observation(signal={channel.cut: inputs.to(victim.dtype)}, channel=channel, size=len(inputs))
    attack = feature_matching(steps=STEPS)
    if seen.auxiliary is not None and len(seen.auxiliary) >= FEWEST:
        with torch.no_grad():
            features = channel(victim, seen.auxiliary, torch.zeros(len(seen.auxiliary), dtype=torch.long))[channel.cut]
        guessed = fit_ridge(features, seen.auxiliary, seed=seed)(inputs.to(features))
        attack = replace(attack, start=Given(victim.space.project(guessed.to(victim.dtype))))
    return attack(victim, known, seed=seed).x
