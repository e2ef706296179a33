"""One batch seen in several rounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leakgauge import evaluate, testing
from leakgauge.attacks import inverting_gradients
from leakgauge.audit.bounds import Bound, bound_of
from leakgauge.audit.scoring import score
from leakgauge.channels import DPSGD, FedAvg, Gradient, Rounds, share_rounds
from leakgauge.core import share
from leakgauge.defenses import Clip, GaussianNoise
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import Cosine, Descent, Matching
from leakgauge.measures.rero import GaussianSteps, membership_bound
from leakgauge.models.seeded import seeded


def rounds_of(count: int, *, batch: int = 2):
    victim, x, y = testing.tiny_case("cnn", count=batch)
    victims = []
    for seed in range(count):
        with seeded(seed):
            victims.append(replace(victim, model=testing.TINY["cnn"]()))
    return victims, x, y


@pytest.mark.parametrize("channel", [Gradient(), FedAvg(steps=2, lr=0.05)])
def test_the_joint_victim_sends_what_every_round_sent(channel):
    victims, x, y = rounds_of(3)
    rounds = share_rounds(victims, channel, x, y)
    joint, seen = rounds.joint()
    sent = channel(joint, x, y)
    assert set(sent) == set(seen.signal)
    for name, value in sent.items():
        assert torch.allclose(value, seen.signal[name], atol=1e-6), name
    for number, victim in enumerate(victims):
        for name, value in share(victim, channel, x, y).signal.items():
            ours = seen.signal[f"rounds.{number}.{name}"]
            assert float(torch.cosine_similarity(ours.flatten(), value.flatten(), dim=0)) == pytest.approx(1, abs=1e-5)
    if isinstance(channel, Gradient):
        for number in range(3):
            own = [v for n, v in seen.signal.items() if n.startswith(f"rounds.{number}.")]
            assert float(torch.stack([v.norm() for v in own]).norm()) == pytest.approx(1, abs=1e-5)
    assert Matching(Cosine()).objective_at(joint, seen, x, y) == pytest.approx(0, abs=1e-5)
    assert any("3 rounds" in fact.what and fact.kind == "deployable" for fact in seen.assumptions)


def test_all_restarts_of_all_rounds_run_by_layer_rules():
    victims, x, y = rounds_of(2)
    joint, seen = share_rounds(victims, Gradient(), x, y).joint()
    found = Matching(Cosine(), solver=Descent(steps=3), restarts=2)(joint, replace(seen, labels=y))
    assert "replay: layer rules" in found.notes
    assert found.x.shape == x.shape


def test_noise_differs_between_rounds_so_many_rounds_show_more():
    victims, x, y = rounds_of(1, batch=1)
    attack = inverting_gradients(steps=60, tv=0.03)
    seen = {}
    for count in (1, 12):
        rounds = share_rounds(victims * count, Gradient(), x, y, defenses=(GaussianNoise(relative=8.0),))
        assert len({float(next(iter(one.signal.values())).sum()) for one in rounds.seen}) == count
        joint, known = rounds.joint()
        seen[count] = score(attack(joint, replace(known, labels=y)), x, y, space=joint.space).mean("layout")
    assert seen[12] > seen[1] + 0.2


def test_a_result_over_rounds_says_so():
    victims, x, y = rounds_of(2, batch=1)
    found = evaluate(victims, Gradient(), x, y, attack=inverting_gradients(steps=60, tv=0.01))
    assert found.outcome.leaks
    assert "the same batch seen in 2 rounds" in str(found)


def test_a_bound_over_rounds_is_that_of_as_many_steps():
    victims, x, y = rounds_of(4, batch=1)
    defenses = (Clip(1.0), GaussianNoise(std=3.0))
    joint, seen = share_rounds(victims, Gradient(), x, y, defenses=defenses).joint()
    found = bound_of(joint, seen, defenses, x)
    single = bound_of(victims[0], share(victims[0], Gradient(), x, y, defenses=defenses), defenses, x)
    assert isinstance(found, Bound)
    assert isinstance(single, Bound)
    assert found.rounds == 4
    assert found.membership == pytest.approx(membership_bound(GaussianSteps(3.0, steps=4), 0.01))
    assert found.membership > single.membership
    assert found.attribute > single.attribute


def test_rounds_that_do_not_belong_together_are_refused():
    victims, x, y = rounds_of(2)
    seen = [share(one, Gradient(), x, y) for one in victims]
    with pytest.raises(BadInput, match="a victim for each observation"):
        Rounds(victims, seen[:1])
    with pytest.raises(BadInput, match="round 2 was sent by another channel"):
        Rounds(victims, (seen[0], share(victims[1], FedAvg(steps=2), x, y)))
    with pytest.raises(BadInput, match="another space, loss or mode"):
        Rounds((victims[0], replace(victims[1], mode="train")), seen)
    with pytest.raises(Inapplicable, match="cannot be replayed together"):
        share_rounds(victims, DPSGD(clip=1.0, noise=1.0), x, y).joint()
    zero = replace(seen[0], signal={name: torch.zeros_like(v) for name, v in seen[0].signal.items()})
    with pytest.raises(Inapplicable, match="leave that round out"):
        Rounds(victims, (zero, seen[1])).joint()
