"""The eight cases of the embedded models, and the variants of a user's own."""

from __future__ import annotations

import itertools

import pytest

from leakgauge.audit import usual_cases
from leakgauge.audit.case import Case
from leakgauge.errors import BadInput


def test_the_default_shows_each_factor_once():
    cases = usual_cases.default_cases(seed=3)
    assert len(cases) == 8
    assert len({case.key() for case in cases}) == 8
    assert {case.model for case in cases} == {"cnn", "vit"}
    assert {case.mode for case in cases} == {"eval", "train"}
    assert {case.batch_size for case in cases} == {1, 4}
    assert any(case.defenses for case in cases)
    assert all(case.options["steps"] >= 300 for case in cases)
    assert all(case.seed == 3 and case.device == "cpu" for case in cases)
    assert all(case.device == "cuda" for case in usual_cases.default_cases(device="cuda"))


def test_variants_are_the_whole_grid():
    found = usual_cases.variants(Case(model="x.py:f"), mode=None, batch_size=None, defenses=["prune:0.9", "clip:1"])
    expected = set(itertools.product(("eval", "train"), (1, 4), ((), ("prune:0.9",), ("clip:1",))))
    assert {(c.mode, c.batch_size, c.defenses) for c in found} == expected
    assert len(found) == 12
    (only,) = usual_cases.variants(Case(), mode="train", batch_size=2, defenses=[])
    assert (only.mode, only.batch_size, only.name) == ("train", 2, "cnn, train mode, batch 2, inverting_gradients")


def test_variants_have_a_sample_for_every_client():
    found = usual_cases.variants(Case(channel="aggregate:clients=3"), mode="eval", batch_size=None, defenses=[])
    assert [c.batch_size for c in found] == [3, 4]
    found = usual_cases.variants(Case(channel="aggregate:clients=6"), mode="eval", batch_size=None, defenses=[])
    assert [c.batch_size for c in found] == [6]


def test_variants_refuse_before_anything_runs():
    with pytest.raises(BadInput, match="did you mean prune"):
        usual_cases.variants(Case(), mode=None, batch_size=None, defenses=["prun:0.9"])
    with pytest.raises(BadInput, match="at least 1, got 0"):
        usual_cases.variants(Case(), mode=None, batch_size=0, defenses=[])
