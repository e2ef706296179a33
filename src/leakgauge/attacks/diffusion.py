"""Gradient inversion within what a diffusion model of the adversary holds for likely: denoise, fit, add less noise, and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from leakgauge.core import Assumption, Observation, Pixels, Reconstruction, Use, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.examples import example
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.inversion import Annealing, Cosine, Guided, HeadFeatures, Matching, Sampling, Strongest, infer_labels
from leakgauge.priors import Diffusion, fit_diffusion, gallery, load_diffusion
from leakgauge.priors.cache import cache_folder
from leakgauge.priors.decoders import FEWEST
from leakgauge.priors.fit import require_counts


@dataclass(frozen=True)
class Learning:
    """Where the prior comes from: a file or an embedded one (``source``), or a training of ``steps`` steps on the auxiliary images with
    a network of ``width``.
    """

    source: str = ""
    width: int = 32
    steps: int = 1000

    def __post_init__(self) -> None:
        require_counts(width=self.width, steps=self.steps)
        if self.source:
            _loaded(self.source)  # a wrong name is refused at once

    def assumptions(self) -> tuple[Assumption, ...]:
        """What the adversary holds beyond the observation; auxiliary images are assumed there already."""
        if not self.source:
            return ()
        images = _loaded(self.source).trained.images
        what = f"server holds a diffusion prior trained on {images:,} other images of the same kind"
        return (Assumption(what, "deployable"),)

    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Diffusion:
        if not isinstance(victim.space, Pixels):
            raise Inapplicable("a diffusion prior makes images, but the victim does not take images")
        if self.source:
            found = _loaded(self.source)
            if found.shape != tuple(victim.space.shape):
                theirs, own = ("×".join(map(str, shape)) for shape in (found.shape, victim.space.shape))
                raise Inapplicable(f"the prior {self.source} is for images of {theirs}, but the victim takes {own}")
            return found.to(victim.device)
        count = 0 if seen.auxiliary is None else len(seen.auxiliary)
        if seen.auxiliary is None or count < FEWEST:
            raise Inapplicable(
                f"a diffusion prior needs at least {FEWEST} of the adversary's own images, but it has {count}; reveal some with "
                "Auxiliary(images), on the command line --reveal auxiliary:900 or --public FOLDER"
            )
        own = seen.auxiliary.to(victim.device)
        scores = class_scores(victim, own)
        return fit_diffusion(
            victim.space.decode(own.float()),
            labels=None if scores is None else scores.argmax(-1),
            classes=None if scores is None else scores.shape[1],
            width=self.width,
            steps=self.steps,
            cache=cache_folder(),
            seed=seed,
        )


@lru_cache(maxsize=4)
def _loaded(source: str) -> Diffusion:
    return load_diffusion(source)


@torch.no_grad()
def class_scores(victim: Victim, images: Tensor) -> Tensor | None:
    """The victim's own scores (N, classes) for images in model space; None where it does not give scores of classes.

    So the adversary needs no labels for its images: the classes that count are those that the model tells apart.
    """
    still = replace(victim, mode="eval")
    scores = [still(still.to_input(piece)) for piece in images.split(256)]
    if not all(isinstance(one, Tensor) and one.dim() == 2 for one in scores):
        return None
    return torch.cat(scores)


@dataclass(frozen=True)
class WithDiffusion:
    """An attack by ``matching``, whose solver samples from a diffusion prior; ``learning`` makes the prior when the attack runs.

    Where the client shares the statistics of its batch, matching them counts ``statistics``. ``signal`` is False for the null run: the
    same sampler without guidance.
    """

    matching: Matching
    learning: Learning
    statistics: float = 0.0
    signal: bool = True

    def uses(self) -> frozenset[Use]:
        """What it cannot do without; statistics are matched where there are some."""
        return frozenset() if self.learning.source else frozenset({"learned_prior"})

    def assumptions(self) -> tuple[Assumption, ...]:
        return self.learning.assumptions()

    def effort(self) -> tuple[str, int]:
        return self.matching.effort()

    def blind(self) -> WithDiffusion:
        """The same sampler from the same noise, without guidance and without a class, since that is read from the signal."""
        return replace(self, signal=False)

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        return self.many(victim, [seen], seed=seed)[0]

    def many(self, victim: Victim, seen: Sequence[Observation], /, *, seed: int = 0) -> list[Reconstruction]:
        """Attacks several observations of one channel with one prior, in one batch where no statistics are matched."""
        prior = self.learning(victim, seen[0], seed=seed)
        solver = self.matching.solver
        assert isinstance(solver, Sampling | Annealing)
        scores = class_scores(victim, victim.space.start(1, torch.Generator().manual_seed(0)))
        conditional = solver.conditional and scores is not None and scores.shape[1] == prior.classes
        matching = replace(self.matching, solver=replace(solver, prior=prior, conditional=conditional))
        if not self.signal:
            found = matching.blind().many(victim, seen, seed=seed)
        elif self._knows_statistics(victim, seen[0]):
            found = [self._guided(matching)(victim, one, seed=seed) for one in seen]
        else:
            found = matching.many(victim, seen, seed=seed)
        return [
            replace(
                one,
                made_by=repr(self),
                notes=(str(prior), *one.notes),
                learned=prior.learned(),
                gallery=gallery(prior),
            )
            for one in found
        ]

    def objective_at(self, victim: Victim, seen: Observation, x: Tensor, y: Tensor, /, *, seed: int = 0) -> float:
        """The objective of one candidate; the prior restricts where it is searched, not what it is."""
        attack = self._guided(self.matching) if self._knows_statistics(victim, seen) else self.matching
        return attack.objective_at(victim, seen, x, y, seed=seed)

    def _knows_statistics(self, victim: Victim, seen: Observation) -> bool:
        return bool(self.statistics) and victim.mode == "train" and seen.buffers is not None

    def _guided(self, matching: Matching) -> Guided:
        return Guided(matching, Strongest(), self.statistics)


@example("cnn", auxiliary=True, width=8, training=40, steps=80, restarts=2)
@checked
def diffusion(
    *,
    prior: str = "",
    steps: int = 200,
    moves: int = 10,
    reach: float = 0.1,
    select: float = 0.5,
    refine: float = 0.0,
    restarts: int = 4,
    statistics: float = 0.1,
    by_label: bool = True,
    width: int = 32,
    training: int = 1000,
) -> WithDiffusion:
    """Searches the images that a diffusion model of the adversary can make from less and less noise. Not from a paper.

        x̂ = x̂₀(x),    x = argmin  1 − ⟨∇θ loss(f(x̂₀(x)), ŷ), g*⟩ / (‖∇θ loss‖·‖g*‖) + ‖h(x̂₀(x)) − h*‖² / ‖h*‖²

    at one noise level after the other. x̂₀(x) is what the model denoises x to. At each level, ``moves`` steps of descent move its
    input, by ``reach`` in units of the noise; then the image gets less noise than before (:class:`~leakgauge.inversion.Annealing`).
    ``steps`` counts the replays in all, of every one of the ``restarts``; between two levels the share ``select`` of the worst restarts
    of a group gives way to copies of the best. The share ``refine`` of the steps comes last and moves the pixels of the best quarter of
    the restarts, without the model. For one sample and for small batches the replay follows the gradient at the output in place of the
    loss; the inputs h* of the lowest fully connected layer that can be reached are then known, and matched for batches
    (:class:`~leakgauge.inversion.OutputGradient`, :class:`~leakgauge.inversion.HeadFeatures`); elsewhere only the cosine counts.
    ``statistics`` weighs the client's normalisation statistics, where it shares them. With ``by_label`` the model is asked for the class
    that was read from the gradient. ``prior`` is a file with a diffusion model, or the name of an embedded one; without one, a network of
    ``width`` is trained for ``training`` steps on the auxiliary images that the server holds, which get the classes that the victim gives
    them. A trained prior is kept between runs.

    ``moves`` and ``reach`` were chosen on four Fashion-MNIST test images (20 to 23 in the order of the audit) with the embedded ViT and
    VGG, ``select`` on these and on eight test images of CIFAR-10. On CIFAR-10 ten levels with 50 moves each, then 1,000 steps on pixels,
    did best (``steps=1500, moves=50, refine=0.67``).

    Deviations: none, since no paper describes it.
    """
    if moves < 1 or steps < 1:
        raise BadInput(f"diffusion needs at least one step and one move, got steps={steps!r} and moves={moves!r}")
    if not 0 <= refine < 1:
        raise BadInput(f"the share of the steps that refine pixels is at least 0 and below 1, got {refine!r}")
    last = int(refine * steps)
    moves = min(moves, steps - last)
    return WithDiffusion(
        matching=Matching(
            objective=Cosine() + 1.0 * HeadFeatures(),
            labels=infer_labels(),
            solver=Annealing(
                rounds=(steps - last) // moves,
                moves=moves,
                reach=reach,
                conditional=by_label,
                select=select,
                refine=last,
            ),
            restarts=restarts,
            name="diffusion",
            along=True,
        ),
        learning=Learning(prior, width, training),
        statistics=statistics,
    )
