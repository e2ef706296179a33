"""Every registered attack, defense, channel and estimator obeys the laws that the package ships for third parties."""

import inspect

import pytest

from leakgauge import testing
from leakgauge.attacks import ATTACKS
from leakgauge.channels import CHANNELS, Gradient
from leakgauge.core import PerSample, share
from leakgauge.core.examples import examples_of
from leakgauge.defenses import DEFENSES
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.measures.mutual_information import ESTIMATORS, CriticFit, Estimate

ALL_TINY = (*testing.TINY, *testing.TINY_TEXT)


def on_victims(registry):
    """Every example of the registered parts with each victim that it is for."""
    return [
        pytest.param(make, example, victim, id=f"{name}-{number}-{victim}")
        for name, make in registry.items()
        for number, example in enumerate(examples_of(make))
        for victim in ((example.victim,) if example.victim else ALL_TINY)
    ]


@pytest.mark.parametrize("registry", [ATTACKS, DEFENSES, CHANNELS], ids=["attacks", "defenses", "channels"])
def test_every_registered_thing_has_an_example_that_the_laws_try(registry):
    without = [name for name, part in registry.items() if not examples_of(part)]
    assert not without, f"put @example(…) above {without[0]}"


@pytest.mark.parametrize("name", ATTACKS)
def test_attack(name):
    testing.check_examples(ATTACKS[name])


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "strongest"])  # which takes both
def test_attack_refuses_the_other_kind_of_data(name):
    """Attacks on images refuse text and the other way round; none crashes."""
    example, *_ = examples_of(ATTACKS[name])
    victim, x, y = testing.tiny_case("vit_a" if example.victim in testing.TINY_TEXT else "text_a")
    seen = share(victim, Gradient(), x, y)
    with testing.untouched(victim), pytest.raises(Inapplicable):
        ATTACKS[name](**example.options)(victim, seen)


def test_an_attack_that_ignores_the_signal_breaks_the_law():
    blind = ATTACKS["inverting_gradients"](steps=3).blind()
    with pytest.raises(AssertionError, match="beat the null run"):
        testing.check_attack(blind, *testing.tiny_case("cnn"))


@pytest.mark.parametrize(("make", "example", "victim"), on_victims(DEFENSES))
def test_defense(make, example, victim):
    testing.check_defense(make(**example.options), make(**example.neutral), *testing.tiny_case(victim, count=2))


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize(("make", "example", "victim"), on_victims(CHANNELS))
def test_channel(make, example, victim, mode):
    channel, (plain, x, y) = make(**example.options), testing.tiny_case(victim, count=2, mode=mode)
    case = (plain if example.server is None else example.server(plain), x, y)
    if isinstance(channel, PerSample) and mode == "train":
        with pytest.raises(BadInput, match="eval mode"):
            channel(*case)
        return
    try:
        testing.check_channel(channel, *case)
    except Inapplicable:
        assert (victim, mode) == ("cnn", "train")  # the one that normalises over the batch
    if isinstance(channel, PerSample):
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
    short = {"training": CriticFit(batch=32, steps=100, shifts=31), "candidates": 32}
    taken = inspect.signature(ESTIMATORS[name]).parameters
    testing.check_estimator(ESTIMATORS[name](**{option: short[option] for option in short if option in taken}))


def test_an_estimator_of_nothing_breaks_the_law():
    with pytest.raises(AssertionError, match="too few"):
        testing.check_estimator(lambda a, b, *, seed=0: Estimate(0.0, 0.0, 0.0, 0.0, len(a)))
