"""APRIL by optimisation: matches all gradients, and the direction of the position embedding's gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch import nn

from leakgauge.core import Victim
from leakgauge.core.examples import example
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.families import find_roles
from leakgauge.inversion import L2, Adam, Cosine, Descent, Matching, Normal, infer_labels

POSITION_NAMES = ("pos_emb", "position_embedding", "positional_embedding")
"""Names of learned positions in our models, timm's and Hugging Face's, in hand-written GPTs and in CLIP."""


_FOUND: WeakKeyDictionary[nn.Module, str | None] = WeakKeyDictionary()
"""The position embedding of each model, cached because an attack needs it at every step."""


@dataclass(frozen=True)
class PositionEmbedding:
    """Weight 1 for the position embedding, 0 for anything else. It is found by its name, or by its role in the model."""

    def __call__(self, names: Sequence[str], /) -> Mapping[str, float]:
        found = [name for name in names if any(part in name for part in POSITION_NAMES)]
        if not found:
            known = ", ".join(POSITION_NAMES)
            raise Inapplicable(
                f"not shared: the gradient of a position embedding, which has one of {known} in its name"
            )
        return dict.fromkeys(found, 1.0)

    def of(self, victim: Victim, names: Sequence[str], /) -> Mapping[str, float]:
        if victim.model not in _FOUND:
            _FOUND[victim.model] = find_roles(victim.model).position_embedding
        role = _FOUND[victim.model]
        if role is None:
            return self(names)
        if role not in names:
            raise Inapplicable(f"not shared: {role}, the gradient of the position embedding")
        return {role: 1.0}


@example("vit_a", steps=100, restarts=2)
@checked
def april(*, alpha: float = 1.0, lr: float = 0.1, steps: int = 1500, restarts: int = 1) -> Matching:
    """Lu et al. 2022: squared distance of all gradients plus ``alpha`` times the angle of the position embedding's.

        x̂ = argmin ‖∇w' − ∇w‖² + alpha · (1 − cos(∇E'_pos, ∇E_pos))

    The label comes from the sign rule for one image, from counts in the bias gradient for several.

    Deviations: the paper writes −cos, which differs by a constant; it gives neither ``alpha`` nor the learning rate, so ours are
    chosen. For batches it reads the labels by Yin et al.'s rule, which needs non-negative features; the head of a vision
    transformer does not have them. Algorithm 2 uses plain descent, the experiments use Adam; Adam is used here. Steps in the paper:
    800 for MNIST, 1500 for CIFAR-10, 5000 for ImageNet.

    Ref: APRIL (Lu et al. 2022), Eq. (12) and Algorithm 2 — optimisation-based attack
    """
    if not alpha >= 0:
        raise BadInput(f"april needs a non-negative alpha, the weight of the positions' angle, got {alpha!r}")
    return Matching(
        objective=L2() + alpha * Cosine(weights=PositionEmbedding()),
        labels=infer_labels(),
        start=Normal(),
        solver=Descent(Adam(lr), steps, project=False),
        restarts=restarts,
        name="april",
    )
