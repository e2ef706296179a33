"""Federated averaging against a plain loop with ``torch.optim.SGD``."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from leakgauge.channels import SGD, Adam, AdamW, FedAvg, Gradient
from leakgauge.channels.optimizers import smooth
from leakgauge.core import Buffers, share
from leakgauge.errors import BadInput


def of_torch(optimizer: SGD | Adam | AdamW, parameters, lr: float) -> torch.optim.Optimizer:
    """The same optimiser in torch, with its options."""
    options = dataclasses.asdict(optimizer)
    if not isinstance(optimizer, SGD):
        options["betas"] = options.pop("beta1"), options.pop("beta2")
    return getattr(torch.optim, type(optimizer).__name__)(parameters, lr=lr, **options)


def trained(model: nn.Module, x, y, *, mode, steps, lr, minibatch, order, optimizer) -> tuple[dict, dict]:
    """Update and buffers after a client's own training loop."""
    twin = copy.deepcopy(model).train(mode == "train")
    optimizer = of_torch(optimizer, twin.parameters(), lr)
    order = torch.arange(len(x)) if order is None else torch.tensor(order)
    epoch = torch.utils.data.DataLoader(order, batch_size=minibatch or len(x))
    done = 0
    while done < steps:
        for rows in epoch:
            if done == steps:
                break
            optimizer.zero_grad()
            F.cross_entropy(twin(x[rows]), y[rows]).backward()
            optimizer.step()
            done += 1
    before = dict(model.named_parameters())
    return {n: (p - before[n]).detach() for n, p in twin.named_parameters()}, dict(twin.named_buffers())


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    mode=st.sampled_from(["train", "eval"]),
    steps=st.integers(1, 5),
    lr=st.floats(0.01, 0.5),
    minibatch=st.sampled_from([None, 2, 3, 7]),
    order=st.none() | st.permutations(range(6)).map(tuple),
    optimizer=st.sampled_from([SGD(), SGD(momentum=0.9), SGD(momentum=0.5, weight_decay=0.1)]),
)
def test_equals_a_plain_training_loop(tiny, victim_of, batch_of, same, mode, **settings):
    x, y = batch_of(6)
    update, buffers = trained(tiny(), x, y, mode=mode, **settings)
    channel, victim = FedAvg(**settings), victim_of(mode=mode)
    same(channel(victim, x, y), update, tolerance=1e-5)
    same(channel.buffers(victim, x, y), buffers, tolerance=1e-5)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("lr", [0.01, 0.1, 1.0])
def test_one_step_divided_by_minus_lr_is_the_gradient(mode, lr, victim_of, batch_of):
    victim, (x, y) = victim_of(mode=mode), batch_of(3)
    victim.model.double()
    update, grads = FedAvg(steps=1, lr=lr)(victim, x.double(), y), Gradient()(victim, x.double(), y)
    for name, g in grads.items():
        torch.testing.assert_close(update[name] / -lr, g, rtol=1e-6, atol=1e-6)


def test_one_step_of_the_embedded_cnn_in_single_precision():
    """The target of the project's first issue: equal to 1e-6 on the embedded model, relative to its largest entry."""
    from leakgauge.audit import Case, embedded

    setup = embedded(Case())
    x, y = setup.private(Case(batch_size=2))
    update, grads = FedAvg(steps=1, lr=1.0)(setup.victim, x, y), Gradient()(setup.victim, x, y)
    largest = max(float(g.abs().max()) for g in grads.values())
    assert max(float((update[n] / -1.0 - g).abs().max()) for n, g in grads.items()) < 1e-6 * max(1, largest)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    "optimizer", [SGD(), SGD(momentum=0.9, weight_decay=0.1), Adam(eps=0.1), smooth(AdamW(eps=0.1))]
)
def test_derivative_in_the_image(mode, optimizer, victim_of, batch_of):
    victim, (x, y) = victim_of(mode=mode), batch_of(3)
    victim.model.double()
    channel = FedAvg(steps=3, lr=0.3, minibatch=2, optimizer=optimizer)

    def signal(x):
        return tuple(channel(victim, x, y).values())

    assert torch.autograd.gradcheck(signal, (x.double().requires_grad_(),), fast_mode=True)


def test_statistics_of_a_client_are_those_after_its_last_step(tiny, victim_of, batch_of, same):
    x, y = batch_of(4)
    channel = FedAvg(steps=3, lr=0.2, minibatch=2)
    _, buffers = trained(tiny(), x, y, mode="train", steps=3, lr=0.2, minibatch=2, order=None, optimizer=SGD())
    seen = share(victim_of(mode="train"), channel, x, y, reveal=(Buffers(),))
    same(seen.buffers, buffers, tolerance=1e-5)
    assert int(seen.buffers["1.num_batches_tracked"]) == 3


def test_structured_targets_are_cut_with_the_images(victim_of, batch_of, same):
    x, y = batch_of(4)

    def loss(output, targets):
        return F.cross_entropy(output, targets["classes"])

    channel = FedAvg(steps=2, lr=0.1, minibatch=2)
    found = channel(victim_of(loss=loss), x, {"classes": y})
    same(found, channel(victim_of(), x, y), tolerance=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "at least 1 local step"),
        ({"lr": 0.0}, "positive learning rate"),
        ({"lr": -1.0}, "positive learning rate"),
        ({"minibatch": 0}, "minibatch of at least 1"),
        ({"optimizer": "adam"}, "needs optimizer as an Optimizer, got 'adam'"),
        ({"order": (0, 0, 1)}, "every sample once"),
        ({"order": (1, 2)}, "every sample once"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(BadInput, match=message):
        FedAvg(**options)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (SGD, {"momentum": 1.0}, "momentum"),
        (SGD, {"momentum": -0.1}, "momentum"),
        (SGD, {"weight_decay": -0.1}, "weight decay"),
        (Adam, {"beta1": 1.0}, "beta1"),
        (AdamW, {"beta2": -0.1}, "beta2"),
        (AdamW, {"eps": 0.0}, "eps"),
        (AdamW, {"weight_decay": float("nan")}, "weight decay"),
    ],
)
def test_an_optimizer_refuses(make, options, message):
    with pytest.raises(BadInput, match=message):
        make(**options)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    "optimizer",
    [Adam(), Adam(beta1=0.5, beta2=0.9, eps=1e-4, weight_decay=0.1), AdamW(), AdamW(beta1=0.0, weight_decay=0.3)],
    ids=repr,
)
def test_adam_is_that_of_torch_over_several_steps(mode, optimizer, tiny, victim_of, batch_of, same):
    """In double precision, because a gradient of 1e-8 decides a whole step."""
    x, y = batch_of(6)
    settings = {"steps": 5, "lr": 0.02, "minibatch": 2, "order": (3, 1, 5, 0, 4, 2), "optimizer": optimizer}
    update, buffers = trained(tiny().double(), x.double(), y, mode=mode, **settings)
    victim = victim_of(mode=mode)
    victim.model.double()
    same(FedAvg(**settings)(victim, x.double(), y), update, tolerance=1e-7)
    same(FedAvg(**settings).buffers(victim, x.double(), y), buffers, tolerance=1e-7)


def test_a_weight_without_a_gradient_has_a_derivative_under_adam(victim_of, batch_of):
    """A dead unit's gradient is exactly zero; the root of its square would make the derivative in the image NaN."""
    victim, (x, y) = victim_of(), batch_of(2)
    with torch.no_grad():
        next(iter(victim.model.parameters())).zero_()
    for channel in (FedAvg(steps=2, optimizer=Adam()), FedAvg(steps=2, optimizer=Adam()).smooth()):
        free = x.clone().requires_grad_()
        square = torch.stack([value.square().sum() for value in channel(victim, free, y).values()]).sum()
        assert bool(torch.autograd.grad(square, free)[0].isfinite().all())


def test_smoothing_is_for_adam_alone():
    assert FedAvg(optimizer=SGD(momentum=0.9)).smooth() == FedAvg(optimizer=SGD(momentum=0.9))
    assert FedAvg(optimizer=AdamW()).smooth() != FedAvg(optimizer=AdamW())


def test_refuses_an_order_of_other_length(victim_of, batch_of):
    with pytest.raises(BadInput, match="order of 2 samples but the client has 3"):
        FedAvg(order=(1, 0))(victim_of(), *batch_of(3))
