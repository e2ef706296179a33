"""NVFlare's filter that sends only the largest changes, and none of them whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leakgauge.channels.rows import as_rows, column
from leakgauge.core import Signal
from leakgauge.core.examples import example
from leakgauge.defenses.arrays import as_array
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked

ROUNDING = 1e-6


@example(percentile=50, gamma=0.001, neutral={"percentile": 0, "gamma": 1e30})
@checked
@dataclass(frozen=True)
class PercentilePrivacy:
    """Zero below the ``percentile`` of all magnitudes, the rest cut off at ±``gamma``: ``PercentilePrivacy`` of NVFlare 2.9, bit by bit.

    Values and defaults are the platform's. The cut-off is one for all tensors; numbers without a dimension are sent as they are. It adds
    no noise and gives no guarantee. Outside 0 to 100, and for a gamma that is not positive, NVFlare sends the plain update and says so
    only to its debug log; here that is refused. ``steps``: local steps, by which NVFlare divides an update before it compares.

    Ref: Shokri and Shmatikov 2015, selective sharing — selective sharing of the largest gradients
    """

    percentile: float = 10
    gamma: float = 0.01
    steps: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.percentile <= 100 or not self.gamma > 0:
            raise BadInput(
                f"PercentilePrivacy needs a percentile from 0 to 100 and a positive gamma, got {self.percentile} and {self.gamma}; "
                "NVFlare would send the plain update"
            )
        if self.steps < 1:
            raise BadInput(f"PercentilePrivacy needs at least 1 local step, got {self.steps}")

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        own = {name: as_array(t) / self.steps for name, t in signal.items()}
        cutoff = self._cutoff(list(own.values()))
        sent = {}
        for name, diff in own.items():
            if np.ndim(diff):
                diff[(diff > -cutoff) & (diff < cutoff)] = 0.0
                diff = np.clip(diff, a_min=-self.gamma, a_max=self.gamma)
            sent[name] = torch.as_tensor(diff * self.steps).to(signal[name])
        return sent

    def _cutoff(self, values: Sequence[np.ndarray]) -> np.ndarray:
        return np.percentile(np.concatenate([np.abs(v.ravel()) for v in values]), q=self.percentile)

    def doubts(self, signal: Signal, /) -> tuple[str, ...]:
        """Why the filter does less than its options say."""
        if not signal or not self.percentile:
            return ()
        cutoff = self._cutoff([as_array(t) for t in signal.values()])
        if cutoff > 0:
            return ()
        zeros = sum(int((t == 0).sum()) for t in signal.values()) / sum(t.numel() for t in signal.values())
        return (
            f"PercentilePrivacy drops nothing: {zeros:.0%} of the update is zero (frozen layers), so its {self.percentile:g}th percentile "
            "is 0",
        )

    def replayed(self, plain: Signal, /) -> Signal:
        """``plain``, filtered."""
        rows = [self({n: t[i] for n, t in plain.items()}, rng=torch.Generator()) for i in range(_rows(plain))]
        return {name: torch.stack([row[name] for row in rows]) for name in plain}

    def nearest(self, plain: Signal, sent: Signal, /) -> Signal:
        """What was sent between the two bounds; beyond gamma where it was cut off, and below the smallest that was sent where it is 0."""
        most = self.gamma * self.steps
        each = [torch.where(as_rows(t) != 0, as_rows(t).abs(), torch.inf).amin(1) for t in sent.values() if t.dim() > 1]
        smallest = torch.stack(each).amin(0)
        smallest = torch.where(smallest < most * (1 - ROUNDING), smallest, torch.inf)  # the cut-off may be beyond gamma
        return {name: self._before(plain[name], t, smallest, most) for name, t in sent.items()}

    def _before(self, plain: Tensor, sent: Tensor, smallest: Tensor, most: float) -> Tensor:
        if sent.dim() == 1:  # a number without a dimension, one for each row
            return sent
        bound = column(smallest, sent)
        below = plain.clamp(-bound, bound) if self.percentile else sent
        cut = sent.abs() >= most * (1 - ROUNDING)
        beyond = torch.where(sent > 0, plain.clamp_min(most), plain.clamp_max(-most))
        return torch.where(sent == 0, below, torch.where(cut, beyond, sent))


def _rows(signal: Signal) -> int:
    return len(next(iter(signal.values())))
