"""APRIL in closed form: the input of a self-attention from its gradients and that of the position embedding."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.attacks.april_ridge import (
    NoisySystem,
    error_bound,
    noise_bound,
    ridge_from_noise,
    std_from_outside,
)
from leakgauge.channels import Gradient
from leakgauge.channels.facts import local_steps
from leakgauge.core import Observation, Reconstruction, Signal, Victim
from leakgauge.engine import Observed
from leakgauge.engine.reference import capturing
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.families import Attention, Roles, find_roles
from leakgauge.inversion.labels import LabelRule, batch_size, inferred, readable

AGREEMENT = 1e-2
"""How well the paper's identity must hold on the adversary's own data before the attack is called applicable."""


BYPASSED = (
    "the gradient of the position embedding is not that of the first attention's input alone: the tokens also "
    "bypass it, as in a residual connection"
)


@dataclass(frozen=True)
class Identifiability:
    """What the linear systems can and cannot give back, known before they are solved.

    Theorem 3.1 has ``tokens`` unknown rows of ``width`` numbers; it needs width ≥ tokens and ∂l/∂z of full rank. The patch
    embedding turns ``patch_values`` numbers into ``width``; it needs width ≥ patch_values (None where tokens are looked
    up). Rounding of relative size ``rounding`` grows by at most ``condition``.
    """

    tokens: int
    width: int
    patch_values: int | None
    rank: int
    condition: float
    rounding: float

    def lost(self) -> tuple[str, ...]:
        """Predictions, in words; none means that everything comes back."""
        found: list[str] = []
        if self.width < self.tokens:
            found.append(f"{self.tokens} tokens do not follow from a width of {self.width}: tokens are mixed")
        if self.rank < min(self.tokens, self.width):
            found.append(f"the gradient of the tokens has rank {self.rank} of {self.tokens}: tokens are mixed")
        if self.patch_values is not None and self.width < self.patch_values:
            found.append(
                f"{self.patch_values} values of a patch do not follow from a width of {self.width}: detail is lost"
            )
        if self.condition * self.rounding > 0.1:
            found.append(f"condition number {self.condition:.1e} lets rounding of {self.rounding:.0e} drown the tokens")
        return tuple(found)

    def rows(self) -> tuple[tuple[str, str], ...]:
        """The same as a table: what is asked, and the answer."""
        enough = {True: "enough", False: "too few"}
        patches: tuple[tuple[str, str], ...] = ()
        if self.patch_values is not None:
            fits = enough[self.width >= self.patch_values]
            patches = (("values of a patch against width", f"{self.patch_values} against {self.width}: {fits}"),)
        return (
            (
                "unknown tokens against width",
                f"{self.tokens} against {self.width}: {enough[self.width >= self.tokens]}",
            ),
            *patches,
            ("rank of the tokens' gradient", f"{self.rank} of {min(self.tokens, self.width)}"),
            ("condition number", f"{self.condition:.1e} (numbers are rounded to {self.rounding:.0e})"),
            ("predicted", "; ".join(self.lost()) or "everything is recovered"),
        )

    def __str__(self) -> str:
        patches = "" if self.patch_values is None else f"{self.patch_values} values a patch, "
        return (
            f"identifiability: {self.tokens} unknown tokens, width {self.width}, {patches}"
            f"rank {self.rank}, condition {self.condition:.1e}; predicted: {', '.join(self.lost()) or 'everything is recovered'}"
        )


def tokens_from_attention(position: Tensor, products: Tensor) -> Tensor:
    """z with (∂l/∂z)ᵀ z = Qᵀ ∂l/∂Q + Kᵀ ∂l/∂K + Vᵀ ∂l/∂V, by least squares.

    ``position`` (tokens, width) is ∂l/∂E_pos = ∂l/∂z, ``products`` (width, width) the right side. The result is
    (tokens, width). A bias of q, k or v changes neither side.

    Ref: APRIL (Lu et al. 2022), Theorem 3.1 and Eq. (8) — the input of a self-attention in closed form
    """
    return torch.linalg.lstsq(position.T.cpu(), products.cpu(), driver="gelsd").solution


def attention_products(signal: Signal, parameters: Signal, attention: Attention) -> Tensor:
    """Qᵀ ∂l/∂Q + Kᵀ ∂l/∂K + Vᵀ ∂l/∂V, (width, width), from fused or separate weights.

    Ref: APRIL (Lu et al. 2022), Algorithm 1, line 5 — right side of the linear system
    """
    return torch.stack([parameters[n].double().T @ signal[n].double() for n in _weights(attention)]).sum(0)


def _weights(attention: Attention) -> tuple[str, ...]:
    layers = [attention.qkv] if attention.qkv is not None else [attention.q, attention.k, attention.v]
    return tuple(f"{layer}.weight" for layer in layers)


def pixels_from_patches(embedded: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Values of each patch (patches, values) from E = W x + b, by the pseudo-inverse of W (width, values).

    Ref: APRIL (Lu et al. 2022), Eq. (11) — patch embedding and its inverse
    """
    shifted = embedded if bias is None else embedded - bias.detach().double().cpu()
    return shifted @ torch.linalg.pinv(weight.detach().double().cpu()).T


@dataclass(frozen=True)
class AprilClosedForm:
    """The attack made by :func:`april_closed_form`."""

    labels: LabelRule
    ridge: float | Literal["auto"] | None = None
    noise: float | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.ridge not in (None, "auto") and not (isinstance(self.ridge, int | float) and self.ridge >= 0):
            raise BadInput(f"ridge is None, 'auto' or a number that is not negative, got {self.ridge!r}")
        if self.noise is not None and (not self.noise >= 0 or self.ridge is None):
            raise BadInput(
                f"noise is a deviation that is not negative and is used with a ridge; got noise {self.noise!r}, ridge {self.ridge!r}"
            )

    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        began = time.perf_counter()
        size = batch_size(seen)
        require_one_step(seen)
        signal = Observed.checked(seen.signal, victim).signal
        roles, patch = _parts(victim, signal)
        prefix, broken = _check_layout(victim, roles, patch, seed=seed)
        if broken and not self.force:
            raise Inapplicable(broken)
        guessed = (f"a guess, since the theorem's condition fails: {broken}",) if broken else ()
        unknown, known = _without_prefix(victim, signal, roles, prefix)
        values = math.prod(patch.weight.shape[1:])
        stated = identifiability(unknown, values, signal[_position(roles)].dtype)
        products = attention_products(signal, victim.parameters(), roles.attention[0]).cpu()
        if prefix:  # what the known tokens add to the right side
            products = products - _position_gradient(signal, roles)[:prefix].T @ known
        positions = _positions(victim, roles)[prefix:]
        weight = patch.weight.detach().double().cpu().flatten(1)
        if self.ridge is None:
            tokens, said = tokens_from_attention(unknown, products), ()
            flat = pixels_from_patches(tokens - positions, weight, patch.bias)
        else:
            box = _Box.of(victim, patch)
            system = NoisySystem.of(unknown, products, positions + box.tokens, embedding=weight, guess=box.middle)
            own = torch.cat([victim.parameters()[n].double().cpu() for n in _weights(roles.attention[0])])
            largest = float(system.base.norm()) + box.radius * float(torch.linalg.matrix_norm(weight, 2))
            flat, said = self._regularised(system, own, box.radius, math.hypot(largest, float(known.norm())))
        x = _assembled(flat, patch, victim.space.shape).to(victim.device, next(iter(signal.values())).dtype)
        x = victim.space.project(torch.nan_to_num(x))[None].expand(size, *x.shape).clone()
        mixed = (
            (f"the batch's {size} samples share one linear system: this is their mixture, {size} times",)
            if size > 1
            else ()
        )
        return Reconstruction.single(
            x,
            readable(self.labels, victim, seen, seed=seed),
            made_by=repr(self),
            began=began,
            notes=(str(stated), *said, *mixed, *guessed),
            stated=stated.rows(),
        )

    def _regularised(
        self, system: NoisySystem, weights: Tensor, radius: float, largest: float
    ) -> tuple[Tensor, tuple[str, ...]]:
        """The pixels by ridge, and what is known about their error; ``largest`` ≥ ‖z‖ for every valid image."""
        assert self.ridge is not None
        if self.ridge == "auto":
            std = std_from_outside(system, weights) if self.noise is None else self.noise
            ridge = ridge_from_noise(system, weights, std)
            source = "estimated" if self.noise is None else "declared"
            said = f"ridge {ridge:.1e} from noise of deviation {std:.1e} ({source})"
        else:
            ridge, said = float(self.ridge), f"ridge {self.ridge:.1e} as given"
        pixels = system.solved(ridge)
        if self.noise is None:
            return pixels, (said,)
        noise = noise_bound(weights, largest, std=self.noise, width=system.base.shape[1])
        bound = error_bound(system, ridge, noise=noise, distance=radius) / math.sqrt(pixels.numel())
        return pixels, (said, f"root mean square error of the pixels at most {bound:.1e} (for 98 % of such noise)")


@dataclass(frozen=True, eq=False)
class _Box:
    """All valid images, cut into patches, lie within ``radius`` (Frobenius) of the grey ``middle`` (tokens, values).

    ``tokens`` (tokens, width) is what the patch embedding makes of the middle.
    """

    middle: Tensor
    tokens: Tensor
    radius: float

    @classmethod
    def of(cls, victim: Victim, patch: nn.Conv2d) -> _Box:
        huge = torch.full((1, *victim.space.shape), 1e12, dtype=torch.float64)
        low, high = victim.space.project(-huge), victim.space.project(huge)
        grey = (low + high) / 2
        with torch.no_grad():
            tokens = patch(grey.to(victim.device, victim.dtype)).flatten(2).transpose(1, 2)[0].double().cpu()
        return cls(_patches(grey, patch), tokens, float((_patches(high, patch) - _patches(low, patch)).norm()) / 2)


def _patches(image: Tensor, patch: nn.Conv2d) -> Tensor:
    """One image (1, C, H, W) as (patches, values), the inverse of :func:`_assembled`."""
    return F.unfold(image, patch.kernel_size, stride=patch.stride)[0].T


def _position_gradient(signal: Signal, roles: Roles) -> Tensor:
    return signal[_position(roles)].double().cpu().flatten(0, -2)


def _position(roles: Roles) -> str:
    assert roles.position_embedding is not None
    return roles.position_embedding


def _positions(victim: Victim, roles: Roles) -> Tensor:
    return victim.parameters()[_position(roles)].double().cpu().flatten(0, -2)


def _parts(victim: Victim, signal: Signal) -> tuple[Roles, nn.Conv2d]:
    roles = find_roles(victim.model)
    if not roles.attention:
        raise Inapplicable("the model has no self-attention that a family knows")
    if roles.position_embedding is None:
        raise Inapplicable("the model has no learned position embedding, so the gradient of the tokens is not shared")
    if roles.position_embedding not in victim.parameters():
        raise Inapplicable(f"the position embedding {roles.position_embedding} is fixed, so its gradient is not shared")
    for needed in (roles.position_embedding, *_weights(roles.attention[0])):
        if needed not in signal:
            raise Inapplicable(f"not shared: {needed}")
    patch = victim.model.get_submodule(roles.patch_embedding or "")
    if not isinstance(patch, nn.Conv2d) or patch.stride != patch.kernel_size or patch.padding != (0, 0):
        raise Inapplicable("the patch embedding is no convolution over patches side by side")
    return roles, patch


def _check_layout(victim: Victim, roles: Roles, patch: nn.Conv2d, *, seed: int) -> tuple[int, str]:
    """Number of tokens before the patches, and why Eq. (8) does not hold on the adversary's own noise ("" if it does)."""
    rng = torch.Generator().manual_seed(seed)
    probe = victim.to_input(victim.space.start(1, rng))
    attention = roles.attention[0]
    layer = attention.qkv or attention.q
    assert layer is not None
    assert roles.patch_embedding is not None
    signal = Gradient()(victim, probe, torch.zeros(1, dtype=torch.long, device=victim.device))
    with torch.no_grad(), capturing(victim.model, (layer,)) as seen:
        victim(probe)
        embedded = patch(probe).flatten(2).transpose(1, 2)[0].double().cpu()
    z, positions = seen[layer][0].double().cpu(), _positions(victim, roles)
    prefix = len(positions) - len(embedded)
    between = (
        "the first attention does not read the sum of patch and position embedding: something, such as a normalisation, "
        "lies between them"
    )
    if prefix < 0 or z.shape != positions.shape:
        raise Inapplicable(between)
    if not close(z[prefix:], embedded + positions[prefix:]):
        return prefix, between
    products = attention_products(signal, victim.parameters(), attention).cpu()
    return prefix, "" if close(_position_gradient(signal, roles).T @ z, products) else BYPASSED


def require_identity(gradient: Tensor, z: Tensor, products: Tensor) -> None:
    """Refuses a model for which Eq. (8) does not hold on the adversary's own data, whose z is known."""
    if not close(gradient.T @ z, products):
        raise Inapplicable(BYPASSED)


def require_one_step(seen: Observation) -> None:
    """Refuses a weight update of several local steps."""
    if local_steps(seen.channel, batch_size(seen)) > 1:
        raise Inapplicable("the identity holds for one gradient; several local steps mix several of them")


def close(a: Tensor, b: Tensor) -> bool:
    """Whether two things that should be equal are, up to ``AGREEMENT`` of the second."""
    return bool((a - b).norm() <= AGREEMENT * b.norm())


def _without_prefix(victim: Victim, signal: Signal, roles: Roles, prefix: int) -> tuple[Tensor, Tensor]:
    """∂l/∂z of the patch tokens, and the known tokens before them (class token), (prefix, width)."""
    gradient = _position_gradient(signal, roles)
    if prefix == 0:
        return gradient, gradient[:0]
    attention = roles.attention[0]
    layer = attention.qkv or attention.q
    assert layer is not None
    blank = victim.space.encode(torch.zeros(1, *victim.space.shape)).to(victim.device, victim.dtype)
    with torch.no_grad(), capturing(victim.model, (layer,)) as seen:
        victim(blank)  # these tokens are the same for every image
    known = seen[layer][0, :prefix].double().cpu()
    return gradient[prefix:], known


def identifiability(gradient: Tensor, values: int | None, dtype: torch.dtype) -> Identifiability:
    """What ``gradient`` (tokens, width), ∂l/∂z as shared in ``dtype``, lets the system of Theorem 3.1 give back."""
    singular = torch.linalg.svdvals(gradient)
    rounding = torch.finfo(dtype).eps
    # rounding is random over the entries, so it moves singular values by its size times the root of the dimension
    rank = int((singular > singular[0] * rounding * math.sqrt(max(gradient.shape))).sum())
    condition = float(singular[0] / singular[-1]) if singular[-1] > 0 else math.inf
    tokens, width = gradient.shape
    return Identifiability(tokens, width, values, rank, condition, rounding)


def _assembled(flat: Tensor, patch: nn.Conv2d, shape: tuple[int, ...]) -> Tensor:
    """Patches (patches, values), row by row, as one image."""
    height, width = patch.kernel_size
    channels, rows, columns = shape[0], shape[1] // height, shape[2] // width
    grid = flat.view(rows, columns, channels, height, width).permute(2, 0, 3, 1, 4)
    image = flat.new_zeros(shape)
    image[:, : rows * height, : columns * width] = grid.reshape(channels, rows * height, columns * width)
    return image


def april_closed_form(
    *, ridge: float | Literal["auto"] | None = None, noise: float | None = None, force: bool = False
) -> AprilClosedForm:
    """Lu et al. 2022: the gradient of a learned position embedding gives the tokens, the tokens give the image.

        (∂l/∂E_pos)ᵀ z = Qᵀ ∂l/∂Q + Kᵀ ∂l/∂K + Vᵀ ∂l/∂V,     x = W_p⁺ (z − E_pos − b_p)

    Needs a transformer whose first attention reads exactly the sum of patch and position embedding, with nothing around it
    (architecture A; ``families.attention_first`` makes that variant of a model), and the gradients of both shared. What
    will be lost is said before solving, in the result's notes (:class:`Identifiability`). The adversary tries the identity on
    noise of its own first, so other layouts are refused with the reason; with ``force=True`` they are solved all the same
    and the result is a guess, as a note says.

    For gradients with noise a ``ridge`` λ pulls the pixels towards grey (:mod:`.april_ridge`): a number, or
    "auto" for λ from the noise. ``noise`` is the deviation of Gaussian noise on each shared entry, if the adversary knows it
    (an assumption; a note then bounds the error); otherwise it is estimated from what no solution explains.

    Deviations: tokens before the patches (class token) are known and moved to the right side, which the paper does not
    do; all is solved in float64; the ridge is not in the paper.

    Ref: APRIL (Lu et al. 2022), Algorithm 1 — closed-form attack
    """
    return AprilClosedForm(labels=inferred(), ridge=ridge, noise=noise, force=force)
