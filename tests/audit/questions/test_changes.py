"""The ladder of single changes: each differs from the set-up in one thing, and a flip is found by running it."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from torch import nn

from leakgauge.audit import run_all
from leakgauge.audit.case import Case
from leakgauge.audit.questions.updates import RELAXATIONS, RESTRICTIONS, changes, explain, ladder, pointless
from leakgauge.audit.wording import described, explanation
from leakgauge.channels import Aggregate, FedAvg
from leakgauge.core import Pixels, Victim
from leakgauge.errors import BadInput
from tests.made import record

HARD = Case(
    mode="train",
    batch_size=4,
    local_steps=2,
    defenses=("prune:0.9",),
    attack="inverting_gradients",
    options={"steps": 7, "tv": 0.2},
)


def names_of(cases) -> set[str]:
    return {case.change.name for case in cases}


def test_every_change_is_one_thing():
    cases = ladder(HARD, images=99)
    found = changes(HARD)
    assert cases == [HARD, *found]
    assert names_of(found) == {*RELAXATIONS, *RESTRICTIONS} - {
        "train mode", "the plain update of one client",
    }  # fmt: skip  # which it is already
    for changed in found:
        before, after = asdict(HARD), asdict(changed)
        different = {name for name in before if before[name] != after[name]} - {"name", "change"}
        if changed.change.name in ("running statistics shared", "half of the pixels given"):
            assert different == {"reveal", "attack"}  # with the attack that can use what is revealed
        else:
            assert len(different) == 1, changed
        assert changed.name.endswith(f"({changed.change.kind}: {changed.change.name})")
    assert RELAXATIONS["eval mode"](HARD).mode == "eval"
    assert RELAXATIONS["no defense"](HARD).defenses == ()
    guided = RELAXATIONS["running statistics shared"](HARD)
    assert (guided.attack, guided.options) == ("feasibility", {"steps": 7, "tv": 0.2})


@pytest.mark.parametrize(
    ("attack", "options", "expected"),
    [
        ("inverting_gradients", {"steps": 7}, {"steps": 7, "tv": 0.1}),
        ("inverting_gradients:tv=0.3", {"steps": 7}, {"steps": 7, "tv": 0.3}),
        ("inverting_gradients:0.3", {}, {"tv": 0.3}),
        ("inverting_gradients", {"tv": 0.01}, {"tv": 0.01}),
        ("dlg", {"steps": 7}, {"steps": 7}),  # another objective: nothing of it but what was asked for
    ],
)
def test_the_attack_that_can_use_more_is_otherwise_the_same(attack, options, expected):
    """The weight of total variation alone could flip a verdict; it must not pass for the running statistics."""
    case = Case(mode="train", attack=attack, options=options)
    for change in ("running statistics shared", "half of the pixels given"):
        assert RELAXATIONS[change](case).options == expected


@pytest.mark.parametrize("steps", [4, 8])
def test_fewer_local_epochs_are_no_restriction(steps):
    assert "four local epochs" not in names_of(changes(replace(HARD, name="", local_epochs=steps)))


def test_noise_comes_to_the_defenses_that_are_there():
    """In place of more noise it would be a relaxation, in place of another defense a second change."""
    defended = replace(HARD, name="", defenses=("gaussian_noise:relative=100.0",))
    noised = RESTRICTIONS["Gaussian noise with 10× the gradient's norm"]
    assert noised(defended).defenses == (*defended.defenses, "gaussian_noise:relative=10.0")
    assert noised(noised(HARD)) is None


@pytest.mark.parametrize(
    ("case", "spent"),
    [
        (Case(attack="feasibility:steps=3"), "; 3 steps, 1 restart(s), 2 s"),
        (Case(attack="feasibility", options={"restarts": 4}), "; 4800 steps, 4 restart(s), 2 s"),
        (Case(attack="april_closed_form"), "; deployable; 2 s"),
    ],
)
def test_the_budget_that_was_spent(case, spent):
    """Not "default": the number counts, wherever it was written, and an attack without steps spends none."""
    found = record("partial", case=case, seconds=2.0, assumptions=())
    assert described(explain([found]).base).endswith(spent)


def test_changes_that_change_nothing_for_a_model_are_left_out():
    space = Pixels((1, 4, 4))
    plain = Victim(nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), space)
    single = Victim(nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, 2)), space)
    normed = Victim(nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(16, 2)), space)
    assert pointless(plain) == {"eval mode", "train mode", "running statistics shared"}
    assert pointless(single) == {"running statistics shared"}
    assert pointless(normed) == set()
    names = [case.name for case in ladder(HARD, images=99, without=pointless(plain))]
    assert not any("eval mode)" in name or "statistics" in name for name in names)
    assert len(names) == len(ladder(HARD, images=99)) - 2


def test_changes_go_together_with_the_channel():
    summed = Case(mode="train", batch_size=6, channel="aggregate:clients=3")
    names = {c.change.name: c for c in changes(summed)}
    assert names["the plain update of one client"].channel == ""
    assert "batch of 1" not in names  # three clients hold at least three images
    assert names["four local epochs"].build_channel() == Aggregate(3, FedAvg(steps=4, lr=0.01))
    private = names_of(changes(replace(summed, name="", channel="dpsgd:clip=1,noise=1")))
    assert "the plain update of one client" in private
    assert "batch of 1" in private
    assert not private & {"four local epochs", "running statistics shared"}  # it has neither


def test_an_easy_set_up_has_little_to_relax():
    easy = Case(reveal=("size", "labels", "noisy_copy:0.1"))
    assert [c.change.name for c in changes(easy)] == list(RESTRICTIONS)


def test_no_more_images_than_there_are():
    assert max(c.batch_size for c in ladder(HARD, images=32)) == 16  # in each of two steps
    assert max(c.batch_size for c in ladder(HARD, images=31)) == 4


def test_other_models_are_relaxations_too():
    (stem,) = [c for c in changes(HARD, models={"smaller stem": "my.py:small"}) if c.change.name == "smaller stem"]
    assert (stem.change.kind, stem.model) == ("relaxation", "my.py:small")


def test_flips_are_those_that_leak_more_or_stop_the_leak():
    models = {"stem": "my.py:small"}
    outcomes = {
        "eval mode": "feasible",
        "batch of 1": "partial",
        "no defense": None,
        "four local epochs": "infeasible_within_budget",
    }
    run = [record("partial", case=HARD)]
    run += [record(outcomes.get(c.change.name, "partial"), case=c) for c in changes(HARD, models=models)]
    found = explain(run, models=models)
    assert found.base.outcome == "partial"
    assert [s.change.name for s in found.steps if s.flips] == ["eval mode", "four local epochs"]
    assert "stem" in [s.change.name for s in found.steps]
    lines = explanation(found).splitlines()
    assert "         relaxation no defense: refused (no such role)" in lines
    assert lines[0] == (
        "partial: cnn in train mode, batch of 4, local steps: 2 on batches of 4 (1 epoch of 8 images), "
        "learning rate 0.01, SGD, with prune:0.9, known to the adversary: size; deployable; "
        "7 steps, 1 restart(s), 3 s"
    )
    assert "  flips  relaxation eval mode: feasible (4 of 4 images pass every check (deployable))" in lines
    assert lines[-1] == "changes that flip the verdict: eval mode, four local epochs"


def test_a_real_ladder(quick, load, tmp_path):
    base = quick(batch_size=2, mode="train", options={"steps": 2})
    found = explain(run_all(ladder(base, images=20), load=load, folder=tmp_path))
    tried = {step.change.name for step in found.steps}
    assert tried == {
        "eval mode", "batch of 1", "true labels given", "running statistics shared", "half of the pixels given",
        "batch four times as large", "four local epochs", "Gaussian noise with 10× the gradient's norm",
    }  # fmt: skip
    assert found.base.case.mode == "train"


def test_the_defenses_of_a_set_up_are_named(quick, load, tmp_path):
    case = quick(defenses=("prune:0.5", "quantize:4"))
    (found,) = run_all([case], load=load, folder=tmp_path)
    assert ", with prune:0.5, quantize:4, known to" in described(found)


def test_a_set_up_alone_says_that_nothing_was_tried(quick, load, tmp_path):
    found = explain(run_all([quick()], load=load, folder=tmp_path))
    assert explanation(found).splitlines()[-1] == "changes that flip the verdict: none was tried"


def test_nothing_to_explain():
    with pytest.raises(BadInput, match="no record to explain"):
        explain([])
