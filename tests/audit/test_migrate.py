"""A run folder that version 0.1 wrote is read as it was meant, question by question."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from leakgauge.audit import records
from leakgauge.audit.cause import Cause
from leakgauge.audit.findings import read_findings
from leakgauge.audit.migrate import verdict_of
from leakgauge.audit.questions import defense_records as defenses
from leakgauge.audit.questions import split_records, training
from leakgauge.audit.questions.updates import changes
from leakgauge.audit.typed import typed
from leakgauge.audit.verdict import Outcome, Verdict, Way
from leakgauge.audit.wording import statements
from leakgauge.errors import BadInput

OLD = Path(__file__).parents[1] / "golden" / "run_0_1"


def lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (OLD / name).read_text(encoding="utf-8").splitlines()]


def read_as(outcome: str | None) -> str | None:
    """Until the truth was tested, nobody knew why nothing was found."""
    return "inconclusive" if outcome == "infeasible_within_budget" else outcome


def test_every_record_keeps_its_verdict_scores_and_change():
    old, new = lines("records.jsonl"), records.read(OLD)
    assert [(r.key, r.outcome, r.reason) for r in new] == [(o["key"], read_as(o["verdict"]), o["reason"]) for o in old]
    assert {r.verdict.cause for r in new if r.verdict and not r.outcome.leaks} == {Cause.UNTESTED}
    for before, after in zip(old, new, strict=True):
        assert after.case.key() == before["key"]  # a resumed run finds what is done
        assert after.verdict is not None
        assert before["rule"].endswith(f"({after.verdict.kind})")
        assert after.scores is not None
        assert after.scores.mean("ssim") == pytest.approx(before["metrics"]["ssim"]["mean"])
        said = before["case"]["name"].partition("(")[2].rstrip(")")
        assert said == ("" if after.change is None else f"{after.change.kind}: {after.change.name}")
    assert any(r.change for r in new)


def test_trials_scan_and_training_are_read():
    old, new = lines("defenses.jsonl"), defenses.read(OLD)
    assert [(r.key, r.outcome) for r in new] == [(o["key"], read_as(o["verdict"])) for o in old]
    assert all(r.trial.key() == r.key for r in new)
    assert split_records.read_plan(OLD).audited
    assert training.read(OLD).about["audited"]
    assert split_records.read(OLD)


def test_findings_and_statements_answer_all_four_questions():
    found = read_findings(OLD)
    assert not found.unanswered
    assert {one.state for one in statements(found)} == {"answered"}


def test_a_line_that_was_written_today_needs_no_migration(tmp_path: Path):
    shutil.copytree(OLD, tmp_path / "run")
    again = records.read(OLD)
    (tmp_path / "run" / records.FILE).unlink()
    for record in again:
        records.append(tmp_path / "run", record)
    assert records.read(tmp_path / "run") == again
    written = [json.loads(line) for line in (tmp_path / "run" / records.FILE).read_text().splitlines()]
    assert {line["format"] for line in written} == {records.FORMAT}
    assert all("rule" not in line for line in written)


@pytest.mark.parametrize(
    ("rule", "outcome", "facts"),
    [
        ("2 of 4 images pass every check (1 at reduced size) (deployable)", "feasible", (2, 1, {}, None)),
        (
            "1 of 4 images pass every check; another misses: SSIM at least 0.38 (diagnostic)",
            "partial", (1, 0, {}, ("ssim", 0.38, "zero")),
        ),
        (
            "3 of 4 images beat the null run (1 by SSIM alone, 1 by the layout alone); not reconstructed, missed: "
            "PSNR at least 2.6 dB above the null run (malicious)",
            "partial", (0, 0, {Way.CLOSENESS: 1, Way.STRUCTURE: 1, Way.LAYOUT: 1}, ("psnr", 2.6, "null")),
        ),
        (
            "1 of 1 images beat the null run (1 by their pieces alone); not reconstructed, missed: "
            "LPIPS at least 0.02 below the trivial baseline (deployable)",
            "partial", (0, 0, {Way.PIECES: 1}, ("lpips", 0.02, "baseline")),
        ),
        (
            "no image of 4 beats the null run; missed: re-identified by its layout at rank 1 or better (deployable)",
            "infeasible_within_budget", (0, 0, {}, ("layout_rank", 1.0, "zero")),
        ),
        (
            "no image of 1 beats the null run; missed: its pieces fit the original better than the null run's, by 0.05 (deployable)",
            "infeasible_within_budget", (0, 0, {}, ("pieces_lead", 0.05, "null")),
        ),
    ],
)  # fmt: skip
def test_sentences_of_0_1_give_their_facts(rule: str, outcome: str, facts: tuple):
    fields = verdict_of({"verdict": outcome, "rule": rule})
    assert fields is not None
    found = typed(Verdict, fields)
    missed = None if found.missed is None else (found.missed.metric, found.missed.margin, found.missed.above)
    assert (found.reconstructed, found.at_reduced_size, dict(found.glimpsed), missed) == facts
    assert found.outcome == Outcome(outcome)


def test_without_a_known_sentence_the_outcome_alone_is_known():
    fields = verdict_of({"verdict": "partial", "rule": "by hand", "assumptions": [{"kind": "diagnostic"}]})
    assert fields is not None
    found = typed(Verdict, fields)
    assert (found.outcome, found.kind, found.images, found.glimpsed) == (Outcome.PARTIAL, "diagnostic", 1, {})
    assert verdict_of({"verdict": None}) is None


def test_a_later_format_is_refused(tmp_path: Path):
    line = lines("records.jsonl")[0] | {"format": records.FORMAT + 1}
    (tmp_path / records.FILE).write_text(json.dumps(line) + "\n")
    with pytest.raises(BadInput, match="cannot be read"):
        records.read(tmp_path)


def test_a_change_of_an_old_run_is_one_of_todays_or_was_renamed():
    """A ladder explains itself by what its cases do, so a change with a new name is still found."""
    today = {case.content_key() for r in records.read(OLD) if r.change is None for case in changes(r.case)}
    old = {r.case.content_key() for r in records.read(OLD) if r.change is not None}
    assert old <= today
