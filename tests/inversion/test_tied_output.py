"""The part of an output layer in a gradient is found from the rows of tokens that were not sent."""

import pytest
import torch

from leakgauge.errors import Inapplicable
from leakgauge.inversion.text_tables import output_part


def gradient(dtype, *, vocab=200, width=24, places=6, seed=0):
    """Rows of a table that embeds three tokens and scores ``places`` of them, and the first part alone."""
    rng = torch.Generator().manual_seed(seed)
    features = torch.randn(places, width, generator=rng, dtype=torch.float64)
    scores = torch.randn(places, vocab, generator=rng, dtype=torch.float64).softmax(1)
    scores[torch.arange(places), torch.arange(places)] -= 1  # targets are tokens 0 to 5
    sums = torch.zeros(vocab, width, dtype=torch.float64)
    sums[[3, 50, 120]] = torch.randn(3, width, generator=rng, dtype=torch.float64)
    return (sums + scores.T @ features).to(dtype), sums, features


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_what_is_left_is_the_embedding_part_beside_the_features(dtype, tolerance):
    rows, sums, features = gradient(dtype)
    part = output_part(rows, slots=6)
    assert part.basis.shape == (24, 6)
    torch.testing.assert_close(part.without(features), torch.zeros_like(features), atol=tolerance, rtol=0)
    torch.testing.assert_close(part.without(rows), part.without(sums), atol=tolerance, rtol=0)
    left = part.without(rows).norm(dim=1)
    assert (left > part.floor).nonzero().flatten().tolist() == [3, 50, 120]
    assert left[[3, 50, 120]].min() > 100 * part.floor


def test_too_many_places_too_few_tokens_and_noise_are_refused():
    with pytest.raises(Inapplicable, match="fills all 24 directions"):
        output_part(gradient(torch.float64, places=30)[0], slots=30)
    with pytest.raises(Inapplicable, match="30 tokens are too few"):
        output_part(gradient(torch.float64, vocab=200)[0][:30], slots=6)
    rows = gradient(torch.float64)[0]
    with pytest.raises(Inapplicable, match="or there is noise"):
        output_part(rows + 1e-6 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(1)), slots=6)
