"""What must have changed for a defense to be recommended, and what its price may be."""

from __future__ import annotations

from dataclasses import replace

from leakgauge.audit.advice import advise
from leakgauge.audit.findings import Defended
from leakgauge.audit.verdict import Way
from tests.audit.tried_defenses import BASE, ROW, defenses
from tests.made import ended


def test_a_verdict_that_turns_on_a_hair_recommends_no_defense():
    """SSIM 0.12 in place of 0.13 is chance, although the verdict of one row is another."""
    close = replace(BASE, ssim=0.17)
    found = defenses(undefended=close)
    rules = {one.rule for one in advise(found)}
    assert "use_defense" not in rules
    assert "no_cheap_defense" in rules
    (said,) = [one for one in advise(found) if one.rule == "no_cheap_defense"]
    assert "none lowered the SSIM by 0.05" in said.why
    assert "use_defense" in {one.rule for one in advise(defenses(undefended=replace(BASE, ssim=0.19)))}
    assert "use_defense" in {one.rule for one in advise(defenses(rows=(replace(ROW, ssim=None),)))}


def test_a_price_that_was_not_measured_is_neither_cheap_nor_dear():
    """It read "the cheapest … for an accuracy that was not measured", and named the first row."""
    free, dear = (replace(ROW, defenses=("quantize:2",), cost=None), replace(ROW, cost=6.0, cost_low=None))

    def best(*rows: Defended) -> str:
        (one,) = [one for one in advise(defenses(rows=rows)) if one.rule == "no_cheap_defense"]
        return one.why

    both = (free, replace(free, defenses=("prune:0.9",)))
    assert "quantize:2, prune:0.9 made the attack infeasible, at an accuracy cost that was not measured." in best(*both)
    assert "is prune:0.99, for 6.0 points of accuracy; the cost of quantize:2 was not measured." in best(free, dear)


def test_where_a_layout_alone_was_seen_the_layout_says_what_a_defense_bought():
    """Flat grey has the higher SSIM there, so that a defense that leaves nothing to see does not lower it."""
    base = ended(BASE, "partial", ssim=0.32, layout=0.71, seen=Way.LAYOUT)
    row = replace(ROW, ssim=0.55, layout=0.12)
    (use,) = [one for one in advise(defenses(undefended=base, rows=(row,))) if one.rule == "use_defense"]
    assert "(layout correlation 0.12 instead of layout correlation 0.71)" in use.why
    (none,) = [
        one
        for one in advise(defenses(undefended=base, rows=(replace(row, ssim=0.1, layout=0.55),)))
        if one.rule == "no_cheap_defense"
    ]
    assert "none lowered the layout correlation by 0.2" in none.why


def test_where_the_pieces_alone_were_seen_their_lead_says_what_a_defense_bought():
    base = ended(BASE, "partial", ssim=0.1, pieces_lead=0.12, seen=Way.PIECES)
    row = replace(ROW, ssim=0.3, pieces_lead=-0.02)
    (use,) = [one for one in advise(defenses(undefended=base, rows=(row,))) if one.rule == "use_defense"]
    assert "(patch lead −0.02 instead of patch lead 0.12)" in use.why
    kept = defenses(undefended=base, rows=(replace(row, pieces_lead=0.1),))
    assert not [one for one in advise(kept) if one.rule == "use_defense"]


def test_noise_with_a_guarantee_is_not_called_unaccounted():
    noisy = replace(ROW, defenses=("clip:1", "gaussian_noise:std=0.5"))

    def rules(row: Defended) -> set[str]:
        return {one.rule for one in advise(defenses(rows=(row,)))}

    assert "noise_is_not_dp" in rules(noisy)
    assert "noise_is_not_dp" not in rules(replace(noisy, epsilon=9.0))
