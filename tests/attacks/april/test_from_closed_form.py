"""The closed form as the start of the optimisation: exact where the theorem holds, a guess elsewhere, absent when blind."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leakgauge import testing
from leakgauge.attacks import april, april_closed_form, april_from_closed_form
from leakgauge.channels import Gradient
from leakgauge.core import share
from leakgauge.defenses import Withhold
from leakgauge.errors import BadInput, Inapplicable


def observed(name: str, **options):
    victim, x, y = testing.tiny_case(name)
    return victim, share(victim, Gradient(), x, y, **options), x


@pytest.mark.parametrize("name", ["vit", "vit_a"])
def test_the_search_begins_at_the_closed_form(name):
    victim, seen, _ = observed(name)
    result = april_from_closed_form(steps=2, spread=0.0, ridge=None)(victim, seen)
    guess = april_closed_form(force=True)(victim, seen)
    torch.testing.assert_close(result.trace.snapshots[0], guess.x)
    assert any(note.startswith("start: identifiability") for note in result.notes)
    assert any("a guess" in note for note in result.notes) == (name == "vit")


def test_where_the_theorem_holds_the_start_is_the_answer():
    victim, seen, x = observed("vit_a")
    result = april_from_closed_form(steps=1, spread=0.0)(victim, seen)
    assert float((result.x - x).square().mean()) < 1e-4
    assert result.loss < 1e-3


def test_restarts_differ_by_the_spread():
    victim, seen, _ = observed("vit")
    begun = april_from_closed_form(steps=1, restarts=3, spread=0.2)(victim, seen).candidates
    assert 0.05 < float((begun - begun.mean(0)).std()) < 0.4


def test_the_null_run_knows_nothing_of_the_closed_form():
    blind = april_from_closed_form(steps=7, restarts=2).blind()
    assert blind == replace(april(steps=7, restarts=2).blind(), name="april_from_closed_form, blind")


def test_what_the_closed_form_needs_must_be_shared():
    victim, seen, _ = observed("vit", defenses=[Withhold(("position_embedding",))])
    with pytest.raises(Inapplicable, match="not shared: pos_embed"):
        april_from_closed_form(steps=1)(victim, seen)


def test_a_spread_below_zero_is_refused():
    with pytest.raises(BadInput, match=r"non-negative .*got -1"):
        april_from_closed_form(spread=-1)
