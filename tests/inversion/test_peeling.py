"""Batches above the width: sentences are found, tested and subtracted, and wrong ones are not."""

import pytest
import torch

from leakgauge.attacks import span_limits, token_spans
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Victim, share
from leakgauge.integrations.huggingface import load_text
from leakgauge.inversion.peeling import factor_in
from leakgauge.models import NextToken

WIDTH, VOCAB, LENGTH = 96, 300, 8
GPT2 = {"model_type": "gpt2", "n_embd": WIDTH, "n_layer": 3, "n_head": 4, "bos_token_id": 1, "eos_token_id": 1}


def parts(width: int = 12, *, own: int = 3, both: int = 2, others: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of a part and of the rest; some inputs are in both."""
    rng = torch.Generator().manual_seed(0)
    inputs = torch.randn(own + both + others, width, generator=rng, dtype=torch.float64)
    deltas = torch.randn(2, 20, own + both + others, generator=rng, dtype=torch.float64)
    deltas[0, :, own + both :] = 0
    deltas[1, :, :own] = 0
    return deltas[0] @ inputs, deltas[1] @ inputs


def factors(whole: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    u, s, v = torch.linalg.svd(whole, full_matrices=False)
    return u[:, :rank], s[:rank], v[:rank]


@pytest.mark.parametrize("factor", [0.25, 3.0, -0.5])
def test_the_factor_of_a_part_is_read_and_counts_the_inputs_that_only_it_has(factor):
    part, rest = parts()
    found, count = factor_in(factors(factor * part + rest, 9), part)
    assert found == pytest.approx(factor, rel=1e-6)
    assert count == 3
    assert torch.linalg.matrix_rank(factor * part + rest - found * part) == 6


def test_a_wrong_part_has_no_factor_that_removes_two_directions():
    part, rest = parts()
    wrong = part + 0.1 * torch.randn(20, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) @ part[:9]
    assert factor_in(factors(0.25 * part + rest, 9), wrong)[1] < 2


def draw(count: int, *, seed: int, vocab: int = 60) -> torch.Tensor:
    """Tokens below ``vocab``: few enough not to fill the first layer."""
    return 3 + torch.randint(vocab - 3, (count, LENGTH), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("channel", [Gradient(), FedAvg(steps=1, lr=0.1)], ids=["gradient", "one step"])
def test_a_batch_above_the_width_is_guessed_and_not_certified(channel):
    model, space = load_text({**GPT2, "vocab_size": VOCAB}, length=LENGTH, classes=2)
    victim, x = Victim(model, space), draw(14, seed=1)
    assert x.numel() > WIDTH
    seen = share(victim, channel, x, torch.arange(14) % 2)
    assert not next(limit for limit in span_limits(victim, seen) if limit.level == "sentences").fits
    found = token_spans()(victim, seen)
    assert sorted(found.x.tolist()) == sorted(x.tolist())
    assert not found.certified.any()
    assert any("a best guess" in note for note in found.notes)


def test_of_a_language_model_the_weights_of_sentences_are_found_too():
    """Its loss is a mean over all tokens of the batch, whose number nobody sends."""
    model, space = load_text({**GPT2, "vocab_size": VOCAB}, length=LENGTH + 2, language_model=True)
    victim, x = Victim(model, space, loss=NextToken(0)), torch.nn.functional.pad(draw(16, seed=2), (0, 2))
    x[::2, 6:] = 0
    assert int((x > 0).sum()) > WIDTH
    found = token_spans(padding=0)(victim, share(victim, Gradient(), x, x))
    right = sum(ids in x.tolist() for ids in found.x.tolist())
    assert right >= 12
    assert not found.certified.any()
