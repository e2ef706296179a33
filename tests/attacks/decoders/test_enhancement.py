"""Enhancements of the transmitted feature against their definitions."""

import numpy as np
import pytest
import torch
from torch import nn

from leakgauge.attacks.decoders import Deconvolution, Enhanced, Fourier, Learned, Normalise
from leakgauge.attacks.decoders.enhancement import Joined, Spectrum, Standardised
from leakgauge.errors import BadInput
from leakgauge.testing import check_part

FEATURE, IMAGE = (8, 4, 4), (1, 16, 16)


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


def test_spectrum_does_not_see_a_shift(z):
    torch.testing.assert_close(Spectrum()(z.roll(2, 3).abs()), Spectrum()(z.abs().roll(2, 3)))
    flat = torch.full((1, *FEATURE), 3.0)
    assert torch.isfinite(Spectrum()(flat)).all()


def test_normalise_has_the_statistics_of_all_pieces(z):
    norm = Standardised(8)
    assert torch.equal(norm(z), z / (1 + 1e-6))  # before it has seen anything
    norm.calibrate(z.split(4))
    out = norm(z).transpose(0, 1).flatten(1)
    torch.testing.assert_close(out.mean(1), torch.zeros(8), atol=1e-6, rtol=0)
    torch.testing.assert_close(out.std(1, unbiased=False), torch.ones(8), atol=1e-4, rtol=0)


def test_a_constant_channel_does_no_harm():
    norm = Standardised(2)
    norm.calibrate([torch.ones(3, 2, 2, 2)])
    assert torch.equal(norm(torch.ones(1, 2, 2, 2)), torch.zeros(1, 2, 2, 2))


def test_learned_has_the_papers_layers():
    layers = Learned()(8)
    assert [type(m) for m in layers] == [nn.Conv2d, nn.InstanceNorm2d, nn.ReLU, nn.Dropout2d, nn.Conv2d]
    assert sum(p.numel() for p in layers.parameters()) == 9 * 64 + 8 + 64 + 8
    assert layers[3].p == 0.3
    assert Learned(dropout=0.0)(8)[3].p == 0.0


def test_joins(z):
    twice = nn.Identity()
    assert torch.equal(Joined(twice, "input")(z), z)
    assert torch.equal(Joined(twice, "residual")(z), 2 * z)
    assert torch.equal(Joined(twice, "concat")(z), torch.cat([z, z], 1))


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
    network = enhanced(FEATURE, IMAGE)
    assert network.decoder[0].in_channels == channels
    assert network(z).shape == (6, *IMAGE)
    check_part(enhanced)


def test_calibration_reaches_the_first_stage_only_where_it_is_wanted(z):
    network = Enhanced(Deconvolution(), (Normalise(), Learned()))(FEATURE, IMAGE)
    network.calibrate([z])
    torch.testing.assert_close(network.stages[0].change.mean.flatten(), z.mean((0, 2, 3)))
    Enhanced(Deconvolution(), (Learned(),))(FEATURE, IMAGE).calibrate([z])
    Enhanced(Deconvolution(), ())(FEATURE, IMAGE).calibrate([z])


def test_statistics_travel_with_the_weights(z):
    network, other = (Enhanced(Deconvolution(), (Normalise(),))(FEATURE, IMAGE) for _ in range(2))
    network.calibrate([z])
    other.load_state_dict(network.state_dict())
    assert torch.equal(other.eval()(z), network.eval()(z))


def test_refusals():
    with pytest.raises(BadInput, match="first enhancement"):
        Enhanced(enhancements=(Learned(), Normalise()))
    with pytest.raises(BadInput, match="joined as"):
        Enhanced(enhancements=(Fourier(join="sum"),))
