"""The start of R-GAP: the input of the linear head and the gradient of its scores, from the head's gradient alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.attacks.r_gap.chain import Layer
from leakgauge.channels.facts import single_client
from leakgauge.core import Channel, Signal, TrainsLocally, Victim
from leakgauge.errors import Inapplicable
from leakgauge.inversion.cross_entropy import is_cross_entropy

GRID = 4096
"""Lengths of ∂L/∂z at which the head's equation is evaluated before its roots are refined."""

FITS = 1e-2
"""How far ∂L/∂z may be from the loss's gradient for the scores, relative to its length, if no bias determines it."""

ONE_VECTOR = 1e-2
"""Second singular value of a head's gradient, relative to the first, up to which it counts as δ xᵀ of one sample."""


@dataclass(frozen=True, eq=False)
class Start:
    """One possible start: ``x`` is the head's input, ``delta`` is ∂L/∂z, every shared tensor is ``factor`` times its gradient."""

    x: Tensor
    delta: Tensor
    factor: float
    note: str = ""


def starts(victim: Victim, channel: Channel, signal: Signal, head: Layer) -> list[Start]:
    """All inputs of the head that explain its gradient ∂W = δ xᵀ; only one if the bias is shared, because ∂b = δ."""
    weight = victim.model.get_parameter(head.weight).detach().double().cpu()
    own = 0.0 if head.bias is None else victim.model.get_parameter(head.bias).detach().double().cpu()
    gradient = signal[head.weight].double().cpu()
    if not gradient.any():
        raise Inapplicable(f"the gradient of {head.weight} is zero, so nothing can be computed from it")
    if head.bias is not None and head.bias in signal and signal[head.bias].any():
        return [_from_bias(victim, channel, gradient, signal[head.bias].double().cpu(), weight, own)]
    return _from_scores(victim, channel, gradient, weight, own)


def factor_of(channel: Channel) -> float:
    """The factor by which the channel multiplies the gradient of one step."""
    one = single_client(channel)
    return -one.lr if isinstance(one, TrainsLocally) else 1.0


def _from_bias(
    victim: Victim, channel: Channel, gradient: Tensor, slope: Tensor, weight: Tensor, own: Tensor | float
) -> Start:
    """x = ∂Wᵀ∂b / ‖∂b‖², for any common factor of both. Under cross entropy p − y at x determines the factor."""
    x, factor = gradient.T @ slope / slope.square().sum(), factor_of(channel)
    if not is_cross_entropy(victim.loss) or len(slope) < 2:
        return Start(x, slope / factor, factor)
    residuals = (weight @ x + own).softmax(0) - torch.eye(len(slope), dtype=x.dtype)  # row c: p − y for label c
    fit = F.cosine_similarity(residuals, (slope if factor > 0 else -slope)[None], dim=1)
    residual = residuals[int(fit.argmax())]
    if not fit.max() > 0:  # noise: no label explains it
        return Start(x, slope / factor, factor)
    found = float(slope @ residual / residual.square().sum())
    changed = abs(found / factor - 1) > FITS
    note = f"the gradient was multiplied by {found / factor:.3g} in transit; this was undone" if changed else ""
    return Start(x, slope / found, found, note)


def _from_scores(
    victim: Victim, channel: Channel, gradient: Tensor, weight: Tensor, own: Tensor | float
) -> list[Start]:
    """Without ∂b only the direction u of δ = a·u is known. Then x = ∂Wᵀu / a, and a solves a·u = p(W x + b) − y.

    The equation may have several solutions: inputs that give the same gradient.

    Ref: R-GAP (Zhu and Blaschko 2021), twin data — the last layer from the loss; two inputs with one gradient
    """
    factor = factor_of(channel)
    left, singular, _ = torch.linalg.svd(gradient / factor, full_matrices=False)
    if len(singular) > 1 and singular[1] > ONE_VECTOR * singular[0]:
        raise Inapplicable(
            "the gradient of the head is not a product of two vectors: it is not from one sample, or was changed in transit"
        )
    probabilities, tried = _cases(victim, left[:, 0])
    found: list[Start] = []
    for direction, target in tried:
        ray = (gradient / factor).T @ direction

        def wrong(length: Tensor, direction: Tensor = direction, target: Tensor = target, ray: Tensor = ray) -> Tensor:
            """p − y − a·u for lengths a (n,), one row each."""
            scores = (weight @ ray)[None] / length[:, None] + own
            return probabilities(scores) - target - length[:, None] * direction

        longest = 1 / float(direction.abs().max())  # no entry of p − y is larger than 1
        fitting = [a for a in _roots(lambda a, d=direction, w=wrong: w(a) @ d, longest) if _fits(wrong, a)]
        found += [Start(ray / a, a * direction, factor) for a in fitting]
    if not found:
        raise Inapplicable(
            "no scores explain the gradient of the head, and its bias is not shared: it was changed in transit"
        )
    return found


def _fits(wrong: Callable[[Tensor], Tensor], length: float) -> bool:
    return float(wrong(torch.tensor([length], dtype=torch.float64)).norm()) <= FITS * length


def _cases(victim: Victim, direction: Tensor) -> tuple[Callable[[Tensor], Tensor], list[tuple[Tensor, Tensor]]]:
    """The probabilities of the loss, and the possible directions of δ with their targets."""
    if len(direction) == 1 and _is_logistic(victim.loss):
        one = torch.ones(1, dtype=direction.dtype)
        return torch.sigmoid, [(one, 0 * one), (-one, one)]
    if len(direction) < 2 or not is_cross_entropy(victim.loss):
        raise Inapplicable(
            "not shared: the bias of the head, without which R-GAP needs cross entropy or the logistic loss"
        )
    signs = direction.sign()
    label = [c for c in range(len(signs)) if bool((signs[c] * signs <= 0).sum() == len(signs) - 1)]
    if not label:
        raise Inapplicable("no row of the head's gradient opposes all others, so no label explains it")
    targets = torch.eye(len(signs), dtype=direction.dtype)
    return lambda scores: scores.softmax(1), [(-signs[c] * direction, targets[c]) for c in label]


def _is_logistic(loss: object) -> bool:
    if isinstance(loss, nn.BCEWithLogitsLoss):
        return loss.weight is None and loss.pos_weight is None
    return loss is F.binary_cross_entropy_with_logits


def _roots(value: Callable[[Tensor], Tensor], longest: float) -> list[float]:
    """Where a function on (0, longest] changes its sign, by a grid that is fine near zero and bisection."""
    even = torch.linspace(0, 1, GRID + 1, dtype=torch.float64)[1:]
    grid = torch.cat([10 ** (-12 * (1 - even)), even]).unique() * longest
    signs = value(grid).sign()
    found: list[float] = []
    for i in (signs[1:] != signs[:-1]).nonzero().flatten().tolist():
        low, high = float(grid[i]), float(grid[i + 1])
        for _ in range(100):
            middle = (low + high) / 2
            if float(value(torch.tensor([middle], dtype=torch.float64)).sign()) == float(signs[i]):
                low = middle
            else:
                high = middle
        found.append((low + high) / 2)
    return found
