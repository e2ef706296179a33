"""Small models of every family, built by the libraries themselves. A missing library is a failure, never a skip."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakgauge.integrations.torchvision_guest import invite_torchvision

TRANSFORMER = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 5,
}
TIMM_VIT = {"img_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}


class Wrapper(nn.Module):
    """A user's own wrapper: prefixes every name."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class Backbone(nn.Module):
    """A user's classifier on a headless trunk; the classifier is registered first and has a name of its own."""

    def __init__(self, trunk: nn.Module, width: int) -> None:
        super().__init__()
        self.verdict = nn.Linear(width, 5)
        self.trunk = trunk

    def forward(self, x):
        return self.verdict(self.trunk(x))


class OwnAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = 4
        self.qkv = nn.Linear(16, 48, bias=False)
        self.proj = nn.Linear(16, 16)


class OwnVit(nn.Module):
    """The layout our own vision transformers keep to."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Linear(48, 16)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 16))
        self.pos_embed = nn.Parameter(torch.zeros(1, 65, 16))
        self.blocks = nn.ModuleList(nn.ModuleDict({"norm": nn.LayerNorm(16), "attn": OwnAttention()}) for _ in range(2))
        self.head = nn.Linear(16, 10)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.squeeze = nn.Linear(width, width)

    def forward(self, x):
        return x + self.bn1(self.conv1(x))


class OwnResnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Residual(8), Residual(8))
        self.fc = nn.Linear(8, 5)


class OwnEncoder(nn.Module):
    """A vision transformer on torch's own encoder, with names that no library uses; the layer it copies is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.registers = nn.Parameter(torch.zeros(4, 24))
        self.cut = nn.Conv2d(3, 24, 8, 8)
        self.where = nn.Parameter(torch.zeros(1, 17, 24))
        self.summary = nn.Parameter(torch.zeros(1, 1, 24))
        self.layer = nn.TransformerEncoderLayer(24, 3, 48, batch_first=True)
        self.stack = nn.TransformerEncoder(self.layer, 2, enable_nested_tensor=False)
        self.verdict = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 5))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5),
    )  # fmt: skip


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 5))


def timm_model(name: str, **options) -> nn.Module:
    invite_torchvision()
    import timm

    return timm.create_model(name, **options)


def hf_model(name: str, **options) -> nn.Module:
    invite_torchvision()
    import transformers

    config = transformers.CONFIG_MAPPING[name](**options)
    names = {"vit": "ViT", "deit": "DeiT", "dinov2": "Dinov2", "resnet": "ResNet", "swin": "Swin"}
    return getattr(transformers, f"{names[name]}ForImageClassification")(config)


def torchvision_vit(**options) -> nn.Module:
    invite_torchvision()
    from torchvision.models import VisionTransformer

    return VisionTransformer(32, 8, 2, 3, 24, 48, num_classes=5, **options)


def hf_deit_with_teacher() -> nn.Module:
    invite_torchvision()
    import transformers

    return transformers.DeiTForImageClassificationWithTeacher(transformers.DeiTConfig(**TRANSFORMER))


HF_RESNET = {"depths": [1, 1], "hidden_sizes": [8, 16], "embedding_size": 8, "num_labels": 5}
BUILDERS = {
    "cnn": cnn,
    "mlp": mlp,
    "own-vit": OwnVit,
    "own-resnet": OwnResnet,
    "timm-vit": lambda: timm_model("vit_tiny_patch16_224", patch_size=4, **TIMM_VIT),
    "timm-deit-distilled": lambda: timm_model("deit_tiny_distilled_patch16_224", patch_size=8, **TIMM_VIT),
    "timm-eva-separate-qkv": lambda: timm_model("eva02_tiny_patch14_224", patch_size=8, qkv_fused=False, **TIMM_VIT),
    "timm-resnet": lambda: timm_model("test_resnet", num_classes=5),
    "hf-vit": lambda: hf_model("vit", **TRANSFORMER),
    "hf-deit": lambda: hf_model("deit", **TRANSFORMER),
    "hf-deit-teacher": hf_deit_with_teacher,
    "hf-dinov2": lambda: hf_model("dinov2", **TRANSFORMER),
    "hf-resnet": lambda: hf_model("resnet", **HF_RESNET),
    "torchvision-vit": torchvision_vit,
    "torchvision-vit-two-layer-head": lambda: torchvision_vit(representation_size=12),
    "wrapped-torchvision-vit": lambda: Wrapper(torchvision_vit()),
    "own-encoder": OwnEncoder,
    "wrapped-timm-vit": lambda: Wrapper(timm_model("vit_tiny_patch16_224", patch_size=8, **TIMM_VIT)),
    "wrapped-hf-vit": lambda: Wrapper(hf_model("vit", **TRANSFORMER)),
    "own-head-on-timm-vit": lambda: Backbone(
        timm_model("vit_tiny_patch16_224", patch_size=8, **{**TIMM_VIT, "num_classes": 0}), 24
    ),
}


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def models():
    """Every small model, built once; tests only read them."""
    return {name: build() for name, build in BUILDERS.items()}


@pytest.fixture(params=BUILDERS)
def model(request, models):
    return models[request.param]
