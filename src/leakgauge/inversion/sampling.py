"""Solvers that draw images from a diffusion prior and let the objective guide every step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from leakgauge.core import Pixels, Space
from leakgauge.engine import RecordedStep
from leakgauge.errors import BadInput
from leakgauge.inversion.solvers import Mover, Moving, Rows, check_steps


class Denoiser(Protocol):
    """E[x | x_a] for noisy images x_a = √(1 − a²)·x + a·ε with x in [−1, 1]: ``denoiser(x_a, a, label)``.

    x_a (N, C, H, W), levels a (N,) in (0, 1]; ``label`` (N,) are classes if they are known. ``classes`` is how many it knows; 0 for none.
    """

    @property
    def classes(self) -> int: ...
    def __call__(self, x: Tensor, level: Tensor, label: Tensor | None = None, /) -> Tensor: ...


def levels(steps: int, *, start: float = 1.0, end: float = 0.0) -> tuple[float, ...]:
    """``steps`` + 1 noise levels from ``start`` down to ``end``, evenly spaced in the angle whose sine is the level.

    >>> [round(a, 2) for a in levels(3)]
    [1.0, 0.87, 0.5, 0.0]
    """
    top, bottom = math.asin(start), math.asin(end)
    return tuple(math.sin(bottom + (top - bottom) * (steps - i) / steps) for i in range(steps + 1))


@dataclass(frozen=True, eq=False)
class Guided:
    """One step as a guidance sees it: noisy images x (R, B, ...) at level ``now``, on the way to level ``after``.

    ``clean`` is E[x₀ | x], ``slope`` the gradient of the objective with respect to ``x`` or to ``clean``, ``noise`` fresh N(0, 1).
    """

    x: Tensor
    clean: Tensor
    slope: Tensor
    noise: Tensor
    now: Tensor
    after: Tensor

    def direction(self) -> Tensor:
        """The slope of each row with length 1; zero where there is no slope."""
        return self.slope / _length(self.slope).clamp_min(_TINY)

    def estimated_noise(self, clean: Tensor) -> Tensor:
        """The noise ε̂ that x holds if ``clean`` is the image in it."""
        return (self.x - share_of_image(self.now) * clean) / self.now


_TINY = 1e-20


def _length(rows: Tensor) -> Tensor:
    return rows.flatten(1).norm(dim=1).view(-1, *[1] * (rows.dim() - 1))


def share_of_image(level: Tensor) -> Tensor:
    """√ᾱ = √(1 − a²) at the noise level a."""
    return (1 - level.square()).clamp_min(0).sqrt()


class Guidance(Protocol):
    """Makes the noisy images of the next level. ``through`` is whether the slope is taken through the denoiser, with respect to x."""

    @property
    def through(self) -> bool: ...
    def __call__(self, at: Guided, /) -> Tensor: ...


@dataclass(frozen=True)
class Spherical:
    """DSG: of all points that the sampler could draw, the one that lowers the objective most, mixed with a drawn one.

        μ = √ᾱ' x̂₀ + √(a'² − σ²) ε̂,    σ² = (a'/a)² (1 − ᾱ/ᾱ'),    r = √n σ
        d* = −r ∇/‖∇‖,    d = σε + ``mixing`` · (d* − σε),    x' = μ + r d/‖d‖

    Primes mark the next level, n is the number of values in an image, ∇ the gradient of the objective with respect to x. x̂₀ is clipped to
    [−1, 1], and ε̂ is the noise beside it, as in the authors' code. A Gaussian in many dimensions is concentrated on the sphere of radius r
    around its mean, so x' stays where the denoiser was trained. With mixing 0 it is the sampler of DDPM, with a length of r for its noise.
    The authors use a mixing of 0.2 in every step.

    Ref: Yang et al. 2024 — guidance with spherical Gaussian constraint
    Ref: Huang et al. 2024 — the same step, guided by the distance between gradients
    """

    mixing: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.mixing <= 1:
            raise BadInput(f"the mixing of a spherical step is between 0 and 1, got {self.mixing!r}")

    @property
    def through(self) -> bool:
        return True

    def __call__(self, at: Guided, /) -> Tensor:
        image, image_after = share_of_image(at.now), share_of_image(at.after)
        variance = (at.after / at.now).square() * (1 - (image / image_after).square()).clamp_min(0)
        deviation = variance.sqrt()
        left = (at.after.square() - variance).clamp_min(0).sqrt()
        clean = at.clean.clamp(-1, 1)
        mean = image_after * clean + left * at.estimated_noise(clean)
        radius = deviation * math.sqrt(at.x[0].numel())
        drawn = deviation * at.noise
        mixed = drawn + self.mixing * (-radius * at.direction() - drawn)
        moved = torch.where(_length(at.slope) > 0, radius * mixed / _length(mixed).clamp_min(_TINY), drawn)
        return mean + moved


@dataclass(frozen=True)
class FixedLength:
    """The denoised image is moved by a step of fixed ``length`` against the slope, then DDIM goes on from there without new noise.

        x̂₀' = x̂₀ − length · ∇/‖∇‖,    x' = √ᾱ' x̂₀' + a' ε̂

    The length is that of the whole batch of a row, in images scaled to [−1, 1]; ε̂ is what x holds beside the image before it was moved.
    """

    length: float = 1.0
    through: bool = True

    def __post_init__(self) -> None:
        if not self.length >= 0:
            raise BadInput(f"the length of a guided step must not be negative, got {self.length!r}")

    def __call__(self, at: Guided, /) -> Tensor:
        moved = at.clean - self.length * at.direction()
        return share_of_image(at.after) * moved + at.after * at.estimated_noise(at.clean)


@dataclass(frozen=True)
class Sampling:
    """``steps`` steps of a sampler from pure noise to an image, each moved by ``guidance``.

    Candidates are the denoised images E[x₀ | x], which the objective judges; without an objective (the null run) it is the plain
    sampler. With ``conditional`` a prior that knows classes is asked for the labels of the candidates, where these are known.
    """

    prior: Denoiser | None = None
    guidance: Guidance = field(default_factory=FixedLength)
    steps: int = 100
    conditional: bool = True

    def __post_init__(self) -> None:
        check_steps(self.steps)

    @property
    def together(self) -> bool:
        return True

    def begin(self, given: Moving, /) -> Mover:
        return _SamplingMover(self, given)


LABEL_STEP = 0.1
"""Step of the logits of labels that could not be read, along the sign of their gradient."""


class _Drawing:
    """What every mover that draws images has: its rows with their noisy images x, their classes and logits, and the objective."""

    def __init__(self, of: Sampling | Annealing, given: Moving) -> None:
        if of.prior is None:
            raise BadInput("sampling needs a diffusion prior; give prior=fit_diffusion(images)")
        self.prior, self.logits, self.losses = of.prior, given.logits, given.losses
        self.space, self.draws = given.space, given.draws
        self.labels = given.labels if of.conditional and self.prior.classes else None
        self.rows: Rows = slice(None)
        self.kind = given.x.dtype
        self.x = self.draws.normal(-1, given.x).float()
        self.scores = self.x.new_zeros(len(self.x))
        self._captured = RecordedStep(self._move) if self.x.device.type == "cuda" else None

    @property
    def note(self) -> str:
        return "" if self._captured is None else self._captured.note

    def _move(self) -> None:
        raise NotImplementedError

    def _step(self) -> None:
        if self._captured is None:
            self._move()
        else:
            self._captured()

    def _fresh(self, number: int) -> Tensor:
        """N(0, 1) for every row, the same for a restart in whatever company it runs."""
        return self.draws.take(self.rows).normal(number, self.x)

    def _denoised(self, x: Tensor, level: Tensor) -> Tensor:
        """E[x₀ | x] for rows of batches x (R, B, C, H, W) at one level."""
        known = None if self.labels is None else self.labels.flatten(0, 1)
        return self.prior(x.flatten(0, 1), level.expand(x.shape[0] * x.shape[1]), known).unflatten(0, x.shape[:2])

    def _slope(self, clean: Tensor, variable: Tensor) -> Tensor:
        """The gradient of the objective at the images ``clean`` with respect to ``variable``; labels that are not known move along."""
        variables = [variable] if self.logits is None else [variable, self.logits]
        each = self.losses(to_space(clean, self.space, self.kind), self.logits, self.rows)
        self.scores.copy_(each.detach())
        total = each.sum()
        if not total.requires_grad:  # a blind run
            return torch.zeros_like(variable)
        found, *of_labels = torch.autograd.grad(total, variables, allow_unused=True)
        if self.logits is not None and of_labels[0] is not None:
            with torch.no_grad():
                self.logits.sub_(LABEL_STEP * of_labels[0].sign())
        return torch.zeros_like(variable) if found is None else found

    def _judged(self, image: Tensor) -> None:
        logits = None if self.logits is None else self.logits.detach()
        self.losses(to_space(image, self.space, self.kind), logits, self.rows)

    def keep(self, count: int, best: Tensor) -> None:
        active = torch.arange(len(best), device=best.device)[self.rows]
        chosen = best[active].argsort()[:count]
        self.rows = active[chosen]
        self._choose(chosen)
        self._captured = None if self._captured is None else RecordedStep(self._move)

    def _choose(self, rows: Tensor) -> None:
        self.x, self.scores = self.x[rows].clone(), self.scores[rows].clone()
        self.labels = None if self.labels is None else self.labels[rows]
        self.logits = None if self.logits is None else self.logits.detach()[rows].clone().requires_grad_()


class _SamplingMover(_Drawing):
    def __init__(self, of: Sampling, given: Moving) -> None:
        super().__init__(of, given)
        self.guidance, self.path = of.guidance, levels(of.steps)
        self.noise = torch.zeros_like(self.x)
        self.now, self.after = self.x.new_zeros(()), self.x.new_zeros(())

    def __call__(self, number: int, /) -> None:
        self.now.fill_(self.path[number])
        self.after.fill_(self.path[number + 1])
        self.noise.copy_(self._fresh(number))
        self._step()

    def _move(self) -> None:
        through = self.guidance.through
        x = self.x.detach().requires_grad_(through)
        with torch.set_grad_enabled(through):
            clean = self._denoised(x, self.now)
        variable = x if through else clean.detach().requires_grad_()
        slope = self._slope(clean if through else variable, variable)
        with torch.no_grad():
            at = Guided(self.x, clean.detach(), slope, self.noise, self.now, self.after)
            self.x.copy_(self.guidance(at))

    def judge(self) -> None:
        self._judged(self.x)  # at level 0 the state is the image

    def _choose(self, rows: Tensor) -> None:
        super()._choose(rows)
        self.noise = self.noise[rows].clone()


def to_space(clean: Tensor, space: Space, kind: torch.dtype) -> Tensor:
    """Images in [−1, 1] as the model takes them, clipped; the clipping passes gradients on."""
    clipped = clean + (clean.detach().clamp(-1, 1) - clean.detach())
    low, high = space.bounds if isinstance(space, Pixels) else (0.0, 1.0)
    return space.encode(low + (clipped + 1) / 2 * (high - low)).to(kind)


def from_space(x: Tensor, space: Space) -> Tensor:
    """The inverse of :func:`to_space` for valid images."""
    return space.decode(x).float() * 2 - 1


@dataclass(frozen=True)
class Annealing:
    """At each of ``rounds`` noise levels, ``moves`` steps of descent on what the denoiser is given; then the image gets less noise.

        ``moves`` times  x ← x − reach · a · m,    m = momentum of ∇ₓ objective(x̂₀(x)) / rms(∇ₓ),    then  x' = √ᾱ' x̂₀(x) + a' ε

    x̂₀(x) = E[x₀ | x] is the denoised x at level a. The objective is followed through the denoiser, so candidates stay among the images that
    it can make, and the longer the less noise is left. ``reach`` is the length of a step for each pixel, in units of the noise; ε is fresh
    noise, which lets go of what an earlier level got wrong. Levels are evenly spaced in angle, from pure noise to ``LAST``.

    With ``select``, before noise is added the worst share of the restarts of a group gives way to copies of its best ones; fresh noise
    tells the copies apart again. A group has up to ``group`` restarts of one observation. After some levels all of a group descend from one
    restart; where that one is wrong, another group may not be.

    With ``refine``, the best quarter of each group then takes so many more moves on pixels, for detail that the denoiser cannot make. Their
    length falls from ``PIXELS`` for each pixel to 0 along half a cosine.

    Ref: Alkhouri et al. 2025 — the denoiser's input is optimised at every level, then noise is added again
    """

    prior: Denoiser | None = None
    rounds: int = 20
    moves: int = 10
    reach: float = 0.1
    conditional: bool = True
    select: float = 0.0
    group: int = 8
    refine: int = 0

    def __post_init__(self) -> None:
        check_steps(self.rounds)
        check_steps(self.moves)
        if not self.reach > 0:
            raise BadInput(f"the reach of a step must be positive, got {self.reach!r}")
        if not 0 <= self.select <= 0.5:
            raise BadInput(f"the share of restarts that give way is between 0 and 0.5, got {self.select!r}")
        if not isinstance(self.group, int) or self.group < 1:
            raise BadInput(f"a group of restarts has at least 1, got {self.group!r}")
        if not isinstance(self.refine, int) or self.refine < 0:
            raise BadInput(f"the steps that refine pixels are a number of at least 0, got {self.refine!r}")

    @property
    def steps(self) -> int:
        return self.rounds * self.moves + self.refine

    @property
    def together(self) -> bool:
        return True

    def begin(self, given: Moving, /) -> Mover:
        return _AnnealingMover(self, given)


LAST = 0.05
"""The lowest noise level at which the denoiser's input is moved: below it the denoiser returns what it is given."""
MOMENTUM = 0.9
PIXELS = 0.02
"""Length of the first step that refines pixels, for each of them, in images scaled to [−1, 1]."""
REFINED = 0.25
"""Share of the restarts of each group that are refined."""


class _AnnealingMover(_Drawing):
    def __init__(self, of: Annealing, given: Moving) -> None:
        super().__init__(of, given)
        self.of, self.path = of, levels(of.rounds - 1, end=LAST) if of.rounds > 1 else (1.0,)
        self.momentum = torch.zeros_like(self.x)
        self.now, self.rate = self.x.new_ones(()), self.x.new_zeros(())
        self.refining = False  # pixels
        self.owner = self.draws.observation().to(self.x.device)

    def __call__(self, number: int, /) -> None:
        which, move = divmod(number, self.of.moves)
        if which < self.of.rounds:
            if move == 0:
                self._add_noise(which)
            length = self.of.reach * self.path[which]
        else:
            move = number - self.of.rounds * self.of.moves
            if move == 0:
                self._begin_refining()
            length = PIXELS * 0.5 * (1 + math.cos(math.pi * move / self.of.refine))
        self.rate.fill_(length / (1 - MOMENTUM ** (move + 1)))
        self._step()

    @torch.no_grad()
    def _begin_refining(self) -> None:
        """From here on only the best restarts of each group move, and x is the image itself."""
        image = self._denoised(self.x, self.now).clamp(-1, 1)
        logits = None if self.logits is None else self.logits.detach()
        self.scores.copy_(self.losses(to_space(image, self.space, self.kind), logits, self.rows))
        self.x.copy_(image)
        self.refining = True
        chosen = torch.cat([own[: max(1, round(REFINED * len(own)))] for own in self._groups()])
        self.rows = chosen if isinstance(self.rows, slice) else self.rows[chosen]
        self._choose(chosen)
        self.momentum.zero_()
        self._captured = None if self._captured is None else RecordedStep(self._move)

    def _denoised(self, x: Tensor, level: Tensor) -> Tensor:
        return x if self.refining else super()._denoised(x, level)

    @torch.no_grad()
    def _add_noise(self, which: int) -> None:
        if which > 0:
            if self.of.select:
                self._select()
            after = self.x.new_tensor(self.path[which])
            self.x.copy_(
                share_of_image(after) * self._denoised(self.x, self.now).clamp(-1, 1) + after * self._fresh(which)
            )
        self.now.fill_(self.path[which])
        self.momentum.zero_()

    def _select(self) -> None:
        """Replaces the worst rows of each group by its best ones, both by the objective of the last step."""
        chosen = torch.arange(len(self.x), device=self.x.device)
        for own in self._groups():
            leaving = int(self.of.select * len(own))
            chosen[own[len(own) - leaving :]] = own[:leaving]
        self.x.copy_(self.x[chosen])
        if self.logits is not None:
            with torch.no_grad():
                self.logits.copy_(self.logits[chosen])

    def _groups(self) -> list[Tensor]:
        """Rows that compete with each other, those of the lowest objective first."""
        found: list[Tensor] = []
        for which in self.owner.unique().tolist():
            pieces = (self.owner == which).nonzero().flatten().split(self.of.group)
            found += [own[self.scores[own].argsort()] for own in pieces]
        return found

    def _move(self) -> None:
        x = self.x.detach().requires_grad_()
        slope = self._slope(self._denoised(x, self.now), x)
        with torch.no_grad():
            typical = _length(slope) / math.sqrt(slope[0].numel())
            self.momentum.lerp_(slope / typical.clamp_min(_TINY), 1 - MOMENTUM)
            self.x.sub_(self.rate * self.momentum)

    def judge(self) -> None:
        self._judged(self._denoised(self.x, self.now))

    def _choose(self, rows: Tensor) -> None:
        super()._choose(rows)
        self.momentum, self.owner = self.momentum[rows].clone(), self.owner[rows]
