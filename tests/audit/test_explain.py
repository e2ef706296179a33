"""The ladder of single changes: each differs from the set-up in one thing, and a flip is found by running it."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from leakgauge.audit import run_all
from leakgauge.audit.case import Case
from leakgauge.audit.explain import RELAXATIONS, RESTRICTIONS, as_text, explain, ladder
from leakgauge.audit.records import Record
from leakgauge.errors import BadInput

HARD = Case(mode="train", batch_size=4, local_steps=2, defenses=("prune:0.9",), options={"steps": 7, "tv": 0.2})


def test_every_relaxation_changes_one_thing():
    cases = ladder(HARD)
    assert cases[0] == HARD
    changes = {}
    for case in cases[1:]:
        before, after = asdict(HARD), asdict(case)
        changes[case.key()] = {name for name in before if before[name] != after[name] and name != "name"}
    for name, change in {**RELAXATIONS, **RESTRICTIONS}.items():
        changed = change(HARD)
        if changed is None:
            assert name == "train mode"  # it is so already
        elif name in ("running statistics shared", "half of the pixels given"):
            assert changes[changed.key()] == {"reveal", "attack"}  # with the attack that can use what is revealed
        else:
            assert len(changes[changed.key()]) == 1, name
    assert RELAXATIONS["eval mode"](HARD).mode == "eval"
    assert RELAXATIONS["no defense"](HARD).defenses == ()
    guided = RELAXATIONS["running statistics shared"](HARD)
    assert (guided.attack, guided.options) == ("feasibility", {"steps": 7, "tv": 0.2})


def test_an_easy_set_up_has_little_to_relax():
    easy = Case(reveal=("size", "labels", "noisy_copy:0.1"))
    kept = [name for name, change in RELAXATIONS.items() if change(easy) is not None]
    assert kept == []
    assert len(ladder(easy)) == 1 + len(RESTRICTIONS)


def test_other_models_are_relaxations_too():
    cases = ladder(HARD, models={"smaller stem": "my.py:small"})
    assert cases[-1] == replace(HARD, name="", model="my.py:small")


def record(case: Case, verdict: str | None) -> Record:
    return Record(
        key=case.key(), status="done" if verdict else "refused", case=asdict(case), victim={}, attack="", channel="",
        defenses=(), assumptions=({"what": "size", "kind": "deployable"},), versions={}, seed=0, seconds=3.0, peak_bytes=0,
        verdict=verdict, rule="rule" if verdict else "", reason="" if verdict else "no such role",
    )  # fmt: skip


def test_flips_are_those_that_leak_more_or_stop_the_leak():
    cases = ladder(HARD, models={"stem": "my.py:small"})
    outcomes = {
        "eval mode": "feasible",
        "batch of 1": "partial",
        "no defense": None,
        "four local steps": "infeasible_within_budget",
    }
    named = {c.key(): n for n, change in {**RELAXATIONS, **RESTRICTIONS}.items() if (c := change(HARD)) is not None}
    run = [record(c, outcomes.get(named.get(c.key(), ""), "partial")) for c in cases]
    found = explain(run, models={"stem": "my.py:small"})
    assert found.outcome == "partial"
    assert [s.change for s in found.steps if s.flips] == ["eval mode", "four local steps"]
    assert "stem" in [s.change for s in found.steps]
    refused = next(s for s in found.steps if s.change == "no defense")
    assert (refused.outcome, refused.reason) == (None, "refused: no such role")
    lines = as_text(found).splitlines()
    assert lines[0] == (
        "partial: cnn in train mode, batch of 4, 2 local step(s), known to the adversary: size; deployable; "
        "7 steps, 1 restart(s), 3 s"
    )
    assert "  flips  relaxation eval mode: feasible (rule)" in lines
    assert lines[-1] == "changes that flip the verdict: eval mode, four local steps"


def test_a_real_ladder(quick, load, tmp_path):
    base = quick(batch_size=2, mode="train", options={"steps": 2})
    found = explain(run_all(ladder(base), load=load, folder=tmp_path))
    tried = {step.change for step in found.steps}
    assert tried == {
        "eval mode", "batch of 1", "true labels given", "running statistics shared", "half of the pixels given",
        "batch four times as large", "four local steps", "noise ten times as long as the gradient",
    }  # fmt: skip
    assert found.case["mode"] == "train"


def test_nothing_to_explain():
    with pytest.raises(BadInput, match="no record to explain"):
        explain([])
