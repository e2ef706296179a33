"""Second derivatives: through attention they work, through layers that have none they are refused by name."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.channels import Gradient, twice_differentiable
from leakgauge.channels.twice import explaining_once_only, refuse_once_only
from leakgauge.core import Pixels, Victim, share
from leakgauge.errors import Inapplicable
from leakgauge.inversion import L2, Cosine, Descent, Matching
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

    victim = victim_of(tiny(activation=nn.Hardsigmoid))
    seen = share(victim, Gradient(), *batch_of(1))
    with pytest.raises(Inapplicable, match=r"2 \(Hardsigmoid: write it as relu6"):
        Matching(objective, solver=Counted())(victim, seen)
    assert calls == []


def test_other_layers_are_not_refused(tiny):
    refuse_once_only(tiny(activation=nn.Sigmoid))
    refuse_once_only(tiny(activation=nn.Hardswish))


class HardFunction(nn.Module):
    def forward(self, x):
        return F.hardsigmoid(x)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_function_is_refused_by_the_name_of_its_operator(steps, tiny, victim_of, batch_of):
    victim = victim_of(tiny(activation=HardFunction))
    seen = share(victim, Gradient(), *batch_of(1))
    with pytest.raises(Inapplicable, match="hardsigmoid_backward"):
        Matching(Cosine(), solver=Descent(steps=steps))(victim, seen)


def test_other_errors_are_left_as_they_are():
    with pytest.raises(RuntimeError, match="out of memory"), explaining_once_only():
        raise RuntimeError("out of memory")
