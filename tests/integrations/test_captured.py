"""Captured updates: what a client really sent gives the same attack as the simulation of it; mistakes are one sentence."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from leakgauge.audit import Case, embedded
from leakgauge.audit.unscored import attack_captured
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Buffers, Size, share
from leakgauge.errors import BadInput
from leakgauge.integrations.captured import captured_observation, captured_victim, read_tensors

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
    victim = captured_victim(case, tmp_path / "global.safetensors")
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
    from dataclasses import replace

    x, y = client(steps=2)
    case = replace(CASE, name="", local_steps=2)
    _, seen = observed(tmp_path, "delta.safetensors", "delta", case)
    simulated = share(embedded(case).victim, FedAvg(steps=2, lr=0.05), x, y)
    assert seen.channel == FedAvg(steps=2, lr=0.05)
    for name, value in simulated.signal.items():
        torch.testing.assert_close(seen.signal[name], value, atol=1e-6, rtol=1e-3)
    with pytest.raises(BadInput, match="a gradient comes from one step"):
        observed(tmp_path, "gradient.safetensors", "gradient", case)


def test_an_attack_writes_what_can_be_known_without_the_truth(client, tmp_path):
    client()
    victim, seen = observed(tmp_path, "delta.safetensors", "delta")
    found = attack_captured(CASE, victim, seen, folder=tmp_path)
    assert found.summary["verdict"] is None
    assert found.mismatch < 1
    assert np.load(tmp_path / "reconstruction.npz")["images"].shape == (2, 1, 28, 28)
    assert (tmp_path / found.pictures["reconstruction"]).is_file()
    assert any(note.startswith("statistics: exact") for note in found.summary["notes"])


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
