"""Vision transformers on nn.MultiheadAttention: which layers are told apart, and which models are none."""

import pytest
import torch
from torch import nn

from leakgauge.errors import Inapplicable
from leakgauge.families import attention_first, find_roles
from leakgauge.families.attention_first import AttentionFirst
from leakgauge.families.multihead import multihead_roles
from tests.zoo import Parts

WIDTH = 16


def encoder(depth: int = 2, **options) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True, **options)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


def test_the_packed_weight_is_q_then_k_then_v(models):
    model = models["torchvision-vit"]
    for layer in find_roles(model).attention:
        assert (layer.heads, layer.layers) == (3, ())
        (name,) = layer.weights
        inner = model.get_submodule(layer.name)
        assert model.get_parameter(name) is inner.in_proj_weight
        assert model.get_submodule(layer.out) is inner.out_proj


def test_a_layer_that_is_only_copied_is_no_attention_of_the_model(models):
    names = [layer.name for layer in find_roles(models["own-encoder"]).attention]
    assert names == ["stack.layers.0.self_attn", "stack.layers.1.self_attn"]


def test_a_stem_of_several_convolutions_has_a_first_and_a_last(models):
    stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, WIDTH, 4, 4))
    roles = find_roles(Parts(stem=stem, stack=encoder(), out=nn.Linear(WIDTH, 5)))
    assert (roles.first_layer, roles.patch_embedding, roles.head) == ("stem.0", "stem.2", "out")


def test_patches_by_a_linear_layer_and_positions_in_an_embedding():
    model = Parts(
        verdict=nn.Linear(WIDTH, 5),
        embed=nn.Sequential(nn.LayerNorm(48), nn.Linear(48, WIDTH), nn.LayerNorm(WIDTH)),
        pos=nn.Embedding(9, WIDTH),
        stack=encoder(),
    )
    roles = find_roles(model)
    assert (roles.patch_embedding, roles.position_embedding, roles.head) == ("embed.1", "pos.weight", "verdict")


def test_weights_of_layers_are_no_positions_also_where_the_layers_are_subclasses():
    class OwnAttention(nn.MultiheadAttention):
        pass

    class OwnLinear(nn.Linear):
        pass

    parts = {"conv": nn.Conv2d(3, WIDTH, 4, 4), "attn": OwnAttention(WIDTH, 2), "wide": OwnLinear(WIDTH, 99)}
    assert find_roles(Parts(**parts)).position_embedding is None
    assert find_roles(Parts(**parts, table=nn.Parameter(torch.zeros(9, WIDTH)))).position_embedding == "table"


def test_a_trunk_without_a_head_has_none():
    roles = find_roles(Parts(conv=nn.Conv2d(3, WIDTH, 4, 4), stack=encoder()))
    assert (roles.family, roles.head, roles.position_embedding, roles.class_token) == ("vit", None, None, None)


def test_attention_beside_the_patch_embedding_is_no_block():
    parts = {"attn": nn.MultiheadAttention(WIDTH, 2, batch_first=True), "norm": nn.LayerNorm(WIDTH)}
    model = Parts(
        net=Parts(conv=nn.Conv2d(3, WIDTH, 4, 4), **parts, mlp=nn.Linear(WIDTH, WIDTH), out=nn.Linear(WIDTH, 5))
    )
    roles = find_roles(model)
    assert (roles.patch_embedding, roles.attention[0].name, roles.head) == ("net.conv", "net.attn", "net.out")
    for inner in (model, model.net):
        with pytest.raises(Inapplicable, match="is in no block"):
            attention_first(inner, find_roles(inner))


@pytest.mark.parametrize(
    "parts",
    [
        {"words": nn.Embedding(50, WIDTH), "embed": nn.Linear(4, WIDTH), "stack": encoder()},
        {"conv": nn.Conv2d(3, 8, 3), "stack": encoder()},
        {"stack": encoder(), "conv": nn.Conv2d(3, WIDTH, 4, 4)},
        {"conv": nn.Conv2d(3, WIDTH, 4, 4), "reads": nn.MultiheadAttention(WIDTH, 2, kdim=8, vdim=8)},
    ],
    ids=["words", "other width", "attention first", "keys of another width"],
)
def test_what_is_no_vision_transformer_keeps_its_generic_roles(parts):
    model = Parts(**parts)
    assert multihead_roles(model) is None
    assert find_roles(model).family == "generic"


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_rearranged_layer_is_attention_norm_and_mlp(activation):
    torch.manual_seed(0)
    model = Parts(conv=nn.Conv2d(3, WIDTH, 4, 4), stack=encoder(activation=activation)).eval()
    changed = attention_first(model, find_roles(model))
    layer, x = model.stack.layers[0], torch.randn(2, 5, WIDTH)
    assert isinstance(changed.stack.layers[0], AttentionFirst)
    normal = layer.norm2(layer.self_attn(x, x, x)[0])
    expected = model.stack.layers[1](layer.linear2(getattr(torch.nn.functional, activation)(layer.linear1(normal))))
    torch.testing.assert_close(changed.stack(x), expected)
    assert [a.name for a in find_roles(changed).attention] == [a.name for a in find_roles(model).attention]
