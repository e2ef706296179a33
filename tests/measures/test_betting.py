import math

import pytest
import torch

from leakgauge.measures.betting import log_evalues, mix

TEMPERATURES = torch.tensor([0.5, 3.0], dtype=torch.float64)


@pytest.mark.parametrize("stake", [0.3, 0.9])
def test_mean_is_one_when_every_candidate_is_equally_likely(stake):
    scores = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    allowed = torch.ones(5, 7).triu().bool()
    for row in range(5):
        indices = allowed[row].nonzero().flatten()
        each = [
            log_evalues(
                scores[row : row + 1],
                index[None],
                allowed=allowed[row : row + 1],
                temperatures=TEMPERATURES,
                stake=stake,
            ).exp()
            for index in indices
        ]
        assert torch.stack(each).mean(0).flatten().tolist() == pytest.approx([1.0, 1.0], abs=1e-12)


def test_value_by_hand():
    scores = torch.tensor([[math.log(3.0), 0.0, 50.0]], dtype=torch.float64)
    found = log_evalues(
        scores,
        torch.tensor([0]),
        allowed=torch.tensor([[True, True, False]]),
        temperatures=torch.tensor([1.0]),
        stake=0.8,
    )
    assert found.item() == pytest.approx(math.log(0.2 + 0.8 * 2 * 0.75), abs=1e-12)


def test_at_most_ln_k():
    scores = torch.eye(6, dtype=torch.float64) * 1e3
    found = log_evalues(
        scores, torch.arange(6), allowed=torch.ones(6, 6).bool(), temperatures=TEMPERATURES, stake=0.999999
    )
    assert float(found.max()) <= math.log(6)
    assert float(found.min()) == pytest.approx(math.log(6), abs=1e-5)


def test_a_mixture_is_the_weighted_mean_of_fortunes():
    fortunes, weights = torch.tensor([[1.0, 4.0], [2.0, 0.5]]), torch.tensor([0.25, 0.75])
    assert mix(fortunes.log(), weights.log()).exp().tolist() == pytest.approx([3.25, 0.875])
