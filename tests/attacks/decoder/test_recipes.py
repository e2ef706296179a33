"""The two recipes of a decoder's training: optimiser, rate and length."""

import pytest
import torch
from torch import nn

from leakgauge.attacks.decoder import Deconvolution, OneCycle, Plateau, fit_on
from leakgauge.testing import check_part


def test_paper_recipe():
    images = torch.rand(32, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    fitted = fit_on(images, images, decoder=Deconvolution(), paper=True, epochs=2)
    assert fitted.recipe == Plateau(epochs=2)
    assert Plateau() == Plateau(epochs=100, lr=2e-4, batch=128, betas=(0.5, 0.999))
    steps = Plateau(patience=0).begin([nn.Parameter(torch.zeros(1))], 1)
    assert steps.optimizer.defaults["amsgrad"]
    for loss in (1.0, 1.0, 1.0):
        steps.after_step()
        steps.after_epoch(loss)
    assert steps.optimizer.param_groups[0]["lr"] == pytest.approx(5e-5)


def test_one_cycle_ends_at_almost_nothing():
    steps = OneCycle(epochs=2).begin([nn.Parameter(torch.zeros(1))], 5)
    rates = []
    for _ in range(10):
        rates.append(steps.optimizer.param_groups[0]["lr"])
        steps.optimizer.step()
        steps.after_step()
    assert max(rates) == pytest.approx(2e-3, rel=1e-6)
    assert rates[-1] < 1e-4
    assert isinstance(steps.optimizer, torch.optim.AdamW)


@pytest.mark.parametrize("total", range(1, 25))
def test_a_cycle_of_any_length_can_be_run(total):
    steps = OneCycle(epochs=1).begin([nn.Parameter(torch.zeros(1))], total)
    for _ in range(total):
        assert 0 < steps.optimizer.param_groups[0]["lr"] <= 2e-3 + 1e-12
        steps.optimizer.step()
        steps.after_step()


def test_recipes_are_parts():
    check_part(OneCycle())
    check_part(Plateau())
