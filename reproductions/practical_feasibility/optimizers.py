"""Optimizers whose step can be recorded as a CUDA graph: the learning rate is a tensor, and nothing is read back."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Nesterov(torch.optim.Optimizer):
    """v ← m·v + g + λ·p;  p ← p − lr · (g + λ·p + m·v), with ``lr`` a tensor: torch's SGD would read it back in every step.

    Ref: Sutskever et al. 2013, section 2 — Nesterov's accelerated gradient as momentum, in the form of PyTorch
    """

    def __init__(self, groups: list[dict[str, object]], lr: Tensor, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                if not self.state[p]:
                    self.state[p]["velocity"] = torch.zeros_like(p)
                velocity = self.state[p]["velocity"]
                slope = p.grad.add(p, alpha=group["weight_decay"])
                velocity.mul_(group["momentum"]).add_(slope)
                p.sub_(slope.add_(velocity, alpha=group["momentum"]).mul_(group["lr"]))


class Muon(torch.optim.Optimizer):
    """b ← μ·b + (1 − μ)·G;  O = orthogonal((1 − μ)·G + μ·b);  W ← W − lr·λ·W − lr · 0.2·√max(m, n) · O, for m × n matrices W alone.

    Gradient G, momentum b with μ = 0.95, weight decay λ. The factor gives a step as large as AdamW's with that rate.
    Matrices of one shape are handled together. ``torch.optim.Muon`` does the same but reads the rate back.

    Ref: Jordan et al. 2024, Muon — momentum orthogonalised by Newton-Schulz
    Ref: Liu et al. 2025, section 2.2 — a step as large as AdamW's
    """

    MOMENTUM = 0.95

    def __init__(self, groups: list[dict[str, object]], lr: Tensor) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                by_shape.setdefault(p.shape, []).append(p)
            for shape, same in by_shape.items():
                made = orthogonal(torch.stack([self._ahead(p) for p in same])).to(same[0])
                for p, step in zip(same, made * (0.2 * max(shape) ** 0.5 * group["lr"]), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(step)

    def _ahead(self, p: Tensor) -> Tensor:
        """Where the momentum leads after this gradient, looked at once more from there."""
        assert p.grad is not None
        if not self.state[p]:
            self.state[p]["momentum"] = torch.zeros_like(p)
        momentum = self.state[p]["momentum"].lerp_(p.grad, 1 - self.MOMENTUM)
        return p.grad.lerp(momentum, self.MOMENTUM)


def orthogonal(matrices: Tensor) -> Tensor:
    """Each matrix (…, m, n) with its singular values brought near one, in bfloat16, by five steps of Newton and Schulz."""
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """What Muon is made for: weights of linear layers, but for the classifier and small tables."""
    return [p for p in model.parameters() if p.dim() == 2 and min(p.shape) >= 32]
