"""Training-mode inversion: what is revealed decides which statistics guide it, and the notes say so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakgauge.attacks import feasibility, huang
from leakgauge.channels import Gradient
from leakgauge.core import Auxiliary, Buffers, Labels, NoisyCopy, Size, share
from leakgauge.errors import BadInput
from leakgauge.testing import tiny_case, tiny_images

KNOWS = (Size(), Labels())


def case(**options):
    victim, x, y = tiny_case("cnn", count=4, mode="train", **options)
    others = Auxiliary(victim.space.encode(tiny_images(40)[0][20:]))
    return victim, x, y, others


def test_the_notes_name_the_statistics():
    victim, x, y, others = case()
    for reveal, expected in [
        ((*KNOWS, Buffers()), "statistics: exact, of 2 layers"),
        ((*KNOWS, others), "statistics: proxy, best 1 of 32 auxiliary batches"),
        (KNOWS, "statistics: none (not shared: running statistics"),
    ]:
        found = feasibility(steps=2)(victim, share(victim, Gradient(), x, y, reveal=reveal))
        assert any(note.startswith(expected) for note in found.notes), found.notes
    naive = huang(steps=2)(victim, share(victim, Gradient(), x, y, reveal=(*KNOWS, Buffers())))
    assert "statistics: running ones shared after the update, of 2 layers" in naive.notes


def test_exact_statistics_guide_better_than_running_ones():
    """The reason of the attack: with the batch's own statistics the images come out closer than with stale ones."""
    victim, x, y, _ = case()
    seen = share(victim, Gradient(), x, y, reveal=(*KNOWS, Buffers()))
    errors = []
    for recipe in (feasibility, huang):
        found = recipe(steps=120, statistics=0.01, tv=0.001)(victim, seen)
        errors.append(float((victim.space.decode(found.x) - victim.space.decode(x)).square().mean()))
    assert errors[0] < errors[1]


def test_the_null_run_has_neither_signal_nor_statistics():
    victim, x, y, _ = case()
    seen = share(victim, Gradient(), x, y, reveal=(*KNOWS, Buffers()))
    attack = feasibility(steps=3)
    assert repr(attack.blind().objective) == "0.01 * TotalVariation()"
    other = share(victim, Gradient(), x.flip(-1), y, reveal=(*KNOWS, Buffers()))
    assert torch.equal(attack.blind()(victim, seen).x, attack.blind()(victim, other).x)


def test_a_revealed_copy_is_the_start():
    victim, x, y, _ = case()
    exactly = share(victim, Gradient(), x, y, reveal=(*KNOWS, NoisyCopy(0.0)))
    found = feasibility(steps=1, lr=1e-6)(victim, exactly)
    torch.testing.assert_close(found.x, x, atol=1e-4, rtol=0)


def test_without_weight_no_statistics_are_looked_for():
    victim, x, y, _ = case()
    found = feasibility(steps=2, statistics=0.0)(victim, share(victim, Gradient(), x, y))
    assert not any("statistics" in note for note in found.notes)
    with pytest.raises(BadInput, match="must not be negative"):
        feasibility(statistics=-1.0)


def test_dropout_is_left_out_of_the_replay_and_said(victim_of, batch_of):
    victim, (x, y) = victim_of(dropout=0.5, mode="train"), batch_of(2)
    found = feasibility(steps=2)(victim, share(victim, Gradient(), x, y, reveal=KNOWS))
    assert any(note.startswith("replayed without dropout (the masks of 1 layers") for note in found.notes)
    again = feasibility(steps=2)(victim, share(victim, Gradient(), x, y, reveal=KNOWS))
    assert torch.equal(found.x, again.x)
    calm = victim_of(nn.Sequential(*[m for m in victim.model if not isinstance(m, nn.Dropout)]), mode="train")
    quiet = feasibility(steps=2)(calm, share(calm, Gradient(), x, y, reveal=KNOWS))
    assert not any("dropout" in note for note in quiet.notes)
