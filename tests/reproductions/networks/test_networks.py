"""All networks of the studies: published sizes, seeds that leave the global generator alone, and no parameter without a use."""

import pytest
import torch

from leakgauge.errors import BadInput
from reproductions.common.networks import IR152, VGG19, ResNet18, SplitViT
from reproductions.common.networks.cifar_resnet import CifarResNet
from reproductions.common.networks.privacy_tokens import TokenAlexNet, TokenCNN, TokenLeNet, TokenMLP
from reproductions.common.networks.swin import Swin
from reproductions.common.networks.yolo import BINS, YOLO

SIZES = [
    (CifarResNet, {"depth": 20}, 269_722),
    (CifarResNet, {"depth": 56}, 853_018),
    (ResNet18, {}, 11_173_962),
    (ResNet18, {"stem": "imagenet", "classes": 1000}, 11_689_512),
    (ResNet18, {"pre_activation": True}, 11_171_146 + 2 * 512),  # the usual port lacks the paper's last norm
    (Swin, {}, 28_288_354),
    (YOLO, {}, 3_157_200 - BINS),  # YOLOv8-nano counts the constants of the expected distance
    (IR152, {}, 62_091_978),
    (VGG19, {"head": "authors"}, 45_250_378),
    (VGG19, {"head": "torchvision"}, 139_622_218),
    (VGG19, {"head": "gap"}, 20_040_522),
    (SplitViT, {}, 1_230_474),
]
SMALL = [
    (ResNet18, {"width": 8}, 32),
    (ResNet18, {"width": 8, "pre_activation": True}, 32),
    (ResNet18, {"width": 8, "stem": "imagenet"}, 64),
    (IR152, {"units": (1, 2), "widths": (8, 16), "embedding": 12, "side": 16}, 16),
    (SplitViT, {"width": 32, "heads": 4, "depth": 2, "side": 16}, 16),
    (TokenLeNet, {}, 32),
    (TokenCNN, {}, 64),
]


@pytest.mark.parametrize(("make", "options", "count"), SIZES, ids=repr)
def test_published_sizes(make, options, count):
    with torch.device("meta"):
        assert sum(p.numel() for p in make(**options).parameters()) == count


@pytest.mark.parametrize(("make", "options", "side"), SMALL, ids=repr)
def test_seeds_shapes_and_use_of_every_parameter(make, options, side):
    state = torch.get_rng_state()
    model, same, other = (make(seed=seed, **options) for seed in (5, 5, 6))
    assert torch.get_rng_state().equal(state)
    assert all(a.equal(b) for a, b in zip(model.parameters(), same.parameters(), strict=True))
    assert not all(a.equal(b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    out = model(torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0)))
    assert out.shape == (2, 2 if make is TokenCNN else 10)
    out.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("make", "side", "features", "gradient", "total"),
    [
        (TokenLeNet, 32, 768, 912 + 2 * 3612, 15_826),
        (TokenAlexNet, 64, 9216, 2_139_008, 57_044_810),
        (TokenCNN, 64, 128, 448 + 4640, 1_054_050),
        (TokenMLP, 64, 256, 6_456_450, 6_456_450),
    ],
)
def test_what_the_tokens_are_made_of(make, side, features, gradient, total):
    with torch.device("meta"):
        model = make()
        caught = []
        model.get_submodule(make.feature_layer).register_forward_hook(lambda m, i, out: caught.append(out.flatten(1)))
        model(torch.zeros(2, 3, side, side))
    assert caught[0].shape == (2, features)
    assert sum(p.numel() for p in model.parameters()) == total
    watched = [p for layer in make.gradient_layers for p in model.get_submodule(layer).parameters()]
    assert sum(p.numel() for p in watched) == gradient


def test_an_unknown_stem_is_refused():
    with pytest.raises(BadInput):
        ResNet18(stem="mnist")
