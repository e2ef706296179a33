"""Verdict sentences: the tone follows the worst undefended set-up that asks for no help, and silence is never called safety."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leakgauge.audit.advice.sentences import QuestionVerdict, verdicts
from leakgauge.audit.findings import Findings
from leakgauge.audit.questions import QUESTIONS
from leakgauge.audit.summaries import (
    HELD,
    Defended,
    Defenses,
    Flip,
    Measured,
    Split,
    Training,
    Unanswered,
    Update,
    Updates,
)

PLAIN = Update("case-1", "cnn, batch 4, dlg", HELD, batch=4, attack="dlg", steps=30, usual_steps=300, ssim=0.2, psnr=9.0,
               null_ssim=0.1, null_psnr=8.0, seconds=60.0, deployable=("batch size known",))  # fmt: skip
LEAK = replace(PLAIN, anchor="case-2", name="cnn, batch 1, dlg", batch=1, outcome="feasible", ssim=0.9, steps=300)
HELPED = replace(LEAK, anchor="case-3", diagnostic=("eval mode",))
MALICIOUS = replace(LEAK, anchor="case-4", malicious=("another model",))
WATCHED = Training(steps=100, peak=Measured(40, 1.0, 0.8, 1.2), last=Measured(100, 0.2, 0.1, 0.3), ceiling=2.77, scored=30,
                   controls=(("null", 0.0), ("decoy", -0.1)), layers=(("fc.weight", 0.3),), seconds=4.0)  # fmt: skip
SCANNED = Split(threshold=0.25, cuts=7, recommended="pool3", fvu=0.3, bytes=64, edge_share=0.9, safest="head", safest_fvu=0.5,
                threat="a curious cloud", budget="ridge alone")  # fmt: skip
BASE, ROW = (
    Defended("none", "feasible", ssim=0.9),
    Defended("prune:0.99", HELD, ssim=0.1, auc=0.9, cost=1.0, front=True),
)


def verdict(found: Findings, question: str) -> QuestionVerdict:
    return dict(zip(QUESTIONS, verdicts(found), strict=True))[question]  # type: ignore[index]


def updates(*every: Update, flips: tuple[Flip, ...] = ()) -> QuestionVerdict:
    return verdict(Findings(updates=Updates(every, flips)), "updates")


@pytest.mark.parametrize(
    ("every", "tone", "word", "said"),
    [
        ((PLAIN, LEAK), "bad", "Leaks", "could reconstruct private images from plain updates in 1 of 2 set-ups: cnn, batch 1 (SSIM 0.90"),
        ((replace(LEAK, outcome="partial"),), "partly", "Leaks in part", "could partly reconstruct private images from plain updates: cnn"),
        ((PLAIN, HELPED), "good", "Held within budget", "could not reconstruct private images from plain updates within the budget"),
        ((HELPED,), "bad", "Leaks (upper bound)", "With diagnostic help an honest-but-curious server could reconstruct"),
        ((replace(LEAK, defenses=("prune:0.5",)),), "bad", "Leaks", "from defended updates: cnn, batch 1"),
        ((MALICIOUS,), "bad", "Leaks", "A malicious server could reconstruct private images from plain updates: cnn, batch 1"),
        ((PLAIN, MALICIOUS), "good", "Held within budget", "An honest-but-curious server could not reconstruct"),
        ((PLAIN, replace(PLAIN, anchor="case-9")), "good", "Held within budget", "plain updates in any of 2 set-ups within"),
    ],
)  # fmt: skip
def test_the_worst_realistic_set_up_decides(every: tuple[Update, ...], tone: str, word: str, said: str):
    found = updates(*every)
    assert (found.tone, found.word) == (tone, word)
    assert said in found.sentences[0]


def test_a_malicious_server_is_counted_by_itself():
    assert "With a malicious server: 1 feasible." in updates(PLAIN, MALICIOUS).sentences[1]
    assert updates(MALICIOUS).assumptions[-1] == ("malicious", "another model")


def test_help_and_defenses_are_counted_beside_it():
    found = updates(PLAIN, HELPED, replace(PLAIN, anchor="case-4", defenses=("prune:0.9",)))
    assert "With diagnostic help (upper bound): 1 feasible." in found.sentences
    assert "With a defense: 1 infeasible within budget." in found.sentences
    assert dict(found.assumptions) == {"deployable": "batch size known"}  # those of what the first sentence is about
    assert found.budget == "30 to 300 steps (default of the attack: 300), 1 restart, 3 set-ups, 3 min in all"


def test_single_changes_say_what_they_make_of_it():
    found = updates(PLAIN, replace(LEAK, change="batch of 1"), flips=(Flip("batch of 1", LEAK, PLAIN, "feasible"),))
    assert found.sentences[-1] == "Single changes that move a verdict: batch of 1 makes it feasible."
    assert found.tone == "good"  # the set-up that was asked about held


def test_every_question_has_a_verdict_also_without_an_answer():
    found = verdicts(Findings(unanswered=(Unanswered("split", "too few images"), Unanswered("updates"))))
    assert [v.question for v in found] == list(QUESTIONS)
    assert [v.word for v in found] == ["Not asked", "Not asked", "No result", "Not asked"]
    assert "too few images" in found[2].sentences[0]
    assert {v.tone for v in found} == {"none"}


@pytest.mark.parametrize(
    ("changes", "tone", "word", "said"),
    [
        ({"alarm_at": 30}, "bad", "Alarm", "The alarm fired at step 30 of 100"),
        ({}, "good", "Alarm silent", "no evidence of safety"),
        ({"auc": Measured(90, 0.95, 0.85, 1.0)}, "bad", "Members told", "AUC of 0.95 (95 % 0.85 to 1.00)"),
        ({"alarm_at": 30, "controls": (("decoy", 0.2),)}, "partly", "Controls failed", "Controls failed (decoy)"),
        ({"auc": Measured(90, 0.8, 0.51, 0.96)}, "partly", "Members told in part", "tells members with an AUC of 0.80"),
        (
            {"auc": Measured(90, 0.74, 0.44, 0.94)},
            "good",
            "Alarm silent",
            "was not shown to do better than guessing: AUC 0.74",
        ),
        ({"peak": None, "last": None}, "none", "Too short to say", "Too few steps were scored"),
    ],
)
def test_training(changes: dict, tone: str, word: str, said: str):
    found = verdict(Findings(training=replace(WATCHED, **changes)), "training")
    assert (found.tone, found.word) == (tone, word)
    assert said in " ".join(found.sentences)
    assert found.budget == "100 training steps, the last numbers over 30 scored steps, 4 s"
    assert ("diagnostic" in dict(found.assumptions)) == ("auc" in changes)


def test_the_peak_stands_with_interval_ceiling_and_layer():
    said = " ".join(verdict(Findings(training=WATCHED), "training").sentences)
    assert "most at step 40: 1.00 (95 % 0.80 to 1.20) nats of at most ln K = 2.77; at the end 0.20" in said
    assert "fc.weight (0.30 nats)" in said
    assert "clean" in said


def test_split():
    found = verdict(Findings(split=SCANNED), "split")
    assert (found.tone, found.word, found.budget) == ("good", "Cut found", "ridge alone")
    assert "At pool3 or deeper: it keeps an FVU of 0.30 (threshold 0.25" in found.sentences[0]
    assert "sends 64 bytes; the edge holds 90 %" in found.sentences[0]
    whole = verdict(Findings(split=replace(SCANNED, recommended="head", edge_share=1.0)), "split")
    assert (whole.tone, whole.word) == ("partly", "Only the output")
    assert "the device does all the work and sends 64 bytes" in whole.sentences[0]
    none = verdict(Findings(split=replace(SCANNED, recommended=None, require="bytes<=9")), "split")
    assert (none.tone, none.word) == ("bad", "No cut")
    assert (
        "No cut of 7 keeps an FVU of 0.25 and meets bytes<=9. The most that one keeps is 0.50, at head."
        in none.sentences
    )
    assert verdict(Findings(split=replace(SCANNED, finished=False)), "split").word == "Not finished"
    only = verdict(Findings(split=replace(SCANNED, recommended=None, cuts=1)), "split")
    assert only.sentences[0].startswith("No cut keeps an FVU of 0.25.")


@pytest.mark.parametrize(
    ("base", "rows", "tone", "word", "said"),
    [
        (BASE, (ROW,), "good", "Defense found", "worth having is prune:0.99, for 1.0 points of accuracy. Behind them"),
        (BASE, (replace(ROW, cost=9.0),), "bad", "No cheap defense", "None is cheap: the cheapest that made"),
        (BASE, (replace(ROW, outcome="partial"),), "bad", "No cheap defense", "0 of 1 defense made the attack infeasible"),
        (BASE, (replace(ROW, cost=None),), "partly", "Cost unknown", "None is known to be cheap: prune:0.99 made the attack"),
        (replace(BASE, outcome=HELD), (ROW,), "none", "Nothing to defend", "fails without a defense too"),
        (replace(BASE, outcome=HELD), (replace(ROW, outcome="partial"),), "none", "Nothing to defend", "leaks under prune:0.99 (partial):"),
        (replace(BASE, outcome=None, reason="no head"), (ROW,), "none", "No result", "gave no result: no head."),
    ],
)  # fmt: skip
def test_defenses(base: Defended, rows: tuple[Defended, ...], tone: str, word: str, said: str):
    found = verdict(Findings(defenses=Defenses(base, rows, steps=9, train_steps=8, seconds=7.0)), "defenses")
    assert (found.tone, found.word) == (tone, word)
    assert said in " ".join(found.sentences)
    assert found.budget == "9 steps of attack each, 8 steps of training each, 7 s in all"


def test_a_defense_that_held_and_leaks_in_a_set_up_is_named():
    leak = replace(LEAK, anchor="case-5", defenses=("prune:0.99",), outcome="partial", model="cnn", steps=500)
    trials = Defenses(BASE, (ROW,), model="cnn", steps=200)
    found = verdict(Findings(updates=Updates((leak,)), defenses=trials), "defenses")
    assert found.sentences[1] == "But not everywhere: under prune:0.99 set-up 5 is partial after 500 steps."
    assert found.word == "No cheap defense"
    alone = verdict(Findings(updates=Updates((replace(leak, model="vit"),)), defenses=trials), "defenses")
    assert "But not everywhere" not in " ".join(alone.sentences)


def test_what_was_done_once_is_not_said_in_the_plural():
    once = updates(replace(PLAIN, steps=1))
    assert once.budget.startswith("1 step (default of the attack: 300)")
    trials = Defenses(replace(BASE, outcome=HELD), (ROW,), steps=1, train_steps=1)
    found = verdict(Findings(defenses=trials), "defenses")
    assert found.budget.startswith("1 step of attack each, 1 step of training each")
    assert "the one defense that was tried cannot show what it buys against it" in found.sentences[0]


def test_membership_is_told_also_where_the_reconstruction_fails_by_itself():
    """Nothing to defend against a reconstruction is not nothing that leaks."""
    found = verdict(Findings(defenses=Defenses(replace(BASE, outcome=HELD), (ROW,))), "defenses")
    assert found.sentences[1] == "Behind them members of a batch are told with an AUC of 0.90 (0.5 is guessing)."
