"""The mods see the update as it leaves: after ``LocalDpMod`` when they come before it."""

import logging
import sys
import time

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, Metadata, MetricRecord, RecordDict
from flwr.client.mod.utils import make_ffn
from flwr.clientapp.mod import LocalDpMod
from torch import nn

from leakgauge import cli
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.errors import Inapplicable
from leakgauge.integrations.captured_file import About, read_about
from leakgauge.integrations.flower import _counted, capture, update_monitor
from leakgauge.integrations.tensor_files import read_tensors
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


def sends(change=lambda before, after: after, **metrics):
    """A client with one step of SGD at 0.1 on two images; ``change`` is applied to what it sends."""

    def train(message, context):
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        before = {n: v.clone() for n, v in model.state_dict().items()}
        LOSS(model(torch.ones(2, 1, 6, 6) / 3), torch.tensor([1, 3])).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        content = {"arrays": ArrayRecord(change(before, model.state_dict())), "metrics": MetricRecord(metrics)}
        return Message(content=RecordDict(content), reply_to=message)

    return train


def test_capture_saves_what_an_attack_needs(tmp_path):
    mod = capture(tmp_path, local_steps=1, strict=True)
    reply = make_ffn(sends(**{"num-examples": 2}), [mod])(*request(**{"server-round": 3, "lr": 0.1}))
    assert torch.equal(weights(reply), weights(sends()(*request())))
    assert list(reply.content) == ["arrays", "metrics"]  # nothing was added
    place = tmp_path / "round-3-client-1"
    about = read_about(place / "update.safetensors")
    assert about == About(
        update_holds="weights", weights=place / "weights.safetensors", batch_size=2, local_steps=1, local_lr=0.1
    )
    before, after = (read_tensors(place / f"{name}.safetensors") for name in ("weights", "update"))
    victim = Victim(network(), Pixels((1, 6, 6)))
    assert all(torch.equal(value, before[name]) for name, value in victim.model.state_dict().items())
    gradient = share(victim, Gradient(), torch.ones(2, 1, 6, 6) / 3, torch.tensor([1, 3])).signal
    for name, value in gradient.items():
        torch.testing.assert_close((before[name] - after[name]) / 0.1, value, rtol=1e-4, atol=1e-6)


def test_capture_sees_the_noise_of_a_mod_after_it(tmp_path):
    bare, noised = (
        make_ffn(sends(), [capture(tmp_path / name, strict=True), *mods])
        for name, mods in (("bare", []), ("noised", [LocalDpMod(1.0, 1.0, 0.1, 1e-5)]))
    )
    for app in (bare, noised):
        app(*request(group="1"))
    sent = [read_tensors(tmp_path / n / "round-1-client-1/update.safetensors")["1.weight"] for n in ("bare", "noised")]
    assert float((sent[0] - sent[1]).std()) > 0.1


def test_what_capture_cannot_know_is_left_out(tmp_path):
    """One step or many, with how many images: a network that counts no batches does not say."""
    make_ffn(sends(**{"num-examples": 2}), [capture(tmp_path, strict=True)])(*request(group="1"))
    assert set(read_about(tmp_path / "round-1-client-1/update.safetensors").known()) == {"update_holds", "weights"}


def test_counted_batches_say_mode_and_steps():
    counts = {"bn.num_batches_tracked": torch.tensor(40), "twice.num_batches_tracked": torch.tensor(80)}
    after = {"bn.num_batches_tracked": torch.tensor(43), "twice.num_batches_tracked": torch.tensor(86)}
    assert _counted(counts, after, is_difference=False) == 3
    moved = {name: after[name] - counts[name] for name in counts}
    assert _counted(counts, moved, is_difference=True) == 3
    assert _counted(counts, counts, is_difference=False) is None
    assert _counted(counts, {n: v + 0.25 for n, v in after.items()}, is_difference=False) is None


def test_a_reply_of_differences_is_captured_as_such(tmp_path):
    client = sends(lambda before, after: {name: after[name] - before[name] for name in before})
    make_ffn(client, [capture(tmp_path, strict=True)])(*request(group="1"))
    assert read_about(tmp_path / "round-1-client-1/update.safetensors").update_holds == "delta"


def test_arrays_without_names_get_those_of_the_model(tmp_path):
    """As a NumPyClient sends them: by position, in a record of its own, with the examples under another name."""

    def client(message, context):
        after = [0.5 * v for v in message.content["fitins.parameters"].to_torch_state_dict().values()]
        content = {
            "fitres.parameters": ArrayRecord({str(i): Array(v.numpy()) for i, v in enumerate(after)}),
            "fitres.num_examples": MetricRecord({"num_examples": 7}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    message, context = request(group="4")
    sent = network().state_dict()
    del message.content["arrays"]
    message.content["fitins.parameters"] = ArrayRecord({str(i): Array(v.numpy()) for i, v in enumerate(sent.values())})
    make_ffn(client, [capture(tmp_path, names=list(sent), local_steps=1, strict=True)])(message, context)
    place = tmp_path / "round-4-client-1"
    assert read_about(place / "update.safetensors").batch_size == 7
    after = read_tensors(place / "update.safetensors")
    assert all(torch.equal(after[name], 0.5 * value) for name, value in sent.items())


def test_trouble_in_saving_is_a_warning_and_the_reply_goes_out(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(MonitorWarning, match="saving the update failed"):
        reply = make_ffn(sends(), [capture(tmp_path / "file")])(*request())
    assert not reply.has_error()


def test_the_command_line_attacks_what_was_captured(tmp_path, monkeypatch, capsys):
    """With what the files say and nothing else, the image comes back; what they do not say is asked for."""
    (tmp_path / "net.py").write_text(
        "from torch import nn\nfrom leakgauge import Pixels\n"
        "def make():\n    layers = nn.Flatten(), nn.Linear(36, 60), nn.Tanh(), nn.Linear(60, 4)\n"
        "    return nn.Sequential(*layers), Pixels((1, 6, 6))\n"
    )
    yy = torch.linspace(0, 1, 36).reshape(1, 1, 6, 6)

    def client(message, context):
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        LOSS(model(yy), torch.tensor([2])).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
        return Message(content=RecordDict(content), reply_to=message)

    for name, known in (("known", {"local_steps": 1}), ("unknown", {})):
        make_ffn(client, [capture(tmp_path / name, strict=True, **known)])(*request(group="1"))
    monkeypatch.chdir(tmp_path)

    def attack(name):
        update = f"{name}/round-1-client-1/update.safetensors"
        words = ["leakgauge", "attack", "net.py:make", "--update", update, "--attack", "linear", "--out", f"run-{name}"]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code

    assert attack("known") == 0
    found = np.load(tmp_path / "run-known/reconstruction.npz")["images"]
    assert np.abs(found - yy.numpy()).max() < 1e-3
    assert "No --weights" not in capsys.readouterr().out
    assert attack("unknown") == 2
    assert "does not say the client's batch size; give --batch-size" in capsys.readouterr().err
