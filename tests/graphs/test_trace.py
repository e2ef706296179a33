"""Tracing by every way: the points found, and that the halves at each of them are the model."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from leakgauge.core import Pixels, Victim
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.graphs import Traced, example_of, find_point, trace, trace_of
from leakgauge.graphs.counting import count_flops
from leakgauge.graphs.hooks import TracedByHooks, alike
from leakgauge.graphs.trace import export_graph, trace_symbolically
from leakgauge.models.seeded import seeded
from leakgauge.split import halves
from leakgauge.testing import untouched
from tests.zoo import TakesLength

SPACE = Pixels((1, 8, 8))


class Residual(nn.Module):
    """In-place activations, an in-place addition, one module called twice."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(0):
            self.stem = nn.Conv2d(1, 4, 3, padding=1)
            self.a, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
            self.act = nn.ReLU(inplace=True)
            self.head = nn.Linear(4 * 64, 3)

    def forward(self, x):
        x = self.act(self.stem(x))
        y = self.b(self.act(self.a(x)))
        y += x
        return self.head(y.view(y.size(0), -1))


class Branching(Residual):
    """Asks for a value while it runs: no tracer can follow, hooks can."""

    def forward(self, x):
        x = self.act(self.stem(x))
        if float(x.detach().sum()) > 1e9:
            x = x * 2
        return self.head(self.b(self.a(x)).flatten(1))


class Folded(nn.Module):
    """Needs the batch size deep inside, where x is no longer at hand."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(0):
            self.first, self.second = nn.Linear(64, 6), nn.Linear(6, 3)
            self.token = nn.Parameter(torch.randn(1, 6))

    def forward(self, x):
        batch = x.shape[0]
        z = self.first(x.reshape(batch, 64)).relu()
        return self.second(z + self.token.expand(batch, 6))


def every_half_is_the_model(traced: Traced, victim: Victim) -> None:
    x = example_of(victim, 5).requires_grad_()
    whole = victim(x)
    assert traced.points
    for name in traced.points:
        sent = traced.edge(name)(x)
        assert [tuple(z.shape[1:]) for z in sent] == [spec.shape for spec in traced.points[name].tensors], name
        assert alike(traced.cloud(name)(*(z.detach() for z in sent)), whole), name
    together = traced.values(x, list(traced.points))
    for name, values in together.items():
        for one, other in zip(values, traced.edge(name)(x), strict=True):
            torch.testing.assert_close(one, other)
    (slope,) = torch.autograd.grad(sent[0].square().sum(), x)
    assert slope.abs().sum() > 0


def ways(model: nn.Module) -> dict[str, Traced]:
    victim = Victim(model, SPACE)
    x = example_of(victim, 3)
    return {
        "any batch": export_graph(victim.model, x, any_batch=True),
        "one sample": export_graph(victim.model, x, any_batch=False),
        "fx": trace_symbolically(victim.model, x),
        "hooks": TracedByHooks(victim.model, x),
    }


@pytest.mark.parametrize("model", [Residual, Folded])
@pytest.mark.parametrize("way", ["any batch", "one sample", "fx", "hooks"])
def test_halves_of_every_way(way, model):
    victim = Victim(model(), SPACE)
    every_half_is_the_model(ways(model())[way], victim)


def test_what_crosses_a_residual_block():
    for way in ("any batch", "one sample", "fx"):
        points = ways(Residual())[way].points
        singles = [name for name, point in points.items() if len(point.tensors) == 1]
        assert len(singles) == 5, (way, singles)  # stem, its activation, the sum, the flat one, the head
        crossing = points["b"].tensors  # behind the second convolution, the block's input is needed too
        assert [spec.shape for spec in crossing] == [(4, 8, 8), (4, 8, 8)], way


def test_hooks_find_what_determines_the_output():
    points = ways(Residual())["hooks"].points
    assert list(points) == ["stem", "head"]  # a and b do not: the sum needs x too; act is called twice


def test_an_operation_of_several_outputs_has_one_name():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = nn.BatchNorm2d(1), nn.Linear(64, 2)

        def forward(self, x):
            return self.head(self.norm(x).mul(2).relu_().flatten(1))

    points = ways(InPlace())["any batch"].points  # writing in place makes the graph take another batch_norm
    assert list(points)[:3] == ["norm", "mul", "relu"]
    assert points["norm"].operation == "batch_norm"


def test_a_module_that_is_called_twice_has_two_names():
    points = ways(Residual())["any batch"].points
    assert {"act", "act_1"} <= set(points)


def test_costs_are_those_of_the_layers():
    stem, a = 9 * 4 + 4, 9 * 4 * 4 + 4
    for way, traced in ways(Residual()).items():
        costs = traced.costs(example_of(Victim(Residual(), SPACE), 1))
        assert costs["stem"].parameters == stem, way
        assert costs["stem"].flops == 2 * 64 * 9 * 4, way
        whole = costs["head"]
        assert whole.parameters == stem + 2 * a + 256 * 3 + 3, way
        assert whole.flops == 2 * (64 * 9 * 4 + 2 * 64 * 9 * 16 + 256 * 3), way


def test_a_model_that_asks_for_values_is_cut_by_hooks(capfd):
    victim = Victim(Branching(), SPACE)
    traced = trace(victim)
    assert traced.how.startswith("module hooks; torch.export: ")
    assert "torch.fx: TypeError" in traced.how
    assert list(traced.points) == ["stem", "act", "a", "b", "head"]
    with untouched(victim):
        every_half_is_the_model(traced, victim)
    assert capfd.readouterr() == ("", "")  # torch's own account of the failure is in ``how``


def test_a_fixed_batch_is_mapped():
    victim = Victim(TakesLength(side=8, in_channels=1, patch=4, width=8, depth=1, heads=2, classes=3), SPACE)
    traced = trace(victim)
    assert not traced.any_batch
    assert traced.how.startswith("torch.export of one sample; torch.export: ")
    every_half_is_the_model(traced, victim)


def test_a_model_that_cannot_be_cut():
    class Opaque(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64, 2))

        def forward(self, x):
            return x.flatten(1) @ self.weight * float(x.detach().sum() > -1e9)

    with pytest.raises(
        Inapplicable, match=r"cannot be cut: no module's output alone determines the result; torch.export"
    ):
        trace(Victim(Opaque(), SPACE))


def test_what_the_model_does_not_take_is_said():
    with pytest.raises(BadInput, match="does not take samples of shape 3x8x8"):
        trace(Victim(Residual(), Pixels((3, 8, 8))))
    with pytest.raises(BadInput, match="eval mode"):
        trace(Victim(Residual(), SPACE, mode="train"))


def test_names():
    traced = ways(nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), nn.ReLU(), nn.Linear(4, 2)))["any batch"]
    assert list(traced.points) == ["0.0", "0.1", "1", "2"]
    assert find_point(traced, "0").name == "0.1"
    with pytest.raises(BadInput, match=r"there is no cut '0.2'; did you mean 0"):
        find_point(traced, "0.2")


def test_a_trace_is_kept_as_long_as_its_victim():
    victim = Victim(Folded(), SPACE)
    assert trace_of(victim) is trace_of(victim)
    gone = weakref.ref(victim.model)
    del victim
    gc.collect()
    assert gone() is None


class Recurrent(nn.Module):
    """Its layer gives two tensors, one of which nobody reads; the state in between has its samples second."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(0):
            self.rows, self.head = nn.GRU(8, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.rows(x[:, 0])[0][:, -1])


class Turned(nn.Module):
    def forward(self, x):
        return x.T


class SamplesLast(nn.Module):
    """Between two layers the samples are the last dimension, and the first is as large as the batch that is traced."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(0):
            self.first, self.turn, self.head = nn.Linear(64, 3), Turned(), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.turn(self.first(x.flatten(1)))).T)


def test_a_cut_of_one_tensor_is_named_like_it_also_behind_a_layer_with_two_outputs():
    victim = Victim(Recurrent(), SPACE)
    points = trace_of(victim).points
    assert "rows" in points
    assert all(len(p.tensors) > 1 or p.tensors[0].name == name for name, p in points.items())


@pytest.mark.parametrize(
    "way", [partial(export_graph, any_batch=True), trace_symbolically, TracedByHooks], ids=["export", "fx", "hooks"]
)
def test_a_size_that_happens_to_equal_the_batch_is_not_taken_for_it(way):
    victim = Victim(SamplesLast(), SPACE)
    assert len(example_of(victim, 3)) == 3  # as wide as the first layer
    found = set(way(victim.model, example_of(victim, 3)).points)
    assert {"first", "head"} <= found
    assert not any("tanh" in name or name == "turn" for name in found)


class OneSize(nn.Module):
    """Takes three samples and no other number, and looks at values, so that hooks alone can follow it."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(0):
            self.first, self.head = nn.Linear(64, 5), nn.Linear(5, 3)

    def forward(self, x):
        x = x.view(3, 64)
        return self.head(torch.tanh(self.first(x)) * (2 if x.sum() > 1e9 else 1))


def test_hooks_follow_a_model_that_takes_one_batch_size():
    victim = Victim(OneSize(), SPACE)
    assert {"first", "head"} <= set(TracedByHooks(victim.model, example_of(victim, 3)).points)


class Forked(Residual):
    """Goes through ``b`` only if the batch is bright, and asks for a value to know."""

    def forward(self, x):
        z = self.a(self.stem(x))
        z = self.b(z) if float(x.detach().mean()) > 0 else z * 2
        return self.head(z.flatten(1))


def test_a_module_that_some_inputs_pass_by_is_no_cut():
    victim = Victim(Forked(), SPACE)
    traced = trace(victim)
    assert "b" not in traced.points  # depends on the input, and what reads the input decides: only the output is left
    assert list(traced.costs(example_of(victim, 2))) == list(traced.points)
    with pytest.raises(Inapplicable, match="the module b was not called on these samples"):
        traced.edge("b")(-torch.ones(2, 1, 8, 8))


class Noisy(Residual):
    """Draws noise in eval mode, as a model does that brings its own defense."""

    def forward(self, x):
        z = self.a(self.stem(x))
        return self.head((z + torch.randn_like(z)).flatten(1))


def test_a_model_that_draws_random_numbers_is_followed():
    victim = Victim(Noisy(), SPACE)
    before = torch.get_rng_state()
    traced = trace(victim)
    assert torch.equal(before, torch.get_rng_state())
    assert traced.how == "torch.export"
    assert halves(victim, "a").error < 1e-6
    assert not torch.equal(victim(torch.zeros(1, 1, 8, 8)), victim(torch.zeros(1, 1, 8, 8)))


class Fused(nn.Module):
    """Reads the rows of an image one after the other, then a transformer layer reads what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.LSTM(8, 6, num_layers=2, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(6, 2, 10, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.layer(self.rows(x.flatten(1, 2))[0]).mean(1))


@pytest.mark.parametrize("way", ["any batch", "one sample", "fx", "hooks"])
def test_costs_inside_fused_kernels(way):
    steps, width = 8, 6
    recurrent = steps * 4 * width * (8 + width + 2 * width)
    attention = steps * 4 * width * width + 2 * steps * steps * width
    feed_forward = 2 * steps * width * 10
    costs = ways(Fused())[way].costs(torch.randn(2, 1, 8, 8))
    assert costs["head"].flops == 2 * (recurrent + attention + feed_forward + width * 3)
    assert torch.backends.mha.get_fastpath_enabled()


def test_counting_leaves_attention_to_its_kernel():
    """A graph may view what the kernel lays out: with plain products instead, mobilevit_xxs of timm could not go on."""
    q, k, v = torch.randn(2, 5, 3, 3, 8).permute(2, 0, 3, 1, 4).unbind(0)
    attention = nn.functional.scaled_dot_product_attention
    with count_flops() as counter:
        counted = attention(q, k, v)
    assert counted.stride() == attention(q, k, v).stride()
    with sdpa_kernel(SDPBackend.MATH):
        assert attention(q, k, v).stride() != counted.stride()
    assert counter.get_total_flops() == 2 * 2 * 3 * (5 * 5 * 8 + 5 * 5 * 8)
