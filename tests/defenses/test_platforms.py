"""The filters of platforms: bit by bit as the platforms' own, with their silent failures named."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from leakgauge.defenses import ExcludeVars, FlowerLocalDP, PercentilePrivacy, SVTPrivacy
from leakgauge.errors import BadInput

UPDATES = 20


def update(seed: int, scale: float = 0.02) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    shapes = {"conv.weight": (8, 3, 3, 3), "conv.bias": (8,), "head.weight": (10, 40), "scale": ()}
    return {name: scale * torch.randn(shape, generator=rng) for name, shape in shapes.items()}


def by_nvflare(filter, signal):
    """What NVFlare's own filter makes of an update, and whether it did anything."""
    dxo = pytest.importorskip("nvflare.apis.dxo")
    context = pytest.importorskip("nvflare.apis.fl_context").FLContext()
    shareable = pytest.importorskip("nvflare.apis.shareable").Shareable()
    data = {name: t.numpy().copy() for name, t in signal.items()}
    made = filter.process_dxo(dxo.DXO(dxo.DataKind.WEIGHT_DIFF, data=data), shareable, context)
    return None if made is None else {name: np.asarray(value) for name, value in made.data.items()}


def same_bits(ours, theirs) -> bool:
    return list(ours) == list(theirs) and all(
        np.array_equal(t.numpy(), np.asarray(theirs[n], dtype=t.numpy().dtype)) for n, t in ours.items()
    )


@pytest.mark.parametrize("options", [{}, {"percentile": 50, "gamma": 0.03}, {"percentile": 99.5}, {"percentile": 0}])
def test_percentile_privacy_is_nvflares_bit_by_bit(options):
    theirs = pytest.importorskip("nvflare.app_common.filters.percentile_privacy").PercentilePrivacy
    for seed in range(UPDATES):
        signal = update(seed)
        ours = PercentilePrivacy(**options)(signal, rng=torch.Generator())
        assert same_bits(ours, by_nvflare(theirs(**options), signal))


@pytest.mark.parametrize("options", [{}, {"fraction": 0.4, "epsilon": 5.0, "gamma": 0.01}, {"replace": False}])
def test_svt_privacy_is_nvflares_bit_by_bit(options):
    theirs = pytest.importorskip("nvflare.app_common.filters.svt_privacy").SVTPrivacy
    for seed in range(UPDATES):
        signal = update(seed)
        filter = theirs(**options)
        np.random.seed(seed)  # noqa: NPY002 - NVFlare draws from numpy's global stream
        made = by_nvflare(filter, signal)
        ours = SVTPrivacy(**options).filtered(signal, np.random.RandomState(seed))
        assert same_bits({name: ours[name] for name in sorted(ours)}, made)
        entries = sum(t.numel() for t in signal.values())
        assert SVTPrivacy(**options).spent(entries) == pytest.approx(filter.get_privacy_spent())


def test_exclude_vars_is_nvflares():
    theirs = pytest.importorskip("nvflare.app_common.filters.exclude_vars").ExcludeVars
    for seed in range(UPDATES):
        signal = update(seed)
        assert same_bits(
            ExcludeVars("conv|scale")(signal, rng=torch.Generator()), by_nvflare(theirs("conv|scale"), signal)
        )


def test_nvflare_sends_the_plain_update_where_we_refuse():
    theirs = pytest.importorskip("nvflare.app_common.filters.percentile_privacy").PercentilePrivacy
    for options in ({"percentile": 101}, {"percentile": -1}, {"gamma": 0.0}):
        assert by_nvflare(theirs(**options), update(0)) is None  # the filter framework then keeps the update as it was
        with pytest.raises(BadInput, match="would send the plain update"):
            PercentilePrivacy(**options)


def test_percentile_privacy_by_hand():
    signal = {"w": torch.tensor([0.5, -0.02, 0.001, -0.004]), "s": torch.tensor(3.0)}
    sent = PercentilePrivacy(percentile=50, gamma=0.1)(signal, rng=torch.Generator())
    assert sent["w"].tolist() == pytest.approx([0.1, -0.02, 0.0, 0.0])
    assert float(sent["s"]) == 3.0


def test_frozen_zeros_drag_the_cutoff_to_zero():
    signal = update(0)
    assert PercentilePrivacy().doubts(signal) == ()
    frozen = signal | {"backbone": torch.zeros(1000)}
    (said,) = PercentilePrivacy().doubts(frozen)
    assert said.startswith("PercentilePrivacy drops nothing: 62% of the update is zero")
    sent = PercentilePrivacy(gamma=1.0)(frozen, rng=torch.Generator())
    assert all(torch.equal(sent[name], t) for name, t in frozen.items())


def test_stock_svt_spends_more_than_it_says():
    (said,) = SVTPrivacy().doubts({"w": torch.zeros(703_329)})
    assert "ε = 7,033 in each round, not 0.1" in said
    assert SVTPrivacy(epsilon=10.0, noise_var=0.001).doubts({"w": torch.zeros(1000)}) == ()


def test_the_classic_formula_beyond_its_range_is_named():
    dp = FlowerLocalDP(clipping_norm=0.5, sensitivity=1.0, epsilon=1.0, delta=1e-5)
    assert dp.doubts({}) == ()
    assert dp.std == pytest.approx(1.0 * math.sqrt(2 * math.log(1.25e5)))
    assert "no guarantee" in FlowerLocalDP(epsilon=10.0).doubts({})[0]
    (said,) = FlowerLocalDP(clipping_norm=1.0, sensitivity=1.9).doubts({})  # one clipped update, and its opposite
    assert "may be 2 apart" in said
    assert ExcludeVars("nothing").doubts(update(0)) != ()


def test_flowers_noise_and_clipping_have_the_platforms_size():
    privacy = pytest.importorskip("flwr.supercore.differential_privacy")
    signal = {"w": torch.full((200, 200), 0.1)}
    dp = FlowerLocalDP(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0)
    arrays = [signal["w"].numpy().copy()]
    privacy.clip_inputs_inplace(arrays, 1.0)
    np.testing.assert_allclose(dp.replayed({"w": signal["w"][None]})["w"][0].numpy(), arrays[0], rtol=2e-5)
    noise = dp(signal, rng=torch.Generator().manual_seed(0))["w"] - torch.from_numpy(arrays[0])
    assert float(noise.std()) == pytest.approx(dp.std, rel=0.02)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SVTPrivacy(fraction=0),
        lambda: SVTPrivacy(gamma=-1.0),
        lambda: FlowerLocalDP(epsilon=0.0),
        lambda: FlowerLocalDP(delta=2.0),
        lambda: ExcludeVars("("),
        lambda: PercentilePrivacy(steps=0),
    ],
)
def test_wrong_options_are_refused(make):
    with pytest.raises(BadInput):
        make()


@pytest.mark.parametrize("make", [PercentilePrivacy, SVTPrivacy])
def test_updates_in_bfloat16_are_filtered(make):
    signal = {"w": torch.linspace(-1e-3, 1e-3, 400).bfloat16()}
    sent = make()(signal, rng=torch.Generator().manual_seed(0))
    assert sent["w"].dtype == torch.bfloat16
    assert sent["w"].shape == (400,)


def test_a_threshold_that_nothing_reaches_is_refused():
    with pytest.raises(BadInput, match="for ever; lower tau or epsilon"):
        SVTPrivacy(epsilon=1e6, tau=1.0)({"w": torch.rand(50)}, rng=torch.Generator().manual_seed(0))
    with pytest.raises(BadInput, match="holds NaN or Inf"):
        SVTPrivacy()({"w": torch.tensor([1.0, float("nan")] * 20)}, rng=torch.Generator().manual_seed(0))
