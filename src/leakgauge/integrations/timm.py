"""Models of timm by name."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from leakgauge.core import Pixels, private_randomness
from leakgauge.errors import BadInput, MissingExtra
from leakgauge.families.nearest import nearest
from leakgauge.integrations.torchvision_guest import invite_torchvision


def load(
    name: str, *, classes: int | None = None, seed: int = 0, pretrained: str | Path | None = None
) -> tuple[nn.Module, Pixels]:
    """The timm model ``name`` with weights drawn from ``seed``, and the images it was configured for.

    Nothing is downloaded: ``pretrained`` is the path of a ``.safetensors`` file whose names and shapes fit the model.
    ``classes`` sets the size of the classifier; models that timm builds without one need it. timm calls a fused
    attention; take second derivatives under ``sdpa_kernel(SDPBackend.MATH)``.
    """
    timm = _timm()
    known = [*timm.list_models(), *timm.list_pretrained()]
    if name not in known:
        raise BadInput(f"timm has no model {name!r}; {nearest(name, known)}")
    options: dict[str, Any] = {} if classes is None else {"num_classes": classes}
    with private_randomness(seed, torch.device("cpu")):
        model: nn.Module = timm.create_model(name, pretrained=False, **options)
    if model.num_classes == 0:
        raise BadInput(f"timm builds {name} without a classifier; give the number of classes")
    if pretrained is not None:
        _fill(model, Path(pretrained), name)
    settings: dict[str, Any] = model.pretrained_cfg  # type: ignore[assignment]  # torch types attributes as modules
    return model, Pixels(tuple(settings["input_size"]), mean=tuple(settings["mean"]), std=tuple(settings["std"]))


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


def _fill(model: nn.Module, path: Path, name: str) -> None:
    """Loads local weights; safetensors only, for a pickle runs code."""
    if not path.is_file():
        raise BadInput(f"there is no weights file {path}; give a local .safetensors file")
    try:
        model.load_state_dict(load_file(path))
    except SafetensorError as error:
        raise BadInput(f"{path} is no safetensors file: {error}") from error
    except RuntimeError as error:
        raise BadInput(f"the weights in {path} do not fit timm's {name}: {' '.join(str(error).split())}") from error
