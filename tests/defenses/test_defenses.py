"""Defenses against numpy and against the statistics they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leakgauge.channels import Gradient
from leakgauge.core import NeedsVictim, Pixels, Victim, share
from leakgauge.defenses import Clip, GaussianNoise, LaplacianNoise, Prune, Quantize, Withhold, WithholdNames
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.families import ROLES
from leakgauge.models import CNN, ViT


def random_signal(seed: int = 0, scale: float = 1.0) -> dict:
    rng = torch.Generator().manual_seed(seed)
    return {
        "a": scale * torch.randn(40, 30, generator=rng),
        "b": scale * torch.randn(7, generator=rng),
        "c": torch.zeros(3),
    }


def defended(defense, signal, seed: int = 0) -> dict:
    before = {n: t.clone() for n, t in signal.items()}
    out = defense(signal, rng=torch.Generator().manual_seed(seed))
    assert all(torch.equal(before[n], signal[n]) for n in signal)
    return {n: t.numpy() for n, t in out.items()}


def length(signal: dict) -> float:
    return math.sqrt(sum(float(np.sum(np.asarray(t, dtype=float) ** 2)) for t in signal.values()))


def entries(signal: dict) -> int:
    return sum(t.numel() for t in signal.values())


# --- noise -------------------------------------------------------------------------------------------------------------

BIG = {"a": torch.full((300, 300), 2.0), "b": torch.full((10000,), -1.0)}


@pytest.mark.parametrize(("noise", "kurtosis"), [(GaussianNoise, 3.0), (LaplacianNoise, 6.0)])
@pytest.mark.parametrize(
    ("options", "sigma"),
    [
        ({"std": 0.3}, 0.3),
        ({"relative": 0.5}, 0.5 * math.sqrt(4 * 90000 + 10000) / math.sqrt(100000)),
        ({"variance_to_norm": 0.01}, math.sqrt(0.01 * math.sqrt(4 * 90000 + 10000))),
    ],
    ids=["std", "relative", "variance"],
)
def test_noise_has_the_promised_deviation_and_shape(noise, kurtosis, options, sigma):
    out = defended(noise(**options), BIG)
    added = np.concatenate([(out[n] - BIG[n].numpy()).ravel().astype(float) for n in BIG])
    assert added.std() == pytest.approx(sigma, rel=0.02)
    assert added.mean() == pytest.approx(0, abs=0.02 * sigma)
    assert np.mean(added**4) / added.var() ** 2 == pytest.approx(kurtosis, rel=0.1)
    assert abs(np.corrcoef(added[:-1], added[1:])[0, 1]) < 0.02


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([GaussianNoise, LaplacianNoise]), st.floats(0.1, 10), st.floats(1e-4, 1e4), st.integers(0, 99))
def test_relative_noise_is_that_many_times_as_long_as_the_gradient(noise, relative, scale, seed):
    signal = random_signal(seed, scale)
    out = defended(noise(relative=relative), signal, seed)
    added = {n: out[n] - signal[n].numpy() for n in signal}
    assert length(added) / length(signal) == pytest.approx(relative, rel=0.2)


def test_noise_follows_the_generator():
    signal = random_signal()
    one, again, other = (defended(GaussianNoise(std=1.0), signal, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one["a"], again["a"])
    assert np.abs(one["a"] - other["a"]).max() > 0.1


@pytest.mark.parametrize("noise", [GaussianNoise, LaplacianNoise])
def test_noise_of_zero_changes_nothing(noise):
    signal = random_signal()
    for name, value in defended(noise(std=0.0), signal).items():
        np.testing.assert_array_equal(value, signal[name].numpy())


@pytest.mark.parametrize("noise", [GaussianNoise, LaplacianNoise])
@pytest.mark.parametrize(
    "options",
    [{}, {"std": -1.0}, {"std": 1.0, "relative": 1.0}, {"relative": math.nan}, {"variance_to_norm": math.inf}],
)
def test_noise_refuses(noise, options):
    with pytest.raises(BadInput, match=f"{noise.__name__} needs exactly one of"):
        noise(**options)


def test_noise_on_nothing_is_nothing():
    assert defended(GaussianNoise(relative=1.0), {}) == {}


# --- clip, prune, quantize ---------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_clip(norm, scale):
    signal = random_signal(scale=scale)
    out, before = defended(Clip(norm), signal), length(signal)
    assert length(out) == pytest.approx(min(norm, before), rel=1e-5)
    for name, value in out.items():
        np.testing.assert_allclose(value, signal[name].numpy() * min(1, norm / before), rtol=1e-5)


def test_clip_of_a_zero_gradient():
    assert not defended(Clip(1.0), {"c": torch.zeros(3)})["c"].any()


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan])
def test_clip_refuses(norm):
    with pytest.raises(BadInput, match="positive norm"):
        Clip(norm)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 100), st.integers(0, 50))
@example(29, 0)  # 0.29 * 100 is a little less than 29 in floating point
def test_prune_keeps_the_top(percent, seed):
    values = torch.randn(100, generator=torch.Generator().manual_seed(seed))
    kept = 100 - percent
    out = defended(Prune(percent / 100), {"a": values.view(10, 10)})["a"].ravel()
    threshold = np.sort(np.abs(values.numpy()))[::-1][:kept].min() if kept else math.inf
    expected = np.where(np.abs(values.numpy()) >= threshold, values.numpy(), 0)
    np.testing.assert_array_equal(out, expected)


def test_prune_works_tensor_by_tensor():
    out = defended(Prune(0.5), {"large": torch.tensor([10.0, 20.0]), "small": torch.tensor([0.1, -0.2])})
    assert out["large"].tolist() == [0, 20]
    assert out["small"].tolist() == pytest.approx([0, -0.2])


@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan])
def test_prune_refuses(fraction):
    with pytest.raises(BadInput, match="between 0 and 1"):
        Prune(fraction)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.integers(0, 50), st.sampled_from([1e-6, 1.0, 1e6]))
def test_quantize(bits, seed, scale):
    signal = random_signal(seed, scale)
    out = defended(Quantize(bits), signal)
    for name in ("a", "b"):
        given_, peak = signal[name].numpy().astype(float), float(signal[name].abs().max())
        step = peak / (2 ** (bits - 1) - 1)
        levels = out[name] / step
        np.testing.assert_allclose(levels, np.round(levels), atol=1e-3)
        assert len(np.unique(np.round(levels))) <= 2**bits - 1
        assert np.abs(levels).max() == pytest.approx(2 ** (bits - 1) - 1, rel=1e-5)
        assert np.abs(out[name] - given_).max() <= 0.5 * step * (1 + 1e-3)
    assert not out["c"].any()


def test_quantize_to_whole_floats_changes_nothing():
    signal = random_signal()
    np.testing.assert_array_equal(defended(Quantize(32), signal)["a"], signal["a"].numpy())


def test_quantize_of_the_smallest_numbers_stays_finite():
    assert np.isfinite(defended(Quantize(8), {"a": torch.tensor([1e-45, 0.0])})["a"]).all()


def test_quantize_leaves_a_tensor_without_entries():
    assert defended(Quantize(4), {"a": torch.zeros(0, 3), "b": torch.ones(2)})["a"].shape == (0, 3)


@pytest.mark.parametrize("bits", [1, 0, -8, 4.5])
def test_quantize_refuses(bits):
    with pytest.raises(BadInput, match=r"at least 2 bits|a whole number, got 4.5"):
        Quantize(bits)


# --- withhold ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transformer():
    return Victim(ViT(side=8, width=8, depth=2, heads=2), Pixels((1, 8, 8)))


EXPECTED = {
    "head": {"head.weight", "head.bias"},
    "first_layer": {"patch_embed.proj.weight", "patch_embed.proj.bias"},
    "patch_embedding": {"patch_embed.proj.weight", "patch_embed.proj.bias"},
    "position_embedding": {"pos_embed"},
    "class_token": {"cls_token"},
    "attention": {f"blocks.{i}.attn.{n}.{p}" for i in (0, 1) for n in ("qkv", "proj") for p in ("weight", "bias")},
    "norms": {f"{n}.{p}" for n in ("blocks.0.norm1", "blocks.0.norm2", "blocks.1.norm1", "blocks.1.norm2", "norm")
              for p in ("weight", "bias")},
}  # fmt: skip


@pytest.mark.parametrize("role", EXPECTED)
def test_withhold_by_role(role, transformer):
    x, y = torch.rand(1, 1, 8, 8), torch.tensor([0])
    everything = share(transformer, Gradient(), x, y).signal
    left = share(transformer, Gradient(), x, y, defenses=(Withhold((role,)),)).signal
    assert set(everything) - set(left) == EXPECTED[role]
    assert all(torch.equal(left[n], everything[n]) for n in left)


def test_every_role_of_images_is_withheld_above():
    assert set(EXPECTED) == set(ROLES) - {"token_embedding"}  # which a text model has: tests/families/test_text.py


def test_withhold_several_roles_and_one_written_alone(transformer):
    both = Withhold(("head", "position_embedding")).for_victim(transformer)
    assert set(both.names) == EXPECTED["head"] | EXPECTED["position_embedding"]
    assert Withhold("head") == Withhold(("head",))


def test_withhold_refuses(transformer):
    assert isinstance(Withhold(("head",)), NeedsVictim)
    with pytest.raises(BadInput, match="did you mean head"):
        Withhold(("haed",)).for_victim(transformer)
    with pytest.raises(Inapplicable, match="no position_embedding"):
        Withhold(("position_embedding",)).for_victim(Victim(CNN(), Pixels((1, 28, 28))))
    with pytest.raises(BadInput, match="use it through share"):
        Withhold(("head",))(random_signal(), rng=torch.Generator())


def test_what_is_frozen_is_not_sent_and_cannot_be_withheld():
    """It was passed over without a word, and the set-up shown as a defended one."""
    model = CNN()
    model.head.requires_grad_(False)
    with pytest.raises(Inapplicable, match="head of this model is frozen, so none of it is sent anyway"):
        Withhold(("norms", "head")).for_victim(Victim(model, Pixels((1, 28, 28))))
    model.head.bias.requires_grad_(True)
    assert Withhold(("head",)).for_victim(Victim(model, Pixels((1, 28, 28)))) == WithholdNames(("head.bias",))


def test_withhold_nothing_and_names():
    signal = random_signal()
    assert list(Withhold()(signal, rng=torch.Generator())) == ["a", "b", "c"]
    assert list(WithholdNames(("b",))(signal, rng=torch.Generator())) == ["a", "c"]
