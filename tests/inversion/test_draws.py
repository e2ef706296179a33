"""Random numbers of a restart do not depend on its company."""

from __future__ import annotations

import torch

from leakgauge.channels import Gradient
from leakgauge.core import share
from leakgauge.inversion import Adam, Cosine, Descent, Halving, Matching
from leakgauge.inversion.draws import Draws


def test_a_restart_has_the_same_numbers_alone_and_in_company():
    like = torch.zeros(6, 2, 3)
    alone = Draws.of(3, seed=5).normal(7, like[:3])
    company = Draws.of(3, observations=2, seed=5)
    assert torch.equal(company.normal(7, like), torch.cat([alone, alone]))
    assert torch.equal(company.take(slice(2, 5)).normal(7, like[:3]), torch.stack([alone[2], alone[0], alone[1]]))
    assert torch.equal(company.take(torch.tensor([4])).normal(7, like[:1]), alone[1:2])


def test_numbers_differ_by_seed_step_and_restart_and_are_standard_normal():
    like = torch.zeros(2, 5000)
    numbers = Draws.of(2, seed=1).normal(3, like)
    assert abs(float(numbers.mean())) < 0.05
    assert abs(float(numbers.std()) - 1) < 0.05
    for other in (Draws.of(2, seed=2).normal(3, like), Draws.of(2, seed=1).normal(4, like), numbers.flip(0)):
        assert abs(float(torch.corrcoef(torch.stack([numbers.flatten(), other.flatten()]))[0, 1])) < 0.05
    assert Draws.of(2).normal(0, like.double()).dtype == torch.float64


def test_noise_does_not_depend_on_what_runs_together_nor_on_halving(victim_of, batch_of):
    victim = victim_of()
    seen = [share(victim, Gradient(), *batch_of(1, seed=s)) for s in range(2)]
    attack = Matching(Cosine(), solver=Descent(Adam(0.1), 20, noise=0.5), restarts=4)
    for together, one in zip(attack.many(victim, seen, seed=4), seen, strict=True):
        torch.testing.assert_close(together.candidates, attack(victim, one, seed=4).candidates, atol=1e-3, rtol=1e-3)
    halved = Matching(Cosine(), solver=attack.solver, restarts=4, halving=Halving())(victim, seen[0], seed=4)
    whole = attack(victim, seen[0], seed=4)
    last = int(halved.losses.argmin())
    torch.testing.assert_close(halved.trace.losses[:, last], whole.trace.losses[:, last], atol=1e-5, rtol=1e-3)
