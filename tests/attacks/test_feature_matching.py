"""Matching features: each image of a batch, all restarts as one batch, deeper is harder."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from leakgauge import share
from leakgauge.attacks import feature_matching
from leakgauge.channels import Features, Gradient
from leakgauge.engine.choose import BatchedReplay
from leakgauge.engine.observed import Observed
from leakgauge.engine.reference import Reference
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.measures.image import mse
from leakgauge.testing import tiny_case


def error(cut: str, **options) -> float:
    victim, x, y = tiny_case("cnn", count=2)
    found = feature_matching(steps=150, **options)(victim, share(victim, Features(cut), x, y))
    return float(mse(victim.space.decode(found.x), victim.space.decode(x)).mean())


def test_shallow_features_are_a_copy_and_deep_ones_are_not():
    shallow, deep = error("features.0"), error("head")
    assert shallow < 1e-3
    assert deep > 10 * shallow


def test_the_labels_are_the_clouds():
    victim, x, y = tiny_case("cnn", count=3)
    found = feature_matching(steps=2)(victim, share(victim, Features("features.2"), x, y))
    assert found.y is not None
    assert torch.equal(found.y, victim(x).argmax(1))


def test_restarts_are_one_batch():
    victim, x, y = tiny_case("cnn", count=2)
    seen = share(victim, Features("features.2"), x, y)
    found = feature_matching(steps=5, restarts=3)(victim, seen)
    assert "replay: all restarts as one batch" in found.notes
    observed = Observed.check(seen.signal, victim, seen.channel.like(victim, 2))
    rows = torch.randn(3, 2, *x.shape[1:])
    one_batch, reference = (
        way(victim, seen.channel, observed)(rows, torch.zeros(3, 2)) for way in (BatchedReplay, Reference)
    )
    torch.testing.assert_close(one_batch.l2({"features.2": 1.0}), reference.l2({"features.2": 1.0}))


def test_what_does_not_fit_is_said():
    victim, x, y = tiny_case("cnn", count=2)
    attack, seen = feature_matching(steps=1), share(victim, Features("features.2"), x, y)
    with pytest.raises(Inapplicable, match="has no features"):
        attack(victim, share(victim, Gradient(), x, y))
    other = dataclasses.replace(seen, signal={"features.3": seen.signal["features.2"]})
    with pytest.raises(BadInput, match="not a tensor at this cut"):
        attack(victim, other)
    short = dataclasses.replace(seen, signal={"features.2": seen.signal["features.2"][:1]})
    with pytest.raises(BadInput, match="has shape"):
        attack(victim, short)
    broken = dataclasses.replace(seen, signal={"features.2": seen.signal["features.2"] * float("nan")})
    with pytest.raises(BadInput, match="NaN or Inf"):
        attack(victim, broken)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_is_no_shelter(kind):
    plain, x, y = tiny_case("cnn", count=2)
    half = dataclasses.replace(plain, model=copy.deepcopy(plain.model).to(kind))
    attack = feature_matching(steps=100)
    errors = []
    for victim in (plain, half):
        found = attack(victim, share(victim, Features("features.0"), x.to(victim.dtype), y))
        errors.append(float(mse(victim.space.decode(found.x.float()), victim.space.decode(x)).mean()))
        assert victim.dtype == next(victim.model.parameters()).dtype
    assert errors[1] < 2 * errors[0] + 1e-3
    assert any("searched in float32" in note for note in found.notes) == (kind == torch.float16)
