"""The set of tokens is read off the rows that are not zero; everything beyond it is called an estimate."""

import pytest
import torch

from leakgauge.attacks import bag_of_tokens
from leakgauge.attacks.bag_of_tokens import fill_places
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Victim, share
from leakgauge.defenses import GaussianNoise, Withhold
from leakgauge.errors import Inapplicable
from leakgauge.integrations.huggingface import load_text
from leakgauge.models import NextToken


@pytest.mark.parametrize("kind", ["bert", "gpt2", "standard", "a"])
@pytest.mark.parametrize("channel", [Gradient(), FedAvg(steps=3, lr=0.1, minibatch=1)], ids=repr)
@pytest.mark.parametrize("count", [1, 3])
def test_the_set_is_exact_for_batches_and_local_steps(kind, channel, count, text_victim, sentences):
    victim, x = text_victim(kind), sentences(count)
    result = bag_of_tokens()(victim, share(victim, channel, x, torch.arange(count)))
    assert result.x.shape == x.shape
    assert set(result.x.flatten().tolist()) == set(x.flatten().tolist())
    assert result.notes[0].startswith("a bag")
    assert any("an estimate" in note for note in result.notes)


def test_counts_are_exact_where_every_token_is_another(text_victim):
    victim, x = text_victim("standard"), torch.arange(40, 72, 2)[None]
    result = bag_of_tokens()(victim, share(victim, Gradient(), x.flip(1), torch.tensor([1])))
    assert result.x.tolist() == x.tolist()
    assert result.y.tolist() == [1]
    assert len(result.notes) == 1


def test_places_are_shared_out_by_size():
    assert fill_places(torch.tensor([1.0, 9.0, 4.0]), 3).tolist() == [0, 1, 2]
    assert fill_places(torch.tensor([1.0, 9.0, 4.0]), 5).tolist() == [0, 1, 1, 1, 2]
    assert fill_places(torch.tensor([1.0, 9.0, 4.0]), 2).tolist() == [1, 2]


def test_padding_is_not_seen(text_victim, sentences):
    victim, x = text_victim("bert"), sentences()
    x[:, 8:] = 0
    result = bag_of_tokens()(victim, share(victim, Gradient(), x, torch.tensor([1])))
    assert set(result.x.flatten().tolist()) == set(x[:, :8].flatten().tolist())
    assert any("token 0 is padding" in note for note in result.notes)


def test_rows_larger_than_noise_are_taken(text_victim, sentences):
    victim, x = text_victim("gpt2"), sentences()
    seen = share(victim, Gradient(), x, torch.tensor([1]), defenses=[GaussianNoise(relative=1e-3)])
    result = bag_of_tokens()(victim, seen)
    assert set(result.x.flatten().tolist()) == set(x.flatten().tolist())
    assert any("larger than the noise" in note for note in result.notes)


@pytest.mark.parametrize("kind", ["own", "bert", "gpt2"])
def test_a_tied_output_layer_is_seen_through(kind, tied_victim, sentences):
    victim, x = tied_victim(kind), sentences()
    result = bag_of_tokens()(victim, share(victim, Gradient(), x, x.roll(-1, 1)))
    assert set(result.x.flatten().tolist()) == set(x.flatten().tolist())
    assert any("is also the output layer" in note for note in result.notes)


def test_more_predicted_places_than_the_model_is_wide_are_refused(tied_victim, sentences):
    victim, x = tied_victim("gpt2"), sentences(3)
    with pytest.raises(Inapplicable, match=r"also the output layer|stands out"):
        bag_of_tokens()(victim, share(victim, Gradient(), x, x.roll(-1, 1)))


@pytest.mark.parametrize(
    ("width", "missing"), [(48, None), (32, 13), (64, 3)], ids=["most is hidden", "half is hidden", "little is hidden"]
)
def test_what_a_tied_output_hides_of_a_batch_is_said_or_refused(width, missing):
    """The recall is low where few directions are left. A server that sees few tokens must not take them for all."""
    count, length, vocab = (2, 16, 300) if width == 32 else (4, 12, 300)
    settings = {"model_type": "gpt2", "vocab_size": vocab, "n_embd": width, "n_layer": 2, "n_head": 4}
    model, space = load_text({**settings, "bos_token_id": 1, "eos_token_id": 2}, length=length, language_model=True)
    victim = Victim(model, space, loss=NextToken())
    x = space.start(count, torch.Generator().manual_seed(3))
    seen = share(victim, Gradient(), x, x)
    if missing is None:
        with pytest.raises(Inapplicable, match=r"hides most of its rows: \d+ are certainly of tokens, \d+ others"):
            bag_of_tokens()(victim, seen)
        return
    result = bag_of_tokens()(victim, seen)
    found, sent = set(result.x.flatten().tolist()), set(x[:, :-1].flatten().tolist())
    assert found <= sent
    (said,) = [int(note.rpartition(" ")[2]) for note in result.notes if note.startswith("rows that may be of tokens")]
    assert said == missing
    assert len(sent - found) <= said


def test_a_withheld_table_is_refused(text_victim, sentences):
    victim, x = text_victim("gpt2"), sentences()
    seen = share(victim, Gradient(), x, torch.tensor([1]), defenses=[Withhold(("token_embedding",))])
    with pytest.raises(Inapplicable, match=r"not shared: model\.transformer\.wte\.weight"):
        bag_of_tokens()(victim, seen)
