"""Fisher information leakage of a noisy cut: how well noise protects each sample."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakgauge.errors import BadInput


def fisher_leakage(
    edge: Callable[[Tensor], Tensor], x: Tensor, *, noise: float, probes: int = 32, seed: int = 0
) -> Tensor:
    """dFIL = tr(JᵀJ) / (d·σ²) of each sample, shape (N,): for z = edge(x) + N(0, σ²I), J = ∂z/∂x, d values in x.

    σ = ``noise``. The trace is E‖J v‖² over random signs v, estimated with ``probes`` forward-mode products (Hutchinson). Each row
    of ``edge`` must depend on its own sample only. An unbiased attacker has E MSE ≥ 1/dFIL; a biased one, such as any attack
    with a prior, can do better. Without noise there is no bound.

    Ref: Maeng et al. 2023, section 3 — diagonal Fisher information leakage
    """
    if not noise > 0 or probes < 1:
        raise BadInput(f"Fisher leakage needs a positive noise and at least 1 probe, got {noise} and {probes}")
    rng = torch.Generator().manual_seed(seed)
    total = torch.zeros(len(x), dtype=torch.float64)
    for _ in range(probes):
        signs = (torch.randint(0, 2, x.shape, generator=rng) * 2 - 1).to(x)
        moved = torch.func.jvp(edge, (x,), (signs,))[1]
        total += moved.detach().flatten(1).double().square().sum(1).cpu()
    return total / probes / (x[0].numel() * noise**2)
