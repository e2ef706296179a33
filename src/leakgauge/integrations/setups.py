"""Finds what a case names: embedded models, files, packages, timm and Hugging Face, with the user's data or ours."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from leakgauge.audit.case import REARRANGED, Case
from leakgauge.audit.session import Setup, check_fits, embedded, one_of_each_class
from leakgauge.core import Pixels, Victim
from leakgauge.data.arrays import from_arrays
from leakgauge.data.embedded import fashion, photographs
from leakgauge.data.fit import Shape, fit
from leakgauge.data.folder import is_flat
from leakgauge.data.reader import is_image_folder, read
from leakgauge.errors import BadInput
from leakgauge.integrations.plan_file import is_function, returned_data
from leakgauge.integrations.resolve import load_model, rearranged
from leakgauge.integrations.timm import adaptable
from leakgauge.models.pretrained import PRETRAINED


def find(case: Case) -> Setup:
    """The set-up of any case. Without data of its own a model gets embedded photographs, resized to what it takes."""
    if case.in_memory:
        raise BadInput(
            f"the model {case.model} was in memory, and no file says how to make it; run the audit again in Python, into a new folder"
        )
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
        images, labels = data_of(case, cast(Shape, small.victim.space.shape))
        return Setup(small.victim, images, labels_for(images, small.victim) if labels is None else labels)
    loaded = load_model(case.model, seed=case.seed, classes=case.classes)
    images, labels = data_of(case, cast(Shape, loaded.space.shape) if loaded.space is not None else None)
    space = loaded.space or Pixels(tuple(images.shape[1:]))
    victim = Victim(loaded.model.to(case.device), space, loss=loaded.loss, mode=case.mode, name=case.model)
    return Setup(victim, images, labels_for(images, victim) if labels is None else labels)


def images_for(case: Case, shape: Shape) -> Tensor:
    """The images of the case's data, in [0, 1] and of ``shape``."""
    return data_of(case, shape)[0]


def smaller(model: str) -> dict[str, str]:
    """Relaxations of the network itself, by name: timm's models with a stem for 32×32 images where one is known."""
    name = model.removeprefix("timm:")
    if name == model or not adaptable(name):
        return {}
    return {"stem and resolution of 32×32": f"timm32:{name}"}


def data_of(case: Case, shape: Shape | None) -> tuple[Tensor, Tensor | None]:
    """Images and labels; None for the labels of photographs, which have no classes of the model's.

    A folder has no order but that of its names, in which a batch would hold one class and the auxiliary images another; so one
    image of each class comes first, then the next ones, as in the embedded data.
    """
    data = case.data if not is_function(case.data) else returned_data(case.data, seed=case.seed)
    if isinstance(data, tuple):
        x, y, source = data
        return from_arrays(x, y, source=source, shape=shape, resize=case.resize)
    if data == "fashion":
        images, labels = fashion("test")
        return fit(images, shape=shape, resize=case.resize, source="the embedded Fashion-MNIST"), labels
    if data == "photographs":
        if shape is None:
            raise BadInput(
                "the model does not say which images it takes; return (model, Pixels(shape)) from the factory or give --data"
            )
        return fit(photographs(max(shape[1:])), shape=shape, resize=True, source="the embedded photographs"), None
    images, labels = read(data, shape=shape, resize=case.resize)
    if not is_image_folder(data):
        return images, labels
    if is_flat(data):
        return images, None
    order = one_of_each_class(labels)
    return images[order], labels[order]


def labels_for(images: Tensor, victim: Victim) -> Tensor:
    """Labels of images without any: 0, 1, 2, …, as far as the model has classes."""
    numbers = torch.arange(len(images))
    return numbers % check_fits(Setup(victim, images, torch.zeros_like(numbers)))


def _check_device(device: str) -> None:
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise BadInput("no CUDA device is available here; leave --device at cpu")
    if device != "cpu" and not device.startswith("cuda"):
        raise BadInput(f"the device must be cpu or cuda, got {device!r}")
