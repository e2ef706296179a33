"""Losses of language models against cross entropy taken place by place."""

import torch

from leakgauge.models import MaskedTokens, NextToken


def by_hand(scores: torch.Tensor, pairs: list[tuple[int, int, int]]) -> torch.Tensor:
    """Mean of −log p over (sentence, place, token)."""
    logs = scores.log_softmax(-1)
    return -torch.stack([logs[n, p, t] for n, p, t in pairs]).mean()


def test_each_token_from_those_before_it_and_the_first_padding_as_the_end():
    scores = torch.randn(2, 4, 7, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[3, 5, 6, 4], [2, 3, 0, 0]])
    expected = by_hand(scores, [(0, 0, 5), (0, 1, 6), (0, 2, 4), (1, 0, 3), (1, 1, 0)])
    torch.testing.assert_close(NextToken(0)(scores, ids), expected)
    both = by_hand(scores, [(0, 0, 5), (0, 1, 6), (0, 2, 4), (1, 0, 3), (1, 1, 0), (1, 2, 0)])
    torch.testing.assert_close(NextToken()(scores, ids), both)


def test_only_masked_places_count():
    scores = torch.randn(1, 3, 5, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(MaskedTokens()(scores, torch.tensor([[-100, 4, -100]])), by_hand(scores, [(0, 1, 4)]))
