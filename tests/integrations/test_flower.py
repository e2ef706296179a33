"""The mod sees the update as it leaves: after ``LocalDpMod`` when it stands before it."""

import logging
import time

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.client.mod.utils import make_ffn
from flwr.clientapp.mod import LocalDpMod
from torch import nn

from leakgauge.errors import Inapplicable
from leakgauge.integrations.flower import update_monitor
from leakgauge.monitor import MonitorWarning

logging.getLogger("flwr").setLevel(logging.ERROR)
LOSS = nn.functional.cross_entropy


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 60), nn.Tanh(), nn.Linear(60, 4))


@pytest.fixture
def data():
    rng = torch.Generator().manual_seed(0)
    x, y = torch.rand(24, 1, 6, 6, generator=rng), torch.randint(4, (24,), generator=rng)
    return (x[:8], y[:8]), (x[8:], y[8:])


@pytest.fixture
def client(data):
    """A client that takes one step on its members."""

    def train(message, context):
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loss = LOSS(model(data[0][0]), data[0][1])
        for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
            p.data -= 0.1 * g
        return Message(content=RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)

    return train


def request(kind="train", *, group="", **config):
    content = RecordDict({"arrays": ArrayRecord(network().state_dict()), "config": ConfigRecord(config)})
    metadata = Metadata(
        run_id=1, message_id="m", src_node_id=0, dst_node_id=1, reply_to_message_id="", group_id=group,
        created_at=time.time(), ttl=3600.0, message_type=kind,
    )  # fmt: skip
    message = Message(content=content, metadata=metadata)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    return message, context


def weights(message):
    return torch.cat([t.flatten() for t in message.content["arrays"].to_torch_state_dict().values()])


def test_a_bare_update_tells_its_members(client, data):
    rows = []
    mod = update_monitor(
        network(), loss=LOSS, members=data[0], others=data[1], log=lambda s, r: rows.append((r, s)), strict=True
    )
    reply = make_ffn(client, [mod])(*request())
    assert rows[0][0] == 1
    assert rows[0][1]["privacy/whitebox/auc"] == 1.0
    assert torch.equal(weights(reply), weights(client(*request())))
    assert list(reply.content) == ["arrays"]  # nothing was added


@pytest.mark.parametrize(("place", "sees_noise"), [("before", True), ("after", False)])
def test_the_place_against_local_dp_decides_what_is_seen(client, data, place, sees_noise):
    rows = []
    mod = update_monitor(
        network(), loss=LOSS, members=lambda _: data[0], others=data[1], log=lambda s, _: rows.append(s), strict=True
    )
    noise = LocalDpMod(1.0, 1.0, 0.1, 1e-5)
    make_ffn(client, [mod, noise] if place == "before" else [noise, mod])(*request())
    assert (rows[0]["privacy/whitebox/auc"] < 0.9) is sees_noise
    assert (rows[0]["privacy/whitebox/auc"] == 1.0) is not sees_noise


def test_evaluation_is_not_probed(data):
    rows = []
    mod = update_monitor(
        network(), loss=LOSS, members=data[0], others=data[1], log=lambda s, _: rows.append(s), strict=True
    )
    make_ffn(lambda message, _: Message(content=RecordDict(), reply_to=message), [mod])(*request("evaluate"))
    assert rows == []


def test_trouble_is_a_warning_and_the_reply_goes_out(client, data):
    mod = update_monitor(nn.Linear(2, 2), loss=LOSS, members=data[0], others=data[1], log=lambda *_: None)
    with pytest.warns(MonitorWarning, match="parameter names"):
        reply = make_ffn(client, [mod])(*request())
    assert not reply.has_error()


def test_the_round_is_the_servers_where_it_says_so(client, data):
    rounds = []
    mod = update_monitor(
        network(), loss=LOSS, members=data[0], others=data[1], log=lambda _, r: rounds.append(r), strict=True
    )
    app = make_ffn(client, [mod])
    for message in (request(**{"server-round": 7}), request(group="9"), request(), request(group="abc")):
        app(*message)
    assert rounds == [7, 9, 3, 4]


def test_a_reply_of_differences_is_told_not_read_as_weights(client, data):
    def sends_differences(message, context):
        before, after = (m.content["arrays"].to_torch_state_dict() for m in (message, client(message, context)))
        moved = {name: after[name] - before[name] for name in before}
        return Message(content=RecordDict({"arrays": ArrayRecord(moved)}), reply_to=message)

    rows = []
    mod = update_monitor(
        network(), loss=LOSS, members=data[0], others=data[1], log=lambda s, _: rows.append(s), strict=True
    )
    with pytest.raises(Inapplicable, match="holds no weights but a difference"):
        make_ffn(sends_differences, [mod])(*request())
    assert rows == []
