"""The small text classifier: seeded, of the shape it says, in both layouts."""

import pytest
import torch

from leakgauge.errors import BadInput
from leakgauge.models import TextTransformer


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("first_token", [False, True])
def test_scores_of_shorter_sentences_too(residual, first_token):
    model = TextTransformer(vocab=20, length=9, classes=3, width=8, heads=2, residual=residual, first_token=first_token)
    assert model(torch.randint(20, (2, 9))).shape == (2, 3)
    assert model(torch.randint(20, (2, 4))).shape == (2, 3)


def test_the_seed_makes_the_weights_and_nothing_else_is_moved():
    before = torch.get_rng_state()
    a, b, c = (TextTransformer(vocab=20, width=8, heads=2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(a.head.weight, b.head.weight)
    assert not torch.equal(a.head.weight, c.head.weight)


def test_architecture_a_has_nothing_between_the_embeddings_and_the_attention():
    model = TextTransformer(vocab=20, length=6, width=8, heads=2, residual=False)
    read = []
    model.blocks[0].attn.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0]))
    ids = torch.randint(20, (1, 6))
    model(ids)
    torch.testing.assert_close(read[0], model.token_embed(ids) + model.pos_embed)


def test_position_matters_and_padding_is_not_learned():
    model = TextTransformer(vocab=20, length=6, width=8, heads=2, padding=0, position_std=1.0)
    ids = torch.tensor([[1, 2, 3, 0, 0, 0]])
    assert not torch.allclose(model(ids), model(ids[:, [0, 2, 1, 3, 4, 5]]))
    model(ids).sum().backward()
    assert model.token_embed.weight.grad[0].abs().sum() == 0
    assert model.token_embed.weight.grad[1].abs().sum() > 0


def test_width_must_fit_the_heads():
    with pytest.raises(BadInput, match="multiple of the heads"):
        TextTransformer(width=10, heads=4)
