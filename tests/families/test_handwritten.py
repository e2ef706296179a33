"""Attention that is known by what its layers' names say, and what only looks like it."""

import pytest
import torch
from torch import nn

from leakgauge.errors import Inapplicable
from leakgauge.families import attention_first, find_roles
from leakgauge.families.handwritten import handwritten_roles
from leakgauge.families.vit import vit_roles
from tests.zoo import Parts

WIDTH = 24


def dense(names: str, inputs: int = WIDTH, outputs: int = WIDTH) -> dict[str, nn.Module]:
    return {name: nn.Linear(inputs, outputs) for name in names.split()}


def vit(*attention: nn.Module) -> nn.Module:
    return Parts(
        cut=nn.Conv2d(3, WIDTH, 4, 4),
        places=nn.Parameter(torch.zeros(1, 10, WIDTH)),
        start=nn.Parameter(torch.zeros(1, 1, WIDTH)),
        blocks=nn.ModuleList(Parts(attn=each, mlp=nn.Linear(WIDTH, WIDTH)) for each in attention),
        verdict=nn.Linear(WIDTH, 5),
    )


def test_the_same_roles_as_in_the_layouts_that_are_known_by_name(models):
    for name in ("own-vit", "timm-vit", "timm-deit-distilled", "timm-eva-separate-qkv", "hf-vit", "hf-dinov2"):
        model = models[name]
        assert handwritten_roles(model) == vit_roles(model), name


@pytest.mark.parametrize(
    "names",
    ["q k v", "wq wk wv", "W_Q W_K W_V", "to_q to_k to_v", "q_linear k_linear v_linear", "fc_q fc_k fc_v", "QUERY KEY VALUE",
     "query_proj key_proj value_proj", "proj_queries proj_keys proj_values", "attn_q attn_k attn_v"],
)  # fmt: skip
def test_names_that_differ_in_one_part(names):
    layer = find_roles(vit(Parts(**dense(names)))).attention[0]
    assert [layer.q, layer.k, layer.v] == [f"blocks.0.attn.{name}" for name in names.split()]
    assert (layer.heads, layer.out, layer.qkv) == (None, None, None)


def test_the_order_of_registration_makes_no_difference():
    layer = find_roles(vit(Parts(**dense("value key query")))).attention[0]
    assert layer.layers == tuple(f"blocks.0.attn.{name}" for name in ("query", "key", "value"))


@pytest.mark.parametrize("count", ["num_heads", "heads", "n_heads", "nheads", "n_head", "h"])
@pytest.mark.parametrize("name", ["qkv", "to_qkv", "Wqkv", "qkv_proj", "query_key_value", "c_attn", "in_proj"])
def test_fused_layers(name, count):
    layer = find_roles(vit(Parts(**{count: 3}, **dense(name, outputs=3 * WIDTH), **dense("o")))).attention[0]
    assert (layer.qkv, layer.heads, layer.out) == (f"blocks.0.attn.{name}", 3, "blocks.0.attn.o")


def test_the_output_is_told_by_shape_and_then_by_name():
    def out(**others):
        return find_roles(vit(Parts(**dense("q k v"), **others))).attention[0].out

    assert out(last=nn.Linear(WIDTH, WIDTH)) == "blocks.0.attn.last"
    assert out(to_out=nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout())) == "blocks.0.attn.to_out.0"
    assert out(gate=nn.Linear(WIDTH, WIDTH), w_o=nn.Linear(WIDTH, WIDTH)) == "blocks.0.attn.w_o"
    assert out(a=nn.Linear(WIDTH, WIDTH), b=nn.Linear(WIDTH, WIDTH)) is None
    assert out(a=nn.Linear(WIDTH, 7)) is None


@pytest.mark.parametrize(
    "attention",
    [
        Parts(heads=3, **dense("a b c d")),
        Parts(heads=3, linears=nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))),
        Parts(heads=3, **dense("q k gate")),
        Parts(heads=3, **dense("to_q"), **dense("to_k to_v", inputs=16), **dense("out")),
        Parts(qkv=nn.Linear(WIDTH, 3 * WIDTH), out=nn.Linear(3 * WIDTH, WIDTH)),
        Parts(heads=3, qkv=nn.Linear(WIDTH, 3 * WIDTH + 1), out=nn.Linear(WIDTH, WIDTH)),
        Parts(heads=5, qkv=nn.Linear(WIDTH, 3 * WIDTH), out=nn.Linear(WIDTH, WIDTH)),
        Parts(heads=3, in_proj=nn.Linear(WIDTH, 6 * WIDTH), out=nn.Linear(2 * WIDTH, WIDTH)),
        Parts(heads=3, qkv=nn.Conv2d(WIDTH, 3 * WIDTH, 1), out=nn.Linear(WIDTH, WIDTH)),
    ],
    ids=["other names", "a list", "no v", "keys of another width", "read as one", "no thirds", "heads do not fit", "gated",
         "convolution"],
)  # fmt: skip
def test_look_alikes_are_no_attention(attention):
    model = vit(attention)
    assert handwritten_roles(model) is None
    assert find_roles(model).family == "generic"


def block(width: int = WIDTH) -> nn.Module:
    return Parts(heads=3, **dense("wq wk wv wo", inputs=width, outputs=width))


@pytest.mark.parametrize(
    "parts",
    [
        {"words": nn.Embedding(50, WIDTH), "embed": nn.Linear(4, WIDTH), "attn": block()},
        {"words": nn.Embedding(50, 8), "embed": nn.Linear(8, WIDTH), "attn": block()},
        {"conv": nn.Conv2d(3, 8, 3), "attn": block()},
        {"conv": nn.Conv2d(3, WIDTH, 4, 4), "one": block(), "merge": nn.Linear(96, 48), "two": block(48)},
        {"sound": nn.Conv1d(1, 8, 10), "embed": nn.Linear(8, WIDTH), "attn": block()},
        {"attn": block(), "conv": nn.Conv2d(3, WIDTH, 4, 4)},
    ],
    ids=["words", "words of another width", "other width", "stages", "sound", "attention first"],
)
def test_what_is_no_plain_vision_transformer_keeps_its_generic_roles(parts):
    model = Parts(**parts)
    assert handwritten_roles(model) is None
    assert find_roles(model).family == "generic"


def test_a_block_that_holds_the_layers_itself_is_not_withheld_whole():
    attention = dense("to_q to_k to_v to_out")
    model = vit()
    model.blocks.append(Parts(heads=3, norm=nn.LayerNorm(WIDTH), **attention, mlp=nn.Linear(WIDTH, 48)))
    roles = find_roles(model)
    assert (roles.attention[0].name, roles.head) == ("blocks.0", "verdict")
    with pytest.raises(Inapplicable, match=r"blocks\.0, is in no block"):
        attention_first(model, roles)
    assert roles.parameters("attention", model) == tuple(
        f"blocks.0.{name}.{part}" for name in attention for part in ("weight", "bias")
    )


def test_a_model_that_holds_the_layers_itself():
    cut, positions = nn.Linear(48, WIDTH), nn.Embedding(9, WIDTH)
    model = Parts(heads=3, cut=cut, positions=positions, **dense("key query value"), **dense("out", outputs=5))
    roles = find_roles(model)
    assert (roles.attention[0].name, roles.patch_embedding, roles.head) == ("", "cut", "out")
    assert roles.position_embedding == "positions.weight"
    assert roles.parameters("attention", model)[0] == "key.weight"
    assert len(roles.parameters("attention", model)) == 6


def test_attention_modules_in_a_list_are_not_mixed_up_with_heads():
    model = vit()
    model.blocks = nn.ModuleList(Parts(**dense("q k v", outputs=12), **dense("o", inputs=12)) for _ in range(2))
    assert [layer.name for layer in find_roles(model).attention] == ["blocks.0", "blocks.1"]
    model.blocks = nn.ModuleList(Parts(**dense("q k v")) for _ in range(2))
    assert [layer.name for layer in find_roles(model).attention] == ["blocks.0", "blocks.1"]
    heads = nn.ModuleList(Parts(**dense("q k v", outputs=12)) for _ in range(2))
    (layer,) = find_roles(vit(Parts(each=heads))).attention
    assert (layer.name, layer.heads, len(layer.layers), layer.out) == ("blocks.0.attn", 2, 6, None)
