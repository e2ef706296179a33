"""APRIL in closed form: the input of a self-attention from its gradients and that of the position embedding."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from leakgauge.attacks.april.identifiability import expected_pixel_error, identifiability
from leakgauge.attacks.april.patches import Box, PatchGrid, patch_grid, pixels_from_patches
from leakgauge.attacks.april.ridge import NoisySystem, error_bound, noise_bound, ridge_from_noise, std_from_outside
from leakgauge.attacks.certificate import certify
from leakgauge.channels.facts import local_steps, require_gradients, require_shared
from leakgauge.channels.gradient import gradient, gradient_at
from leakgauge.channels.twice import twice_differentiable
from leakgauge.core import Assumption, Observation, Reconstruction, Signal, Tokens, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.examples import example
from leakgauge.core.randomness import private_randomness
from leakgauge.engine import Observed
from leakgauge.engine.reference import inputs_of
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.families import Attention, Roles, find_roles
from leakgauge.inversion.labels import LabelRule, batch_size, infer_labels, labels_or_none

AGREEMENT = 1e-2
"""How well the paper's identity must hold on the adversary's own data for the attack to apply."""


BYPASSED = (
    "the gradient of the position embedding is not only that of the first attention's input: the tokens also "
    "bypass it, as in a residual connection, or the positions are used again"
)
BETWEEN = (
    "the first attention does not read the sum of patch and position embedding: there is something, such as dropout or "
    "a normalisation, between them"
)


def tokens_from_attention(position: Tensor, products: Tensor) -> Tensor:
    """z with (∂l/∂z)ᵀ z = Qᵀ ∂l/∂Q + Kᵀ ∂l/∂K + Vᵀ ∂l/∂V, by least squares.

    ``position`` (tokens, width) is ∂l/∂E_pos = ∂l/∂z, ``products`` (width, width) the right side. The result is
    (tokens, width). A bias of q, k or v changes neither side.

    Ref: APRIL (Lu et al. 2022), Theorem 3.1 and Eq. (8) — the input of a self-attention in closed form
    """
    return torch.linalg.lstsq(position.T.cpu(), products.cpu(), driver="gelsd").solution


def attention_products(signal: Signal, parameters: Signal, attention: Attention, *, in_columns: bool = False) -> Tensor:
    """Qᵀ ∂l/∂Q + Kᵀ ∂l/∂K + Vᵀ ∂l/∂V, (width, width), from fused or separate weights.

    With ``in_columns`` an output is a column of the weight, as in GPT-2's ``Conv1D``, not a row.

    Ref: APRIL (Lu et al. 2022), Algorithm 1, line 5 — right side of the linear system
    """
    pairs = [(parameters[name].double(), signal[name].double()) for name in attention.weights]
    products = [w @ g.T if in_columns else w.T @ g for w, g in pairs]
    return torch.stack(products).sum(0)


@dataclass(frozen=True)
class AprilClosedForm:
    """The attack made by :func:`april_closed_form`."""

    labels: LabelRule
    ridge: float | Literal["auto"] | None = None
    noise: float | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.ridge not in (None, "auto") and not _is_size(self.ridge):
            raise BadInput(f"ridge must be None, 'auto' or a non-negative number, got {self.ridge!r}")
        if self.noise is not None and (not _is_size(self.noise) or self.ridge is None):
            raise BadInput(
                f"noise must be a non-negative deviation and needs a ridge; got noise {self.noise!r}, ridge {self.ridge!r}"
            )

    def assumptions(self) -> tuple[Assumption, ...]:
        """A declared noise is knowledge about the client's defense, which protocols publish."""
        if self.noise is None:
            return ()
        return (Assumption(f"deviation of the noise on each shared entry known ({self.noise:g})", "deployable"),)

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        began = time.perf_counter()
        size = batch_size(seen)
        require_one_step(seen)
        signal = Observed.check(seen.signal, victim).signal
        roles, grid = _parts(victim, signal, seed=seed)
        layout = _layout(victim, roles, grid, seed=seed)
        if layout.broken and not self.force:
            raise Inapplicable(f"{layout.broken}; the attack april, by optimisation, does not need this layout")
        guessed = (f"a guess, because the theorem's condition fails: {layout.broken}",) if layout.broken else ()
        unknown, known = _position_gradient(signal, roles)[layout.first :], layout.known
        products = attention_products(signal, victim.parameters(), roles.attention[0]).cpu()
        products = products - layout.gradient_before(signal).T @ known  # the known tokens' part of the right side
        positions, weight, box = _positions(victim, roles)[layout.first :], grid.weight, Box.of(victim, grid)
        system = NoisySystem.of(unknown, products, positions + box.tokens, embedding=weight, guess=box.middle)
        own = torch.cat([victim.parameters()[n].double().cpu() for n in roles.attention[0].weights])
        ridge, notes = self._ridge(system, own)
        stated = replace(
            identifiability(unknown, weight.shape[1], signal[_position(roles)].dtype),
            patch_rank=int(torch.linalg.matrix_rank(weight)),
            pixel_error=expected_pixel_error(
                system, own, rounding=torch.finfo(victim.dtype).eps, span=box.span, ridge=ridge
            ),
            unseen=grid.unseen(),
            samples=size,
        )
        if self.ridge is None:
            flat = pixels_from_patches(tokens_from_attention(unknown, products) - positions, weight, grid.bias)
        else:
            flat = system.solve(ridge)
        if self.noise is not None:
            largest = float(system.base.norm()) + box.radius * float(torch.linalg.matrix_norm(weight, 2))
            notes += self._bound(system, own, box, math.hypot(largest, float(known.norm())), ridge)
        x = grid.assemble(flat).to(victim.device, next(iter(signal.values())).dtype)
        x = victim.space.project(torch.nan_to_num(x))[None].expand(size, *x.shape).clone()
        mixed = (
            (f"the batch's {size} samples share one linear system: this is their mixture, repeated {size} times",)
            if size > 1
            else ()
        )
        labels = labels_or_none(self.labels, victim, seen, seed=seed)
        proven = certify(
            victim, seen, x[:1], labels, error=None if stated.lost() or guessed else stated.pixel_error, seed=seed
        )
        return Reconstruction.single(
            x,
            labels,
            made_by=repr(self),
            began=began,
            notes=(str(stated), *notes, *mixed, *guessed),
            stated=stated.rows(),
            certified=proven.expand(size).clone(),
        )

    def _ridge(self, system: NoisySystem, weights: Tensor) -> tuple[float, tuple[str, ...]]:
        """λ and where it comes from; 0 for the plain solution."""
        if self.ridge is None:
            return 0.0, ()
        if self.ridge != "auto":
            return float(self.ridge), (f"ridge {self.ridge:.1e} as given",)
        std = std_from_outside(system, weights) if self.noise is None else self.noise
        ridge, source = ridge_from_noise(system, weights, std), "estimated" if self.noise is None else "declared"
        return ridge, (f"ridge {ridge:.1e} from noise of deviation {std:.1e} ({source})",)

    def _bound(self, system: NoisySystem, weights: Tensor, box: Box, largest: float, ridge: float) -> tuple[str, ...]:
        """A bound on the pixel error under the declared noise; ``largest`` ≥ ‖z‖ for every valid image."""
        assert self.noise is not None
        noise = noise_bound(weights, largest, std=self.noise, width=system.base.shape[1])
        bound = error_bound(system, ridge, noise=noise, distance=box.radius) / math.sqrt(box.pixels) / box.narrowest
        return (f"root mean square error of the pixels at most {bound:.1e} of their range (for 98 % of such noise)",)


def _is_size(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _position_gradient(signal: Signal, roles: Roles) -> Tensor:
    return signal[_position(roles)].double().cpu().flatten(0, -2)


def _position(roles: Roles) -> str:
    assert roles.position_embedding is not None
    return roles.position_embedding


def _positions(victim: Victim, roles: Roles) -> Tensor:
    return victim.parameters()[_position(roles)].double().cpu().flatten(0, -2)


def _parts(victim: Victim, signal: Signal, *, seed: int) -> tuple[Roles, PatchGrid]:
    if isinstance(victim.space, Tokens):
        raise Inapplicable("the victim takes token ids; use april_text, the closed form for text")
    roles = find_roles(victim.model)
    if not roles.attention:
        raise Inapplicable(
            "the model has no self-attention of a known family: linear layers with q, k and v in their names (to_q, wq, query, "
            "q_proj, qkv, in any spelling) or nn.MultiheadAttention, after a patch embedding"
        )
    if roles.position_embedding is None:
        raise Inapplicable("the model has no learned position embedding, so the gradient of the tokens is not shared")
    if roles.position_embedding not in victim.parameters():
        raise Inapplicable(f"the position embedding {roles.position_embedding} is fixed, so its gradient is not shared")
    for needed in (roles.position_embedding, *roles.attention[0].weights):
        require_shared(signal, needed)
    if roles.patch_embedding is None or roles.first_layer != roles.patch_embedding:
        raise Inapplicable("the patch embedding has several layers; the closed form only inverts a single one")
    return roles, patch_grid(victim, roles.patch_embedding, seed=seed)


@dataclass(frozen=True, eq=False)
class _Layout:
    """Which tokens the first attention reads, as the adversary finds with its own images.

    ``known`` (k, width) are the tokens before the patches, equal for every image. ``before`` holds the parameter and row with the
    gradient of each of them: its position, or the learned token itself if it has no position. ``first`` is the position of the
    first patch. ``broken`` says why Eq. (8) does not hold ("" if it does).
    """

    known: Tensor
    before: tuple[tuple[str, int], ...]
    first: int
    broken: str = ""

    def gradient_before(self, signal: Signal) -> Tensor:
        """∂l/∂z of the known tokens, (k, width)."""
        for name, _ in self.before:
            if name not in signal:
                raise Inapplicable(f"not shared: {name}, which holds the gradient of a token before the patches")
        rows = [signal[name].double().cpu().flatten(0, -2)[row] for name, row in self.before]
        return torch.stack(rows) if rows else torch.zeros_like(self.known)


def _layout(victim: Victim, roles: Roles, grid: PatchGrid, *, seed: int) -> _Layout:
    """Runs the adversary's own images through the model; refuses a model with tokens that are not patches plus positions."""
    attention = roles.attention[0]
    probe = victim.to_input(victim.space.start(1, torch.Generator().manual_seed(seed)))
    z, embedded = _first_input(victim, attention, probe, seed=seed), grid.embed(probe)
    positions, patches = _positions(victim, roles), len(embedded)
    known, first = z[: len(z) - patches], len(positions) - patches
    if not patches <= len(positions) <= len(z) or z.shape[1:] != positions.shape[1:]:
        raise Inapplicable(
            f"the first attention reads {len(z)} tokens for {patches} patches, but the position embedding has {len(positions)} "
            "rows: positions are resized or shared, or patches are left out"
        )
    own = tuple((_position(roles), row) for row in range(first)) if len(z) == len(positions) else ()
    if not close(z[len(known) :], embedded + positions[first:]):
        return _Layout(known, own, first, broken=BETWEEN)
    found = _Layout(known, own or _learned_tokens(victim, roles, known, positions[:first]), first)
    other = _first_input(victim, attention, torch.zeros_like(probe), seed=seed)
    if not close(other[: len(known)], known):
        return replace(found, broken="the tokens before the patches depend on the image, so they are unknown")
    signal = probe_gradient(victim, probe, seed=seed)
    gradient = torch.cat([found.gradient_before(signal), _position_gradient(signal, roles)[first:]])
    if close(gradient.T @ z, attention_products(signal, victim.parameters(), attention).cpu()):
        return found
    again = _used_again(victim, attention, probe, seed=seed)
    reason = f"the weights of {attention.name or 'the model'} are used more than once, so their gradient mixes several inputs"
    return replace(found, broken=reason if again else BYPASSED)


def _first_input(victim: Victim, attention: Attention, x: Tensor, *, seed: int) -> Tensor:
    """The input of the first attention for one image, (tokens, width)."""
    places = (*attention.layers, attention.name)  # some layers are not called, only their weight is used
    seen = inputs_of(victim, places, x, seed=seed)
    read = [seen[name] for name in attention.layers if name in seen]
    if any(other.shape != read[0].shape or not close(other, read[0]) for other in read):
        raise Inapplicable(
            f"q, k and v of {attention.name or 'the model'} do not read the same tokens: it is not self-attention"
        )
    for tokens in (*read[:1], seen.get(attention.name)):
        if isinstance(tokens, Tensor) and tokens.dim() == 3 and 1 in tokens.shape[:2]:  # the batch is first or second
            return tokens.flatten(0, 1).double().cpu()
    raise Inapplicable(
        f"{attention.name or 'the model'} does not read tokens (1, tokens, width), so its input is unknown"
    )


def _learned_tokens(victim: Victim, roles: Roles, known: Tensor, positions: Tensor) -> tuple[tuple[str, int], ...]:
    """Parameter and row of each token before the patches (class token, registers), if not all of them have a position.

    They are found by value, alone or with one of the ``positions`` added.
    """
    width = known.shape[1]
    every = victim.model.named_parameters()
    learned = [(n, p.detach().double().cpu()) for n, p in every if p.dim() > 1 and p.shape[-1] == width]
    short = [(n, t.flatten(0, -2)) for n, t in learned if n != roles.position_embedding and t.numel() <= known.numel()]
    rows = [((name, row), t[row]) for name, t in short for row in range(len(t))]
    found: list[tuple[str, int]] = []
    for token in known:
        own = [at for at, row in rows for place in (row, *(row + positions)) if close(place, token)]
        if not own:
            raise Inapplicable(
                "a token before the patches has no position and is not a learned token, so its gradient is unknown"
            )
        found.append(next((at for at in own if at not in found), own[0]))
    return tuple(found)


def probe_gradient(victim: Victim, probe: Tensor, *, seed: int) -> Signal:
    """The gradient of the adversary's own image. The identity holds for any loss, so we draw one that takes any output."""
    parameters = victim.parameters()

    def loss(at: dict[str, Tensor]) -> Tensor:
        with twice_differentiable():
            output = victim(probe, parameters=at)
        return (output * torch.randn(output.shape, generator=torch.Generator().manual_seed(seed)).to(output)).sum()

    with private_randomness(seed, victim.device):
        with torch.no_grad():
            plain = isinstance(victim(probe), Tensor)
        if plain:
            return gradient_at(parameters, loss)
        label = torch.zeros(1, dtype=torch.long, device=victim.device)
        return gradient(victim, probe, label, parameters=parameters, buffers=victim.buffers())


def _used_again(victim: Victim, attention: Attention, probe: Tensor, *, seed: int) -> bool:
    """Whether the attention, or its first layer, runs several times per image, or shares a weight with another layer."""
    calls: list[nn.Module] = []
    layers = [victim.model.get_submodule(name) for name in (attention.name, *attention.layers[:1])]
    handles = [layer.register_forward_pre_hook(lambda module, _: calls.append(module)) for layer in layers]
    try:
        with torch.no_grad(), private_randomness(seed, victim.device):
            victim(probe)
    finally:
        for handle in handles:
            handle.remove()
    own = {id(victim.model.get_parameter(name)) for name in attention.weights}
    names = [name for name, p in victim.model.named_parameters(remove_duplicate=False) if id(p) in own]
    return any(calls.count(layer) > 1 for layer in layers) or len(names) > len(attention.weights)


def require_identity(gradient: Tensor, z: Tensor, products: Tensor) -> None:
    """Refuses a model if Eq. (8) does not hold on the adversary's own data, where z is known."""
    if not close(gradient.T @ z, products):
        raise Inapplicable(BYPASSED)


def require_one_step(seen: Observation) -> None:
    """Refuse a weight update of several local steps, or of steps that are no gradients."""
    require_gradients(seen.channel)
    if local_steps(seen.channel, batch_size(seen)) > 1:
        raise Inapplicable("the identity holds for a single gradient, but several local steps mix several")


def close(a: Tensor, b: Tensor) -> bool:
    """Whether two values that should be equal are, up to ``AGREEMENT`` of the second."""
    return bool((a - b).norm() <= AGREEMENT * b.norm())


@example("vit_a")
@checked
def april_closed_form(
    *, ridge: float | Literal["auto"] | None = None, noise: float | None = None, force: bool = False
) -> AprilClosedForm:
    """Lu et al. 2022: the gradient of a learned position embedding gives the tokens, the tokens give the image.

        (∂l/∂E_pos)ᵀ z = Qᵀ ∂l/∂Q + Kᵀ ∂l/∂K + Vᵀ ∂l/∂V,     x = W_p⁺ (z − E_pos − b_p)

    Needs a transformer with a first attention that reads exactly the sum of patch and position embedding, with nothing around it
    (architecture A; ``families.attention_first`` makes that variant of a model), and the gradients of both shared. The notes of
    the result predict, before solving, what will be lost and how wrong pixels will be
    (:class:`leakgauge.attacks.april.identifiability.Identifiability`). The adversary first tests the identity on its own noise, so other
    layouts are refused with the reason. With ``force=True`` they are solved anyway; the result is a guess, and a note says so.

    For noisy gradients a ``ridge`` λ pulls the pixels towards grey (:mod:`leakgauge.attacks.april.ridge`): a number, or "auto" to
    derive λ from the noise. ``noise`` is the deviation of Gaussian noise on each shared entry, if the adversary knows it (an
    assumption; a note then bounds the error); otherwise it is estimated from what no solution explains.

    Deviations: tokens before the patches (class token, registers) are known and moved to the right side, which the paper does not
    do; for those without a position the gradient is that of the learned token itself. The patch embedding may be any
    convolution with zero padding, or a linear layer; the adversary finds its order of pixels
    (:mod:`leakgauge.attacks.april.patches`). Overlapping patches are averaged. Everything is solved in float64. The ridge is
    not in the paper.

    Ref: APRIL (Lu et al. 2022), Algorithm 1 — closed-form attack
    """
    return AprilClosedForm(labels=infer_labels(), ridge=ridge, noise=noise, force=force)
