"""GradInversion: its parts in one objective, on networks with and without batch normalisation, alone and in batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leakgauge import testing
from leakgauge.attacks import gradinversion
from leakgauge.audit import score
from leakgauge.channels import Gradient
from leakgauge.core import share
from leakgauge.errors import BadInput
from leakgauge.inversion import GroupConsistency, Shift


def attacked(name: str, *, count: int = 1, **options):
    victim, x, y = testing.tiny_case(name, count=count)
    return gradinversion(**options)(victim, share(victim, Gradient(), x, y)), victim, x, y


def test_the_objective_reads_like_its_equation():
    attack = gradinversion(tv=2.0, l2=3.0, bn=4.0, group=5.0, registration="shift", noise=0.3)
    assert repr(attack.objective) == (
        "LayerNorms(weights=Equal()) + 2 * TotalVariation() + 3 * Norm() + 4 * BatchNormStatistics(required=False) "
        "+ 5 * GroupConsistency(registration=Shift(largest=4))"
    )
    assert attack.solver.noise == 0.3
    with pytest.raises(BadInput, match="registration as 'shift' or None, got 'flow'"):
        gradinversion(registration="flow")


def test_a_batch_of_distinct_labels_is_recovered_with_its_labels():
    result, victim, x, y = attacked("cnn", count=3, steps=300, restarts=2)
    scores = score(result, x, y, space=victim.space)
    assert scores.labels == (1.0, 1.0, 1.0)
    assert min(scores.ssim) > 0.7  # brightness is what the tiny network hardly shows: PSNR stays at 12 dB


def test_a_transformer_is_attacked_without_the_batch_norm_prior_and_a_note_says_so():
    result, *_ = attacked("vit", steps=2, restarts=2)
    assert "batch-norm prior: none, the model has no running statistics" in result.notes
    result, *_ = attacked("cnn", steps=2, restarts=2)
    assert not any("batch-norm" in note for note in result.notes)
    result, *_ = attacked("vit", steps=2, restarts=2, bn=0.0)
    assert not any("batch-norm" in note for note in result.notes)


@pytest.mark.parametrize("registration", [None, "shift"])
def test_the_group_shrinks_the_spread_of_the_restarts(registration):
    """A few steps, when restarts have not yet met at the solution."""
    spreads = []
    for group in (0.0, 100.0):
        result, *_ = attacked("cnn", steps=40, restarts=4, group=group, registration=registration, noise=0.0)
        spreads.append(float((result.candidates - result.candidates.mean(0)).square().mean()))
    assert spreads[1] < 0.7 * spreads[0]


def test_blind_runs_from_the_priors_alone():
    attack = gradinversion(steps=30, restarts=2)
    victim, x, y = testing.tiny_case("cnn")
    seen = share(victim, Gradient(), x, y)
    other = replace(seen, signal={name: torch.zeros_like(value) for name, value in seen.signal.items()})
    blind = attack.blind()
    assert not any(term.reads_signal for _, term in blind.objective.parts())
    assert any(isinstance(term, GroupConsistency) for _, term in blind.objective.parts())
    assert torch.equal(blind(victim, seen).x, blind(victim, other).x)


def test_shift_is_a_part():
    assert gradinversion(registration="shift").objective.parts()[-1][1] == GroupConsistency(Shift())
