"""Closed-form APRIL: exact where the paper's conditions hold, refused or predicted to fail where they do not."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leakgauge.attacks import april_closed_form
from leakgauge.attacks.april.closed_form import AprilClosedForm, tokens_from_attention
from leakgauge.attacks.april.patches import pixels_from_patches
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.data.embedded import photographs
from leakgauge.defenses import Withhold
from leakgauge.errors import Inapplicable
from leakgauge.families import attention_first, find_roles
from leakgauge.measures.image import psnr
from leakgauge.models.vit import ViT


def recovered(
    model: nn.Module, shape: tuple[int, int, int], *, channel=None, images: Tensor | None = None
) -> tuple[float, tuple[str, ...]]:
    """PSNR of the reconstruction of an image (by default a random one), and the attack's notes."""
    space = Pixels(shape, mean=(0.4,), std=(0.3,))
    victim = Victim(model, space)
    if images is None:
        images = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0))
    images = images.to(victim.dtype)
    seen = share(victim, channel or Gradient(), space.encode(images), torch.tensor([1]))
    result = april_closed_form()(victim, seen)
    return float(psnr(space.decode(result.x), images)), result.notes


def architecture_a(**options) -> nn.Module:
    return ViT(**{"residual": False, "position_std": 1.0, "depth": 2, "classes": 5, **options}).double()


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    heads=st.integers(1, 4), wider=st.integers(0, 2), grid=st.integers(2, 4), patch=st.integers(2, 3),
    channels=st.sampled_from([1, 3]), bias=st.booleans(), class_token=st.booleans(), depth=st.integers(2, 3),
)  # fmt: skip
def test_exact_over_widths_heads_and_token_counts(heads, wider, grid, patch, channels, bias, class_token, depth):
    needed = max(channels * patch * patch, grid * grid + 1)
    width = heads * (-(-needed // heads) + wider)
    model = architecture_a(
        in_channels=channels, side=grid * patch, patch=patch, width=width, heads=heads, depth=depth, qkv_bias=bias,
        class_token=class_token,
    )  # fmt: skip
    quality, notes = recovered(model, (channels, grid * patch, grid * patch))
    assert quality > 60, notes
    assert "identifiability" in notes[0]


def papers_size(position_std: float) -> nn.Module:
    """224×224, width 768, patch 16."""
    return ViT(
        in_channels=3, side=224, patch=16, width=768, heads=12, depth=2, residual=False, position_std=position_std,
        class_token=False,
    )  # fmt: skip


def test_the_papers_size_in_both_precisions():
    """One photograph: over 100 dB from float64 gradients, over 50 dB from float32 with positions of scale 1."""
    photograph = photographs(224)[:1]
    exact, _ = recovered(papers_size(1.0).double(), (3, 224, 224), images=photograph)
    single, notes = recovered(papers_size(1.0), (3, 224, 224), images=photograph)
    assert exact > 100
    assert single > 50
    assert "everything is recovered" in notes[0]


def test_small_positions_in_float32_are_a_predicted_failure():
    """Positions of scale 0.02 hardly tell the flat patches of a photograph apart: 5 % of the range are 26 dB, 27 come out."""
    quality, notes = recovered(papers_size(0.02), (3, 224, 224), images=photographs(224)[:1])
    assert "rounding or noise in the gradients makes pixels wrong by about 5 % of their range" in notes[0]
    assert 24 < quality < 40


def test_one_block_read_by_the_class_token_is_a_predicted_failure():
    """Every patch then enters through its key and its value for one query: at most two directions per head."""
    model = architecture_a(side=12, patch=2, width=48, heads=4, depth=1)
    quality, notes = recovered(model, (1, 12, 12))
    assert "rank 8 of 36" in notes[0]
    assert quality < 30


def test_a_width_below_the_tokens_or_the_patch_is_a_predicted_failure():
    quality, notes = recovered(architecture_a(side=12, patch=2, width=24, heads=4), (1, 12, 12))
    assert "36 tokens are not determined by a width of 24" in notes[0]
    assert quality < 30
    quality, notes = recovered(architecture_a(side=12, patch=6, width=24, heads=4), (1, 12, 12))
    assert "36 values of a patch are not determined by a width of 24" in notes[0]
    assert quality < 30


def test_one_local_step_does_as_well_and_several_are_refused():
    model = architecture_a(side=12, patch=4, width=24, heads=2)
    assert recovered(model, (1, 12, 12), channel=FedAvg(steps=1, lr=0.3))[0] > 60
    with pytest.raises(Inapplicable, match="several local steps"):
        recovered(model, (1, 12, 12), channel=FedAvg(steps=2))


def test_a_batch_gives_its_mixture_and_says_so():
    space = Pixels((1, 12, 12))
    victim = Victim(architecture_a(side=12, patch=4, width=24, heads=2), space)
    x = torch.rand(2, 1, 12, 12, dtype=torch.float64)
    result = april_closed_form()(victim, share(victim, Gradient(), x, torch.tensor([0, 1])))
    assert result.x.shape == x.shape
    assert any("mixture" in note for note in result.notes)
    assert "2 samples share one system" in dict(result.stated)["predicted"]


def timm_vit(**options) -> nn.Module:
    from leakgauge.integrations.torchvision_guest import invite_torchvision

    invite_torchvision()
    import timm

    small = {"img_size": 16, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 4, "num_classes": 5}
    return timm.create_model("vit_base_patch16_224", **{**small, **options})


def hugging_face_vit() -> nn.Module:
    from leakgauge.integrations.torchvision_guest import invite_torchvision

    invite_torchvision()
    from transformers import ViTConfig, ViTForImageClassification

    from leakgauge.integrations.huggingface import Logits

    config = ViTConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, image_size=16, patch_size=4,
        num_labels=5, attn_implementation="eager",
    )  # fmt: skip
    return Logits(ViTForImageClassification(config))


def spread_positions(model: nn.Module) -> nn.Module:
    """Positions of scale 1: those that libraries start from are too small for the tokens to differ."""
    name = find_roles(model).position_embedding
    assert name is not None
    nn.init.normal_(model.get_parameter(name), generator=torch.Generator().manual_seed(0))
    return model.double()


@pytest.mark.parametrize("make", [timm_vit, hugging_face_vit])
def test_library_models_rearranged_as_architecture_a_are_recovered(make):
    model = make()
    quality, notes = recovered(spread_positions(attention_first(model, find_roles(model))), (3, 16, 16))
    assert quality > 60, notes


@pytest.mark.parametrize("make", [timm_vit, hugging_face_vit, lambda: ViT(in_channels=3, side=16, width=48, heads=4)])
def test_the_standard_layout_is_refused_with_the_reason(make):
    with pytest.raises(Inapplicable, match="a normalisation, between them"):
        recovered(spread_positions(make()), (3, 16, 16))


class Residual(nn.Module):
    """Attention without a norm before it, but with the tokens added to its output."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.attn, self.norm2, self.mlp = block.attn, block.norm2, block.mlp

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.norm2(x + self.attn(x)))


def test_a_residual_connection_is_refused_with_the_reason():
    model = architecture_a(side=12, patch=4, width=24, heads=2)
    model.blocks[0] = Residual(model.blocks[0])
    with pytest.raises(Inapplicable, match="bypass it"):
        recovered(model, (1, 12, 12))


def test_withheld_fixed_or_missing_positions_are_refused():
    space = Pixels((1, 12, 12))
    model = architecture_a(side=12, patch=4, width=24, heads=2)
    x, y = torch.rand(1, 1, 12, 12, dtype=torch.float64), torch.tensor([1])
    victim = Victim(model, space)
    with pytest.raises(Inapplicable, match="not shared: pos_embed"):
        april_closed_form()(victim, share(victim, Gradient(), x, y, defenses=[Withhold(("position_embedding",))]))
    with pytest.raises(Inapplicable, match=r"not shared: blocks\.0\.attn\.qkv\.weight"):
        april_closed_form()(victim, share(victim, Gradient(), x, y, defenses=[Withhold(("attention",))]))
    model.pos_embed.requires_grad_(False)
    with pytest.raises(Inapplicable, match="is fixed"):
        recovered(model, (1, 12, 12))
    with pytest.raises(Inapplicable, match="no self-attention"):
        recovered(nn.Sequential(nn.Flatten(), nn.Linear(144, 5)).double(), (1, 12, 12))


def test_the_label_is_read_where_it_can_be():
    space = Pixels((1, 12, 12))
    victim = Victim(architecture_a(side=12, patch=4, width=24, heads=2), space)
    seen = share(victim, Gradient(), torch.rand(1, 1, 12, 12, dtype=torch.float64), torch.tensor([3]))
    result = april_closed_form()(victim, seen)
    assert result.y.tolist() == [3]
    assert not result.x.requires_grad, "a result must not hold on to the victim's parameters"


def test_formulas_on_numbers_by_hand():
    gradient = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]], dtype=torch.float64)  # two tokens of width three
    z = torch.tensor([[3.0, -1.0, 2.0], [0.5, 4.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(tokens_from_attention(gradient, gradient.T @ z), z)
    weight = torch.tensor([[1.0, 2.0], [0.0, 1.0], [3.0, 0.0]], dtype=torch.float64)
    bias, values = torch.tensor([1.0, -1.0, 0.5]), torch.tensor([[2.0, 5.0]], dtype=torch.float64)
    torch.testing.assert_close(pixels_from_patches(values @ weight.T + bias.double(), weight, bias), values)


def test_rearranging_needs_attention():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(Inapplicable, match="no attention layer that a family knows"):
        attention_first(model, find_roles(model))


def test_the_attack_prints_its_options():
    assert isinstance(april_closed_form(), AprilClosedForm)
    assert "labels=" in repr(april_closed_form())


def test_a_forced_solution_is_a_guess_and_says_so():
    space = Pixels((1, 12, 12))
    victim = Victim(ViT(side=12, patch=4, width=24, heads=2, classes=5), space)
    seen = share(victim, Gradient(), torch.rand(1, 1, 12, 12), torch.tensor([1]))
    with pytest.raises(Inapplicable, match="between them"):
        april_closed_form()(victim, seen)
    for ridge in (None, "auto"):
        result = april_closed_form(ridge=ridge, force=True)(victim, seen)
        assert result.x.shape == (1, 1, 12, 12)
        assert "a guess, because the theorem's condition fails: the first attention does not read" in result.notes[-1]


def test_force_changes_nothing_where_the_theorem_holds():
    space = Pixels((1, 12, 12))
    victim = Victim(architecture_a(side=12, patch=4, width=24, heads=2), space)
    seen = share(victim, Gradient(), torch.rand(1, 1, 12, 12, dtype=torch.float64), torch.tensor([3]))
    plain, forced = (april_closed_form(force=force)(victim, seen) for force in (False, True))
    assert torch.equal(plain.x, forced.x)
    assert not any("guess" in note for note in forced.notes)
