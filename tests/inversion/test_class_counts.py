"""Expected class counts: the moments are those of a simulated model, labels of a trained network are read, the accuracy is stated."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.channels import SGD, Aggregate, FedAvg, Gradient
from leakgauge.core import Auxiliary, Labels, Observation, Pixels, Size, Victim, share
from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.inversion import Adam, BiasCounts, Cosine, Descent, ExpectedCounts, Matching, infer_labels
from leakgauge.inversion.class_counts import (
    _drawn,
    assumed_rates,
    estimate_counts,
    even_rates,
    fit_temperature,
    rates_from_scores,
    thrown_off,
)
from leakgauge.inversion.labels import _shown
from leakgauge.models import MLP
from leakgauge.models.seeded import seeded

CLASSES, BATCH = 10, 32
SPACE = Pixels((1, 28, 28), mean=MEAN, std=STD)
KNOWN = (Size(),)


def scores_of_calibrated_model(labels: Tensor, *, strength: float, rng: torch.Generator) -> Tensor:
    """z = m·e_y + √m·ε: the posterior of y given z is softmax(z), so the model is calibrated."""
    noise = torch.randn(len(labels), CLASSES, generator=rng, dtype=torch.float64)
    return strength * F.one_hot(labels, CLASSES) + strength**0.5 * noise


def overlap(counts: Tensor, truth: Tensor) -> float:
    return float(torch.minimum(counts.double(), truth.double()).sum() / truth.sum())


# --- the moments -------------------------------------------------------------------------------------------------------


def test_even_rates_are_those_of_a_calibrated_model():
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(40000) % CLASSES
    chances = scores_of_calibrated_model(labels, strength=2.5, rng=rng).softmax(1)
    mean = torch.stack([chances[labels == c].mean(0) for c in range(CLASSES)])
    spread = (chances - mean[labels]).T @ (chances - mean[labels]) / len(labels)
    rates = even_rates(torch.zeros(1, CLASSES), confidence=float(mean.diagonal().mean()))
    assert torch.allclose(rates.mean, mean, atol=0.02)
    assert torch.allclose(rates.spread, spread, atol=0.005)
    assert rates.drift == 0


def test_rates_of_scores_need_no_labels():
    rng = torch.Generator().manual_seed(1)
    labels = torch.randint(CLASSES, (20000,), generator=rng)
    scores = scores_of_calibrated_model(labels, strength=3.0, rng=rng)
    rates = rates_from_scores(scores[None])
    mean = torch.stack([scores.softmax(1)[labels == c].mean(0) for c in range(CLASSES)])
    assert torch.allclose(rates.mean, mean, atol=0.03)
    assert torch.allclose(rates.shares, torch.full((CLASSES,), 0.1).double(), atol=0.01)
    assert not rates.alike


def test_noise_is_of_no_class():
    scores = torch.randn(1, 50, CLASSES, generator=torch.Generator().manual_seed(0))
    rates = rates_from_scores(scores, temperature=math.inf)
    assert torch.allclose(rates.mean, scores[0].double().softmax(1).mean(0).expand(CLASSES, -1), atol=1e-6)


@pytest.mark.parametrize("truth", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_temperature_is_found_from_the_margin(truth, smoothing):
    rng = torch.Generator().manual_seed(0)
    scores = scores_of_calibrated_model(torch.randint(CLASSES, (5000,), generator=rng), strength=6.0, rng=rng)
    labels = torch.multinomial((scores / truth).softmax(1), 1, generator=rng)[:, 0]
    target = (1 - smoothing) * F.one_hot(labels, CLASSES) + smoothing / CLASSES
    margin = float(((target - scores.softmax(1)) * scores).sum(1).mean())
    assert fit_temperature(scores, margin, smoothing=smoothing) == pytest.approx(truth, rel=0.15)


# --- the counts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [8, 32, 128])
@pytest.mark.parametrize("strength", [0.5, 2.0, 6.0])
def test_the_stated_accuracy_is_the_measured_one(size, strength):
    rng = torch.Generator().manual_seed(0)
    public = scores_of_calibrated_model(torch.randint(CLASSES, (500,), generator=rng), strength=strength, rng=rng)
    rates = rates_from_scores(public[None])
    measured, stated = [], []
    for _ in range(60):
        labels = torch.randint(CLASSES, (size,), generator=rng)
        truth = torch.bincount(labels, minlength=CLASSES)
        chances = scores_of_calibrated_model(labels, strength=strength, rng=rng).softmax(1)
        found = estimate_counts(chances.mean(0) - truth / size, size, [rates])
        assert int(found.counts.sum()) == size
        assert len(found.labels) == size
        measured.append(overlap(found.counts, truth))
        stated.append(found.accuracy)
    assert sum(measured) / 60 == pytest.approx(sum(stated) / 60, abs=0.06)


def test_no_probability_is_negative():
    """∂b_c = p̄_c − n_c/B, so n_c is at least −B·∂b_c, whatever the model."""
    slope = torch.tensor([-0.3, -0.2, 0.1, 0.1, 0.1, 0.2]).double()
    found = estimate_counts(slope, 10, assumed_rates(torch.zeros(1, 6)))
    assert found.counts[0] >= 3
    assert found.counts[1] >= 2


def test_a_model_that_local_steps_threw_off_is_not_trusted():
    slope = torch.tensor([-0.1, 0.1, *[0.0] * 8]).double()
    shift = torch.zeros(5, CLASSES)
    shift[:, 4] = torch.linspace(0, 8, 5)
    steady, wild = (estimate_counts(slope, BATCH, assumed_rates(s)) for s in (shift[:1], shift))
    even = torch.full((CLASSES,), BATCH / CLASSES)
    assert (wild.counts - even).abs().max() < 1
    assert steady.counts[0] > 5
    assert wild.accuracy < steady.accuracy


def test_then_the_classes_of_public_images_do_not_count_either():
    slope = torch.tensor([-0.01, 0.01, *[0.0] * 8]).double()
    scores = torch.zeros(3, 50, CLASSES)
    scores[:, :, 0] = 6.0
    scores[1:, :, 4] = 12.0
    rates = rates_from_scores(scores)
    assert rates.drift > 0.5
    found = estimate_counts(slope, BATCH, rates.doubted((0.0,)))
    assert (found.counts - BATCH / CLASSES).abs().max() < 1


@pytest.mark.parametrize("favours", [False, True])
def test_what_explains_the_gradient_better_counts_more(favours):
    """A model that favours class 0 whatever it sees, and one that favours none: offered both, the rule finds out which it is."""
    rng = torch.Generator().manual_seed(0)
    favoured = torch.zeros(1, 40, CLASSES)
    favoured[..., 0] = 3.0
    as_noise = rates_from_scores(favoured + 0.3 * torch.randn(1, 40, CLASSES, generator=rng), temperature=math.inf)
    answer = as_noise.shares @ as_noise.mean if favours else torch.full((CLASSES,), 1 / CLASSES).double()
    labels = torch.randint(CLASSES, (BATCH,), generator=rng)
    truth = torch.bincount(labels, minlength=CLASSES)
    both = [as_noise, *assumed_rates(torch.zeros(1, CLASSES))]
    assert overlap(estimate_counts(answer - truth / BATCH, BATCH, both).counts, truth) >= 0.95


@pytest.mark.parametrize("classes", [2, 10])
def test_a_client_with_few_classes_is_recognised(classes):
    """The same rates, batches of two classes or of all: the estimate is not pulled towards even shares where the gradient is not."""
    rng = torch.Generator().manual_seed(0)
    public = scores_of_calibrated_model(torch.randint(CLASSES, (500,), generator=rng), strength=2.0, rng=rng)
    rates, found = rates_from_scores(public[None]), []
    for _ in range(40):
        labels = torch.randint(classes, (BATCH,), generator=rng)
        truth = torch.bincount(labels, minlength=CLASSES)
        slope = scores_of_calibrated_model(labels, strength=2.0, rng=rng).softmax(1).mean(0) - truth / BATCH
        found.append(overlap(estimate_counts(slope, BATCH, [rates]).counts, truth))
    assert sum(found) / len(found) >= 0.85


# --- a trained network -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained() -> Victim:
    """A small network with batch normalisation, in train mode, after 125 steps: about 60 % right."""
    with seeded(0):
        model = nn.Sequential(
            nn.Conv2d(1, 8, 5, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 16, 3, 2, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(16, CLASSES),
        )  # fmt: skip
    images, labels = fashion()
    x, rng = SPACE.encode(images[:2000]), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(2):
        for rows in torch.randperm(len(x), generator=rng).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), labels[rows]).backward()
            optimizer.step()
    return Victim(model, SPACE, mode="train")


def batches(kind: str, count: int = 8) -> list[tuple[Tensor, Tensor]]:
    images, labels = fashion("test")
    x, rng = SPACE.encode(images), torch.Generator().manual_seed(0)
    weight = torch.ones(len(x))
    if kind == "few classes":
        weight[labels > 3] = 0.02
    rows = [torch.multinomial(weight, BATCH, generator=rng) for _ in range(count)]
    return [(x[r], labels[r]) for r in rows]


def mean_overlap(rule, victim: Victim, channel, kind: str, *, reveal=KNOWN) -> float:
    found = []
    for x, y in batches(kind):
        read = rule(victim, share(victim, channel, x, y, reveal=reveal), rng=torch.Generator().manual_seed(0))
        found.append(overlap(torch.bincount(read, minlength=CLASSES), torch.bincount(y, minlength=CLASSES)))
    return sum(found) / len(found)


def even_guess(victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor:
    return torch.arange(BATCH) % CLASSES


CHANNELS = [Gradient(), FedAvg(steps=5, lr=0.1), FedAvg(steps=4, lr=0.05, minibatch=16, optimizer=SGD(momentum=0.9))]
PUBLIC = Auxiliary(SPACE.encode(fashion()[0][2000:2256]))


@pytest.mark.parametrize("channel", CHANNELS, ids=repr)
@pytest.mark.parametrize("reveal", [KNOWN, (*KNOWN, PUBLIC)], ids=["nothing public", "public images"])
def test_labels_of_a_trained_network_are_read(trained, channel, reveal):
    assert mean_overlap(infer_labels(), trained, channel, "random", reveal=reveal) >= 0.9
    assert mean_overlap(even_guess, trained, channel, "random") < 0.83
    assert mean_overlap(BiasCounts(strict=False), trained, channel, "random") < 0.75


@pytest.mark.parametrize("channel", CHANNELS, ids=repr)
def test_a_client_with_few_classes(trained, channel):
    found = mean_overlap(infer_labels(), trained, channel, "few classes", reveal=(*KNOWN, PUBLIC))
    assert found >= mean_overlap(even_guess, trained, channel, "few classes") + 0.2


def test_the_sum_of_two_clients(trained):
    channel = Aggregate(clients=2, of=FedAvg(steps=2, lr=0.05))
    assert mean_overlap(infer_labels(), trained, channel, "random") >= 0.9


def test_a_certain_network_hides_labels_but_the_guess_is_not_worse(trained):
    """Scores ten times as large: nearly every probability is 0 or 1, and the gradient holds only the mistakes."""
    certain = Victim(trained.model, SPACE, mode="train")
    with torch.no_grad():
        certain.model[-1].weight *= 10
        certain.model[-1].bias *= 10
    for reveal in (KNOWN, (*KNOWN, PUBLIC)):
        found = mean_overlap(infer_labels(), certain, Gradient(), "random", reveal=reveal)
        assert found >= mean_overlap(even_guess, certain, Gradient(), "random") - 0.02


def test_an_attack_states_what_it_expects_of_its_labels(trained):
    """Read labels carry the rule's expectation, revealed and optimised ones carry none."""
    x, y = batches("random", 1)[0]
    attack = Matching(objective=Cosine(), labels=infer_labels(), solver=Descent(Adam(0.1), 1))
    one, two = (x[:8], y[:8]), (x[8:16], y[8:16])
    seen = [share(trained, Gradient(), *batch, reveal=KNOWN) for batch in (one, two)]
    stated = [found.label_accuracy for found in attack.many(trained, seen)]
    expected = [ExpectedCounts().estimate(trained, s, rng=torch.Generator()).accuracy for s in seen]
    assert stated == pytest.approx(expected, abs=0.02)  # other noise is drawn
    given = share(trained, Gradient(), *one, reveal=(*KNOWN, Labels()))
    assert attack(trained, given).label_accuracy is None
    assert attack.blind()(trained, seen[0]).label_accuracy is None


def test_the_rule_states_what_it_expects(trained):
    x, y = batches("random", 1)[0]
    seen = share(trained, Gradient(), x, y, reveal=(*KNOWN, PUBLIC))
    assert 0.8 < ExpectedCounts().estimate(trained, seen, rng=torch.Generator()).accuracy < 1


# --- which classes are in the batch ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("concentration", "size"), [(0.3, 6), (2.0, 6), (1000.0, 4)])
def test_how_likely_some_classes_are_drawn_and_no_others(concentration, size):
    rng = torch.Generator().manual_seed(0)
    shares, among = torch.tensor([0.1, 0.2, 0.3, 0.4]).double(), torch.tensor([False, True, True, False])
    torch.manual_seed(0)
    drawn = torch.distributions.Dirichlet(4 * concentration * shares).sample((40000,))
    hit = F.one_hot(torch.multinomial(drawn, size, replacement=True, generator=rng), 4).sum(1) > 0
    simulated = float((hit == among).all(1).double().mean())
    assert _drawn(shares, among, size, concentration) == pytest.approx(simulated, rel=0.25, abs=0.003)


def test_a_client_with_few_classes_is_read_by_what_is_shown():
    """Half of the labels of a sure model leave no trace in ∂b; that the other classes are absent says where they are."""
    rng, plain, better = torch.Generator().manual_seed(3), 0.0, 0.0
    rates = assumed_rates(torch.zeros(1, CLASSES))
    for _ in range(20):
        labels = torch.tensor([1, 4, 7])[torch.randint(3, (BATCH,), generator=rng)]
        truth = torch.bincount(labels, minlength=CLASSES)
        chances = scores_of_calibrated_model(labels, strength=4.0, rng=rng).softmax(1)
        slope = chances.mean(0) - truth / BATCH
        plain += overlap(estimate_counts(slope, BATCH, rates).counts, truth) / 20
        found = estimate_counts(slope, BATCH, rates, shown=truth > 0)
        assert bool((found.counts[truth > 0] > 0).all())
        better += overlap(found.counts, truth) / 20
    assert better > 0.85
    assert better > plain + 0.1


@pytest.mark.parametrize("channel", [Gradient(), FedAvg(steps=2, lr=0.01)])
def test_no_absent_class_is_shown(channel):
    rng = torch.Generator().manual_seed(0)
    victim, images = Victim(MLP(seed=1), SPACE), SPACE.encode(fashion("test")[0][:8])
    for _ in range(10):
        labels = torch.randint(4, (8,), generator=rng) + 3
        seen = share(victim, channel, images, labels, reveal=KNOWN)
        shown = _shown(victim, seen, rng)
        assert shown is not None
        assert set(shown.nonzero().flatten().tolist()) == set(labels.tolist())


def test_confidences_below_chance_are_not_tried():
    assert [float(one.mean[0, 0]) for one in assumed_rates(torch.zeros(1, 2))] == pytest.approx([0.7, 0.9])


def test_a_model_is_thrown_off_if_its_answers_moved_more_than_the_update_explains():
    rates = even_rates(torch.zeros(1, 4), confidence=0.7)
    slope = torch.tensor([0.1, -0.1, 0.05, -0.05]).double()
    assert not thrown_off(slope, [replace(rates, drift=0.44)])  # 1.5 · Σ|∂b| = 0.45
    assert thrown_off(slope, [rates, replace(rates, drift=0.46)])
