"""Findings say what the record files say: each summary against records made by hand, flips against the explanation of a ladder."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from leakgauge.audit import records
from leakgauge.audit.advice import advise
from leakgauge.audit.case import Case
from leakgauge.audit.findings import (
    Defenses,
    Findings,
    Measured,
    Training,
    Unanswered,
    Updates,
    defenses_of,
    read_findings,
    training_of,
    updates_of,
)
from leakgauge.audit.questions import answers, defense_records, split_records, training
from leakgauge.audit.questions.answers import Answer
from leakgauge.audit.questions.defense_records import DefenseRecord
from leakgauge.audit.questions.split_records import Conclusion, CutRecord, ScanPlan
from leakgauge.audit.questions.training import MonitorRun
from leakgauge.audit.questions.updates import explain, ladder
from leakgauge.audit.records import Record
from leakgauge.audit.request import default_cases
from leakgauge.audit.scoring import Scores
from leakgauge.audit.verdict import Outcome, Way, judge
from tests.made import EVAL_MODE, INFEASIBLE, SIZE_KNOWN, scores, tried
from tests.made import record as made_record

HELD = INFEASIBLE


def record(case: Case, outcome: Outcome | str | None = HELD) -> Record:
    if outcome is None:
        return made_record(None, case=case)
    found = scores(0.5, math.inf, images=case.batch_size, labels=0.75)
    return made_record(outcome, case=case, scores=found, null=scores(0.1, 8.0, images=case.batch_size))


def answered(found: Updates | Unanswered) -> Updates:
    assert isinstance(found, Updates)
    return found


def test_an_empty_folder_answers_nothing(tmp_path: Path):
    assert read_findings(tmp_path) == Findings(
        unanswered=tuple(Unanswered(q) for q in ("updates", "training", "split", "defenses"))
    )


def test_an_update_is_read_with_numbers_assumptions_and_budget(tmp_path: Path):
    case = Case(mode="eval", batch_size=4, defenses=("prune:0.9",), options={"steps": 30, "restarts": 3}, first=7)
    records.append(tmp_path, record(case, "feasible"))
    (one,) = answered(read_findings(tmp_path).updates or Unanswered("updates")).every
    assert (one.anchor, one.outcome, one.mode, one.batch, one.first) == ("case-1", "feasible", "eval", 4, 7)
    assert (one.steps, one.usual_steps, one.restarts, one.seconds) == (30, 2000, 3, 3.0)
    assert (one.ssim, one.psnr, one.null_ssim, one.null_psnr) == (0.5, math.inf, 0.1, 8.0)
    assert (one.labels, one.classes, one.defenses) == (0.75, 10, ("prune:0.9",))
    assert (one.deployable, one.diagnostic) == ((SIZE_KNOWN.what,), (EVAL_MODE.what,))


def test_labels_that_were_given_are_not_found(tmp_path: Path):
    given = record(Case(reveal=("size", "labels")), "feasible")
    assert answered(updates_of([given])).every[0].labels is None


def test_the_defaults_of_the_attack_are_what_was_spent():
    (one,) = answered(updates_of([record(Case(attack="gradinversion"))])).every
    assert (one.steps, one.usual_steps, one.restarts) == (2000, 2000, 4)
    (closed,) = answered(updates_of([record(Case(attack="april_closed_form"))])).every
    assert (closed.steps, closed.usual_steps) == (None, None)


def test_a_case_that_was_run_again_counts_once_as_in_the_report():
    first, second = Case(), Case(batch_size=2)
    found = answered(updates_of([record(first), record(second), record(first, "partial")]))
    assert [(u.anchor, u.outcome) for u in found.every] == [("case-1", "partial"), ("case-2", HELD)]


def test_no_judged_set_up_is_no_answer_and_says_why():
    assert updates_of([record(Case(), None)]) == Unanswered("updates", "no such role")
    assert updates_of([]) == Unanswered("updates", "no set-up was judged")


@pytest.mark.parametrize("base", ["partial", "feasible", HELD])
def test_flips_of_a_ladder_are_those_of_its_explanation(base: str):
    cases = ladder(Case(mode="train", batch_size=4), images=99, models={"smaller stem": "small.py:make"})
    outcomes = [base, *(("feasible", HELD, "partial")[i % 3] for i in range(len(cases) - 1))]
    run = [record(case, outcome) for case, outcome in zip(cases, outcomes, strict=True)]
    steps = explain(run, models={"smaller stem": "small.py:make"}).steps
    expected = {(step.change.name, step.record.outcome) for step in steps if step.flips}
    found = answered(updates_of(run))
    assert {(flip.change, flip.makes) for flip in found.flips} == expected
    assert [u.change for u in found.every] == [None, *[case.change for case in cases[1:]]]
    assert len(found.own) == 1


def test_a_grid_shows_its_flips_too():
    """The embedded default: the batch of 1 is feasible, the batch of 4 is not; modes and noise change nothing."""
    run = [record(c, "feasible" if c.batch_size == 1 and not c.defenses else HELD) for c in default_cases()]
    found = answered(updates_of(run))
    batches = {(f.leaking.anchor, f.holding.anchor) for f in found.flips if f.leaking.batch < f.holding.batch}
    assert batches == {("case-1", "case-2"), ("case-3", "case-4"), ("case-6", "case-7")}
    noise = {(f.leaking.anchor, f.holding.anchor) for f in found.flips if f.holding.defenses}
    assert noise == {("case-1", "case-5"), ("case-6", "case-8")}
    assert len(found.flips) == 5  # each pair once, though a batch of 1 and a batch of 4 are changes of each other


def test_a_harder_set_up_that_leaks_more_is_chance_and_no_flip():
    small, large = Case(batch_size=1), Case(batch_size=4)
    assert answered(updates_of([record(small, HELD), record(large, "feasible")])).flips == ()


def report(step: int, nats: float, *, pairs: float = 20, **more: float) -> dict:
    scalars = {"pairs": pairs, "infonce_ceiling": math.log(16), "infonce_nats": nats, "infonce_nats_low": nats - 0.1}
    scalars |= {"infonce_nats_high": nats + 0.1, "control/null_nats_low": -0.01, "control/decoy_nats_low": -0.5}
    scalars |= {"control/noise_10x_nats": 0.02, **more}
    return {"step": step, "view": "released", "alpha": 0.05, "alarm_at": 60 if step >= 60 else None, "layers": {"a": 0.1, "b": 0.4},
            "scalars": {f"privacy/{name}": value for name, value in scalars.items()}}  # fmt: skip


def test_a_training_is_read_at_its_peak_and_its_end(tmp_path: Path):
    training.append(tmp_path, "run", {"view": "released"})
    training.append(tmp_path, "report", report(25, 9.0, pairs=7))  # too few to count
    training.append(tmp_path, "report", report(50, 1.5, **{"control/null_nats_low": 0.3}))
    training.append(tmp_path, "report", report(75, 0.5, **{"whitebox/auc": 0.9, "whitebox/auc_low": 0.7}))
    training.append(tmp_path, "end", {"how": "finished", "step": 80, "seconds": 4.5})
    found = read_findings(tmp_path).training
    assert found is not None
    assert found.peak == Measured(50, 1.5, 1.4, 1.6)
    assert found.last == Measured(75, 0.5, 0.4, 0.6)
    assert found.auc == Measured(75, 0.9, 0.7, None)
    assert dict(found.controls) == {"null": 0.3, "decoy": -0.5, "noise 10×": 0.02}  # the worse of peak and end
    assert (found.steps, found.alarm_at, found.scored, found.seconds, found.ended) == (80, 60, 20, 4.5, "finished")
    assert found.layers == (("b", 0.4), ("a", 0.1))


def test_a_training_without_a_report_is_no_answer(tmp_path: Path):
    training.append(tmp_path, "run", {})
    assert read_findings(tmp_path).unanswered[1] == Unanswered("training", "no step was measured")
    training.append(tmp_path, "end", {"how": "refused", "why": "LBFGS is not watched", "step": 0, "seconds": 0.1})
    assert read_findings(tmp_path).unanswered[1] == Unanswered("training", "LBFGS is not watched")


CUTS = tuple({"name": n, "shape": [4], "bytes": b, "edge_flops": 1, "edge_share": s} for n, b, s in
             (("early", 900, 0.1), ("late", 40, 0.75)))  # fmt: skip


def plan(folder: Path) -> ScanPlan:
    made = ScanPlan(
        case=Case(defenses=("quantize:8",)), cuts=CUTS, threshold=0.25, epochs=2, budget=None, require="", numbers="fp32", raw_bytes=784,
        jpeg_bytes=None, auxiliary=10, tested=5, traced="", labels=(), truth="", shown=0, versions={}, command="",
    )  # fmt: skip
    split_records.save_plan(folder, made)
    return made


def test_a_scan_is_read_with_the_cut_that_it_names(tmp_path: Path):
    plan(tmp_path)
    split_records.append(tmp_path, CutRecord("early", "ridge", 0, {"fvu": 0.1}))
    unfinished = read_findings(tmp_path).split
    assert unfinished is not None
    assert (unfinished.finished, unfinished.recommended) == (False, None)
    split_records.append(tmp_path, CutRecord("late", "decoder", 2, {"fvu": 0.4}))
    end = Conclusion("late", "early", True, (), (0.1, 0.4), (None, None), None, None, 2, 4)
    split_records.save_conclusion(tmp_path, end)
    found = read_findings(tmp_path).split
    assert found is not None
    assert (found.recommended, found.fvu, found.bytes, found.edge_share) == ("late", 0.4, 40, 0.75)
    assert (found.safest, found.safest_fvu, found.decoder_epochs, found.cuts) == ("late", 0.4, 2, 2)
    assert (found.raw_bytes, found.defenses, found.auxiliary, found.tested) == (784, ("quantize:8",), 10, 5)
    assert (found.scanned, found.decoded, found.epochs_here, found.weak, found.stopped) == (2, 1, 2, (), ())
    split_records.save_conclusion(tmp_path, replace(end, recommended=None, envelope=(0.1, None)))
    none = read_findings(tmp_path).split
    assert none is not None
    assert (none.finished, none.recommended, none.fvu, none.bytes, none.safest_fvu) == (True, None, None, None, 0.1)


def test_a_scan_that_was_refused_at_every_cut_is_no_answer(tmp_path: Path):
    plan(tmp_path)
    for name in ("early", "late"):
        split_records.append(tmp_path, CutRecord(name, "ridge", 0, {"refusal": "features are not finite"}))
    assert read_findings(tmp_path).unanswered[2] == Unanswered("split", "features are not finite")


def trial(
    *defenses: str, outcome: Outcome | str | None = HELD, ssim: float = 0.2, cost: float | None = 0.01, **more
) -> DefenseRecord:
    case = Case(mode="train", defenses=defenses, channel=more.pop("channel", ""), options={"steps": 40})
    price = {} if cost is None else {"cost": {"value": cost, "low": cost - 0.01, "high": cost + 0.01}}
    usual = {"assumptions": (SIZE_KNOWN,), "accuracy": price, "auc": 0.9, "status": "done" if outcome else "error"}
    return tried("-".join(defenses), outcome, ssim, case=case, cost=cost, **{"defenses": defenses, **usual, **more})


def test_defenses_are_compared_with_the_trial_without_any(tmp_path: Path):
    every = [
        trial(outcome="feasible", ssim=0.9, cost=0.0),
        trial("prune:0.99", cost=0.015),
        trial("quantize:2", ssim=0.3, cost=0.03),
        trial("withhold:head", outcome=None, cost=None, reason="no head"),
    ]
    for one in every:
        defense_records.append(tmp_path, one)
    found = read_findings(tmp_path).defenses
    assert found is not None
    assert (found.undefended.name, found.undefended.outcome) == ("none", "feasible")
    pruned, quantized, withheld = found.rows
    assert (pruned.name, pruned.outcome, pruned.front, pruned.auc) == ("prune:0.99", HELD, True, 0.9)
    assert [pruned.cost_low, pruned.cost, pruned.cost_high] == pytest.approx([0.5, 1.5, 2.5])  # in points
    assert not quantized.front  # dearer and less safe than pruning
    assert (withheld.outcome, withheld.status, withheld.reason, withheld.cost) == (None, "error", "no head", None)
    assert (found.steps, found.train_steps, found.seconds) == (40, 60, 8.0)
    assert (found.setting, found.deployable) == ("cnn, train mode, batch 1", (SIZE_KNOWN.what,))
    assert found.clients == 1


def test_what_was_seen_by_its_layout_alone_shows_by_the_layout():
    values = {"ssim": (0.3, 0.3), "psnr": (11.0, 11.0), "layout": (0.8, 0.2), "layout_rank": (1.0, 9.0)}
    seen = Scores(mse=(0.0, 0.0), **values)
    nothing = Scores(mse=(0.0, 0.0), ssim=(0.6, 0.6), psnr=(14.0, 14.0), layout=(0.0, 0.1))
    judged = judge(seen, nothing, nothing)
    found = {"scores": seen, "null": nothing, "verdict": judged}
    (update,) = answered(updates_of([replace(record(Case(), judged.outcome), **found)])).every
    assert (update.evidence, update.layout, update.null_layout) == ("layout", 0.5, 0.05)
    assert answered(updates_of([record(Case(), "partial")])).every[0].evidence == "ssim"
    compared = defenses_of([trial(**found), trial("prune:0.99")])
    assert isinstance(compared, Defenses)
    assert (compared.undefended.evidence, compared.undefended.layout) == ("layout", 0.8)
    assert (compared.rows[0].evidence, compared.rows[0].layout) == ("ssim", None)


def test_what_was_seen_by_its_pieces_alone_is_read_too():
    seen = Scores(mse=(0.0, 0.0), ssim=(0.1, 0.1), psnr=(11.0, 11.0), pieces=(0.8, 0.4), pieces_lead=(0.2, -0.1))
    nothing = Scores(mse=(0.0, 0.0), ssim=(0.6, 0.6), psnr=(14.0, 14.0), pieces=(0.0, 0.0), pieces_lead=(0.0, -0.1))
    judged = judge(seen, nothing, nothing)
    found = {"scores": seen, "null": nothing, "verdict": judged}
    (update,) = answered(updates_of([replace(record(Case(), judged.outcome), **found)])).every
    assert judged.glimpsed == {Way.PIECES: 1}
    assert (update.evidence, update.pieces_lead, update.null_pieces_lead) == ("pieces_lead", 0.05, -0.05)
    compared = defenses_of([trial(**found), trial("prune:0.99")])
    assert isinstance(compared, Defenses)
    assert (compared.undefended.evidence, compared.undefended.pieces_lead) == ("pieces_lead", 0.2)


@pytest.mark.parametrize(
    ("channel", "clients", "advised"),
    [
        ("", 1, "no_cheap_defense"),
        ("aggregate:clients=4", 4, "more_clients"),
    ],
)
def test_clients_that_are_added_up_already_are_not_advised_to_be(
    tmp_path: Path, channel: str, clients: int, advised: str
):
    for one in [
        trial(outcome="feasible", ssim=0.9, cost=0.0, channel=channel),
        trial("prune:0.99", cost=0.5, channel=channel),
    ]:
        defense_records.append(tmp_path, one)
    found = read_findings(tmp_path)
    assert found.defenses is not None
    assert found.defenses.clients == clients
    assert found.defenses.setting == ", ".join(filter(None, ["cnn, train mode, batch 1", channel]))
    given = {one.rule: one.title for one in advise(found)}
    assert {"no_cheap_defense", "more_clients"} & set(given) == {advised}
    assert ("secure aggregation" in given[advised]) == (clients == 1)


def test_trials_without_the_undefended_one_cannot_be_compared(tmp_path: Path):
    defense_records.append(tmp_path, trial("prune:0.99"))
    (missing,) = [u for u in read_findings(tmp_path).unanswered if u.question == "defenses"]
    assert "without a defense" in missing.reason


def test_findings_are_plain_data(tmp_path: Path):
    records.append(tmp_path, record(Case(), "feasible"))
    assert json.loads(json.dumps(asdict(read_findings(tmp_path))))["updates"]["every"][0]["ssim"] == 0.5


def test_a_question_without_records_has_the_reason_that_the_audit_wrote_down(tmp_path: Path):
    answers.append(tmp_path, Answer("split", "refused", "too few images"))
    answers.append(tmp_path, Answer("training", "failed", "RuntimeError: no"))
    answers.append(tmp_path, Answer("updates", "answered"))
    records.append(tmp_path, record(Case(), "feasible"))
    assert read_findings(tmp_path).unanswered == (
        Unanswered("training", "RuntimeError: no", failed=True),
        Unanswered("split", "too few images"),
        Unanswered("defenses"),
    )


@pytest.mark.parametrize("audited", [True, False])
def test_whether_an_audit_or_a_command_of_its_own_watched_the_training(audited: bool):
    found = training_of(MonitorRun({"audited": audited}, reports=({"step": 1, "scalars": {}},)))
    assert isinstance(found, Training)
    assert found.audited is audited
