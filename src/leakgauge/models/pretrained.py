"""Victims trained on Fashion-MNIST that ship with the package; made by ``tools/train_victims.py``."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

from safetensors.torch import load
from torch import nn

from leakgauge.errors import BadInput
from leakgauge.models.cnn import CNN
from leakgauge.models.vgg import VGG
from leakgauge.models.vit import ViT

PRETRAINED: dict[str, Callable[[], nn.Module]] = {"cnn": CNN, "vit": ViT, "vgg": VGG}
"""Architectures with embedded weights, trained with the default options."""


def pretrained(name: str) -> nn.Module:
    """The trained victim ``name`` in eval mode; takes 28 × 28 grey images normalised by the data's MEAN and STD.

    Weights are stored in half precision and loaded as float32; the accuracies in ``weights/README.md`` were measured on what
    this function returns.
    """
    if name not in PRETRAINED:
        raise BadInput(f"there is no pretrained model {name!r}; choose one of {', '.join(PRETRAINED)}")
    model = PRETRAINED[name]()
    stored = load((files("leakgauge.models") / "weights" / f"{name}.safetensors").read_bytes())
    model.load_state_dict(stored)  # copies into the float32 parameters
    return model.eval()
