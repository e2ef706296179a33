"""An update of Adam is told from one of SGD by torch's own optimisers, and a case that says SGD is refused with the right option."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from leakgauge.audit import Case, embedded
from leakgauge.channels import FedAvg
from leakgauge.channels.optimizers import Adam
from leakgauge.errors import BadInput
from leakgauge.integrations.adam_updates import adam_rate
from leakgauge.integrations.captured import captured_observation, captured_victim


def trained(model_name: str, make, *, mode: str, steps: int) -> dict[str, torch.Tensor]:
    """The change of the weights after ``steps`` minibatches of four, in plain torch."""
    case = Case(model=model_name, mode=mode, batch_size=4, local_steps=steps)
    setup = embedded(case)
    x, y = setup.private(case)
    model = copy.deepcopy(setup.victim.model).train(mode == "train")
    optimizer = make(model.parameters())
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for rows in torch.arange(len(x)).split(4):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return {n: p.detach() - before[n] for n, p in model.named_parameters()}


ADAM = {
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "adam with decay": lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=1e-4),
}
OTHERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
    "decay": lambda p: torch.optim.SGD(p, lr=0.02, weight_decay=1e-3),
}


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("model", ["cnn", "vit"])
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_adam_is_told_from_sgd(model, mode, steps):
    for make in ADAM.values():
        assert adam_rate(trained(model, make, mode=mode, steps=steps), steps) == pytest.approx(1e-3, rel=0.3)
    for make in OTHERS.values():
        assert adam_rate(trained(model, make, mode=mode, steps=steps), steps) is None


def test_noise_and_few_entries_say_nothing():
    rng = torch.Generator().manual_seed(0)
    assert adam_rate({name: torch.randn(10_000, generator=rng) for name in "ab"}, 1) is None
    assert adam_rate({"w": torch.ones(990), "b": torch.ones(9)}, 1) is None
    assert adam_rate({"w": torch.ones(2000)}, 1) is None
    assert adam_rate({"w": torch.ones(1000), "b": torch.full((1000,), 0.1)}, 1) is None
    assert adam_rate({"w": torch.ones(1000), "b": -torch.ones(10), "unused": torch.zeros(5000)}, 2) == 0.5


def test_a_captured_update_of_adam_is_refused_as_sgd_and_read_as_adam(tmp_path):
    delta = trained("cnn", ADAM["adam"], mode="eval", steps=2)
    path = tmp_path / "client.safetensors"
    save_file({n: v.contiguous() for n, v in delta.items()}, path)
    case = Case(batch_size=4, local_steps=2)
    victim = captured_victim(case, None)[0]
    with pytest.raises(
        BadInput, match=r"looks like an update of Adam.*add --optimizer adam \(or adamw\) --local-lr 0.001"
    ):
        captured_observation(victim, path, case)
    told = Case(batch_size=4, local_steps=2, optimizer="adam", local_lr=0.001)
    seen = captured_observation(victim, path, told)
    assert seen.channel == FedAvg(steps=2, lr=0.001, minibatch=4, optimizer=Adam())
