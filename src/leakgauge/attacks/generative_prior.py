"""Gradient inversion within the range of a generator, which the adversary trains on its own images."""

from __future__ import annotations

from dataclasses import dataclass, replace

from leakgauge.core import Observation, Pixels, Reconstruction, Use, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.examples import example
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.inversion import (
    Adam,
    Cosine,
    CosineDecay,
    Descent,
    Latent,
    Matching,
    Sign,
    StepDecay,
    TotalVariation,
    infer_labels,
)
from leakgauge.priors.decoders import FEWEST
from leakgauge.priors.generator import Generator, fit_generator


@dataclass(frozen=True)
class GenerativePrior:
    """The attack made by :func:`generative_prior`. ``matching`` has no solver yet, because that needs the generator; ``signal`` is False
    for the null run.
    """

    matching: Matching
    latents: int
    epochs: int
    weight: float
    descent: Descent
    pixels: Descent | None
    signal: bool = True

    def __post_init__(self) -> None:
        for name, value in (("latents", self.latents), ("epochs", self.epochs)):
            if not isinstance(value, int) or value < 1:
                raise BadInput(f"generative_prior needs an integer of at least 1 as {name}, got {value!r}")

    def uses(self) -> frozenset[Use]:
        return frozenset({"learned_prior"})

    def effort(self) -> tuple[str, int]:
        last = 0 if self.pixels is None else self.pixels.steps
        return self.matching.name, self.descent.steps + last

    def blind(self) -> GenerativePrior:
        """The same generator without the signal: its images for latents near 0."""
        return replace(self, signal=False)

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        generator = self._generator(victim, seen, seed)
        solver = Latent(generator, generator.size, self.descent, self.weight, self.pixels)
        matching = replace(self.matching, solver=solver)
        found = (matching if self.signal else matching.blind())(victim, seen, seed=seed)
        return replace(found, made_by=repr(self), notes=(str(generator), *found.notes))

    def _generator(self, victim: Victim, seen: Observation, seed: int) -> Generator:
        if not isinstance(victim.space, Pixels):
            raise Inapplicable("a generator makes images, but the victim does not take images")
        count = 0 if seen.auxiliary is None else len(seen.auxiliary)
        if seen.auxiliary is None or count < FEWEST:
            raise Inapplicable(
                f"a generator needs at least {FEWEST} of the adversary's own images, but it has {count}; reveal some with "
                "Auxiliary(images), on the command line --reveal auxiliary:900"
            )
        images = victim.space.decode(seen.auxiliary.to(victim.device).float())
        return fit_generator(images, latents=self.latents, epochs=self.epochs, seed=seed)


@example("cnn", auxiliary=True, latents=8, epochs=20, steps=100, pixels=0.2, restarts=2)
@checked
def generative_prior(
    *,
    latents: int = 64,
    epochs: int = 30,
    steps: int = 400,
    lr: float = 0.1,
    weight: float = 1e-4,
    pixels: float = 0.25,
    tv: float = 0.0,
    restarts: int = 1,
) -> GenerativePrior:
    """Jeon et al. 2021: searches the images that a generator can make, which fills in what the gradient lacks.

        ẑ = argmin_z  1 − ⟨∇θ loss(f(G(z)), ŷ), g*⟩ / (‖∇θ loss‖·‖g*‖)  +  weight · mean z²,    x̂ = G(ẑ)

    G takes ``latents`` numbers and is trained for ``epochs`` on the auxiliary images that the server holds (:func:`fit_generator`);
    without any the attack does not apply. Adam moves z, with a rate that falls from ``lr`` to zero. In the last share ``pixels`` of the
    ``steps`` the image itself is moved, as in inverting gradients, which reaches detail that G cannot make. With ``tv`` total variation
    is added.

    Deviations: G is not a generative adversarial network but a decoder of principal components, which can be trained on few images.
    The second stage moves pixels instead of G's weights. Labels are inferred from the head's gradient.

    Ref: Jeon et al. 2021, gradient inversion with generative image prior — search among latents, then near what they give
    """
    if not 0 <= pixels < 1:
        raise BadInput(f"generative_prior takes a share of the steps, from 0 to less than 1, as pixels, got {pixels!r}")
    last = min(round(pixels * steps), steps - 1)
    near = Descent(Adam(0.02), last, gradient=(Sign(),), schedule=StepDecay(), project=True) if last > 0 else None
    return GenerativePrior(
        matching=Matching(
            objective=Cosine() + tv * TotalVariation(),
            labels=infer_labels(),
            restarts=restarts,
            name="generative_prior",
        ),
        latents=latents,
        epochs=epochs,
        weight=weight,
        descent=Descent(Adam(lr), steps - max(last, 0), schedule=CosineDecay(), project=False),
        pixels=near,
    )
