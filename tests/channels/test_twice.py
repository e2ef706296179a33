"""Second derivatives: through attention they work, through layers that have none they are refused by name."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.channels import Gradient, twice_differentiable
from leakgauge.channels.twice import TWINS, explaining_once_only, refuse_once_only
from leakgauge.core import Pixels, Victim, share
from leakgauge.errors import Inapplicable
from leakgauge.inversion import L2, Adam, Constant, Cosine, Descent, Matching
from leakgauge.models import ViT
from leakgauge.models.seeded import seeded


class Attends(nn.Module):
    """One attention layer over the rows of the image."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        with seeded(0):
            self.embed, self.head = nn.Linear(6, 8), nn.Linear(8, 4)
            if kind == "encoder layer":
                self.attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
            else:
                self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        tokens = self.embed(x.squeeze(1))
        if self.kind == "encoder layer":
            tokens = self.attention(tokens)
        elif self.kind == "functional":
            tokens = F.scaled_dot_product_attention(tokens[:, None], tokens[:, None], tokens[:, None])[:, 0]
        else:
            tokens, _ = self.attention(tokens, tokens, tokens, need_weights=self.kind == "with weights")
        return self.head(tokens.mean(1))


KINDS = ["with weights", "without weights", "functional", "encoder layer"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_attention_is_differentiated_twice(kind, mode):
    model = Attends(kind).double()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    victim = Victim(model, Pixels((1, 6, 6)), mode=mode)
    if kind == "encoder layer":
        victim.model.attention.self_attn.dropout = 0.0
    x = torch.rand(2, 1, 6, 6, dtype=torch.double, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def signal(x):
        return tuple(Gradient()(victim, x, torch.tensor([0, 3])).values())

    assert torch.autograd.gradcheck(signal, (x,), fast_mode=True)


def test_the_fused_kernel_alone_would_fail():
    """Guards the guard: should torch learn to differentiate it twice, twice_differentiable can go."""
    q = torch.rand(1, 1, 6, 8, requires_grad=True)
    first = torch.autograd.grad(F.scaled_dot_product_attention(q, q, q).square().sum(), q, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="not implemented"):
        torch.autograd.grad(first.sum(), q)
    with twice_differentiable():
        out = F.scaled_dot_product_attention(q, q, q)
    first = torch.autograd.grad(out.square().sum(), q, create_graph=True)[0]
    assert torch.autograd.grad(first.sum(), q)[0].abs().sum() > 0


def test_an_attack_gets_through_a_vision_transformer():
    victim = Victim(ViT(side=8, width=8, depth=1, heads=2, patch=4), Pixels((1, 8, 8)))
    seen = share(victim, Gradient(), torch.rand(1, 1, 8, 8), torch.tensor([3]))
    result = Matching(Cosine(), solver=Descent(steps=20))(victim, seen)
    assert result.loss < float(result.trace.losses[0, 0])


@pytest.mark.parametrize("objective", [Cosine(), L2()])
def test_a_known_layer_is_refused_by_name_before_the_first_step(objective, tiny, victim_of, batch_of):
    calls = []

    class Counted:
        steps = 5
        together = True

        def begin(self, *_):
            calls.append(1)

    model = tiny()
    model[0].criterion = nn.CTCLoss()  # kept in the model, as some networks for speech do
    victim = victim_of(model)
    seen = share(victim, Gradient(), *batch_of(1))
    with pytest.raises(Inapplicable, match=r"0.criterion \(CTCLoss: its backward pass"):
        Matching(objective, solver=Counted())(victim, seen)
    assert calls == []


def test_other_layers_are_not_refused(tiny):
    refuse_once_only(tiny(activation=nn.Hardsigmoid))
    refuse_once_only(tiny(activation=nn.Hardswish))


class HardFunction(nn.Module):
    def forward(self, x):
        return F.hardsigmoid(x)


class InPlace(nn.Module):
    """Goes on with its input after it was changed in place."""

    def forward(self, x):
        x = x * 1
        F.hardsigmoid(x, inplace=True)
        return x


class Looked(nn.Module):
    """Uses an operator without a second derivative and without a twin."""

    def forward(self, x):
        return torch.ops.aten.hardsigmoid(x)


@pytest.mark.parametrize("steps", [1, 3])
def test_an_operator_without_a_twin_is_refused_by_its_name(steps, tiny, victim_of, batch_of):
    victim = victim_of(tiny(activation=Looked))
    seen = share(victim, Gradient(), *batch_of(1))
    with pytest.raises(Inapplicable, match="hardsigmoid_backward"):
        Matching(Cosine(), solver=Descent(steps=steps))(victim, seen)


@pytest.mark.parametrize("activation", [nn.Hardsigmoid, HardFunction, InPlace])
@pytest.mark.parametrize("restarts", [1, 3])
def test_hardsigmoid_runs_as_its_twin_and_that_is_said(activation, restarts, tiny, victim_of, batch_of):
    victim = victim_of(tiny(activation=activation))
    x, y = batch_of(1)
    seen = share(victim, Gradient(), x, y)
    plain = torch.autograd.grad(F.cross_entropy(victim.model(x), y), list(victim.model.parameters()))
    for ours, theirs in zip(seen.signal.values(), plain, strict=True):
        torch.testing.assert_close(ours, theirs)
    found = Matching(Cosine(), solver=Descent(steps=20), restarts=restarts)(victim, seen)
    assert found.loss < float(found.trace.losses[0].min())
    assert any("computed hardsigmoid as" in note for note in found.notes)
    assert not any("computed" in note for note in Matching(Cosine(), solver=Descent(steps=1))(
        victim_of(tiny()), share(victim_of(tiny()), Gradient(), x, y)).notes)  # fmt: skip


def edges(*centres):
    at = torch.tensor(centres)
    return torch.cat([at, torch.nextafter(at, at + 1), torch.nextafter(at, at - 1), torch.linspace(-4, 4, 1001)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_twin_of_hardsigmoid_has_its_value_and_its_slope(dtype):
    x = edges(-3.0, 3.0).to(dtype).requires_grad_()
    value, twin = F.hardsigmoid(x), TWINS[F.hardsigmoid].compute(x)
    torch.testing.assert_close(twin, value, rtol=0, atol=0)
    slopes = [torch.autograd.grad(each.sum(), x)[0] for each in (value, twin)]
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_twins_of_distances_have_their_values_and_slopes_also_at_distance_zero(p):
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[4] = rows[1]  # at distance 0
    weights = torch.rand(10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    pairs = [
        (F.pdist, lambda x: (x, p), weights),
        (torch.cdist, lambda x: (x, 2 * x.flip(0), p), weights.repeat(3)[:25].view(5, 5)),
    ]
    for func, given, weight in pairs:
        x = rows.clone().requires_grad_()
        value, twin = func(*given(x)), TWINS[func].compute(*given(x))
        torch.testing.assert_close(twin, value)
        slopes = [torch.autograd.grad((weight * each).sum(), x, create_graph=each is twin)[0] for each in (value, twin)]
        torch.testing.assert_close(slopes[1], slopes[0])
        assert torch.autograd.grad(slopes[1].square().sum(), x)[0].isfinite().all()


def test_other_errors_are_left_as_they_are():
    with pytest.raises(RuntimeError, match="out of memory"), explaining_once_only():
        raise RuntimeError("out of memory")


def test_a_branch_taken_later_is_refused_in_a_sentence():
    """Twins are chosen by the first pass; a function that only a later candidate reaches used to end in torch's own error."""

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(16, 16), nn.Linear(16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = self.layer(x.flatten(1))
            return self.head(F.hardsigmoid(made) if float(x.detach().abs().mean()) > 1 else made.sigmoid())

    victim = Victim(Branching(), Pixels((1, 4, 4)))
    seen = share(victim, Gradient(), torch.full((1, 1, 4, 4), 0.5), torch.tensor([1]))
    attack = Matching(Cosine(), start=Constant(0.2), solver=Descent(Adam(9.0), steps=4, project=False))
    with pytest.raises(Inapplicable, match=r"hardsigmoid.*cannot be differentiated twice"):
        attack(victim, seen)
