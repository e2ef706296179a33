"""A victim without dropout: deterministic in train mode, its batch normalisation untouched."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.attacks import feasibility, inverting_gradients
from leakgauge.channels import Gradient
from leakgauge.channels.dropout import draws_at_random, dropping_layers, without_dropout
from leakgauge.core import share
from leakgauge.testing import untouched


class DropPath(nn.Module):
    """Stochastic depth as timm names it."""

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        keep = torch.rand(len(x), 1, 1, 1) >= self.drop_prob
        return x * keep if self.training and self.drop_prob else x


class StochasticDepth(nn.Module):
    """Stochastic depth as torchvision names it."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x):
        keep = torch.rand(len(x), 1, 1, 1) >= self.p
        return x * keep if self.training and self.p else x


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True), nn.Linear(36, 4)

    def forward(self, x):
        x = x[:, 0]
        return self.head(self.attention(x, x, x)[0].flatten(1))


def test_which_layers_drop():
    model = nn.Sequential(
        nn.Dropout(0.0), nn.Dropout2d(0.2), DropPath(0.1), Attends(), nn.Linear(2, 2), StochasticDepth(0.3)
    )
    assert dropping_layers(model) == ("1", "2", "3.attention", "5")


def test_torchvisions_own_stochastic_depth_drops():
    from leakgauge.integrations.torchvision_guest import invite_torchvision

    invite_torchvision()
    ops = pytest.importorskip("torchvision.ops")
    assert dropping_layers(nn.Sequential(ops.StochasticDepth(0.2, "row"), ops.StochasticDepth(0.0, "row"))) == ("0",)


def test_without_dropout_two_calls_agree_and_the_victim_stays(tiny, victim_of, batch_of, same):
    for model in (
        tiny(dropout=0.5),
        nn.Sequential(DropPath(0.5), tiny(norm=True)),
        Attends(),
        nn.Sequential(StochasticDepth(0.5), tiny()),
    ):
        victim, (x, y) = victim_of(model, mode="train"), batch_of(4)
        first, *others = (Gradient()(victim, x, y) for _ in range(20))  # four images: two draws may well be the same
        assert any((first[n] - other[n]).abs().max() > 1e-6 for other in others for n in first)
        with untouched(victim):
            calm = without_dropout(victim)
        same(Gradient()(calm, x, y), Gradient()(calm, x, y))
        assert calm.mode == "train"
        assert calm.name == victim.name
        assert dropping_layers(calm.model) == ()


def test_the_rest_is_the_same(tiny, victim_of, batch_of, same):
    x, y = batch_of(4)
    calm, never = without_dropout(victim_of(dropout=0.5, mode="train")), victim_of(mode="train")
    same(Gradient()(calm, x, y), Gradient()(never, x, y))
    same(Gradient().buffers(calm, x, y), Gradient().buffers(never, x, y))
    assert without_dropout(never) is never


class OwnDropout(nn.Module):
    """Drops by the function, so that no layer holds a rate."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(36, 4)

    def forward(self, x):
        return self.head(F.dropout(x.flatten(1), 0.5, self.training))


def notes_of(attack, victim, batch_of) -> str:
    x, y = batch_of(2)
    return "; ".join(attack(steps=1)(victim, share(victim, Gradient(), x, y)).notes)


def test_dropout_that_cannot_be_switched_off_is_told(tiny, victim_of, batch_of):
    for mode, draws in (("train", True), ("eval", False)):
        assert (
            "draws random numbers in its own forward pass"
            in notes_of(feasibility, victim_of(OwnDropout(), mode=mode), batch_of)
        ) == draws
        assert draws_at_random(victim_of(OwnDropout(), mode=mode)) == draws
    assert not draws_at_random(victim_of(tiny(), mode="train"))
    assert not draws_at_random(without_dropout(victim_of(tiny(dropout=0.5), mode="train")))


def test_attacks_that_replay_dropout_say_so(tiny, victim_of, batch_of):
    own, without = "with its own dropout masks, because the client's are unknown (1 layers)", "replayed without dropout"
    dropping = victim_of(tiny(dropout=0.5), mode="train")
    assert own in notes_of(inverting_gradients, dropping, batch_of)
    assert own not in notes_of(inverting_gradients, victim_of(tiny(dropout=0.5), mode="eval"), batch_of)
    guided = notes_of(feasibility, dropping, batch_of)
    assert without in guided
    assert own not in guided
