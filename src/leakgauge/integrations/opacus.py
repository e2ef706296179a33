"""Noise of Opacus' optimizer chosen step by step, within a budget that no step may exceed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.errors import BadInput
from leakgauge.measures.rdp import Overspent, RDPFilter, remaining_multiplier, sampled_gaussian
from leakgauge.monitor.adaptive import (
    CanaryScore,
    Driver,
    NoiseSchedule,
    PrivateStatistic,
    ReleasedValue,
    matched_hits,
    refusal,
)
from leakgauge.monitor.views import stepping_optimizer, unwrap


def adapt_noise(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Any,
    *,
    schedule: NoiseSchedule,
    driver: Driver,
    budget: RDPFilter,
    accountant: Any,
) -> AdaptiveNoise:
    """Lets ``driver`` choose the noise of every step by ``schedule``; ``budget`` refuses the step that would overspend.

        model, optimizer, loader = engine.make_private(...)             # Poisson sampling, RDP accountant
        noise = adapt_noise(model, optimizer, loader, schedule=NoiseSchedule(floor=1.0, ceiling=2.0),
                            driver=CanaryScore(inside=..., outside=...), budget=RDPFilter(3.0, 1e-5),
                            accountant=engine.accountant)
        ...                                                             # the loop, unchanged, until Overspent

    Opacus' hook slot is left to its accountant, whose history holds the very steps that the budget paid for. A step at which a
    :class:`PrivateStatistic` is asked gets more noise on its gradient, such that both together cost what the schedule says.
    The guarantee is (eps, delta) of the budget for the whole run, whenever it ends; an ε read on the way is no guarantee.
    """
    _check(optimizer, loader, driver, accountant)
    if isinstance(driver, PrivateStatistic):
        remaining_multiplier(schedule.ceiling, driver.multiplier)  # refuses a statistic with too little noise
    counted = spent_by(accountant.history, budget.orders)
    if not all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in zip(counted, budget.spent, strict=True)):
        raise BadInput(
            "the accountant has counted other steps than the budget; start both again, or continue with the budget of those steps"
        )
    return AdaptiveNoise(model, optimizer, loader.sample_rate, schedule, driver, budget, accountant)


def spent_by(history: Sequence[tuple[float, float, int]], orders: Sequence[int]) -> tuple[float, ...]:
    """Σ steps · ε(α) over an accountant's ``history`` of (noise multiplier, rate, steps), for each order α."""
    return tuple(
        math.fsum(steps * sampled_gaussian(order, noise=noise, rate=rate) for noise, rate, steps in history)
        for order in orders
    )


class AdaptiveNoise:
    """What :func:`adapt_noise` gives: the present ``budget``, the last ``released`` value, the number of ``steps``."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        rate: float,
        schedule: NoiseSchedule,
        driver: Driver,
        budget: RDPFilter,
        accountant: Any,
    ) -> None:
        self.budget, self.released, self.steps = budget, None, 0
        self._model, self._optimizer, self._rate, self._accountant = unwrap(model), optimizer, rate, accountant
        self._schedule, self._driver = schedule, driver
        self._names = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        self._sums: Tensor | None = None
        self._rng = driver.generator() if isinstance(driver, PrivateStatistic) else None
        self._noise = 0.0
        self._charged: tuple[float, float] = (0.0, 0.0)
        self._add_noise = optimizer.add_noise
        # add_noise is reached once per real step, after micro-batches are summed and before the accountant counts
        optimizer.add_noise = self._pay_and_add_noise
        self._handle = stepping_optimizer(optimizer).register_step_pre_hook(self._before_step)

    released: ReleasedValue | None
    budget: RDPFilter
    steps: int

    def close(self) -> None:
        """Gives the optimizer back as it was; its noise stays as at the last step."""
        if "add_noise" in vars(self._optimizer):
            del self._optimizer.add_noise
        self._handle.remove()

    def _asks(self) -> bool:
        return self.steps % self._driver.every == 0

    def _pay_and_add_noise(self) -> None:
        query = self._driver if isinstance(self._driver, PrivateStatistic) and self._asks() else None
        self._check_batch(query)
        total = self._schedule(self.released)
        try:
            self.budget = self.budget.spend(noise=total, rate=self._rate)
        except Overspent as refused:
            for parameter in self._optimizer.params:
                parameter.summed_grad = None  # or a later step would hold some samples twice
            raise Overspent(f"{refused}; this is where training ends, after {self.steps} steps") from None
        self._charged = (total, self._rate)
        self._noise = total if query is None else remaining_multiplier(total, query.multiplier)
        self._optimizer.noise_multiplier = self._noise
        self._add_noise()
        self._optimizer.noise_multiplier = total  # what the accountant is to count: gradient and query together

    def _check_batch(self, query: PrivateStatistic | None) -> None:
        if query is not None and self._optimizer._is_last_step_skipped:
            raise BadInput(
                "PrivateStatistic needs the gradients of the whole batch at once, and BatchMemoryManager has dropped some; use CanaryScore"
            )

    def _before_step(self, *_: Any) -> None:
        self._check_counted()
        if self._asks():
            with torch.no_grad():
                gradient = {n: p.grad for n, p in self._names.items() if p.grad is not None}
                self._ask(gradient)
        self.steps += 1

    def _check_counted(self) -> None:
        history = self._accountant.history
        last = tuple(history[-1][:2]) if history else ()
        if not last or not all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(last, self._charged, strict=True)):
            raise BadInput(
                f"the accountant counted {last or 'nothing'} where the budget paid for {self._charged} (noise multiplier, rate); "
                f"leave Opacus' step hook to the accountant, and give the loader that make_private returned"
            )

    def _ask(self, gradient: Mapping[str, Tensor]) -> None:
        driver = self._driver
        if isinstance(driver, CanaryScore):
            seen = driver.read(self._model, gradient)
            self._sums = seen if self._sums is None else driver.keep * self._sums + seen
            self.released = driver(self._sums)
            return
        optimizer = self._optimizer
        expected = optimizer.expected_batch_size
        over = expected if optimizer.loss_reduction == "mean" else 1
        samples = {n: optimizer._get_flat_grad_sample(self._names[n]) for n in gradient}
        noise = self._noise * optimizer.max_grad_norm / over
        hits = matched_hits(gradient, samples, noise=noise, threshold=driver.threshold)
        assert self._rng is not None
        self.released = driver(hits, expected=expected, rng=self._rng)


def _check(optimizer: Any, loader: Any, driver: object, accountant: Any) -> None:
    if not isinstance(driver, CanaryScore | PrivateStatistic):
        raise BadInput(refusal(driver))
    kind = type(optimizer).__name__
    if kind != "DPOptimizer":
        raise BadInput(f"adaptive noise works with Opacus' DPOptimizer in one process with flat clipping, got {kind}")
    if "add_noise" in vars(optimizer):
        raise BadInput("the noise of this optimizer is adapted already; close that first")
    if not hasattr(loader, "sample_rate"):
        raise BadInput(
            "the budget counts Poisson sampling; give the loader that make_private(poisson_sampling=True) returned"
        )
    if accountant.mechanism() != "rdp":
        raise BadInput(
            f"accountant {accountant.mechanism()!r} does not hold for noise chosen on the way; use PrivacyEngine(accountant='rdp')"
        )
