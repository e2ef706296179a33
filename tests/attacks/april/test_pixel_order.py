"""Closed-form APRIL on patches by a linear layer: the order of pixels is found, whatever it is, or the reason is given."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.attacks.april.patches import PatchGrid, pixel_order
from leakgauge.core import Pixels, Victim
from leakgauge.errors import Inapplicable
from leakgauge.families import find_roles
from leakgauge.models.vit import ViT
from tests.attacks.april.solving import ALL, solve
from tests.zoo import ByName, HandVit, architecture_a

SIDE = 4


def rearranged(x: Tensor) -> Tensor:
    """Patches with channels last: (batch, patches, rows · columns · channels)."""
    batch, channels, height, width = x.shape
    split = x.reshape(batch, channels, height // SIDE, SIDE, width // SIDE, SIDE)
    return split.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, SIDE * SIDE * channels)


def unfolded(x: Tensor) -> Tensor:
    return F.unfold(x, SIDE, stride=SIDE).transpose(1, 2)


def overlapping(x: Tensor) -> Tensor:
    return F.unfold(x, SIDE, stride=2).transpose(1, 2)


def shuffled(x: Tensor) -> Tensor:
    order = torch.randperm(x[0].numel(), generator=torch.Generator().manual_seed(3))
    return x.flatten(1)[:, order].reshape(len(x), -1, SIDE * SIDE * x.shape[1])


def with_a_frame(x: Tensor) -> Tensor:
    return unfolded(F.pad(x, (2, 2, 2, 2)))


class LinearPatches(nn.Module):
    def __init__(self, rearrange, values: int, width: int, before: nn.Module | None = None) -> None:
        super().__init__()
        self.rearrange = rearrange
        self.before = before or nn.Identity()
        self.proj = nn.Linear(values, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(self.before(self.rearrange(x)))


def vit(rearrange, shape: tuple[int, ...], *, before: nn.Module | None = None, width: int = 60) -> ViT:
    """Architecture A with one token for each patch of ``rearrange`` and no class token."""
    torch.manual_seed(0)
    _, patches, values = rearrange(torch.zeros(1, *shape)).shape
    model = architecture_a(width=width, class_token=False)
    model.patch_embed = LinearPatches(rearrange, values, width, before)
    model.pos_embed = nn.Parameter(torch.randn(1, patches, width))
    return model


@pytest.mark.parametrize("shape", [(1, 12, 12), (3, 8, 16), (2, 20, 12)])
@pytest.mark.parametrize("rearrange", [rearranged, unfolded, shuffled])
def test_images_come_back_from_any_order_of_pixels(rearrange, shape):
    found = solve(vit(rearrange, shape), shape)
    assert found.predicted == ALL
    assert found.psnr > 100


def test_overlapping_patches_and_values_that_no_patch_holds():
    assert solve(vit(overlapping, (1, 8, 8)), (1, 8, 8)).psnr > 100
    found = solve(vit(unfolded, (1, 10, 8)), (1, 10, 8))
    assert found.predicted == "16 values of the image are in no patch: they stay unknown"
    assert found.psnr < 30


def test_a_linear_layer_before_nn_multiheadattention():
    model = HandVit(ByName(), convolution=False)
    assert find_roles(model).patch_embedding == "cut"
    assert solve(model, (3, 12, 12)).psnr > 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_order_is_that_of_the_models_own_rearrangement(dtype):
    shape = (3, 40, 40)
    victim = Victim(vit(rearranged, shape).to(dtype), Pixels(shape))
    numbers = torch.arange(math.prod(shape)).reshape(1, *shape)
    assert torch.equal(pixel_order(victim, "patch_embed.proj", seed=0), rearranged(numbers)[0])


def test_a_linear_layer_on_unfolded_pixels_is_a_convolution():
    torch.manual_seed(0)
    conv, shape = nn.Conv2d(2, 6, SIDE, SIDE).double(), (2, 8, 12)
    layer = nn.Linear(32, 6).double()
    layer.weight.data, layer.bias.data = conv.weight.data.flatten(1), conv.bias.data
    index = unfolded(torch.arange(math.prod(shape), dtype=torch.float64).reshape(1, *shape))[0].long()
    one, other = PatchGrid.of(conv, shape), PatchGrid.of_linear(layer, index, shape)
    x = torch.rand(1, *shape, dtype=torch.float64)
    assert torch.equal(one.index, other.index)
    torch.testing.assert_close(one.embed(x), conv(x).flatten(2).transpose(1, 2)[0])
    torch.testing.assert_close(other.embed(x), layer(unfolded(x))[0])


@pytest.mark.parametrize(
    ("rearrange", "before"),
    [
        (rearranged, nn.LayerNorm(16)),
        (rearranged, nn.Hardtanh()),
        (rearranged, nn.Linear(16, 16)),
        (lambda x: rearranged((x - 0.5) / 0.2), None),
        (lambda x: rearranged(F.avg_pool2d(x, 3, 1, 1)), None),
        (with_a_frame, None),
    ],
    ids=["layer norm", "clipped", "two linear layers", "normalised", "blurred", "zeros around it"],
)
def test_anything_else_than_single_pixels_is_refused_with_the_reason(rearrange, before):
    reason = "several layers" if isinstance(before, nn.Linear) else "does not read single values of the model's input"
    with pytest.raises(Inapplicable, match=reason):
        solve(vit(rearrange, (1, 12, 12), before=before), (1, 12, 12))


def test_a_layer_that_is_never_called_is_refused():
    model = vit(rearranged, (1, 12, 12))
    proj = model.patch_embed.proj
    model.patch_embed.forward = lambda x: F.linear(rearranged(x), proj.weight, proj.bias)
    with pytest.raises(Inapplicable, match=r"patch_embed.proj is not called"):
        solve(model, (1, 12, 12))
