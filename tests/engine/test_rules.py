"""Every layer rule equals autograd, restart by restart, over shapes, strides, padding, dilation, groups and dtypes."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from leakgauge.core import Victim
from leakgauge.engine import ByRules, Observed
from leakgauge.engine.fast import SMALL
from leakgauge.engine.rules.convolution import by_patches, convolve, patches
from leakgauge.engine.rules.sums import row_absolute, row_dot, row_square
from leakgauge.engine.rules.twice import gelu, normalise, softmax
from tests.engine.agreeing import Anything, agree, squared

SIZES = st.integers(1, 3)
QUICK = settings(max_examples=25, deadline=None, derandomize=True)


@QUICK
@given(
    rows=SIZES, batch=SIZES, own=st.booleans(), groups=st.sampled_from([1, 2]), inputs=SIZES, outputs=SIZES,
    kernel=st.tuples(SIZES, SIZES), stride=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 1)), dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    bias=st.booleans(), dtype=st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_convolution_2d(rows, batch, own, groups, inputs, outputs, kernel, stride, padding, dilation, bias, dtype):
    conv = nn.Conv2d(groups * inputs, groups * outputs, kernel, stride, padding, dilation, groups=groups, bias=bias)
    agree(conv, (groups * inputs, 6, 5), rows=rows, batch=batch, own=own, dtype=dtype)


@QUICK
@given(
    rows=SIZES, batch=SIZES, own=st.booleans(), kernel=SIZES, stride=SIZES, padding=st.integers(0, 2),
    dilation=st.integers(1, 2), bias=st.booleans(),
)  # fmt: skip
def test_convolution_1d(rows, batch, own, kernel, stride, padding, dilation, bias):
    conv = nn.Conv1d(2, 3, kernel, stride, padding, dilation, bias=bias)
    agree(conv, (2, 7), rows=rows, batch=batch, own=own)


@QUICK
@given(
    rows=SIZES, batch=SIZES, own=st.booleans(), leading=st.lists(SIZES, max_size=2), inputs=st.integers(1, 9),
    outputs=st.integers(1, 9), bias=st.booleans(),
)  # fmt: skip
def test_linear_with_any_leading_dimensions(rows, batch, own, leading, inputs, outputs, bias):
    agree(nn.Linear(inputs, outputs, bias=bias), (*leading, inputs), rows=rows, batch=batch, own=own)


@QUICK
@given(rows=SIZES, batch=SIZES, own=st.booleans(), two=st.booleans())
def test_layer_norm(rows, batch, own, two):
    norm = nn.LayerNorm((3, 4) if two else 4)
    agree(nn.Sequential(nn.Linear(4, 4), norm), (3, 4), rows=rows, batch=batch, own=own)


@QUICK
@given(rows=SIZES, batch=SIZES, own=st.booleans(), kind=st.sampled_from(["group", "instance", "rms"]))
def test_other_norms(rows, batch, own, kind):
    norm = {
        "group": nn.GroupNorm(2, 4),
        "instance": nn.InstanceNorm2d(4, affine=True),
        "rms": nn.RMSNorm((5, 3)),
    }[kind]
    agree(nn.Sequential(nn.Conv2d(2, 4, 1), norm), (2, 5, 3), rows=rows, batch=batch, own=own)


@QUICK
@given(rows=SIZES, batch=SIZES, own=st.booleans(), mode=st.sampled_from(["eval", "train"]), affine=st.booleans())
def test_batch_norm_takes_statistics_of_each_restart_by_itself(rows, batch, own, mode, affine):
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, affine=affine))
    agree(net, (2, 4, 3), rows=rows, batch=batch, own=own, mode=mode)


def test_one_restart_in_train_mode_does_not_depend_on_the_others():
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3))
    victim = Victim(net.double(), Anything(2, 4, 3), loss=squared, mode="train")
    observed = Observed({n: torch.ones_like(p) for n, p in victim.parameters().items()})
    x = torch.randn(3, 2, 2, 4, 3, dtype=torch.float64)
    other = torch.cat([x[:1], 100 * x[1:]])
    y = torch.zeros(3, 2, dtype=torch.long)
    weights = dict.fromkeys(observed.signal, 1.0)
    first, second = (ByRules(victim, observed)(candidates, y).square(weights)[0] for candidates in (x, other))
    torch.testing.assert_close(first, second)


class Text(nn.Module):
    """Token ids ride along as rounded inputs; the table is used twice, once to embed and once to score."""

    def __init__(self, padding_idx: int | None = None, *, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4, padding_idx=padding_idx)
        self.mix = nn.Linear(4, 4)
        self.tied = tied

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.mix(self.embed(x.detach().abs().long() % 6) * x[..., None])
        return F.linear(hidden, self.embed.weight) if self.tied else hidden


@QUICK
@given(rows=SIZES, batch=SIZES, own=st.booleans(), tied=st.booleans(), padding=st.sampled_from([None, 0, -1]))
def test_embedding_and_a_parameter_used_twice(rows, batch, own, tied, padding):
    agree(Text(padding, tied=tied), (5,), rows=rows, batch=batch, own=own)


class Broadcast(nn.Module):
    """Position embedding, class token, layer scale, a table of relative positions as attention bias."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(1, 4, 6))
        self.token = nn.Parameter(torch.zeros(1, 1, 6))
        self.gamma = nn.Parameter(torch.zeros(6))
        self.table = nn.Parameter(torch.zeros(7, 2))
        self.qkv = nn.Linear(6, 18)
        self.register_buffer("index", torch.arange(16).view(4, 4) % 7)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        x = x + self.position
        q, k, v = self.qkv(x).view(len(x), 4, 3, 2, 3).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.index.view(-1)].view(4, 4, 2).permute(2, 0, 1)[None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
        return x + self.gamma * out


@QUICK
@given(rows=SIZES, batch=SIZES, own=st.booleans())
def test_plain_parameters(rows, batch, own):
    agree(Broadcast(), (3, 6), rows=rows, batch=batch, own=own)


class InPlace(nn.Module):
    """In-place changes right after a layer must not change what was recorded of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 1)
        self.shift = nn.Parameter(torch.zeros(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.softplus(self.first(x))
        out = self.second(hidden)
        out += self.shift
        return F.relu(out, inplace=True)


@pytest.mark.parametrize("own", [False, True])
def test_in_place_changes(own):
    agree(InPlace(), (2, 4, 4), rows=3, batch=2, own=own)


def test_frozen_parameters_are_constants():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    net[0].weight.requires_grad_(False)
    agree(net, (4,), rows=2, batch=2, own=False)


def test_gram_and_gradient_are_both_used():
    """The two forms are chosen by cost; here one layer of each kind is asked for its norm and agrees."""
    wide, narrow = nn.Linear(40, 40), nn.Linear(2, 2)
    for layer, shape, gram in ((wide, (2, 40), True), (narrow, (30, 2), False)):
        fast = agree(layer, shape, rows=2, batch=1, own=False)
        use, _ = fast.weights_of["weight"][0]
        assert use.prefers_gram() is gram


@QUICK
@given(
    batch=SIZES, groups=st.sampled_from([1, 2]), kernel=st.tuples(SIZES, SIZES), stride=st.tuples(SIZES, SIZES),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)), dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    bias=st.booleans(),
)  # fmt: skip
def test_a_convolution_by_patches_is_the_convolution(batch, groups, kernel, stride, padding, dilation, bias):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(batch, 2 * groups, 7, 6, generator=rng, dtype=torch.float64)
    weight = torch.randn(3 * groups, 2, *kernel, generator=rng, dtype=torch.float64)
    shift = torch.randn(3 * groups, generator=rng, dtype=torch.float64) if bias else None
    ours, unfolded = by_patches(x, weight, shift, (kernel, dilation, padding, stride), groups)
    torch.testing.assert_close(ours, F.conv2d(x, weight, shift, stride, padding, dilation, groups))
    torch.testing.assert_close(unfolded, F.unfold(x, kernel, dilation, padding, stride))


def test_patches_are_differentiable_as_often_as_needed():
    x = torch.randn(2, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: patches(v, (3, 2), (1, 2), (1, 0), (2, 1)), x)
    assert torch.autograd.gradgradcheck(lambda v: patches(v, (3, 2), (1, 2), (1, 0), (2, 1)).sin(), x)


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_layer_normalisation_and_its_second_derivative(shape):
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(normalise(x, shape, 1e-5), F.layer_norm(x, shape))
    assert torch.autograd.gradcheck(lambda v: normalise(v, shape, 1e-5), x)
    assert torch.autograd.gradgradcheck(lambda v: normalise(v, shape, 1e-5).sin(), x)


def test_softmax_and_its_second_derivative():
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(softmax(x), x.softmax(-1))
    assert torch.autograd.gradcheck(softmax, x)
    assert torch.autograd.gradgradcheck(lambda v: softmax(v).square(), x)


def test_sum_of_squares_of_each_row_and_its_derivative():
    values = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(row_square(values), values.square().sum(1))
    assert torch.autograd.gradcheck(row_square, values)


def test_long_sums_keep_their_digits():
    """A CPU's own norm of 1.5 million values is off by 4e-5, its product of a row with itself by 1e-4: more than a cosine may be."""
    many = torch.randn(2, 1_500_123, generator=torch.Generator().manual_seed(0))
    squares = many.double().square().sum(1)
    torch.testing.assert_close(row_square(many).double(), squares, rtol=1e-6, atol=0)
    torch.testing.assert_close(row_dot(many, many[1])[1].double(), squares[1], rtol=1e-6, atol=0)
    torch.testing.assert_close(row_dot(many, many).double(), squares, rtol=1e-6, atol=0)


def test_product_of_rows_and_its_derivative():
    rows = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    for target in (torch.randn(3, 5, dtype=torch.float64), torch.randn(2, 3, 5, dtype=torch.float64)):
        torch.testing.assert_close(row_dot(rows, target), (rows * target).flatten(1).sum(1))
        assert torch.autograd.gradcheck(lambda v, t=target: row_dot(v, t), rows)


def test_sums_of_absolute_values_row_by_row():
    values = torch.tensor([[1.0, -2.0, 0.0], [-0.5, 0.25, 3.0]], dtype=torch.float64, requires_grad=True)
    slope = torch.tensor([2.0, -1.0], dtype=torch.float64)
    assert row_absolute(values).tolist() == [3.0, 3.75]
    (found,) = torch.autograd.grad((row_absolute(values) * slope).sum(), values)
    assert found.tolist() == [[2.0, -2.0, 0.0], [1.0, -1.0, -1.0]]  # at zero none of the slopes is preferred
    many = torch.randn(2, 500_000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(row_absolute(many).double(), many.double().abs().sum(1), rtol=1e-6, atol=0)
    on_a_gpu = torch.empty(2, 5, device="meta", requires_grad=True)
    assert torch.autograd.grad(row_absolute(on_a_gpu).sum(), on_a_gpu)[0].shape == (2, 5)


class Subtracted(TorchDispatchMode):
    """Counts the differences of large tensors that are formed."""

    def __init__(self) -> None:
        super().__init__()
        self.large = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        differs = func.overloadpacket in (torch.ops.aten.sub, torch.ops.aten.sub_)
        self.large += differs and result[0].numel() > SMALL
        return result


@pytest.mark.parametrize("own", [False, True])
def test_large_differences_are_formed_once_for_two_distances(own):
    """TAG asks for squares and absolute values with other weights; three layers are large, their biases and the last one are not."""
    wide = nn.Sequential(
        nn.Linear(6, 200), nn.Linear(200, 200), nn.Linear(200, 200), nn.Linear(200, 180), nn.Linear(180, 3)
    )
    fast = agree(wide, (6,), rows=2, batch=1, own=own)
    again = replace(fast, _compared={}, _formed={})
    weights = dict.fromkeys(again.names, 1.0)
    decaying = {name: 1 / (1 + i) for i, name in enumerate(again.names)}
    with Subtracted() as counted:
        again.l2(weights)
        assert counted.large == 3
        again.l1(decaying)
    assert counted.large == 3


@QUICK
@given(rows=SIZES, batch=SIZES, own=st.booleans(), scale=st.sampled_from([None, 0.3]), causal=st.booleans())
def test_attention(rows, batch, own, scale, causal):
    """Causal attention goes another way, and must give the same."""

    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.head = nn.Linear(6, 18), nn.Linear(6, 3)

        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4).unbind(0)
            mixed = F.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal)
            return self.head(mixed.transpose(1, 2).flatten(2).mean(1))

    agree(Attends(), (4, 6), rows=rows, batch=batch, own=own)


def test_gelu_and_its_second_derivative():
    x = torch.linspace(-3, 3, 11, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(gelu(x), F.gelu(x))
    assert torch.autograd.gradcheck(gelu, x)
    assert torch.autograd.gradgradcheck(lambda v: gelu(v).square(), x)


@pytest.mark.parametrize("groups", [1, 2])
def test_convolution_with_a_constant_weight_and_its_second_derivative(groups):
    x = torch.randn(2, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    weight, bias = torch.randn(4, 2 // groups, 3, 2, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    how = ((2, 1), (1, 0), (1, 2), groups)
    torch.testing.assert_close(convolve(x, weight, bias, *how), F.conv2d(x, weight, bias, *how))
    assert torch.autograd.gradcheck(lambda v: convolve(v, weight, bias, *how), x)
    assert torch.autograd.gradgradcheck(lambda v: convolve(v, weight, bias, *how).sin(), x)
