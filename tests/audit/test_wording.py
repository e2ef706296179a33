"""Every sentence about the four questions, in one golden file per question; the facts behind them in tests of their own.

After a change of wording, look at what ``python -m tests.audit.test_wording`` writes into ``tests/golden``, and commit it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from leakgauge.audit.case import Change
from leakgauge.audit.findings import (
    Defenses,
    Findings,
    Flip,
    Measured,
    Split,
    Training,
    Unanswered,
    Updates,
)
from leakgauge.audit.questions import USUAL
from leakgauge.audit.questions.answers import Waiting
from leakgauge.audit.verdict import Check, Outcome, Verdict, Way
from leakgauge.audit.wording import Statement, rule, statements
from leakgauge.split.remedies import Remedy
from tests.made import FEASIBLE, INFEASIBLE, PARTIAL, defended, ended, update, verdict

GOLDEN = Path(__file__).parents[1] / "golden"
NUMBERS = {"ssim": 0.2, "psnr": 9.0, "null_ssim": 0.1, "null_psnr": 8.0, "seconds": 60.0}
PLAIN = update(1, "cnn, batch 4, dlg", INFEASIBLE, batch=4, attack="dlg", steps=30, usual_steps=300, setting="cnn, batch 4",
               deployable=("batch size known",), **NUMBERS)  # fmt: skip
LEAK = ended(PLAIN, FEASIBLE, number=2, name="cnn, batch 1, dlg", setting="cnn, batch 1", batch=1, ssim=0.9, steps=300)
HELPED = replace(LEAK, number=3, diagnostic=("eval mode",))
MALICIOUS = replace(LEAK, number=4, malicious=("another model",))
PARTLY = replace(LEAK, number=5, batch=4, verdict=verdict(PARTIAL, images=4, reconstructed=1, glimpsed={}))
OUTLINED = ended(PLAIN, PARTIAL, seen=Way.LAYOUT, number=6, layout=0.71, null_layout=0.02)
ONE = Change("batch of 1", "relaxation")
WATCHED = Training(    top1=Measured(100, 0.31, 0.2, 0.42),
steps=100, peak=Measured(40, 1.0, 0.8, 1.2), last=Measured(100, 0.2, 0.1, 0.3), ceiling=2.77, scored=30,
                   controls=(("null", 0.0), ("decoy", -0.1)), layers=(("fc.weight", 0.3),), seconds=4.0)  # fmt: skip
SCANNED = Split(threshold=0.25, cuts=7, recommended="pool3", fvu=0.3, bytes=64, edge_share=0.9, safest="head", safest_fvu=0.5,
                scanned=7, auxiliary=800, tested=200, raw_bytes=784, computed=2, decoded=1, decoder_epochs=24, epochs_here=24,
                by="least squares", reidentified=0.12, recognised=0.25, candidate="pool3", accuracy=0.93)  # fmt: skip
NO_CUT = replace(SCANNED, recommended=None, candidate=None, safest_fvu=0.2)
REMEDY = Remedy("pool3", noise=1.0, fvu=0.47, reidentified=0.16, accuracy=0.9, width=13)
BASE = defended(1, "", FEASIBLE, ssim=0.9)
ROW = defended(2, "prune:0.99", INFEASIBLE, ssim=0.1, auc=0.9, cost=1.0, front=True)


def _updates(*every, flips: tuple[Flip, ...] = ()) -> Findings:
    return Findings(updates=Updates(every, flips))


def _training(**changes) -> Findings:
    return Findings(training=replace(WATCHED, **changes))


def _defenses(base, *rows) -> Findings:
    return Findings(defenses=Defenses(base, rows, steps=9, train_steps=8, seconds=7.0))


SCENES: dict[str, dict[str, tuple[Findings, str, str]]] = {
    "updates": {
        "one of two leaks": (_updates(PLAIN, LEAK), "bad", "Leaks"),
        "part of a batch leaks": (_updates(PARTLY), "partly", "Leaks in part"),
        "a layout alone was seen": (_updates(OUTLINED), "partly", "Leaks in part"),
        "held, but not with help": (_updates(PLAIN, HELPED), "good", "Held"),
        "attacked with help alone": (_updates(HELPED), "bad", "Leaks (upper bound)"),
        "leaks under a defense": (_updates(replace(LEAK, defenses=("prune:0.5",))), "bad", "Leaks"),
        "a malicious server alone": (_updates(MALICIOUS), "bad", "Leaks"),
        "held, but not with a malicious server": (_updates(PLAIN, MALICIOUS), "good", "Held"),
        "two held": (_updates(PLAIN, replace(PLAIN, number=9)), "good", "Held"),
        "help and a defense beside it": (
            _updates(PLAIN, HELPED, replace(PLAIN, number=4, defenses=("prune:0.9",))), "good", "Held",
        ),
        "a single change flips it": (
            _updates(PLAIN, replace(LEAK, change=ONE), flips=(Flip(ONE.name, LEAK, PLAIN, FEASIBLE),)),
            "good", "Held",
        ),
        "one step": (_updates(replace(PLAIN, steps=1)), "good", "Held"),
        "stopped before its end": (
            replace(_updates(PLAIN), waiting=(Waiting("updates", 5, 8),)), "good", "Held",
        ),
        "failed in the middle": (
            replace(_updates(PLAIN), incomplete=(Unanswered("updates", "RuntimeError: boom", failed=True),)),
            "good", "Held",
        ),
        "two of three have no result": (
            _updates(PLAIN, update(2, "b", None, status="refused"), update(3, "c", None, status="error")), "good", "Held",
        ),
        "refused": (Findings(unanswered=(Unanswered("updates", "too few images"),)), "none", "No result"),
        "not reached": (Findings(unanswered=(Unanswered("updates", reached=False),)), "none", "Not reached"),
        "not asked": (Findings(), "none", "Not asked"),
    },
    "training": {
        "silent": (_training(), "good", "Alarm silent"),
        "alarm": (_training(alarm_at=30), "bad", "Alarm"),
        "almost all members": (_training(auc=Measured(90, 0.95, 0.85, 1.0)), "bad", "Members recognised"),
        "some members": (_training(auc=Measured(90, 0.8, 0.51, 0.96)), "partly", "Some members recognised"),
        "guessing": (_training(auc=Measured(90, 0.74, 0.44, 0.94)), "good", "Alarm silent"),
        "a control failed": (_training(alarm_at=30, controls=(("decoy", 0.2),)), "partly", "Controls failed"),
        "too short": (_training(peak=None, last=None, top1=None, scored=3, controls=(), layers=()), "none", "Too short to say"),
    },
    "split": {
        "a cut": (Findings(split=SCANNED), "good", "Cut found"),
        "the output alone": (Findings(split=replace(SCANNED, recommended="head", edge_share=1.0)), "partly", "Only the output"),
        "a cut without decoders": (Findings(split=replace(SCANNED, decoders=False, decoded=0, decoder_epochs=0)), "partly", "Cut found"),
        "a cut larger than the image": (Findings(split=replace(SCANNED, bytes=1568)), "partly", "Cut found"),
        "not attacked enough": (Findings(split=replace(SCANNED, recommended=None, undertrained=True)), "partly", "Not attacked enough"),
        "no cut that meets": (Findings(split=replace(SCANNED, recommended=None, require="bytes<=9")), "bad", "No cut"),
        "no cut, and what would help": (Findings(split=replace(NO_CUT, safest_fvu=0.5, blurred=("head",), remedy=REMEDY)), "bad", "No cut"),
        "no noise helps": (Findings(split=replace(NO_CUT, remedy=replace(REMEDY, noise=None))), "bad", "No cut"),
        "refused where it might hold": (Findings(split=replace(NO_CUT, safest_fvu=0.5)), "bad", "No cut"),
        "no cut of one": (Findings(split=replace(NO_CUT, cuts=1)), "bad", "No cut"),
        "not finished": (Findings(split=replace(SCANNED, finished=False)), "none", "Not finished"),
    },
    "defenses": {
        "a cheap one": (_defenses(BASE, ROW), "good", "Defense found"),
        "one hides who was in the batch": (
            _defenses(BASE, ROW, replace(ROW, number=3, defenses=("dpsgd:clip=1",), auc=0.52, auc_low=0.4)), "good", "Defense found",
        ),
        "none is cheap": (_defenses(BASE, replace(ROW, cost=9.0)), "bad", "No cheap defense"),
        "none holds": (_defenses(BASE, ended(ROW, PARTIAL)), "bad", "No cheap defense"),
        "a price is unknown": (_defenses(BASE, replace(ROW, cost=None)), "partly", "Cost unknown"),
        "nothing to defend": (_defenses(ended(BASE, INFEASIBLE), ROW), "none", "Nothing to defend"),
        "it leaks under a defense alone": (_defenses(ended(BASE, INFEASIBLE), ended(ROW, PARTIAL)), "none", "Nothing to defend"),
        "no result": (_defenses(replace(BASE, verdict=None, reason="no head"), ROW), "none", "No result"),
        "broken in a set-up": (
            Findings(
                updates=Updates((ended(LEAK, PARTIAL, number=5, defenses=("prune:0.99",), model="cnn", steps=500),)),
                defenses=Defenses(BASE, (ROW,), model="cnn", steps=200),
            ),
            "bad", "No cheap defense",
        ),
    },
}  # fmt: skip


def answer(found: Findings, question: str) -> Statement:
    return next(one for one in statements(found) if one.question == question)


def golden(question: str) -> str:
    """What the golden file holds: every scene with its badge, sentences, assumptions and budget."""
    lines = []
    for name, (found, _, _) in SCENES[question].items():
        one = answer(found, question)
        lines += [f"## {name}", f"[{one.tone}] {one.badge}", *one.sentences]
        lines += [f"{kind}: {what}" for kind, what in one.assumptions]
        lines += [f"budget: {one.budget}"] if one.budget else []
        lines.append("")
    return "\n".join(lines)


@pytest.mark.parametrize("question", SCENES)
def test_sentences_are_those_of_the_golden_file(question: str):
    assert golden(question) == (GOLDEN / f"{question}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(("question", "scene"), [(q, s) for q, scenes in SCENES.items() for s in scenes])
def test_tone_and_badge_follow_the_facts(question: str, scene: str):
    found, tone, badge = SCENES[question][scene]
    one = answer(found, question)
    assert (one.tone, one.badge) == (tone, badge)


def test_every_question_has_a_statement_also_without_an_answer():
    found = statements(Findings(unanswered=(Unanswered("split", "too few images"), Unanswered("updates"))))
    assert [one.question for one in found] == list(USUAL)
    assert [one.state for one in found] == ["not_asked", "not_asked", "no_result", "not_asked"]
    assert {one.tone for one in found} == {"none"}


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("images", [1, 4])
def test_a_rule_names_the_kind_and_what_was_missed(outcome: Outcome, images: int):
    said = rule(verdict(outcome, images=images, kind="diagnostic", missed=Check("psnr", 2.6, above="null")))
    assert said.endswith("(diagnostic)")
    assert ("PSNR at least 2.6 dB above the null run" in said) == (outcome is not Outcome.FEASIBLE)


def test_a_rule_counts_what_is_reconstructed_at_reduced_size():
    assert (
        rule(Verdict(FEASIBLE, "deployable", 4, 2, 1))
        == "2 of 4 images pass every check (1 at reduced size) (deployable)"
    )


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for each in SCENES:
        (GOLDEN / f"{each}.txt").write_text(golden(each), encoding="utf-8")
