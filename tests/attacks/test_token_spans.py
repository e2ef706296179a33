"""Sentences of whole batches, read off spans: exact and certified where the stated limits allow, refused or called a guess elsewhere."""

import gc
import importlib
import weakref

import pytest
import torch
from torch import nn

from leakgauge.attacks import sentences, span_limits, token_spans
from leakgauge.channels import FedAvg, Gradient
from leakgauge.channels.optimizers import Adam
from leakgauge.core import Tokens, Victim, share
from leakgauge.defenses import GaussianNoise, Withhold
from leakgauge.errors import Inapplicable
from leakgauge.integrations.huggingface import load_text
from leakgauge.inversion import readers, span_levels
from leakgauge.inversion.readers import find_layout, inputs_of
from leakgauge.models import NextToken
from leakgauge.testing import tiny_case

attack_module = importlib.import_module("leakgauge.attacks.token_spans")  # the package names the function so
VOCAB, LENGTH = 300, 8
SETTINGS = {
    "gpt2": {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "bos_token_id": 1, "eos_token_id": 1},
    "llama": {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "pad_token_id": None,
    },
    "bert": {
        "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 128,
    },
}  # fmt: skip


def make(kind: str, *, language_model: bool = False, frozen: tuple[str, ...] = (), **options) -> Victim:
    model, space = load_text(
        {**SETTINGS[kind], "vocab_size": VOCAB}, length=LENGTH, classes=2, language_model=language_model
    )
    for name, parameter in model.named_parameters():
        if any(part in name for part in frozen):
            parameter.requires_grad_(False)
    return Victim(model, space, **options)


def draw(count: int, *, seed: int = 0) -> torch.Tensor:
    """Frequent and rare tokens, some of them more than once."""
    frequency = 1 / torch.arange(1, VOCAB - 2).float()
    rng = torch.Generator().manual_seed(seed)
    return 3 + torch.multinomial(frequency, count * LENGTH, replacement=True, generator=rng).view(count, LENGTH)


def rows(ids: torch.Tensor) -> list[list[int]]:
    return sorted(ids.tolist())


@pytest.mark.parametrize(("kind", "count"), [("gpt2", 1), ("gpt2", 5), ("llama", 1), ("llama", 5), ("bert", 1)])
@pytest.mark.parametrize("channel", [Gradient(), FedAvg(steps=1, lr=0.1)], ids=["gradient", "one step"])
def test_batches_are_exact_and_certified(kind, count, channel):
    victim, x = make(kind), draw(count)
    found = token_spans()(victim, share(victim, channel, x, torch.arange(count) % 2))
    assert rows(found.x) == rows(x)
    assert found.certified.all()
    assert any("explain every direction" in note for note in found.notes)


def test_two_sentences_of_an_encoder_are_told_apart():
    victim, x = make("bert"), draw(2, seed=1)
    found = token_spans()(victim, share(victim, Gradient(), x, torch.arange(2)))
    assert rows(found.x) == rows(x)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_frozen_embeddings_do_not_help(kind):
    victim, x = make(kind, frozen=("wte", "wpe", "embed_tokens")), draw(3)
    seen = share(victim, Gradient(), x, torch.tensor([0, 1, 0]))
    assert not any("wte" in name or "embed_tokens" in name for name in seen.signal)
    found = token_spans()(victim, seen)
    assert rows(found.x) == rows(x)
    assert found.certified.all()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_of_a_language_model_all_but_the_last_token_is_read(kind):
    """The last token is only predicted: no layer gets a gradient from it."""
    victim, x = make(kind, language_model=True, loss=NextToken()), draw(3, seed=2)
    found = token_spans()(victim, share(victim, Gradient(), x, x))
    assert rows(found.x[:, :-1]) == rows(x[:, :-1])
    assert not found.certified.any()
    assert any("no gradient of their own" in note for note in found.notes)


class Masked(nn.Module):
    """Shorter sentences are filled up with token 0, which nothing attends to; the last real token is classified."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = ids != 0
        return self.inner.model(input_ids=ids, attention_mask=mask.long()).logits


def test_short_sentences_end_where_their_tokens_end():
    model, space = load_text({**SETTINGS["gpt2"], "vocab_size": VOCAB, "pad_token_id": 0}, length=LENGTH, classes=2)
    victim, x = Victim(Masked(model), space), draw(3, seed=4)
    x[1, 5:], x[2, 3:] = 0, 0
    found = token_spans(padding=0)(victim, share(victim, Gradient(), x, torch.tensor([0, 1, 1])))
    assert rows(found.x) == rows(x)
    assert found.certified.all()


def test_equal_sentences_are_not_counted_twice():
    victim, x = make("gpt2"), draw(2).repeat(2, 1)
    found = token_spans()(victim, share(victim, Gradient(), x, torch.tensor([0, 1, 0, 1])))
    assert rows(found.x) == rows(x)
    assert found.certified.sum() == 2
    assert any("2 different sentences" in note for note in found.notes)


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter, named as in peft: W z + B A z."""

    def __init__(self, base: nn.Linear, rank: int, *, second: float) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base.out_features, bias=False)})
        nn.init.normal_(self.lora_A["default"].weight, std=0.1)
        nn.init.normal_(self.lora_B["default"].weight, std=second)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.base_layer(z) + self.lora_B["default"](self.lora_A["default"](z))


def adapted(rank: int, *, second: float) -> Victim:
    """A decoder of which only adapters of q and v are trained."""
    torch.manual_seed(0)
    model, space = load_text({**SETTINGS["llama"], "vocab_size": VOCAB}, length=LENGTH, classes=2)
    model.requires_grad_(False)
    for layer in model.model.model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.self_attn, name, Adapted(getattr(layer.self_attn, name), rank, second=second))
    return Victim(model, space)


def test_adapters_leak_as_many_tokens_as_their_ranks_have_in_all():
    x = draw(2)
    distinct = len(x.unique())
    for rank, fits in ((distinct // 2 - 1, False), (x.numel(), True)):
        victim = adapted(rank, second=0.1)
        seen = share(victim, Gradient(), x, torch.tensor([0, 1]))
        if not fits:
            with pytest.raises(Inapplicable, match="ranks of the adapters"):
                token_spans()(victim, seen)
            continue
        limit = span_limits(victim, seen)[0]
        assert (limit.adapters, limit.rows, limit.first_step, limit.counts) == (
            True,
            2 * rank,
            False,
            "distinct tokens",
        )
        assert rows(token_spans()(victim, seen).x) == rows(x)


def test_in_the_first_step_only_the_second_factor_leaks():
    x = draw(2)
    victim = adapted(40, second=0.0)
    seen = share(victim, Gradient(), x, torch.tensor([0, 1]))
    limits = span_limits(victim, seen)
    assert all(limit.first_step and limit.width == 40 and limit.most in (32, 39) for limit in limits)  # v has 32 rows
    assert rows(token_spans()(victim, seen).x) == rows(x)
    small = adapted(8, second=0.0)
    with pytest.raises(Inapplicable, match="all 8 directions"):
        token_spans()(small, share(small, Gradient(), x, torch.tensor([0, 1])))


def test_limits_are_stated_before_and_hold():
    victim, x = make("gpt2"), draw(12)
    few, many = (share(victim, Gradient(), ids, torch.arange(len(ids)) % 2) for ids in (x[:3], x))
    tokens, sentences = span_limits(victim, few)
    assert (tokens.level, sentences.level, tokens.width, tokens.most) == ("tokens", "sentences", 64, 63)
    assert tokens.by_place
    assert tokens.fits
    assert tokens.certain
    assert 20 <= sentences.rank <= 26
    tokens, sentences = span_limits(
        victim, many
    )  # distinct tokens and places are still fewer than 64, all tokens are 96
    assert (tokens.fits, sentences.fits, sentences.certain) == (True, False, False)
    found = token_spans()(victim, many)
    assert set(x.flatten().tolist()) <= set(found.x.flatten().tolist())
    assert not found.certified.any()
    assert any("no sentence was put together" in note for note in found.notes)
    other = torch.arange(96).view(12, LENGTH) + 3
    with pytest.raises(Inapplicable, match=r"fills all 6\d directions"):
        token_spans()(victim, share(victim, Gradient(), other, torch.arange(12) % 2))


@pytest.mark.parametrize(("relative", "whole"), [(1e-4, True), (0.3, False)])
def test_noise_is_measured_and_what_it_hides_is_a_guess(relative, whole):
    victim, x = make("gpt2"), draw(2)
    seen = share(victim, Gradient(), x, torch.arange(2), defenses=[GaussianNoise(relative=relative)])
    found = token_spans()(victim, seen)
    assert (rows(found.x) == rows(x)) == whole
    assert bool(found.certified.all()) == bool(found.certified.any()) == whole
    assert any("a best guess" in note for note in found.notes) == (not whole)


@pytest.mark.parametrize(
    ("kind", "options", "channel", "reason"),
    [
        ("gpt2", {"mode": "train"}, Gradient(), "dropout"),
        ("gpt2", {}, FedAvg(steps=1, lr=0.1, optimizer=Adam()), "uses Adam"),
        ("gpt2", {"frozen": ("attn",)}, Gradient(), "reads single tokens"),
    ],
)
def test_refusals_name_the_reason(kind, options, channel, reason):
    victim, x = make(kind, **options), draw(2)
    with pytest.raises(Inapplicable, match=reason):
        token_spans()(victim, share(victim, channel, x, torch.tensor([0, 1])))


def wide(kind: str, width: int = 160) -> Victim:
    more = {"n_embd": width} if kind == "gpt2" else {"hidden_size": width, "intermediate_size": 2 * width}
    model, space = load_text({**SETTINGS[kind], **more, "vocab_size": VOCAB}, length=LENGTH, classes=2)
    return Victim(model, space)


@pytest.mark.parametrize(("steps", "lr"), [(2, 0.01), (2, 0.3), (5, 0.03), (5, 0.3)])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_several_local_steps_are_read_while_all_their_inputs_fit_and_not_certified(kind, steps, lr):
    victim, x = wide(kind), draw(3)
    assert steps * x.numel() < 160
    seen = share(victim, FedAvg(steps=steps, lr=lr), x, torch.arange(3) % 2)
    found = token_spans()(victim, seen)
    assert rows(found.x) == rows(x)
    assert not found.certified.any()
    assert any(f"{steps} local steps" in note and "nothing is certified" in note for note in found.notes)
    assert all(limit.places == steps * x.numel() for limit in span_limits(victim, seen))


def test_steps_that_fill_all_directions_are_refused():
    victim, x = make("gpt2"), draw(6)
    with pytest.raises(Inapplicable, match="fills all"):
        token_spans()(victim, share(victim, FedAvg(steps=5, lr=1.0), x, torch.arange(6) % 2))


def test_of_minibatches_those_of_the_first_step_are_read():
    """Later ones are read at weights that only the client knows."""
    victim, x = wide("gpt2"), draw(3)
    found = token_spans()(victim, share(victim, FedAvg(steps=2, lr=0.1, minibatch=2), x, torch.arange(3) % 2))
    assert all(ids in found.x.tolist() for ids in x[:2].tolist())
    assert not found.certified.any()


def test_a_withheld_attention_is_refused():
    victim, x = make("gpt2"), draw(1)
    with pytest.raises(Inapplicable, match="reads single tokens"):
        token_spans()(victim, share(victim, Gradient(), x, torch.tensor([0]), defenses=[Withhold(("attention",))]))


def test_a_model_that_reads_one_place_of_its_last_block_is_refused(text_victim, sentences):
    victim = text_victim("standard", depth=1, heads=2)
    with pytest.raises(Inapplicable, match="mixes the places"):
        token_spans()(victim, share(victim, Gradient(), sentences(), torch.tensor([1])))


def test_images_are_refused():
    assert Tokens(3, 5).shape == (3,)
    from leakgauge.testing import tiny_case

    victim, x, y = tiny_case("mlp")
    with pytest.raises(Inapplicable, match="takes images"):
        token_spans()(victim, share(victim, Gradient(), x, y))


def test_a_sentence_longer_than_the_rank_does_not_hide_a_short_one():
    """The adversary's own sentence must not fill the directions of a first step."""
    model, space = load_text({**SETTINGS["llama"], "vocab_size": VOCAB}, length=24, language_model=True)
    model.requires_grad_(False)
    torch.manual_seed(0)
    for layer in model.model.model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.self_attn, name, Adapted(getattr(layer.self_attn, name), 16, second=0.0))
    victim = Victim(model, space, loss=NextToken(0))
    x = torch.nn.functional.pad(draw(1, seed=5), (0, 16))
    found = token_spans()(victim, share(victim, Gradient(), x, x))
    assert rows(found.x) == rows(x)


@pytest.mark.parametrize("twins", [False, True])
def test_a_token_that_is_read_like_another_is_not_certified(twins):
    """Nothing in the gradient says which of the two it was; with frozen embeddings no row names it either."""
    victim, x, y = tiny_case("text_deep")
    x = x.clone()
    x[0, 3] = 12
    table = victim.model.token_embed.weight
    table.requires_grad_(False)
    if twins:
        table[1] = table[12]
    found = token_spans()(victim, share(victim, Gradient(), x, y))
    assert found.certified.tolist() == [not twins]
    assert torch.equal(torch.where(found.x == 1, 12, found.x), torch.where(x == 1, 12, x))


def test_a_victim_is_freed_after_the_attack():
    victim, x, y = tiny_case("text_deep")
    token_spans()(victim, share(victim, Gradient(), x, y))
    gone = weakref.ref(victim)
    del victim
    gc.collect()
    assert gone() is None


class Bfloat16:
    def __call__(self, signal, /, *, rng):
        return {name: value.bfloat16().to(value.dtype) for name, value in signal.items()}


@pytest.mark.parametrize("case", [0, 1])
def test_an_end_that_repeats_its_token_is_not_certified(case):
    """In bfloat16 a sentence that goes on with its last token reads almost the same; it had been certified."""
    settings = {**SETTINGS["llama"], "intermediate_size": 96, "vocab_size": VOCAB}
    model, space = load_text(settings, length=LENGTH, language_model=True, seed=(1, 2)[case])
    victim = Victim(model, space, loss=NextToken(2))
    x = torch.tensor([
        [[296, 201, 3, 10, 2, 2, 2, 2], [50, 72, 29, 2, 2, 2, 2, 2], [3, 12, 223, 14, 2, 2, 2, 2]],
        [[217, 3, 4, 226, 6, 5, 2, 2], [5, 18, 9, 2, 2, 2, 2, 2], [222, 7, 27, 85, 2, 2, 2, 2]],
    ][case])  # fmt: skip
    found = token_spans(padding=2)(victim, share(victim, Gradient(), x, x, defenses=(Bfloat16(),)))
    assert rows(found.x) != rows(x)  # the case is what it says
    true = x.tolist()
    assert [ids for ids in found.x[found.certified].tolist() if ids not in true] == []
    plain = token_spans(padding=2)(victim, share(victim, Gradient(), x, x))
    assert rows(plain.x) == rows(x)
    assert bool(plain.certified.all())


@pytest.mark.parametrize("language_model", [False, True], ids=["classifier", "language model"])
def test_a_padding_token_of_zeros_is_in_no_span(language_model):
    """Gemma's padding has an embedding of zeros, which are in every span: with it as a candidate for every place nothing was found."""
    gemma = {
        "model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 96, "head_dim": 16, "vocab_size": VOCAB,
    }  # fmt: skip
    model, space = load_text(gemma, length=LENGTH, classes=None if language_model else 2, language_model=language_model)
    table = next(m for m in model.modules() if isinstance(m, nn.Embedding))
    assert not bool(table.weight[table.padding_idx].any())
    victim = Victim(model, space, loss=NextToken(0)) if language_model else Victim(model, space)
    x = draw(3)
    if language_model:
        x[:, -2:] = 0
    found = token_spans()(victim, share(victim, Gradient(), x, x if language_model else torch.arange(3) % 2))
    assert rows(found.x) == rows(x)
    assert bool(found.certified.all())


def test_nothing_of_a_pass_is_kept():
    """The exception that ends a pass had kept its frame and every tensor of it: a batch of 16 reviews took more than 20 GB."""
    victim = make("gpt2")
    layout = find_layout(victim, [name for name, _ in victim.model.named_parameters()], seed=0)
    gc.collect()
    gc.disable()
    try:
        before = sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())
        for _ in range(3):
            inputs_of(victim, draw(2), [layout.readings[-1].module])
        assert sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects()) == before
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_result_does_not_depend_on_how_much_is_read_at_once(kind, monkeypatch):
    victim, x = make(kind), draw(4)
    seen = share(victim, Gradient(), x, torch.arange(4) % 2)
    whole = token_spans()(victim, seen)
    for module, name, value in (
        (readers, "NUMBERS", 64 * LENGTH),  # one sentence
        (readers, "BESIDE", 3),
        (attack_module, "CHUNK", 2),
        (span_levels, "PLACES", 1),
    ):
        monkeypatch.setattr(module, name, value)
    again = make(kind)  # a probe is kept for each victim
    parts = token_spans()(again, seen)
    assert torch.equal(parts.x, whole.x)
    assert torch.equal(parts.certified, whole.certified)
    assert parts.stated == whole.stated


def test_of_one_sentence_after_several_steps_the_tables_are_read_first():
    victim, x = make("gpt2"), draw(1)
    found = sentences()(victim, share(victim, FedAvg(steps=3, lr=0.05), x, torch.tensor([1])))
    assert [one.name for one in found.raced if one.chosen] == ["token_positions"]
    assert rows(found.x) == rows(x)
    two = draw(2)
    found = sentences()(victim, share(victim, FedAvg(steps=2, lr=0.05), two, torch.arange(2)))
    assert [one.name for one in found.raced if one.chosen] == ["token_spans"]
