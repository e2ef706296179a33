"""The names each library gives, written out, so that a renaming in a new version is seen."""

from __future__ import annotations

import pytest
from torch import nn

from leakgauge.families import find_roles
from leakgauge.families.vit import vit_roles

FAMILY = {"cnn": "generic", "mlp": "generic", "own-resnet": "resnet", "timm-resnet": "resnet", "hf-resnet": "resnet"}

PARTS = {  # patch embedding, position embedding, class token, head, first attention layer
    "own-vit": ("patch_embed", "pos_embed", "cls_token", "head", "blocks.0.attn"),
    "timm-vit": ("patch_embed.proj", "pos_embed", "cls_token", "head", "blocks.0.attn"),
    "hf-vit": (
        "vit.embeddings.patch_embeddings.projection",
        "vit.embeddings.position_embeddings",
        "vit.embeddings.cls_token",
        "classifier",
        "vit.layers.0.attention",
    ),
    "hf-dinov2": (
        "dinov2.embeddings.patch_embeddings.projection",
        "dinov2.embeddings.position_embeddings",
        "dinov2.embeddings.cls_token",
        "classifier",
        "dinov2.encoder.layer.0.attention",
    ),
    "wrapped-hf-vit": (
        "inner.vit.embeddings.patch_embeddings.projection",
        "inner.vit.embeddings.position_embeddings",
        "inner.vit.embeddings.cls_token",
        "inner.classifier",
        "inner.vit.layers.0.attention",
    ),
    "torchvision-vit": (
        "conv_proj",
        "encoder.pos_embedding",
        "class_token",
        "heads.head",
        "encoder.layers.encoder_layer_0.self_attention",
    ),
    "torchvision-vit-two-layer-head": (
        "conv_proj",
        "encoder.pos_embedding",
        "class_token",
        "heads.head",
        "encoder.layers.encoder_layer_0.self_attention",
    ),
    "wrapped-torchvision-vit": (
        "inner.conv_proj",
        "inner.encoder.pos_embedding",
        "inner.class_token",
        "inner.heads.head",
        "inner.encoder.layers.encoder_layer_0.self_attention",
    ),
    "own-encoder": ("cut", "where", "summary", "verdict.1", "stack.layers.0.self_attn"),
    "own-head-on-timm-vit": (
        "trunk.patch_embed.proj",
        "trunk.pos_embed",
        "trunk.cls_token",
        "verdict",
        "trunk.blocks.0.attn",
    ),
}


def test_families(models):
    assert {name: find_roles(model).family for name, model in models.items()} == {
        name: FAMILY.get(name, "vit") for name in models
    }


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_vision_transformer(models, name):
    roles = find_roles(models[name])
    found = (roles.patch_embedding, roles.position_embedding, roles.class_token, roles.head, roles.attention[0].name)
    assert found == PARTS[name]
    assert len(roles.attention) == 2


@pytest.mark.parametrize(
    ("name", "fused", "width", "heads"),
    [
        ("own-vit", True, 16, 4),
        ("timm-vit", True, 24, 3),
        ("timm-deit-distilled", True, 24, 3),
        ("timm-eva-separate-qkv", False, 24, 3),
        ("hf-vit", False, 24, 3),
        ("hf-deit", False, 24, 3),
        ("hf-dinov2", False, 24, 3),
    ],
)
def test_shapes_of_q_k_v(models, name, fused, width, heads):
    model = models[name]
    for layer in find_roles(model).attention:
        assert layer.heads == heads
        assert model.get_submodule(layer.out).weight.shape == (width, width)
        if fused:
            assert (layer.q, layer.k, layer.v) == (None, None, None)
            assert model.get_submodule(layer.qkv).weight.shape == (3 * width, width)
        else:
            assert layer.qkv is None
            assert {model.get_submodule(part).weight.shape for part in (layer.q, layer.k, layer.v)} == {(width, width)}


def test_position_embedding_has_a_row_per_token(models):
    rows = {"timm-vit": 1 + 64, "timm-deit-distilled": 2 + 16, "hf-vit": 1 + 16, "hf-deit": 2 + 16, "hf-dinov2": 1 + 16}
    for name, count in rows.items():
        model = models[name]
        assert model.get_parameter(find_roles(model).position_embedding).shape == (1, count, 24), name


@pytest.mark.parametrize(
    ("name", "head", "other"),
    [
        ("timm-deit-distilled", "head", "head_dist"),
        ("hf-deit-teacher", "cls_classifier", "distillation_classifier"),
    ],
)
def test_a_distilled_deit_has_two_heads_and_both_are_withheld_together(models, name, head, other):
    roles = find_roles(models[name])
    assert (roles.head, roles.other_heads) == (head, (other,))
    assert roles.parameters("head", models[name]) == (
        f"{head}.weight", f"{head}.bias", f"{other}.weight", f"{other}.bias",
    )  # fmt: skip


def test_resnets(models):
    assert find_roles(models["timm-resnet"]).head == "fc"
    hf = find_roles(models["hf-resnet"])
    assert (hf.first_layer, hf.head) == ("resnet.embedder.embedder.convolution", "classifier.1")
    assert find_roles(models["own-resnet"]).first_layer == "conv1"


def test_a_squeeze_layer_is_no_head_of_a_resnet(models):
    model = models["own-resnet"]
    headless = nn.ModuleDict({"conv1": model.conv1, "layer1": model.layer1})
    assert find_roles(headless).head is None
    odd = nn.ModuleDict({"conv1": model.conv1, "layer1": model.layer1, "logits": nn.Linear(8, 5)})
    assert find_roles(odd).head == "logits"


def test_names_of_transformers_4():
    def layer() -> nn.Module:
        qkv = nn.ModuleDict({part: nn.Linear(8, 8) for part in ("query", "key", "value")})
        qkv.num_attention_heads = 2
        attention = nn.ModuleDict({"attention": qkv, "output": nn.ModuleDict({"dense": nn.Linear(8, 8)})})
        return nn.ModuleDict({"attention": attention})

    embeddings = nn.ModuleDict({"patch_embeddings": nn.ModuleDict({"projection": nn.Conv2d(3, 8, 4, 4)})})
    encoder = nn.ModuleDict({"layer": nn.ModuleList([layer()])})
    model = nn.ModuleDict(
        {"vit": nn.ModuleDict({"embeddings": embeddings, "encoder": encoder}), "classifier": nn.Linear(8, 5)}
    )
    attention = find_roles(model).attention[0]
    assert (attention.name, attention.heads) == ("vit.encoder.layer.0.attention", 2)
    assert attention.q == "vit.encoder.layer.0.attention.attention.query"
    assert attention.out == "vit.encoder.layer.0.attention.output.dense"


def test_a_headless_trunk_has_no_head(models):
    assert find_roles(models["hf-vit"].vit).head is None


def test_a_hierarchical_transformer_is_not_taken_for_a_plain_one():
    from leakgauge.integrations.torchvision_guest import invite_torchvision

    invite_torchvision()
    import timm
    import transformers

    swin = timm.create_model("swin_tiny_patch4_window7_224", embed_dim=12, depths=(1, 1), num_heads=(1, 1))
    small = transformers.SwinConfig(embed_dim=12, depths=[1, 1], num_heads=[1, 1], num_labels=5)
    for model, family in ((swin, "swin"), (transformers.SwinForImageClassification(small), "generic")):
        assert vit_roles(model) is None
        assert find_roles(model).family == family
