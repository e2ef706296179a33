"""Positive controls: the same attack with the same effort where it must work, and from starts that hold part of the truth.

A negative of an attack that fails here too says something about the attack, not about what was sent.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from leakgauge.audit.null import null_run
from leakgauge.audit.scoring import ALIKE, score_images, score_images_in_order, series_bounds, trivial_baseline
from leakgauge.audit.verdict import GLIMPSED, RECONSTRUCTED, Outcome, judge, judge_series
from leakgauge.channels import Gradient
from leakgauge.core import (
    Attack,
    Auxiliary,
    Channel,
    Labels,
    NoisyCopy,
    Observation,
    PerSample,
    Reveal,
    Size,
    Victim,
    as_images,
    share,
)
from leakgauge.core.randomness import own_stream, private_randomness
from leakgauge.errors import Inapplicable
from leakgauge.inversion import Guided, Matching, NearTruth

Extent = Literal["full", "plain", "none"]
"""Which controls are run: with starts near the truth, without them, or none."""
EXTENTS: tuple[Extent, ...] = ("full", "plain", "none")
GIVEN = (0.9, 0.7, 0.5, 0.3, 0.1)
"""Shares of the pixels that controlled starts hold."""


@dataclass(frozen=True)
class NearStart:
    """A search on the audited weights that began with the share ``given`` of the pixels: SSIM of its start and of its end."""

    given: float
    start: float
    ssim: float
    found: bool


@dataclass(frozen=True)
class Control:
    """How the same attack does where it must work: fresh weights, one image, eval mode, labels given, nothing defended.

    ``ssim`` and ``null_ssim`` are of the attack and of its null run there; ``refused`` is the reason where it does not apply.
    ``starts`` are searches on the audited weights themselves, from starts ever farther from the truth. ``key`` identifies architecture,
    attack and effort, for which one control is enough.
    """

    key: str
    attack: str
    passed: bool
    ssim: float | None = None
    null_ssim: float | None = None
    refused: str = ""
    starts: tuple[NearStart, ...] = ()

    @property
    def reach(self) -> float | None:
        """The smallest share of the pixels from which the search still finds the rest; None where it never does."""
        reached = None
        for one in sorted(self.starts, key=lambda one: -one.given):
            if not one.found:
                break
            reached = one.given
        return reached


MUST_REACH = tuple(
    check for check in RECONSTRUCTED if check.above in ("zero", "null") and check.metric in ("ssim", "psnr")
)
"""What a control must reach: the frozen checks of a reconstruction. Whether a crude picture does as well depends on the image."""


class Controls:
    """Runs the control of an architecture, an attack and an effort when it is first needed, and keeps it."""

    def __init__(self, known: Iterable[Control] = (), *, starts: bool = True) -> None:
        self.known: dict[str, Control] = {one.key: one for one in known}
        self.starts = starts

    def __call__(
        self, attack: Attack, victim: Victim, seen: Observation, x: Tensor, y: Tensor, *, starts: bool, seed: int = 0
    ) -> Control:
        """The control for ``attack`` on the architecture of ``victim``, on the one image ``x``. ``starts``: run those too, unless the
        budget has no time for them.
        """
        starts = starts and self.starts
        key = key_of(attack, victim, seen, x, seed)
        found = self.known.get(key)
        if found is None:
            found = replace(control(attack, victim, seen, x, y, seed=seed), key=key)
        if starts and not found.starts:
            found = replace(found, starts=near_starts(attack, victim, seen, x, y, seed=seed))
        self.known[key] = found
        return found if starts else replace(found, starts=())  # whichever case came first


def key_of(attack: Attack, victim: Victim, seen: Observation, x: Tensor, seed: int) -> str:
    """Identifies model, attack, effort, the kind of channel, and what it is run on."""
    model = victim.model
    weights = [(name, tuple(p.shape), float(p.detach().double().sum())) for name, p in model.named_parameters()]
    said = (type(model).__qualname__, weights, repr(attack), repr(_channel(seen)), float(x.double().sum()), seed)
    return hashlib.sha256(repr(said).encode()).hexdigest()[:12]


def control(attack: Attack, victim: Victim, seen: Observation, x: Tensor, y: Tensor, *, seed: int = 0) -> Control:
    """Runs ``attack`` on one image ``x`` with label ``y`` at fresh weights."""
    easy = replace(
        victim, model=fresh(victim.model, seed=own_stream(seed, "control"), device=victim.device), mode="eval"
    )
    try:
        known = share(easy, _channel(seen), x, y, reveal=_known(seen), seed=seed)
        found = attack(easy, known, seed=seed)
        if found.x.shape != x.shape:
            raise Inapplicable(f"it returns {len(found.x)} images for one")
        nothing = null_run(attack, easy, known, seed=seed)
    except Inapplicable as refusal:
        return Control("", repr(attack), passed=False, refused=str(refusal))
    truths, bounds = as_images(victim.space, x).cpu(), series_bounds(victim.space)
    own, blind = (score_images(as_images(victim.space, one.x), truths, bounds=bounds) for one in (found, nothing))
    if bounds is None:
        verdict = judge(own, blind, trivial_baseline(truths), to_reconstruct=MUST_REACH)
    else:
        verdict = judge_series(own, blind, trivial_baseline(truths, bounds=bounds))
    passed = verdict.outcome is Outcome.FEASIBLE
    return Control("", repr(attack), passed, own.mean("ssim"), blind.mean("ssim"))


def near_starts(
    attack: Attack, victim: Victim, seen: Observation, x: Tensor, y: Tensor, *, seed: int = 0
) -> tuple[NearStart, ...]:
    """Searches for one image at the audited weights, in eval mode, from starts that hold ``GIVEN`` shares of its pixels.

    One counts as found if it ends clearly closer to the truth than it began. None for an attack that is no search among pixels.

    Ref: Valadi et al. 2026, section 5.3 and figure 4 — controlled initialisation
    """
    matching = attack.matching if isinstance(attack, Guided) else attack
    if not isinstance(matching, Matching):
        return ()
    near = replace(matching, start=NearTruth(), restarts=1, halving=None)
    easy = replace(victim, mode="eval")
    try:
        known = [
            share(easy, _channel(seen), x, y, reveal=(*_known(seen), NoisyCopy(1 - given)), seed=seed)
            for given in GIVEN
        ]
        found = near.many(easy, known, seed=seed)
    except Inapplicable:
        return ()
    truths = as_images(victim.space, x).cpu()

    def scored(image: Tensor | None) -> tuple[float, float]:
        assert image is not None, "a noisy copy is revealed"
        scores = score_images_in_order(as_images(victim.space, image).cpu(), truths, bounds=series_bounds(victim.space))
        return scores.mean("ssim"), scores.mean("psnr")

    rows = [(given, scored(one.near), scored(made.x)) for given, one, made in zip(GIVEN, known, found, strict=True)]
    return tuple(NearStart(given, start[0], end[0], _found(start, end)) for given, start, end in rows)


def _found(start: tuple[float, float], end: tuple[float, float]) -> bool:
    """Whether SSIM and PSNR show the image, and more of it than the start does by the margins of a glimpse."""
    margins = {check.metric: check.margin for check in GLIMPSED}
    return end[0] >= max(ALIKE, start[0] + margins["ssim"]) and end[1] >= start[1] + margins["psnr"]


def _channel(seen: Observation) -> Channel:
    """What is attacked in a control: the same features, or the plain gradient."""
    return seen.channel if isinstance(seen.channel, PerSample) else Gradient()


def _known(seen: Observation) -> tuple[Reveal, ...]:
    more = () if seen.auxiliary is None else (Auxiliary(seen.auxiliary),)
    return (Size(), Labels(), *more)


def fresh(model: nn.Module, *, seed: int, device: torch.device) -> nn.Module:
    """A copy of the model as before any training, so a defense under which nothing is learned cannot look free.

    Layers with a ``reset_parameters`` are initialised again by it; other trainable tensors (a position embedding) keep their own
    values in shuffled order, which keeps their scale and nothing that was learned. What is frozen stays as it is.
    """
    made = copy.deepcopy(model)
    done: set[int] = set()
    with private_randomness(seed, device), torch.no_grad():
        for module in made.modules():
            own = list(module.parameters(recurse=False))
            reset = getattr(module, "reset_parameters", None)
            if own and callable(reset) and all(p.requires_grad for p in own):
                reset()
                done |= {id(p) for p in own}
        for parameter in made.parameters():
            if parameter.requires_grad and id(parameter) not in done:
                flat = parameter.flatten()
                parameter.copy_(flat[torch.randperm(len(flat)).to(flat.device)].view_as(parameter))
    return made
