"""Roles of text transformers, with the names each library gives written out."""

from __future__ import annotations

import pytest
from torch import nn

from leakgauge.core import Tokens, Victim
from leakgauge.defenses import Withhold
from leakgauge.errors import Inapplicable
from leakgauge.families import ROLES, find_roles
from leakgauge.families.text import text_roles
from leakgauge.integrations.huggingface import load_text
from leakgauge.integrations.torchvision_guest import invite_torchvision
from leakgauge.models import TextTransformer

BERT = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 48}
SMALL = {
    "bert": {**BERT, "max_position_embeddings": 20},
    "roberta": {**BERT, "max_position_embeddings": 20},
    "distilbert": {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 48, "max_position_embeddings": 20},
    "albert": {**BERT, "max_position_embeddings": 20, "embedding_size": 16, "num_hidden_groups": 2},
    "mpnet": {**BERT, "max_position_embeddings": 20},
    "gpt_neo": {
        "hidden_size": 24,
        "num_layers": 2,
        "num_heads": 3,
        "attention_types": [[["global"], 2]],
        "max_position_embeddings": 20,
        "bos_token_id": 1,
        "eos_token_id": 1,
    },
    "gpt2": {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 20, "bos_token_id": 1, "eos_token_id": 1},
}
PARTS = {  # token embedding, position embedding, head, first attention, its query (or fused) layer
    "bert": (
        "model.bert.embeddings.word_embeddings",
        "model.bert.embeddings.position_embeddings.weight",
        "model.classifier",
        "model.bert.encoder.layer.0.attention",
        "model.bert.encoder.layer.0.attention.self.query",
    ),
    "roberta": (
        "model.roberta.embeddings.word_embeddings",
        "model.roberta.embeddings.position_embeddings.weight",
        "model.classifier.out_proj",
        "model.roberta.encoder.layer.0.attention",
        "model.roberta.encoder.layer.0.attention.self.query",
    ),
    "distilbert": (
        "model.distilbert.embeddings.word_embeddings",
        "model.distilbert.embeddings.position_embeddings.weight",
        "model.classifier",
        "model.distilbert.transformer.layer.0.attention",
        "model.distilbert.transformer.layer.0.attention.q_lin",
    ),
    "albert": (
        "model.albert.embeddings.word_embeddings",
        "model.albert.embeddings.position_embeddings.weight",
        "model.classifier",
        "model.albert.encoder.albert_layer_groups.0.albert_layers.0.attention",
        "model.albert.encoder.albert_layer_groups.0.albert_layers.0.attention.query",
    ),
    "mpnet": (
        "model.mpnet.embeddings.word_embeddings",
        "model.mpnet.embeddings.position_embeddings.weight",
        "model.classifier.out_proj",
        "model.mpnet.encoder.layer.0.attention.attn",
        "model.mpnet.encoder.layer.0.attention.attn.q",
    ),
    "gpt_neo": (
        "model.transformer.wte",
        "model.transformer.wpe.weight",
        "model.score",
        "model.transformer.h.0.attn.attention",
        "model.transformer.h.0.attn.attention.q_proj",
    ),
    "gpt2": (
        "model.transformer.wte",
        "model.transformer.wpe.weight",
        "model.score",
        "model.transformer.h.0.attn",
        "model.transformer.h.0.attn.c_attn",
    ),
    "own": ("token_embed", "pos_embed", "head", "blocks.0.attn", "blocks.0.attn.qkv"),
}


def built(kind: str) -> nn.Module:
    if kind == "own":
        return TextTransformer(vocab=50, length=12, width=24, heads=3, classes=5)
    return load_text({"model_type": kind, "vocab_size": 50, **SMALL[kind]}, length=12, classes=5)[0]


@pytest.mark.parametrize("kind", PARTS)
def test_parts_exist_under_these_names(kind):
    model = built(kind)
    roles = find_roles(model)
    first = roles.attention[0]
    found = (roles.token_embedding, roles.position_embedding, roles.head, first.name, first.qkv or first.q)
    assert (roles.family, found) == ("text", PARTS[kind])
    assert (len(roles.attention), first.heads) == (2, 3)
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    parts = [part for layer in roles.attention for part in (layer.qkv, layer.q, layer.k, layer.v, layer.out)]
    assert {n for n in (*parts, roles.token_embedding, roles.head) if n is not None} <= set(modules)
    assert roles.position_embedding in parameters
    assert model.get_submodule(roles.head).out_features == 5
    for role in set(ROLES) - {"patch_embedding", "class_token"}:
        assert set(roles.parameters(role, model)) <= set(parameters)
    with pytest.raises(Inapplicable, match="no patch_embedding in this model"):
        roles.parameters("patch_embedding", model)


def test_a_tied_output_layer_goes_by_the_name_of_the_table():
    invite_torchvision()
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, **SMALL["gpt2"]))
    roles = find_roles(model)
    assert roles.head == "lm_head"
    assert roles.parameters("head", model) == roles.parameters("token_embedding", model) == ("transformer.wte.weight",)


def test_the_embeddings_can_be_withheld_by_role():
    victim = Victim(built("bert"), Tokens(12, 50))
    left = Withhold(("token_embedding", "position_embedding")).for_victim(victim)(victim.parameters(), rng=None)
    assert not [name for name in left if "word_embeddings" in name or "position_embeddings" in name]
    assert len(left) == len(victim.parameters()) - 2


def test_an_embedding_without_attention_is_no_text_transformer():
    assert text_roles(nn.ModuleDict({"wte": nn.Embedding(5, 4), "out": nn.Linear(4, 2)})) is None
