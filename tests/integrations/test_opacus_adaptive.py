"""Noise that adapts under Opacus: every step is paid for before it is taken, and Opacus counts the same steps."""

import warnings

import pytest
import torch
from opacus import PrivacyEngine
from opacus.accountants.analysis.rdp import compute_rdp
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from leakgauge.errors import BadInput
from leakgauge.integrations.opacus import adapt_noise, spent_by
from leakgauge.measures.rdp import Overspent, RDPFilter, joint_multiplier
from leakgauge.monitor import watch
from leakgauge.monitor.adaptive import CanaryScore, NoiseSchedule, PrivateStatistic

BATCH, COUNT, CLIP = 16, 96, 0.5
SCHEDULE = NoiseSchedule(floor=1.0, ceiling=3.0)


def images(count, *, seed):
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(count, 1, 6, 6, generator=rng), torch.randint(4, (count,), generator=rng)


CANARIES = CanaryScore(inside=tuple(t[:12] for t in images(COUNT, seed=0)), outside=images(12, seed=1))


@pytest.fixture
def private():
    """Makes a model, its private optimizer, a Poisson loader and the engine."""

    def make(*, accountant="rdp", poisson=True):
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            model = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.Tanh(), nn.Linear(24, 4))
            engine = PrivacyEngine(accountant=accountant)
            made = engine.make_private(
                module=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
                data_loader=DataLoader(TensorDataset(*images(COUNT, seed=0)), batch_size=BATCH),
                noise_multiplier=1.0,
                max_grad_norm=CLIP,
                poisson_sampling=poisson,
                noise_generator=torch.Generator().manual_seed(0),
            )
        return *made, engine

    return make


def train(model, optimizer, loader, steps):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of full backward hooks, which are Opacus' own
        taken = 0
        while taken < steps:
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                taken += 1
                if taken == steps:
                    return


def counted(engine, orders):
    """RDP of the accountant's history as Opacus itself computes it."""
    return sum(
        compute_rdp(q=q, noise_multiplier=z, steps=n, orders=list(orders)) for z, q, n in engine.accountant.history
    )


@pytest.mark.parametrize(
    "driver", [CANARIES, PrivateStatistic(noise=2.0, every=3, seed=0)], ids=["canaries", "private"]
)
def test_opacus_counts_what_the_budget_paid_and_noise_keeps_to_its_bounds(private, driver):
    model, optimizer, loader, engine = private()
    slot, budget = optimizer.step_hook, RDPFilter(eps=60.0, delta=1e-5)
    noise = adapt_noise(
        model, optimizer, loader, schedule=SCHEDULE, driver=driver, budget=budget, accountant=engine.accountant
    )
    train(model, optimizer, loader, 15)
    assert optimizer.step_hook is slot
    assert noise.steps == sum(n for *_, n in engine.accountant.history) == 15
    assert list(noise.budget.spent) == pytest.approx(list(counted(engine, budget.orders)), rel=1e-6)
    used = [z for z, *_ in engine.accountant.history]
    assert used[0] == SCHEDULE.ceiling
    assert len(set(used)) > 1
    assert all(SCHEDULE.floor <= z <= SCHEDULE.ceiling for z in used)
    assert all(q == loader.sample_rate for _, q, _ in engine.accountant.history)


def test_the_noise_added_to_the_gradient_is_the_one_paid_for(private, monkeypatch):
    """With a query on the same batch the gradient gets more, such that both make the step's multiplier."""
    stds = []
    import opacus.optimizers.optimizer as module

    generate = module._generate_noise
    monkeypatch.setattr(
        module, "_generate_noise", lambda std, **given: (stds.append(std), generate(std=std, **given))[1]
    )
    model, optimizer, loader, engine = private()
    statistic = PrivateStatistic(noise=2.0, every=2, seed=0)
    adapt_noise(
        model, optimizer, loader, schedule=SCHEDULE, driver=statistic,
        budget=RDPFilter(60.0, 1e-5), accountant=engine.accountant,
    )  # fmt: skip
    train(model, optimizer, loader, 4)
    used = [z for z, _, n in engine.accountant.history for _ in range(n)]
    added = [s / CLIP for s in stds[:: len(list(model.parameters()))]]
    for number, (total, gradient) in enumerate(zip(used, added, strict=True)):
        together = joint_multiplier(gradient, statistic.multiplier) if number % 2 == 0 else gradient
        assert together == pytest.approx(total, rel=1e-9)
        assert gradient >= SCHEDULE.floor


def test_the_step_that_would_overspend_is_not_taken(private):
    model, optimizer, loader, engine = private()
    noise = adapt_noise(
        model, optimizer, loader, schedule=SCHEDULE, driver=CANARIES,
        budget=RDPFilter(eps=4.0, delta=1e-3), accountant=engine.accountant,
    )  # fmt: skip
    with pytest.raises(Overspent, match=r"would exceed eps = 4 .* this is where training ends, after \d+ steps"):
        train(model, optimizer, loader, 10_000)
    assert 3 < noise.steps < 10_000
    weights = [p.detach().clone() for p in model.parameters()]
    spent, steps = noise.budget.spent, noise.steps
    with pytest.raises(Overspent):
        train(model, optimizer, loader, 1)
    assert (noise.budget.spent, noise.steps) == (spent, steps)
    assert sum(n for *_, n in engine.accountant.history) == steps
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    assert all(p.summed_grad is None for p in model.parameters())
    limits = noise.budget.limits()
    assert any(s <= limit for s, limit in zip(counted(engine, noise.budget.orders), limits, strict=True))


def test_a_leak_raises_the_noise(private):
    """Canaries inside are all of the data, so their gradients add up; at little noise they are told, and noise goes up."""
    model, optimizer, loader, engine = private()
    adapt_noise(
        model, optimizer, loader, schedule=NoiseSchedule(floor=0.01, ceiling=0.02, low=0.0, high=1.0),
        driver=CanaryScore(inside=images(COUNT, seed=0), outside=images(COUNT, seed=3), keep=1.0),
        budget=RDPFilter(1e9, 1e-5, orders=(2,)), accountant=engine.accountant,
    )  # fmt: skip
    train(model, optimizer, loader, 12)
    assert engine.accountant.history[-1][0] > 0.0165  # an AUC of 0.65


@pytest.mark.parametrize("kind", ["monitor", "leakage", "float"])
def test_a_critic_is_refused_as_driver(private, kind):
    model, optimizer, loader, engine = private()
    monitor = watch(model, optimizer, strict=True)
    train(model, optimizer, loader, 1)
    driver = {"monitor": monitor, "leakage": monitor.compute(), "float": 0.3}[kind]
    with pytest.raises(
        BadInput, match=f"{type(driver).__name__} may not control the noise.*use CanaryScore or PrivateStat"
    ):
        adapt_noise(
            model, optimizer, loader, schedule=SCHEDULE, driver=driver,
            budget=RDPFilter(3.0, 1e-5), accountant=engine.accountant,
        )  # fmt: skip


def adapted(model, optimizer, loader, engine, *, driver=CANARIES):
    return adapt_noise(
        model, optimizer, loader, schedule=SCHEDULE, driver=driver,
        budget=RDPFilter(60.0, 1e-5), accountant=engine.accountant,
    )  # fmt: skip


def test_set_ups_whose_accounting_would_not_hold_are_refused(private):
    for kind in ("prv", "gdp"):
        with pytest.raises(BadInput, match=f"'{kind}' does not hold"):
            adapted(*private(accountant=kind))
    with pytest.raises(BadInput, match="Poisson"):
        adapted(*private(poisson=False))
    with pytest.raises(BadInput, match="more noise"):
        adapted(*private(), driver=PrivateStatistic(noise=1.0))
    made = private()
    with pytest.raises(BadInput, match="DPOptimizer"):
        adapted(made[0], torch.optim.SGD(made[0].parameters(), lr=0.1), *made[2:])
    train(*made[:3], 1)
    with pytest.raises(BadInput, match="other steps than the budget"):
        adapted(*made)
    made = private()
    adapted(*made)
    with pytest.raises(BadInput, match="already"):
        adapted(*made)


def test_a_run_is_resumed_with_the_budget_of_its_steps(private):
    made = private()
    first = adapted(*made)
    train(*made[:3], 2)
    first.close()
    model, optimizer, loader, engine = made
    second = adapt_noise(
        model, optimizer, loader, schedule=SCHEDULE, driver=CANARIES, budget=first.budget, accountant=engine.accountant
    )
    train(model, optimizer, loader, 2)
    assert second.budget.spent == pytest.approx(spent_by(engine.accountant.history, second.budget.orders), rel=1e-9)


def test_a_stolen_hook_slot_is_noticed_before_the_weights_move(private):
    model, optimizer, loader, engine = private()
    adapted(model, optimizer, loader, engine)
    optimizer.attach_step_hook(lambda _: None)
    weights = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(BadInput, match="the accountant counted nothing"):
        train(model, optimizer, loader, 1)
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))


def test_close_gives_the_optimizer_back(private):
    model, optimizer, loader, engine = private()
    noise = adapted(model, optimizer, loader, engine)
    train(model, optimizer, loader, 2)
    noise.close()
    optimizer.noise_multiplier = 7.0
    train(model, optimizer, loader, 1)
    assert engine.accountant.history[-1] == (7.0, loader.sample_rate, 1)
    assert noise.steps == 2


def test_physical_batches_are_one_step(private):
    model, optimizer, loader, engine = private()
    noise = adapted(model, optimizer, loader, engine)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=4, optimizer=optimizer) as small:
        train(model, optimizer, small, 12)
    assert 1 <= noise.steps < 12
    assert sum(n for *_, n in engine.accountant.history) == noise.steps


def test_a_private_statistic_of_half_a_batch_is_refused(private):
    model, optimizer, loader, engine = private()
    adapted(model, optimizer, loader, engine, driver=PrivateStatistic(noise=2.0, every=1))
    with (
        BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=optimizer) as small,
        pytest.raises(BadInput, match="use CanaryScore"),
    ):
        train(model, optimizer, small, 12)
