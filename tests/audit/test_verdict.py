"""Both sides of every check of the tables, and the share that makes a batch feasible."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest

from leakgauge.audit import Case, embedded, run_all
from leakgauge.audit.case import tries_enough
from leakgauge.audit.scoring import Scores
from leakgauge.audit.typed import typed
from leakgauge.audit.verdict import (
    GLIMPSED,
    LESS_IS_BETTER,
    OUTLINED,
    RECONSTRUCTED,
    SCRAMBLED,
    SHARE_FOR_FEASIBLE,
    STRUCTURE,
    Cause,
    Check,
    Outcome,
    Verdict,
    Way,
    judge,
)
from leakgauge.core import Assumption

STEP = 1e-6
NULL = {"ssim": 0.05, "psnr": 8.0, "lpips": 0.8, "reid": 90.0, "layout": 0.15, "layout_rank": 30.0, "pieces_lead": -0.1}
BASELINE = {"ssim": 0.3, "psnr": 15.0, "lpips": 0.5, "reid": 1.0, "layout": 0.9}
GOOD = {"ssim": 0.95, "psnr": 40.0, "lpips": 0.01, "reid": 1.0, "layout": 0.99, "layout_rank": 1.0, "pieces_lead": 0.6}


def scores(values: dict, count: int = 1) -> Scores:
    columns = {name: (value,) * count for name, value in values.items()}
    return Scores(mse=(0.1,) * count, **columns)


def better(check: Check) -> int:
    """The direction in which a metric is better."""
    return -1 if check.metric in LESS_IS_BETTER else 1


def bar_of(check: Check) -> float:
    if check.above == "zero":
        return check.margin
    return (NULL if check.above == "null" else BASELINE)[check.metric] + better(check) * check.margin


def sides(check: Check) -> tuple[dict, dict, dict]:
    """Attack, null and baseline such that this check alone is passed exactly. Bars of the other checks lie far below."""
    null, base = ({"ssim": -1.0, "psnr": -90.0, "lpips": 9.0, "reid": 200.0} for _ in range(2))
    if check.above == "zero":
        return {**GOOD, check.metric: check.margin}, null, base
    bar = {"null": null, "baseline": base}[check.above]
    bar[check.metric] = GOOD[check.metric] - better(check) * check.margin
    return dict(GOOD), null, base


@pytest.mark.parametrize("check", RECONSTRUCTED, ids=str)
def test_both_sides_of_every_check_of_reconstructed(check):
    attack, null, base = sides(check)
    above, below = ({**attack, check.metric: attack[check.metric] + better(check) * d} for d in (STEP, -STEP))
    verdict = judge(scores(above), scores(null), scores(base))
    assert (verdict.outcome, verdict.reconstructed, verdict.missed) == ("feasible", 1, None)
    verdict = judge(scores(below), scores(null), scores(base))
    assert verdict.outcome == "partial"
    assert verdict.missed == check


@pytest.mark.parametrize("check", GLIMPSED, ids=str)
def test_both_sides_of_every_check_of_glimpsed(check):
    """Below the table of reconstruction (the baseline is out of reach) only the null run decides."""
    null = {"ssim": 0.1, "psnr": 8.0}
    attack = {"ssim": 0.4, "psnr": 12.0}
    attack[check.metric] = null[check.metric] + check.margin
    above, below = ({**attack, check.metric: attack[check.metric] + d} for d in (STEP, -STEP))
    verdict = judge(scores(above), scores(null), scores(GOOD))
    assert verdict.outcome == "partial"
    assert (verdict.reconstructed, verdict.glimpsed) == (0, {Way.CLOSENESS: 1})
    verdict = judge(scores(below), scores(null), scores(GOOD))
    assert verdict.outcome == "inconclusive"
    assert (verdict.glimpsed, verdict.missed) == ({}, check)


@pytest.mark.parametrize("check", OUTLINED, ids=str)
def test_both_sides_of_every_check_of_outlined(check):
    """A saturated picture: the null run's grey one is nearer in SSIM and PSNR, but things stand where they do in the original."""
    null = {"ssim": 0.5, "psnr": 14.0, "layout": 0.3 if check.above == "null" else -0.5}
    attack = {"ssim": 0.3, "psnr": 11.0, "layout": 0.8, "layout_rank": 1.0}
    attack[check.metric] = check.margin + (null[check.metric] if check.above == "null" else 0.0)
    above, below = ({**attack, check.metric: attack[check.metric] + better(check) * d} for d in (STEP, -STEP))
    verdict = judge(scores(above), scores(null), scores(GOOD))
    assert verdict.outcome == "partial"
    assert verdict.glimpsed == {Way.LAYOUT: 1}
    assert judge(scores(below), scores(null), scores(GOOD)).outcome == "inconclusive"


@pytest.mark.parametrize("check", [check for check in RECONSTRUCTED if check.metric in STRUCTURE], ids=str)
def test_right_parts_in_the_wrong_place_are_a_glimpse(check):
    """By SSIM and re-identification all is well, by PSNR the null run's grey picture is as near."""
    attack, null, base = sides(check)
    null |= {"psnr": attack["psnr"], "layout": 0.0}
    attack["layout"] = 0.1
    above, below = ({**attack, check.metric: attack[check.metric] + better(check) * d} for d in (STEP, -STEP))
    verdict = judge(scores(above), scores(null), scores(base))
    assert verdict.outcome == "partial"
    assert (verdict.glimpsed, verdict.missed.metric) == ({Way.STRUCTURE: 1}, "psnr")
    assert judge(scores(below), scores(null), scores(base)).outcome == "inconclusive"


def test_an_image_is_counted_once_by_the_first_way_it_shows():
    attack = {"ssim": (0.9, 0.9, 0.2, 0.0), "psnr": (9.0, 8.0, 7.0, 7.0), "reid": (1.0, 1.0, 9.0, 9.0)}
    seen = Scores(mse=(0.1,) * 4, **attack, layout=(0.9, 0.9, 0.9, 0.0), layout_rank=(1.0, 1.0, 1.0, 9.0))
    null = scores({"ssim": 0.3, "psnr": 8.0, "layout": 0.0}, 4)
    verdict = judge(seen, null, scores({"ssim": 0.3, "psnr": 20.0}, 4))
    assert verdict.glimpsed == {Way.CLOSENESS: 1, Way.STRUCTURE: 1, Way.LAYOUT: 1}


def test_a_table_without_ssim_shows_nothing_by_it():
    table = [check for check in RECONSTRUCTED if check.metric == "psnr"]
    flat = scores({"ssim": 0.0, "psnr": 5.0})
    assert judge(flat, flat, flat, to_reconstruct=table).outcome == "inconclusive"


@pytest.mark.parametrize("check", SCRAMBLED, ids=str)
def test_both_sides_of_every_check_of_scrambled(check):
    """Every patch is there, none in its place: by all else the null run's grey picture is nearer."""
    null = {"ssim": 0.5, "psnr": 14.0, "layout": 0.0, "pieces_lead": 0.3 if check.above == "null" else -0.5}
    attack = {"ssim": 0.1, "psnr": 11.0, "layout": 0.0, "layout_rank": 9.0, "reid": 9.0, "pieces_lead": 0.9}
    attack[check.metric] = check.margin + (null[check.metric] if check.above == "null" else 0.0)
    above, below = ({**attack, check.metric: attack[check.metric] + d} for d in (STEP, -STEP))
    verdict = judge(scores(above), scores(null), scores(GOOD))
    assert verdict.outcome == "partial"
    assert (verdict.glimpsed, verdict.evidence) == ({Way.PIECES: 1}, "pieces_lead")
    assert judge(scores(below), scores(null), scores(GOOD)).outcome == "inconclusive"
    unmeasured = {name: value for name, value in above.items() if name != "pieces_lead"}
    assert judge(scores(unmeasured), scores(null), scores(GOOD)).outcome == "inconclusive"
    bare = {name: value for name, value in null.items() if name != "pieces_lead"}
    assert judge(scores(above), scores(bare), scores(GOOD)).outcome == "inconclusive"


@pytest.mark.parametrize(
    ("reconstructed", "glimpsed", "evidence"),
    [
        (1, {Way.LAYOUT: 1}, "ssim"),
        (0, {Way.STRUCTURE: 2}, "ssim"),
        (0, {Way.CLOSENESS: 1, Way.PIECES: 1}, "pieces_lead"),
        (0, {Way.LAYOUT: 1, Way.PIECES: 1}, "layout"),
    ],
)
def test_the_evidence_is_what_shows_the_images(reconstructed, glimpsed, evidence):
    verdict = Verdict(Outcome.PARTIAL, "deployable", 4, reconstructed, glimpsed=glimpsed)
    assert verdict.evidence == evidence


def test_outcomes_are_ordered_by_what_leaks():
    assert sorted(Outcome, key=lambda outcome: outcome.severity) == [
        Outcome.INFEASIBLE,
        Outcome.INCONCLUSIVE,
        Outcome.PARTIAL,
        Outcome.FEASIBLE,
    ]
    assert [outcome.leaks for outcome in Outcome] == [True, True, False, False]
    assert [outcome.conclusive for outcome in Outcome] == [True, True, False, True]
    assert len({outcome.colour for outcome in Outcome}) == len({outcome.meaning for outcome in Outcome}) == 4


def test_too_little_effort_takes_the_evidence_from_a_negative_and_nothing_from_a_reconstruction():
    null, base = {"ssim": 0.1, "psnr": 8.0}, {"ssim": 0.2, "psnr": 9.0}
    short = judge(scores(null), scores(null), scores(base), enough=False)
    assert (short.outcome, short.cause) == (Outcome.INCONCLUSIVE, Cause.EFFORT)
    assert typed(Verdict, asdict(short)) == short
    found = {"ssim": 0.95, "psnr": 30.0}
    seen = judge(scores(found), scores(null), scores(base), enough=False)
    assert (seen.outcome, seen.cause) == (Outcome.FEASIBLE, None)


@pytest.mark.parametrize(
    ("attack", "steps", "counts"),
    [
        ("strongest", 199, False),
        ("strongest", 200, True),
        ("inverting_gradients", 479, False),
        ("strongest", None, True),
    ],
)
def test_a_tenth_of_the_attacks_own_steps_is_enough(attack, steps, counts):
    assert tries_enough(Case(attack=attack, options={} if steps is None else {"steps": steps})) == counts
    assert tries_enough(Case(attack="linear"))  # a closed form has nothing to spend


@pytest.mark.parametrize("missing", [{"layout"}, {"layout_rank"}, {"null"}])
def test_a_layout_that_was_not_compared_shows_nothing(missing):
    attack = {"ssim": 0.3, "psnr": 11.0, "layout": 0.8, "layout_rank": 1.0}
    null = {"ssim": 0.5, "psnr": 14.0, **({} if "null" in missing else {"layout": 0.0})}
    known = {name: value for name, value in attack.items() if name not in missing}
    assert judge(scores(known), scores(null), scores(GOOD)).outcome == "inconclusive"


def test_a_layout_is_never_a_reconstruction():
    """The trivial picture has it too."""
    attack = {"ssim": 0.3, "psnr": 11.0, "layout": 1.0, "layout_rank": 1.0}
    batch = judge(scores(attack, 4), scores({"ssim": 0.5, "psnr": 14.0, "layout": 0.0}, 4), scores(BASELINE, 4))
    assert batch.outcome == "partial"


@pytest.mark.parametrize("check", [*RECONSTRUCTED, *GLIMPSED, *OUTLINED, *SCRAMBLED], ids=str)
def test_a_check_is_inclusive(check):
    exact = {**GOOD, check.metric: bar_of(check)}
    assert check.passes(0, scores(exact), scores(NULL), scores(BASELINE))
    less = {**GOOD, check.metric: bar_of(check) - better(check) * STEP}
    assert not check.passes(0, scores(less), scores(NULL), scores(BASELINE))


def test_the_tables_are_what_the_documents_say():
    assert [(c.metric, c.margin, c.above) for c in RECONSTRUCTED] == [
        ("ssim", 0.38, "zero"),
        ("ssim", 0.36, "null"),
        ("psnr", 2.6, "null"),
        ("ssim", 0.02, "baseline"),
        ("psnr", 0.5, "baseline"),
        ("lpips", 0.02, "baseline"),
        ("reid", 1, "zero"),
    ]
    assert [(c.metric, c.margin, c.above) for c in GLIMPSED] == [("ssim", 0.05, "null"), ("psnr", 1.0, "null")]
    outlined = [(c.metric, c.margin, c.above) for c in OUTLINED]
    assert outlined == [("layout", 0.45, "zero"), ("layout", 0.2, "null"), ("layout_rank", 1, "zero")]
    assert [(c.metric, c.margin, c.above) for c in SCRAMBLED] == [
        ("pieces_lead", 0.05, "zero"),
        ("pieces_lead", 0.05, "null"),
    ]
    assert SHARE_FOR_FEASIBLE == 0.5


@pytest.mark.parametrize("missing", ["lpips", "reid"])
def test_what_was_not_measured_decides_nothing(missing):
    known = {name: value for name, value in GOOD.items() if name != missing}
    assert judge(scores(known), scores(NULL), scores(BASELINE)).outcome == "feasible"
    bar = {name: value for name, value in BASELINE.items() if name != missing}
    assert judge(scores(GOOD), scores(NULL), scores(bar)).outcome == "feasible"


def test_another_image_that_looks_more_alike_makes_it_partial():
    """Colours alone can raise SSIM; if the true image is not the closest of the pool it is not reconstructed."""
    verdict = judge(scores({**GOOD, "reid": 2.0}), scores(NULL), scores(BASELINE))
    assert (verdict.outcome, verdict.missed) == ("partial", Check("reid", 1, above="zero"))


@pytest.mark.parametrize(
    ("whole", "count", "outcome"),
    [
        (2, 4, "feasible"),
        (1, 4, "partial"),
        (1, 2, "feasible"),
        (1, 3, "partial"),
        (4, 4, "feasible"),
        (0, 4, "partial"),
    ],
)
def test_the_share_of_a_batch(whole, count, outcome):
    glimpse = {"ssim": 0.2, "psnr": 11.0}
    batch = Scores(
        mse=(0.0,) * count,
        psnr=(GOOD["psnr"],) * whole + (glimpse["psnr"],) * (count - whole),
        ssim=(GOOD["ssim"],) * whole + (glimpse["ssim"],) * (count - whole),
    )
    verdict = judge(batch, scores(NULL, count), scores(BASELINE, count))
    assert verdict.outcome == outcome
    if 0 < whole < count and outcome == "partial":
        assert (verdict.reconstructed, verdict.images, verdict.missed) == (
            whole,
            count,
            Check("ssim", 0.38, above="zero"),
        )


def test_a_perfect_image_beats_everything_but_a_perfect_bar():
    perfect = {"ssim": 1.0, "psnr": math.inf}
    assert judge(scores(perfect), scores(NULL), scores(BASELINE)).outcome == "feasible"
    assert judge(scores(perfect), scores(perfect), scores(BASELINE)).outcome == "inconclusive"
    assert judge(scores(perfect), scores(NULL), scores(perfect)).outcome == "partial"


def test_assumptions_decide_the_kind():
    real, ideal = Assumption("size", "deployable"), Assumption("labels", "diagnostic")
    assert judge(scores(GOOD), scores(NULL), scores(BASELINE)).kind == "deployable"
    assert judge(scores(GOOD), scores(NULL), scores(BASELINE), (real,)).kind == "deployable"
    assert judge(scores(GOOD), scores(NULL), scores(BASELINE), (real, ideal)).kind == "diagnostic"


def test_the_verdict_does_not_rise_with_noise_on_a_fixed_victim(tmp_path):
    """The embedded network under four strengths of noise on one image: from a reconstruction to nothing, never back."""
    noises = (0.0, 10.0, 30.0, 1000.0)
    cases = [Case(options={"steps": 200}, defenses=(f"gaussian_noise:relative={noise}",)) for noise in noises]
    found = [record.outcome for record in run_all(cases, load=embedded, folder=tmp_path)]
    negative = {
        Outcome.INFEASIBLE,
        Outcome.INCONCLUSIVE,
    }  # which of the two follows from how well the search fits noise
    shown = [0 if outcome in negative else outcome.severity for outcome in found]
    assert shown == sorted(shown, reverse=True)
    assert found[0] == Outcome.FEASIBLE
    assert found[-1] in negative
