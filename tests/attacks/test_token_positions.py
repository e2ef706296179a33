"""Tokens and order from two look-up tables: exact on standard models, refused with the reason where it cannot work."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from leakgauge.attacks import token_positions
from leakgauge.attacks.token_positions import equal_rows
from leakgauge.audit import score_text
from leakgauge.channels import SGD, FedAvg, Gradient
from leakgauge.core import Pixels, Tokens, Victim, share
from leakgauge.defenses import GaussianNoise, Withhold
from leakgauge.errors import Inapplicable
from leakgauge.models import MLP, TextTransformer
from leakgauge.testing import untouched

ONLY = "every row is explained exactly, and no other order of the tokens explains them"
LABEL = torch.tensor([2])


def attacked(victim, x, *, channel=None, defenses=()):
    return token_positions()(victim, share(victim, channel or Gradient(), x, LABEL[: len(x)], defenses=defenses))


@pytest.mark.parametrize("length", [16, 64])
@pytest.mark.parametrize("kind", ["bert", "roberta", "gpt2", "standard", "a"])
def test_every_token_and_its_place(kind, length, text_victim, sentences):
    for seed in range(3):
        victim, x = text_victim(kind, length=length, seed=seed), sentences(length=length, seed=seed)
        result = attacked(victim, x)
        scores = score_text(result, x, LABEL)
        assert (scores.tokens, scores.order, scores.labels) == ((1.0,), (1.0,), (1.0,))
        assert result.notes == (ONLY,)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    width=st.sampled_from([8, 16, 24]), heads=st.sampled_from([1, 2, 4]), length=st.integers(1, 24),
    vocab=st.sampled_from([5, 40, 200]), residual=st.booleans(), first=st.booleans(), seed=st.integers(0, 50),
)  # fmt: skip
def test_exact_over_widths_heads_lengths_and_vocabularies(width, heads, length, vocab, residual, first, seed):
    """With few tokens of a small vocabulary nearly all repeat, and with narrow widths there are more places than dimensions."""
    model = TextTransformer(
        vocab=vocab, length=length, width=width, heads=heads, residual=residual, first_token=first, classes=3, depth=2,
        seed=seed,
    ).double()  # fmt: skip
    victim = Victim(model, Tokens(length, vocab))
    x = torch.randint(vocab, (1, length), generator=torch.Generator().manual_seed(seed))
    result = attacked(victim, x)
    if ONLY in result.notes:
        assert result.x.tolist() == x.tolist()
    else:
        assert "may explain them too" in result.notes[0] or "best guess" in result.notes[0]
    if length <= width // 2:
        assert result.x.tolist() == x.tolist()


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
@pytest.mark.parametrize(
    "channel",
    [FedAvg(steps=1, lr=0.1), FedAvg(steps=3, lr=0.05), FedAvg(steps=4, lr=0.05, optimizer=SGD(momentum=0.9))],
    ids=repr,
)
def test_local_steps_on_the_one_sentence_do_no_harm(kind, channel, text_victim, sentences):
    victim, x = text_victim(kind), sentences()
    assert attacked(victim, x, channel=channel).x.tolist() == x.tolist()


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_dropout_does_no_harm(kind, text_victim, sentences):
    """Hugging Face drops after the sum, so both gradients see the same mask."""
    victim, x = text_victim(kind, mode="train"), sentences()
    assert victim.depends_on_mode()
    state = torch.get_rng_state()
    with untouched(victim):
        assert attacked(victim, x).x.tolist() == x.tolist()
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(("kind", "padding"), [("bert", 0), ("roberta", 1)])
def test_padding_is_what_remains(kind, padding, text_victim, sentences):
    victim, x = text_victim(kind), sentences()
    x[:, 10:] = padding
    result = attacked(victim, x)
    assert result.x.tolist() == x.tolist()
    assert any("padding" in note or "got no gradient" in note for note in result.notes)


def test_positions_that_nothing_reads_are_said_to_be_unknown(text_victim, sentences):
    """GPT-2 classifies at the last token that is not padding; what follows has no gradient."""
    victim, x = text_victim("gpt2", pad_token_id=5), sentences()
    x[x == 5] = 6
    x[:, 12:] = 5
    result = attacked(victim, x)
    assert result.x[:, :12].tolist() == x[:, :12].tolist()
    assert any(note.startswith("4 positions got no gradient") for note in result.notes)


def test_small_noise_is_measured_and_seen_through_and_large_noise_is_not(text_victim, sentences):
    victim, x = text_victim("gpt2"), sentences()
    small = attacked(victim, x, defenses=[GaussianNoise(relative=1e-4)])
    assert small.x.tolist() == x.tolist()
    assert "within the noise" in small.notes[0]
    assert any("treated as noise" in note for note in small.notes)
    large = attacked(victim, x, defenses=[GaussianNoise(relative=0.3)])
    assert score_text(large, x, LABEL).tokens[0] < 0.5
    assert not any("no other order" in note for note in (*small.notes, *large.notes))


def test_equal_gradients_of_two_places_are_noticed():
    """A model that adds up its tokens reads every place alike."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            inner = TextTransformer(vocab=20, length=4, width=8, heads=2, classes=3)
            self.token_embed, self.pos_embed, self.head = inner.token_embed, inner.pos_embed, inner.head
            self.blocks = inner.blocks  # unused; makes the model known

        def forward(self, ids):
            return self.head((self.token_embed(ids) + self.pos_embed).sum(1))

    victim = Victim(Sum(), Tokens(4, 20))
    result = attacked(victim, torch.tensor([[3, 4, 5, 6]]))
    assert not any("no other order" in note for note in result.notes)
    assert "4 positions share their gradient with another: their tokens may be swapped" in result.notes
    assert sorted(result.x[0].tolist()) == [3, 4, 5, 6]


def test_equal_rows_are_counted():
    assert equal_rows(torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 1.0], [1.0, 2.0]])) == 3
    assert equal_rows(torch.eye(3)) == 0


def test_a_batch_is_refused(text_victim, sentences):
    victim = text_victim("bert")
    seen = share(victim, Gradient(), sentences(2), torch.tensor([0, 1]))
    with pytest.raises(Inapplicable, match="2 sentences of a batch are summed by position"):
        token_positions()(victim, seen)


@pytest.mark.parametrize("kind", ["own", "bert", "gpt2"])
def test_a_tied_output_layer_is_seen_through(kind, tied_victim, sentences):
    for seed in range(3):
        victim, x = tied_victim(kind), sentences(seed=seed)
        result = token_positions()(victim, share(victim, Gradient(), x, x.roll(-1, 1)))
        assert result.x.tolist() == x.tolist()
        assert result.y is None
        assert any("is also the output layer" in note for note in result.notes)


def test_a_tied_output_layer_that_predicts_too_many_places_is_refused(tied_victim, sentences):
    victim, x = tied_victim("gpt2", length=40), sentences(length=40)
    seen = share(victim, Gradient(), x, x.roll(-1, 1))
    with pytest.raises(Inapplicable, match=r"also the output layer|as many places as the model is wide"):
        token_positions()(victim, seen)


@pytest.mark.parametrize("role", ["token_embedding", "position_embedding"])
def test_a_withheld_table_is_refused(role, text_victim, sentences):
    with pytest.raises(Inapplicable, match=r"not shared: model\.bert\.embeddings"):
        attacked(text_victim("bert"), sentences(), defenses=[Withhold((role,))])


@pytest.mark.parametrize("name", ["pos_embed", "token_embed.weight"])
def test_a_fixed_table_is_refused(name, text_victim, sentences):
    model = text_victim("standard").model
    model.get_parameter(name).requires_grad_(False)
    with pytest.raises(Inapplicable, match="is fixed"):
        attacked(Victim(model, Tokens(16, 300)), sentences())


def test_models_of_other_kinds_are_refused():
    images = Victim(MLP(shape=(1, 4, 4), classes=3), Pixels((1, 4, 4)))
    with pytest.raises(Inapplicable, match="takes images"):
        attacked(images, torch.rand(1, 1, 4, 4))
    stranger = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3))
    with pytest.raises(Inapplicable, match="no token embedding of a known family"):
        attacked(Victim(stranger, Tokens(3, 9)), torch.tensor([[1, 2, 3]]))


def test_embeddings_that_are_not_simply_added_are_refused(text_victim, sentences):
    class Scaled(nn.Embedding):
        def forward(self, ids):
            return 8 * super().forward(ids)

    model = text_victim("standard").model
    scaled = Scaled(300, 32)
    scaled.load_state_dict(model.token_embed.state_dict())
    model.token_embed = scaled
    with pytest.raises(Inapplicable, match="not simply added"):
        attacked(Victim(model, Tokens(16, 300)), sentences())
    model = text_victim("standard").model
    model.token_embed.scale_grad_by_freq = True  # divides a row by the number of its places
    with pytest.raises(Inapplicable, match="not simply added"):
        attacked(Victim(model, Tokens(16, 300)), sentences())


def test_a_gradient_of_zero_names_nothing(text_victim, sentences):
    victim = text_victim("standard")
    seen = share(victim, Gradient(), sentences(), LABEL, defenses=[Zero()])
    with pytest.raises(Inapplicable, match="stands out"):
        token_positions()(victim, seen)


class Zero:
    def __call__(self, signal, /, *, rng):
        return {name: torch.zeros_like(value) for name, value in signal.items()}
