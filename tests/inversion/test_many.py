"""Several observations, or more restarts than fit, in one batch: each result is that of a run alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import share
from leakgauge.engine import BFloat16
from leakgauge.errors import BadInput
from leakgauge.inversion import (
    L1,
    L2,
    LBFGS,
    Adam,
    BiasCounts,
    Cosine,
    Descent,
    Halving,
    Joint,
    Matching,
    SignRule,
    TotalVariation,
    matching,
    search,
)

STEPS = Descent(Adam(0.1), 10)


def clients(victim, batch_of, count: int, *, size: int = 1, channel=None):
    return [share(victim, channel or Gradient(), *batch_of(size, seed=s)) for s in range(count)]


@pytest.mark.parametrize("solver", [STEPS, LBFGS(steps=2, iterations=3)], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("labels", [SignRule(), Joint()], ids=repr)
@pytest.mark.parametrize("channel", [Gradient(), FedAvg(steps=2, lr=0.1)], ids=repr)
def test_together_is_as_alone(solver, labels, channel, victim_of, batch_of):
    victim = victim_of()
    seen = clients(victim, batch_of, 3, channel=channel)
    attack = Matching(Cosine(), labels=labels, solver=solver, restarts=2)
    for together, one in zip(attack.many(victim, seen, seed=4), seen, strict=True):
        alone = attack(victim, one, seed=4)
        torch.testing.assert_close(together.candidates, alone.candidates, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(together.losses, alone.losses, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(together.trace.losses, alone.trace.losses, atol=1e-4, rtol=1e-3)
        assert together.trace.snapshots.shape == alone.trace.snapshots.shape
        assert together.y.tolist() == alone.y.tolist()


def test_observations_that_cannot_be_matched_together(victim_of, batch_of):
    victim = victim_of()
    one, two = clients(victim, batch_of, 2)
    attack = Matching(Cosine(), solver=STEPS)
    with pytest.raises(BadInput, match="no observation"):
        attack.many(victim, [])
    with pytest.raises(BadInput, match="same channel, defenses and batch size"):
        attack.many(victim, [one, replace(two, channel=FedAvg())])
    with pytest.raises(BadInput, match="same channel, defenses and batch size"):
        attack.many(victim, [one, *clients(victim, batch_of, 1, size=2)])
    with pytest.raises(BadInput, match="have the same tensors"):
        attack.many(victim, [one, replace(two, signal={n: t for n, t in two.signal.items() if n != "0.bias"})])
    headless = replace(two, signal={n: t for n, t in two.signal.items() if not n.startswith("5.")})
    with pytest.raises(BadInput, match="only be read for some of these observations"):
        attack.many(victim, [one, headless])
    with pytest.raises(BadInput, match="restarts of one observation"):
        replace(attack, halving=Halving(), restarts=4).many(victim, [one, two])


def test_restarts_that_do_not_fit_run_in_chunks(victim_of, batch_of, monkeypatch):
    victim = victim_of()
    seen = share(victim, Gradient(), *batch_of(2))
    attack = Matching(Cosine(), labels=BiasCounts(strict=False), solver=STEPS, restarts=5)
    whole = attack(victim, seen, seed=1)
    monkeypatch.setattr(search, "rows_that_fit", lambda rows, *_: 2)
    pieces = attack(victim, seen, seed=1)
    torch.testing.assert_close(pieces.candidates, whole.candidates, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(pieces.trace.losses, whole.trace.losses, atol=1e-5, rtol=1e-4)
    assert any("in 3 chunks of at most 2 rows" in note for note in pieces.notes)


@pytest.mark.parametrize("objective", [Cosine(), Cosine() + 0.1 * TotalVariation(), L2(), L1()], ids=repr)
def test_what_a_row_needs_does_not_grow_with_the_number_of_observations(objective, victim_of, batch_of, monkeypatch):
    """The cosine keeps its target for the backward pass, a view of everybody's; that once cut 500 images into chunks of a few."""
    victim, counted = victim_of(), []

    def noted(rows, bytes_per_row, device):
        counted.append(bytes_per_row)
        return rows

    monkeypatch.setattr(search, "rows_that_fit", noted)
    attack = Matching(objective, solver=Descent(Adam(0.1), 1))
    for count in (2, 12):
        attack.many(victim, clients(victim, batch_of, count))
    assert counted[1] - counted[0] <= 8 * 10  # a label each


def test_memory_that_runs_out_makes_the_chunks_smaller(victim_of, batch_of, monkeypatch):
    victim = victim_of()
    seen = share(victim, Gradient(), *batch_of(1))
    attack = Matching(Cosine(), solver=STEPS, restarts=4)
    whole = attack(victim, seen, seed=1)
    loop, sizes = Matching._loop, []

    def small_memory(self, search, x, logits, victim):
        sizes.append(len(x))
        if len(x) > 1:
            raise torch.OutOfMemoryError
        return loop(self, search, x, logits, victim)

    monkeypatch.setattr(matching.Matching, "_loop", small_memory)
    pieces = attack(victim, seen, seed=1)
    torch.testing.assert_close(pieces.losses, whole.losses, atol=1e-5, rtol=1e-4)
    assert sizes == [4, 2, 1, 1, 1, 1]

    def no_memory(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(matching.Matching, "_loop", no_memory)
    with pytest.raises(torch.OutOfMemoryError):
        attack(victim, seen)


def test_halving_keeps_the_best_and_their_course(victim_of, batch_of):
    """Restarts that go on are not disturbed by those that end: theirs is the course of a run without halving."""
    victim = victim_of()
    seen = share(victim, Gradient(), *batch_of(1))
    plain = Matching(Cosine(), solver=Descent(Adam(0.1), 40), restarts=8)
    all_through, halved = (a(victim, seen, seed=2) for a in (plain, replace(plain, halving=Halving())))
    assert Halving().drops(8, 40) == {4: 4, 10: 2, 20: 1}
    ended = halved.losses > all_through.losses + 1e-6
    assert int(ended.sum()) >= 4
    last = int(halved.losses.argmin())
    torch.testing.assert_close(halved.trace.losses[:, last], all_through.trace.losses[:, last], atol=1e-6, rtol=1e-3)
    left_at_ten = all_through.trace.losses[:11].min(0).values.argsort()[:2]  # by the best loss up to that step
    assert last in left_at_ten.tolist()


@pytest.mark.parametrize("options", [{"keep": 0.0}, {"keep": 1.0}, {"at": (0.5, 1.0)}, {"at": (0.0,)}])
def test_halving_refuses(options):
    with pytest.raises(BadInput, match="fractions between 0 and 1"):
        Halving(**options)


def test_halving_needs_restarts_that_move_together():
    with pytest.raises(BadInput, match="moves all restarts together"):
        Matching(Cosine(), solver=LBFGS(steps=2), halving=Halving())


def test_a_coarse_replay_is_judged_exactly(victim_of, batch_of, seen_by, values_at):
    victim, (x, y) = victim_of(), batch_of(2)
    seen = seen_by(victim, Gradient(), x, y)
    result = Matching(Cosine(), solver=STEPS, restarts=2, precision=BFloat16())(victim, seen)
    torch.testing.assert_close(
        values_at(Cosine(), victim, seen, result.candidates), result.losses, atol=1e-6, rtol=1e-6
    )
    assert any("judged in float32" in note for note in result.notes)
    assert (result.losses < result.trace.losses[0]).all()
