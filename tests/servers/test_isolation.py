"""What a client sees of a model that singles its samples out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge.attacks import imprint as imprint_attack
from leakgauge.channels import Gradient
from leakgauge.channels.gradient import each_gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.errors import Inapplicable
from leakgauge.servers import FishingServer, ImprintServer, TrapWeightServer, find_isolated
from leakgauge.servers.isolation import Place, _each_by_layer

SPACE = Pixels((1, 6, 6))


def network(width: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, width, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(16 * width, 4)).double()


def batch(n: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(n, *SPACE.shape, generator=rng, dtype=torch.float64), torch.arange(n) % 4


def test_rows_by_hand():
    """Two units that see the pixels: the first is reached by both samples, the second by one."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[1.0, 1, 1, 1], [1.0, 0, 0, 0]]))
        model[1].bias.copy_(torch.tensor([0.0, -0.5]))
    x = torch.tensor([[0.9, 0.1, 0.2, 0.3], [0.2, 0.8, 0.4, 0.6]], dtype=torch.float64).view(2, 1, 2, 2)
    found = find_isolated(Victim(model, Pixels((1, 2, 2))), x, torch.tensor([0, 1]))
    assert found.places[0][0] == Place("1.weight", 1, 3)
    assert all(place.tensor != "1.weight" for place in found.places[1])


def test_an_honest_network_singles_nobody_out():
    assert find_isolated(Victim(network(), SPACE), *batch(12)).samples == ()


def test_those_that_an_imprint_reads_exactly_stand_alone_and_the_others_do_not():
    sent = ImprintServer(bins=40)(Victim(network(), SPACE))
    x, y = batch(24)
    guesses = imprint_attack()(sent, share(sent, Gradient(), x, y)).x
    exact = torch.cdist(x.flatten(1), guesses.flatten(1), p=torch.inf).amin(1) < 1e-6
    assert 0 < int(exact.sum()) < 24
    assert find_isolated(sent, x, y).samples == tuple(exact.nonzero().flatten().tolist())


def test_a_fished_sample_stands_alone_in_the_body():
    sent = FishingServer(target=2)(Victim(network(), SPACE))
    x, _ = batch(6)
    found = find_isolated(sent, x, torch.tensor([0, 2, 1, 3, 0, 1]))
    assert 1 in found.samples
    assert Place("0.weight", 15, 15) in found.places[1]
    assert all(place.tensor != "0.weight" for i in (0, 2, 3, 4, 5) for place in found.places[i])


def test_traps_are_seen():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 100), nn.ReLU(), nn.Linear(100, 4)).double()
    victim = Victim(model, SPACE)
    trapped = TrapWeightServer(share=0.1)(victim, auxiliary=batch(200, seed=3)[0])
    assert len(find_isolated(trapped, *batch(10)).samples) > len(find_isolated(victim, *batch(10)).samples)


def normalised() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 4)).double()


def test_shares_of_samples_that_act_on_each_other_add_up_to_the_gradient():
    victim, (x, y) = Victim(normalised(), SPACE, mode="train"), batch(4)
    shares = _each_by_layer(victim, x, y)
    whole = Gradient()(victim, x, y)
    assert shares.keys() == {"0.weight", "3.weight"}
    for name, rows in shares.items():
        torch.testing.assert_close(rows.sum(0), whole[name])


def test_both_decompositions_agree_where_samples_are_apart():
    victim, (x, y) = Victim(network(), SPACE), batch(5)
    plain = each_gradient(victim, x, y, parameters=victim.parameters(), buffers=victim.buffers())
    for name, rows in _each_by_layer(victim, x, y).items():
        torch.testing.assert_close(rows, plain[name] / len(x))


def test_an_imprint_before_a_normalisation_is_seen_in_train_mode():
    """One negative running variance makes the gradient NaN in eval mode, and a client in train mode never meets it."""
    sent = ImprintServer(bins=64)(Victim(normalised(), SPACE), auxiliary=batch(200, seed=3)[0])
    norm = next(m for m in sent.model.modules() if isinstance(m, nn.BatchNorm2d))
    norm.running_var[0] = -1.0
    x, y = batch(6)
    with pytest.raises(Inapplicable, match="is not finite in eval mode"):
        find_isolated(sent, x, y)
    training = replace(sent, mode="train")
    read = imprint_attack()(training, share(training, Gradient(), x, y))
    close = (torch.cdist(read.x.flatten(1).double(), x.flatten(1)).min(0).values < 1e-3).nonzero().flatten().tolist()
    assert close
    assert set(close) <= set(find_isolated(training, x, y).samples)
