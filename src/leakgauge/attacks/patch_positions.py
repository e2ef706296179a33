"""The sample that a transformer cuts into patches, from the gradients of its patch embedding and of its position embedding."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.april.closed_form import close, probe_gradient, require_one_step
from leakgauge.attacks.april.patches import PatchGrid, patch_grid
from leakgauge.attacks.certificate import certify
from leakgauge.attacks.found_images import valid_range
from leakgauge.channels.facts import require_shared
from leakgauge.core import Observation, Reconstruction, Signal, Tokens, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.examples import example
from leakgauge.engine import Observed
from leakgauge.errors import Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.families import find_roles
from leakgauge.inversion.labels import LabelRule, batch_size, infer_labels, labels_or_none


@dataclass(frozen=True)
class PatchPositions:
    """The attack made by :func:`patch_positions`."""

    labels: LabelRule

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        began = time.perf_counter()
        if batch_size(seen) != 1:
            raise Inapplicable(f"the system of the patches needs one sample, but this gradient mixes {seen.size}")
        require_one_step(seen)
        signal = Observed.check(seen.signal, victim).signal
        system = _System.of(victim, signal, seed=seed)
        rows, weight = system.gradients(signal)
        eps = max(torch.finfo(seen.signal[name].dtype).eps for name in (system.embedding, system.position))
        dark, light = valid_range(victim, victim.space.start(1, torch.Generator().manual_seed(seed)))
        span = float((light - dark).max())
        patches, known, error = patches_from_positions(rows, weight, eps=eps, span=span)
        whole = system.grid.parts_image() and len(rows) <= MOST
        if len(known) < len(rows) and whole:
            patches = smoothest(system.grid, patches, known, span=span)
        x = system.grid.assemble(patches).to(victim.device, victim.dtype)[None]
        labels = labels_or_none(self.labels, victim, seen, seed=seed)
        lost = system.grid.unseen()
        share = None if error is None or lost else error / float((light - dark).min())
        notes = [f"closed form on {system.embedding} and {system.position}"]
        if len(known) < len(rows):
            rest = "the rest is the smoothest image" if whole else "the rest is left grey"
            notes.append(f"the gradients of the {len(rows)} positions fix {len(known)} combinations of patches; {rest}")
        elif error is None:
            notes.append(f"the gradients of the {len(rows)} positions leave no equation to check the patches by")
        return Reconstruction.single(
            victim.space.project(x),
            labels,
            made_by=repr(self),
            began=began,
            notes=tuple(notes),
            certified=certify(victim, seen, x, labels, error=share, seed=seed),
        )


KNOWN = 0.05
"""A combination of patches is known if its expected error is at most this share of the range of values."""
PLAUSIBLE = 0.3
"""Size of a combination of patches that is no noise, as a share of the range: about that of natural images."""
MOST = 2048
"""Patches for which the smoothest image is looked for: it takes seconds for some hundred, minutes for thousands."""
NOISE = 4
"""Rounding of a sum of many products, in units of the last place of the sum."""
ROUNDS, ITERATIONS, EDGE = 3, 60, 0.02
"""Of :func:`smoothest`: reweightings, steps of conjugate gradients in each, and the share of the range below which a step is no edge."""


def patches_from_positions(
    rows: Tensor, weight: Tensor, *, eps: float = torch.finfo(torch.float32).eps, span: float = 1.0
) -> tuple[Tensor, Tensor, float | None]:
    """p (patches, values) with Δᵀ p = ∂W by least squares, what of it is known, and the expected root mean square error of a value.

    ``rows`` Δ (patches, width) is the gradient of the positions, ``weight`` ∂W (width, values) that of the patch embedding. With
    Δᵀ = U S Vᵀ, the combination Vᵢᵀ p has the error σ / Sᵢ. Here σ is what of ∂W no patches explain, for each equation that is not needed
    to find them; without such equations what ∂W has in the last direction Uᵢ beyond a combination of the usual size; at least the rounding
    ``eps`` of both gradients. Combinations with an error above ``KNOWN`` of the range ``span`` are left at
    zero; the others are the rows of the second result. The error is None where some are left, or where all equations are needed and
    nothing shows an error.
    """
    rows, weight = rows.double().cpu(), weight.double().cpu()
    u, values, v = torch.linalg.svd(rows.T, full_matrices=False)
    inner = u.T @ weight
    spare = rows.shape[1] - len(rows)
    if spare > 0:
        left = (weight - u @ inner).norm() / math.sqrt(spare * weight.shape[1])
    else:
        left = (inner[-1].square().mean() - (PLAUSIBLE * span * values[-1]) ** 2).clamp_min(0).sqrt()
    noise = torch.maximum(left, NOISE * eps * weight.square().mean().sqrt())
    known = int(((noise <= KNOWN * span * values) & (values > eps * values[0])).sum())
    found = v[:known].T @ (inner[:known] / values[:known, None])
    if known < len(rows) or spare < 1:
        return found, v[:known], None
    rounding = eps * (float(weight.norm()) + float(values[0]) * float(found.norm()))
    most = max(float(left) * math.sqrt(weight.numel()), rounding)
    return found, v[:known], most / float(values[-1]) / math.sqrt(found.numel())


def smoothest(grid: PatchGrid, patches: Tensor, known: Tensor, *, span: float) -> Tensor:
    """``patches``, of which the combinations in ``known`` (orthonormal rows) are kept and the others chosen for an image with few edges.

    Minimises Σ √(|∂x|² + ε²) over the differences ∂x of neighbours in all channels, ε = ``EDGE`` of ``span``: least squares with weights
    1 / √(|∂x|² + ε²) from the round before, solved by conjugate gradients in the span that is left open.
    """
    found = patches.clone()
    weights: list[Tensor] | None = None

    def slope(at: Tensor) -> Tensor:
        """Of Σ w |∂x|² / 2 in the open span; linear in ``at``."""
        with torch.enable_grad():
            at = at.detach().requires_grad_()
            parts = [d.square() for d in _differences(grid.assemble(at))]
            weighed = parts if weights is None else [w * d for w, d in zip(weights, parts, strict=True)]
            (full,) = torch.autograd.grad(torch.stack([d.sum() for d in weighed]).sum() / 2, at)
        return full - known.T @ (known @ full)

    for _ in range(ROUNDS):
        rest = -slope(found)
        way, size = rest.clone(), rest.square().sum()
        first = size
        for _ in range(ITERATIONS):
            if not size > 1e-12 * first:
                break
            turned = slope(way)
            step = size / (way * turned).sum()
            found, rest = found + step * way, rest - step * turned
            before, size = size, rest.square().sum()
            way = rest + size / before * way
        edges = [d.square().sum(0, keepdim=True) for d in _differences(grid.assemble(found))]
        weights = [(edge + (EDGE * span) ** 2).rsqrt() for edge in edges]
    return found


def _differences(x: Tensor) -> list[Tensor]:
    """Of neighbours along every dimension but the first, the channels."""
    return [x.diff(dim=d) for d in range(1, x.dim())]


@dataclass(frozen=True, eq=False)
class _System:
    """The names of the two parameters, how the sample is cut, and the place of the first patch among the positions."""

    embedding: str
    position: str
    grid: PatchGrid
    first: int

    @classmethod
    def of(cls, victim: Victim, signal: Signal, *, seed: int) -> _System:
        """Refuses a model where Δᵀ p = ∂W does not hold for the adversary's own sample."""
        if isinstance(victim.space, Tokens):
            raise Inapplicable("the victim takes token ids, not patches; use token_positions")
        roles = find_roles(victim.model)
        name, position = roles.patch_embedding, roles.position_embedding
        if name is None or position is None:
            raise Inapplicable("the model has no patch embedding, or no learned position embedding")
        if roles.first_layer != name:
            raise Inapplicable("the patch embedding has several layers; the closed form only inverts a single one")
        for needed in (position, f"{name}.weight"):
            require_shared(signal, needed)
        grid = patch_grid(victim, name, seed=seed)
        if math.prod(signal[f"{name}.weight"].shape[1:]) != grid.weight.shape[1]:
            raise Inapplicable("the patch embedding is a convolution with groups, which is not inverted")
        first = signal[position].flatten(0, -2).shape[0] - len(grid.index)
        found = cls(f"{name}.weight", position, grid, first)
        probe = victim.to_input(victim.space.start(1, torch.Generator().manual_seed(seed)))
        if first < 0 or signal[position].shape[-1] != len(grid.weight):
            raise Inapplicable("positions are not one row for each patch: they are resized or shared")
        rows, weight = found.gradients(probe_gradient(victim, probe, seed=seed))
        if not close(rows.T @ grid.cut(probe.double().cpu()), weight):
            raise Inapplicable(
                "the gradient of the positions is not that of the patches: something is between them, or one is used again"
            )
        return found

    def gradients(self, signal: Signal) -> tuple[Tensor, Tensor]:
        """Δ (patches, width) and ∂W (width, values)."""
        rows, weight = signal[self.position].double().cpu(), signal[self.embedding].double().cpu()
        return rows.flatten(0, -2)[self.first :], weight.flatten(1)


@example("vit")
@checked
def patch_positions() -> PatchPositions:
    """Tokens are t_n = W p_n + b + E_n, so position n has the gradient of its token, ∂l/∂E_n = ∂l/∂t_n, and the patches follow:

        ∂W = Σ_n (∂l/∂t_n) p_nᵀ = Δᵀ p,     p̂ = argmin_p ‖Δᵀ p − ∂W‖,     Δ = ∂l/∂E_pos

    Exact for one sample if there are no more patches than the tokens are wide and Δ has full rank. Otherwise, and under noise, some
    combinations of patches are known and the others are chosen for the smoothest image. It does not matter what follows the
    tokens, so normalisations, residual connections and any loss are allowed, which the closed form of APRIL is not: that one takes the
    right side from the first attention. A weight update after one step works too: its factor −η cancels.

    Deviations: the paper has one input for each neuron; here the layer runs once for each patch, and the positions stand for its bias.

    Ref: Phong et al. 2018, section III — input of a layer from the gradients of weight and bias
    """
    return PatchPositions(labels=infer_labels())
