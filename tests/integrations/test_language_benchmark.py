"""Rows of the benchmark of language models: padding is what the tokenizer says, and rows that compared with it can be corrected."""

import json

import pytest
import torch

from benchmarks import language_models

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 300,
}  # fmt: skip
LENGTH = 16


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr(language_models, "PUBLIC", 2)
    monkeypatch.setattr(language_models, "LENGTH", LENGTH)
    (tmp_path / "llama.json").write_text(json.dumps(LLAMA))
    (tmp_path / "s.txt").write_text("\n".join(["public one", "public two", "Call at nine.", "I paid.", "It is late."]))
    return str(tmp_path / "llama.json"), str(tmp_path / "s.txt")


def test_padding_is_that_of_the_tokenizer(files):
    row = language_models.run({"part": "batches", "batch": 2, "seed": 0}, *files)
    ids, _ = language_models.batch_of(row, *files, "cpu")
    assert row["tokens"] == int((ids != 0).sum()) < 2 * LENGTH
    assert (row["exact"], row["certified"], row["false"], row["rouge1"]) == (2, 2, 0, 1.0)


def test_rows_that_compared_with_padding_are_corrected(files):
    key = {"part": "batches", "batch": 2, "seed": 0}
    ids, public = language_models.batch_of(key, *files, "cpu")
    wrong = 299  # taken for the padding
    for found, said in ((ids, "exact"), (ids.roll(1, dims=1), "missed")):
        scores = language_models.score_of(torch.where(ids == 0, wrong, found), ids, wrong)
        row = key | {name: language_models.mean(getattr(scores, name)) for name in ("rouge1", "rouge2")}
        row |= {"exact": 0, "certified": 2, "false": 2, "recall": scores.recall}
        corrected = language_models.rescored(row, ids, public, 0)
        assert corrected["rescored"] == said
        assert corrected["exact"] == (2 if said == "exact" else 0)
