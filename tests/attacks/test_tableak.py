"""Rows of a table from an update: pooled searches, closed forms on top."""

from __future__ import annotations

import pytest
import torch

from leakgauge.attacks import tableak, tables
from leakgauge.attacks.tableak import pool
from leakgauge.attacks.tables import on_top
from leakgauge.audit.tables import score_table
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Labels, Size, Table, Victim, share
from leakgauge.errors import Inapplicable
from leakgauge.models import MLP
from leakgauge.testing import TINY_TABLE, tiny_case, tiny_rows

ROWS = TINY_TABLE.encode(tiny_rows(3)[0])


def test_restarts_in_another_order_are_pooled_as_if_they_were_in_one():
    x, sure = pool(torch.stack([ROWS, ROWS[[2, 0, 1]], ROWS[[1, 2, 0]]]), ROWS, TINY_TABLE)
    torch.testing.assert_close(x, ROWS)
    torch.testing.assert_close(sure, torch.ones(3, 4, dtype=torch.float64))


def test_the_majority_wins_and_the_confidence_says_how_large_it_is():
    other = TINY_TABLE.decode(ROWS)
    other[0, 0], other[0, 2] = 90.0, 2.0  # another age and another ward in the first row
    x, sure = pool(torch.stack([ROWS, ROWS, TINY_TABLE.encode(other)]), ROWS, TINY_TABLE)
    torch.testing.assert_close(TINY_TABLE.decode(x), TINY_TABLE.decode(ROWS))
    two_of_three = (2 / 3) ** (2 / 3) * (1 / 3) ** (1 / 3)  # exp(-H)
    assert sure[0].tolist() == pytest.approx([two_of_three, 1, two_of_three, 1])
    assert sure[1:].min() == pytest.approx(1)


def batch(count, hidden=(64,)):
    rows, y = tiny_rows(count)
    victim = Victim(MLP(shape=TINY_TABLE.shape, hidden=hidden, classes=4), TINY_TABLE)
    return victim, TINY_TABLE.encode(rows).float(), y


@pytest.mark.parametrize("channel", [Gradient(), FedAvg(steps=2, lr=0.01)])
def test_a_small_batch_is_read_back(channel):
    victim, x, y = batch(2)
    seen = share(victim, channel, x, y, reveal=(Size(), Labels()))
    found = tableak(steps=250, restarts=6)(victim, seen)
    assert score_table(found, x, space=TINY_TABLE).accuracy >= 0.85
    assert found.confidence is not None
    assert found.confidence.shape == (2, 4)
    assert any("6 restarts paired" in note for note in found.notes)


def test_one_row_and_a_batch_behind_a_relu_are_certified_without_a_search():
    for count in (1, 3):
        victim, x, y = batch(count)
        found = tables(steps=1, restarts=1)(victim, share(victim, Gradient(), x, y))
        assert found.certified is not None
        assert bool(found.certified.all())
        assert score_table(found, x, space=TINY_TABLE).exact_rate == 1
        assert any("nothing was searched" in note for note in found.notes)


def test_without_a_closed_form_the_search_says_why():
    victim, x, y = batch(3, hidden=(8,))
    found = tables(steps=3, restarts=2)(victim, share(victim, Gradient(), x, y, reveal=(Size(), Labels())))
    assert found.certified is None
    assert any("relu_batches does not apply" in note for note in found.notes)


def test_exact_rows_replace_those_most_like_them():
    guess = TINY_TABLE.decode(ROWS)
    guess[:, 1] += 0.9
    x, certified = on_top(ROWS[[2]], TINY_TABLE.encode(guess), TINY_TABLE)
    assert certified.tolist() == [False, False, True]
    torch.testing.assert_close(x[2], ROWS[2])
    torch.testing.assert_close(TINY_TABLE.decode(x)[:2], guess[:2])


@pytest.mark.parametrize("attack", [tableak(steps=1), tables(steps=1)])
def test_images_are_refused(attack):
    victim, x, y = tiny_case("mlp")
    assert not isinstance(victim.space, Table)
    with pytest.raises(Inapplicable, match="rows of a table"):
        attack(victim, share(victim, Gradient(), x, y))
