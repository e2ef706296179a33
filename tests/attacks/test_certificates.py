"""Certificates: closed forms that are exact say so without the truth, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leakgauge import testing
from leakgauge.attacks import april_closed_form, linear, r_gap, strongest
from leakgauge.attacks.certificate import replay_residual
from leakgauge.audit.verdict import Outcome, judge_certified
from leakgauge.channels import DPSGD, FedAvg, Gradient
from leakgauge.core import Assumption, Attack, Channel, Defense, Observation, share
from leakgauge.defenses import Clip, GaussianNoise, Prune, Quantize

CASES: dict[str, Callable[..., Attack]] = {"mlp": linear, "lenet": r_gap, "vit_a": april_closed_form}


def attacked(name: str, *defenses: Defense, channel: Channel | None = None, seed: int = 0) -> tuple[bool, float]:
    """Whether the only image of a small victim is certified, and its root mean square error (as a share of the range)."""
    victim, x, y = testing.tiny_case(name)
    x, y = x[:1], y[:1]
    seen = share(victim, channel or Gradient(), x, y, defenses=defenses, seed=seed)
    found = CASES[name]()(victim, seen)
    assert found.certified is not None
    return bool(found.certified[0]), float(
        (victim.space.decode(found.x) - victim.space.decode(x)).square().mean().sqrt()
    )


@pytest.mark.parametrize("name", list(CASES))
def test_exact_results_are_certified(name: str) -> None:
    proven, error = attacked(name)
    assert proven
    assert error < 1e-3
    assert attacked(name, Clip(1e-3))[0]  # a factor on the whole update changes nothing


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize(
    "defense",
    [GaussianNoise(relative=0.5), GaussianNoise(relative=0.01), Prune(0.5), Quantize(4)],
    ids=repr,
)
def test_no_certificate_is_false(name: str, defense: Defense) -> None:
    for seed in range(3):
        proven, error = attacked(name, defense, seed=seed)
        assert not proven or error < 1e-3


def test_one_local_step_is_a_gradient() -> None:
    assert attacked("mlp", channel=FedAvg(steps=1, lr=0.1))[0]


def test_nor_under_dpsgd_or_with_a_learning_rate_for_biases() -> None:
    assert not attacked("mlp", channel=DPSGD(noise=0.1))[0]
    victim, x, y = testing.tiny_case("mlp")
    seen = share(victim, Gradient(), x[:1], y[:1])
    twice = {n: 2 * g if n.endswith("bias") else g for n, g in seen.signal.items()}
    found = linear()(victim, Observation(twice, seen.channel, size=1))
    assert found.certified is not None
    assert not found.certified.any()  # the input comes out at half its size, and only the replay tells


def test_the_residual_is_zero_for_the_truth_alone() -> None:
    victim, x, y = testing.tiny_case("mlp")
    seen = share(victim, Gradient(), x[:1], y[:1])
    assert replay_residual(victim, seen, x[:1], y[:1]) < 1e-6
    assert replay_residual(victim, seen, x[:1], 1 - y[:1].clamp(max=1)) > 0.1
    assert replay_residual(victim, seen, victim.space.project(x[:1] + 0.1), y[:1]) > 1e-2


def test_strongest_keeps_the_certificate() -> None:
    victim, x, y = testing.tiny_case("mlp")
    found = strongest(steps=20)(victim, share(victim, Gradient(), x[:1], y[:1]))
    assert found.certified is not None
    assert found.certified.all()


def test_verdicts_by_certificates() -> None:
    assert judge_certified(()) is None
    assert judge_certified((False, False)) is None
    half, few = judge_certified((True, False)), judge_certified((True, False, False), [Assumption("a", "diagnostic")])
    assert half is not None
    assert few is not None
    assert (half.outcome, half.certified, half.reconstructed, half.compared) == (Outcome.FEASIBLE, 1, 1, False)
    assert (few.outcome, few.kind) == (Outcome.PARTIAL, "diagnostic")
