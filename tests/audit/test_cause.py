"""Why an attack failed, on channels whose answer is known by construction."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, one_hot

from leakgauge.attacks import inverting_gradients
from leakgauge.audit.cause import Cause, Client, Knowledge, Settled, Three, TruthTest, explain, in_order
from leakgauge.audit.null import null_run
from leakgauge.audit.scoring import pair_images, trivial_baseline
from leakgauge.audit.verdict import Outcome, judge
from leakgauge.channels import FedAvg, Gradient, ShuffledFedAvg
from leakgauge.core import Pixels, Size, Victim, share
from leakgauge.data.embedded import fashion
from leakgauge.defenses import GaussianNoise, Withhold
from leakgauge.inversion.mismatch import continue_from, layer_mismatch, outside, settle_from
from leakgauge.inversion.output_gradient import samples_at_head
from tests.made import scores

SIDE, SEEN = 12, 6


def fine_directions(count: int) -> Tensor:
    """Orthonormal images without coarse content, (count, pixels): products of two cosines of high frequency, mixed at random."""
    at, waves = torch.arange(SIDE) + 0.5, torch.arange(SIDE - 6, SIDE)
    cosines = torch.cos(torch.pi / SIDE * waves[:, None] * at)
    fine = torch.einsum("ax,by->abxy", cosines, cosines).reshape(-1, SIDE * SIDE)
    return torch.linalg.qr(fine.T @ torch.randn(len(fine), count))[0].T.contiguous()


def network(seed: int, *, directions: int | None = None) -> nn.Module:
    """A network of sigmoids; with ``directions`` it sees nothing else of the image."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        first, width = [], SIDE * SIDE
        if directions is not None:
            narrow = nn.Linear(width, directions, bias=False)
            narrow.weight.data = 10 * fine_directions(directions)  # about as large as other activations
            narrow.weight.requires_grad_(False)
            first, width = [narrow], directions
        return nn.Sequential(nn.Flatten(), *first, nn.Linear(width, 32), nn.Sigmoid(), nn.Linear(32, 10))


def images(seed: int, count: int = 1) -> tuple[Tensor, Tensor]:
    x, y = fashion("test")
    rows = slice(seed, seed + count)
    return avg_pool2d(x[rows], 2)[:, :, 1:13, 1:13], y[rows]


def shows_more(nothing: Tensor, truth: Tensor, image: Tensor) -> bool:
    """Whether an image shows more of the truth than what was found without the signal."""
    own, blind = (pair_images(one.clamp(0, 1), truth).scores for one in (image, nothing))
    return judge(own, blind, trivial_baseline(truth)).outcome.leaks


def failed_for(kind: str, seed: int) -> TruthTest:
    """The truth test of a set-up that fails for a known reason."""
    x, y = images(seed)
    victim = Victim(network(seed, directions=SEEN if kind == "null space" else None), Pixels((1, SIDE, SIDE)))
    noise = (GaussianNoise(relative=10.0),) if kind == "noise" else ()
    seen = share(victim, Gradient(), x, y, defenses=noise, seed=seed)
    seen = replace(seen, labels=(y + 1 + seed % 9) % 10 if kind == "wrong labels" else y)
    tv = 0.0 if kind == "null space" else 0.01  # a prior may choose among images that the signal does not tell apart
    attack = inverting_gradients(steps=50, tv=tv, lr=1e-5 if kind == "broken solver" else 0.1)
    found, nothing = attack(victim, seen, seed=seed), null_run(attack, victim, seen, seed=seed)

    shows = partial(shows_more, nothing.x, x)
    client = Client(y, Gradient(), 0)
    return explain(attack, victim, seen, found, x, client, nothing=nothing, shows=shows, seed=seed)


KNOWN = {
    "null space": Cause.INFORMATION,
    "noise": Cause.INFORMATION,
    "broken solver": Cause.SEARCH,
    "wrong labels": Cause.KNOWLEDGE,
}


def test_the_cause_is_right_on_channels_made_for_it() -> None:
    found = {(kind, seed): failed_for(kind, seed) for kind in KNOWN for seed in range(100, 110)}
    right = [key for key, test in found.items() if test.cause is KNOWN[key[0]]]
    assert len(right) >= 38, {key: found[key] for key in found if key not in right}
    wrong = [test.lacks for (kind, _), test in found.items() if kind == "wrong labels"]
    assert wrong.count((Knowledge.LABELS,)) >= 9


@pytest.mark.parametrize(("noise", "seed"), [(2.0, 2), (3.0, 1), (5.0, 0)])
def test_fitting_the_noise_better_than_the_truth_does_is_no_evidence(noise: float, seed: int) -> None:
    """Without a prior the search fits the noise, but the same descent with one shows the image: the truth was there to be found."""
    x, y = images(seed)
    victim = Victim(network(seed), Pixels((1, SIDE, SIDE)))
    seen = share(victim, Gradient(), x, y, defenses=(GaussianNoise(relative=noise),), seed=seed)
    seen = replace(seen, labels=y)
    attack = inverting_gradients(steps=50, tv=0.0)
    found, nothing = attack(victim, seen, seed=seed), null_run(attack, victim, seen, seed=seed)
    found = replace(found, x=continue_from(victim, seen, found.x, y, goal=0.0)[0])
    shows = partial(shows_more, nothing.x, x)
    test = explain(
        attack, victim, seen, found, x, Client(y, Gradient(), 0), nothing=nothing, shows=shows, thorough=True, seed=seed
    )
    assert not shows(found.x)
    assert test.mismatch.found < test.mismatch.truth
    assert test.settled is not None
    assert test.settled.finds_truth
    assert test.cause is Cause.SEARCH
    smooth, _ = settle_from(victim, seen, found.x, y, smoothness=test.settled.smoothness)
    assert shows(smooth)


def test_two_searches_that_settle_alike_are_told_apart_by_what_they_show() -> None:
    assert Settled(0.1, 0.5, 0.5, (True, False)).finds_truth
    assert not Settled(0.1, 0.52, 0.5, (True, False)).finds_truth
    assert Settled(0.1, 0.9, 0.5, (False, True)).finds_truth
    assert not Settled(0.1, 0.4, 0.5, (False, False)).finds_truth


def test_a_mismatch_continues_down_to_rounding_within_the_bounds() -> None:
    x, y = images(0)
    victim = Victim(network(0, directions=SEEN), Pixels((1, SIDE, SIDE)))
    seen = share(victim, Gradient(), x, y)
    start = torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
    z, reached = continue_from(victim, seen, start, y, goal=1e-12)
    assert reached < 1e-11 < layer_mismatch(victim, seen, start, y)
    assert layer_mismatch(victim, seen, z, y) <= reached
    assert float(outside(victim.space, z).abs().max()) < 1e-4
    assert outside(Pixels((1, 1, 2), mean=(0.5,), std=(0.5,)), torch.tensor([[[[-2.0, 1.0]]]])).tolist() == [
        [[[-0.5, 0.0]]]
    ]


def test_the_objective_at_a_candidate_is_what_the_search_reports() -> None:
    x, y = images(1, 2)
    victim = Victim(network(1), Pixels((1, SIDE, SIDE)))
    seen = share(victim, Gradient(), x, y)
    attack = inverting_gradients(steps=20, tv=0.01)
    found = attack(victim, replace(seen, labels=y))
    assert attack.objective_at(victim, seen, found.x, y) == pytest.approx(found.loss, abs=1e-6)


class Dropping(nn.Module):
    """Drops half of the hidden layer in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(SIDE * SIDE, 32), nn.Sigmoid(), nn.Dropout(0.5), nn.Linear(32, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def test_what_the_adversary_lacks_is_found_by_giving_it() -> None:
    from leakgauge.core.randomness import own_stream

    x, y = images(2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        victim = Victim(Dropping(), Pixels((1, SIDE, SIDE)), mode="train")
    attack = inverting_gradients(steps=30, tv=0.01)
    seen = share(victim, Gradient(), x, y, seed=3)
    found = attack(victim, seen, seed=3)
    test = explain(attack, victim, seen, found, x, Client(y, Gradient(), own_stream(3, "client")), seed=3)
    assert test.mismatch.truth > 0.01 > 1e-9 > test.informed
    assert test.cause in (Cause.KNOWLEDGE, Cause.SEARCH)
    if test.cause is Cause.KNOWLEDGE:
        assert test.lacks == (Knowledge.MASKS,)


def test_statistics_of_the_client_alone_are_named_as_what_is_missing() -> None:
    x, y = images(4)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Sigmoid(), nn.Flatten(), nn.Linear(600, 10)]
        server = Victim(nn.Sequential(*layers), Pixels((1, SIDE, SIDE)))
        own = copy.deepcopy(server.model)
        own[1].running_mean.normal_(0, 2)
        own[1].running_var.uniform_(0.2, 3.0)
    sent = share(replace(server, model=own), Gradient(), x, y)
    client = Client(y, Gradient(), None, {n: b for n, b in own.named_buffers() if "running" in n})
    attack = inverting_gradients(steps=1, tv=0.0)
    seen = replace(sent, labels=y)
    image, _ = continue_from(server, seen, x, y, goal=0.0)  # a search that explains more than the truth does
    found = replace(attack(server, seen), x=image)
    test = explain(attack, server, seen, found, x, client)
    assert test.mismatch.truth > 0.01 > test.informed == 0.0
    assert test.cause is Cause.KNOWLEDGE
    assert test.lacks == (Knowledge.STATISTICS,)
    # without them, labels that are right are not what is missing
    assert explain(attack, server, seen, found, x, Client(y, Gradient(), None)).lacks == ()


def test_labels_that_can_be_read_are_no_missing_knowledge() -> None:
    x, y = images(5)
    victim = Victim(network(5), Pixels((1, SIDE, SIDE)))
    seen = share(victim, Gradient(), x, y)
    wrong = (y + 1) % 10
    attack = inverting_gradients(steps=30, tv=0.01)
    found = attack(victim, replace(seen, labels=wrong))  # as an attack that looked for labels and found others
    client = Client(y, Gradient(), 0)
    given = explain(attack, victim, replace(seen, labels=wrong), found, x, client)
    assert (given.cause, given.lacks) == (Cause.KNOWLEDGE, (Knowledge.LABELS,))
    assert explain(attack, victim, seen, found, x, client).cause is Cause.SEARCH


def test_the_class_of_one_image_can_be_tried_and_that_of_several_cannot() -> None:
    for number, cause in ((1, Cause.SEARCH), (4, Cause.KNOWLEDGE)):
        x, y = images(5, number)
        victim = Victim(network(5), Pixels((1, SIDE, SIDE)))
        seen = share(victim, Gradient(), x, y, defenses=[Withhold("head")])
        wrong = (y + 1) % 10
        attack = inverting_gradients(steps=30, tv=0.01)
        found = attack(victim, replace(seen, labels=wrong))
        image, _ = continue_from(victim, replace(seen, labels=wrong), found.x, wrong, goal=0.0)
        test = explain(attack, victim, seen, replace(found, x=image), x, Client(y, Gradient(), 0))
        assert test.cause is cause, number


def sure_of(x: Tensor, y: Tensor, model: nn.Module, by: tuple[float, ...]) -> nn.Module:
    """The same network, but surer of the first images, each by its own amount."""
    assert isinstance(model, nn.Sequential)
    head = model[-1]
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        only = torch.linalg.pinv(model[:-1](x))  # each at right angles to the features of the others
        for k, much in enumerate(by):
            head.weight += much * torch.outer(one_hot(y[k], 10) - 0.1, only[:, k])
    return model


def test_the_label_of_a_sample_that_left_no_trace_is_no_missing_knowledge() -> None:
    """The network is so sure of one of these four images that nothing shows its label. Beside the true images a wrong label would not fit,
    yet along the gradient at the output they explain what was sent without any label, so a search that ends near them failed as one."""
    x, y = images(5, 4)
    model = sure_of(x, y, network(5), (60,))
    assert float(model(x).softmax(1)[0, y[0]]) == 1
    victim = Victim(model, Pixels((1, SIDE, SIDE)))
    seen = share(victim, Gradient(), x, y, reveal=(Size(),))
    told = samples_at_head(victim, seen)
    assert told.seen == 3
    assert sorted(told.labels.tolist()) != sorted(y.tolist())
    near = x + 0.05 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    attack = inverting_gradients(steps=2)
    found = replace(attack(victim, seen, seed=0), x=near)
    assert found.y is not None
    assert sorted(found.y.tolist()) == sorted(told.labels.tolist())
    test = explain(attack, victim, seen, found, x, Client(y, Gradient(), None), thorough=False)
    assert test.cause is Cause.SEARCH
    assert test.mismatch.truth < 1e-6
    assert layer_mismatch(victim, seen, x, told.labels.sort().values) > 0.1


@pytest.mark.parametrize("seed", [5, 6])
def test_a_faint_sample_beside_one_without_a_trace_was_there_to_be_found(seed: int) -> None:
    """Labels of the first sample are guessed, so a replay with labels is far off, and its rounding says nothing of the second one."""
    x, y = images(seed, 4)
    victim = Victim(sure_of(x, y, network(seed), (60, 9)), Pixels((1, SIDE, SIDE)))
    seen = share(victim, Gradient(), x, y, reveal=(Size(),))
    assert samples_at_head(victim, seen).seen == 3
    attack = inverting_gradients(steps=2)
    grey = x.clone()
    grey[1] = 0.5
    found = replace(attack(victim, seen, seed=0), x=grey)
    test = explain(attack, victim, seen, found, x, Client(y, Gradient(), None), thorough=False)
    assert test.cause is Cause.SEARCH
    assert test.mismatch.found > 100 * test.mismatch.truth


def test_the_truth_of_a_client_in_a_secret_order_fits_only_with_that_order() -> None:
    x, y = images(3, 4)
    victim = Victim(network(3), Pixels((1, SIDE, SIDE)))
    channel = ShuffledFedAvg(2, 0.5, 2, seed=11)
    seen = share(victim, channel, x, y)
    attack = inverting_gradients(steps=3)
    found = attack(victim, replace(seen, labels=y))
    test = explain(attack, victim, replace(seen, labels=y), found, x, Client(y, channel, 0))
    assert test.informed == 0.0
    assert test.mismatch.truth > 0.0


def test_batches_and_local_steps_have_a_truth_that_fits() -> None:
    x, y = images(4, 3)
    victim = Victim(network(4), Pixels((1, SIDE, SIDE)))
    for channel in (Gradient(), FedAvg(steps=3, lr=0.1)):
        seen = share(victim, channel, x, y)
        attack = inverting_gradients(steps=2)
        found = attack(victim, replace(seen, labels=y.flip(0)))
        test = explain(attack, victim, replace(seen, labels=y.flip(0)), found, x, Client(y, channel, 0))
        assert test.mismatch.truth < 1e-9, channel
        assert test.cause is Cause.SEARCH


def test_labels_are_compared_as_a_multiset() -> None:
    assert in_order(torch.tensor([5, 1, 1]), torch.tensor([1, 2, 1])).tolist() == [1, 5, 1]


def test_a_negative_must_be_earned() -> None:
    flat, base = scores(0.1, 8.0), scores(0.2, 10.0)

    def judged(cause: Cause | None, control: bool | None, *, enough: bool = True) -> tuple[Outcome, Cause | None]:
        test = None if cause is None else TruthTest(cause, Three(0.0, 0.1, 1.0), 0.0, 0.0)
        verdict = judge(flat, flat, base, test=test, control=control, enough=enough)
        return verdict.outcome, verdict.cause

    assert judged(Cause.INFORMATION, True) == (Outcome.INFEASIBLE, Cause.INFORMATION)
    assert judged(Cause.KNOWLEDGE, True) == (Outcome.INFEASIBLE, Cause.KNOWLEDGE)
    assert judged(Cause.INFORMATION, False) == (Outcome.INCONCLUSIVE, Cause.CONTROL)
    assert judged(Cause.INFORMATION, None) == (Outcome.INCONCLUSIVE, Cause.UNCONTROLLED)
    assert judged(Cause.SEARCH, True) == (Outcome.INCONCLUSIVE, Cause.SEARCH)
    assert judged(None, True) == (Outcome.INCONCLUSIVE, Cause.UNTESTED)
    assert judged(Cause.INFORMATION, True, enough=False) == (Outcome.INCONCLUSIVE, Cause.EFFORT)
    seen = judge(scores(0.9, 25.0), flat, base, control=False)
    assert (seen.outcome, seen.cause) == (Outcome.FEASIBLE, None)
