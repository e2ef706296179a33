"""The networks of the split-inference paper: sizes, numbering and edge shares of its tables, without any arithmetic done."""

import pytest
import torch
from torch import nn

from leakgauge.errors import BadInput
from reproductions.common.networks import IR152, VGG19, SplitViT, ir152
from reproductions.common.networks.ir152 import Unit
from reproductions.common.networks.split_vit import FreeAttention
from tests.zoo import count


def shape_at(model, name):
    """Shape of one image's output of the named layer, on tensors without values."""
    seen = []
    handle = model.get_submodule(name).register_forward_hook(lambda _m, _i, out: seen.append(tuple(out.shape[1:])))
    model(torch.zeros(2, 3, 64, 64, device="meta"))
    handle.remove()
    return seen[0]


@pytest.fixture(scope="module")
def on_meta():
    with torch.device("meta"):
        return {
            "ir152": IR152(),
            "vit": SplitViT(),
            **{head: VGG19(head=head) for head in ("authors", "torchvision", "gap")},
        }


@pytest.mark.parametrize(
    ("block", "shape", "shares"),
    [
        (13, (128, 32, 32), (0.6, 0.2, 1.3)),
        (17, (256, 16, 16), (1.2, 0.4, 2.8)),
        (26, (256, 16, 16), (5.1, 1.7, 11.6)),
        (30, (512, 8, 8), (7.8, 2.5, 17.5)),
        (39, (512, 8, 8), (23.4, 7.6, 52.9)),
        (43, (512, 4, 4), (28.6, 9.3, 64.6)),
        (52, (512, 4, 4), (44.3, 14.3, 100.0)),
    ],
)
def test_vgg19_blocks_are_slice_ends(on_meta, block, shape, shares):
    for head, share in zip(("authors", "torchvision", "gap"), shares, strict=True):
        model = on_meta[head]
        assert shape_at(model, model.cut(block)) == shape
        assert isinstance(model.get_submodule(model.cut(block)), nn.ReLU)
        assert 100 * count(model.features[:block]) / count(model) == pytest.approx(share, abs=0.051)


@pytest.mark.parametrize(
    ("block", "shape", "share"),
    [
        (3, (64, 32, 32), 0.24),
        (8, (128, 16, 16), 2.16),
        (25, (256, 8, 8), 28.37),
        (40, (256, 8, 8), 56.89),
        (48, (256, 8, 8), 72.11),
        (49, (512, 4, 4), 78.03),
        (50, (512, 4, 4), 85.63),
        (51, (512, 4, 4), 93.23),
    ],
)
def test_ir152_blocks(on_meta, block, shape, share):
    model = on_meta["ir152"]
    assert shape_at(model, model.cut(block)) == shape
    edge = sum(count(model.get_submodule(model.cut(b))) for b in range(1, block + 1))
    assert 100 * edge / count(model) == pytest.approx(share, abs=0.006)
    assert block in ir152.BLOCKS


def test_ir152_has_a_stem_and_fifty_units(on_meta):
    blocks = list(on_meta["ir152"].blocks)
    assert len(blocks) == 51
    assert [i + 1 for i, unit in enumerate(blocks) if isinstance(unit, Unit) and unit.residual[3].stride == (2, 2)] == [
        2, 5, 13, 49,
    ]  # fmt: skip


def test_shortcut_of_a_unit_is_the_identity_or_every_second_pixel():
    x = torch.rand(1, 4, 6, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Unit(4, 4, stride=1).shortcut(x), x)
    assert torch.equal(Unit(4, 4, stride=2).shortcut(x), x[:, :, ::2, ::2])


def test_ten_heads_need_a_dim_head():
    with pytest.raises(BadInput, match="dim_head"):
        SplitViT(heads=10)
    with torch.device("meta"):
        model = SplitViT(heads=10, dim_head=64)
    assert model.blocks[0].attn.qkv.weight.shape == (3 * 640, 128)
    assert model.blocks[0].attn.proj.weight.shape == (128, 640)


def test_free_attention_equals_its_equation():
    attention = FreeAttention(12, heads=3, dim_head=5, dropout=0.0).eval()
    x = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(0))
    q, k, v = attention.qkv(x).chunk(3, dim=2)
    heads = [
        (a @ b.mT / 5**0.5).softmax(2) @ c for a, b, c in zip(q.split(5, 2), k.split(5, 2), v.split(5, 2), strict=True)
    ]
    torch.testing.assert_close(attention(x), attention.proj(torch.cat(heads, 2)), atol=1e-6, rtol=1e-5)
