"""The papers' decoders against their written definitions: sizes, blocks and enhancements computed by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.attacks.decoder import Deconvolution, Vector
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.models.seeded import seeded
from leakgauge.testing import check_part
from reproductions.common.decoders import (
    ClassToken,
    Enhanced,
    Flattened,
    Fourier,
    Learned,
    Logarithm,
    Normalise,
    PredictionVector,
    Residual,
    ReversedIR,
    WeakToStrong,
)
from reproductions.common.decoders.attention import (
    ConvolutionGate,
    GlobalAttention,
    LargeKernelGate,
    MultiScaleGate,
    SqueezeExcite,
)
from reproductions.common.decoders.enhancement import Spectrum, Standardised
from reproductions.common.decoders.reversed_ir import ReversedUnit
from reproductions.common.networks.idle_biases import without_idle_biases
from reproductions.golden_partition_zone.decoder_tables import ATTENTION, ENHANCEMENTS
from tests.zoo import count, on_meta

IMAGE = (3, 64, 64)
DECODERS = {
    Residual: (32, 8, 8),
    ReversedIR: (32, 8, 8),
    Enhanced: (32, 8, 8),
    Flattened: (17, 8),
    ClassToken: (17, 8),
    PredictionVector: (10,),
}


@pytest.mark.parametrize(("kind", "feature"), DECODERS.items())
def test_every_decoder_makes_images_between_0_and_1_and_uses_all_it_has(kind, feature):
    decoder = kind()
    check_part(decoder)
    network = decoder(feature, (1, 28, 28))
    out = network(torch.randn(3, *feature, generator=torch.Generator().manual_seed(0)))
    assert out.shape == (3, 1, 28, 28)
    assert out.min() >= 0
    assert out.max() <= 1
    out.mean().backward()
    assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize(
    ("decoder", "feature"),
    [(Residual(), (10,)), (ClassToken(index=7), (5, 6)), (ClassToken(), (8, 4, 4)), (Enhanced(), (10,))],
    ids=repr,
)
def test_a_feature_of_another_kind_is_refused(decoder, feature):
    with pytest.raises(Inapplicable):
        decoder(feature, IMAGE)


def test_decoders_of_tokens_have_the_measured_sizes():
    flat = on_meta(Flattened(), (257, 128))
    first = next(m for m in flat.modules() if isinstance(m, nn.ConvTranspose2d))
    assert first.weight.numel() == 32768 * 512 * 16  # 268 M
    assert round(count(flat) / 1e6) == 271
    assert count(on_meta(ClassToken(), (257, 128))) == count(on_meta(Vector(), (128,)))


def test_class_token_reads_one_token_only():
    network = ClassToken(index=2)((5, 6), IMAGE).eval()
    tokens = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[:, [0, 1, 3, 4]] = 9.0
    assert torch.equal(network(tokens), network(other))
    other[:, 2] = 9.0
    assert not torch.equal(network(tokens), network(other))


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


def test_logarithm_by_hand():
    p = torch.tensor([[0.5, 0.25, 0.25, 0.0]])
    ln = torch.tensor([[0.5, 0.25, 0.25]]).log()
    expected = torch.cat([ln + 1000, torch.zeros(1, 1)], 1)  # ln 0 is floored at −1000, then all are raised to reach 0
    torch.testing.assert_close(Logarithm()(p), expected)
    torch.testing.assert_close(Logarithm(top=1)(p), torch.tensor([[ln[0, 0] + 50, 0, 0, 0]]))
    torch.testing.assert_close(Logarithm(top=3)(p)[0, :3], ln[0] + 50)


def test_the_prediction_attack_is_not_rounded_by_autocast():
    """A logarithm near 50 has steps of a quarter in bfloat16, in which decoders are trained on a GPU."""
    made = PredictionVector(Logarithm(), Vector(width=4))((10,), (3, 64, 64)).eval()
    logits = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        rounded = made(logits)
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, made(logits))


C = 32
SIZES = {
    GlobalAttention: 4 * C * C + 4 * C + 2 * C + 2 * (C * C + C),
    ConvolutionGate: 25 * C + C * C,
    SqueezeExcite: 2 * C * (C // 16),
    LargeKernelGate: 49 * C + C + C * C + C,
    MultiScaleGate: (9 + 25 + 49) * C + 3 * C + 3 * C * C + C,
}


@pytest.fixture
def x():
    return torch.randn(2, C, 6, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("block", SIZES, ids=lambda b: b.__name__)
def test_shape_and_size(block, x):
    with seeded(0):
        made = block(C)
    assert made(x).shape == x.shape
    assert sum(p.numel() for p in made.parameters()) == SIZES[block]


def test_convolution_gate_by_hand(x):
    with seeded(0):
        block = ConvolutionGate(C)
    gate = F.conv2d(x, block.gate.weight, padding=2, groups=C).sigmoid()
    expected = torch.einsum("oi,nihw->nohw", block.mix.weight[:, :, 0, 0], x * gate)
    torch.testing.assert_close(block(x), expected, atol=1e-5, rtol=1e-4)


def test_squeeze_excite_by_hand(x):
    with seeded(0):
        block = SqueezeExcite(C)
    weight = (x.mean((2, 3)) @ block.squeeze.weight.flatten(1).T).relu() @ block.excite.weight.flatten(1).T
    torch.testing.assert_close(block(x), x * weight.sigmoid()[:, :, None, None], atol=1e-6, rtol=1e-5)
    assert SqueezeExcite(4).squeeze.out_channels == 1  # fewer than 16 channels still leave one value


def test_large_kernel_gate_is_half_open_without_weights(x):
    block = LargeKernelGate(C)
    nn.init.zeros_(block.pointwise.weight)
    nn.init.zeros_(block.pointwise.bias)
    torch.testing.assert_close(block(x), x / 2)
    nn.init.constant_(block.pointwise.bias, 50.0)
    torch.testing.assert_close(block(x), x)


def test_multi_scale_gate_is_not_squashed(x):
    block = MultiScaleGate(C)
    nn.init.zeros_(block.fuse.weight)
    nn.init.constant_(block.fuse.bias, 3.0)
    torch.testing.assert_close(block(x), 3 * x)


def test_global_attention_by_hand(x):
    with seeded(0):
        block = GlobalAttention(C, heads=2)
    tokens = x.flatten(2).mT
    q, k, v = F.linear(tokens, block.attention.in_proj_weight, block.attention.in_proj_bias).chunk(3, 2)
    heads = [
        (a @ b.mT / (C // 2) ** 0.5).softmax(2) @ c
        for a, b, c in zip(q.chunk(2, 2), k.chunk(2, 2), v.chunk(2, 2), strict=True)
    ]
    tokens = tokens + block.attention.out_proj(torch.cat(heads, 2))
    tokens = tokens + block.mlp(tokens)
    torch.testing.assert_close(block(x), tokens.mT.reshape(x.shape), atol=1e-5, rtol=1e-4)


def test_weak_to_strong_is_the_papers_with_four_steps():
    blocks = [WeakToStrong()(step, 4, C) for step in range(4)]
    assert [type(b) for b in blocks[2:]] == [LargeKernelGate, MultiScaleGate]
    for weak in blocks[:2]:
        assert [type(part) for part in weak] == [ConvolutionGate, SqueezeExcite]
    assert [type(WeakToStrong()(step, 2, C)) for step in range(2)] == [LargeKernelGate, MultiScaleGate]


FEATURE, SMALL = (8, 4, 4), (1, 16, 16)


@pytest.fixture
def z():
    return torch.randn(6, *FEATURE, generator=torch.Generator().manual_seed(0))


def test_spectrum_against_numpy(z):
    spectrum = np.fft.fft2(z.numpy().astype(np.float64), norm="ortho")
    energy = np.log(1 + np.abs(spectrum.real) + np.abs(spectrum.imag))
    mean, std = (f(energy, axis=(1, 2, 3), keepdims=True) for f in (np.mean, lambda a, **k: np.std(a, ddof=1, **k)))
    torch.testing.assert_close(
        Spectrum()(z).double(), torch.from_numpy((energy - mean) / (std + 1e-6)), atol=1e-5, rtol=1e-4
    )


def test_normalise_has_the_statistics_of_all_pieces(z):
    norm = Standardised(8)
    assert torch.equal(norm(z), z / (1 + 1e-6))  # before it has seen anything
    norm.calibrate(z.split(4))
    out = norm(z).transpose(0, 1).flatten(1)
    torch.testing.assert_close(out.mean(1), torch.zeros(8), atol=1e-6, rtol=0)
    torch.testing.assert_close(out.std(1, unbiased=False), torch.ones(8), atol=1e-4, rtol=0)


def test_learned_has_the_papers_layers():
    layers = Learned()(8)
    assert [type(m) for m in layers] == [nn.Conv2d, nn.InstanceNorm2d, nn.ReLU, nn.Dropout2d, nn.Conv2d]
    assert sum(p.numel() for p in layers.parameters()) == 9 * 64 + 8 + 64 + 8
    assert layers[3].p == 0.3
    assert Learned(dropout=0.0)(8)[3].p == 0.0


@pytest.mark.parametrize(
    ("enhancements", "channels"),
    [
        ((), 8),
        ((Fourier(join="residual"),), 8),
        ((Fourier(),), 16),
        ((Normalise(),), 8),
        ((Normalise(join="concat"),), 16),
        ((Learned(),), 16),
        ((Learned(join="residual", dropout=0.0),), 8),
        ((Normalise(), Learned()), 16),
        ((Fourier(), Learned()), 32),
    ],
    ids=repr,
)
def test_the_decoder_gets_what_the_enhancements_leave(enhancements, channels, z):
    enhanced = Enhanced(Deconvolution("tanh"), enhancements)
    network = enhanced(FEATURE, SMALL)
    assert network.decoder[0].in_channels == channels
    assert network(z).shape == (6, *SMALL)
    check_part(enhanced)


def test_refusals():
    for make in (lambda: Residual(width=0), lambda: PredictionVector(Logarithm(top=0))):
        with pytest.raises(BadInput):
            make()
    with pytest.raises(BadInput, match="first enhancement"):
        Enhanced(enhancements=(Learned(), Normalise()))
    with pytest.raises(BadInput, match="joined as"):
        Enhanced(enhancements=(Fourier(join="sum"),))


@pytest.mark.parametrize("name", ["NN with dropout (concat)", "Inversion-IR152", "Attention & NN with dropout"])
def test_idle_biases_change_nothing(name):
    """A bias before a normalisation is subtracted again: same images and same other gradients without it, in training and after it."""
    decoder = (ENHANCEMENTS | ATTENTION)[name]
    with seeded(0):
        whole = decoder((32, 4, 4), IMAGE).double()
    with seeded(0):
        lean = without_idle_biases(decoder((32, 4, 4), IMAGE).double())
    for module in (*whole.modules(), *lean.modules()):
        if isinstance(module, nn.Dropout2d):
            module.p = 0.0
    z = torch.randn(6, 32, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for network in (whole, lean):
        for _ in range(2):
            network.zero_grad()
            network(z).square().mean().backward()
    ours = dict(lean.named_parameters())
    idle = dict(whole.named_parameters()).keys() - ours.keys()
    for n, p in whole.named_parameters():
        expected = torch.zeros_like(p) if n in idle else p.grad
        torch.testing.assert_close(p.grad if n in idle else ours[n].grad, expected, atol=1e-10, rtol=1e-8)
    for network in (whole, lean):  # running means hold the bias where there is one
        for layer in network.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.momentum = 1.0
    torch.testing.assert_close(lean.train()(z), whole.train()(z))
    torch.testing.assert_close(lean.eval()(z), whole.eval()(z))
    assert len(idle) == (0 if name == "Inversion-IR152" else 5)
