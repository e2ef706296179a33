"""Closed-form APRIL on text: exact for a bare first attention, refused or predicted to fail elsewhere."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.attacks import april_text
from leakgauge.attacks.april.text import nearest_rows
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Tokens, Victim, share
from leakgauge.defenses import Withhold
from leakgauge.errors import Inapplicable
from leakgauge.families import attention_first, find_roles
from leakgauge.models import TextTransformer

LABEL = torch.tensor([1])


def attacked(victim, x, *, channel=None, defenses=()):
    return april_text()(victim, share(victim, channel or Gradient(), x, LABEL, defenses=defenses))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    heads=st.integers(1, 4), wider=st.integers(0, 3), length=st.integers(1, 24), vocab=st.sampled_from([6, 50, 400]),
    bias=st.booleans(), depth=st.integers(2, 3), shared=st.booleans(), seed=st.integers(0, 50),
)  # fmt: skip
def test_exact_over_widths_heads_lengths_and_vocabularies(heads, wider, length, vocab, bias, depth, shared, seed):
    """With the token embedding's gradient the tokens are chosen among those sent, without it among all."""
    width = heads * (-(-(length + 2) // heads) + wider)
    model = TextTransformer(
        vocab=vocab, length=length, width=width, heads=heads, depth=depth, qkv_bias=bias, residual=False,
        position_std=1.0, classes=3, seed=seed,
    ).double()  # fmt: skip
    victim = Victim(model, Tokens(length, vocab))
    x = torch.randint(vocab, (1, length), generator=torch.Generator().manual_seed(seed))
    result = attacked(victim, x, defenses=[] if shared else [Withhold(("token_embedding",))])
    assert result.x.tolist() == x.tolist(), result.notes
    assert "identifiability" in result.notes[0]
    assert ("those with a gradient" if shared else f"of all {vocab} tokens") in result.notes[1]


def test_a_fixed_token_embedding_is_no_obstacle(text_victim, sentences):
    model = text_victim("a").model
    model.token_embed.weight.requires_grad_(False)
    x = sentences()
    result = attacked(Victim(model, Tokens(16, 300)), x)
    assert result.x.tolist() == x.tolist()
    assert result.y.tolist() == [1]


def test_padding_is_one_of_the_candidates(text_victim, sentences):
    victim, x = text_victim("a", padding=0), sentences()
    x[:, 12:] = 0
    assert attacked(victim, x).x.tolist() == x.tolist()


def test_one_local_step_does_as_well_and_several_are_refused(text_victim, sentences):
    victim, x = text_victim("a"), sentences()
    assert attacked(victim, x, channel=FedAvg(steps=1, lr=0.3)).x.tolist() == x.tolist()
    with pytest.raises(Inapplicable, match="several local steps"):
        attacked(victim, x, channel=FedAvg(steps=2))


def test_a_width_below_the_length_is_a_predicted_failure(text_victim, sentences):
    """A few tokens too many do no harm, since the nearest row is still the right one; many do."""
    for length, width, least, most in ((40, 32, 0.9, 1.0), (64, 16, 0.1, 0.8)):
        victim, x = text_victim("a", length=length, width=width), sentences(length=length)
        result = attacked(victim, x)
        assert f"{length} tokens are not determined by a width of {width}" in result.notes[0]
        assert least <= (result.x == x).double().mean() <= most


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_gpt2_with_its_attention_first_is_solved(kind, text_victim, sentences):
    """Its weights hold an output in a column, and what a token reads lies before it."""
    model = text_victim("gpt2").model
    victim = Victim(attention_first(model, find_roles(model)).to(kind), Tokens(16, 300))
    for seed in range(3):
        x = sentences(seed=seed)
        result = attacked(victim, x, defenses=[Withhold(("token_embedding",))])
        assert result.x.tolist() == x.tolist(), result.notes


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("bert", "between them"), ("standard", "between them"), ("gpt2", "between them")],
)
def test_standard_models_are_refused_with_the_reason(kind, reason, text_victim, sentences):
    with pytest.raises(Inapplicable, match=reason):
        attacked(text_victim(kind), sentences())


def test_a_residual_connection_is_refused(text_victim, sentences):
    model = text_victim("standard").model
    model.norm = torch.nn.Identity()
    with pytest.raises(Inapplicable, match="bypass it"):
        attacked(Victim(model, Tokens(16, 300)), sentences())


def test_dropout_between_the_sum_and_the_attention_is_refused(text_victim, sentences):
    x = sentences()
    assert attacked(text_victim("a", dropout=0.5), x).x.tolist() == x.tolist()
    with pytest.raises(Inapplicable, match="does not read the sum"):
        attacked(text_victim("a", dropout=0.5, mode="train"), x)


def test_a_tied_output_layer_does_no_harm(tied_victim, sentences):
    for seed in range(3):
        victim, x = tied_victim("a"), sentences(seed=seed)
        result = april_text()(victim, share(victim, Gradient(), x, x.roll(-1, 1)))
        assert result.x.tolist() == x.tolist()


def test_withheld_parts_and_batches_are_refused(text_victim, sentences):
    victim = text_victim("a")
    for role, name in (("position_embedding", "pos_embed"), ("attention", r"blocks\.0\.attn\.qkv\.weight")):
        with pytest.raises(Inapplicable, match=f"not shared: {name}"):
            attacked(victim, sentences(), defenses=[Withhold((role,))])
    with pytest.raises(Inapplicable, match="2 sentences of a batch"):
        april_text()(victim, share(victim, Gradient(), sentences(2), torch.tensor([0, 1])))


def test_nearest_rows_on_numbers_by_hand():
    table = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]])
    embedded = torch.tensor([[0.9, 0.2], [0.1, 1.4], [0.4, 0.0]])
    assert nearest_rows(embedded, table, torch.tensor([0, 1, 2])).tolist() == [1, 0, 0]
    assert nearest_rows(embedded, table, torch.tensor([1, 2])).tolist() == [1, 2, 1]
