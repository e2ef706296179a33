"""One call from private data to a verdict: the same as a case gives, each part computed once, and readable as it prints."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch

import leakgauge
from leakgauge import BadInput, Inapplicable, Labels, NoisyCopy, Size, testing
from leakgauge.attacks import ATTACKS, dlg, feasibility, inverting_gradients, linear
from leakgauge.audit import evaluate as module
from leakgauge.audit import run_case, scoring
from leakgauge.audit.case import Case, earns_negative, enough_steps, tries_enough, with_steps
from leakgauge.audit.evaluate import Result, evaluate
from leakgauge.audit.verdict import Cause, Outcome
from leakgauge.channels import FedAvg, Gradient
from leakgauge.defenses import GaussianNoise
from leakgauge.inversion import Cosine, Descent, Matching


@pytest.fixture(scope="module")
def solved() -> Result:
    victim, x, y = testing.tiny_case("mlp")
    return evaluate(victim, Gradient(), x, y, attack=linear())


def test_a_leaking_update_is_feasible(solved):
    assert solved.outcome is Outcome.FEASIBLE
    assert solved.verdict.kind == "deployable"
    assert solved.scores.mean("ssim") > 0.99 > solved.baseline.mean("ssim") > solved.null.mean("ssim")
    assert solved.assumptions == (leakgauge.Assumption("batch size known (1)", "deployable"),)
    torch.testing.assert_close(solved.images["reconstruction"], solved.images["truth"], atol=1e-3, rtol=0)


def test_a_closed_form_that_noise_ends_is_no_evidence():
    """The truth still explains the update better than what the closed form makes of it, so a search might find it."""
    victim, x, y = testing.tiny_case("mlp")
    found = evaluate(victim, Gradient(), x, y, attack=linear(), defenses=[GaussianNoise(relative=10.0)])
    assert (found.outcome, found.verdict.cause) == (Outcome.INCONCLUSIVE, Cause.SEARCH)


def test_it_is_what_a_case_does(quick, load, tmp_path):
    case = quick(batch_size=2, options={"steps": 3, "restarts": 2}, defenses=("gaussian_noise:relative=0.1",), seed=4)
    setup = load(case)
    x, y = setup.private(case)
    found = evaluate(
        setup.victim, Gradient(), x, y,
        attack=case.build_attack(), defenses=case.build_defenses(), seed=4, pool=setup.pool(case),
    )  # fmt: skip
    record = run_case(case, load=load, folder=tmp_path)
    assert (found.verdict, found.scores, found.null, found.baseline) == (
        record.verdict, record.scores, record.null, record.baseline,
    )  # fmt: skip
    assert found.restarts == record.restarts
    assert found.assumptions == record.assumptions
    assert len(found.restarts["ssim"]) == 2
    assert found.scores.mean("ssim") in found.restarts["ssim"]


def test_a_negative_after_too_few_steps_is_inconclusive():
    victim, x, y = testing.tiny_case("cnn")
    drowned = [GaussianNoise(relative=100.0)]
    short = evaluate(victim, Gradient(), x, y, attack=inverting_gradients(steps=5), defenses=drowned)
    assert (short.outcome, short.verdict.cause) == (Outcome.INCONCLUSIVE, Cause.EFFORT)
    assert str(short).startswith("Inconclusive. ")
    long = evaluate(victim, Gradient(), x, y, attack=dlg(steps=30), defenses=drowned, seed=1)  # a tenth of its own 300
    assert long.outcome is Outcome.INFEASIBLE


def test_everything_that_applies_is_tried_unless_an_attack_is_named():
    victim, x, y = testing.tiny_case("mlp")
    found = evaluate(victim, Gradient(), x, y)
    assert found.outcome is Outcome.FEASIBLE
    assert [one.name for one in found.reconstruction.raced if one.chosen] == ["linear"]


SEARCHING = [name for name, make in ATTACKS.items() if "steps" in inspect.signature(make).parameters]


@pytest.mark.parametrize("name", SEARCHING)
@pytest.mark.parametrize("missing", [0, 1])
def test_python_and_cases_ask_for_the_same_effort(name, missing):
    case = with_steps(Case(attack=name), enough_steps(Case(attack=name)) - missing)
    assert earns_negative(case.build_attack()) is tries_enough(case) is (not missing)


def test_a_recipe_of_the_users_own_has_no_usual_effort():
    assert earns_negative(Matching(Cosine(), solver=Descent(steps=1), name="mine"))
    assert earns_negative(linear())


def test_pairing_is_solved_once_for_each_picture(monkeypatch):
    calls = []
    real = scoring.pair
    monkeypatch.setattr(scoring, "pair", lambda *images: calls.append(1) or real(*images))
    victim, x, y = testing.tiny_case("cnn", count=2)
    evaluate(victim, Gradient(), x, y, attack=inverting_gradients(steps=2))
    assert len(calls) == 2  # the reconstruction and the null run
    evaluate(victim, Gradient(), x, y, attack=inverting_gradients(steps=2, restarts=3))
    assert len(calls) == 2 + 2 + 2  # and the restarts that were not chosen


def test_images_are_in_the_order_of_the_truth():
    victim, x, y = testing.tiny_case("cnn", count=3)

    class Backwards:
        def __call__(self, victim, seen, /, *, seed=0):
            return leakgauge.Reconstruction.single(x.flip(0), y.flip(0), made_by="Backwards()", began=0.0)

    found = evaluate(victim, Gradient(), x, y, attack=Backwards())
    assert found.order.tolist() == [2, 1, 0]
    assert torch.equal(found.images["reconstruction"], found.images["truth"])
    assert found.scores.mean("labels") == 1


def test_what_is_revealed_is_assumed_and_scored():
    victim, x, y = testing.tiny_case("cnn")
    found = evaluate(victim, Gradient(), x, y, attack=feasibility(steps=2), reveal=[Size(), Labels(), NoisyCopy(0.2)])
    assert found.verdict.kind == "diagnostic"
    assert len(found.assumptions) == 4  # and eval mode
    assert found.start is not None
    assert evaluate(victim, Gradient(), x, y, attack=inverting_gradients(steps=2)).start is None


def test_it_prints_a_verdict(solved):
    said = str(solved)
    first, second, *numbers, last = said.splitlines()
    assert first == f"Feasible. {Outcome.FEASIBLE.meaning}"
    assert second == "1 of 1 image passes every check; 1 certified exact (deployable)."
    assert numbers[0].startswith("SSIM 1.000 (null run 0.")
    assert numbers[1].startswith("PSNR ")
    assert last == "mlp in eval mode, Gradient(). Assumed: batch size known (1)."


def test_notebooks_show_pictures(solved):
    page = solved._repr_html_()
    assert page.count("<img") == 4
    assert "data:image/png;base64," in page
    assert "<script" not in page
    named = replace(solved, victim="<b>net</b>")
    assert "&lt;b&gt;net&lt;/b&gt;" in named._repr_html_()


def test_what_cannot_be_judged_is_refused():
    victim, x, y = testing.tiny_case("text")
    with pytest.raises(BadInput, match="compare them with score_text"):
        evaluate(victim, Gradient(), x, y, attack=linear())
    victim, x, y = testing.tiny_case("cnn")
    with pytest.raises(Inapplicable, match="its training diverged"):
        evaluate(victim, FedAvg(steps=4, lr=1e30), x, y, attack=inverting_gradients(steps=1))
    with pytest.raises(Inapplicable, match=r"under GaussianNoise\(.*\) is not finite in float32"):
        evaluate(victim, Gradient(), x, y, attack=inverting_gradients(steps=1), defenses=[GaussianNoise(std=1e39)])


def test_it_is_part_of_the_vocabulary():
    assert leakgauge.evaluate is evaluate
    assert leakgauge.Result is Result
    assert module.evaluate is evaluate
