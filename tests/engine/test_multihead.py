"""``nn.MultiheadAttention`` and what is built on it run by rules, in every layout, and equal autograd."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.engine import ByRules, Observed, Reference, VmapReplay, choose
from tests.engine.agreeing import Anything, agree, squared

SIZES = st.integers(1, 3)
QUICK = settings(max_examples=40, deadline=None, derandomize=True)


class Attends(nn.Module):
    """Self-attention over x (samples, positions, 6), in either layout; ``given`` are named arguments of the call."""

    def __init__(self, heads: int = 2, *, batch_first: bool = True, given: dict | None = None, **options) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, heads, batch_first=batch_first, **options)
        self.head, self.batch_first, self.given = nn.Linear(6, 3), batch_first, given or {}

    def forward(self, x: Tensor) -> Tensor:
        tokens = x if self.batch_first else x.transpose(0, 1)
        found, weights = self.attention(tokens, tokens, tokens, **self.given)
        scores = self.head(found if self.batch_first else found.transpose(0, 1)).flatten(1)
        return scores if weights is None else torch.cat([scores, weights.flatten(1)], 1)


@QUICK
@given(
    rows=SIZES, batch=SIZES, own=st.booleans(), positions=st.integers(1, 4), heads=st.sampled_from([1, 2, 3]),
    bias=st.booleans(), batch_first=st.booleans(), weights=st.booleans(), average=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_self_attention(rows, batch, own, positions, heads, bias, batch_first, weights, average, dtype):
    """Also where there are as many positions as samples, and where the weights it gives are used."""
    given = {"need_weights": weights, "average_attn_weights": average}
    model = Attends(heads, batch_first=batch_first, bias=bias, given=given, dropout=0.5)  # not in eval mode
    fast = agree(model, (positions, 6), rows=rows, batch=batch, own=own, dtype=dtype)
    assert fast.lifted == {}  # linear layers all the way


class OnEncoder(nn.Module):
    """What people build: tokens, positions, torch's encoder, the mean or the first of its tokens."""

    def __init__(self, *, batch_first: bool = True, depth: int = 2, first: bool = False, **options) -> None:
        super().__init__()
        self.batch_first, self.first = batch_first, first
        self.embed, self.head = nn.Linear(3, 6), nn.Linear(6, 3)
        self.positions = nn.Parameter(torch.zeros(1, 4, 6) if batch_first else torch.zeros(4, 1, 6))
        layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=batch_first, **{"dropout": 0.0, **options})
        self.encoder = nn.TransformerEncoder(layer, depth, nn.LayerNorm(6), enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x) if self.batch_first else self.embed(x).permute(1, 0, 2)
        tokens = self.encoder(tokens + self.positions)
        if self.first:
            return self.head(tokens[:, 0] if self.batch_first else tokens[0])
        return self.head(tokens.mean(1 if self.batch_first else 0))


@QUICK
@given(
    rows=SIZES, batch=st.integers(1, 4), own=st.booleans(), batch_first=st.booleans(), norm_first=st.booleans(),
    bias=st.booleans(), activation=st.sampled_from(["gelu", F.silu]), first=st.booleans(),
    mode=st.sampled_from(["eval", "train"]),
)  # fmt: skip
def test_encoder(rows, batch, own, batch_first, norm_first, bias, activation, first, mode):
    options = {"batch_first": batch_first, "norm_first": norm_first, "bias": bias, "activation": activation}
    fast = agree(OnEncoder(first=first, **options), (4, 3), rows=rows, batch=batch, own=own, mode=mode)
    assert set(fast.lifted) == {"positions"}


def causal(length: int) -> Tensor:
    return torch.ones(length, length).triu(1).bool()


CALLS = {
    "causal": {"attn_mask": causal(4)},
    "causal hint": {"attn_mask": causal(4), "is_causal": True, "need_weights": False},
    "numbers": {"attn_mask": torch.linspace(-1, 1, 16).view(4, 4).double()},
    "numbers without weights": {"attn_mask": torch.linspace(-1, 1, 16).view(4, 4).double(), "need_weights": False},
}
MADE = {
    "keys and values added": {"add_bias_kv": True},
    "a zero added": {"add_zero_attn": True},
    "both, positions first": {"add_bias_kv": True, "add_zero_attn": True, "batch_first": False},
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_masks(call, batch_first):
    agree(Attends(batch_first=batch_first, given=CALLS[call]), (4, 6), rows=3, batch=2, own=False)


@pytest.mark.parametrize("made", MADE)
def test_added_keys_go_restart_by_restart(made):
    fast = agree(Attends(**MADE[made]), (4, 6), rows=3, batch=2, own=True)
    assert "attention.in_proj_weight" in fast.lifted


class Padded(nn.Module):
    """Leaves out the last positions, of each sample as many as its values tell, and those ahead by a mask for each head."""

    def __init__(self, *, by_head: bool, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=batch_first)
        self.by_head, self.batch_first = by_head, batch_first

    def forward(self, x: Tensor) -> Tensor:
        padded = torch.arange(4) > 1 + (x.detach().sum((1, 2)) > 0)[:, None]
        heads = causal(4).expand(2 * len(x), -1, -1) if self.by_head else None
        tokens = x if self.batch_first else x.transpose(0, 1)
        found, weights = self.attention(tokens, tokens, tokens, key_padding_mask=padded, attn_mask=heads)
        return torch.cat([(found if self.batch_first else found.transpose(0, 1)).flatten(1), weights.flatten(1)], 1)


@pytest.mark.parametrize("by_head", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_masks_of_each_sample(by_head, batch_first):
    agree(Padded(by_head=by_head, batch_first=batch_first), (4, 6), rows=3, batch=2, own=False)


class Reads(nn.Module):
    """A learned query reads other tokens, as heads that pool by attention do."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.probe, self.narrow = nn.Parameter(torch.zeros(1, 1, 6)), nn.Linear(6, options.get("kdim", 6))
        self.attention = nn.MultiheadAttention(6, 3, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        keys = self.narrow(x)
        values = keys if self.attention.vdim == keys.shape[-1] else x
        return self.attention(self.probe.expand(len(x), -1, -1), keys, values, need_weights=False)[0][:, 0]


@pytest.mark.parametrize("options", [{}, {"kdim": 4}, {"kdim": 4, "vdim": 4, "bias": False}], ids=str)
def test_a_query_that_is_not_the_keys(options):
    agree(Reads(**options), (4, 6), rows=3, batch=2, own=True)


class QuickGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    """A block of OpenAI's CLIP, positions before samples."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.ln_1, self.ln_2 = nn.MultiheadAttention(6, 2), nn.LayerNorm(6), nn.LayerNorm(6)
        self.mlp = nn.Sequential(nn.Linear(6, 12), QuickGELU(), nn.Linear(12, 6))

    def forward(self, x: Tensor) -> Tensor:
        normal = self.ln_1(x)
        x = x + self.attn(normal, normal, normal, need_weights=False, attn_mask=None)[0]
        return x + self.mlp(self.ln_2(x))


class Tower(nn.Module):
    """The vision tower of CLIP: class embedding, positions, blocks, a projection that is a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 2, 2, bias=False)
        self.class_embedding, self.positional_embedding = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(5, 6))
        self.ln_pre, self.ln_post = nn.LayerNorm(6), nn.LayerNorm(6)
        self.blocks, self.proj = nn.Sequential(Block(), Block()), nn.Parameter(torch.zeros(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x).flatten(2).permute(0, 2, 1)
        zeros = torch.zeros(x.shape[0], 1, x.shape[-1], dtype=x.dtype)
        x = self.ln_pre(torch.cat([self.class_embedding.to(x.dtype) + zeros, x], 1) + self.positional_embedding)
        x = self.blocks(x.permute(1, 0, 2)).permute(1, 0, 2)
        return self.ln_post(x[:, 0, :]) @ self.proj


def test_a_tower_like_clips():
    fast = agree(Tower(), (1, 4, 4), rows=3, batch=2, own=False)
    assert not any(name.startswith("blocks") for name in fast.lifted)


def torchvision_vit() -> nn.Module:
    from leakgauge.integrations.torchvision_guest import invite_torchvision

    invite_torchvision()
    models = pytest.importorskip("torchvision.models")
    return models.VisionTransformer(8, 4, 2, 2, 12, 16, num_classes=3)


def test_torchvisions_vision_transformer():
    agree(torchvision_vit(), (3, 8, 8), rows=3, batch=2, own=False)


class AcrossSamples(nn.Module):
    """Positions first is the default of PyTorch: with samples first, as here, each sample attends to the others of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def test_samples_that_attend_to_each_other_do_so_within_a_restart():
    agree(AcrossSamples(), (4, 6), rows=3, batch=2, own=False)


class SamplesLast(nn.Module):
    """A convolution along the samples, which are the last dimension; its kernel of one mixes none."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.shift = nn.Conv1d(1, 2, 1), nn.Parameter(torch.zeros(2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (torch.tanh(self.conv(x.t().unsqueeze(1))) + self.shift).mean(0).t()


def test_a_rule_that_wants_samples_first_is_not_used_where_they_are_last():
    fast = agree(SamplesLast(), (6,), rows=3, batch=2, own=False)
    assert set(fast.lifted) == {"conv.weight", "conv.bias", "shift"}


def test_what_enters_a_captured_layer_is_what_enters_it_in_the_reference():
    victim = Victim(OnEncoder(batch_first=False).double(), Anything(4, 3), loss=squared)
    observed = Observed({n: torch.ones_like(p) for n, p in victim.parameters().items()})
    x, y, name = torch.randn(3, 2, 4, 3, dtype=torch.float64), torch.zeros(3, 2), "encoder.layers.1.norm1"
    ours = ByRules(victim, observed, (name,))(x, y).inputs(name)
    torch.testing.assert_close(ours, Reference(victim, Gradient(), observed, (name,))(x, y).inputs(name))


# --- which path is chosen


def chosen(model: nn.Module, shape: tuple[int, ...], *, mode="eval", rows: int = 3, batch: int = 2):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        victim = Victim(model, Pixels(shape), mode=mode)
        y = torch.randint(3, (rows, batch))
        seen = share(victim, Gradient(), torch.rand(batch, *shape), y[0])
        x = torch.randn(rows, batch, *shape)
        return choose(victim, Gradient(), Observed.check(seen.signal, victim), x, y)


class OfAnImage(nn.Module):
    """The rows of an image are its tokens."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x[:, 0])


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_models_on_torchs_attention_take_the_rules(mode, batch_first):
    """In train mode with the dropout of PyTorch's defaults, which is left out of the comparison."""
    encoder = OfAnImage(OnEncoder(batch_first=batch_first, dropout=0.1))
    assert chosen(encoder, (1, 4, 3), mode=mode).note == "replay: layer rules"
    attends = OfAnImage(Attends(batch_first=batch_first, dropout=0.1))
    assert chosen(attends, (1, 4, 6), mode=mode).note == "replay: layer rules"
    assert chosen(torchvision_vit(), (3, 8, 8), mode=mode).note == "replay: layer rules"


@pytest.mark.parametrize("weights", [True, False])
def test_dropout_within_attention_is_drawn_for_each_restart(weights):
    model = Attends(dropout=0.5, given={"need_weights": weights}).double()
    victim = Victim(model, Anything(4, 6), loss=squared, mode="train")
    observed = Observed({n: torch.ones_like(p) for n, p in victim.parameters().items()})
    x = torch.randn(1, 1, 4, 6, dtype=torch.float64).expand(4, 2, -1, -1)
    found = ByRules(victim, observed)(x, torch.zeros(4, 2))
    assert len(found.square(dict.fromkeys(observed.signal, 1.0)).unique()) == 4
    assert ("attention.in_proj_weight" in found.lifted) == weights  # then they must be those of the same draw


class FixedMask(nn.Module):
    """Keeps a mask for the two samples of a client's batch."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.attention, self.name = nn.MultiheadAttention(6, 2, batch_first=True), name
        shape = (2, 4) if name == "key_padding_mask" else (4, 4, 4)
        self.register_buffer("mask", torch.linspace(-1, 1, 8 if len(shape) == 2 else 64).view(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False, **{self.name: self.mask})[0].flatten(1)


@pytest.mark.parametrize("name", ["key_padding_mask", "attn_mask"])
def test_a_mask_for_one_batch_is_refused_with_the_reason_and_mapped(name):
    choice = chosen(OfAnImage(FixedMask(name)), (1, 4, 6))
    assert isinstance(choice.replay, VmapReplay)
    reason = "layer rules: RuntimeError: attention has a mask for 2 samples, but all restarts together have 6"
    assert choice.note == f"replay: vmap; {reason}"
