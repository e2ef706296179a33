"""Decoders against their written definitions: sizes, shapes, parameter counts, and parts computed by hand."""

import itertools

import pytest
import torch
from torch import nn

from leakgauge.attacks.decoder import DECODERS, ByShape, Deconvolution, Narrowed, TokenGrid, Vector
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.priors.decoders.networks import ToGrid, channels_last, grid_of
from leakgauge.testing import check_part
from tests.zoo import count, on_meta

IMAGE = (3, 64, 64)
FEATURES = {
    "by_shape": (32, 8, 8),
    "deconvolution": (32, 8, 8),
    "token_grid": (17, 8),
    "vector": (10,),
    "narrowed": (40,),
}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("image", [(3, 64, 64), (1, 28, 28), (1, 12, 20)], ids=str)
def test_every_decoder_makes_images_between_0_and_1_and_uses_all_it_has(name, image):
    decoder = DECODERS[name]()
    feature = FEATURES[name]
    if image == (1, 12, 20) and name == "token_grid":
        feature = (16, 8)  # three rows, five columns, and one token before them
    network = decoder(feature, image)
    out = network(torch.randn(3, *feature, generator=torch.Generator().manual_seed(0)))
    assert out.shape == (3, *image)
    assert out.min() >= 0
    assert out.max() <= 1
    out.mean().backward()
    assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_are_parts(name):
    check_part(DECODERS[name]())


def test_registry_and_cases_agree():
    assert set(FEATURES) == set(DECODERS)


@pytest.mark.parametrize(
    ("feature", "widths"),
    [
        ((128, 32, 32), [128, 64]),
        ((256, 16, 16), [256, 128, 64]),
        ((512, 8, 8), [512, 256, 128, 64]),
        ((512, 4, 4), [512, 256, 128, 64, 64]),
    ],
    ids=str,
)
def test_deconvolution_has_the_papers_steps_and_widths(feature, widths):
    layers = [m for m in on_meta(Deconvolution(), feature).modules() if isinstance(m, nn.ConvTranspose2d)]
    assert [(m.in_channels, m.out_channels) for m in layers[:-1]] == list(itertools.pairwise(widths))
    assert all((m.kernel_size, m.stride, m.padding) == ((4, 4), (2, 2), (1, 1)) for m in layers[:-1])
    last = layers[-1]
    assert (last.in_channels, last.out_channels, last.kernel_size, last.bias) == (widths[-1], 3, (3, 3), None)


def test_parameters_of_deconvolution_by_hand():
    """Each step: 16·a·b weights, b biases, 2b of the norm; tanh first, then PReLU with one slope each."""
    steps = [(512, 256), (256, 128), (128, 64), (64, 64)]
    expected = sum(16 * a * b + 3 * b for a, b in steps) + 9 * 64 * 3
    assert count(on_meta(Deconvolution("tanh"), (512, 4, 4))) == expected
    assert count(on_meta(Deconvolution("mixed"), (512, 4, 4))) == expected + 3
    assert count(on_meta(Deconvolution("prelu"), (512, 4, 4))) == expected + 4


@pytest.mark.parametrize(
    ("kind", "expected"), [("tanh", [nn.Tanh] * 3), ("prelu", [nn.PReLU] * 3), ("mixed", [nn.Tanh, nn.PReLU, nn.PReLU])]
)
def test_activations(kind, expected):
    network = Deconvolution(kind)((32, 8, 8), IMAGE)
    assert [type(m) for m in network.modules() if isinstance(m, nn.Tanh | nn.PReLU)] == expected


def test_a_feature_as_large_as_the_image_gets_one_step():
    layers = [m for m in Deconvolution()((64, 64, 64), IMAGE).modules() if isinstance(m, nn.ConvTranspose2d)]
    assert [(m.kernel_size, m.stride) for m in layers] == [((3, 3), (1, 1)), ((3, 3), (1, 1))]


def test_sides_that_doubling_misses_are_resized():
    on_meta(Deconvolution(), (64, 3, 3), (1, 28, 28))
    on_meta(Deconvolution(), (64, 7, 5), (1, 28, 20))
    on_meta(Deconvolution(), (8, 40, 40), (1, 28, 28))


def test_the_decoder_of_tokens_has_the_measured_size():
    expected = 128 * 64 * 16 + 64 * 32 * 16 + 3 * (64 + 32) + 1 + 32 * 3 * 9  # 0.165 M
    assert count(on_meta(TokenGrid(), (257, 128))) == expected


def test_yangs_decoder_has_his_parameters():
    """K → 8g at 4 × 4, 4g, 2g, g, image; norms after all but the last; g = 128."""
    g, k = 128, 10
    steps = [(k, 8 * g), (8 * g, 4 * g), (4 * g, 2 * g), (2 * g, g)]
    expected = sum(16 * a * b + 3 * b for a, b in steps) + 16 * g * 3 + 3
    network = on_meta(Vector(width=g), (k,))
    assert count(network) == expected
    assert sum(isinstance(m, nn.Tanh) for m in network.modules()) == 4


def test_tokens_keep_their_places():
    tokens = torch.arange(2 * 7 * 4.0).view(2, 7, 4)
    grid = ToGrid(1, 2, 3)(tokens)
    assert grid.shape == (2, 4, 2, 3)
    for row in range(2):
        for column in range(3):
            assert torch.equal(grid[:, :, row, column], tokens[:, 1 + 3 * row + column])


@pytest.mark.parametrize(
    ("feature", "image", "before", "expected"),
    [
        ((256, 8), (3, 64, 64), None, (0, 16, 16)),
        ((257, 8), (3, 64, 64), None, (1, 16, 16)),
        ((261, 8), (3, 64, 64), 5, (5, 16, 16)),
        ((50, 8), (3, 28, 28), 1, (1, 7, 7)),
        ((51, 8), (3, 32, 64), 1, (1, 5, 10)),
    ],
)
def test_grids(feature, image, before, expected):
    assert grid_of(feature, image, before) == expected


def test_by_shape_takes_what_fits():
    for feature, same in [
        ((16, 4, 4), Deconvolution("prelu", start="calm")),
        ((17, 8), TokenGrid(Deconvolution("prelu", start="calm"))),
        ((10,), Vector()),
    ]:
        assert count(on_meta(ByShape(), feature)) == count(on_meta(same, feature))
    long = on_meta(ByShape(), (100_000,))
    assert count(long) == 256 * 100_000 + 2 * 256 + count(on_meta(Vector(), (256,)))
    with pytest.raises(Inapplicable, match="no decoder"):
        ByShape()((), IMAGE)


@pytest.mark.parametrize(
    ("decoder", "feature"),
    [
        (Deconvolution(), (257, 128)),
        (Vector(), (8, 4, 4)),
        (Narrowed(), (8, 4, 4)),
        (TokenGrid(before=3), (257, 8)),
        (TokenGrid(), (8, 4, 4)),
    ],
    ids=repr,
)
def test_a_feature_of_another_kind_is_refused(decoder, feature):
    with pytest.raises(Inapplicable):
        decoder(feature, IMAGE)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Deconvolution("relu"),
        lambda: Deconvolution(start="hot"),
        lambda: Vector(activation="relu"),
        lambda: Narrowed(values=0),
    ],
    ids=["deconvolution", "its start", "vector", "narrowed"],
)
def test_wrong_options_are_refused(make):
    with pytest.raises(BadInput):
        make()


@pytest.mark.parametrize(
    ("decoder", "feature"),
    [
        (Deconvolution(), (32, 7, 7)),
        (Vector(width=8), (10,)),
    ],
    ids=lambda part: type(part).__name__,
)
def test_a_pixel_that_is_far_too_bright_can_come_back_in_bfloat16(decoder, feature):
    """Of sigmoid(8) = 0.9997 bfloat16 makes 1, whose derivative y(1 − y) is 0."""
    network = decoder(feature, (1, 28, 28))
    logits: list[torch.Tensor] = []

    def bright(_module, inputs):
        logits.append((8 + 0 * inputs[0]).detach().requires_grad_())
        return (logits[0],)

    network[-1].register_forward_pre_hook(bright)
    with torch.autocast("cpu", torch.bfloat16):
        made = network(torch.randn(2, *feature))
    made.float().square().mean().backward()
    assert logits[0].dtype == torch.bfloat16
    assert logits[0].grad is not None
    assert (logits[0].grad > 0).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_a_calm_start_keeps_pixels_off_the_ends(channels):
    """Its last layer draws from ±1/√(inputs · 9), torch's from ±1/√(outputs · 9)."""
    feature, image = (32, 7, 7), (channels, 28, 28)
    z = torch.randn(16, *feature, generator=torch.Generator().manual_seed(0))
    ends = {}
    for start in ("torch", "calm"):
        torch.manual_seed(0)
        network = Deconvolution("prelu", start=start)(feature, image)
        last = next(m for m in reversed(list(network.modules())) if isinstance(m, nn.ConvTranspose2d))
        inputs = last.in_channels if start == "calm" else channels
        bound = (9 * inputs) ** -0.5
        assert 0.9 * bound < last.weight.abs().max() <= bound
        ends[start] = network[:-1](z).abs().max()
    assert ends["calm"] < 3 < ends["torch"]


@pytest.mark.parametrize(
    ("feature", "image", "turned"),
    [
        ((7, 7, 96), (3, 28, 28), True),  # Swin's
        ((4, 6, 32), (1, 32, 48), True),
        ((96, 7, 7), (3, 28, 28), False),
        ((8, 8, 8), (3, 32, 32), False),  # both may be meant, and channels come first by custom
        ((8, 5, 3), (3, 32, 32), False),
    ],
)
def test_channels_that_come_last_are_told_by_the_proportions(feature, image, turned):
    assert channels_last(feature, image) is turned
    network = ByShape()(feature, image).eval()
    z = torch.randn(2, *feature)
    assert network(z).shape == (2, *image)
    if turned:
        first = network[1](z.permute(0, 3, 1, 2))
        torch.testing.assert_close(network(z), first)


def test_more_sizes_than_a_map_has_are_one_vector():
    assert ByShape()((2, 3, 4, 5), (1, 16, 16))(torch.randn(2, 2, 3, 4, 5)).shape == (2, 1, 16, 16)
