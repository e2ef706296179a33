"""Closed-form APRIL on nn.MultiheadAttention: torchvision's vision transformer and models on nn.TransformerEncoder."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.attacks import april, april_closed_form
from leakgauge.attacks.april.closed_form import attention_products
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.defenses import Withhold
from leakgauge.errors import Inapplicable
from leakgauge.families import attention_first, find_roles
from leakgauge.integrations.torchvision_guest import invite_torchvision
from leakgauge.measures.image import psnr


def attacked(model: nn.Module, shape=(3, 16, 16), *, defenses=(), seed=0):
    """PSNR of the reconstruction of one random image, and what was predicted."""
    space = Pixels(shape, mean=(0.4,), std=(0.3,))
    victim = Victim(model.double(), space, loss=F.cross_entropy, mode="eval")
    image = torch.rand(1, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    seen = share(victim, Gradient(), space.encode(image), torch.tensor([1]), defenses=list(defenses))
    result = april_closed_form()(victim, seen)
    return float(psnr(space.decode(result.x), image)), dict(result.stated)["predicted"]


def torchvision_vit(*, first: bool = True, side: int = 16, width: int = 60) -> nn.Module:
    """Its head, class token and positions are drawn: torchvision starts the first two at zero."""
    invite_torchvision()
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(side, 4, 2, 4, width, 96, num_classes=5)
    for parameter in (model.heads.head.weight, model.class_token, model.encoder.pos_embedding):
        nn.init.normal_(parameter)
    return attention_first(model, find_roles(model)) if first else model


class OnEncoder(nn.Module):
    """What people build: patches, positions, torch's encoder, the mean of its tokens."""

    def __init__(self, *, batch_first: bool = True, norm_first: bool = False, rows: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.batch_first = batch_first
        self.patches = nn.Conv2d(3, 60, 4, 4)
        self.positions = nn.Parameter(torch.randn(1, rows, 60) if batch_first else torch.randn(rows, 1, 60))
        self.layer = nn.TransformerEncoderLayer(60, 4, 96, 0.0, batch_first=batch_first, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(self.layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(60, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).permute((0, 2, 1) if self.batch_first else (2, 0, 1))
        return self.out(self.encoder(tokens + self.positions).mean(1 if self.batch_first else 0))


class ByName(nn.Module):
    """Calls its attention with names."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(60, 4, batch_first=True, bias=False, add_bias_kv=True)

    def forward(self, x: Tensor, **_: object) -> Tensor:
        return self.attn(query=x, key=x, value=x)[0]


@pytest.mark.parametrize(("side", "width"), [(16, 60), (8, 48), (24, 64)])
def test_torchvisions_vision_transformer_rearranged(side, width):
    quality, predicted = attacked(torchvision_vit(side=side, width=width), (3, side, side), seed=side)
    assert predicted == "everything is recovered"
    assert quality > 100


@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_encoder_rearranged(batch_first):
    model = OnEncoder(batch_first=batch_first)
    quality, predicted = attacked(attention_first(model, find_roles(model)))
    assert predicted == "everything is recovered"
    assert quality > 100


def test_attention_called_by_name_with_learned_keys():
    model = OnEncoder()
    del model.layer
    model.encoder = nn.Sequential(ByName(), nn.LayerNorm(60))
    assert attacked(model)[0] > 100


@pytest.mark.parametrize("batch_first", [True, False])
def test_standard_layers_are_refused_with_the_reason(batch_first):
    with pytest.raises(Inapplicable, match="such as dropout or a normalisation, between them"):
        attacked(torchvision_vit(first=False))
    with pytest.raises(Inapplicable, match="such as dropout or a normalisation, between them"):
        attacked(OnEncoder(batch_first=batch_first, norm_first=True))
    with pytest.raises(Inapplicable, match="the tokens also bypass it, as in a residual connection"):
        attacked(OnEncoder(batch_first=batch_first))


def test_a_head_that_is_still_zero_lets_no_gradient_through():
    model = torchvision_vit()
    nn.init.zeros_(model.heads.head.weight)
    assert "rank 0 of 16" in attacked(model)[1]


def test_the_packed_weight_and_the_positions_must_be_shared():
    with pytest.raises(Inapplicable, match=r"not shared: encoder.layers.encoder_layer_0.self_attention.in_proj_weight"):
        attacked(torchvision_vit(), defenses=[Withhold(("attention",))])
    with pytest.raises(Inapplicable, match=r"not shared: encoder.pos_embedding"):
        attacked(torchvision_vit(), defenses=[Withhold(("position_embedding",))])


def test_the_right_side_is_the_sum_over_q_k_and_v():
    """Against the three thirds of the packed weight, each differentiated by itself."""
    model = torchvision_vit()
    layer = find_roles(model).attention[0]
    own = {name: p.detach().double() for name, p in model.named_parameters()}
    signal = {name: torch.randn_like(p) for name, p in own.items()}
    weight, gradient = (each[layer.weights[0]].chunk(3) for each in (own, signal))
    expected = sum(w.T @ g for w, g in zip(weight, gradient, strict=True))
    torch.testing.assert_close(attention_products(signal, own, layer), expected)


def test_april_by_optimisation_finds_torchvisions_positions():
    victim, x, y = (
        Victim(torchvision_vit(first=False), Pixels((3, 16, 16))),
        torch.rand(1, 3, 16, 16),
        torch.tensor([1]),
    )
    result = april(steps=3)(victim, share(victim, Gradient(), x, y))
    assert result.y is not None
    assert result.y.tolist() == [1]
    with pytest.raises(
        Inapplicable, match=r"not shared: encoder\.pos_embedding, the gradient of the position embedding"
    ):
        april(steps=3)(victim, share(victim, Gradient(), x, y, defenses=[Withhold(("position_embedding",))]))
