"""Restarts that hold together: the term by hand, its groups, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from leakgauge import testing
from leakgauge.channels import Gradient
from leakgauge.core import share
from leakgauge.engine import BFloat16
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import (
    LBFGS,
    Adam,
    Cosine,
    Descent,
    GroupConsistency,
    Halving,
    Matching,
    Shift,
    TotalVariation,
    matching,
    search,
)
from leakgauge.inversion.terms import Candidate, couples_restarts

STEPS = Descent(Adam(0.1), 10, noise=0.2)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def at(x: torch.Tensor, restarts: int | None = None) -> Candidate:
    return Candidate(x, None, None, restarts)  # pyright: ignore


@pytest.mark.parametrize("restarts", [1, 2, 3, 6])
def test_distance_to_the_mean_of_the_own_group(restarts):
    x = drawn(6, 2, 3, 5, 4)
    values = x.double().numpy()
    expected = []
    for row in range(6):
        first = row // restarts * restarts
        mean = sum(values[first + k] for k in range(restarts)) / restarts
        expected.append(((values[row] - mean) ** 2).mean())
    np.testing.assert_allclose(GroupConsistency()(at(x, restarts)), expected, rtol=1e-5, atol=1e-12)


def test_without_a_number_all_rows_are_one_group():
    x = drawn(4, 1, 1, 3, 3)
    torch.testing.assert_close(GroupConsistency()(at(x)), GroupConsistency()(at(x, 4)))


def test_a_fixed_mean_has_the_gradient_of_the_moving_one():
    x = drawn(4, 2, 1, 3, 3).double().requires_grad_()
    (ours,) = torch.autograd.grad(GroupConsistency()(at(x, 2)).sum(), x)
    groups = x.unflatten(0, (2, 2))
    moving = (groups - groups.mean(1, keepdim=True)).square().flatten(2).mean(2).sum()
    torch.testing.assert_close(ours, torch.autograd.grad(moving, x)[0])


@pytest.mark.parametrize("by", [(0, 0), (1, 0), (0, -2), (3, 2), (-3, -1)])
def test_shift_finds_how_far_a_picture_was_moved(by):
    picture = drawn(2, 3, 9, 12)
    moved = torch.roll(picture, by, (-2, -1))
    torch.testing.assert_close(Shift(largest=3)(moved, picture), picture)


def test_each_picture_has_a_shift_of_its_own_and_the_target_is_broadcast():
    picture = drawn(1, 1, 2, 8, 8)
    moved = torch.cat([torch.roll(picture, by, (-2, -1)) for by in ((1, 2), (0, -1), (-2, 0))])
    torch.testing.assert_close(Shift()(moved, picture), picture.expand_as(moved))


def test_shift_stays_within_reach():
    picture = drawn(1, 1, 16, 16)
    moved = torch.roll(picture, (5, 0), (-2, -1))
    torch.testing.assert_close(Shift(largest=5)(moved, picture), picture)
    assert not torch.allclose(Shift(largest=4)(moved, picture), picture)
    torch.testing.assert_close(Shift(largest=0)(moved, picture), moved)


def test_registered_restarts_have_the_common_picture_as_their_mean():
    """Nine restarts in place outvote one that is shifted: the shifted one alone is far from the mean."""
    picture = drawn(1, 1, 1, 8, 8)
    x = torch.cat([picture] * 9 + [torch.roll(picture, (2, 1), (-2, -1))])
    plain, registered = GroupConsistency()(at(x)), GroupConsistency(Shift())(at(x))
    torch.testing.assert_close(registered[:9], torch.zeros(9), atol=1e-10, rtol=0)
    assert float(plain[:9].min()) > 1e-3
    difference = (x[9] - x[0]).square().mean()
    torch.testing.assert_close(registered[9], difference)


@pytest.mark.parametrize("largest", [-1, 1.5, "far"])
def test_shift_refuses(largest):
    with pytest.raises(BadInput, match="integer number of pixels"):
        Shift(largest=largest)


def test_what_counts_as_coupled():
    assert couples_restarts(Cosine() + 0.1 * GroupConsistency())
    assert not couples_restarts(Cosine() + 0.0 * GroupConsistency())
    assert not couples_restarts(Cosine() + 0.1 * TotalVariation())


def spread(result) -> float:
    return float((result.candidates - result.candidates.mean(0)).square().mean())


@pytest.mark.parametrize("registration", [None, Shift()])
def test_restarts_come_closer_the_more_the_term_weighs(registration, victim_of, batch_of):
    victim = victim_of()
    seen = share(victim, Gradient(), *batch_of(2))
    attack = Matching(Cosine(), solver=Descent(Adam(0.05), 15), restarts=4)  # before they meet
    results = [
        replace(attack, objective=Cosine() + weight * GroupConsistency(registration))(victim, seen)
        for weight in (0.0, 0.1, 10.0)
    ]
    free, pulled, tight = (spread(r) for r in results)
    assert tight < pulled < 0.5 * free


def clients(victim, batch_of, count):
    return [share(victim, Gradient(), *batch_of(1, seed=s)) for s in range(count)]


ATTACK = Matching(Cosine() + 0.5 * GroupConsistency(), solver=STEPS, restarts=3)


def same_results(ours, theirs):
    torch.testing.assert_close(ours.candidates, theirs.candidates, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(ours.losses, theirs.losses, atol=1e-4, rtol=1e-3)


def test_groups_of_several_observations_do_not_mix(victim_of, batch_of):
    victim = victim_of()
    seen = clients(victim, batch_of, 3)
    for together, one in zip(ATTACK.many(victim, seen, seed=4), seen, strict=True):
        same_results(together, ATTACK(victim, one, seed=4))


def test_chunks_hold_whole_groups(victim_of, batch_of, monkeypatch):
    victim = victim_of()
    seen = clients(victim, batch_of, 3)
    whole = ATTACK.many(victim, seen, seed=4)
    monkeypatch.setattr(search, "rows_that_fit", lambda rows, *_: min(rows, 5))  # one group of three, not five rows
    pieces = ATTACK.many(victim, seen, seed=4)
    for ours, theirs in zip(pieces, whole, strict=True):
        same_results(ours, theirs)
        assert any("in 3 chunks of at most 3 rows" in note for note in ours.notes)
    monkeypatch.setattr(search, "rows_that_fit", lambda rows, *_: 2)
    with pytest.raises(Inapplicable, match="couples 3 restarts, which do not fit"):
        ATTACK.many(victim, seen, seed=4)


def test_memory_that_runs_out_does_not_part_a_group(victim_of, batch_of, monkeypatch):
    victim = victim_of()
    seen = clients(victim, batch_of, 4)
    whole = ATTACK.many(victim, seen, seed=4)
    loop, sizes = Matching._loop, []

    def small_memory(self, search, x, logits, victim, *, most=3):
        sizes.append(len(x))
        if len(x) > most:
            raise torch.OutOfMemoryError
        return loop(self, search, x, logits, victim)

    monkeypatch.setattr(matching.Matching, "_loop", small_memory)
    for ours, theirs in zip(ATTACK.many(victim, seen, seed=4), whole, strict=True):
        same_results(ours, theirs)
    assert sizes == [12, 6, 3, 3, 3, 3]
    monkeypatch.setattr(matching.Matching, "_loop", lambda *a: small_memory(*a, most=2))
    with pytest.raises(Inapplicable, match="do not fit into memory together"):
        ATTACK.many(victim, seen, seed=4)


def test_a_coarse_replay_is_judged_group_by_group(victim_of, batch_of):
    victim = victim_of()
    seen = clients(victim, batch_of, 2)
    brief = Descent(Adam(0.01), 3)
    heavy = replace(ATTACK, objective=1e-3 * Cosine() + GroupConsistency(), precision=BFloat16(), solver=brief)
    for result in heavy.many(victim, seen):
        difference = (result.candidates - result.candidates.mean(0)).square().flatten(1).mean(1)
        torch.testing.assert_close(result.losses, difference, atol=3e-3, rtol=0)
        assert float(result.losses.min()) > 0.05  # a row judged alone is its own mean


def test_what_would_part_a_group_is_refused():
    with pytest.raises(BadInput, match="moves them together"):
        replace(ATTACK, solver=LBFGS(steps=2))
    with pytest.raises(BadInput, match="change the group"):
        replace(ATTACK, halving=Halving())


def test_the_blind_run_keeps_the_group(victim_of, batch_of):
    victim = victim_of()
    (seen,) = clients(victim, batch_of, 1)
    attack = replace(ATTACK, solver=Descent(Adam(0.05), 40))
    blind = attack.blind()(victim, seen)
    begun = drawn(3, 1, 1, 6, 6)
    assert repr(attack.blind().objective) == "0.5 * GroupConsistency(registration=None)"
    assert spread(blind) < 0.5 * float((begun - begun.mean(0)).square().mean())


def test_parts_obey_their_law():
    testing.check_part(GroupConsistency(Shift(2)))
    testing.check_part(Shift())
