"""Captured updates: what a client really sent gives the same attack as the simulation of it; mistakes are one sentence."""

from __future__ import annotations

import collections
import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from leakgauge.audit import Case, embedded, records
from leakgauge.audit.records import Captured
from leakgauge.audit.run import attack_captured
from leakgauge.channels import FedAvg, Gradient, Precode
from leakgauge.core import Buffers, Size, share
from leakgauge.data.embedded import fashion
from leakgauge.errors import BadInput
from leakgauge.integrations.captured import (
    captured_observation,
    captured_victim,
    own_names,
    with_auxiliary,
    with_weights,
)
from leakgauge.integrations.tensor_files import read_tensors
from leakgauge.inversion.knowledge import gradient_alignment

CASE = Case(mode="train", batch_size=2, local_lr=0.05, options={"steps": 3}, attack="feasibility")


@pytest.fixture
def client(tmp_path):
    """A client trains the global model for a step or more in plain torch and saves what it would send."""

    def train(steps: int = 1):
        setup = embedded(CASE)
        x, y = setup.private(CASE)
        model = setup.victim.model.train()
        before = {n: v.clone() for n, v in model.state_dict().items()}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        after = {n: v.clone() for n, v in model.state_dict().items()}
        gradient = {n: p.grad for n, p in model.named_parameters()}
        delta = {n: after[n] - before[n] for n in after}
        for name, tensors in {"global": before, "weights": after, "delta": delta, "gradient": gradient}.items():
            save_file({n: v.contiguous() for n, v in tensors.items()}, tmp_path / f"{name}.safetensors")
        torch.save(collections.OrderedDict(delta), tmp_path / "delta.pt")
        torch.save({"state_dict": delta, "round": 3}, tmp_path / "nested.pt")
        return x, y

    return train


def observed(tmp_path, file: str, holds: str, case: Case = CASE):
    victim = captured_victim(case, tmp_path / "global.safetensors")[0]
    return victim, captured_observation(victim, tmp_path / file, case, holds=holds)


@pytest.mark.parametrize(
    ("file", "holds"),
    [
        ("delta.safetensors", "delta"),
        ("delta.pt", "delta"),
        ("nested.pt", "delta"),
        ("weights.safetensors", "weights"),
        ("gradient.safetensors", "gradient"),
    ],
)
def test_one_step_is_the_gradient_the_simulation_shares(file, holds, client, tmp_path):
    x, y = client()
    _, seen = observed(tmp_path, file, holds)
    simulated = share(embedded(CASE).victim, Gradient(), x, y, reveal=(Size(), Buffers()))
    assert seen.channel == Gradient()
    assert set(seen.signal) == set(simulated.signal)
    for name, value in simulated.signal.items():
        torch.testing.assert_close(seen.signal[name], value, atol=2e-5, rtol=1e-3)
    if holds == "gradient":
        assert seen.buffers is None
    else:
        for name, value in simulated.buffers.items():
            torch.testing.assert_close(seen.buffers[name], value, atol=1e-6, rtol=1e-5)
        assert seen.assumptions[-1].what == "running statistics shared with the update"


def test_several_local_steps_stay_an_update(client, tmp_path):
    x, y = client(steps=2)
    case = replace(CASE, name="", local_epochs=2)
    _, seen = observed(tmp_path, "delta.safetensors", "delta", case)
    simulated = share(embedded(case).victim, FedAvg(steps=2, lr=0.05), x, y)
    assert seen.channel == FedAvg(steps=2, lr=0.05)
    for name, value in simulated.signal.items():
        torch.testing.assert_close(seen.signal[name], value, atol=1e-6, rtol=1e-3)
    with pytest.raises(BadInput, match="a gradient comes from one step"):
        observed(tmp_path, "gradient.safetensors", "gradient", case)


@pytest.mark.parametrize(("holds", "steps"), [("delta", 1), ("delta", 2), ("gradient", 1)])
def test_the_opposite_sign_is_noticed(holds, steps, client, tmp_path):
    client(steps=steps)
    sent = read_tensors(tmp_path / f"{holds}.safetensors")
    counts = {n: v for n, v in sent.items() if n.endswith("num_batches_tracked")}
    save_file({**{n: -v for n, v in sent.items()}, **counts}, tmp_path / "turned.safetensors")
    case = replace(CASE, name="", local_steps=steps)
    observed(tmp_path, f"{holds}.safetensors", holds, case)
    with pytest.raises(BadInput, match=r"opposite sign.*new minus old"):
        observed(tmp_path, "turned.safetensors", holds, case)


def test_signs_that_noise_has_made_are_not_trusted(client, tmp_path):
    client()
    sent = read_tensors(tmp_path / "gradient.safetensors")
    bias = next(n for n in reversed(sent) if n.endswith("bias") and sent[n].numel() == 10)
    noisy = -sent[bias] - 0.1
    assert (
        int((noisy < 0).sum()) > CASE.batch_size >= int((noisy > 0).sum())
    )  # by its signs alone it would be turned round
    save_file({**sent, bias: noisy}, tmp_path / "noisy.safetensors")
    _, seen = observed(tmp_path, "noisy.safetensors", "gradient")
    assert torch.equal(seen.signal[bias], noisy)


def trained(model, x, y, *, epochs: int, momentum: float = 0.0, minibatches=None) -> dict[str, torch.Tensor]:
    """What a client in plain torch sends after its epochs over x, y: the difference of everything in its state dict."""
    model = copy.deepcopy(model).train()
    before = {n: v.clone() for n, v in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    for _ in range(epochs):
        for rows in minibatches or [list(range(len(x)))]:
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return {n: v - before[n] for n, v in model.state_dict().items()}


def at_the_truth(case: Case, tmp_path, delta, x, y) -> float:
    """1 − cosine of the captured update and what the named channel makes of the true batch."""
    save_file({n: v.contiguous() for n, v in delta.items()}, tmp_path / "delta.safetensors")
    victim = captured_victim(case, None)[0]
    return 1 - float(
        gradient_alignment(victim, captured_observation(victim, tmp_path / "delta.safetensors", case), x, y)
    )


def test_local_epochs_with_momentum_are_replayed_as_they_were(tmp_path):
    case = Case(mode="train", batch_size=4, local_epochs=3, local_lr=0.05, optimizer="sgd:momentum=0.9")
    setup = embedded(case)
    x, y = setup.private(case)
    delta = trained(setup.victim.model, x, y, epochs=3, momentum=0.9)
    assert at_the_truth(case, tmp_path, delta, x, y) < 1e-4
    plain = Case(mode="train", batch_size=4, local_epochs=3, local_lr=0.05)
    assert at_the_truth(plain, tmp_path, delta, x, y) > 1e-3  # other local steps would not explain it
    with pytest.raises(BadInput, match=r"counts 3 batches, where 6 local steps would make 6; give"):
        at_the_truth(replace(case, batch_size=2, local_steps=2), tmp_path, delta, x, y)


def test_minibatches_are_replayed_as_they_were(tmp_path):
    case = Case(mode="train", batch_size=2, local_steps=3, local_lr=0.05)
    setup = embedded(case)
    x, y = setup.private(case)
    assert len(x) == 6
    delta = trained(setup.victim.model, x, y, epochs=1, minibatches=[[0, 1], [2, 3], [4, 5]])
    assert at_the_truth(case, tmp_path, delta, x, y) < 1e-4


def test_the_mean_of_several_clients_is_replayed_as_such(tmp_path):
    case = Case(mode="train", batch_size=4, channel="aggregate:clients=2", local_epochs=2, local_lr=0.05)
    setup = embedded(case)
    x, y = setup.private(case)
    one, two = (trained(setup.victim.model, x[k::2], y[k::2], epochs=2) for k in range(2))
    mean = {n: (one[n] + two[n]) / 2 if one[n].is_floating_point() else one[n] for n in one}
    assert at_the_truth(case, tmp_path, mean, x, y) < 1e-4
    alone = Case(mode="train", batch_size=4, local_epochs=2, local_lr=0.05)
    assert at_the_truth(alone, tmp_path, mean, x, y) > 1e-3


def test_a_server_with_images_of_its_own(client, tmp_path):
    client()
    case = Case(mode="train", batch_size=2, local_lr=0.05, reveal=("size", "auxiliary:5"))
    victim, seen = observed(tmp_path, "delta.safetensors", "delta", case)
    told = with_auxiliary(seen, victim, case)
    torch.testing.assert_close(told.auxiliary, victim.space.encode(fashion("test")[0][:5]))
    assert told.assumptions[-1].what == "server holds 5 auxiliary images of the same kind"
    assert with_auxiliary(seen, victim, CASE) is seen


def test_an_attack_writes_what_can_be_known_without_the_truth(client, tmp_path):
    client()
    victim, seen = observed(tmp_path, "delta.safetensors", "delta")
    found = attack_captured(CASE, victim, seen, Captured("delta.safetensors"), folder=tmp_path)
    assert found.verdict is None
    assert found.captured.mismatch < 1
    assert np.load(tmp_path / "reconstruction.npz")["images"].shape == (2, 1, 28, 28)
    assert (tmp_path / found.pictures["reconstruction"]).is_file()
    assert any(note.startswith("statistics: exact") for note in found.notes)
    assert records.read(tmp_path) == [found]


def test_mistakes_are_told(client, tmp_path):
    client()
    delta = read_tensors(tmp_path / "delta.safetensors")
    changed = {
        "unknown": (
            {**delta, "features.0.wait": delta["features.0.weight"].clone()},
            "names 'features.0.wait'.*features.0.weight",
        ),
        "shape": ({**delta, "head.bias": torch.zeros(3)}, r"head.bias in .* has shape \(3,\), the model's has \(10,\)"),
        "nothing": ({n: torch.zeros_like(v) for n, v in delta.items()}, "changes no trainable parameter"),
        "whole numbers": ({**delta, "head.bias": torch.ones(10, dtype=torch.int8)}, r"head.bias in .* of type int8"),
        "weights of NaN": ({**delta, "head.bias": torch.full((10,), torch.nan)}, r"head.bias in .* holds NaN or Inf"),
        "statistics of NaN": (
            {n: v * torch.nan if n.endswith("running_var") else v for n, v in delta.items()},
            r"running_var in .* holds NaN or Inf",
        ),
    }
    for name, (tensors, complaint) in changed.items():
        save_file(tensors, tmp_path / f"{name}.safetensors")
        with pytest.raises(BadInput, match=complaint):
            observed(tmp_path, f"{name}.safetensors", "delta")
    with pytest.raises(BadInput, match="holds gradient, delta, weights, got 'x'"):
        observed(tmp_path, "delta.safetensors", "x")
    save_file({n: v for n, v in delta.items() if n != "head.bias"}, tmp_path / "short.safetensors")
    with pytest.raises(BadInput, match=r"lacks 'head.bias' \(1 of"):
        captured_victim(CASE, tmp_path / "short.safetensors")


class Harmful:
    def __reduce__(self):
        return print, ("ran",)


@pytest.mark.parametrize("known", [False, True])
def test_draws_of_a_protecting_client_do_not_reach_the_server(known: bool, tmp_path):
    """The case names the same seed as the client: what is replayed has no draws, or those that the update itself gives away."""
    case = Case(
        model="cnn", channel="precode:width=8", batch_size=1, reveal=("size", *(("defended",) if known else ()))
    )
    victim = captured_victim(case, None)[0]
    x, y = embedded(case).private(case)
    save_file(dict(Precode(width=8)(victim, x, y)), tmp_path / "sent.safetensors")
    seen = captured_observation(victim, tmp_path / "sent.safetensors", case, holds="gradient")
    if known:
        drawn = torch.randn(1, 8, generator=torch.Generator().manual_seed(0))  # of the client
        assert isinstance(seen.channel, Precode)
        torch.testing.assert_close(torch.tensor([seen.channel.noise]), drawn, rtol=1e-2, atol=1e-2)
    else:
        assert seen.channel == Gradient()
    assert any("known to the adversary (Precode)" in one.what for one in seen.assumptions) == known


def test_files_that_are_not_tensors_by_name(tmp_path, capsys):
    torch.save([torch.zeros(2)], tmp_path / "list.pt")
    torch.save({"a": Harmful()}, tmp_path / "code.pt")
    (tmp_path / "noise.safetensors").write_bytes(b"no such thing")
    (tmp_path / "noise.pt").write_bytes(b"no such thing")
    for name, complaint in {
        "list.pt": "must hold tensors by name",
        "code.pt": "more than tensors",
        "noise.pt": "more than tensors",
        "noise.safetensors": "no safetensors file",
        "missing.pt": "there is no file",
    }.items():
        with pytest.raises(BadInput, match=complaint):
            read_tensors(tmp_path / name)
    assert "ran" not in capsys.readouterr().out


def test_a_model_must_say_its_images(tmp_path):
    (tmp_path / "m.py").write_text("from torch import nn\ndef make():\n    return nn.Linear(2, 2)\n")
    with pytest.raises(BadInput, match="does not say which images it takes"):
        captured_victim(Case(model=f"{tmp_path}/m.py:make"), None)


def test_weights_and_their_difference_are_told_apart(client, tmp_path):
    """Whole weights taken for a difference, and the other way round, would be attacked without a word and in vain."""
    client()
    with pytest.raises(BadInput, match=r"holds whole weights .* add --update-holds weights"):
        observed(tmp_path, "weights.safetensors", "delta")
    with pytest.raises(BadInput, match=r"holds no weights of this model .* add --update-holds delta"):
        observed(tmp_path, "delta.safetensors", "weights")


def test_a_foreign_update_that_meets_the_embedded_model_is_told_so(client, tmp_path):
    client()
    save_file({"my.own.weight": torch.zeros(2)}, tmp_path / "foreign.safetensors")
    with pytest.raises(BadInput, match=r"the model is the embedded .*; name your own as MODEL"):
        observed(tmp_path, "foreign.safetensors", "delta")


def test_running_statistics_tell_of_another_training(client, tmp_path):
    """With a wrong number of steps the batch's statistics would be solved wrongly, and nobody would see it."""
    client(steps=3)
    with pytest.raises(BadInput, match=r"counts 3 batches, where 1 local step would make 1; give --local-steps 3"):
        observed(tmp_path, "delta.safetensors", "delta")
    with pytest.raises(BadInput, match=r"counts 3 batches, where 2 local steps would make 2"):
        observed(tmp_path, "weights.safetensors", "weights", replace(CASE, name="", local_steps=2))
    still = replace(CASE, name="", mode="eval", local_steps=3)
    with pytest.raises(BadInput, match="have counted batches, so the client computed in train mode"):
        observed(tmp_path, "delta.safetensors", "delta", still)
    delta = read_tensors(tmp_path / "delta.safetensors")
    noisy = {n: v + 0.25 if n.endswith("tracked") else v for n, v in delta.items()}
    bare = {n: v for n, v in delta.items() if not n.endswith("tracked")}
    for name, tensors in {"noisy": noisy, "bare": bare}.items():
        save_file(tensors, tmp_path / f"{name}.safetensors")
        for case in (CASE, still):  # nothing is known of the steps then
            assert observed(tmp_path, f"{name}.safetensors", "delta", case)[1].buffers is not None


def test_a_layer_that_is_used_twice_counts_two_batches_a_step(tmp_path):
    (tmp_path / "m.py").write_text(
        """
from torch import nn
from leakgauge import Pixels

class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(1), nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.norm(self.norm(x).sin()).flatten(1))

def make():
    return Twice(), Pixels((1, 4, 4))
"""
    )
    case = Case(model=f"{tmp_path}/m.py:make", mode="train", batch_size=2)
    victim = captured_victim(case, None)[0]
    model, before = copy.deepcopy(victim.model), victim.model.state_dict()
    F.cross_entropy(model(torch.rand(2, 1, 4, 4)), torch.tensor([0, 1])).backward()
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    torch.save({n: v - before[n] for n, v in model.state_dict().items()}, tmp_path / "delta.pt")
    assert int(captured_observation(victim, tmp_path / "delta.pt", case).buffers["norm.num_batches_tracked"]) == 2


def test_a_gradient_has_no_running_statistics(client, tmp_path):
    client()
    with pytest.raises(BadInput, match="has no gradient; if the file holds differences of weights drop"):
        observed(tmp_path, "delta.safetensors", "gradient")


def test_an_update_of_some_tensors_says_how_many(client, tmp_path):
    client()
    save_file({"head.bias": read_tensors(tmp_path / "delta.safetensors")["head.bias"]}, tmp_path / "one.safetensors")
    _, seen = observed(tmp_path, "one.safetensors", "delta")
    assert set(seen.signal) == {"head.bias"}
    assert any("holds 1 of" in a.what for a in seen.assumptions)


def test_wrapped_names_are_the_models_own(client, tmp_path):
    client()
    for name in ("delta", "global"):
        tensors = read_tensors(tmp_path / f"{name}.safetensors")
        save_file({f"module.{n}": v for n, v in tensors.items()}, tmp_path / f"{name}.safetensors")
    _, seen = observed(tmp_path, "delta.safetensors", "delta")
    assert "head.bias" in seen.signal


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    return model


def test_one_name_of_a_tied_weight_is_enough():
    wanted = torch.arange(4.0).view(2, 2)
    for name in ("0.weight", "1.weight"):
        found = with_weights(tied(), {name: wanted, "0.bias": torch.zeros(2), "1.bias": torch.zeros(2)}, source="it")
        torch.testing.assert_close(found[0].weight.detach(), wanted)
    with pytest.raises(BadInput, match=r"lacks '0.weight' \(2 of 4 names\)"):
        with_weights(tied(), {"0.bias": torch.zeros(2), "1.bias": torch.zeros(2)}, source="it")
    assert own_names(tied()) == {"0.weight": "0.weight", "0.bias": "0.bias", "1.weight": "0.weight", "1.bias": "1.bias"}


def test_counts_of_batches_may_be_missing_unless_an_average_hangs_on_them():
    for momentum, complaint in ((0.1, None), (None, "lacks 'num_batches_tracked'")):
        model = nn.BatchNorm2d(2, momentum=momentum)
        weights = {n: v + 1 for n, v in model.state_dict().items() if n != "num_batches_tracked"}
        if complaint is None:
            assert float(with_weights(model, weights, source="it").running_mean[0]) == 1
        else:
            with pytest.raises(BadInput, match=complaint):
                with_weights(model, weights, source="it")


def test_with_dropout_the_mismatch_is_the_same_every_time(tmp_path):
    (tmp_path / "m.py").write_text(
        "from torch import nn\nfrom leakgauge import Pixels\n"
        "def make():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3)), Pixels((1, 8, 8))\n"
    )
    case = Case(model=f"{tmp_path}/m.py:make", mode="train", batch_size=2, options={"steps": 2})
    victim = captured_victim(case, None)[0]
    seen = share(victim, Gradient(), torch.rand(2, 1, 8, 8), torch.tensor([0, 2]))
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(attack_captured(case, victim, seen, Captured("client.pt"), folder=tmp_path))
    assert found[0].captured == found[1].captured
    assert found[0].captured.mismatch is not None
    assert found[0].notes[-1] == "mismatch measured without dropout"
