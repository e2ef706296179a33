"""Paper mode: it runs as the paper says, leaves everything alone, and its controls show what the number is made of."""

import dataclasses
import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.core import Pixels, Victim
from leakgauge.data import fashion
from leakgauge.errors import BadInput
from leakgauge.monitor.paper import AutoencoderToken, PaperSchedule, TokenCriticFit, TransformerToken, paper_mode
from leakgauge.testing import untouched
from reproductions.common.networks.privacy_tokens import TokenLeNet

SHORT = PaperSchedule(sub_epochs=3, iterations=10, lr=5e-3, checkpoints=(0, 1, 3), evaluation=30)
QUICK = TokenCriticFit(steps=60, lr=1e-3, token_lr=1e-3, fraction=0.3)
TINY = TransformerToken(width=32, heads=4, feedforward=64)


def data(count=600):
    x, y = fashion("train")
    return F.avg_pool2d((x - 0.286) / 0.353, 2)[:count], y[:count]


def lenet(seed=0):
    return TokenLeNet(in_channels=1, side=14, seed=seed)


def measured(model=None, **options):
    given = {
        "feature_layer": TokenLeNet.feature_layer,
        "gradient_layers": TokenLeNet.gradient_layers,
        "schedule": SHORT,
        "training": QUICK,
        "token": TINY,
    }
    return paper_mode(model or lenet(), F.cross_entropy, data(), **(given | options))


@pytest.fixture(scope="module")
def warm():
    return measured(reading="warm")


def test_decoy_explains_the_gap(warm):
    """Features of other data, made by the same weights, give the same gap: the critic tells the time, not the data."""
    last = warm.checkpoints[-1]
    assert last.collected.gap > 0.5
    assert last.controls.decoy.gap == pytest.approx(last.collected.gap, rel=0.15)


def test_at_frozen_weights_nothing_is_left_of_the_gap(warm):
    last = warm.checkpoints[-1]
    assert abs(last.paper.gap) < 0.1 * last.collected.gap
    assert abs(last.controls.held_out.gap) < 0.1 * last.collected.gap


def test_mismatched_gradients_come_from_the_same_sub_epoch_by_default():
    """As Algorithm 1 draws them. Among all pairs the critic can tell the time across sub-epochs too, and reads more."""
    written, of_all = measured(), measured(shuffle="all")
    assert (written.reading, written.shuffle) == ("once", "sub_epoch")
    assert written.checkpoints[-1].collected.gap < 0.5 * of_all.checkpoints[-1].collected.gap


def test_mismatched_information_is_never_positive(warm):
    for at in warm.checkpoints:
        gaps = (at.paper, at.collected, at.controls.held_out, at.controls.decoy, at.controls.null)
        assert all(gap.mismatched <= 1e-9 for gap in gaps if gap is not None)


def test_before_training_nothing_was_collected(warm):
    first = warm.checkpoints[0]
    assert first.sub_epoch == 0
    assert first.collected is None
    assert first.controls.decoy is None
    assert abs(first.paper.gap) < 0.01


def test_the_model_learns(warm):
    assert warm.checkpoints[-1].accuracy > warm.checkpoints[0].accuracy + 0.2


def test_result_says_what_it_is_and_can_be_written_down(warm):
    assert "not mutual information" in warm.label
    stored = json.loads(json.dumps(dataclasses.asdict(warm)))
    assert stored["checkpoints"][2]["controls"]["decoy"].keys() >= {"matched", "mismatched"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        warm.label = "mutual information"


def test_in_the_sample_shuffled_pairs_score_too():
    """Ten pairs and a critic that may learn them by heart: where nothing is to be found it reads more nats than ln 10."""
    greedy = TokenCriticFit(steps=100, lr=5e-3, token_lr=1e-3, fraction=1.0)
    short = dataclasses.replace(SHORT, sub_epochs=1, checkpoints=(1,))
    controls = measured(schedule=short, training=greedy).checkpoints[0].controls
    assert controls.null.gap > 10
    assert controls.held_out.matched < 0  # held out, the same recipe reads less than nothing


@pytest.mark.parametrize(("reading", "times"), [("once", 1), ("warm", 3), ("fresh", 2)])
def test_each_reading_costs_what_is_said(reading, times):
    few = TokenCriticFit(steps=2)
    found = measured(reading=reading, training=few, token=AutoencoderToken(8, 4), controls=False)
    assert found.cost.critic_steps == 2 * times  # nothing is collected at sub-epoch 0, so fresh trains at 1 and 3
    assert [at.sub_epoch for at in found.checkpoints] == [0, 1, 3]
    pairs, features, gradient = 30, 20 * 192, 312 + 2 * 3612
    assert found.cost.stored == 4 * pairs * (features + gradient)


def test_controls_do_not_change_the_numbers():
    few = TokenCriticFit(steps=3)
    small = AutoencoderToken(8, 4)
    without = measured(training=few, token=small, controls=False)
    beside = measured(training=few, token=small)
    assert [at.paper for at in without.checkpoints] == [at.paper for at in beside.checkpoints]
    assert all(at.controls.decoy is None and at.controls.null is None for at in without.checkpoints)


@pytest.mark.parametrize("controls", [True, False])
def test_repeatable_and_nothing_is_touched(controls):
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(196, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10)
    )
    victim = Victim(model, Pixels((1, 14, 14)), mode="train")
    options = {
        "feature_layer": "3",
        "gradient_layers": ("1", "5"),
        "training": TokenCriticFit(steps=2),
        "controls": controls,
    }
    before = torch.get_rng_state()
    with untouched(victim):
        first, second = (measured(victim.model, **options) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert first.checkpoints == second.checkpoints
    assert first.checkpoints != measured(victim.model, seed=1, **options).checkpoints


def test_checkpoints_are_handed_out():
    seen = {}
    measured(
        training=TokenCriticFit(steps=1),
        token=AutoencoderToken(8, 4),
        on_checkpoint=lambda at, model: seen.__setitem__(at, model.fc.weight.detach().clone()),
    )
    assert list(seen) == [0, 1, 3]
    assert torch.equal(seen[0], lenet().fc.weight)
    assert not torch.equal(seen[1], seen[3])


def test_a_sketch_takes_the_place_of_whole_gradients():
    shapes = []

    def sketch(signal):
        shapes.append(set(signal))
        return torch.stack([g.flatten()[:4] for name, g in signal.items() if name.endswith("weight")])

    found = measured(training=TokenCriticFit(steps=1), token=TINY, sketch=sketch, controls=False)
    assert shapes[0] == {f"body.{i}.{kind}" for i in (0, 2, 4) for kind in ("weight", "bias")}
    assert found.cost.stored == 4 * 30 * (20 * 192 + 3 * 4)


def test_pairs_that_do_not_fit_are_refused():
    with pytest.raises(BadInput, match="pass sketch="):
        measured(memory=100_000)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"feature_layer": "nose"}, "no module 'nose'"),
        ({"gradient_layers": ("body.1",)}, "no trainable parameter"),
        ({"reading": "twice"}, "reading must be"),
        ({"shuffle": "none"}, "shuffle"),
        ({"held_out": (torch.zeros(3, 1, 14, 14), torch.zeros(3))}, "held_out needs"),
    ],
)
def test_refusals(options, says):
    with pytest.raises(BadInput, match=says):
        measured(**options)


def test_schedules_and_trainings_are_checked():
    with pytest.raises(BadInput, match="between 0 and 5"):
        PaperSchedule(sub_epochs=5, checkpoints=(9,))
    with pytest.raises(BadInput, match="two iterations"):
        PaperSchedule(iterations=0)
    with pytest.raises(BadInput, match="fraction"):
        TokenCriticFit(fraction=0.0)


def test_the_features_of_an_untrained_model_are_too_small_for_the_critic():
    """A gap of 0 at initialisation says little: there the features barely vary, and fixed learning rates cannot make up for it."""
    spread = {}

    def keep(sub_epoch, model):
        spread[sub_epoch] = float(model.body(data()[0]).detach().flatten(1).std(0).mean())

    measured(training=TokenCriticFit(steps=1), token=AutoencoderToken(8, 4), controls=False, on_checkpoint=keep)
    assert spread[3] > 5 * spread[0]
