"""Decoders against their written definitions: sizes, shapes, parameter counts, and parts computed by hand."""

import itertools

import pytest
import torch
from torch import nn

from leakgauge.attacks.decoders import (
    DECODERS,
    ByShape,
    ClassToken,
    Deconvolution,
    Enhanced,
    Flattened,
    Logarithm,
    Narrowed,
    Power,
    PredictionVector,
    Residual,
    ReversedIR,
    TokenGrid,
    Unchanged,
    Vector,
    WeakToStrong,
)
from leakgauge.attacks.decoders.by_shape import channels_last
from leakgauge.attacks.decoders.residual import ResidualUnit
from leakgauge.attacks.decoders.reversed_ir import ReversedUnit
from leakgauge.attacks.decoders.tokens import ToGrid, grid_of
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.testing import check_part

IMAGE = (3, 64, 64)
FEATURES = {
    "by_shape": (32, 8, 8),
    "deconvolution": (32, 8, 8),
    "residual": (32, 8, 8),
    "reversed_ir": (32, 8, 8),
    "enhanced": (32, 8, 8),
    "token_grid": (17, 8),
    "flattened": (17, 8),
    "class_token": (17, 8),
    "vector": (10,),
    "narrowed": (40,),
    "prediction_vector": (10,),
}


def count(module):
    return sum(p.numel() for p in module.parameters())


def on_meta(decoder, feature, image=IMAGE):
    with torch.device("meta"):
        network = decoder(feature, image)
        assert network(torch.zeros(2, *feature)).shape == (2, *image)
    return network


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("image", [(3, 64, 64), (1, 28, 28), (1, 12, 20)], ids=str)
def test_every_decoder_makes_images_between_0_and_1_and_uses_all_it_has(name, image):
    decoder = DECODERS[name]()
    feature = FEATURES[name]
    if image == (1, 12, 20) and name in ("token_grid", "flattened"):
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
    on_meta(Residual(), (64, 7, 5), (1, 28, 20))
    on_meta(Residual(), (8, 40, 40), (1, 28, 28))


def test_yangs_decoder_has_his_parameters():
    """K → 8g at 4 × 4, 4g, 2g, g, image; norms after all but the last; g = 128."""
    g, k = 128, 10
    steps = [(k, 8 * g), (8 * g, 4 * g), (4 * g, 2 * g), (2 * g, g)]
    expected = sum(16 * a * b + 3 * b for a, b in steps) + 16 * g * 3 + 3
    network = on_meta(Vector(width=g), (k,))
    assert count(network) == expected
    assert sum(isinstance(m, nn.Tanh) for m in network.modules()) == 4


def test_vit_decoders_have_the_measured_sizes():
    grid, flat = (on_meta(d, (257, 128)) for d in (TokenGrid(), Flattened()))
    assert count(grid) == 128 * 64 * 16 + 64 * 32 * 16 + 3 * (64 + 32) + 1 + 32 * 3 * 9  # 0.165 M
    first = next(m for m in flat.modules() if isinstance(m, nn.ConvTranspose2d))
    assert first.weight.numel() == 32768 * 512 * 16  # 268 M
    assert round(count(flat) / 1e6) == 271
    assert count(on_meta(ClassToken(), (257, 128))) == count(on_meta(Vector(), (128,)))


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


def test_class_token_reads_one_token_only():
    network = ClassToken(index=2)((5, 6), IMAGE).eval()
    tokens = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[:, [0, 1, 3, 4]] = 9.0
    assert torch.equal(network(tokens), network(other))
    other[:, 2] = 9.0
    assert not torch.equal(network(tokens), network(other))


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


def test_reversed_ir_has_the_papers_units():
    network = on_meta(ReversedIR(), (512, 4, 4))
    units = [m for m in network if isinstance(m, ReversedUnit)]
    sizes = [(u.residual[1].in_channels, u.residual[1].out_channels, u.residual[3].stride) for u in units]
    assert sizes == [(512, 256, (2, 2)), (256, 128, (2, 2)), (128, 64, (2, 2)), (64, 64, (2, 2)), (64, 3, (1, 1))]

    def unit(a, b):
        return 2 * a + 9 * a * b + b + 16 * b * b + 2 * b + 16 * a * b

    last = 2 * 64 + 9 * 64 * 3 + 3 + 9 * 9 + 6 + 64 * 3 + 6
    expected = sum(unit(a, b) for a, b in [(512, 256), (256, 128), (128, 64), (64, 64)]) + last + 3 * 3 * 9 + 3
    assert count(network) == expected


def test_a_silent_residual_unit_is_its_shortcut():
    unit = ReversedUnit(4, 6, doubles=True).eval()
    nn.init.zeros_(unit.residual[4].weight)
    x = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(unit(x), unit.shortcut(x))
    plain = ResidualUnit(4).eval()
    nn.init.zeros_(plain.body[4].weight)
    torch.testing.assert_close(plain(x), nn.functional.silu(x))


def test_residual_widths_lie_between_its_bounds():
    network = on_meta(Residual(width=16), (512, 4, 4))
    assert [m.out_channels for m in network if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)] == [
        128,
        64,
        32,
        16,
        16,
        3,
    ]


def test_logarithm_by_hand():
    p = torch.tensor([[0.5, 0.25, 0.25, 0.0]])
    ln = torch.tensor([[0.5, 0.25, 0.25]]).log()
    expected = torch.cat([ln + 1000, torch.zeros(1, 1)], 1)  # ln 0 is floored at −1000, then all are raised to reach 0
    torch.testing.assert_close(Logarithm()(p), expected)
    torch.testing.assert_close(Logarithm(top=1)(p), torch.tensor([[ln[0, 0] + 50, 0, 0, 0]]))
    torch.testing.assert_close(Logarithm(top=3)(p)[0, :3], ln[0] + 50)


def test_power_and_unchanged_by_hand():
    p = torch.tensor([[0.5, 0.25, 2.0**-12, 0.0]])
    torch.testing.assert_close(Power()(p)[0, 2], torch.tensor(0.5))
    torch.testing.assert_close(Power(1.0)(p), p, atol=1e-29, rtol=1e-6)
    assert Unchanged()(p) is p


def test_prediction_vector_takes_logits_or_probabilities():
    logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    decoders = [PredictionVector(Power(), logits=given) for given in (True, False)]
    made = []
    for decoder, sent in zip(decoders, (logits, logits.softmax(1)), strict=True):
        torch.manual_seed(0)
        made.append(decoder((10,), (1, 16, 16)).eval()(sent))
    torch.testing.assert_close(*made)


@pytest.mark.parametrize(
    ("decoder", "feature"),
    [
        (Deconvolution(), (257, 128)),
        (Residual(), (10,)),
        (Vector(), (8, 4, 4)),
        (Narrowed(), (8, 4, 4)),
        (TokenGrid(before=3), (257, 8)),
        (TokenGrid(), (8, 4, 4)),
        (ClassToken(index=7), (5, 6)),
        (ClassToken(), (8, 4, 4)),
        (Enhanced(), (10,)),
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
        lambda: Residual(width=0),
        lambda: Narrowed(values=0),
        lambda: PredictionVector(Logarithm(top=0)),
    ],
    ids=["deconvolution", "its start", "vector", "residual", "narrowed", "logarithm"],
)
def test_wrong_options_are_refused(make):
    with pytest.raises(BadInput):
        make()


def test_attention_stands_where_it_was_placed():
    plain, attended = (on_meta(Deconvolution(attention=a), (512, 4, 4)) for a in (None, WeakToStrong()))
    names = [type(m).__name__ for m in attended]
    assert names.count("LargeKernelGate") == names.count("MultiScaleGate") == 1
    assert names.index("LargeKernelGate") < names.index("MultiScaleGate")
    assert count(attended) > count(plain)


def test_the_prediction_attack_is_not_rounded_by_autocast():
    """A logarithm near 50 has steps of a quarter in bfloat16, in which decoders are trained on a GPU."""
    made = PredictionVector(Logarithm(), Vector(width=4))((10,), (3, 64, 64)).eval()
    logits = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        rounded = made(logits)
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, made(logits))


@pytest.mark.parametrize(
    ("decoder", "feature"),
    [
        (Deconvolution(), (32, 7, 7)),
        (Residual(width=8), (32, 7, 7)),
        (ReversedIR(), (32, 7, 7)),
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
