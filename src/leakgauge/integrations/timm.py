"""Models of timm by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from leakgauge.core import Pixels
from leakgauge.core.randomness import private_randomness
from leakgauge.errors import BadInput, MissingExtra, first_line
from leakgauge.families.nearest import nearest
from leakgauge.integrations.tensor_files import read_tensors, with_weights
from leakgauge.integrations.torchvision_guest import invite_torchvision


def load(
    name: str,
    *,
    classes: int | None = None,
    size: int | None = None,
    seed: int = 0,
    pretrained: str | Path | None = None,
) -> tuple[nn.Module, Pixels]:
    """The timm model ``name`` with weights drawn from ``seed``, and the images it was configured for, or those of ``size`` × ``size``.

    Nothing is downloaded: ``pretrained`` is a local file of tensors by name, which must fit the model.
    ``classes`` sets the size of the classifier; models that timm builds without one need it. timm calls a fused
    attention; take second derivatives under ``sdpa_kernel(SDPBackend.MATH)``.
    """
    timm = _timm()
    known = [*timm.list_models(), *timm.list_pretrained()]
    if name not in known:
        raise BadInput(f"timm has no model {name!r}; {nearest(name, known)}")
    options: dict[str, Any] = {} if classes is None else {"num_classes": classes}
    if size is not None and timm.get_pretrained_cfg(name).fixed_input_size:
        options["img_size"] = size  # other models take images of any size as they are
    with private_randomness(seed, torch.device("cpu")):
        model: nn.Module = _built(timm, name, options)
    if model.num_classes == 0:
        raise BadInput(f"timm builds {name} without a classifier; give the number of classes")
    if pretrained is not None:
        model = with_weights(model, read_tensors(Path(pretrained)), source=str(pretrained))
    settings: dict[str, Any] = model.pretrained_cfg  # type: ignore[assignment]  # torch types attributes as modules
    shape = tuple(settings["input_size"]) if size is None else (settings["input_size"][0], size, size)
    return model, Pixels(shape, mean=tuple(settings["mean"]), std=tuple(settings["std"]))


def _built(timm: ModuleType, name: str, options: dict[str, Any]) -> nn.Module:
    try:
        return timm.create_model(name, pretrained=False, **options)
    except (AssertionError, ValueError, RuntimeError, TypeError) as error:
        if "img_size" not in options:
            raise
        reason = first_line(error)
        raise BadInput(
            f"timm cannot build {name} for images of {options['img_size']} × {options['img_size']} ({reason}); take another --size"
        ) from error


SMALL = 32
"""Side of the images that stem-adapted models take."""

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

_ADAPTED_OPTIONS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "swin_": (
        {"img_size": SMALL, "patch_size": 2, "window_size": 4},
        ("patches of 2 × 2 pixels instead of 4 × 4", "attention windows of 4 × 4 tokens"),
    ),
    "swinv2_": (
        {"img_size": SMALL, "patch_size": 2, "window_size": 4},
        ("patches of 2 × 2 pixels instead of 4 × 4", "attention windows of 4 × 4 tokens"),
    ),
    "vit_": ({"img_size": SMALL, "patch_size": 4}, ("patches of 4 × 4 pixels", "64 patch positions")),
    "maxvit_": (
        {"img_size": SMALL, "transformer_window_size": (2, 2)},
        ("first convolution of the stem with stride 1 instead of 2", "attention windows and grids of 2 × 2 tokens"),
    ),
    "convnext_": ({}, ("stem of 3 × 3, stride 1, instead of 4 × 4, stride 4",)),
}


@dataclass(frozen=True, eq=False)
class Adapted:
    """A model for 32×32 images, what it takes, and what was changed in it, in words."""

    model: nn.Module
    space: Pixels
    changes: tuple[str, ...]


def adaptable(name: str) -> bool:
    """Whether :func:`stem_adapted` knows this model's family."""
    return any(name.startswith(prefix) for prefix in _ADAPTED_OPTIONS)


def stem_adapted(name: str, *, classes: int = 10, seed: int = 0) -> Adapted:
    """The timm model ``name`` with tokenisation and attention windows fit for 32×32 images; depth and width stay.

    Known are ConvNeXt, MaxViT, Swin, SwinV2 and ViT. Weights are drawn from ``seed``: pretrained ones do not fit a new stem.

    Ref: Valadi et al. 2026, section 4.5.3 — resolution alignment and architectural adaptation
    """
    timm = _timm()
    if name not in timm.list_models():
        raise BadInput(f"timm has no model {name!r}; {nearest(name, timm.list_models())}")
    prefix = next((p for p in _ADAPTED_OPTIONS if name.startswith(p)), None)
    if prefix is None or "_tf_" in name:
        known = ", ".join(f"{p}…" for p in _ADAPTED_OPTIONS)
        raise BadInput(f"no adaptation to 32×32 images is known for {name}; known are {known} (but not _tf_ variants)")
    options, changes = _ADAPTED_OPTIONS[prefix]
    with private_randomness(seed, torch.device("cpu")):
        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=classes, **options)
        if prefix == "convnext_":
            _replace_stem(model)
        if prefix == "maxvit_":
            first = model.get_submodule("stem.conv1")
            assert isinstance(first, nn.Conv2d)
            first.stride = (1, 1)
    return Adapted(model, Pixels((3, SMALL, SMALL), mean=CIFAR_MEAN, std=CIFAR_STD), ("images of 32 × 32", *changes))


def _replace_stem(model: nn.Module) -> None:
    stem = model.get_submodule("stem")
    old = stem.get_submodule("0")
    assert isinstance(stem, nn.Sequential)
    assert isinstance(old, nn.Conv2d)
    stem[0] = nn.Conv2d(old.in_channels, old.out_channels, 3, stride=1, padding=1, bias=old.bias is not None)


def _timm() -> ModuleType:
    try:
        invite_torchvision()
        import timm
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("timm", "torchvision"):
            raise
        raise MissingExtra(package, "timm") from error
    return timm
