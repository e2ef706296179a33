"""Opacus clips and adds noise inside ``step``; the views must tell the three gradients apart."""

import copy
import warnings

import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from leakgauge.monitor import watch
from leakgauge.monitor.views import protection_of

CLIP, BATCH = 0.1, 8


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 60), nn.Tanh(), nn.Linear(60, 4))


@pytest.fixture
def private():
    """Makes a model, its private optimizer, a loader and the engine."""

    def make(noise: float = 1.0, *, seed: int = 0, reduction: str = "mean", poisson: bool = False):
        rng = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        model = network()
        data = TensorDataset(torch.rand(96, 1, 6, 6, generator=rng), torch.randint(4, (96,), generator=rng))
        engine = PrivacyEngine(accountant="rdp")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, optimizer, loader = engine.make_private(
                module=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                data_loader=DataLoader(data, batch_size=BATCH),
                noise_multiplier=noise,
                max_grad_norm=CLIP,
                poisson_sampling=poisson,
                loss_reduction=reduction,
                noise_generator=torch.Generator().manual_seed(seed),
            )
        return model, optimizer, loader, engine

    return make


def steps(model, optimizer, loader, criterion, count):
    it = iter(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of full backward hooks, which are Opacus' own
        for _ in range(count):
            x, y = next(it)
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    return x, y


def signals(monitor):
    seen, finish = [], monitor.finish

    def spy(signal):
        seen.append({n: g.detach().clone() for n, g in signal.items()})
        finish(signal)

    monitor.finish = spy
    return seen


def flat(signal):
    return torch.cat([g.flatten() for g in signal.values()])


def test_each_view_sees_its_gradient(private):
    found = {}
    for view in ("raw", "clipped", "released"):
        model, optimizer, loader, _ = private()
        weights = network()
        weights.load_state_dict(model._module.state_dict())
        monitor = watch(model, optimizer, view=view, strict=True)
        seen = signals(monitor)
        x, y = steps(model, optimizer, loader, nn.CrossEntropyLoss(), 1)
        found[view] = flat(seen[0])
        applied = torch.cat(
            [(a - b).flatten() / 0.1 for a, b in zip(weights.parameters(), model.parameters(), strict=True)]
        )
    plain = torch.autograd.grad(nn.functional.cross_entropy(weights(x), y), list(weights.parameters()))
    torch.testing.assert_close(found["raw"], torch.cat([g.flatten() for g in plain]), rtol=1e-4, atol=1e-6)
    assert float(found["clipped"].norm()) <= CLIP
    torch.testing.assert_close(found["released"], applied.detach(), rtol=1e-3, atol=1e-5)
    assert float(found["released"].norm()) > 2 * float(found["clipped"].norm())  # the noise


def test_accounting_goes_on_and_epsilon_is_read(private):
    model, optimizer, loader, engine = private()
    monitor = watch(model, optimizer, epsilon=lambda: engine.get_epsilon(1e-4), every=5, strict=True)
    slot = optimizer.step_hook
    steps(model, optimizer, loader, nn.CrossEntropyLoss(), 5)
    assert optimizer.step_hook is slot
    assert sum(count for *_, count in engine.accountant.history) == 5
    assert monitor.compute().epsilon == pytest.approx(engine.get_epsilon(1e-4))
    assert next(iter(monitor.records()))["scalars"]["privacy/epsilon"] > 0
    assert "epsilon" in monitor.report()


def test_training_is_bit_identical(private):
    trained = []
    for watched in (False, True):
        model, optimizer, loader, _ = private()
        criterion = nn.CrossEntropyLoss()
        if watched:
            monitor = watch(model, optimizer, loss=criterion, every=4, strict=True)
        steps(model, optimizer, loader, criterion, 9)
        trained.append(copy.deepcopy(model.state_dict()))
    assert monitor.compute().whitebox is not None
    assert all(torch.equal(trained[0][n], trained[1][n]) for n in trained[0])


def test_clip_and_noise_are_read_and_bound_the_information(private):
    model, optimizer, loader, _ = private(noise=2.0)
    criterion = nn.CrossEntropyLoss()
    protection = protection_of(optimizer, view="released")
    assert (protection.clip, protection.noise) == (CLIP, pytest.approx(2.0 * CLIP / BATCH))
    assert protection_of(optimizer, view="raw").noise is None
    monitor = watch(model, optimizer, loss=criterion, every=4, strict=True)
    steps(model, optimizer, loader, criterion, 4)
    found = monitor.compute().whitebox
    # each of 16 candidates adds at most ½ ln(1 + ¼·C²/(2C)²) = ½ ln(1 + 1/16)
    assert 0 < found.upper_nats <= 16 * 0.5 * 0.0607


@pytest.mark.parametrize("poisson", [False, True])
def test_the_bound_does_not_depend_on_what_the_noised_sum_is_divided_by(private, poisson):
    """A sum with noise tells as much as the same divided by any number, also by another one than was drawn."""
    bounds = []
    for reduction in ("mean", "sum"):
        model, optimizer, loader, _ = private(reduction=reduction, poisson=poisson)
        criterion = nn.CrossEntropyLoss(reduction=reduction)
        monitor = watch(model, optimizer, loss=criterion, every=4, strict=True)
        with torch.no_grad():
            optimizer.original_optimizer.param_groups[0]["lr"] = 0.0  # the same weights in both
        steps(model, optimizer, loader, criterion, 4)
        bounds.append(monitor.compute().whitebox.upper_nats)
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-4)
    assert bounds[1] > 0.1


def test_batches_accumulated_into_a_step_divide_its_noise(private):
    model, optimizer, loader, _ = private(noise=2.0)
    monitor = watch(model, optimizer, view="clipped", strict=True)
    seen, it = signals(monitor), iter(loader)
    optimizer.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            x, y = next(it)
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    protection = protection_of(optimizer, view="released")
    assert (protection.noise, protection.over) == (pytest.approx(2.0 * CLIP / (3 * BATCH)), 3 * BATCH)
    summed = torch.cat([p.summed_grad.flatten() for p in optimizer.params])
    torch.testing.assert_close(flat(seen[0]), summed / (3 * BATCH))


def test_noise_lowers_the_auc(private):
    values = {}
    for noise in (0.0, 20.0):
        model, optimizer, loader, _ = private(noise=noise)
        criterion = nn.CrossEntropyLoss()
        monitor = watch(model, optimizer, loss=criterion, every=2, strict=True)
        steps(model, optimizer, loader, criterion, 2)
        values[noise] = monitor.compute().whitebox.auc.value
    assert values[0.0] == 1.0
    assert values[20.0] < 0.95
