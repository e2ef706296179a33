import pytest
import torch

from leakgauge.errors import BadInput
from leakgauge.models import CNN, MLP, VGG, LeNet, ViT
from tests.zoo import count

MODELS = {
    "cnn": (CNN, {}, (1, 28, 28)),
    "mlp": (MLP, {}, (1, 28, 28)),
    "vgg": (VGG, {}, (1, 28, 28)),
    "vit": (ViT, {}, (1, 28, 28)),
    "vit-mean": (ViT, {"in_channels": 3, "side": 32, "class_token": False, "qkv_bias": False}, (3, 32, 32)),
    "lenet": (LeNet, {}, (3, 32, 32)),
    "lenet-dlg": (LeNet, {"in_channels": 1, "side": 28, "strides": (2, 2, 1, 1)}, (1, 28, 28)),
}


@pytest.mark.parametrize("name", MODELS)
def test_shape_seed_and_global_generator(name):
    make, options, shape = MODELS[name]
    state = torch.get_rng_state()
    model, same, other = make(seed=5, **options), make(seed=5, **options), make(seed=6, **options)
    assert torch.get_rng_state().equal(state)
    assert all(a.equal(b) for a, b in zip(model.parameters(), same.parameters(), strict=True))
    assert not all(a.equal(b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    out = model(torch.zeros(2, *shape))
    assert out.shape == (2, 10)
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())  # nothing is made that forward does not use


def test_cnn_is_cheap_and_the_others_are_small():
    assert 80_000 < count(CNN()) < 100_000
    assert count(ViT()) <= 250_000
    assert count(VGG()) <= 250_000


def test_lenet_is_drawn_from_the_wide_interval():
    model = LeNet(in_channels=3, side=32, classes=100, strides=(2, 2, 1))
    assert model.fc.weight.shape == (100, 768)
    for parameter in model.parameters():
        assert parameter.abs().max() <= 0.5
        assert parameter.abs().max() > 0.35


def test_vit_attention_equals_its_equation():
    """softmax(q kᵀ / √d) v per head, against the fused kernel."""
    attn = ViT(seed=1).blocks[0].attn
    x = torch.randn(2, 7, 64, generator=torch.Generator().manual_seed(0))
    q, k, v = attn.qkv(x).chunk(3, dim=2)
    heads = []
    for a, b, c in zip(q.split(16, 2), k.split(16, 2), v.split(16, 2), strict=True):
        heads.append((a @ b.mT / 4).softmax(2) @ c)
    assert torch.allclose(attn(x), attn.proj(torch.cat(heads, 2)), atol=1e-5)


def test_vgg_layers_have_names_of_their_own():
    names = [name for name, _ in VGG().features.named_children()]
    assert names[:7] == ["conv1_1", "bn1_1", "relu1_1", "conv1_2", "bn1_2", "relu1_2", "pool1"]
    assert len(names) == 21


@pytest.mark.parametrize(
    ("make", "options"),
    [(ViT, {"side": 30}), (ViT, {"width": 66})],
)
def test_refusals(make, options):
    with pytest.raises(BadInput):
        make(**options)
