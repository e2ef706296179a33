"""Every rule has findings that fire it and findings, changed in one thing, that do not; none contradicts another."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from itertools import combinations, product

import pytest

from leakgauge.audit.advice import EXCLUSIVE, RULES, SHOWN, Rule, advise, as_text
from leakgauge.audit.advice.conditions import FEWEST_IMAGES
from leakgauge.audit.bounds import Bound
from leakgauge.audit.case import Change
from leakgauge.audit.cause import Cause
from leakgauge.audit.findings import (
    Findings,
    Flip,
    Measured,
    Split,
    Training,
    Unanswered,
    Update,
    Updates,
)
from leakgauge.audit.questions import QUESTIONS
from tests.audit.tried_defenses import BASE, ROW, TRIED, defenses
from tests.made import FEASIBLE, TOLD, ended, update, verdict
from tests.made import INFEASIBLE as HELD

EVAL = ("client computes its update in eval mode",)
PLAIN = update(
    1, "cnn, train mode, batch 4", HELD, batch=4, ssim=0.12, psnr=8.5, null_ssim=0.11, null_psnr=8.25,
    steps=4800, usual_steps=4800, classes=10, labels=0.25, deployable=("batch size known (4)",), seconds=30.0, attack="inverting_gradients",
)  # fmt: skip
LEAK = ended(PLAIN, "feasible", number=2, name="cnn, train mode, batch 1", batch=1, ssim=0.91, psnr=19.5)
PARTLY = ended(PLAIN, "partial", number=3, name="cnn in part", ssim=0.41, psnr=11.25)
HELPED = replace(LEAK, number=4, name="cnn, eval mode", mode="eval", batch=4, diagnostic=EVAL, ssim=0.83)
GUARDED = replace(LEAK, number=5, name="cnn, pruned", batch=4, defenses=("prune:0.5",), ssim=0.77)
SHORT = ended(PLAIN, "inconclusive", number=6, name="cnn, too short", steps=150, enough_steps=480)
FAILED = replace(PLAIN, number=11, verdict=verdict("inconclusive", images=4, cause=Cause.SEARCH))
MANY = replace(PLAIN, batch=FEWEST_IMAGES)

WATCHED = Training(
    steps=400, alarm_at=60, peak=Measured(80, 1.25, 1.0, 1.5), last=Measured(400, 0.25, 0.15, 0.35), ceiling=2.77, scored=97,
    auc=Measured(400, 0.97, 0.85, 1.0), controls=(("null", 0.01), ("decoy", -0.4), ("noise 10×", 0.02)), seconds=9.0,
)  # fmt: skip
SCANNED = Split(
    threshold=0.25, cuts=7, recommended="features.pool3", fvu=0.31, bytes=2304, raw_bytes=784, edge_share=0.93, decoder_epochs=12,
    safest="head", safest_fvu=0.56, scanned=7, auxiliary=800, tested=200,
)  # fmt: skip


def updates(*every: Update, flips: tuple[Flip, ...] = ()) -> Findings:
    return Findings(updates=Updates(every, flips))


def flipped(leaking: Update, holding: Update, change: str = "a change") -> Findings:
    change_of = Change(change, "relaxation")
    return updates(holding, replace(leaking, change=change_of), flips=(Flip(change, leaking, holding, FEASIBLE),))


def training(**changes: object) -> Findings:
    return Findings(training=replace(WATCHED, **changes))


def split(**changes: object) -> Findings:
    return Findings(split=replace(SCANNED, **changes))


FIRES: dict[str, Findings] = {
    "plain_updates_leak": updates(PLAIN, LEAK),
    "plain_updates_leak_partly": updates(PLAIN, PARTLY),
    "use_defense": defenses(),
    "no_cheap_defense": defenses(rows=(replace(ROW, cost=2.5),)),
    "more_clients": defenses(rows=(replace(ROW, cost=2.5),), clients=4),
    "defense_did_not_hold": updates(PLAIN, GUARDED),
    "malicious_server_leaks": updates(PLAIN, replace(LEAK, malicious=("another model",))),
    "no_safe_cut": split(recommended=None, fvu=None, bytes=None, require="bytes<=64"),
    "keep_it_whole": split(recommended="head", edge_share=1.0),
    "cut_here": split(),
    "keep_buffers": flipped(replace(LEAK, batch=4), PLAIN, "running statistics shared"),
    "gradients_reveal": training(),
    "members_recognised": training(),
    "labels_read": updates(replace(PLAIN, labels=1.0)),
    "controls_failed": training(controls=(("null", 0.06), ("decoy", 0.0), ("noise 10×", 0.0))),
    "larger_batches": flipped(LEAK, PLAIN),
    "keep_train_mode": flipped(HELPED, PLAIN),
    "more_local_steps": flipped(replace(LEAK, batch=4), replace(PLAIN, local_steps=4)),
    "only_upper_bound": updates(PLAIN, HELPED),
    "only_diagnostic_run": updates(HELPED),
    "early_steps_leak_most": training(),
    "noise_is_not_dp": updates(PLAIN, replace(PLAIN, number=6, defenses=("gaussian_noise:relative=1.0",))),
    "noise_for_a_bound": updates(PLAIN, replace(PLAIN, number=6, bound=Bound(1.0, "sample", 0.84, 0.09))),
    "nothing_to_defend": defenses(undefended=ended(BASE, HELD)),
    "decoders_too": split(decoder_epochs=0),
    "longer_monitoring": training(scored=7, peak=None, last=None),
    "properties_told": Findings(properties=(TOLD,)),
    "repair_errors": updates(PLAIN, replace(PLAIN, number=7, status="error", reason="out of memory", verdict=None)),
    "resume": split(finished=False, recommended=None),
    "more_steps": updates(replace(PLAIN, steps=500)),
    "not_enough_effort": updates(SHORT),
    "not_evidence": updates(FAILED),
    "prior_too": updates(PLAIN, LEAK),
    "more_images": updates(PLAIN),
    "no_proof": updates(PLAIN),
    "not_answered": Findings(unanswered=(Unanswered("split"),)),
}
"""For each rule findings that it applies to."""

SILENT: dict[str, Findings] = {
    "plain_updates_leak": updates(PLAIN, replace(LEAK, diagnostic=EVAL)),
    "plain_updates_leak_partly": updates(PLAIN, PARTLY, LEAK),
    "use_defense": defenses(rows=(replace(ROW, cost=2.01),)),
    "no_cheap_defense": defenses(rows=(replace(ROW, cost=2.5),), clients=2),
    "more_clients": defenses(rows=(replace(ROW, cost=1.99),), clients=4),
    "defense_did_not_hold": updates(PLAIN, ended(GUARDED, HELD)),
    "malicious_server_leaks": updates(LEAK, replace(PLAIN, number=9, malicious=("another model",))),
    "no_safe_cut": split(recommended=None, fvu=None, bytes=None, finished=False),
    "keep_it_whole": split(recommended="head", edge_share=0.999),
    "cut_here": split(recommended="head", edge_share=1.0),
    "keep_buffers": flipped(replace(LEAK, batch=4), PLAIN, "true labels given"),
    "gradients_reveal": training(alarm_at=None),
    "members_recognised": training(auc=Measured(400, 0.97, 0.79, 1.0)),
    # a guess of every class equally often finds nine tenths of 128 labels, in any order, in every third batch
    "labels_read": updates(replace(PLAIN, batch=128, labels=117 / 128)),
    "controls_failed": training(controls=(("null", 0.04), ("decoy", 0.0), ("noise 10×", 0.09))),
    "larger_batches": updates(
        PLAIN, LEAK, replace(LEAK, number=8, batch=16), flips=(Flip("a change", LEAK, PLAIN, FEASIBLE),)
    ),
    "keep_train_mode": flipped(replace(HELPED, mode="train"), PLAIN),
    "more_local_steps": flipped(replace(LEAK, batch=4), PLAIN),
    "only_upper_bound": updates(PARTLY, HELPED),
    "only_diagnostic_run": updates(HELPED, PLAIN),
    "early_steps_leak_most": training(peak=Measured(101, 1.25, 1.0, 1.5)),
    "noise_is_not_dp": updates(PLAIN, replace(PLAIN, number=6, defenses=("dpsgd:clip=1,noise=1", "prune:0.9"))),
    "noise_for_a_bound": updates(PLAIN, replace(PLAIN, number=6, bound=Bound(2.5, "sample", 0.66, 0.03))),
    "nothing_to_defend": defenses(undefended=ended(BASE, "partial")),
    "decoders_too": split(decoder_epochs=1),
    "longer_monitoring": training(scored=8),
    "properties_told": Findings(properties=(replace(TOLD, auc=replace(TOLD.auc, low=0.49)),)),
    "repair_errors": updates(PLAIN, replace(PLAIN, number=7, status="refused", reason="no head", verdict=None)),
    "resume": split(finished=True),
    "more_steps": updates(replace(PLAIN, steps=4800), SHORT),
    "not_enough_effort": updates(PLAIN, LEAK),
    "not_evidence": updates(PLAIN, SHORT),
    "prior_too": updates(PLAIN, replace(PLAIN, number=8, attack="generative_prior")),
    "more_images": updates(MANY),
    "no_proof": updates(PLAIN, PARTLY),
    "not_answered": Findings(unanswered=(Unanswered("split", "RuntimeError", failed=True),)),
}
"""For each rule findings that come near, and that it does not apply to."""

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


def fired(found: Findings) -> set[str]:
    return {one.rule for one in advise(found)}


@each_rule
def test_the_rule_fires_where_it_should_and_not_next_to_it(rule: Rule):
    assert rule.when(FIRES[rule.name]) is not None
    assert rule.when(SILENT[rule.name]) is None
    assert rule.when(Findings()) is None


def test_names_are_unique_and_no_fixture_is_left_over():
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert set(FIRES) == set(SILENT) == set(names)


@each_rule
def test_the_words_are_filled_with_what_was_measured(rule: Rule):
    match = rule.when(FIRES[rule.name])
    assert match is not None
    (one,) = [one for one in advise(FIRES[rule.name]) if one.rule == rule.name]
    said = f"{one.title} {one.why}"
    assert not re.search(r"[{}]|\bnan\b", said), said
    assert not {None, "not measured"} & set(match.facts.values())
    for name in re.findall(r"\{(\w+)\}", f"{rule.title} {rule.why}"):
        assert str(match.facts[name]) in said
    assert one.title[0].isupper()
    assert one.title.endswith(".")
    assert one.why.endswith((".", ")."))
    assert one.severity == rule.severity
    if rule.name != "not_answered":  # it has no evidence, which is its point
        assert one.because


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("plain_updates_leak", "a batch of 1. An ordinary server|SSIM 0.91, PSNR 19.5 dB; null run: SSIM 0.11, PSNR 8.2 dB"),
        ("use_defense", "prune:0.99|within 100 steps|SSIM 0.13 instead of SSIM 0.88|1.2 points of accuracy (95 % CI −0.5 to 3.0)|0.71"),
        ("no_cheap_defense", "Plan for secure aggregation|1 defense tried|prune:0.99, for 2.5 points"),
        ("more_clients", "more than 4 clients|on the sum|prune:0.99, for 2.5 points|aggregate:clients=16 and a batch of at least 16"),
        ("cut_here", "features.pool3|leaves 31 % of the image variance|FVU 0.31, threshold 0.25|2304 bytes|more than the raw image of 784"),
        ("no_safe_cut", "None of 7 cuts keeps an FVU of 0.25 and bytes<=64; head keeps most, 0.56"),
        ("gradients_reveal", "step 60 of 400|at most 5 %|1.25 (95 % CI 1.00 to 1.50) nats; the most it can show is 2.77"),
        ("labels_read", "batch of 4|4 of 4 labels (10 classes)"),
        ("more_images", "None of 4 images was reconstructed|up to 53 % of all images"),  # 1 - 0.05^(1/4)
        ("more_steps", "at least 4800|after 500 steps"),
        ("not_enough_effort", "1 set-up|after 150 steps|Below 480|4800"),
        ("not_evidence", "1 set-up|the search failed|--budget|--reveal auxiliary:64"),
        ("repair_errors", "cnn, train mode, batch 4 (out of memory)"),
        ("larger_batches", "smaller than 4|From a batch of 1 the verdict is feasible|from 4 it is infeasible"),
    ],
)  # fmt: skip
def test_numbers_in_the_sentences(name: str, words: str):
    (one,) = [one for one in advise(FIRES[name]) if one.rule == name]
    for piece in words.split("|"):
        assert piece in f"{one.title} {one.why}"


@pytest.fixture(scope="module")
def hits() -> list[set[str]]:
    """What fires on all that the fixtures say on any two questions together, and on any two runs of updates as one."""
    every = [*FIRES.values(), *SILENT.values()]
    known: dict[str, list[object]] = {question: [None] for question in QUESTIONS}
    for found, question in product(every, QUESTIONS):
        part = getattr(found, question)
        if part is not None and part not in known[question]:
            known[question].append(part)
    runs = [part for part in known["updates"] if isinstance(part, Updates)]
    merged = [Updates((*one.every, *other.every), (*one.flips, *other.flips)) for one, other in product(runs, runs)]
    pairs = [
        Findings(**{one: part, other: another})
        for one, other in combinations(QUESTIONS, 2)
        for part, another in product(known[one], known[other])
    ]
    return [fired(found) for found in [*pairs, *(Findings(updates=one) for one in merged)]]


def test_rules_that_would_contradict_never_fire_together(hits: list[set[str]]):
    names = {rule.name for rule in RULES}
    assert all({one, other} <= names and why for one, other, why in EXCLUSIVE)
    assert [(one, other) for one, other, _ in EXCLUSIVE if any({one, other} <= hit for hit in hits)] == []


def test_the_combinations_reach_every_rule_and_would_show_a_contradiction(hits: list[set[str]]):
    assert set().union(*hits) == {rule.name for rule in RULES} - {"not_answered"}
    assert any({"larger_batches", "more_steps"} <= hit for hit in hits)
    assert any({"plain_updates_leak", "use_defense"} <= hit for hit in hits)


def test_what_to_act_on_comes_before_what_to_know():
    place = {"act": 0, "check": 1, "know": 2}
    order = [place[rule.severity] for rule in RULES]
    assert order == sorted(order)
    found = Findings(updates=FIRES["plain_updates_leak"].updates, split=SCANNED, unanswered=(Unanswered("training"),))
    given = [place[one.severity] for one in advise(found)]
    assert given == sorted(given)
    assert set(given) == {0, 1, 2}


def test_the_worst_of_several_is_told_first_and_all_are_evidence():
    worse = replace(LEAK, number=9, batch=2, ssim=0.95, name="cnn, batch 2")
    (one, *_) = advise(updates(LEAK, worse))
    assert one.title == "Do not share plain updates from batches of 1 and 2."
    assert one.because == ("case-9", "case-2")
    assert "cnn, batch 2 (SSIM 0.95" in one.why


def test_a_defended_set_up_that_leaks_in_part_is_not_passed_over():
    """It had no advice at all where nothing undefended was attacked beside it."""
    partly = ended(GUARDED, "partial", number=6, defenses=("quantize:4",))
    (one,) = [one for one in advise(updates(partly)) if one.rule == "defense_did_not_hold"]
    assert one.title == "Do not rely on quantize:4 at this strength."
    assert one.why.startswith("Some images or some of their content were seen in spite of it: cnn, pruned")
    (both,) = [one for one in advise(updates(partly, GUARDED)) if one.rule == "defense_did_not_hold"]
    assert both.title == "Do not rely on prune:0.5 at this strength."
    assert both.because == ("case-5", "case-6")


def test_a_flip_of_the_ladder_is_no_set_up_of_its_own():
    """A batch of 1 that was only tried as a single change is a warning about batches, not about the user's own setting."""
    found = updates(
        PLAIN,
        replace(LEAK, change=Change("batch of 1", "relaxation")),
        flips=(Flip("batch of 1", LEAK, PLAIN, FEASIBLE),),
    )
    assert "plain_updates_leak" not in fired(found)
    assert "larger_batches" in fired(found)


def test_a_change_that_only_helps_an_upper_bound_is_no_advice():
    """Both set-ups in eval mode: what a larger batch does there says little about clients in train mode."""
    small, large = replace(LEAK, diagnostic=EVAL, mode="eval"), replace(PLAIN, diagnostic=EVAL, mode="eval")
    assert "larger_batches" not in fired(updates(small, large, flips=(Flip("a change", small, large, FEASIBLE),)))


def test_a_peak_within_the_noise_of_the_end_is_no_early_leak():
    assert "early_steps_leak_most" not in fired(training(last=Measured(400, 1.0, 0.8, 1.05)))


def test_text_for_the_console_counts_what_it_leaves_out():
    found = Findings(
        updates=Updates((LEAK, PARTLY, GUARDED, replace(PLAIN, steps=10, labels=1.0))),
        training=WATCHED,
        split=replace(SCANNED, decoder_epochs=0),
        defenses=TRIED,
    )
    advice = advise(found)
    assert len(advice) > SHOWN
    text = as_text(found, width=80)
    assert f"and {len(advice) - SHOWN} more in the report" in text
    flat = " ".join(text.split())
    for one in advice[:SHOWN]:
        assert one.title in flat
        assert one.why in flat
    assert advice[SHOWN].title not in flat
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "does not prove safety" in flat


def test_questions_without_an_answer_are_named_with_the_reason():
    (one,) = advise(
        Findings(unanswered=(Unanswered("split"), Unanswered("training", "too few images"), Unanswered("defenses")))
    )
    assert one.title == "Draw no conclusions about what was not measured: split, defenses, training (too few images)."


def test_every_field_of_findings_is_a_question_or_what_is_missing():
    assert {field.name for field in fields(Findings)} == {*QUESTIONS, "unanswered", "waiting", "incomplete"}


def test_what_leaks_under_a_defense_alone_is_a_leak_too():
    """An attack near its limit can fail without a defense and succeed under one."""
    held = replace(TRIED, undefended=ended(BASE, HELD))
    assert "no_proof" in fired(Findings(updates=Updates((PLAIN,)), defenses=held))
    leaking = replace(held, rows=(ended(ROW, "partial"),))
    assert "no_proof" not in fired(Findings(updates=Updates((PLAIN,)), defenses=leaking))


def test_a_defense_that_leaks_in_a_set_up_is_not_recommended():
    tried = replace(TRIED, model="cnn")
    leak = ended(GUARDED, "partial", defenses=("prune:fraction=0.990",), model="cnn")  # the row's, written otherwise
    both = Findings(updates=Updates((LEAK, leak)), defenses=tried)
    assert "use_defense" not in fired(both)
    (plan,) = [one for one in advise(both) if one.rule == "no_cheap_defense"]
    assert "made the attack infeasible wherever it was tried" in plan.why
    for other in (replace(leak, model="vit"), ended(leak, HELD), replace(leak, defenses=("prune:0.9",))):
        assert "use_defense" in fired(replace(both, updates=Updates((LEAK, other))))


def test_counts_of_one_and_a_range_of_steps():
    (one,) = [a for a in advise(updates(replace(PLAIN, steps=1))) if a.rule == "more_steps"]
    assert "after 1 step; the default" in one.why
    both = updates(replace(PLAIN, steps=10), replace(PLAIN, number=9, steps=150))
    (some,) = [a for a in advise(both) if a.rule == "more_steps"]
    assert "2 set-ups ended short of feasible after 10 to 150 steps;" in some.why
    (cut,) = [a for a in advise(split(cuts=1, recommended=None, fvu=None, bytes=None)) if a.rule == "no_safe_cut"]
    assert cut.why.startswith("The one cut that was scanned does not keep an FVU of 0.25;")


@pytest.mark.parametrize(
    ("found", "how"),
    [
        (split(finished=False, recommended=None), "`leakgauge audit --resume`"),
        (split(finished=False, recommended=None, audited=False), "`leakgauge scan --resume`"),
        (training(ended="failed"), "`leakgauge audit --resume`"),
        (training(ended="failed", audited=False), "watch the training again"),
    ],
)
def test_how_to_resume_fits_the_command_that_was_stopped(found: Findings, how: str):
    (one,) = [a for a in advise(found) if a.rule == "resume"]
    assert one.title == f"Finish the interrupted run ({how})."
