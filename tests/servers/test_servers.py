"""What malicious servers send: the model still works, and differs where it should."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Tokens, Victim, share
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.servers import SERVERS, FishingServer, ImprintServer, TrapWeightServer
from leakgauge.servers.fishing import fished_class
from leakgauge.servers.imprint import even_cuts, normal_cuts
from leakgauge.servers.server import brightness
from leakgauge.servers.trap_weights import in_model_space, traps

SPACES = (
    Pixels((1, 6, 5)),
    Pixels((3, 4, 4), mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3)),
    Pixels((3, 4, 4), bounds=(-1.0, 1.0), mean=(0.1,), std=(0.5,)),
)


def net(space: Pixels, *, classes: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(space.shape), 32), nn.ReLU(), nn.Linear(32, classes))


def images(space: Pixels, n: int = 5) -> tuple[Tensor, Tensor]:
    shown = torch.rand(n, *space.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    low, high = space.bounds
    return shown, space.encode(shown * (high - low) + low)


@pytest.mark.parametrize("space", SPACES)
def test_brightness_is_the_mean_of_the_picture(space):
    shown, x = images(space)
    weight, offset = brightness(space)
    torch.testing.assert_close(x.flatten(1) @ weight + offset, shown.flatten(1).mean(1))
    torch.testing.assert_close(space.decode(x), shown)


@pytest.mark.parametrize("space", SPACES)
def test_traps_are_the_same_in_model_space(space):
    shown, x = images(space)
    rows = traps(7, math.prod(space.shape), 0.9, torch.Generator().manual_seed(0))
    weight, bias = in_model_space(rows, space)
    torch.testing.assert_close(x.flatten(1) @ weight.T + bias, shown.flatten(1) @ rows.T)


@pytest.mark.parametrize("inputs", [10, 11])
def test_trap_rows_are_half_negative_and_the_other_half_the_same_scaled(inputs):
    rows = traps(4, inputs, 0.5, torch.Generator().manual_seed(3))
    for row in rows:
        negative, positive = -row[row < 0], row[row > 0]
        assert (len(negative), len(positive)) == (inputs - inputs // 2, inputs // 2)
        assert all(bool(((negative * 0.5 - value).abs() < 1e-12).any()) for value in positive)


@pytest.mark.parametrize("space", SPACES)
def test_an_imprint_changes_white_by_what_it_says_and_everything_else_less(space):
    victim = Victim(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(space.shape), 2)).double(), space)
    sent = ImprintServer(bins=8, change=0.02)(victim)
    block = sent.model.imprint
    low, high = space.bounds
    white, (_, x) = space.encode(torch.full((1, *space.shape), high, dtype=torch.float64)), images(space)
    with torch.no_grad():
        moved, others = (
            (block(z) - z).abs() * torch.tensor(space.std).view(-1, 1, 1) / (high - low) for z in (white, x)
        )
    torch.testing.assert_close(moved, torch.full_like(moved, 0.02))
    assert 0 < float(others.min()) < float(others.max()) < 0.02


def test_even_cuts_cover_all_brightnesses_and_normal_ones_are_equally_likely():
    assert even_cuts(4).tolist() == [0.0, 0.25, 0.5, 0.75]
    seen = 0.5 + 0.1 * torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cuts = normal_cuts(seen, 5)
    counts = torch.histogram(seen, torch.cat([cuts, torch.tensor([9.0], dtype=torch.float64)])).hist / len(seen)
    assert cuts[0] == 0
    torch.testing.assert_close(counts, torch.full((5,), 0.2, dtype=torch.float64), atol=5e-3, rtol=0)


def test_normal_cuts_need_images():
    with pytest.raises(BadInput, match="at least 2 auxiliary images, got 1"):
        normal_cuts(torch.tensor([0.3]), 4)


def test_units_answer_to_the_wanted_share_of_auxiliary_images():
    space = SPACES[1]
    _, x = images(space, 400)
    sent = TrapWeightServer(share=0.1)(Victim(net(space), space), auxiliary=x.float())
    answered = (sent.model[1](x.float().flatten(1)) > 0).double().mean(0)
    torch.testing.assert_close(answered, torch.full((32,), 0.1, dtype=torch.float64), atol=0.011, rtol=0)


def test_under_fishing_one_class_alone_reaches_the_body():
    space = SPACES[0]
    sent = FishingServer(target=2)(Victim(net(space).double(), space))
    _, x = images(space, 6)
    y = torch.tensor([0, 2, 1, 3, 0, 1])
    seen = share(sent, Gradient(), x, y)
    alone = share(sent, Gradient(), x[1:2], y[1:2])
    for name in ("1.weight", "1.bias"):
        torch.testing.assert_close(seen.signal[name] * 6, alone.signal[name], atol=1e-12, rtol=1e-9)
    assert float(seen.signal["1.weight"].abs().max()) > 0
    assert fished_class(sent) == 2


def test_what_was_sent_is_written_down_as_malicious():
    space = SPACES[0]
    honest = Victim(net(space).double(), space)
    _, x = images(space, 2)
    told = {a.kind: a.what for a in share(FishingServer()(honest), Gradient(), x, torch.tensor([0, 1])).assumptions}
    assert told["malicious"] == "server sends another model than the agreed one: FishingServer(target=0)"
    assert all(a.kind != "malicious" for a in share(honest, Gradient(), x, torch.tensor([0, 1])).assumptions)


def test_the_agreed_model_is_not_touched():
    space = SPACES[0]
    honest = Victim(net(space), space)
    before = {name: value.clone() for name, value in honest.parameters().items()}
    for server in SERVERS.values():
        sent = server()(honest)
        assert sent.sent_by
        assert (sent.mode, sent.space, sent.name) == (honest.mode, honest.space, honest.name)
    assert all(torch.equal(before[name], value) for name, value in honest.parameters().items())


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ImprintServer(bins=0), "at least 1 bin, got 0"),
        (lambda: ImprintServer(change=0.0), "must change the image"),
        (lambda: TrapWeightServer(share=1.0), "between 0 and 1, got 1.0"),
        (lambda: TrapWeightServer(scale=0.0), "positive scale, got 0.0"),
        (lambda: FishingServer(target=-1), "class number of at least 0, got -1"),
        (lambda: FishingServer(target=9)(Victim(net(SPACES[0]), SPACES[0])), "classes 0 to 3, but fishing asks for 9"),
    ],
)
def test_mistakes_are_told(make, told):
    with pytest.raises(BadInput, match=told):
        make()


def test_models_that_a_server_cannot_use_are_refused():
    space = SPACES[0]
    conv = Victim(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(24, 3, bias=False)), space)
    with pytest.raises(Inapplicable, match="the first layer is a Conv2d"):
        TrapWeightServer()(conv)
    with pytest.raises(Inapplicable, match="a linear head with a bias"):
        FishingServer()(conv)
    text = Victim(nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2)), Tokens(3, vocab=5))
    with pytest.raises(Inapplicable, match="the model does not take images"):
        ImprintServer()(text)
    with pytest.raises(Inapplicable, match="does not fish for a class"):
        fished_class(Victim(net(space), space))
