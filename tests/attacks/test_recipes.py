"""Recipes of the papers on their home cases: the numbers the project promises, small versions of them every time."""

from __future__ import annotations

import inspect

import pytest
import torch

from leakgauge import testing
from leakgauge.attacks import ATTACKS, dlg, idlg, inverting_gradients, tag
from leakgauge.audit import Case, embedded, score
from leakgauge.audit.null import null_run
from leakgauge.audit.request import default_cases
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.core.examples import examples_of
from leakgauge.data.embedded import fashion
from leakgauge.errors import Inapplicable
from leakgauge.models import LeNet

GREY = Pixels((1, 28, 28))


def lenet_case(i: int):
    """A sigmoid LeNet and the i-th test image, one of class i."""
    images, labels = fashion("test")
    victim = Victim(LeNet(in_channels=1, side=28), GREY)
    x, y = images[i : i + 1], labels[i : i + 1]
    return victim, share(victim, Gradient(), x, y), x, y


def test_dlg_recovers_an_image_and_its_label():
    victim, seen, x, y = lenet_case(2)
    scores = score(dlg(steps=15)(victim, seen), x, y, space=GREY)
    assert scores.psnr[0] >= 30
    assert scores.labels == (1.0,)


@pytest.mark.slow
def test_dlg_recovers_eight_of_ten_images():
    found = []
    for i in range(10):
        victim, seen, x, y = lenet_case(i)
        found.append(score(dlg(steps=20, restarts=8)(victim, seen), x, y, space=GREY).psnr[0])
    assert sum(psnr >= 30 for psnr in found) >= 8, found


def test_idlg_knows_the_label_and_finds_the_image():
    for i in (0, 9):
        victim, seen, x, y = lenet_case(i)
        assert idlg(steps=1)(victim, seen).y.tolist() == y.tolist()
    victim, seen, x, y = lenet_case(2)
    result = idlg(steps=15, restarts=2)(victim, seen)
    assert score(result, x, y, space=GREY).psnr[0] >= 30


def test_idlg_refuses_a_batch():
    images, labels = fashion("test")
    victim = Victim(LeNet(in_channels=1, side=28), GREY)
    with pytest.raises(Inapplicable, match="reads one label"):
        idlg()(victim, share(victim, Gradient(), images[:2], labels[:2]))


def cnn_case(i: int):
    """The embedded CNN in eval mode and the i-th held-out image, one of class i, with the audit's own options."""
    case = Case(first=i, options=default_cases()[0].options)
    setup = embedded(case)
    x, y = setup.private(case)
    seen = share(setup.victim, Gradient(), x, y)
    return setup.victim, seen, x, y, case.build_attack()


def compare(i: int):
    victim, seen, x, y, attack = cnn_case(i)
    result, nothing = attack(victim, seen, seed=0), null_run(attack, victim, seen, seed=0)
    return (score(r, x, y, space=victim.space) for r in (result, nothing))


def test_inverting_gradients_beats_its_null_run():
    scores, null = compare(5)
    assert scores.psnr[0] >= 20
    assert scores.psnr[0] >= null.psnr[0] + 6
    assert scores.labels == (1.0,)


@pytest.mark.slow
def test_inverting_gradients_on_ten_held_out_images():
    scores, null = zip(*(compare(i) for i in range(10)), strict=True)
    mean, blind = (sum(s.psnr[0] for s in side) / 10 for side in (scores, null))
    assert mean >= 20
    assert mean >= blind + 6
    assert all(s.labels == (1.0,) for s in scores)


def test_the_ten_images_are_of_ten_classes_and_held_out():
    labels = [int(cnn_case(i)[3]) for i in range(10)]
    assert sorted(labels) == list(range(10))
    held_out, known = fashion("test")[0], fashion("train")[0]
    x = cnn_case(0)[0].space.decode(cnn_case(0)[2])
    assert (held_out - x).abs().flatten(1).sum(1).min() < 1e-3
    assert (known - x).abs().flatten(1).sum(1).min() > 1


def test_tag_improves_on_its_start():
    victim, seen, x, y = lenet_case(2)
    result = tag(steps=150)(victim, seen)
    assert result.loss < 0.05 * float(result.trace.losses[0, 0])
    begun = (result.trace.snapshots[0] - x).square().mean()
    assert (result.x - x).square().mean() < 0.5 * begun
    assert result.y.tolist() == y.tolist()


def test_recipes_hold_the_papers_values():
    assert dlg().solver.steps == 300
    assert (dlg().solver.lr, dlg().solver.iterations, dlg().solver.history) == (1.0, 20, 100)
    geiping = inverting_gradients()
    assert repr(geiping.objective) == "Cosine(weights=Equal()) + 0.1 * TotalVariation()"
    assert (geiping.solver.steps, geiping.solver.optimizer.lr) == (4800, 0.1)
    assert repr(tag().objective) == "L2(weights=Equal()) + 0.1 * L1(weights=Decaying(rate=1.0))"


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gives_its_reference_and_its_deviations(name):
    words = ATTACKS[name].__doc__ or ""
    assert "Ref: " in words or "Not from a paper" in words
    assert "Deviations: " in words


SEARCHES = [
    n for n in ATTACKS if "steps" in inspect.signature(ATTACKS[n]).parameters and n not in ("strongest", "tables")
]
"""``strongest`` divides its steps among others, ``tables`` begins with closed forms."""


@pytest.mark.parametrize("name", SEARCHES)
def test_restarts_and_steps_reach_the_loop(name):
    example, *_ = examples_of(ATTACKS[name])
    case = testing.home(example)
    result = ATTACKS[name](**{**example.options, "steps": 3, "restarts": 2})(case.victim, case.seen())
    assert len(result.losses) == 2
    assert result.trace.steps[-1] == 3
    assert torch.isfinite(result.x).all()
    assert name in result.made_by
