"""NVFlare's filter that sends a few noisy entries, chosen by the sparse vector technique."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from leakgauge.core import Signal
from leakgauge.core.examples import example
from leakgauge.defenses.arrays import as_array
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked

CHUNK = 1_000_000
"""Entries that NVFlare draws noise for at once; the order of the draws depends on it."""


@example(fraction=0.3, epsilon=10.0, gamma=0.1, tau=0.01, neutral={"active": False})
@checked
@dataclass(frozen=True)
class SVTPrivacy:
    """``SVTPrivacy`` of NVFlare 2.9 with its defaults, bit by bit for the same stream of random numbers.

    A ``fraction`` of all entries is sent: those with |clip(g, ±gamma)| + Laplace noise above tau + Laplace noise, drawn until there are
    enough, and each with Laplace noise of scale 2·gamma/noise_var added. With n entries sent, the choice of them spends ``epsilon`` and
    their values n · ``noise_var``: :meth:`spent`. Without ``active`` the signal stays as it is.

    Ref: Lyu et al. 2017, the standard algorithm — the sparse vector technique, as NVFlare's SVTPrivacy uses it
    """

    fraction: float = 0.1
    epsilon: float = 0.1
    noise_var: float = 0.1
    gamma: float = 1e-5
    tau: float = 1e-6
    replace: bool = True
    active: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1 or min(self.epsilon, self.noise_var, self.gamma) <= 0:
            raise BadInput(
                f"SVTPrivacy needs a fraction above 0 and at most 1, and a positive epsilon, noise_var and gamma; got {self}"
            )

    def sent_entries(self, entries: int) -> int:
        """How many of so many entries are sent."""
        return min(math.ceil(entries * self.fraction), entries)

    def spent(self, entries: int) -> float:
        """ε of one update of so many entries, by adding up what each part spends; no δ.

        >>> SVTPrivacy().spent(100)
        1.1
        """
        return self.epsilon + self.sent_entries(entries) * self.noise_var

    def doubts(self, signal: Signal, /) -> tuple[str, ...]:
        """Why the filter does less than its options say."""
        entries = sum(t.numel() for t in signal.values())
        total = self.spent(entries)
        if not self.active or total <= 2 * self.epsilon:
            return ()
        return (
            f"SVTPrivacy spends ε = {total:,.0f} in each round, not {self.epsilon:g}: the values of {self.sent_entries(entries):,} "
            f"entries cost {self.noise_var:g} each",
        )

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        if not self.active:
            return dict(signal)
        draw = np.random.RandomState(int(torch.randint(2**31, (), generator=rng)))
        return self.filtered(signal, draw)

    def filtered(self, signal: Signal, draw: np.random.RandomState) -> Signal:
        """What is sent if the noise comes from ``draw``."""
        names = sorted(signal)
        flat = [as_array(signal[name]).reshape(-1) for name in names]
        count = self.sent_entries(sum(v.size for v in flat))
        accepted = self._accepted(flat, count, draw)
        taken = _parts([int(mask.sum()) for mask in accepted], count, self.replace, draw)
        out: dict[str, torch.Tensor] = {}
        for name, values, mask, wanted in zip(names, flat, accepted, taken, strict=True):
            found = np.zeros_like(values)
            chunks = list(_chunks(values.size))
            inside = (
                _parts([int(mask[c].sum()) for c in chunks], wanted, self.replace, draw)
                if len(chunks) > 1
                else [wanted]
            )
            for chunk, some in zip(chunks, inside, strict=True):
                if some > 0 and signal[name].dim():
                    chosen = draw.choice(np.flatnonzero(mask[chunk]), size=some, replace=self.replace)
                    noise = draw.laplace(scale=2.0 * self.gamma / self.noise_var, size=some)
                    kept = np.clip(values[chunk][chosen].astype(np.float64), -self.gamma, self.gamma)
                    found[chunk][chosen] = kept + noise
            sent = torch.from_numpy(found).view(signal[name].shape).to(signal[name])
            out[name] = sent if signal[name].dim() else signal[name].clone()
        return {name: out[name] for name in signal}

    def _accepted(self, flat: Sequence[np.ndarray], count: int, draw: np.random.RandomState) -> list[np.ndarray]:
        ratio = (2.0 * count) ** (2.0 / 3.0)
        for_threshold = self.epsilon / (1.0 + ratio)
        threshold = self.tau + draw.laplace(scale=self.gamma / for_threshold)
        scale = self.gamma * 2.0 * count / (self.epsilon - for_threshold)
        if threshold - self.gamma > 40 * scale:  # beyond any noise that is ever drawn
            raise BadInput(
                f"SVTPrivacy with tau={self.tau:g}, gamma={self.gamma:g} and epsilon={self.epsilon:g} would look for entries to send for "
                "ever; lower tau or epsilon"
            )
        if not all(np.isfinite(v).all() for v in flat):
            raise BadInput("SVTPrivacy cannot filter an update that holds NaN or Inf")
        accepted = [np.zeros(v.size, dtype=bool) for v in flat]
        while sum(int(mask.sum()) for mask in accepted) < count:
            for values, mask in zip(flat, accepted, strict=True):
                for chunk in _chunks(values.size):
                    left = np.flatnonzero(~mask[chunk])
                    if not left.size:
                        continue
                    answer = np.abs(np.clip(values[chunk][left].astype(np.float64), -self.gamma, self.gamma))
                    answer += draw.laplace(scale=scale, size=left.size)
                    mask[chunk][left[answer >= threshold]] = True
        return accepted

    def replayed(self, plain: Signal, /) -> Signal:
        """``plain``, cut off at gamma: which entries are sent is left to chance."""
        return {name: t.clamp(-self.gamma, self.gamma) if self.active else t for name, t in plain.items()}

    def nearest(self, plain: Signal, sent: Signal, /) -> Signal:
        """What was sent, and ``plain`` where nothing was."""
        if not self.active:
            return sent
        return {name: torch.where(t != 0, t, plain[name]) for name, t in sent.items()}


def _chunks(size: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, size)) for start in range(0, size, CHUNK))


def _parts(groups: Sequence[int], total: int, replace: bool, draw: np.random.RandomState) -> list[int]:
    """``total`` draws, dealt to groups by their sizes; the last group takes what is left."""
    found: list[int] = []
    left, wanted = sum(groups), total
    for place, group in enumerate(groups):
        if place == len(groups) - 1:
            taken = wanted
        elif not wanted or not group:
            taken = 0
        elif replace:
            taken = int(draw.binomial(wanted, float(group) / float(left)))
        else:
            taken = int(draw.hypergeometric(ngood=group, nbad=left - group, nsample=wanted))
        found.append(taken)
        left -= group
        wanted -= taken
    return found
