from __future__ import annotations

import json

import pytest
import torch

from leakgauge.core import Tokens, Victim
from leakgauge.errors import BadInput
from leakgauge.integrations.huggingface import load_text

BERT = {
    "model_type": "bert", "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 12,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "vocab_size": 40, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 12,
    "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip


@pytest.mark.parametrize("settings", [BERT, GPT2], ids=lambda s: s["model_type"])
def test_from_a_configuration(settings):
    model, space = load_text(settings, length=10, classes=3)
    assert space == Tokens(10, 40)
    victim = Victim(model, space)
    assert victim(space.start(2, torch.Generator().manual_seed(0))).shape == (2, 3)


@pytest.mark.parametrize(("settings", "kind"), [(BERT, "BertForMaskedLM"), (GPT2, "GPT2LMHeadModel")])
def test_language_models_score_every_place(settings, kind):
    model, space = load_text(settings, length=10, language_model=True)
    assert type(model.model).__name__ == kind
    assert model(space.start(2, torch.Generator().manual_seed(0))).shape == (2, 10, 40)
    assert len(dict(model.named_parameters())) < len(dict(model.named_parameters(remove_duplicate=False)))  # tied


def test_from_a_file_or_its_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    weights = [
        load_text(str(source), length=12, seed=3)[0].state_dict()["model.classifier.weight"]
        for source in (tmp_path, tmp_path / "config.json")
    ]
    assert torch.equal(*weights)


def test_same_seed_same_weights_and_no_global_randomness():
    before = torch.get_rng_state()
    weights = [load_text(BERT, length=4, seed=seed)[0].state_dict()["model.classifier.weight"] for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("source", "length", "message"),
    [
        ("bertt", 4, r"'bertt' is no text classifier of transformers; did you mean .*bert"),
        ({"model_type": "vit"}, 4, "'vit' is no text classifier"),
        (BERT, 13, "has 12 positions, too few for sentences of 13 tokens"),
        ({**BERT, "hidden_size": "wide"}, 4, "is wrong: .*hidden_size"),
        ({**BERT, "num_attention_heads": 3}, 4, "cannot build the configuration of bert"),
    ],
    ids=["typo", "images", "too-long", "wrong-type", "wrong-heads"],
)
def test_bad_input(source, length, message):
    with pytest.raises(BadInput, match=message):
        load_text(source, length=length)


def test_a_model_without_a_limit_of_positions():
    small = {"model_type": "xlnet", "d_model": 24, "n_layer": 1, "n_head": 2, "d_inner": 32, "vocab_size": 50}
    assert load_text(small, length=9)[1].length == 9
    with pytest.raises(BadInput, match="is wrong: The model xlnet"):
        load_text({**small, "max_position_embeddings": 20}, length=9)
