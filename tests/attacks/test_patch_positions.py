"""The sample of a transformer, exactly, from the gradients of its patch embedding and its positions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from leakgauge import testing
from leakgauge.attacks import april_closed_form, patch_positions
from leakgauge.attacks.patch_positions import _System, patches_from_positions, smoothest
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Pixels, Series, Victim, share
from leakgauge.data.embedded import photographs
from leakgauge.defenses import GaussianNoise
from leakgauge.defenses.withhold import WithholdNames
from leakgauge.errors import Inapplicable
from leakgauge.measures.image import ssim
from leakgauge.models.seeded import seeded


class Attending(nn.Module):
    """A transformer with residual connections and normalisations over pieces of a series, or over patches of an image."""

    def __init__(self, embed: nn.Module, tokens: int, width: int = 16, *, again: bool = False) -> None:
        super().__init__()
        self.embed, self.pos = embed, nn.Parameter(0.1 * torch.randn(tokens, width))
        self.block = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.head, self.again = nn.Linear(width, 3), again

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.pos
        read = self.block(tokens)
        return self.head((read + self.pos.square() if self.again else read).mean(1))


def series_victim(tokens=8, width=16, **options):
    with seeded(0):
        model = Attending(nn.Conv1d(2, width, 4, 4), tokens, width, **options)
    return Victim(model, Series(2, 4 * tokens, bounds=(-3, 3)))


def a_series(victim, seed=0):
    return torch.randn(1, *victim.space.shape, generator=torch.Generator().manual_seed(seed)).clamp(-2, 2)


@pytest.mark.parametrize("channel", [Gradient(), FedAvg(steps=1, lr=0.1)], ids=["gradient", "one step"])
def test_a_series_comes_back_exactly_through_residual_connections(channel):
    victim = series_victim()
    x, y = a_series(victim), torch.tensor([1])
    found = patch_positions()(victim, share(victim, channel, x, y))
    torch.testing.assert_close(found.x, x, atol=1e-3, rtol=0)
    assert found.certified is not None
    assert bool(found.certified.all())


def test_an_image_comes_back_where_the_closed_form_of_the_attention_refuses():
    with seeded(0):
        victim = Victim(Attending(nn.Conv2d(1, 16, 4, 4), 4), Pixels((1, 8, 8)))
    x, y = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([2])
    seen = share(victim, Gradient(), x, y)
    torch.testing.assert_close(patch_positions()(victim, seen).x, x, atol=1e-3, rtol=0)
    with pytest.raises(Inapplicable):
        april_closed_form()(victim, seen)


def test_the_patches_solve_their_system():
    """Δᵀ p = ∂W, worked out by hand for two positions and three outputs."""
    rows, patches = torch.tensor([[1.0, 0.0, 1.0], [1.0, 2.0, 0.0]]), torch.tensor([[3.0], [5.0]])
    weight = torch.tensor([[8.0], [10.0], [3.0]])
    found, _, error = patches_from_positions(rows, weight)
    torch.testing.assert_close(found, patches.double())
    assert error is not None
    assert error < 1e-5
    assert patches_from_positions(torch.ones(2, 3), torch.ones(3, 1))[2] is None


def test_the_stated_error_grows_with_noise_and_with_rounding_and_is_none_without_a_spare_equation():
    rng = torch.Generator().manual_seed(0)
    rows, patches = torch.randn(12, 16, generator=rng), torch.rand(12, 8, generator=rng)
    weight = rows.T @ patches
    noisy = weight + 0.1 * torch.randn(weight.shape, generator=rng)
    found, _, error = patches_from_positions(rows, noisy, span=10)
    assert error is not None
    assert error > 0.5 * float((found - patches).square().mean().sqrt())
    coarse = patches_from_positions(rows, weight, eps=torch.finfo(torch.bfloat16).eps, span=100)[2]
    exact = patches_from_positions(rows, weight)[2]
    assert coarse is not None
    assert exact is not None
    assert coarse > 1000 * exact
    assert patches_from_positions(rows[:, :12], weight[:12])[2] is None


def test_more_patches_than_the_tokens_are_wide_are_not_certified():
    victim = series_victim(tokens=20)
    found = patch_positions()(victim, share(victim, Gradient(), a_series(victim), torch.tensor([0])))
    assert found.certified is not None
    assert not bool(found.certified.any())
    assert "fix 16 combinations" in found.notes[1]


def test_what_the_gradients_do_not_tell_is_the_smoothest_image():
    """Twenty patches with tokens 16 wide: the told part is kept, and of all images with it the found one has the fewest edges."""
    with seeded(0):
        victim = Victim(Attending(nn.Conv2d(1, 16, 4, 4), 20), Pixels((1, 16, 20)))
    x = torch.zeros(1, 1, 16, 20)
    x[..., 3:11, 5:17] = 0.8
    signal = share(victim, Gradient(), victim.space.encode(x), torch.tensor([2])).signal
    system = _System.of(victim, signal, seed=0)
    least, told, error = patches_from_positions(*system.gradients(signal))
    assert error is None
    assert len(told) < 20
    found = smoothest(system.grid, least, told, span=1.0)
    true = system.grid.cut(victim.space.encode(x).double())
    torch.testing.assert_close(told @ found, told @ least)
    torch.testing.assert_close(told @ found, told @ true, atol=1e-3, rtol=0)

    def edges(patches):
        image = system.grid.assemble(patches)
        return sum(float(image.diff(dim=d).abs().sum()) for d in (1, 2))

    assert (found - true).norm() < 0.2 * (least - true).norm()
    assert edges(found) < min(edges(least), 1.05 * edges(true))


def narrow_results(defenses=()):
    """Three photographs through a network with one patch more than its tokens are wide (the usual tiny ViT has 196 and 192)."""
    with seeded(0):
        victim = Victim(Attending(nn.Conv2d(3, 48, 16, 16), 49, 48), Pixels((3, 112, 112)))
    for one in photographs(112)[:3, None]:
        seen = share(victim, Gradient(), victim.space.encode(one), torch.tensor([0]), defenses=defenses)
        system = _System.of(victim, seen.signal, seed=0)
        least, told, _ = patches_from_positions(*system.gradients(seen.signal))
        yield one, patch_positions()(victim, seen), system.grid.assemble(least)[None].float(), told


def decibels(found, truth):
    return float(-10 * (found - truth).square().mean().log10())


def test_images_of_a_narrow_transformer_are_recognised():
    for truth, made, least, _ in narrow_results():
        assert float(ssim(made.x, truth)) > 0.98
        assert decibels(made.x, truth) > decibels(least, truth) + 3


def test_noise_is_seen_without_a_spare_equation():
    """Combinations that the noise drowns are left out; solving for all 48 leaves 8 or 9 dB."""
    for truth, made, _, told in narrow_results((GaussianNoise(relative=1e-3),)):
        assert len(told) < 40
        assert decibels(made.x, truth) > 14


def test_patches_that_overlap_are_not_completed():
    with seeded(0):
        victim = Victim(Attending(nn.Conv2d(1, 16, 8, 4), 49, 16), Pixels((1, 32, 32)))
    seen = share(victim, Gradient(), victim.space.encode(photographs(32)[:1, :1]), torch.tensor([0]))
    assert "left grey" in patch_positions()(victim, seen).notes[1]


def test_noise_is_not_certified():
    victim = series_victim()
    seen = share(victim, Gradient(), a_series(victim), torch.tensor([0]), defenses=(GaussianNoise(relative=0.1),))
    found = patch_positions()(victim, seen)
    assert found.certified is not None
    assert not bool(found.certified.any())


@pytest.mark.parametrize(
    ("size", "options", "defenses", "why"),
    [
        (2, {}, (), "mixes 2"),
        (1, {}, (WithholdNames(("pos",)),), "not shared: pos"),
        (1, {"again": True}, (), "used again"),
    ],
)
def test_what_it_cannot_know_is_refused(size, options, defenses, why):
    victim = series_victim(**options)
    x, y = torch.cat([a_series(victim, seed) for seed in range(size)]), torch.zeros(size, dtype=torch.long)
    with pytest.raises(Inapplicable, match=why):
        patch_positions()(victim, share(victim, Gradient(), x, y, defenses=defenses))


def test_other_models_are_refused():
    victim, x, y = testing.tiny_case("cnn")
    with pytest.raises(Inapplicable, match="no patch embedding"):
        patch_positions()(victim, share(victim, Gradient(), x, y))
