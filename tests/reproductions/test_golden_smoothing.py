"""Label smoothing of either sign, by hand and against PyTorch where PyTorch has it."""

import pytest
import torch
import torch.nn.functional as F

from leakgauge.core import Pixels, Victim
from leakgauge.errors import BadInput
from leakgauge.models import MLP
from leakgauge.testing import check_part
from reproductions.golden_partition_zone.smoothing import CodeSmoothing, PaperSmoothing, TorchSmoothing

ALL = [PaperSmoothing, CodeSmoothing, TorchSmoothing]


@pytest.fixture
def batch():
    rng = torch.Generator().manual_seed(0)
    return torch.randn(12, 10, generator=rng, dtype=torch.float64), torch.arange(12) % 10


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.3, 0.9])
def test_positive_values_agree_with_pytorch(batch, alpha):
    logits, labels = batch
    expected = F.cross_entropy(logits, labels, label_smoothing=alpha)
    torch.testing.assert_close(TorchSmoothing(alpha)(logits, labels), expected)


def test_pytorch_ignores_negative_values_and_we_do_not(batch):
    """The reason for an own loss; should PyTorch ever learn it, this test says so."""
    logits, labels = batch
    plain = F.cross_entropy(logits, labels)
    assert torch.equal(F.cross_entropy(logits, labels, label_smoothing=-0.05), plain)
    assert not torch.isclose(TorchSmoothing(-0.05)(logits, labels), plain)


@pytest.mark.parametrize("alpha", [0.3, -0.05])
def test_the_codes_factor_is_pytorchs_stretched(batch, alpha):
    torch.testing.assert_close(CodeSmoothing(alpha)(*batch), TorchSmoothing(alpha * 10 / 9)(*batch))


@pytest.mark.parametrize("make", ALL, ids=lambda m: m.__name__)
def test_zero_is_plain_cross_entropy(batch, make):
    torch.testing.assert_close(make(0.0)(*batch), F.cross_entropy(*batch))


@pytest.mark.parametrize(
    ("make", "alpha", "true", "other"),
    [
        (PaperSmoothing, 0.4, 0.6, 0.1),
        (PaperSmoothing, -0.2, 1.2, -0.05),
        (CodeSmoothing, 0.3, 0.7, 0.1),
        (CodeSmoothing, -0.3, 1.3, -0.1),
        (TorchSmoothing, 0.4, 0.7, 0.1),
        (TorchSmoothing, -0.4, 1.3, -0.1),
    ],
)
def test_targets_by_hand_of_four_classes(make, alpha, true, other):
    targets = make(alpha).targets(torch.tensor([2, 0]), 4)
    expected = torch.full((2, 4), other)
    expected[0, 2] = expected[1, 0] = true
    torch.testing.assert_close(targets, expected)


def test_loss_by_hand_of_two_classes():
    """p = (3/4, 1/4), label 0, α = −0.1: targets 1.1 and −0.05 (paper), 1.1 and −0.1 (code), 1.05 and −0.05 (PyTorch)."""
    logits, label = torch.tensor([[3.0, 1.0]], dtype=torch.float64).log(), torch.tensor([0])
    a, b = torch.tensor([0.75, 0.25], dtype=torch.float64).log()
    torch.testing.assert_close(PaperSmoothing(-0.1)(logits, label), -(1.1 * a - 0.05 * b), atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(CodeSmoothing(-0.1)(logits, label), -(1.1 * a - 0.1 * b), atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(TorchSmoothing(-0.1)(logits, label), -(1.05 * a - 0.05 * b), atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("alpha", [0.3, -0.05])
@pytest.mark.parametrize("make", ALL, ids=lambda m: m.__name__)
def test_gradient_is_the_sum_of_the_targets_times_p_minus_the_targets(batch, make, alpha):
    logits, labels = batch[0].clone().requires_grad_(), batch[1]
    (gradient,) = torch.autograd.grad(make(alpha)(logits, labels) * len(labels), logits)
    targets = make(alpha).targets(labels, 10).double()
    total = 1 - alpha / 10 if make is PaperSmoothing else 1.0
    torch.testing.assert_close(gradient, total * logits.detach().softmax(1) - targets, atol=1e-6, rtol=1e-5)


def test_a_negative_factor_has_no_lower_bound():
    losses = [float(TorchSmoothing(-0.1)(torch.tensor([[v, -v]]), torch.tensor([0]))) for v in (1.0, 10.0, 1000.0)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < -50


@pytest.mark.parametrize("make", ALL, ids=lambda m: m.__name__)
def test_it_is_a_part_and_a_victims_loss(make):
    check_part(make(-0.05))
    victim = Victim(MLP(shape=(1, 2, 2), hidden=(3,), classes=4), Pixels((1, 2, 2)), loss=make(0.3))
    assert victim.loss(victim(torch.rand(2, 1, 2, 2)), torch.tensor([1, 3])).ndim == 0


@pytest.mark.parametrize("alpha", [1.0, 2.0, float("nan"), float("-inf")])
def test_refusals(alpha):
    with pytest.raises(BadInput):
        PaperSmoothing(alpha)


def test_one_class_is_refused():
    with pytest.raises(BadInput, match="at least 2 classes"):
        CodeSmoothing(0.1).targets(torch.zeros(2, dtype=torch.long), 1)
