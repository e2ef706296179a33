"""The gate refuses what leaks, lets noise pass, and writes down what it found."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from leakgauge.channels import DPSGD, FedAvg, Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.errors import BadInput
from leakgauge.integrations.gate import Gate, Guarded, Refused
from leakgauge.measures.rdp import RDPFilter
from leakgauge.monitor import MonitorWarning

SPACE = Pixels((1, 6, 6))
BUDGET = RDPFilter(eps=8.0, delta=1e-3)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 60), nn.ReLU(), nn.Linear(60, 4))


@pytest.fixture
def victim() -> Victim:
    return Victim(network(), SPACE, mode="train")


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    return torch.rand(1, 1, 6, 6, generator=rng), torch.tensor([2])


@pytest.mark.parametrize("channel", [Gradient(), FedAvg(steps=1, lr=0.1)], ids=repr)
def test_a_plain_update_is_refused_and_written_down(victim, batch, channel, tmp_path):
    gate = Gate(record=tmp_path / "of" / "gate.jsonl")
    update = share(victim, channel, *batch).signal
    with pytest.raises(Refused, match="linear certifies 1 image"):
        gate(victim, update, *batch, channel=channel)
    (line,) = map(json.loads, (tmp_path / "of" / "gate.jsonl").read_text().splitlines())
    assert (line["round"], line["action"], line["by"], line["certified"]) == (1, "refused", "linear", 1)


def test_an_update_with_noise_passes_as_it_is(victim, batch):
    update = share(victim, DPSGD(clip=1.0, noise=1.0), *batch).signal
    sent = Gate()(victim, update, *batch)
    assert all(torch.equal(sent[name], t) for name, t in update.items())


def test_a_gate_may_only_warn(victim, batch):
    update = share(victim, Gradient(), *batch).signal
    with pytest.warns(MonitorWarning, match="leaks: linear certifies"):
        sent = Gate("warn")(victim, update, *batch)
    assert set(sent) == set(update)


def test_noise_is_paid_for_before_it_is_added(victim, batch):
    gate = Gate(clip=0.5, multiplier=2.0, budget=BUDGET, seed=1)
    update = share(victim, Gradient(), *batch).signal
    sent = gate(victim, update, *batch)
    added = torch.cat([(sent[n] - t * min(1, 0.5 / _norm(update))).flatten() for n, t in update.items()])
    assert float(added.std()) == pytest.approx(1.0, rel=0.05)
    assert gate.budget is not None
    # another batch moves a clipped update by up to 2 · clip, so noise of 2 · clip is a multiplier of 1
    assert gate.budget.spent == BUDGET.spend(noise=1.0, rate=1.0).spent
    left = gate.budget
    while left.allows(noise=1.0, rate=1.0):
        left = left.spend(noise=1.0, rate=1.0)
        gate(victim, update, *batch)
    with pytest.raises(Refused, match="would exceed eps"):
        gate(victim, update, *batch)


def _norm(signal) -> float:
    return float(torch.cat([t.flatten() for t in signal.values()]).norm())


def test_the_probe_refuses_a_batch_that_it_recognises(victim):
    rng = torch.Generator().manual_seed(1)
    x, y = torch.rand(24, 1, 6, 6, generator=rng), torch.randint(4, (24,), generator=rng)
    deep = Victim(nn.Sequential(nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(128, 4)), SPACE)
    update = share(deep, Gradient(), x[:12], y[:12]).signal
    assert not Gate().check(deep, update, x[:12], y[:12]).leaks
    found = Gate(others=(x[12:], y[12:]), auc=0.6).check(deep, update, x[:12], y[:12])
    assert found.auc == 1.0
    assert found.leaks
    assert "linear" in found.refusals


def test_wrong_settings_are_refused():
    with pytest.raises(BadInput, match="warn or refuse"):
        Gate("stop")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match="give both"):
        Gate(clip=1.0)


def test_as_a_mod_of_flower(batch):
    flower = pytest.importorskip("flwr.app")
    from flwr.client.mod.utils import make_ffn

    from leakgauge.integrations.flower import REFUSED, gate
    from tests.integrations.test_flower import request

    def train(message, context):
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        grads = torch.autograd.grad(nn.functional.cross_entropy(model(batch[0]), batch[1]), list(model.parameters()))
        for p, g in zip(model.parameters(), grads, strict=True):
            p.data -= 0.1 * g
        content = flower.RecordDict({"arrays": flower.ArrayRecord(model.state_dict())})
        return flower.Message(content=content, reply_to=message)

    guarded = Guarded(network(), SPACE, batch, local_lr=0.1)
    reply = make_ffn(train, [gate(guarded, Gate())])(*request())
    assert reply.has_error()
    assert (reply.error.code, reply.error.reason) == (REFUSED, "not sent")
    keeper = Gate(clip=0.5, multiplier=2.0, budget=BUDGET, seed=3)
    passed = make_ffn(train, [gate(guarded, keeper)])(*request())
    plain = train(*request())
    sent, own = (one.content["arrays"].to_torch_state_dict() for one in (passed, plain))
    assert list(sent) == list(own)
    noise = torch.cat([(sent[n] - own[n]).flatten() for n in own])
    assert float(noise.std()) == pytest.approx(1.0, rel=0.1)


def test_as_a_filter_of_nvflare_and_a_filter_as_a_defense(batch):
    dxo = pytest.importorskip("nvflare.apis.dxo")
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy as Theirs

    from leakgauge.defenses import PercentilePrivacy
    from leakgauge.integrations.nvflare import FilteredByNVFlare, gate_filter

    model = network()
    victim = Victim(model, SPACE, mode="train")
    update = share(victim, FedAvg(steps=1, lr=0.1), *batch).signal
    made = gate_filter(Guarded(model, SPACE, batch, local_lr=0.1), Gate())
    data = {name: t.numpy() for name, t in update.items()}
    with pytest.raises(Refused):
        made.process_dxo(dxo.DXO(dxo.DataKind.WEIGHT_DIFF, data=data), Shareable(), FLContext())
    rng = torch.Generator()
    ours, wrapped = (one(update, rng=rng) for one in (PercentilePrivacy(), FilteredByNVFlare(Theirs())))
    assert all(torch.equal(ours[name], wrapped[name]) for name in ours)
    assert FilteredByNVFlare(Theirs()).doubts(update) == ()
    assert "returned nothing" in FilteredByNVFlare(Theirs(percentile=101)).doubts(update)[0]


def test_what_is_no_filter_is_refused():
    from leakgauge.integrations.nvflare import FilteredByNVFlare

    with pytest.raises(BadInput, match="needs a DXOFilter"):
        FilteredByNVFlare(print)


def test_an_update_that_no_check_takes_is_sent_with_a_warning(tmp_path):
    """Closed forms are for images: an update of a text model is not called clean."""
    from leakgauge.testing import tiny_case

    victim, x, y = tiny_case("text_a")
    record = tmp_path / "gate.jsonl"
    update = dict(share(victim, Gradient(), x, y).signal)
    with pytest.warns(MonitorWarning, match="was sent unchecked"):
        Gate(record=record)(victim, update, x, y)
    said = json.loads(record.read_text())
    assert (said["action"], said["leaks"], said["checked"]) == ("unchecked", False, False)
    with pytest.raises(BadInput, match="none of the model's parameters"):
        Gate()(victim, {}, x, y)
