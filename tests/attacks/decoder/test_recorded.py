"""A decoder's training as on a GPU, where the step is recorded: it sees only what changes in place, and may not ask the host."""

import gc
import importlib
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.attacks.decoder import Deconvolution, OneCycle, Plateau, fit_on
from leakgauge.priors.decoders import recipes, training
from tests.engine.recordable import PlayedBack, only_on_the_device


@pytest.fixture
def like_a_gpu(monkeypatch):
    """Optimisers as on a GPU; torch takes them on the CPU and on ``meta`` if it is told that these are GPUs."""
    monkeypatch.setattr(recipes, "_recorded", lambda parameters: True)
    adam = importlib.import_module("torch.optim.adam")
    monkeypatch.setattr(adam, "_get_capturable_supported_devices", lambda **_: ["cpu", "meta"])


def pictures(count):
    coarse = torch.rand(count, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    return F.interpolate(coarse, size=(12, 12), mode="bicubic").clamp(0, 1)


def trained(paper):
    images = pictures(60)
    return fit_on(images, images, decoder=Deconvolution(), epochs=4, batch=8, lr=0.01, paper=paper).history


@pytest.mark.parametrize("paper", [False, True])
def test_a_recorded_step_trains_the_same_decoder(like_a_gpu, monkeypatch, paper):
    with monkeypatch.context() as plain:
        plain.setattr(recipes, "_recorded", lambda parameters: False)
        expected = trained(paper)
    eager = trained(paper)
    made = []

    class Kept(PlayedBack):
        def __init__(self, step):
            super().__init__(step)
            made.append(self)

    monkeypatch.setattr(training, "_resident", lambda *_: True)
    monkeypatch.setattr(training, "RecordedStep", Kept)
    found = trained(paper)
    assert made[0].operations  # it was played back
    assert found.held_out == pytest.approx(eager.held_out, rel=1e-4)
    assert found.training == pytest.approx(expected.training, rel=1e-3)  # a rate in single precision is another rate
    assert found.training[-1] < 0.5 * found.training[0]


def test_rates_and_momentum_change_in_place(like_a_gpu):
    weight = nn.Parameter(torch.ones(3))
    for recipe in (OneCycle(epochs=2), Plateau(epochs=2, patience=0)):
        steps = recipe.begin([weight], 10)
        group = steps.optimizer.param_groups[0]
        rate, momentum, before = group["lr"], group["betas"][0], (float(group["lr"]), float(group["betas"][0]))
        weight.grad = torch.ones(3)
        for epoch in range(2):
            for _ in range(8):
                steps.optimizer.step()
                steps.after_step()
            steps.after_epoch(float(epoch))
        assert group["lr"] is rate
        assert float(rate) != before[0]
        if isinstance(recipe, OneCycle):
            assert group["betas"][0] is momentum
            assert float(momentum) != before[1]


def test_a_step_needs_nothing_from_the_host(like_a_gpu, monkeypatch):
    """With the recipe whose optimiser runs in Python; the other's is one kernel, which ``meta`` does not have."""
    monkeypatch.setattr(training, "_precision", lambda device: torch.autocast("cpu", enabled=False))
    meta = torch.device("meta")
    network = Deconvolution()((1, 12, 12), (1, 12, 12)).to(meta)
    steps = OneCycle(epochs=2).begin(
        [nn.Parameter(torch.zeros(1))], 10
    )  # torch checks the rate, and ``meta`` has no values
    group = steps.optimizer.param_groups[0]
    first, second = group["betas"]
    group |= {"params": list(network.parameters()), "lr": group["lr"].to(meta)}
    group["betas"] = (first.to(meta), second)
    features = torch.zeros(50, 1, 12, 12, device=meta, dtype=torch.bfloat16)
    images, rows = features.to(torch.uint8), torch.zeros(8, dtype=torch.long)
    step = training._Step(network, steps.optimizer, features, images, rows, meta, F.mse_loss)
    step._once()  # the optimiser makes its state
    with only_on_the_device():
        step._once()


def test_nothing_is_held_after_the_training():
    """Features may fill most of a GPU: they must not wait for the garbage collector."""
    images = pictures(40)
    features = images.clone()
    gone = weakref.ref(features)
    gc.collect()
    gc.disable()
    try:
        fitted = fit_on(features, images, decoder=Deconvolution(), epochs=1)
        del features
        assert gone() is None
    finally:
        gc.enable()
    assert fitted.history.trained_on == 36


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_learns_as_well_and_its_decoder_runs_anywhere():
    images = pictures(256)
    features = nn.functional.avg_pool2d(images, 2)
    options = {
        "decoder": Deconvolution("prelu"),
        "epochs": 8,
        "lr": 0.01,
    }
    here, there = fit_on(features, images, **options), fit_on(features.cuda(), images.cuda(), **options)
    assert there.history.held_out_mse == pytest.approx(here.history.held_out_mse, rel=0.3)
    torch.testing.assert_close(there.decode(features), there.decode(features.cuda()).cpu(), atol=0.03, rtol=0.03)


def test_gradients_in_the_other_layout_of_a_small_kernel_are_taken(like_a_gpu):
    """The fused Adam wants gradients that lie as their weights do, which those of 1×1 convolutions need not on a GPU."""
    for shape, fused in (((4, 8, 3, 3), True), ((4, 8), True), ((4, 8, 1, 1), False), ((4, 1, 3, 3), False)):
        other, weight = nn.Parameter(torch.ones(3)), nn.Parameter(torch.rand(shape).contiguous())
        steps = Plateau(patience=0).begin([other, weight], 10)
        groups = steps.optimizer.param_groups
        assert [bool(group["fused"]) for group in groups if any(p is weight for p in group["params"])] == [fused]
        strides = (
            torch.empty(shape)
            .contiguous(memory_format=torch.channels_last if len(shape) == 4 else torch.contiguous_format)
            .stride()
        )
        weight.grad = torch.ones(shape) if fused else torch.empty_strided(shape, strides).copy_(torch.ones(shape))
        other.grad, before = torch.ones(3), weight.detach().clone()
        steps.optimizer.step()
        assert (weight.detach() < before).all()
        for loss in (1.0, 1.0):
            steps.after_epoch(loss)
        assert [float(group["lr"]) for group in groups] == pytest.approx([1e-4] * len(groups))  # halved once in each
