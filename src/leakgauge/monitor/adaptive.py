"""Noise that adapts to leakage: what may control it, and how far down it may go.

The noise scale of a step is visible in what the step releases. So it may only depend on earlier *released* outputs and on public
data. Two numbers qualify: :class:`CanaryScore` and :class:`PrivateStatistic`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakgauge.channels.rows import as_rows
from leakgauge.core import Loss
from leakgauge.errors import BadInput
from leakgauge.measures.membership import auc, decode
from leakgauge.measures.rdp import RDPFilter
from leakgauge.monitor.whitebox import per_sample_gradients, products, whole_gradient


@dataclass(frozen=True)
class ReleasedValue:
    """A number in [0, 1] that is public within the budget: paid for, or computed only from released values."""

    value: float
    source: str


@dataclass(frozen=True, kw_only=True)
class NoiseSchedule:
    """The noise multiplier of the next step: ``floor`` up to a released value of ``low``, ``ceiling`` from ``high`` on, linear in between.

    Before anything was released it is the ceiling. The floor must be positive: a single step without noise has no finite ε.
    """

    floor: float
    ceiling: float
    low: float = 0.5
    high: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.floor <= self.ceiling < float("inf"):
            raise BadInput(
                f"a schedule needs 0 < floor <= ceiling, got {self.floor} and {self.ceiling}; a step without noise has no finite eps"
            )
        if not 0 <= self.low < self.high <= 1:
            raise BadInput(f"a schedule needs 0 <= low < high <= 1, got {self.low} and {self.high}")

    def __call__(self, seen: ReleasedValue | None) -> float:
        if seen is None:
            return self.ceiling
        if not isinstance(seen, ReleasedValue):
            raise BadInput(refusal(seen))
        share = min(max((seen.value - self.low) / (self.high - self.low), 0.0), 1.0)
        return self.floor + share * (self.ceiling - self.floor)


@dataclass(frozen=True, kw_only=True)
class PrivateStatistic:
    """The share of a batch's samples with a trace in the released gradient, itself released with noise.

    (Σᵢ(sᵢ - ½) + N(0, ``noise``²)) / B + ½, where sᵢ in [0, 1] is a score of sample i *alone* (and of public data), B the expected
    batch size. Adding or removing one sample changes the sum by at most ½, so the noise multiplier is 2·``noise``. It is queried
    every ``every`` steps.

    ``seed=None`` draws the noise from the operating system's entropy. A seed that others know voids the guarantee; use it in tests only.

    Ref: Andrew et al. 2021, section 2.2 — a private fraction of the batch, shifted by ½ to halve its sensitivity
    """

    noise: float
    every: int = 50
    threshold: float = 1.645
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.noise < float("inf") or self.every < 1:
            raise BadInput(f"a private statistic needs noise > 0 and every >= 1, got {self.noise} and {self.every}")

    @property
    def multiplier(self) -> float:
        """Standard deviation of the noise divided by the sensitivity."""
        return 2 * self.noise

    def generator(self) -> torch.Generator:
        rng = torch.Generator()
        if self.seed is None:
            rng.seed()
        else:
            rng.manual_seed(self.seed)
        return rng

    def spend(self, budget: RDPFilter, *, rate: float) -> RDPFilter:
        """The budget after querying a separate batch (Poisson, ``rate``) for this question; may raise ``Overspent``."""
        return budget.spend(noise=self.multiplier, rate=rate)

    def __call__(self, scores: Tensor, *, expected: float, rng: torch.Generator) -> ReleasedValue:
        """The noised mean of ``scores``, one per sample, over ``expected`` samples. The caller pays for it."""
        if scores.dim() != 1 or expected <= 0:
            raise BadInput(
                f"one score per sample and a positive size are needed, got {tuple(scores.shape)}, {expected}"
            )
        bounded = (
            scores.detach().double().cpu().nan_to_num(nan=0.0).clamp(0, 1)
        )  # any sample changes the sum by at most ½
        noise = torch.randn((), generator=rng, dtype=torch.float64) * self.noise
        value = float((bounded - 0.5).sum() + noise) / expected + 0.5
        return ReleasedValue(min(max(value, 0.0), 1.0), repr(self))


def matched_hits(
    released: Mapping[str, Tensor], samples: Mapping[str, Tensor], *, noise: float, threshold: float
) -> Tensor:
    """Per sample 1.0 if ⟨released, gᵢ⟩ / (‖gᵢ‖·``noise``) > ``threshold``, else 0.0; ``noise`` is that of one released entry.

    ``samples`` are per-sample gradients gᵢ of shape (n, *shape). This decoder looks at one sample at a time; in the white-box probe's
    joint regression, one sample can change the scores of all. It also hits if samples share a direction.
    """
    return (correlations(released, samples) / noise > threshold).double()


def correlations(released: Mapping[str, Tensor], samples: Mapping[str, Tensor]) -> Tensor:
    """⟨released, gᵢ⟩ / ‖gᵢ‖ for each sample's gradient gᵢ; 0 if the gradient vanishes or is not finite."""
    products, norms = [], []
    for name, gradients in samples.items():  # layer by layer: doubles of all layers at once would be large
        rows = as_rows(gradients.detach()).double()
        products.append(rows @ released[name].detach().flatten().double())
        norms.append(rows.square().sum(1))
    found = torch.stack(products).sum(0) / torch.stack(norms).sum(0).sqrt()
    return found.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


@dataclass(frozen=True, eq=False, kw_only=True)
class CanaryScore:
    """How well released gradients separate canaries in the training data (``inside``) from others (``outside``).

    Both are *public* pairs (x, y): known to everyone, not worth protecting. Weights and gradients are released, so the AUC of their
    shares is post-processing and costs no budget. Shares are summed over steps with a decay ``keep``; they are read every ``every``
    steps. 0.5 means no visible leak, 1 means that the canaries are fully separated.

    Ref: Andrew et al. 2024, section 3 — known canaries against what training releases
    """

    inside: tuple[Tensor, Tensor]
    outside: tuple[Tensor, Tensor]
    loss: Loss = nn.functional.cross_entropy
    every: int = 1
    keep: float = 0.98
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (x, y) in (("inside", self.inside), ("outside", self.outside)):
            if len(x) != len(y) or len(x) < 2:
                raise BadInput(
                    f"canaries {name} need as many labels as samples, at least two, got {len(x)} and {len(y)}"
                )
        if not 0 <= self.keep <= 1 or self.every < 1:
            raise BadInput(f"canaries need keep within [0, 1] and every >= 1, got {self.keep} and {self.every}")

    def read(self, model: nn.Module, released: Mapping[str, Tensor]) -> Tensor:
        """The canaries' shares in a released gradient, inside first, at the weights that produced it.

        Regresses on all canaries jointly, like the white-box probe: the influence of one canary needs no bound.
        """
        x, y = (torch.cat([a, b.to(a)]) for a, b in zip(self.inside, self.outside, strict=True))
        device = next(iter(released.values())).device
        names = whole_gradient({name: g.numel() for name, g in released.items()}, len(x))
        samples = per_sample_gradients(model, self.loss, names, x.to(device), y.to(device), seed=self.seed)
        found = products(samples, released)
        energy = float(torch.stack([released[name].detach().double().square().sum() for name in names]).sum())
        return decode(found.gram, found.cross, energy, sum(released[name].numel() for name in names))

    def __call__(self, sums: Tensor) -> ReleasedValue:
        """The AUC of the summed shares, inside against outside."""
        count = len(self.inside[0])
        return ReleasedValue(auc(sums[:count], sums[count:]).value, f"CanaryScore({count}, {len(sums) - count})")


Driver = CanaryScore | PrivateStatistic


def refusal(given: object) -> str:
    """Why ``given`` may not control the noise."""
    return (
        f"{type(given).__name__} may not control the noise: a critic, probe or mutual-information estimate is a function of private "
        f"gradients without a bound on one sample's influence, so the noise scale itself would leak; use CanaryScore or PrivateStatistic"
    )
