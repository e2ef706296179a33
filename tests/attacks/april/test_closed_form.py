"""Closed-form APRIL: exact where the paper's conditions hold, refused or predicted to fail where they do not."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.attacks import april_closed_form
from leakgauge.attacks.april.closed_form import AprilClosedForm, tokens_from_attention
from leakgauge.attacks.april.patches import pixels_from_patches
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.data.embedded import photographs
from leakgauge.errors import Inapplicable
from leakgauge.models.vit import ViT
from tests.attacks.april.solving import solve
from tests.zoo import architecture_a


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
    found = solve(model, (channels, grid * patch, grid * patch))
    assert found.psnr > 60, found.notes
    assert "identifiability" in found.notes[0]


def papers_size(position_std: float) -> ViT:
    """224×224, width 768, patch 16."""
    return architecture_a(
        in_channels=3, side=224, patch=16, width=768, heads=12, classes=10, position_std=position_std, class_token=False
    )


def test_the_papers_size_in_both_precisions():
    """One photograph: over 100 dB from float64 gradients, over 50 dB from float32 with positions of scale 1."""
    photograph = photographs(224)[:1]
    single = solve(papers_size(1.0), (3, 224, 224), image=photograph, dtype=torch.float32)
    assert solve(papers_size(1.0), (3, 224, 224), image=photograph).psnr > 100
    assert single.psnr > 50
    assert "everything is recovered" in single.notes[0]


def test_small_positions_in_float32_are_a_predicted_failure():
    """Positions of scale 0.02 hardly tell the flat patches of a photograph apart: 5 % of the range are 26 dB, 27 come out."""
    found = solve(papers_size(0.02), (3, 224, 224), image=photographs(224)[:1], dtype=torch.float32)
    assert "rounding or noise in the gradients makes pixels wrong by about 5 % of their range" in found.notes[0]
    assert 24 < found.psnr < 40


@pytest.mark.parametrize(
    ("options", "predicted"),
    [
        # read by the class token every patch enters through its key and its value for one query: two directions a head
        ({"patch": 2, "width": 48, "heads": 4, "depth": 1}, "rank 8 of 36"),
        ({"patch": 2, "width": 24, "heads": 4}, "36 tokens are not determined by a width of 24"),
        ({"patch": 6, "width": 24, "heads": 4}, "36 values of a patch are not determined by a width of 24"),
    ],
)
def test_too_little_room_is_a_predicted_failure(options, predicted):
    found = solve(architecture_a(**options))
    assert predicted in found.notes[0]
    assert found.psnr < 30


def test_one_local_step_does_as_well_and_several_are_refused():
    assert solve(architecture_a(), channel=FedAvg(steps=1, lr=0.3)).psnr > 60
    with pytest.raises(Inapplicable, match="several local steps"):
        solve(architecture_a(), channel=FedAvg(steps=2))


def seen_by(model: ViT, *, count: int = 1):
    """A victim, and what it shares of random images with the labels 3, 4, …"""
    victim = Victim(model, Pixels((1, 12, 12)))
    x = torch.rand(count, 1, 12, 12, dtype=victim.dtype)
    return victim, share(victim, Gradient(), x, 3 + torch.arange(count))


def test_a_batch_gives_its_mixture_and_says_so():
    victim, seen = seen_by(architecture_a().double(), count=2)
    result = april_closed_form()(victim, seen)
    assert result.x.shape == (2, 1, 12, 12)
    assert any("mixture" in note for note in result.notes)
    assert "2 samples share one system" in dict(result.stated)["predicted"]


def test_the_label_is_read_where_it_can_be():
    result = april_closed_form()(*seen_by(architecture_a().double()))
    assert result.y.tolist() == [3]
    assert not result.x.requires_grad, "a result must not hold on to the victim's parameters"


def test_formulas_on_numbers_by_hand():
    gradient = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]], dtype=torch.float64)  # two tokens of width three
    z = torch.tensor([[3.0, -1.0, 2.0], [0.5, 4.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(tokens_from_attention(gradient, gradient.T @ z), z)
    weight = torch.tensor([[1.0, 2.0], [0.0, 1.0], [3.0, 0.0]], dtype=torch.float64)
    bias, values = torch.tensor([1.0, -1.0, 0.5]), torch.tensor([[2.0, 5.0]], dtype=torch.float64)
    torch.testing.assert_close(pixels_from_patches(values @ weight.T + bias.double(), weight, bias), values)


def test_the_attack_prints_its_options():
    assert isinstance(april_closed_form(), AprilClosedForm)
    assert "labels=" in repr(april_closed_form())


def test_a_forced_solution_is_a_guess_and_says_so():
    victim, seen = seen_by(ViT(side=12, patch=4, width=24, heads=2, classes=5))
    for ridge in (None, "auto"):
        result = april_closed_form(ridge=ridge, force=True)(victim, seen)
        assert result.x.shape == (1, 1, 12, 12)
        assert "a guess, because the theorem's condition fails: the first attention does not read" in result.notes[-1]


def test_force_changes_nothing_where_the_theorem_holds():
    victim, seen = seen_by(architecture_a().double())
    plain, forced = (april_closed_form(force=force)(victim, seen) for force in (False, True))
    assert torch.equal(plain.x, forced.x)
    assert not any("guess" in note for note in forced.notes)
