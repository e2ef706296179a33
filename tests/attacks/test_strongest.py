"""The portfolio finds at least what the best of its attacks finds, chooses without the truth and says what it tried."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from leakgauge import testing
from leakgauge.attacks import dlg, inverting_gradients, linear, r_gap, relu_batches, strongest, tag_read_labels
from leakgauge.attacks.strongest import AS_GOOD, DESCENTS, SAMPLES, SEARCHES, _held_back, _Race, _Result
from leakgauge.audit import gate
from leakgauge.audit.case import Case
from leakgauge.audit.evaluate import evaluate
from leakgauge.audit.run import run_case
from leakgauge.audit.scoring import score
from leakgauge.audit.session import Setup, one_of_each_class
from leakgauge.audit.verdict import Outcome
from leakgauge.channels import Features, Gradient
from leakgauge.core import Auxiliary, Buffers, Labels, Pixels, Size, Victim, share
from leakgauge.data import fashion
from leakgauge.defenses import Withhold
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import FromSpace, infer_labels, watching
from leakgauge.inversion.labels import read_or_none
from leakgauge.inversion.mismatch import label_images, layer_mismatch


def smooth() -> nn.Module:
    """As in the first papers: sigmoids and strides."""
    layers = [nn.Conv2d(1, 12, 5, 2, 2), nn.Sigmoid(), nn.Conv2d(12, 12, 5, 2, 2), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Conv2d(12, 12, 5, 1, 2), nn.Sigmoid(), nn.Flatten(), nn.Linear(588, 10))


def usual() -> nn.Module:
    layers = [
        nn.Conv2d(1, 12, 5, 1, 2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 12, 5, 1, 2),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(588, 10))


def table() -> nn.Module:
    """For thirty measured values of a patient."""
    return nn.Sequential(nn.Flatten(), nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 2))


@cache
def setup(make) -> Setup:
    torch.manual_seed(0)
    if make is table:
        rng = torch.Generator().manual_seed(0)
        images, labels = torch.rand(60, 1, 1, 30, generator=rng), torch.arange(60) % 2
        return Setup(Victim(make(), Pixels((1, 1, 30))), images, labels)
    images, labels = fashion("test")
    order = one_of_each_class(labels)[:60]
    return Setup(Victim(make(), Pixels((1, 28, 28))), images[order], labels[order])


@pytest.mark.parametrize(
    ("make", "steps"), [(smooth, 500), (usual, 500), (table, 500)], ids=["sigmoid", "relu", "table"]
)
def test_the_gate_fails_where_a_shipped_attack_inverts_the_model(make, steps, tmp_path):
    case = Case(model="own", data="own", options={"steps": steps})
    record = run_case(case, load=lambda case: setup(make), folder=tmp_path)
    assert record.outcome is Outcome.FEASIBLE
    assert gate.exit_code([record], gate.limit_of("partial")) == gate.EXIT_CODE


@pytest.mark.parametrize(
    ("make", "single"),
    [
        (smooth, tag_read_labels(steps=400)),
        (usual, dlg(steps=20)),
        (usual, inverting_gradients(steps=400)),
        (table, linear()),
    ],
    ids=["sigmoid-tag", "relu-dlg", "relu-cosine", "table-linear"],
)
def test_it_is_no_weaker_than_a_single_attack(make, single):
    here, case = setup(make), Case()
    (x, y), victim = here.private(case), here.victim
    seen = share(victim, Gradient(), x, y)
    ours, other = (score(a(victim, seen), x, y, space=victim.space).ssim[0] for a in (strongest(steps=500), single))
    assert ours >= other - 0.05


def test_the_record_says_what_raced_and_what_was_refused():
    victim, x, y = testing.tiny_case("cnn")
    found = strongest(steps=400)(victim, share(victim, Gradient(), x, y))
    ran = {one.name: one for one in found.raced if not one.refused}
    assert {"cosine_descent", "tag_read_labels", "dlg"} <= ran.keys()
    assert sum(one.chosen for one in found.raced) == 1
    assert sum(one.steps for one in found.raced) <= 400
    refused = {one.name: one.refused for one in found.raced if one.refused}
    assert "Conv2d" in refused["linear"]
    assert "similar images" in refused["generative_prior"]


def test_an_exact_closed_form_ends_the_attack():
    victim, x, y = testing.tiny_case("mlp")
    found = strongest(steps=400)(victim, share(victim, Gradient(), x, y))
    assert not any(one.steps for one in found.raced)
    assert found.by in (linear(), r_gap(unknowns=1024))


def test_what_is_revealed_is_used():
    victim, x, y = testing.tiny_case("cnn", count=2, mode="train")
    own = victim.space.encode(testing.tiny_images(60)[0][10:])
    seen = share(victim, Gradient(), x, y, reveal=(Size(), Buffers(), Auxiliary(own)))
    ran = {one.name for one in strongest(steps=20)(victim, seen).raced if not one.refused}
    assert {"feasibility", "generative_prior"} <= ran
    plain = strongest(steps=20)(victim, share(victim, Gradient(), x, y))
    assert not {"feasibility", "generative_prior"} & {one.name for one in plain.raced if not one.refused}


def test_features_are_matched_as_features():
    victim, x, y = testing.tiny_case("cnn")
    found = strongest(steps=60)(victim, share(victim, Features("features.5"), x, y))
    assert {one.name for one in found.raced if not one.refused} == {"feature_matching"}


def test_without_anything_that_applies_it_is_refused_with_the_reasons():
    victim, x, y = testing.tiny_case("cnn")
    regression = Victim(victim.model, victim.space, loss=lambda out, y: (out[:, 0] - y.view(len(out))).square().mean())
    with pytest.raises(
        Inapplicable, match=r"^labels cannot be optimised .*reveal the labels$"
    ):  # not a list of every attack
        strongest(steps=20)(regression, share(regression, Gradient(), x, y))


@pytest.mark.parametrize("loss", [F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss()])
def test_several_labels_per_image_are_searched_where_they_are_not_revealed(loss):
    victim, x, _ = testing.tiny_case("cnn", count=2)
    several = Victim(victim.model, victim.space, loss=loss)
    y = (torch.arange(8).view(2, 4) % 3 == 0).float()
    for attack in (strongest(steps=20), inverting_gradients(steps=2)):
        found = attack(several, share(several, Gradient(), x, y)).y
        assert found is not None
        assert found.shape == y.shape
        assert set(found.unique().tolist()) <= {0.0, 1.0}
    seen = share(several, Gradient(), x, y, reveal=(Size(), Labels()))
    assert strongest(steps=20)(several, seen).x.shape == x.shape


def test_a_loss_that_takes_probabilities_only_is_raced():
    victim, x, y = testing.tiny_case("cnn", count=2)
    soft = Victim(victim.model, victim.space, loss=lambda out, p: -(p * out.log_softmax(-1)).sum(-1).mean())
    found = strongest(steps=60)(soft, share(soft, Gradient(), x, F.one_hot(y, 4).float()))
    assert all(one.mismatch is not None for one in found.raced if not one.refused)


def test_the_mismatch_is_zero_at_the_truth_and_counts_every_tensor_alike():
    victim, x, y = testing.tiny_case("lenet")
    seen = share(victim, Gradient(), x, y)
    assert layer_mismatch(victim, seen, x, y) < 1e-12
    other, _ = testing.tiny_images(3)
    wrong = victim.space.encode(other[2:])
    signal = Gradient()(victim, wrong, y)
    by_hand = [1 - torch.cosine_similarity(signal[n].flatten(), g.flatten(), dim=0) for n, g in seen.signal.items()]
    assert layer_mismatch(victim, seen, wrong, y) == pytest.approx(float(torch.stack(by_hand).mean()), abs=1e-5)
    head = share(victim, Gradient(), x, y, defenses=(Withhold(("head",)),))
    assert layer_mismatch(victim, head, x, y) < 1e-12


def test_images_get_the_labels_that_explain_the_update():
    victim, x, y = testing.tiny_case("mlp", count=3)
    seen = share(victim, Gradient(), x, y)
    assert torch.equal(label_images(victim, seen, x, y.flip(0)), y)


def test_of_those_that_explain_as_well_the_smoothest_wins():
    victim, x, y = testing.tiny_case("mlp")
    seen = share(victim, Gradient(), x, y)
    race, found = _Race(victim, seen, 0, 10), linear()(victim, seen)
    rough, smooth_, far = (_Result(None, None, found, mismatch, roughness, 1) for mismatch, roughness in
                           ((0.10, 3.0), (0.99 * AS_GOOD * 0.10, 1.0), (0.2, 0.1)))  # fmt: skip
    assert race.best([rough, smooth_, far]) is smooth_


def test_descents_of_one_batch_are_those_that_run_alone():
    victim, x, y = testing.tiny_case("cnn")
    seen = share(victim, Gradient(), x, y)
    together, alone = _Race(victim, seen, 0, 100), _Race(victim, seen, 0, 100)
    entrants = [one for one in SEARCHES if one.name in DESCENTS]
    assert together.run_together(entrants, steps=6)
    assert [one.entrant.name for one in together.results] == list(DESCENTS)
    starts = FromSpace()(victim.space, seen, len(entrants), 1, rng=torch.Generator().manual_seed(0))
    for entrant, start, one in zip(entrants, starts, together.results, strict=True):
        alone.run(entrant, 1, steps=6, start=start)
        assert torch.allclose(one.found.x, alone.results[-1].found.x, atol=1e-4)
        assert one.attack == entrant.make(6, 1)
    assert together.spent == alone.spent == 18


def test_layers_are_held_back_from_the_race_and_given_in_the_end():
    victim, x, y = testing.tiny_case("cnn")
    seen = share(victim, Gradient(), x, y)
    held, layers = _held_back(seen), list(dict.fromkeys(name.rpartition(".")[0] for name in seen.signal))
    assert {name.rpartition(".")[0] for name in held} == set(layers[1:-1:3])
    assert not _held_back(share(victim, Features("features.5"), x, y))
    raced = [one for one in strongest(steps=200)(victim, seen).raced if one.steps]
    assert all(one.unseen is not None for one in raced[:-1])
    assert raced[-1].unseen is None
    told = share(victim, Gradient(), x, y)
    other = replace(told, signal={n: torch.randn_like(v) if n in held else v for n, v in told.signal.items()})
    races = [_Race(victim, one, 0, 100) for one in (told, other)]
    for race in races:
        race.hold_back()
        race.run(SEARCHES[0], 1, steps=5)
    assert torch.equal(races[0].results[0].found.x, races[1].results[0].found.x)  # what is held back plays no part


def test_what_goes_on_begins_at_what_it_found_but_its_null_run_does_not():
    victim, x, y = testing.tiny_case("cnn")
    found = strongest(steps=200)(victim, share(victim, Gradient(), x, y))
    assert isinstance(found.by.start, FromSpace)
    assert "Given" in found.made_by


def test_the_null_run_is_that_of_the_attack_that_won():
    victim, x, y = testing.tiny_case("mlp")
    found = evaluate(victim, Gradient(), x, y, attack=strongest(steps=40))
    assert found.outcome is Outcome.FEASIBLE
    assert found.null.psnr == evaluate(victim, Gradient(), x, y, attack=linear()).null.psnr


def test_progress_goes_forward_over_all_heats():
    victim, x, y = testing.tiny_case("cnn")
    told = []
    with watching(lambda done, total: told.append((done, total))):
        strongest(steps=60)(victim, share(victim, Gradient(), x, y))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert {total for _, total in told} == {60}
    assert told[-1] == (60, 60)


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"steps": 2.5}, {"restarts": 0}])
def test_impossible_effort_is_refused(wrong):
    with pytest.raises(BadInput, match=r"an integer number of (steps|restarts) of at least 1"):
        strongest(**wrong)


def test_it_states_how_many_labels_it_expects_to_be_right():
    victim, x, y = testing.tiny_case("cnn", count=4)
    seen = share(victim, Gradient(), x, y)
    found = strongest(steps=20)(victim, seen)
    assert found.label_accuracy == read_or_none(infer_labels(), victim, seen, seed=0).accuracy
    assert found.label_accuracy is not None
    told = share(victim, Gradient(), x, y, reveal=[Size(), Labels()])
    assert strongest(steps=20)(victim, told).label_accuracy is None


def test_a_batch_behind_a_relu_is_separated_and_certified():
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(36, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 4)]
    victim = Victim(nn.Sequential(*layers), Pixels((1, 6, 6)))
    x, y = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(1)), torch.arange(4)
    found = strongest(steps=100)(victim, share(victim, Gradient(), x, y))
    assert found.by == relu_batches()
    assert found.certified is not None
    assert bool(found.certified.all())
    assert not any(one.steps for one in found.raced)
    assert min(score(found, x, y, space=victim.space).psnr) > 60


def test_a_certificate_outweighs_labels_that_were_read_wrong():
    victim, x, y = testing.tiny_case("mlp", count=2)
    seen = share(victim, Gradient(), x, y)
    race = _Race(victim, seen, 0, 10)
    proven = relu_batches()(victim, seen)
    proven = replace(proven, certified=torch.ones(2, dtype=torch.bool))
    certain = _Result(None, None, proven, 0.3, 2.0, 0)
    guess = _Result(None, None, replace(proven, certified=None), 0.1, 1.0, 10)
    assert race.best([guess, certain]) is certain


def test_large_batches_are_not_separated_beforehand():
    victim, x, y = testing.tiny_case("mlp", count=SAMPLES + 1)
    found = strongest(steps=10)(victim, share(victim, Gradient(), x, y))
    refused = {one.name: one.refused for one in found.raced if one.refused}
    assert f"at most {SAMPLES} samples" in refused["relu_batches"]
