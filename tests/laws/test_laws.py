"""Every registered attack, defense, channel and estimator obeys the laws that the package ships for third parties."""

import pytest

from leakgauge import testing
from leakgauge.attacks import ATTACKS
from leakgauge.channels import CHANNELS, DPSGD, Aggregate, Features, FedAvg, Gradient, ShuffledFedAvg
from leakgauge.core import Auxiliary, Size, share
from leakgauge.defenses import (
    DEFENSES,
    Clip,
    GaussianNoise,
    LaplacianNoise,
    MaskChannels,
    Prune,
    PruneChannels,
    Quantize,
    Withhold,
)
from leakgauge.errors import Inapplicable
from leakgauge.measures.mutual_information import ESTIMATORS, CriticFit, Estimate
from leakgauge.servers import FishingServer, ImprintServer

HOME = {
    "dlg": ("lenet", {"steps": 20, "restarts": 2}),
    "idlg": ("lenet", {"steps": 20, "restarts": 2}),
    "inverting_gradients": ("cnn", {"steps": 150, "tv": 0.01}),
    "tag": ("lenet", {"steps": 250}),
    "tag_read_labels": ("vit_a", {"steps": 150}),
    "linear": ("mlp", {}),
    "r_gap": ("lenet", {}),
    "gradinversion": ("cnn", {"steps": 150, "restarts": 3}),
    "generative_prior": ("cnn", {"latents": 8, "epochs": 20, "steps": 100, "pixels": 0.2, "restarts": 2}),
    "april": ("vit_a", {"steps": 300, "restarts": 2}),
    "april_closed_form": ("vit_a", {}),
    "april_from_closed_form": ("vit", {"steps": 300, "restarts": 2}),
    "april_text": ("text_a", {}),
    "bag_of_tokens": ("text", {}),
    "token_positions": ("text", {}),
    "feature_matching": ("cnn", {"steps": 100}),
    "feasibility": ("cnn", {"steps": 150}),
    "huang": ("cnn", {"steps": 150, "statistics": 0.01}),
    "federated_averaging": ("cnn", {"steps": 150}),
    "linear_rows": ("mlp", {}),
    "imprint": ("cnn", {}),
    "fishing": ("lenet", {"steps": 150, "tv": 0.01}),
}
SENT = {"imprint": ImprintServer, "fishing": FishingServer}
"""Malicious servers whose model an attack reads."""
HOLDS_IMAGES = {"generative_prior"}
"""Attacks that learn from images of the adversary's own."""
SEEN_THROUGH = {"feature_matching": Features("features.5")}
DEFENSE_SETTINGS = {
    "gaussian_noise": (GaussianNoise(relative=0.5), GaussianNoise(std=0.0)),
    "laplacian_noise": (LaplacianNoise(std=0.1), LaplacianNoise(relative=0.0)),
    "clip": (Clip(0.1), Clip(float("inf"))),
    "prune": (Prune(0.9), Prune(0.0)),
    "quantize": (Quantize(4), Quantize(32)),
    "mask_channels": (MaskChannels(0.5, seed=1), MaskChannels(0.0)),
    "prune_channels": (PruneChannels(0.5), PruneChannels(0.0)),
    "withhold": (Withhold(("head",)), Withhold()),
}
CHANNEL_SETTINGS = {
    "gradient": (Gradient(),),
    "features": (),  # a cut is a place in one model: FEATURES
    "fedavg": (FedAvg(), FedAvg(steps=3, lr=0.05, minibatch=1, order=(1, 0), momentum=0.9)),
    "shuffled_fedavg": (ShuffledFedAvg(epochs=2, lr=0.05, minibatch=1, seed=3),),
    "dpsgd": (DPSGD(clip=0.5, noise=0.3),),
    "aggregate": (Aggregate(clients=2, of=FedAvg(steps=2)),),
}
ALL_TINY = (*testing.TINY, *testing.TINY_TEXT)
SHORT = CriticFit(batch=32, steps=200, shifts=31)
ESTIMATOR_SETTINGS = {
    "dv": {"training": SHORT},
    "mine": {"training": SHORT},
    "nwj": {"training": SHORT},
    "infonce": {"candidates": 32, "training": SHORT},
    "smile": {"training": SHORT},
    "club": {"training": SHORT},
    "ksg": {},
    "cca": {},
}

FEATURES = {"mlp": "body.1", "lenet": "body.1", "cnn": "features.2", "vit": "blocks.0", "vit_a": "blocks.1"}


def test_every_registered_thing_has_its_laws():
    assert set(HOME) == set(ATTACKS)
    assert set(DEFENSE_SETTINGS) == set(DEFENSES)
    assert set(CHANNEL_SETTINGS) == set(CHANNELS)
    assert set(ESTIMATOR_SETTINGS) == set(ESTIMATORS)


@pytest.mark.parametrize("name", ATTACKS)
def test_attack(name):
    home, options = HOME[name]
    victim, x, y = testing.tiny_case(home)
    if name in SENT:
        victim = SENT[name](*([int(y[0])] if name == "fishing" else []))(victim)
    told = (
        (Size(), Auxiliary(victim.space.encode(testing.tiny_images(60)[0][10:]))) if name in HOLDS_IMAGES else (Size(),)
    )
    testing.check_attack(ATTACKS[name](**options), victim, x, y, channel=SEEN_THROUGH.get(name), reveal=told)


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_refuses_the_other_kind_of_data(name):
    """Attacks on images refuse text and the other way round; none crashes."""
    home, options = HOME[name]
    victim, x, y = testing.tiny_case("vit_a" if home in testing.TINY_TEXT else "text_a")
    seen = share(victim, Gradient(), x, y)
    with testing.untouched(victim), pytest.raises(Inapplicable):
        ATTACKS[name](**options)(victim, seen)


def test_an_attack_that_ignores_the_signal_breaks_the_law():
    blind = ATTACKS["inverting_gradients"](steps=3).blind()
    with pytest.raises(AssertionError, match="beat the null run"):
        testing.check_attack(blind, *testing.tiny_case("cnn"))


@pytest.mark.parametrize("name", DEFENSES)
@pytest.mark.parametrize("victim", ALL_TINY)
def test_defense(name, victim):
    if name == "withhold" and victim == "lenet":
        testing.check_defense(Withhold(("first_layer",)), Withhold(), *testing.tiny_case(victim, count=2))
    testing.check_defense(*DEFENSE_SETTINGS[name], *testing.tiny_case(victim, count=2))


@pytest.mark.parametrize("channel", [c for cs in CHANNEL_SETTINGS.values() for c in cs], ids=repr)
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("victim", ALL_TINY)
def test_channel(channel, mode, victim):
    if isinstance(channel, DPSGD) and mode == "train" and victim == "cnn":  # the one with batch normalisation
        with pytest.raises(Inapplicable, match="normalises over the batch"):
            testing.check_channel(channel, *testing.tiny_case(victim, count=2, mode=mode))
        return
    testing.check_channel(channel, *testing.tiny_case(victim, count=2, mode=mode))


@pytest.mark.parametrize("victim", testing.TINY)
def test_features(victim):
    case, channel = testing.tiny_case(victim, count=3), Features(FEATURES[victim])
    testing.check_channel(channel, *case)
    testing.check_rows(channel, *case)


def test_the_row_law_fails_for_a_gradient():
    with pytest.raises(AssertionError):
        testing.check_rows(Gradient(), *testing.tiny_case("mlp", count=3))


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("victim", ALL_TINY)
def test_single_step_is_the_gradient(mode, victim):
    testing.check_single_step(*testing.tiny_case(victim, count=2, mode=mode))


@pytest.mark.parametrize("victim", ALL_TINY)
def test_batch_gradient_is_the_mean_of_singles(victim):
    testing.check_mean_of_singles(*testing.tiny_case(victim, count=3))


def test_the_mean_law_fails_in_train_mode_with_batch_norm():
    with pytest.raises(AssertionError):
        testing.check_mean_of_singles(*testing.tiny_case("cnn", count=3, mode="train"))


def test_untouched_notices_a_changed_buffer():
    victim = testing.tiny_victim("cnn")
    with pytest.raises(AssertionError, match="running_mean"), testing.untouched(victim):
        victim.model.get_buffer("features.1.running_mean").add_(1)


def test_untouched_holds_when_an_attack_refuses():
    victim, x, y = testing.tiny_case("cnn")
    seen = share(victim, Gradient(), x, y)
    with testing.untouched(victim), pytest.raises(Inapplicable):
        ATTACKS["linear"]()(victim, seen)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimator(name):
    testing.check_estimator(ESTIMATORS[name](**ESTIMATOR_SETTINGS[name]))


def test_an_estimator_of_nothing_breaks_the_law():
    with pytest.raises(AssertionError, match="too few"):
        testing.check_estimator(lambda a, b, *, seed=0: Estimate(0.0, 0.0, 0.0, 0.0, len(a)))
