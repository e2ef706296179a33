"""Small text models and sentences, shared by the tests of attacks on text."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakgauge.core import Tokens, Victim
from leakgauge.integrations.huggingface import load_text
from leakgauge.models import TextTransformer

VOCAB = 300
BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
CONFIGURATIONS = {
    "bert": {"model_type": "bert", **BERT, "max_position_embeddings": 70},
    "roberta": {"model_type": "roberta", **BERT, "max_position_embeddings": 70},
    "gpt2": {
        "model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 70, "bos_token_id": 1,
        "eos_token_id": 1,
    },
}  # fmt: skip


@pytest.fixture
def text_victim():
    """Makes a victim: ``bert``, ``roberta``, ``gpt2`` by Hugging Face, or ``standard`` and ``a``, our two layouts."""

    def make(kind: str, *, length: int = 16, mode: str = "eval", seed: int = 0, **options) -> Victim:
        if kind in CONFIGURATIONS:
            settings = {**CONFIGURATIONS[kind], "vocab_size": VOCAB, **options}
            model, space = load_text(settings, length=length, classes=4, seed=seed)
            return Victim(model, space, mode=mode)
        plain = {"residual": False, "position_std": 1.0} if kind == "a" else {}
        model = TextTransformer(**{"vocab": VOCAB, "length": length, "classes": 4, "width": 32, **plain, **options})
        return Victim(model, Tokens(length, VOCAB), mode=mode)

    return make


@pytest.fixture
def sentences():
    """Makes sentences as language has them: few tokens are frequent, most are rare; ids 0 to 2 are left out."""

    def make(count: int = 1, *, length: int = 16, seed: int = 0) -> torch.Tensor:
        rng = torch.Generator().manual_seed(seed)
        frequency = 1 / torch.arange(1, VOCAB - 2).float()
        return 3 + torch.multinomial(frequency, count * length, replacement=True, generator=rng).view(count, length)

    return make


class TiedHead(nn.Module):
    """A language model whose output layer is its token embedding."""

    def __init__(self, inner: TextTransformer) -> None:
        super().__init__()
        self.token_embed, self.pos_embed, self.blocks = inner.token_embed, inner.pos_embed, inner.blocks
        self.head = nn.Linear(*reversed(inner.token_embed.weight.shape), bias=False)
        self.head.weight = self.token_embed.weight

    def forward(self, ids):
        return self.head(self.blocks(self.token_embed(ids) + self.pos_embed))


def of_every_place(scores, y):
    return nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten())


@pytest.fixture
def tied_victim():
    """Makes a language model whose output layer is its token embedding: ``own``, ``a``, ``bert`` or ``gpt2``."""

    def make(kind: str, *, length: int = 16) -> Victim:
        if kind in ("own", "a"):
            plain = {"residual": False, "position_std": 1.0} if kind == "a" else {}
            model = TiedHead(TextTransformer(vocab=VOCAB, length=length, width=32, **plain))
            return Victim(model, Tokens(length, VOCAB), loss=of_every_place)
        settings = {**CONFIGURATIONS[kind], "vocab_size": VOCAB}
        return Victim(*load_text(settings, length=length, language_model=True), loss=of_every_place)

    return make
