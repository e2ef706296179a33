"""Label smoothing of either sign, by hand and against PyTorch where PyTorch has it."""

import pytest
import torch
import torch.nn.functional as F

from leakgauge.errors import BadInput
from reproductions.golden_partition_zone.smoothing import CodeSmoothing, PaperSmoothing


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_the_codes_factor_is_pytorchs_stretched(alpha):
    logits, labels = torch.randn(12, 10, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 10
    expected = F.cross_entropy(logits, labels, label_smoothing=alpha * 10 / 9)
    torch.testing.assert_close(CodeSmoothing(alpha)(logits, labels), expected)


CASES = [(PaperSmoothing, 0.4, 0.6, 0.1), (PaperSmoothing, -0.2, 1.2, -0.05), (CodeSmoothing, -0.3, 1.3, -0.1)]


@pytest.mark.parametrize(("make", "alpha", "true", "other"), CASES)
def test_targets_and_gradient_by_hand_of_four_classes(make, alpha, true, other):
    """The gradient at the logits is S·p − y', with S the sum of the targets."""
    labels = torch.tensor([2, 0])
    targets = make(alpha).targets(labels, 4)
    expected = torch.full((2, 4), other).scatter(1, labels[:, None], true)
    torch.testing.assert_close(targets, expected)
    logits = torch.randn(2, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (gradient,) = torch.autograd.grad(make(alpha)(logits, labels) * 2, logits)
    torch.testing.assert_close(gradient, (true + 3 * other) * logits.detach().softmax(1) - targets)


@pytest.mark.parametrize("alpha", [1.0, float("nan")])
def test_refusals(alpha):
    with pytest.raises(BadInput):
        PaperSmoothing(alpha)
