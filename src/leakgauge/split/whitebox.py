"""What a cloud that knows the edge's weights computes back from the features of a few images, without training a network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from leakgauge.channels import Features
from leakgauge.core import Defense, Victim, share
from leakgauge.errors import Inapplicable
from leakgauge.graphs import find_point, fixed_draws, trace_of
from leakgauge.inversion.least_squares import LeastSquares
from leakgauge.split.cache import cache_features
from leakgauge.split.inverters import Inverter, LinearInverter
from leakgauge.split.scan import CutRisk, Images, score_images

LEAST_SQUARES = "least squares"
PASSES = 360
"""Forward passes of the edge that five steps are worth, with their derivatives."""
WORK = 2e11
"""FLOPs for one cut: about 20 seconds of one core."""
FEWEST, MOST = 2, 8
"""Images that are attacked, as many as the work allows."""


@dataclass(frozen=True)
class WhiteBox:
    """Regression first, then the image that gives exactly the features that were sent: ``solver`` starts at what ``start`` decodes.

    The regression knows what images look like, the solver knows the edge. ``work`` bounds images and steps by the edge's FLOPs.
    """

    solver: LeastSquares = field(default_factory=LeastSquares)
    start: Inverter = field(default_factory=LinearInverter)
    work: float = WORK

    def __call__(
        self,
        victim: Victim,
        cut: str,
        auxiliary: Images,
        test: Images,
        *,
        flops: int = 0,
        defenses: Sequence[Defense] = (),
        folder: Path | None = None,
        seed: int = 0,
    ) -> tuple[CutRisk, Tensor | None]:
        """The scores and the images; a refusal instead of both where the features cannot be used."""
        began = time.perf_counter()
        count, solver = self.within(flops)
        few = test.images[:count]
        x = victim.space.encode(few.to(victim.device, victim.dtype))
        y = torch.zeros(len(few), dtype=torch.long, device=victim.device)
        z = _side_by_side(tuple(share(victim, Features(cut), x, y, defenses=defenses, seed=seed).signal.values()))
        try:
            if not bool(torch.isfinite(z).all()):
                raise Inapplicable("the features hold NaN or infinity")
            learned = cache_features(victim, auxiliary.images, [cut], defenses=defenses, folder=folder, seed=seed)[cut]
            decode = self.start(learned, auxiliary.images, epochs=1, seed=seed)
            z = z.to(
                torch.promote_types(z.dtype, torch.float32)
            )  # 16 bits are too coarse for a search, and have no transform
            start = decode(z.unflatten(1, tuple(learned.shape[1:])).to(learned.device)).to(z)
            edge = trace_of(victim).edge(find_point(trace_of(victim), cut).name)

            def sent(images: Tensor) -> Tensor:
                with fixed_draws(victim):
                    return _side_by_side(edge(victim.space.encode(images.to(victim.dtype)))).to(z)

            made = solver(sent, z, start).detach().float().cpu().clamp(0, 1)
            if not bool(torch.isfinite(made).all()):
                raise Inapplicable("least squares diverged: its images hold NaN")
        except Inapplicable as refusal:
            return CutRisk(cut, refusal=str(refusal), by=LEAST_SQUARES, seconds=time.perf_counter() - began), None
        row = score_images(cut, made, auxiliary, test, seed=seed)
        return replace(row, by=LEAST_SQUARES, seconds=time.perf_counter() - began), made

    def within(self, flops: int) -> tuple[int, LeastSquares]:
        """How many images, and how many steps, the work allows where the edge takes ``flops`` for one image."""
        each = max(1, PASSES * flops)
        count = min(MOST, max(FEWEST, int(self.work / each)))
        share = min(1.0, self.work / (count * each))
        return count, replace(self.solver, steps=max(1, round(share * self.solver.steps)))


def _side_by_side(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten(1) for tensor in tensors], 1)
