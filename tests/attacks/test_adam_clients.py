"""Clients that train with Adam: what is left of a gradient is attacked as well as it can be, and not read as a gradient."""

from __future__ import annotations

import pytest
import torch

from leakgauge.attacks import bag_of_tokens, inverting_gradients, linear, linear_rows, r_gap, token_positions
from leakgauge.audit import Case, embedded, score
from leakgauge.channels import SGD, Adam, AdamW, Aggregate, FedAvg, Gradient
from leakgauge.channels.facts import local_training, smooth
from leakgauge.core import share
from leakgauge.errors import Inapplicable
from leakgauge.inversion import ExpectedCounts
from leakgauge.inversion import matching as loop


def test_the_search_follows_smoothed_steps(monkeypatch):
    """Adam's own step is nearly a sign, with almost no derivative: a search through it finds nothing."""
    case = Case()
    setup = embedded(case)
    x, y = setup.private(case)
    seen = share(setup.victim, FedAvg(lr=1e-3, optimizer=Adam()), x, y)
    attack = inverting_gradients(steps=80, tv=0.01)
    found = attack(setup.victim, seen)
    assert any("smoothed steps" in note for note in found.notes)
    monkeypatch.setattr(loop, "smooth", lambda channel: channel)
    exact = attack(setup.victim, seen)
    ours, theirs = (score(one, x, y, space=setup.victim.space).mean("ssim") for one in (found, exact))
    assert theirs < 0.2
    assert ours > theirs + 0.3


def test_smoothing_reaches_every_client():
    inner = FedAvg(optimizer=AdamW())
    assert smooth(Aggregate(2, inner)) == Aggregate(2, inner.smooth())
    assert smooth(Gradient()) == Gradient()
    assert local_training(Aggregate(2, inner), 4).optimizer == "AdamW"


@pytest.mark.parametrize("attack", [linear(), linear_rows(), r_gap()], ids=repr)
def test_a_closed_form_refuses_what_is_no_sum_of_gradients(attack, victim_of, batch_of):
    victim, (x, y) = victim_of(), batch_of(1)
    with pytest.raises(Inapplicable, match="the client uses Adam, which divides each entry by its own size"):
        attack(victim, share(victim, FedAvg(optimizer=Adam()), x, y))


def test_expected_counts_need_the_size_of_gradients(victim_of, batch_of):
    victim, (x, y) = victim_of(), batch_of(4)
    with pytest.raises(Inapplicable, match="the client uses AdamW"):
        ExpectedCounts()(victim, share(victim, FedAvg(optimizer=AdamW()), x, y), rng=torch.Generator())


@pytest.mark.parametrize("attack", [bag_of_tokens(), token_positions()], ids=repr)
def test_weight_decay_hides_which_rows_the_data_moved(attack, text_victim, sentences):
    victim = text_victim("standard")
    seen = share(victim, FedAvg(optimizer=SGD(weight_decay=0.01)), sentences(1), torch.tensor([1]))
    with pytest.raises(Inapplicable, match="weight decay moved every weight"):
        attack(victim, seen)
