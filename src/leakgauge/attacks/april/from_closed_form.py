"""APRIL by optimisation, started from the closed form, even if the theorem does not hold and the start is only a guess."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Literal

from leakgauge.attacks.april import april
from leakgauge.attacks.april.closed_form import AprilClosedForm, april_closed_form
from leakgauge.core import Observation, Reconstruction, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.examples import example
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked
from leakgauge.inversion import Given, Matching


@dataclass(frozen=True)
class AprilFromClosedForm:
    """The attack made by :func:`april_from_closed_form`; ``spread`` is the deviation of the noise added to the start."""

    guess: AprilClosedForm
    refine: Matching
    spread: float

    def effort(self) -> tuple[str, int]:
        return self.refine.effort()

    def blind(self) -> Matching:
        """The null run has no signal and so no closed form to start from: it starts like ``refine``."""
        return self.refine.blind()

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        began = time.perf_counter()
        begun = self.guess(victim, seen, seed=seed)
        start = Given(begun.x[0].detach().cpu(), self.spread)
        result = replace(self.refine, start=start)(victim, seen, seed=seed)
        notes = (*result.notes, *(f"start: {note}" for note in begun.notes))
        return replace(result, made_by=repr(self), seconds=time.perf_counter() - began, notes=notes)


@example("vit", steps=50, restarts=2)
@checked
def april_from_closed_form(
    *,
    alpha: float = 1.0,
    lr: float = 0.1,
    steps: int = 1500,
    restarts: int = 1,
    ridge: float | Literal["auto"] | None = "auto",
    spread: float = 0.1,
) -> AprilFromClosedForm:
    """``april`` with its own ``alpha``, ``lr`` and ``steps``, started from ``april_closed_form(ridge=ridge, force=True)``.

    On a standard vision transformer, with a normalisation before the first attention and a connection around it, the closed
    form is a guess: it uses ∂l/∂E_pos as the gradient of the attention's input, and the normalised tokens as the tokens.
    Whether such a start helps was measured; see reproductions/april/beyond.md. Restarts differ by noise of deviation ``spread``.

    Deviations: the paper has two separate attacks; combining them is ours, and so are ``ridge`` and ``spread``.

    Ref: APRIL (Lu et al. 2022), Algorithms 1 and 2 — the closed form as the start of the optimisation
    """
    if not spread >= 0:
        raise BadInput(f"april_from_closed_form needs a non-negative spread of its restarts, got {spread!r}")
    return AprilFromClosedForm(
        guess=april_closed_form(ridge=ridge, force=True),
        refine=replace(april(alpha=alpha, lr=lr, steps=steps, restarts=restarts), name="april_from_closed_form"),
        spread=spread,
    )
