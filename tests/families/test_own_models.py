"""The roles of the networks that come with leakgauge."""

from __future__ import annotations

import pytest

from leakgauge.families import find_roles
from leakgauge.models import CNN, MLP, VGG, LeNet, ViT
from reproductions.common.networks import ResNet18


@pytest.mark.parametrize(
    ("build", "family", "head", "first_layer"),
    [
        (ViT, "vit", "head", "patch_embed.proj"),
        (ResNet18, "resnet", "fc", "conv1"),
        (lambda: ResNet18(pre_activation=True), "resnet", "fc", "conv1"),
        (CNN, "generic", None, None),
        (LeNet, "generic", None, None),
        (MLP, "generic", None, None),
        (VGG, "generic", None, None),
    ],
)
def test_family_head_and_first_layer(build, family, head, first_layer):
    model = build()
    roles = find_roles(model)
    assert roles.family == family
    named = [name for name, module in model.named_modules() if list(module.parameters(recurse=False))]
    assert roles.head == (head or named[-1])
    assert roles.first_layer == (first_layer or named[0])


def test_vision_transformer():
    model = ViT(width=16, heads=2, depth=3, classes=5)
    roles = find_roles(model)
    assert (roles.position_embedding, roles.class_token) == ("pos_embed", "cls_token")
    assert [layer.name for layer in roles.attention] == [f"blocks.{i}.attn" for i in range(3)]
    assert {layer.heads for layer in roles.attention} == {2}
    assert model.get_submodule(roles.attention[0].qkv).weight.shape == (48, 16)
    assert find_roles(ViT(class_token=False)).class_token is None
