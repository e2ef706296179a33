"""Labels from the head's gradient: right where the precondition holds, refused where it does not."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from leakgauge.channels import DPSGD, FedAvg, Gradient
from leakgauge.core import Labels, Observation, Pixels, Size, Victim, share
from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.defenses import Clip, WithholdNames
from leakgauge.errors import Inapplicable
from leakgauge.inversion import (
    BiasCounts,
    ExpectedCounts,
    FirstThatApplies,
    Joint,
    MinimumEntry,
    RowSum,
    SignRule,
    infer_labels,
)
from leakgauge.inversion.labels import class_count, class_labels
from leakgauge.models import MLP
from leakgauge.models.seeded import seeded

REPEATED = [0, 0, 1, 1, 1, 2, 9, 9]


def victim(*, labels: int = 10, activation: type[nn.Module] = nn.ReLU, bias: bool = True, loss=F.cross_entropy, seed=0):
    with seeded(seed):
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(36, 24), activation(), nn.Linear(24, labels, bias=bias)
        )  # fmt: skip
    return Victim(model, Pixels((1, 6, 6)), loss=loss)


def observed(of: Victim, labels: list[int], *, channel=None, seed: int = 0, **options) -> Observation:
    x = torch.rand(len(labels), 1, 6, 6, generator=torch.Generator().manual_seed(seed))
    return share(of, channel or Gradient(), x, torch.tensor(labels), **options)


def told(rule, of: Victim, seen: Observation) -> list[int] | None:
    found = rule(of, seen, rng=torch.Generator().manual_seed(0))
    return None if found is None else sorted(found.tolist())


# --- right where it applies --------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 9), st.integers(0, 50), st.sampled_from([nn.ReLU, nn.Tanh, nn.Identity]))
def test_sign_rule(label, seed, activation):
    of = victim(activation=activation, seed=seed)
    assert told(SignRule(), of, observed(of, [label], seed=seed)) == [label]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=2, max_size=10), st.integers(0, 20))
def test_classes_that_the_model_favours_anyway_are_counted(labels, seed):
    """A head whose own bias gives class 3 more than half of the chances."""
    of = victim(seed=seed)
    with torch.no_grad():
        of.model[3].bias[3] += 2.5
    seen = observed(of, labels, seed=seed)
    assert told(ExpectedCounts(), of, seen) == sorted(labels)


def test_the_plain_counts_miss_a_favoured_class():
    of = victim()
    with torch.no_grad():
        of.model[3].bias[3] += 2.5
    seen = observed(of, list(range(8)))
    assert told(BiasCounts(strict=False), of, seen) != list(range(8))
    assert told(ExpectedCounts(), of, seen) == list(range(8))


def test_where_the_scale_is_not_the_gradients_labels_are_counted_without_it():
    labels = [1, 1, 1, 1, 4, 7]
    of = victim()
    seen = observed(of, labels, defenses=(Clip(0.01),))
    with pytest.raises(Inapplicable, match="unscaled gradient"):
        told(ExpectedCounts(), of, seen)
    assert told(infer_labels(), of, seen) == labels


def test_a_loss_that_adds_up_the_batch():
    of = victim(loss=nn.CrossEntropyLoss(reduction="sum"))
    for channel in (Gradient(), FedAvg(steps=2, lr=0.001, minibatch=3)):
        assert told(ExpectedCounts(), of, observed(of, [1, 1, 1, 1, 4, 7], channel=channel)) == [1, 1, 1, 1, 4, 7]


def test_a_layer_that_gives_no_score_per_class_is_no_head():
    """The head that the model was born with is not run, and the last linear layer is a gate."""

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.scores, self.fc = nn.Linear(1, 1), nn.Conv2d(1, 10, 6), nn.Linear(36, 10)

        def forward(self, x):
            return self.scores(x * self.gate(x.mean((2, 3)))[:, :, None, None]).flatten(1)

    of = Victim(Gated(), Pixels((1, 6, 6)))
    with pytest.raises(Inapplicable, match="score per class"):
        told(BiasCounts(strict=False), of, observed(of, [1, 2]))


def test_expected_counts_need_a_gradient_or_a_change_of_weights():
    of = victim()
    with pytest.raises(Inapplicable, match="a gradient or the change of weights"):
        told(ExpectedCounts(), of, observed(of, [1, 2], channel=DPSGD(clip=1.0, noise=0.1)))
    seen = observed(of, [1, 2])
    broken = {**seen.signal, "3.bias": torch.full((10,), torch.nan)}
    with pytest.raises(Inapplicable, match="not finite"):
        told(ExpectedCounts(), of, replace(seen, signal=broken))


@settings(max_examples=15, deadline=None)
@given(st.sets(st.integers(0, 9), min_size=1, max_size=4), st.integers(0, 20))
def test_distinct_labels(labels, seed):
    of = victim(seed=seed)
    seen = observed(of, sorted(labels), seed=seed)
    assert told(RowSum(), of, seen) == sorted(labels)
    assert told(MinimumEntry(), of, seen) == sorted(labels)
    assert told(BiasCounts(), of, seen) == sorted(labels)


def untrained(labels: list[int], *, seed: int, channel=None) -> tuple[Victim, Observation]:
    """An untrained perceptron that sees Fashion-MNIST: every class is about as likely to it as any other."""
    space = Pixels((1, 28, 28), mean=MEAN, std=STD)
    of = Victim(MLP(seed=seed), space)
    images, truth = fashion("test")
    rows = [int((truth == label).nonzero()[seed + k]) for k, label in enumerate(labels)]
    return of, share(of, channel or Gradient(), space.encode(images[rows]), truth[rows])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("channel", [Gradient(), FedAvg(steps=2, lr=0.01)], ids=repr)
def test_repeated_labels_are_counted(seed, channel):
    of, seen = untrained(REPEATED, seed=seed, channel=channel)
    assert told(BiasCounts(), of, seen) == REPEATED
    assert told(infer_labels(), of, seen) == REPEATED


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_counts_from_constructed_gradients(labels):
    """Every sample has the same class probabilities, so ∂b = p − n/B exactly. With five classes at 1/100 and one at
    95/100 that never occurs, no label hides behind its own probability."""
    of = victim(labels=6)
    probabilities = torch.tensor([0.01] * 5 + [0.95])
    counts = torch.bincount(torch.tensor(labels), minlength=6)
    signal = {"3.bias": probabilities - counts / len(labels)}
    seen = Observation(signal=signal, channel=Gradient(), size=len(labels))
    assert told(BiasCounts(), of, seen) == sorted(labels)


def test_sign_rule_with_classes_whose_probability_vanished():
    """A row of zeros, as half precision makes them, says nothing about the others."""
    of = victim()
    seen = observed(of, [4])
    rows = seen.signal["3.weight"].clone()
    rows[[0, 7]] = 0
    assert told(SignRule(), of, replace(seen, signal={**seen.signal, "3.weight": rows})) == [4]


@pytest.mark.parametrize("rule", [SignRule(), infer_labels()], ids=["sign", "inferred"])
def test_a_weight_update_points_the_other_way(rule):
    of = victim()
    for steps in (1, 3):
        assert told(rule, of, observed(of, [7], channel=FedAvg(steps=steps, lr=0.1))) == [7]


@pytest.mark.parametrize("label", [0, 1])
def test_two_classes(label):
    """Two rows always oppose each other, so the sign rule cannot tell; the bias can."""
    of = victim(labels=2)
    seen = observed(of, [label])
    with pytest.raises(Inapplicable, match=r"exactly one row .* found 2"):
        told(SignRule(), of, seen)
    assert told(infer_labels(), of, seen) == [label]
    assert told(infer_labels(), victim(labels=2, bias=False), observed(victim(labels=2, bias=False), [label])) == [
        label
    ]


def test_noise_is_no_obstacle_to_the_lenient_count():
    """More classes look present than the batch has samples; the largest drops win."""
    of = victim()
    signal = {"3.bias": torch.tensor([-0.01, 0.2, -0.02, -0.6, 0.3, -0.01, 0.1, 0.2, -0.3, 0.1])}
    seen = Observation(signal=signal, channel=Gradient(), size=3)
    with pytest.raises(Inapplicable, match="negative bias gradient"):
        told(BiasCounts(), of, seen)
    assert told(BiasCounts(strict=False), of, seen) == [3, 3, 8]


def test_joint_optimisation_knows_no_label():
    of = victim()
    assert told(Joint(), of, observed(of, [1])) is None
    assert class_count(of) == 10


# --- refused where it does not -----------------------------------------------------------------------------------------

ALL = (SignRule(), RowSum(), MinimumEntry(), BiasCounts())
ids = lambda rule: type(rule).__name__  # noqa: E731


def test_sign_rule_reads_one_label():
    of = victim()
    with pytest.raises(Inapplicable, match="reads one label, but the batch has 2"):
        told(SignRule(), of, observed(of, [1, 2]))


@pytest.mark.parametrize("rule", [RowSum(), MinimumEntry()], ids=ids)
def test_rules_for_distinct_labels_refuse_repeated_ones(rule):
    of = victim()
    with pytest.raises(Inapplicable, match="8 distinct labels"):
        told(rule, of, observed(of, REPEATED))


@pytest.mark.parametrize("rule", [RowSum(), MinimumEntry()], ids=ids)
def test_rules_for_positive_features_refuse_negative_ones(rule):
    of = victim(activation=nn.Tanh)
    with pytest.raises(Inapplicable, match="without negative values before the head 3"):
        told(rule, of, observed(of, [1, 2]))


@pytest.mark.parametrize("rule", [*ALL, ExpectedCounts(), BiasCounts(strict=False)], ids=ids)
@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(weight=torch.arange(1.0, 11.0)),
        partial(F.cross_entropy, weight=torch.arange(1.0, 11.0)),
        lambda output, y: F.mse_loss(output, F.one_hot(y, 10).float()),
    ],
    ids=["weighted", "weighted function", "squared"],
)
def test_other_losses_are_refused(rule, loss):
    of = victim(loss=loss)
    with pytest.raises(Inapplicable, match="only hold for cross entropy without class weights"):
        told(rule, of, observed(of, [1]))


SMOOTHED = [nn.CrossEntropyLoss(label_smoothing=0.1), partial(F.cross_entropy, label_smoothing=0.1)]


@pytest.mark.parametrize("rule", [*ALL, BiasCounts(strict=False)], ids=ids)
@pytest.mark.parametrize("loss", SMOOTHED, ids=["module", "function"])
def test_label_smoothing_is_refused_where_a_rule_reads_signs(rule, loss):
    of = victim(loss=loss)
    with pytest.raises(Inapplicable, match="without label smoothing"):
        told(rule, of, observed(of, [1]))


@pytest.mark.parametrize("loss", SMOOTHED, ids=["module", "function"])
def test_smoothed_labels_are_counted(loss):
    of = victim(loss=loss)
    assert told(infer_labels(), of, observed(of, REPEATED)) == REPEATED


def test_the_module_of_cross_entropy_is_accepted():
    of = victim(loss=nn.CrossEntropyLoss())
    assert told(SignRule(), of, observed(of, [4])) == [4]


@pytest.mark.parametrize("rule", ALL, ids=ids)
def test_a_withheld_head(rule):
    of = victim()
    seen = observed(of, [1], defenses=(WithholdNames(("3.weight", "3.bias")),))
    with pytest.raises(Inapplicable, match=r"not shared: 3\.(weight|bias)"):
        told(rule, of, seen)
    assert told(infer_labels(), of, seen) is None  # the label becomes one more unknown


@pytest.mark.parametrize("rule", ALL, ids=ids)
def test_an_unknown_batch_size(rule):
    of = victim()
    with pytest.raises(Inapplicable, match="not shared: batch size"):
        told(rule, of, observed(of, [1], reveal=()))


@pytest.mark.parametrize("rule", ALL, ids=ids)
def test_a_model_without_a_linear_head(rule):
    model = nn.Sequential(nn.Conv2d(1, 10, 6), nn.Flatten())
    of = Victim(model, Pixels((1, 6, 6)))
    with pytest.raises(Inapplicable, match="no linear head"):
        told(rule, of, observed(of, [1]))


def test_counts_need_a_bias():
    of = victim(bias=False)
    with pytest.raises(Inapplicable, match=r"not shared: 3\.bias"):
        told(BiasCounts(), of, observed(of, [1, 1]))


@pytest.mark.parametrize("gradient", [[0.1] * 10, [-0.1] * 10])
def test_counts_need_some_but_not_too_many_negative_entries(gradient):
    of = victim()
    seen = Observation(signal={"3.bias": torch.tensor(gradient)}, channel=Gradient(), size=4)
    with pytest.raises(Inapplicable, match="1 to 4 classes with a negative bias gradient"):
        told(BiasCounts(), of, seen)


def test_if_no_rule_applies_every_reason_is_given():
    of = victim(activation=nn.Tanh, bias=False)
    with pytest.raises(Inapplicable, match=r"reads one label.*; .*negative values.*; not shared: 3\.bias"):
        told(FirstThatApplies((SignRule(), RowSum(), BiasCounts())), of, observed(of, [1, 1], reveal=(Size(),)))


@pytest.mark.parametrize("rule", [SignRule(), RowSum(), MinimumEntry(), BiasCounts(), ExpectedCounts(), infer_labels()])
def test_reading_labels_leaves_the_random_numbers_of_the_user_alone(rule):
    """The probes of a train-mode model draw dropout masks, which must not come from the global stream."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.ReLU(), nn.Dropout(0.5), nn.Linear(24, 4))
    dropping = Victim(model, Pixels((1, 6, 6)), mode="train")
    seen = share(dropping, Gradient(), torch.rand(2, 1, 6, 6), torch.tensor([1, 2]))
    before = torch.get_rng_state()
    with contextlib.suppress(Inapplicable):
        rule(dropping, seen, rng=torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_labels_are_dealt_evenly_to_the_local_steps(victim_of, batch_of):
    """A rule gives them sorted; two minibatches of one class each would be an unlikely guess, and in train mode a bad one."""

    def sorted_labels(victim, seen, /, *, rng):
        return torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])

    victim, (x, _) = victim_of(), batch_of(8)
    y = torch.tensor([0, 0, 0, 1, 0, 1, 1, 1])
    for channel, expected in ((FedAvg(steps=4, minibatch=2), [0, 1] * 4), (Gradient(), [0, 0, 0, 0, 1, 1, 1, 1])):
        seen = share(victim, channel, x, y)
        assert class_labels(sorted_labels, victim, seen, rng=torch.Generator()).tolist() == expected
    given = share(victim, FedAvg(steps=4, minibatch=2), x, y, reveal=(Size(), Labels()))
    assert class_labels(sorted_labels, victim, given, rng=torch.Generator()).tolist() == y.tolist()
