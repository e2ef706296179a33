"""Products and attention with derivatives written by hand, against autograd's and against differences."""

import math

import pytest
import torch
from torch import Tensor

from leakgauge.engine.rules import products
from leakgauge.engine.rules.attention import _Attention, attend
from leakgauge.engine.rules.products import compare_product, product, sum_product, two_numbers


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_a_product_is_differentiable_twice_and_its_slopes_lie_as_its_factors():
    torch.manual_seed(0)
    delta, a = random(2, 5, 3), random(2, 5, 4)
    torch.testing.assert_close(product(delta, a), delta.transpose(1, 2) @ a)
    assert torch.autograd.gradcheck(product, (delta, a))
    assert torch.autograd.gradgradcheck(product, (delta, a))
    slopes = torch.autograd.grad(product(delta, a).square().sum(), (delta, a))
    assert [slope.is_contiguous() for slope in slopes] == [True, True]


def test_a_summed_product_and_its_slopes():
    torch.manual_seed(0)
    delta, a = random(2, 5, 3), random(2, 5, 3)
    torch.testing.assert_close(sum_product(delta, a), (delta * a).sum(1))
    assert torch.autograd.gradcheck(sum_product, (delta, a))


@pytest.mark.parametrize("rows", [None, 2])
def test_a_comparison_gives_square_and_difference_and_the_slopes_of_both(rows):
    torch.manual_seed(0)
    delta, a = random(2, 5, 3), random(2, 5, 4)
    target = torch.randn(*([] if rows is None else [rows]), 3, 4, dtype=torch.float64)
    plain = delta.transpose(1, 2) @ a - target
    square, difference = compare_product(delta, a, target)
    torch.testing.assert_close(difference, plain)
    torch.testing.assert_close(square, plain.square().flatten(1).sum(1))
    for asked in (
        lambda d, x: compare_product(d, x, target),
        lambda d, x: compare_product(d, x, target)[0],
        lambda d, x: compare_product(d, x, target)[1],
    ):
        assert torch.autograd.gradcheck(asked, (delta, a))


def test_a_comparison_keeps_single_precision_where_the_difference_is_small():
    """‖g‖² − 2⟨g, g*⟩ + ‖g*‖² would lose all digits here."""
    torch.manual_seed(0)
    delta, a = torch.randn(1, 7, 300), torch.randn(1, 7, 200)
    exact = delta.double().transpose(1, 2) @ a.double()
    target = (exact + 1e-4 * torch.randn(exact.shape)).float()
    square, _ = compare_product(delta, a, target)
    torch.testing.assert_close(square.double(), (exact - target.double()).square().flatten(1).sum(1), rtol=1e-3, atol=0)


@pytest.mark.parametrize("extra", [0, 3])
def test_two_numbers_agree_with_the_formed_product(extra, monkeypatch):
    monkeypatch.setattr(products, "padding_rows", lambda rows, device: extra)
    torch.manual_seed(0)
    a, delta, target = random(2, 5, 4), random(2, 5, 3), torch.randn(3, 4, dtype=torch.float64)
    formed = delta.transpose(1, 2) @ a
    dot, square = two_numbers(a, delta, target)
    torch.testing.assert_close(dot, (formed * target).flatten(1).sum(1))
    torch.testing.assert_close(square, formed.square().flatten(1).sum(1))
    assert torch.autograd.gradcheck(lambda x, d: two_numbers(x, d, target), (a, delta))


def test_only_a_gpu_gets_rows_of_zeros():
    assert [products.padding_rows(n, torch.device("cuda")) for n in (196, 197, 199)] == [0, 3, 1]
    assert products.padding_rows(197, torch.device("cpu")) == 0


@pytest.mark.parametrize("extra", [0, 3])
def test_attention_has_right_first_and_second_derivatives_also_with_rows_added_to_align_it(extra):
    torch.manual_seed(0)
    q, k, v = random(2, 4, 3), random(2, 5, 3), random(2, 5, 2)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _Attention.apply(q, k, v, 0.7, extra)

    torch.testing.assert_close(ours(q, k, v), torch.softmax(0.7 * q @ k.transpose(1, 2), -1) @ v)
    assert torch.autograd.gradcheck(ours, (q, k, v))
    assert torch.autograd.gradgradcheck(ours, (q, k, v))


def test_attention_agrees_with_that_of_pytorch_in_single_precision():
    torch.manual_seed(0)
    q, k, v = (torch.randn(6, 17, 8) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(attend(q, k, v, 1 / math.sqrt(8)), expected, rtol=1e-5, atol=1e-6)
