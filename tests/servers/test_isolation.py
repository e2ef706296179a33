"""What a client sees of a model that singles its samples out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakgauge.attacks import imprint as imprint_attack
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.errors import Inapplicable
from leakgauge.servers import FishingServer, ImprintServer, TrapWeightServer, find_isolated
from leakgauge.servers.isolation import Place

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


def test_samples_that_act_on_each_other_are_refused():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 4)).double()
    with pytest.raises(Inapplicable, match="normalises over the batch"):
        find_isolated(Victim(model, SPACE, mode="train"), *batch(4))
