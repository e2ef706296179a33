"""Plain chains of layers in float64, an image for them, and R-GAP on its gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.attacks import r_gap
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.models.seeded import seeded

SPACE = Pixels((2, 8, 8), mean=(0.5, 0.4), std=(0.3, 0.2))
ACTIVATIONS = {
    "leaky": lambda: nn.LeakyReLU(0.2), "relu": nn.ReLU, "elu": lambda: nn.ELU(0.7), "sigmoid": nn.Sigmoid, "tanh": nn.Tanh,
    "none": nn.Identity,
}  # fmt: skip


def chain(*convolutions, act="leaky", hidden=(), classes=5, bias=True, seed=0, space=SPACE):
    """Convolutions (width, kernel, stride, padding), linear layers and a head for images of ``space``, in float64."""
    layers, shape = [], space.shape
    with seeded(seed):
        for width, *others in convolutions:
            layers += [nn.Conv2d(shape[0], width, *others, bias=bias), ACTIVATIONS[act]()]
            shape = tuple(nn.Sequential(*layers)(torch.zeros(1, *space.shape)).shape[1:])
        layers.append(nn.Flatten())
        width = torch.Size(shape).numel()
        for size in hidden:
            layers += [nn.Linear(width, size, bias=bias), ACTIVATIONS[act]()]
            width = size
        layers.append(nn.Linear(width, classes, bias=bias))
    return nn.Sequential(*layers).double()


def image(seed=0, space=SPACE):
    return space.encode(torch.rand(1, *space.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def attacked(model, x, y=2, *, channel=None, defenses=(), space=SPACE, loss=F.cross_entropy, **options):
    victim = Victim(model, space, loss=loss)
    seen = share(victim, channel or Gradient(), x, torch.as_tensor(y).view(-1), defenses=defenses)
    return r_gap(**options)(victim, seen)
