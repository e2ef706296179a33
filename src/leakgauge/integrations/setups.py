"""Finds what a case names: embedded models, files, packages, timm and Hugging Face, with the user's data or ours."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from leakgauge.audit.case import REARRANGED, Case
from leakgauge.audit.setup import Setup, check_fits, embedded
from leakgauge.core import Pixels, Victim
from leakgauge.data.embedded import fashion, photographs
from leakgauge.data.fit import Shape, fit
from leakgauge.data.reader import read
from leakgauge.errors import BadInput
from leakgauge.integrations.resolve import load_model, rearranged
from leakgauge.integrations.timm import adaptable
from leakgauge.models.pretrained import PRETRAINED

EMBEDDED_DATA = ("fashion", "photographs")


def find(case: Case) -> Setup:
    """The set-up of any case. Without data of its own a model gets embedded photographs, resized to what it takes."""
    _check_device(case.device)
    inner = case.model.removeprefix(REARRANGED)
    if inner != case.model and inner in PRETRAINED:
        plain = find(replace(case, model=inner))
        victim = Victim(rearranged(plain.victim.model), plain.victim.space, mode=case.mode, name=case.model)
        return Setup(victim, plain.images, plain.labels)
    if case.model in PRETRAINED and case.data == "fashion":
        return embedded(case)
    if case.model in PRETRAINED:
        small = embedded(case)
        images, labels = _data(case, cast(Shape, small.victim.space.shape))
        return Setup(small.victim, images, labels)
    model, space = load_model(case.model, seed=case.seed, classes=case.classes)
    images, labels = _data(case, cast(Shape, space.shape) if space is not None else None)
    if space is None:
        space = Pixels(tuple(images.shape[1:]))
    victim = Victim(model.to(case.device), space, mode=case.mode, name=case.model)
    return Setup(victim, images, labels if case.data != "photographs" else _made_up(images, labels, victim))


def smaller(model: str) -> dict[str, str]:
    """Relaxations of the network itself, by name: timm's models with a stem for 32×32 images where one is known."""
    name = model.removeprefix("timm:")
    if name == model or not adaptable(name):
        return {}
    return {"stem and resolution of 32×32": f"timm32:{name}"}


def _data(case: Case, shape: Shape | None) -> tuple[Tensor, Tensor]:
    if case.data == "fashion":
        images, labels = fashion("test")
        return fit(images, shape=shape, resize=case.resize, source="the embedded Fashion-MNIST"), labels
    if case.data == "photographs":
        if shape is None:
            raise BadInput(
                "the model does not say which images it takes; return (model, Pixels(shape)) from the factory or give --data"
            )
        images = photographs(max(shape[1:]))
        return fit(images, shape=shape, resize=True, source="the embedded photographs"), torch.arange(len(images))
    return read(case.data, shape=shape, resize=case.resize)


def _made_up(images: Tensor, labels: Tensor, victim: Victim) -> Tensor:
    """Photographs have no classes of the model's; any label serves, as long as the model has it."""
    return labels % check_fits(Setup(victim, images, torch.zeros_like(labels)))


def _check_device(device: str) -> None:
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise BadInput("no CUDA device is available here; leave --device at cpu")
    if device != "cpu" and not device.startswith("cuda"):
        raise BadInput(f"the device must be cpu or cuda, got {device!r}")
