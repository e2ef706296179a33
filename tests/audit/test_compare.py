"""What changed between two runs: pairing, verdicts, spread over restarts, budgets, and the other questions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from leakgauge.audit import records
from leakgauge.audit.case import Case
from leakgauge.audit.compare import OTHER_RULE, compare, compare_cases, setup_of, summary, verdict_direction
from leakgauge.audit.questions import split_records, training
from leakgauge.audit.questions.defense_records import append as append_trial
from leakgauge.audit.questions.split_records import Conclusion, ScanPlan
from leakgauge.audit.records import Record
from leakgauge.audit.verdict import Outcome, Way
from leakgauge.errors import BadInput
from tests.made import FEASIBLE, INFEASIBLE, PARTIAL, scores, tried, verdict
from tests.made import record as made_record


def record(outcome: Outcome | None = PARTIAL, *, restarts=(0.4,), seed: int = 0, versions=None, **case) -> Record:
    """A record as a run writes it; ``restarts`` are the SSIMs, of which the first was chosen."""
    made = Case(seed=seed, **{"options": {"steps": 10}, **case})
    found = {} if outcome is None else {"scores": scores(restarts[0], 10.0, images=made.batch_size)}
    return made_record(
        outcome, case=made, status="done" if outcome else "error", versions=versions or {"leakgauge": "1"}, seconds=1.0,
        restarts={"ssim": list(restarts)}, reason="" if outcome else "boom", **found,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """Writes records as a run folder."""

    def write(name: str, *found: Record):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for one in found:
            records.append(folder, one)
        return folder

    return write


def directions(found):
    return [(pair.name, pair.direction) for pair in found.cases]


def test_set_ups_are_paired_whatever_the_model_is_called(run):
    old = run("a", record(model="v1.py:victim"), record(INFEASIBLE, model="v1.py:victim", mode="train"))
    new = run("b", record(FEASIBLE, model="v2.py:victim", mode="train"), record(model="v2.py:victim"))
    found = compare(old, new)
    assert directions(found) == [
        ("train mode, batch 1, strongest", "worse"),  # what got worse comes first
        ("eval mode, batch 1, strongest", "same"),
    ]
    assert [(pair.before.outcome, pair.after.outcome) for pair in found.cases] == [
        (INFEASIBLE, FEASIBLE),
        (PARTIAL, PARTIAL),
    ]
    assert found.sentence == "Of 2 set-ups 1 worse."
    assert found.is_worse
    assert ("model", "v1.py:victim", "v2.py:victim") in found.settings


@pytest.mark.parametrize(
    "change", [{"mode": "train"}, {"batch_size": 2}, {"local_epochs": 3}, {"attack": "dlg"}, {"defenses": ("clip:1",)},
               {"reveal": ("size", "labels")}, {"first": 1}, {"options": {"steps": 10, "tv": 1}}],
)  # fmt: skip
def test_another_set_up_is_not_paired(run, change):
    found = compare(run("a", record()), run("b", record(**change)))
    assert not found.cases
    assert (len(found.only_before), len(found.only_after)) == (1, 1)
    assert found.is_worse  # nothing was compared, so nothing vouches for the new run


def test_steps_seed_and_model_do_not_part_a_pair():
    assert setup_of(record()) == setup_of(record(model="vit", seed=4, options={"steps": 99, "restarts": 3}))


def test_of_several_alike_those_that_agree_most_are_paired(run):
    old = run("a", record(model="cnn"), record(FEASIBLE, model="vit"), record(INFEASIBLE, model="vit", seed=1))
    new = run("b", record(INFEASIBLE, model="vit", seed=1), record(FEASIBLE, model="vit"), record(model="cnn"))
    found = compare(old, new)
    assert [pair.direction for pair in found.cases] == ["same"] * 3
    assert {pair.name.partition(",")[0] for pair in found.cases} == {"cnn", "vit"}  # told apart by the model


def test_a_case_that_was_run_again_counts_as_it_ended_last(run):
    old, again = record(FEASIBLE), record(INFEASIBLE)
    found = compare(run("a", record(INFEASIBLE)), run("b", old, replace(again, key=old.key)))
    assert [direction for _, direction in directions(found)] == ["same"]


@pytest.mark.parametrize(
    ("before", "after", "direction", "held_back"),
    [
        (INFEASIBLE, PARTIAL, "worse", True),
        (PARTIAL, FEASIBLE, "worse", True),
        (FEASIBLE, INFEASIBLE, "better", False),
        (PARTIAL, PARTIAL, "same", False),
        (PARTIAL, None, "lost", True),
        (None, PARTIAL, "new", False),
        (None, None, "unclear", False),
    ],
)
def test_directions(run, before, after, direction, held_back):
    assert verdict_direction(before, after) == direction
    assert compare(run("a", record(before)), run("b", record(after))).is_worse == held_back


@pytest.mark.parametrize(
    ("before", "after", "beyond", "said"),
    [
        ((0.4, 0.3, 0.5), (0.6, 0.5, 0.7), False, "within the spread over restarts (restarts span 0.3 to 0.5"),
        ((0.4, 0.3, 0.5), (0.6, 0.51, 0.7), True, "beyond the spread over restarts"),
        ((0.4, 0.3), (0.2, 0.1), True, "beyond"),
        ((0.4,), (0.6, 0.5), None, ""),
    ],
)
def test_a_difference_beside_the_spread_over_restarts(run, before, after, beyond, said):
    found = compare(run("a", record(restarts=before)), run("b", record(restarts=after)))
    ssim, psnr = found.cases[0].differences
    assert ssim.value == pytest.approx(after[0] - before[0])
    assert ssim.beyond is beyond
    assert said in ssim.note
    assert psnr.value == 0


def test_a_verdict_that_may_have_changed_by_chance(run):
    old, new = (
        replace(record(v, restarts=ssim), restarts={"ssim": list(ssim), "psnr": [9.0, 11.0]})
        for v, ssim in ((PARTIAL, (0.4, 0.6)), (FEASIBLE, (0.5, 0.45)))
    )  # fmt: skip
    found = compare(run("a", old), run("b", new))
    assert found.cases[0].direction == "worse"
    assert "may be chance" in found.cases[0].notes[0]
    assert not found.warnings
    single = compare(run("c", record(PARTIAL)), run("d", record(FEASIBLE)))
    assert "1 changed verdict rests on a single restart" in single.warnings[0]
    assert not single.cases[0].notes


BY_LAYOUT = verdict(PARTIAL, glimpsed={Way.LAYOUT: 1})


def test_a_verdict_that_rests_on_the_layout(run):
    """SSIM and PSNR within the spread do not make it chance; a run that compared no layouts could not have said it."""
    old = record(INFEASIBLE, restarts=(0.3, 0.4), options={"steps": 10, "restarts": 2})
    old = replace(old, restarts={"ssim": [0.3, 0.4], "psnr": [10.0, 11.0]})
    new = replace(old, verdict=BY_LAYOUT, scores=scores(0.3, 10.0, layout=0.7, layout_rank=1))
    found = compare(run("a", old), run("b", new))
    assert found.cases[0].notes == (OTHER_RULE,)
    assert "so the rule may have changed" in found.warnings[0]
    measured = replace(old, scores=scores(0.3, 10.0, layout=0.1, layout_rank=1))
    found = compare(run("c", measured), run("d", new))
    assert found.cases[0].notes == ("seen by the layout: correlation 0.10 before and 0.70 after",)
    assert found.warnings == ()


def test_a_verdict_that_rests_on_the_pieces(run):
    old = record(INFEASIBLE, restarts=(0.3, 0.4))
    by_pieces = verdict(PARTIAL, glimpsed={Way.PIECES: 1})
    new = replace(old, verdict=by_pieces, scores=scores(0.3, 10.0, pieces_lead=0.12))
    assert OTHER_RULE in compare(run("a", old), run("b", new)).cases[0].notes
    measured = replace(old, scores=scores(0.3, 10.0, pieces_lead=-0.03))
    (note,) = compare(run("c", measured), run("d", new)).cases[0].notes
    assert note == "seen by the patches: they fit the original better than other images by −0.03 before and 0.12 after"


def test_other_budgets_are_warned_of(run):
    found = compare(run("a", record()), run("b", record(options={"steps": 500})))
    assert "different budgets" in found.warnings[0]
    assert "not comparable" in found.warnings[0]
    assert ("steps", "10", "500") in found.settings
    assert not compare(run("c", record()), run("d", record(model="vit"))).warnings


def test_other_private_images_are_warned_of(tmp_path):
    folders = (tmp_path / "a", tmp_path / "b")
    for folder, content in zip(folders, (b"one", b"two"), strict=True):
        folder.mkdir()
        (folder / "truth.png").write_bytes(content)
    shown = replace(record(), pictures={"truth": "truth.png"})
    assert "private images differ" in compare_cases([shown], [shown], folders=folders).warnings[0]
    (folders[1] / "truth.png").write_bytes(b"one")
    assert not compare_cases([shown], [shown], folders=folders).warnings


def test_versions_that_differ(run):
    found = compare(run("a", record()), run("b", record(versions={"leakgauge": "2"})))
    assert ("version of leakgauge", "1", "2") in found.settings


def test_the_summary_is_json(run):
    endless = replace(record(), scores=scores(1.0, float("inf")))
    found = summary(compare(run("a", record(FEASIBLE)), run("b", endless)))
    again = json.loads(json.dumps(found, allow_nan=False))
    assert again["cases"][0]["verdict"] == [FEASIBLE, PARTIAL]
    assert again["cases"][0]["psnr"]["after"] == "inf"
    assert not again["worse"]


def test_what_cannot_be_compared(run, tmp_path):
    folder = run("a", record())
    with pytest.raises(BadInput, match="there is no run folder"):
        compare(folder, tmp_path / "none")
    with pytest.raises(BadInput, match="are the same run"):
        compare(folder, tmp_path / "x" / ".." / "a")
    with pytest.raises(BadInput, match=r"neither .* holds a result"):
        compare(run("b"), run("c"))


def monitored(folder, *, alarm_at, auc):
    scalars = {f"privacy/whitebox/auc{end}": value for end, value in zip(("", "_low", "_high"), auc, strict=True)}
    training.append(folder, "run", {"view": "released"})
    line = {"step": 50, "scalars": scalars, "alarm_at": alarm_at, "alpha": 0.05}
    training.append(folder, "report", line)
    training.append(folder, "end", {"how": "finished", "step": 50})


def test_the_training(run):
    old, new = run("a"), run("b")
    monitored(old, alarm_at=None, auc=(0.6, 0.55, 0.65))
    monitored(new, alarm_at=30, auc=(0.8, 0.7, 0.9))
    found = compare(old, new)
    assert [(c.what, c.direction) for c in found.changes] == [
        ("Alarm", "worse"),
        ("White-box AUC at the last look", "worse"),
    ]
    assert (found.changes[0].before, found.changes[0].after) == ("silent", "fired at step 30")
    assert [c.direction for c in compare(new, old).changes] == ["better", "better"]


def test_intervals_that_overlap_show_no_difference(run):
    old, new = run("a"), run("b")
    monitored(old, alarm_at=None, auc=(0.6, 0.5, 0.7))
    monitored(new, alarm_at=None, auc=(0.8, 0.69, 0.9))
    assert [c.direction for c in compare(old, new).changes] == ["same", "same"]


def scanned(folder, recommended: str | None, threshold: float = 0.25):
    cuts = tuple({"name": n, "shape": [4], "bytes": 16, "edge_flops": 1, "edge_share": 0.5} for n in ("1", "2"))
    split_records.save_plan(folder, ScanPlan(
        case=Case(), cuts=cuts, threshold=threshold, epochs=0, budget=None, require="", numbers="fp32", raw_bytes=9,
        jpeg_bytes=None, auxiliary=4, tested=1, traced="", labels=(), truth="", shown=0, versions={}, command="",
    ))  # fmt: skip
    split_records.save_conclusion(folder, Conclusion(
        recommended=recommended, leaking=None, met=recommended is not None, front=(),
        envelope=(0.1, 0.5), by_depth=(0.1, 0.5), depth_choice=None, class_mean=None, epochs_spent=0, epochs_of_all=0,
    ))  # fmt: skip
    return folder


@pytest.mark.parametrize(
    ("before", "after", "direction"),
    [("1", None, "worse"), (None, "2", "better"), ("1", "2", "different"), ("2", "2", "same"), (None, None, "same")],
)
def test_the_recommended_cut(run, before, after, direction):
    found = compare(scanned(run("a"), before), scanned(run("b"), after))
    assert [c.direction for c in found.changes] == [direction]
    assert "FVU 0.50" in found.changes[0].after if after else found.changes[0].after == "none"


def test_another_threshold_is_warned_of(run):
    found = compare(scanned(run("a"), "1"), scanned(run("b"), "1", threshold=0.4))
    assert "threshold differ (0.25 and 0.4)" in found.warnings[0]


def add_trial(folder, defense: str, outcome: Outcome, cost: tuple[float, float, float], **more):
    low, value, high = cost
    append_trial(folder, tried(defense, outcome, accuracy={"cost": {"low": low, "value": value, "high": high}}, **more))


def test_defenses(run):
    old, new = run("a"), run("b")
    for folder, outcome, cost in ((old, INFEASIBLE, (0.0, 0.01, 0.02)), (new, FEASIBLE, (0.1, 0.2, 0.3))):
        add_trial(folder, "", FEASIBLE, (0.0, 0.0, 0.0))
        add_trial(folder, "prune:0.9", outcome, cost)
    add_trial(new, "clip:1", FEASIBLE, (0.0, 0.0, 0.0))
    found = compare(old, new)
    assert [(c.what, c.direction) for c in found.changes] == [("Defense prune:0.9", "worse"), ("No defense", "same")]
    assert "accuracy cost higher" in found.changes[0].note
    assert found.only_after == ("defense clip:1",)


def test_a_defense_judged_by_a_layout_that_the_other_run_did_not_measure(run):
    old, new = run("a"), run("b")
    add_trial(old, "", INFEASIBLE, (0.0, 0.0, 0.0))
    add_trial(new, "", PARTIAL, (0.0, 0.0, 0.0), verdict=BY_LAYOUT, scores=scores(0.5, layout=0.8))
    (change,) = compare(old, new).changes
    assert (change.direction, change.note.startswith(OTHER_RULE)) == ("worse", True)


def test_a_question_that_one_run_alone_answered(run):
    found = compare(run("a", record()), scanned(run("b", record()), "1"))
    assert found.only_after == ("Where may the network be cut?",)


def test_a_single_attack_is_warned_of(run):
    """Five set-ups were "better" though another attack still saw as much."""
    alone = {"attack": "inverting_gradients"}
    (said,) = compare(run("a", record(**alone)), run("b", record(**alone))).warnings
    assert said.startswith("Only one attack was run before (inverting_gradients) and after (inverting_gradients)")
    assert compare(run("c", record()), run("d", record())).warnings == ()
    fitted = {"attack": "imprint", "server": "imprint"}  # the only attack on such a server's model
    assert compare(run("e", record(), record(**fitted)), run("f", record(), record(**fitted))).warnings == ()


@pytest.mark.parametrize(
    ("before", "after", "direction"),
    [
        (INFEASIBLE, Outcome.INCONCLUSIVE, "lost"),
        (FEASIBLE, Outcome.INCONCLUSIVE, "lost"),
        (Outcome.INCONCLUSIVE, FEASIBLE, "new"),
        (Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE, "unclear"),
    ],
)
def test_what_is_no_evidence_vouches_for_nothing(before, after, direction):
    assert verdict_direction(before, after) == direction
