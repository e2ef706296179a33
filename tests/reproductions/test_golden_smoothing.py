"""Label smoothing of either sign, by hand and against PyTorch where PyTorch has it."""

import pytest
import torch
import torch.nn.functional as F

from leakgauge.errors import BadInput
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


@pytest.mark.parametrize("alpha", [0.3, -0.05])
@pytest.mark.parametrize("make", ALL, ids=lambda m: m.__name__)
def test_gradient_is_the_sum_of_the_targets_times_p_minus_the_targets(batch, make, alpha):
    logits, labels = batch[0].clone().requires_grad_(), batch[1]
    (gradient,) = torch.autograd.grad(make(alpha)(logits, labels) * len(labels), logits)
    targets = make(alpha).targets(labels, 10).double()
    total = 1 - alpha / 10 if make is PaperSmoothing else 1.0
    torch.testing.assert_close(gradient, total * logits.detach().softmax(1) - targets, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("alpha", [1.0, 2.0, float("nan"), float("-inf")])
def test_refusals(alpha):
    with pytest.raises(BadInput):
        PaperSmoothing(alpha)
