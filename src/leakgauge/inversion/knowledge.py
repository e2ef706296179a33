"""Where an adversary gets the client's normalisation statistics: exactly, by proxy, or naively."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from leakgauge.channels.facts import clients, require_shared, single_client
from leakgauge.core import Observation, Signal, TrainsLocally, Victim
from leakgauge.engine.reference import capturing
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion.labels import batch_size
from leakgauge.inversion.statistics import (
    Moments,
    batch_moments,
    layer_moments,
    normalisation_layers,
    retained_weight,
    tracking_layers,
)

ROUNDING = 1e-3
"""How far below zero, as a share of a running variance, rounding to 32 or 16 bits may put a batch's variance, before 1/(1 − w)."""


@dataclass(frozen=True, eq=False)
class KnownStatistics:
    """The statistics that the adversary assumes, by layer, and one sentence that says where they come from."""

    moments: Mapping[str, Moments]
    note: str


class StatisticsSource(Protocol):
    """Finds statistics in the observation. ``labels`` are the adversary's own, or None if it has none."""

    def __call__(
        self, victim: Victim, seen: Observation, labels: Tensor | None, /, *, rng: torch.Generator
    ) -> KnownStatistics: ...


@dataclass(frozen=True)
class ExactStatistics:
    """The batch's own statistics, solved from the running statistics before the update (public) and after it (shared).

    Momentum is read from every layer, including momentum None (a plain average). Layers that the model itself keeps in eval
    mode are left out. Several local steps on one batch give the average of the steps' statistics, and the note says so; steps
    on different minibatches are refused.

    Ref: Valadi et al. 2026, section 4.3.2 — exact batch statistic inference via shared running statistics
    """

    def __call__(
        self, victim: Victim, seen: Observation, labels: Tensor | None, /, *, rng: torch.Generator
    ) -> KnownStatistics:
        if seen.buffers is None:
            raise Inapplicable("not shared: running statistics after the update")
        if victim.mode != "train":
            raise Inapplicable("the client runs in eval mode, where running statistics do not change")
        layers = tuple(name for name in _tracking(victim) if victim.model.get_submodule(name).training)
        if not layers:
            raise Inapplicable(
                "the model keeps its batch normalisation in eval mode, so running statistics do not change"
            )
        size, updates = _updates(seen)
        values = _values_per_channel(victim, layers, size, rng)
        before = victim.buffers()
        found = {}
        for name in layers:
            momentum = getattr(victim.model.get_submodule(name), "momentum", None)
            if momentum == 0:
                raise Inapplicable(f"{name} has momentum 0, so its running statistics say nothing about the batch")
            tracked = before.get(f"{name}.num_batches_tracked")
            weight = retained_weight(momentum, updates=updates, tracked=0 if tracked is None else int(tracked))
            old, new = _running(before, name), _running(seen.buffers, name)
            found[name] = batch_moments(old, new, retained=weight, n=values[name])
            if bool((found[name].var < -ROUNDING * (old.var + new.var) / (1 - weight)).any()):
                raise Inapplicable(
                    f"the shared running variances of {name} belong to no batch (one would be negative): they were rounded, noised or "
                    "averaged, or the layer has another momentum"
                )
        note = f"statistics: exact{_rounding(seen.buffers, layers)}, of {len(found)} layers"
        if updates > 1:
            note = f"statistics: averaged over {updates} local steps, of {len(found)} layers (an approximation)"
        return KnownStatistics(found, note)


def _rounding(buffers: Signal, layers: tuple[str, ...]) -> str:
    """A remark for running statistics of few bits: their rounding grows by one over the momentum."""
    kinds = {buffers[f"{name}.running_mean"].dtype for name in layers}
    short = sorted(str(kind).removeprefix("torch.") for kind in kinds if kind.itemsize < 4)
    return f" up to rounding to {' and '.join(short)}" if short else ""


def _updates(seen: Observation) -> tuple[int, int]:
    """Samples per local step, and number of local steps."""
    size = batch_size(seen)
    if clients(seen.channel) > 1:
        raise Inapplicable(
            "the running statistics of several clients were averaged, so their batches cannot be separated"
        )
    channel = single_client(seen.channel)
    if not isinstance(channel, TrainsLocally):
        return size, 1
    steps = channel.batches(size)
    if len(steps) > 1 and len(steps[0]) < size:
        raise Inapplicable("local steps used different minibatches, so their statistics cannot be separated")
    return len(steps[0]), len(steps)


def _values_per_channel(victim: Victim, layers: tuple[str, ...], size: int, rng: torch.Generator) -> dict[str, int]:
    """n = B·H·W of each layer, from a pass of noise through the public model. Refuses a layer that is used twice."""
    probe = victim.space.start(size, rng).to(victim.device, victim.dtype)
    before, after = victim.buffers(), victim.buffers()
    with torch.no_grad(), capturing(victim.model, layers) as inputs:
        victim(probe, buffers=after)
    for name in layers:
        count = f"{name}.num_batches_tracked"
        if name not in inputs or (count in after and int(after[count] - before[count]) != 1):
            raise Inapplicable(f"{name} is not used exactly once in a pass, so its updates cannot be separated")
    return {name: inputs[name].numel() // inputs[name].shape[1] for name in layers}


def _tracking(victim: Victim) -> tuple[str, ...]:
    layers = tracking_layers(victim)
    if not layers:
        raise Inapplicable("the model has no batch normalisation with running statistics")
    return layers


def _running(buffers: Signal, name: str) -> Moments:
    return Moments(require_shared(buffers, f"{name}.running_mean"), require_shared(buffers, f"{name}.running_var"))


@dataclass(frozen=True)
class RunningStatistics:
    """The running statistics themselves, as if they were the batch's: those shared after the update, or else the public ones.

    Ref: Huang et al. 2021, section 3.2 — running statistics in place of the batch's
    """

    def __call__(
        self, victim: Victim, seen: Observation, labels: Tensor | None, /, *, rng: torch.Generator
    ) -> KnownStatistics:
        layers = _tracking(victim)
        shared = seen.buffers is not None
        buffers = victim.buffers() if seen.buffers is None else seen.buffers
        which = "shared after the update" if shared else "of the public model"
        return KnownStatistics(
            {name: _running(buffers, name) for name in layers},
            f"statistics: running ones {which}, of {len(layers)} layers",
        )


@dataclass(frozen=True)
class ProxyStatistics:
    """Statistics of the auxiliary batches with the gradients best aligned with the observed one.

    ``candidates`` batches are drawn from the revealed auxiliary images and sent through the channel with the adversary's
    labels; the statistics of the ``keep`` best aligned (largest cosine) are averaged. This works for batch normalisation and
    for layers that normalise each sample separately.

    Ref: Valadi et al. 2026, section 4.3.3 — proxy normalisation statistics
    """

    candidates: int = 32
    keep: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.keep <= self.candidates:
            raise BadInput(
                f"ProxyStatistics needs to keep between 1 and all {self.candidates} candidates, got {self.keep}"
            )

    def __call__(
        self, victim: Victim, seen: Observation, labels: Tensor | None, /, *, rng: torch.Generator
    ) -> KnownStatistics:
        layers = normalisation_layers(victim)
        if not layers:
            raise Inapplicable(
                "the model has no batch, layer or group normalisation, so there are no statistics to match"
            )
        if seen.auxiliary is None:
            raise Inapplicable("proxy statistics need auxiliary images, but none were revealed; reveal some")
        if labels is None:
            raise Inapplicable(
                "proxy batches need labels for their gradients, but none could be read; reveal the labels"
            )
        batches = draw_batches(len(seen.auxiliary), batch_size(seen), self.candidates, rng=rng)
        images = seen.auxiliary.to(victim.device, victim.dtype)
        scores = torch.stack([gradient_alignment(victim, seen, images[rows], labels) for rows in batches])
        best = scores.argsort(descending=True)[: self.keep].tolist()
        found = [measure_moments(victim, layers, images[batches[i]]) for i in best]
        mean = {
            name: Moments(
                torch.stack([one[name].mean for one in found]).mean(0),
                torch.stack([one[name].var for one in found]).mean(0),
            )
            for name in found[0]
        }
        return KnownStatistics(
            mean,
            f"statistics: proxy, best {len(best)} of {len(batches)} auxiliary batches "
            f"(cosine {float(scores.max()):.3f}, median {float(scores.median()):.3f})",
        )


def draw_batches(images: int, size: int, count: int, *, rng: torch.Generator) -> list[Tensor]:
    """``count`` batches of ``size`` distinct indices below ``images``."""
    if images < size:
        raise Inapplicable(f"a proxy batch needs {size} auxiliary images, but there are {images}")
    return [torch.randperm(images, generator=rng)[:size] for _ in range(count)]


def gradient_alignment(victim: Victim, seen: Observation, x: Tensor, y: Tensor) -> Tensor:
    """cos(channel(victim, x, y), g*) over the shared tensors: how well a batch explains the observation.

    Ref: Valadi et al. 2026, section 4.3.3 — alignment of a proxy batch's gradient
    """
    with torch.no_grad():
        signal = seen.channel(victim, x, y)
    pairs = [(signal[name].flatten(), target.to(signal[name]).flatten()) for name, target in seen.signal.items()]
    dot, own, wanted = (
        torch.stack([f(g, t) for g, t in pairs]).sum()
        for f in (torch.dot, lambda g, t: torch.dot(g, g), lambda g, t: torch.dot(t, t))
    )
    return dot / (own.sqrt() * wanted.sqrt()).clamp_min(1e-30)


def measure_moments(victim: Victim, layers: tuple[str, ...], x: Tensor) -> dict[str, Moments]:
    """Moments of one batch x (B, ...) at each layer that it reaches, in the victim's mode."""
    with torch.no_grad(), capturing(victim.model, layers) as inputs:
        victim(x)
    found = {name: layer_moments(victim.model.get_submodule(name), inputs[name][None]) for name in inputs}
    return {name: Moments(m.mean[0], m.var[0]) for name, m in found.items()}


@dataclass(frozen=True)
class Strongest:
    """The best statistics that the observation allows: exact, else by proxy, else none.

    Public running statistics are not a third choice: if they differ from the batch's, they pull the search away from it.
    """

    proxy: ProxyStatistics = ProxyStatistics()

    def __call__(
        self, victim: Victim, seen: Observation, labels: Tensor | None, /, *, rng: torch.Generator
    ) -> KnownStatistics:
        reasons: list[str] = []
        for source in (ExactStatistics(), self.proxy):
            try:
                known = source(victim, seen, labels, rng=rng)
                refused = f", not exact: {reasons[0]}" if reasons and seen.buffers is not None else ""
                return KnownStatistics(known.moments, known.note + refused)
            except Inapplicable as reason:
                reasons.append(str(reason))
        return KnownStatistics({}, f"statistics: none ({', '.join(reasons)})")
