"""The gradient at the output in place of the loss: where it can be read, and what it changes."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge.channels import DPSGD, Aggregate, FedAvg, Gradient
from leakgauge.channels.output import Along
from leakgauge.core import Labels, Pixels, Size, Victim, share
from leakgauge.errors import Inapplicable
from leakgauge.inversion import Adam, BalancedCosine, Cosine, Descent, HeadFeatures, Matching, SignRule
from leakgauge.inversion.output_gradient import along_output, output_gradient, read_targets, samples_at_head
from leakgauge.models import CNN


class Sure(nn.Module):
    """A linear classifier that is so sure of its class that softmax rounds p to the label."""

    def __init__(self, scale: float = 200.0):
        super().__init__()
        self.scale = scale
        self.head = nn.Linear(36, 4)

    def forward(self, x):
        return self.scale * self.head(x.flatten(1)) if self.scale != 1 else self.head(x.flatten(1))


def case(model: nn.Module | None = None, size: int = 1, **options):
    victim = Victim(CNN() if model is None else model, Pixels((1, 28, 28) if model is None else (1, 6, 6)))
    x = torch.rand(size, *victim.space.shape, generator=torch.Generator().manual_seed(3))
    y = torch.arange(size)
    return victim, share(victim, Gradient(), x, y, **options), x, y


def test_the_bias_shows_the_gradient_of_the_loss_at_the_output():
    victim, seen, x, y = case()
    with torch.no_grad():
        expected = victim(x).softmax(-1)[0] - nn.functional.one_hot(y, 10)[0]
    torch.testing.assert_close(output_gradient(victim, seen), expected / expected.norm(), rtol=1e-4, atol=1e-6)


def test_along_it_the_truth_explains_what_was_sent_and_another_label_does_not_matter():
    victim, seen, x, y = case()
    attack = Matching(Cosine(), along=True)
    for label in (y, y + 1):  # the class is in the gradient at the output, not in the label
        assert attack.objective_at(victim, seen, x, label) < 1e-6
    assert attack.objective_at(victim, seen, x.flip(-1), y) > 1e-3


def test_a_label_that_is_rounded_away_is_still_read():
    """p of the label rounds to 1, so its entry of p − y is 0 and no row of the head's gradient opposes the others."""
    model = CNN()
    head = next(m for m in reversed(list(model.modules())) if isinstance(m, nn.Linear))
    with torch.no_grad():
        head.bias[0] += 20.0
    victim = Victim(model, Pixels((1, 28, 28)))
    x, y = torch.rand(1, 1, 28, 28, generator=torch.Generator().manual_seed(3)), torch.tensor([0])
    seen = share(victim, Gradient(), x, y)
    assert float(output_gradient(victim, seen)[0]) == 0.0
    with pytest.raises(Inapplicable, match="found 0"):
        SignRule()(victim, seen, rng=torch.Generator())
    attack = Matching(Cosine(), solver=Descent(Adam(0.1), 40), along=True)
    assert attack.objective_at(victim, seen, x, y) < 1e-6
    found = attack(victim, seen, seed=0)
    assert found.y.tolist() == [0]
    assert found.loss < 0.1


def test_many_observations_have_their_own_gradient_at_the_output():
    victim, _, _, _ = case()
    x, y = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0)), torch.tensor([4, 7])
    seen = [share(victim, Gradient(), x[i : i + 1], y[i : i + 1]) for i in range(2)]
    attack = Matching(BalancedCosine(), solver=Descent(steps=3), restarts=2, along=True)
    together = attack.many(victim, seen, seed=1)
    assert [one.y.tolist() for one in together] == [[4], [7]]
    for one, alone in zip(together, seen, strict=True):
        torch.testing.assert_close(one.x, attack(victim, alone, seed=1).x, rtol=1e-3, atol=1e-4)


def test_where_it_cannot_be_read_the_loss_is_replayed():
    victim, seen, _, _ = case(size=6)  # more than half as many as classes
    assert along_output(victim, [seen]) is None
    plain, along = (Matching(Cosine(), solver=Descent(steps=2), along=a)(victim, seen) for a in (False, True))
    assert torch.equal(plain.x, along.x)
    assert not any("along the gradient" in note for note in along.notes)


@pytest.mark.parametrize(
    ("observed", "reason"),
    [
        (lambda v, x, y: share(v, Gradient(), x.repeat(2, 1, 1, 1), y.repeat(2)), "only for one sample"),
        (lambda v, x, y: share(v, FedAvg(steps=2, lr=0.1), x, y), "sends something else"),
    ],
)
def test_refusals_name_what_is_missing(observed, reason):
    victim, _, x, y = case()
    with pytest.raises(Inapplicable, match=reason):
        output_gradient(victim, observed(victim, x, y))


def test_a_head_that_is_not_the_output_is_refused():
    victim, seen, _, _ = case(Sure())
    with pytest.raises(Inapplicable, match="not the output of the model"):
        output_gradient(victim, seen)
    victim, seen, _, _ = case(Sure(1.0))
    assert output_gradient(victim, seen).shape == (4,)


def test_revealed_labels_do_not_replace_it():
    victim, seen, _, _ = case(reveal=(Size(), Labels()))
    assert seen.labels is not None
    found = Matching(Cosine(), solver=Descent(steps=2), along=True)(victim, seen)
    assert found.y.tolist() == [0]
    assert any("along the gradient at the output" in note for note in found.notes)


def test_the_gradient_of_along_is_what_it_is_given():
    z = torch.randn(3, 5, requires_grad=True)
    d = torch.randn(3, 5)
    (found,) = torch.autograd.grad(Along()(z, d), z)
    torch.testing.assert_close(found, d / 3)  # of the mean over three samples


@pytest.mark.parametrize("size", [1, 3])
def test_several_restarts_are_replayed_along_it_by_layer_rules(size: int):
    """The restarts are one batch, so a mean over it weighs each with 1/R; the loss must count every one in full."""
    victim, seen, _, _ = case(size=size, reveal=(Size(), Labels()))
    objective = Cosine() if size == 1 else Cosine() + HeadFeatures()
    found = Matching(objective, solver=Descent(steps=2), restarts=3, along=True)(victim, seen)
    assert any("along the gradient at the output" in note for note in found.notes)
    assert "replay: layer rules" in found.notes


def test_clipping_one_sample_only_scales_it():
    """DP-SGD without noise sends a shorter gradient of the same direction, so the output's gradient is the same."""
    victim, seen, x, y = case()
    clipped = share(victim, DPSGD(clip=1e-3, noise=0.0), x, y)
    torch.testing.assert_close(output_gradient(victim, clipped), output_gradient(victim, seen), rtol=1e-4, atol=1e-6)
    assert Matching(Cosine(), along=True).objective_at(victim, clipped, x, y) < 1e-6


def mixed(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 10))
    return Victim(model, Pixels((1, 4, 4)), **options), torch.rand(3, 1, 4, 4), torch.tensor([1, 2, 3])


def test_clients_with_unequal_numbers_of_samples_are_weighed_as_the_sum_weighs_them():
    victim, x, y = mixed()
    seen = share(victim, Aggregate(clients=2), x, y)
    assert along_output(victim, [seen]) is not None
    attack = Matching(Cosine() + 1.0 * HeadFeatures(), along=True)
    assert attack.objective_at(victim, seen, x, y) < 1e-5


def test_another_loss_does_not_get_what_was_kept_for_this_one():
    victim, x, y = mixed(loss=nn.CrossEntropyLoss(reduction="sum"))
    seen = share(victim, Gradient(), x, y)
    assert sorted(samples_at_head(victim, seen).labels.tolist()) == [1, 2, 3]
    with pytest.raises(Inapplicable):
        samples_at_head(replace(victim, loss=nn.CrossEntropyLoss()), seen)


def test_a_gradient_that_is_not_finite_is_refused():
    victim, x, y = mixed()
    seen = share(victim, Gradient(), x, y)
    broken = seen.signal["3.weight"].clone()
    broken[0, 0] = torch.nan
    with pytest.raises(Inapplicable, match="not finite"):
        samples_at_head(victim, replace(seen, signal={**seen.signal, "3.weight": broken}))


def test_targets_are_not_read_from_a_clipped_gradient():
    victim = Victim(nn.Sequential(nn.Flatten(), nn.Linear(16, 1)), Pixels((1, 4, 4)), loss=nn.MSELoss())
    x, y = torch.rand(1, 1, 4, 4), torch.tensor([[3.0]])
    plain = read_targets(victim, share(victim, Gradient(), x, y), x)
    assert plain is not None
    torch.testing.assert_close(plain, y, rtol=1e-4, atol=1e-4)
    assert read_targets(victim, share(victim, DPSGD(clip=0.1, noise=0.0), x, y), x) is None
