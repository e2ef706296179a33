"""Prompts from features: exact without noise, never above the genie, nothing under strong noise."""

import gc

import pytest
import torch

from leakgauge.core import Tokens, Victim
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.integrations.huggingface import load_text
from leakgauge.split.decoder import DecoderBlocks
from leakgauge.split.prompts import PromptRisk, Protection, fit_probe, recommend, scan_prompts

VOCAB, LENGTH = 200, 6
SETTINGS = {
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 1},
    "llama": {
        "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "intermediate_size": 48,
    },
}  # fmt: skip


def make(kind: str, *, vocab: int = VOCAB) -> Victim:
    model, space = load_text({**SETTINGS[kind], "vocab_size": vocab}, length=LENGTH, language_model=True)
    return Victim(model, space)


def draw(count: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCAB, (count, LENGTH), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_every_token_leaks_at_every_cut_and_the_cloud_notices_nothing(kind):
    rows = scan_prompts(
        make(kind),
        list(draw(2)),
        [1, 2],
        [Protection(), Protection("bfloat16"), Protection("int8")],
        public=draw(20, seed=1),
    )
    assert [row.found for row in rows] == [2 * LENGTH] * 6
    assert [row.exact_prompts for row in rows] == [2] * 6
    assert [row.agreement for row in rows if row.protection.sent == "float32"] == [1.0, 1.0]
    assert [row.bytes for row in rows[:3]] == [128, 64, 32]
    assert rows[3].flops == 2 * rows[0].flops
    assert recommend(rows) is None  # the genie was not asked, or names every token


def test_features_and_what_follows_them_are_the_model():
    victim, ids = make("llama"), draw(2)
    blocks = DecoderBlocks(victim)
    assert len(blocks) == 2
    features = blocks.features(ids, 1)
    assert torch.equal(blocks.predicted(ids), victim(ids).argmax(-1))
    assert torch.equal(blocks.predicted(ids, cut=1, features=features), blocks.predicted(ids))
    swapped = blocks.predicted(ids, cut=1, features=features.flip(0))
    assert torch.equal(swapped, blocks.predicted(ids.flip(0)))
    candidates = torch.tensor([[5, 9], [7, 5]])
    whole = torch.stack([
        torch.stack([blocks.features(torch.cat([start, c[None]])[None], 2)[0, -1] for c in row])
        for start, row in zip(ids[:, :3], candidates, strict=True)
    ])  # fmt: skip
    torch.testing.assert_close(blocks.after(ids[:, :3], candidates, 2), whole, atol=1e-6, rtol=1e-5)


COMMON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BIASED = {
    "bloom": {"model_type": "bloom", "hidden_size": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 1},
    "falcon": {"model_type": "falcon", **COMMON, "alibi": True, "bos_token_id": 1, "eos_token_id": 1},
    "mpt": {"model_type": "mpt", "d_model": 32, "n_heads": 4, "n_layers": 2, "expansion_ratio": 2},
    "mistral": {
        "model_type": "mistral", **COMMON, "num_key_value_heads": 2, "intermediate_size": 48, "sliding_window": 3,
        "pad_token_id": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", list(BIASED))
def test_distances_between_tokens_and_short_windows_are_seen_through(kind):
    """Candidates beside each other have other distances to the tokens before them, and a window may end before the first of these."""
    model, space = load_text({**BIASED[kind], "vocab_size": VOCAB}, length=LENGTH, language_model=True)
    victim = Victim(model, space)
    blocks, ids, candidates = DecoderBlocks(victim), draw(1)[0], torch.arange(20)
    alone = torch.stack([blocks.features(torch.cat([ids[:-1], c[None]])[None], 2)[0, -1] for c in candidates])
    torch.testing.assert_close(blocks.after(ids[None, :-1], candidates[None], 2)[0], alone, atol=1e-5, rtol=1e-4)
    (row,) = scan_prompts(victim, list(draw(2)), [2], [Protection()], public=draw(20, seed=1))
    assert row.found == 2 * LENGTH


@pytest.mark.parametrize("noise", [0.5, 2.0, 8.0])
def test_the_attack_is_never_above_the_genie(noise):
    (row,) = scan_prompts(
        make("llama"), list(draw(3)), [2], [Protection("noise", noise)], public=draw(20, seed=1), genie=LENGTH
    )
    assert row.asked == row.tokens
    assert row.found_asked == row.found
    assert row.found <= row.genie
    assert (row.genie_rate > 0.9) == (noise == 0.5)


@pytest.mark.parametrize("vocab", [65, 20])
def test_the_genie_takes_small_vocabularies(vocab):
    """Of characters, say: fewer tokens than the genie runs, or even chooses from."""
    ids = draw(12) % vocab
    for sent in (Protection("int8"), Protection("noise", 0.1)):
        (row,) = scan_prompts(make("llama", vocab=vocab), list(ids[:2]), [1], [sent], public=ids[2:], genie=LENGTH)
        assert row.genie == row.found == row.asked == 2 * LENGTH


def test_strong_noise_hides_the_prompt_from_the_genie_too():
    (row,) = scan_prompts(
        make("llama"), list(draw(4)), [1], [Protection("noise", 300.0)], public=draw(20, seed=1), genie=LENGTH
    )
    assert row.genie_rate < 0.3
    assert row.rate < 0.1


def test_the_probe_is_ridge_regression():
    victim, public = make("llama"), draw(30, seed=2)
    blocks = DecoderBlocks(victim)
    probe = fit_probe(blocks, 1, public)
    features, ids = blocks.features(public, 1).flatten(0, 1), public.flatten()
    tested = torch.zeros(len(features), VOCAB, dtype=torch.bool)
    first = probe.nearest(probe.guess(features), 1, tested=tested)[:, 0]
    assert float((first == ids).float().mean()) > 0.9


def risk(noise: float, genie: int, agreement: float, cut: int = 1, asked: int = 100) -> PromptRisk:
    return PromptRisk(
        cut, Protection("noise", noise), 10, 0, 0, 1, agreement, 4, 100 * cut, 1, asked=asked, genie=genie
    )  # fmt: skip


def test_the_recommended_row_keeps_most_where_even_the_genie_fails():
    rows = [risk(1, 50, 0.9), risk(2, 30, 0.7), risk(3, 10, 0.6), risk(2, 30, 0.7, cut=2)]
    assert recommend(rows) == rows[1]
    assert recommend(rows, most=0.2) == rows[2]
    assert recommend(rows, keep=0.8) is None
    assert recommend([risk(2, 3, 0.7, asked=10)]) is None  # as many of ten could be 0.65 of all


@pytest.mark.parametrize("noise", [0.5, 5.0])
def test_the_noise_is_estimated_from_what_was_sent(noise):
    clean = torch.randn(40, 256, generator=torch.Generator().manual_seed(0)) * 3
    protection = Protection("noise", noise)
    sent = protection(clean, rng=torch.Generator().manual_seed(1))
    assert protection.deviation(sent) == pytest.approx(float((sent - clean).std()), rel=0.05)


def test_refused():
    victim = make("llama")
    with pytest.raises(BadInput, match="after block 1 to 2, got 3"):
        scan_prompts(victim, list(draw(1)), [3], [Protection()], public=draw(4))
    with pytest.raises(BadInput, match="at least one prompt"):
        scan_prompts(victim, [], [1], [Protection()], public=draw(4))
    with pytest.raises(BadInput, match="noise needs a positive size"):
        Protection("noise")
    bert = {
        "model_type": "bert",
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    model, space = load_text({**bert, "vocab_size": VOCAB}, length=LENGTH, language_model=True)
    with pytest.raises(Inapplicable, match="reads tokens that follow"):
        DecoderBlocks(Victim(model, space))
    with pytest.raises(Inapplicable, match="no list of blocks"):
        DecoderBlocks(Victim(torch.nn.Embedding(VOCAB, 3), Tokens(LENGTH, VOCAB)))


def test_nothing_of_a_pass_is_kept():
    blocks, ids = DecoderBlocks(make("llama")), draw(2)
    gc.collect()
    gc.disable()
    try:
        before = sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())
        for _ in range(3):
            blocks.features(ids, 1)
        assert sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects()) == before
    finally:
        gc.enable()
