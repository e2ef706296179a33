"""Separates the samples of a batch in the gradient of a fully connected first layer with a ReLU, and certifies them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakgauge.attacks.behind_convolutions import first_linear_behind, images_behind
from leakgauge.attacks.certificate import EXACT
from leakgauge.attacks.found_images import batch_of, valid_range
from leakgauge.attacks.linear import PROBES, first_layer_gradients
from leakgauge.channels.facts import local_steps, require_gradients
from leakgauge.core import Observation, Reconstruction, Victim
from leakgauge.core.examples import example
from leakgauge.core.randomness import private_randomness
from leakgauge.engine.reference import outputs_of
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.inversion.labels import batch_size

UNITS_PER_SAMPLE = 4
"""Units that the layer needs for each sample. A sample leaves about half of them at zero, and these must outnumber the samples."""
GAP = 200.0
"""How far the smallest singular value that counts must be above the next, which is only rounding or noise."""
TRIES = 3
"""Ranks to try, those with the widest gaps first: samples with almost no loss may be below the gap."""
NULL, OPEN = 3.0, 10.0
"""A vector is zero on some rows if its singular value there is below ``NULL`` times the noise, and surely not above ``OPEN`` times."""
ZERO = 20.0
"""An entry of a column is zero below this many times its expected error."""
PINS = 8
"""So few rows of zeros do not set a column apart from a mixture."""
IDLE = 5
"""Rounds without a new column after which the search ends."""
MIXED = 4
"""A mixture of at most so many columns is taken apart."""
SAME = 1e-3
"""A column that is so near to the span of the others is one of them."""
STEPS, FINISH = 100, 12
"""Steps of the search while ε falls from 1 to ``COARSE``, and from there to the level of the rounding."""
COARSE = 0.1
FINEST = 1e-11
"""Rounding of the search in float64, as a share of the gradient; finer gradients are taken as this coarse."""
CHUNK = 2**22
"""Numbers that one chunk of the search may hold (32 MiB)."""
MISSES = 0.02
"""Share of a sample's active units whose δ may look like zero by chance."""


@dataclass(frozen=True)
class ReluBatches:
    """The attack made by :func:`relu_batches`."""

    starts: int
    rounds: int

    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        began, size = time.perf_counter(), batch_size(seen)
        if local_steps(seen.channel, size) > 1:
            raise Inapplicable(
                f"separating a batch needs one local step, but this update sums {local_steps(seen.channel, size)}, "
                "taken at different weights"
            )
        try:
            name, weight, bias = first_layer_gradients(victim, seen, seed=seed)
            behind = False
        except Inapplicable:
            require_gradients(seen.channel)
            name, weight, bias = first_linear_behind(victim, seen, seed=seed)
            behind = True
        _require_relu(victim, name, seed=seed)
        layer = victim.model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        rows = torch.cat([layer.weight, layer.bias[:, None]], 1).detach().double()
        split, found = self._search(Factors.of(weight, bias, size), rows, seed=seed)
        x = found.inputs[:, :-1]
        dark, light = valid_range(victim, x)
        width = float(x.abs().max()) if behind else float((light - dark).min())
        shown = found.consistent & (found.error < EXACT * width)
        proven = int(shown.sum()) if bool(found.consistent.all()) else 0
        if behind and not bool(shown.any()):
            raise Inapplicable(
                f"none of the inputs of {name} could be separated, so there is nothing to search images for"
            )
        made = (
            images_behind(victim, seen, name, x[shown], seed=seed)
            if behind
            else victim.space.project(x[shown].view(-1, *victim.space.shape).to(victim.dtype))
        )
        images = batch_of(made, size, victim)
        certified = None if behind else torch.arange(size, device=images.device) < proven
        what = f"inputs of {name}" if behind else "samples"
        zeros = int(split.zeros(found.columns).sum())
        return Reconstruction.single(
            images,
            None,
            made_by=repr(self),
            began=began,
            notes=(
                f"{proven} of {size} {what} are certified exact; {int(shown.sum())} agree with their activations, the rest is grey",
                *(["images with these inputs are searched for, and have no certificate"] if behind else []),
            ),
            stated=(
                ("rank of the gradient", f"{split.rank}, for {size} samples"),
                ("units of the layer", str(split.units)),
                ("sparse columns found", f"{found.columns.shape[1]} of {split.rank}"),
                ("zeros in them", f"{zeros / max(1, found.columns.shape[1] * split.units):.0%}"),
                (f"{what} certified", f"{proven} of {size}"),
            ),
            certified=certified,
        )

    def _search(self, splits: list[Factors], rows: Tensor, *, seed: int) -> tuple[Factors, Separated]:
        """The first rank at which every sample is consistent, or else the one with the most that are."""
        results: list[tuple[Factors, Separated]] = []
        for split in splits:
            rng = torch.Generator().manual_seed(seed)
            columns = sparse_columns(split, starts=self.starts, rounds=self.rounds, rng=rng)
            results.append((split, separate(split, columns, rows)))
            if bool(results[-1][1].consistent.all()):
                return results[-1]
        return max(results, key=lambda result: int(result[1].consistent.sum()))


@dataclass(frozen=True, eq=False)
class Factors:
    """G = [∂W, ∂b] = U S Vᵀ up to its rank, and ``noise``, the largest singular value that is only rounding or noise."""

    u: Tensor  # (m, r)
    s: Tensor  # (r,)
    v: Tensor  # (r, d + 1)
    noise: float

    @property
    def units(self) -> int:
        return len(self.u)

    @property
    def rank(self) -> int:
        return len(self.s)

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor, size: int) -> list[Factors]:
        """The factors of the gradient of ``size`` samples, for each rank to try; refuses one that cannot be separated."""
        units, inputs = weight.shape[0], weight.shape[1] + 1
        if size * UNITS_PER_SAMPLE > units or size >= inputs:
            raise Inapplicable(
                f"separating {size} samples needs a first layer of at least {size * UNITS_PER_SAMPLE} units and more than {size} inputs, "
                f"but it has {units} and {inputs - 1}"
            )
        u, s, v = torch.linalg.svd(torch.cat([weight, bias[:, None]], 1).double(), full_matrices=False)
        if s[0] == 0:
            raise Inapplicable("the gradient of the first layer is zero")
        floor = max(torch.finfo(weight.dtype).eps / 4, FINEST) * float(s[0])
        gaps = (s[:size] / s[1 : size + 1].clamp_min(floor)).tolist()
        ranks = [k for k in sorted(range(size), key=lambda k: -gaps[k])[:TRIES] if gaps[k] > GAP]
        if not ranks:
            raise Inapplicable(
                f"the gradient of the first layer is not a sum of {size} samples up to rounding: it is noisy, pruned or coarse "
                f"(singular value {size} is {float(s[size - 1] / s[0]):.1e} of the first, the next {float(s[size] / s[0]):.1e})"
            )
        return [cls(u[:, : k + 1].contiguous(), s[: k + 1], v[: k + 1], max(float(s[k + 1]), floor)) for k in ranks]

    def zeros(self, q: Tensor) -> Tensor:
        """Which entries of the columns U q are zero up to rounding, for ``q`` (r,) or (r, n)."""
        error = self.noise * (self.s**-2 @ q.square()).sqrt() / self.units**0.5
        return (self.u @ q).abs() <= ZERO * error


def sparse_columns(split: Factors, *, starts: int, rounds: int, rng: torch.Generator) -> Tensor:
    """Unit vectors q (r, found) for which U q has many zeros and no other vector has the same zeros.

    Each start descends on Σ_r log((U q)_r² + ε²) over the sphere by inverse iteration with the weights 1/((U q)_r² + ε²), while ε
    falls. Columns that were found are projected out of the right-hand side, so no later round ends in them.
    """
    found, tried, idle = split.u.new_zeros(split.rank, 0), set[bytes](), 0
    for _ in range(rounds):
        before = found.shape[1]
        if before >= split.rank - 1 or idle == IDLE:  # the last one follows from the others
            break
        basis = torch.linalg.qr(found)[0]
        for end in _descend(split, split.u, starts, basis, rng=rng):
            zeros = split.zeros(end).cpu().numpy().tobytes()
            if zeros in tried:
                continue
            tried.add(zeros)
            for column in _columns_at(split, end, rng=rng):
                new = column - basis @ (basis.T @ column)
                if float(new.norm()) > SAME:
                    found = torch.cat([found, column[:, None]], 1)
                    basis = torch.cat([basis, (new / new.norm())[:, None]], 1)
        idle = 0 if found.shape[1] > before else idle + 1
    return found


def _descend(split: Factors, u: Tensor, starts: int, basis: Tensor, *, rng: torch.Generator) -> Tensor:
    """Where random starts end (starts, k) in the orthonormal columns ``u`` (m, k), outside the span of ``basis``."""
    last = min(COARSE, max(2 * split.noise / float(split.s[-1]), 1e-7))
    epsilons = [COARSE ** (k / STEPS) for k in range(STEPS)]
    epsilons += [COARSE * (last / COARSE) ** (k / FINISH) for k in range(FINISH + 1)]
    ends = []
    drawn = torch.randn(starts, u.shape[1], generator=rng, dtype=torch.float64).to(u)
    for q in (drawn - drawn @ basis @ basis.T).split(max(1, CHUNK // u.numel())):
        for epsilon in epsilons:
            v = q @ u.T
            free = q - q @ basis @ basis.T
            free = free / free.norm(dim=1, keepdim=True)
            w = 1 / (v.square() / v.square().mean(1, keepdim=True) + epsilon**2)
            q = torch.linalg.solve(u.T @ (w[:, :, None] * u), free[:, :, None])[:, :, 0]
        ends.append(q / q.norm(dim=1, keepdim=True))
    return torch.cat(ends)


def _columns_at(split: Factors, q: Tensor, *, rng: torch.Generator) -> list[Tensor]:
    """The column with the zeros of U q; if q is a mixture of a few columns, these columns."""
    space = _polish(split, q)
    if space is None or space.shape[1] > MIXED:
        return []
    if space.shape[1] == 1:
        return [space[:, 0]]
    none = space.new_zeros(space.shape[1], 0)
    inside = [_polish(split, space @ z) for z in _descend(split, split.u @ space, 4 * MIXED, none, rng=rng)]
    return [one[:, 0] for one in inside if one is not None and one.shape[1] == 1]


def _polish(split: Factors, q: Tensor) -> Tensor | None:
    """All vectors with the zeros of U q, as :func:`_null_space`; None if there are too few zeros."""
    space = q[:, None]
    for _ in range(2):
        zero = split.zeros(space[:, 0])
        if int(zero.sum()) < split.rank + split.units // 50:
            return None
        space = _null_space(split, zero)
        if space.shape[1] != 1:
            return space if space.shape[1] else None
    return space


def _null_space(split: Factors, zero: Tensor) -> Tensor:
    """Orthonormal vectors q (r, k), k ≥ 0, with (U q)_r = 0 on the rows ``zero``, except on ``PINS`` of them if k > 1.

    A mixture of k columns is zero where all of them are, and the search ends where it is zero in k − 1 rows more. Only these few rows
    set it apart, so the vector must stay the only one without the ``PINS`` rows that speak most against the next best.
    y = q/S is the smallest right singular vector of (U S) on these rows: there the error is the same in every direction.
    """
    u = split.u[zero]
    if split.rank == 1:
        return u.new_ones(1, int((u * split.s).norm() <= NULL * split.noise))
    if len(u) < split.rank + PINS:
        return u.new_zeros(split.rank, 0)
    _, values, vectors = torch.linalg.svd(u * split.s, full_matrices=False)
    if values[-1] > NULL * split.noise:
        return u.new_zeros(split.rank, 0)
    other = torch.linalg.eigh(u.T @ u)[1][:, 1]
    kept = (u @ other).abs().argsort(stable=True)[:-PINS]
    _, fewer, spanned = torch.linalg.svd(u[kept] * split.s, full_matrices=False)
    several = int((fewer < OPEN * split.noise).sum())
    chosen = spanned[-several:] if several > 1 else vectors[-1:]
    return torch.linalg.qr((chosen * split.s).T)[0]


@dataclass(frozen=True, eq=False)
class Separated:
    """``inputs`` (r, d + 1) of the layer, the last entry 1, from the sparse ``columns`` (r, found); which of them are ``consistent``; the
    largest ``error`` (root mean square over the entries) that rounding and noise can cause in each."""

    columns: Tensor
    inputs: Tensor
    consistent: Tensor
    error: Tensor


def separate(split: Factors, columns: Tensor, rows: Tensor) -> Separated:
    """The inputs that belong to the columns, made precise by their own activations, and which of them agree with it.

    For D = U Q the rows of Q⁻¹ S Vᵀ are the inputs up to a factor, and the last entry of each is 1. Sample i is consistent if

    - δ_i = U q_i is zero at every unit that x_i leaves inactive, W_r x_i + b_r < 0, and not at the active ones;
    - q_i is the only vector with these zeros.

    Every input depends on the span of all other columns, so a single consistent sample proves little; certificates need all of them.
    ``rows`` are [W, b]. Missing columns are filled up arbitrarily; if it is only one, its sample still comes out right.
    """
    fill = torch.linalg.qr(columns, mode="complete")[0][:, columns.shape[1] :] if columns.shape[1] else None
    q = torch.eye(split.rank).to(split.u) if fill is None else torch.cat([columns, fill], 1)
    unique = torch.zeros(split.rank, dtype=torch.bool, device=q.device)
    for _ in range(2):
        inputs, _ = _inputs(split, q)
        better = q.clone()
        for i, x in enumerate(inputs):
            before = rows @ x
            space = _null_space(split, before < 0)
            unique[i] = space.shape[1] == 1
            if unique[i]:
                better[:, i] = space[:, 0]
        if float(torch.linalg.cond(better)) < 1 / torch.finfo(torch.float32).eps:
            q = better
    inputs, error = _inputs(split, q)
    before = rows @ inputs.T
    clear = before.abs() > ZERO * error * rows.norm(dim=1, keepdim=True)
    zero = split.zeros(q)
    stray = (clear & (before < 0) & ~zero).any(0)
    misses = (clear & (before > 0) & zero).sum(0) > MISSES * (clear & (before > 0)).sum(0)
    enough = clear.sum(0) > split.units / 2
    return Separated(columns, inputs, unique & enough & ~stray & ~misses, error)


def _inputs(split: Factors, q: Tensor) -> tuple[Tensor, Tensor]:
    """The inputs (r, d + 1) for the columns U q, and the largest root mean square error of each."""
    inverse = torch.linalg.inv(q)
    raw = (inverse * split.s) @ split.v
    scale = raw[:, -1:]
    return raw / scale, split.noise / split.v.shape[1] ** 0.5 * inverse.norm(dim=1) / scale[:, 0].abs()


def _require_relu(victim: Victim, name: str, *, seed: int) -> None:
    """Runs noise through the public model: nothing may flow back to a unit of the layer where its output is negative."""
    noise = victim.to_input(victim.space.start(PROBES, torch.Generator().manual_seed(seed)))
    with torch.enable_grad(), private_randomness(seed, victim.device), outputs_of(victim.model, name) as kept:
        result = victim(noise.requires_grad_())
    if not isinstance(result, Tensor) or len(kept) != 1:
        raise Inapplicable(f"separating a batch needs a model that runs {name} once and returns a tensor")
    (slope,) = torch.autograd.grad(result.square().sum(), kept[0], allow_unused=True)
    if slope is None or not bool((slope[kept[0] <= 0] == 0).all()) or not bool((slope != 0).any()):
        raise Inapplicable(f"separating a batch needs a ReLU after {name}: negative outputs must have no gradient")


@example("mlp")
@checked
def relu_batches(*, starts: int = 64, rounds: int = 20) -> ReluBatches:
    """Dimitrov et al. 2024 (SPEAR): the samples of a batch, exactly, from the gradient of a fully connected first layer with a ReLU.

        [∂W, ∂b] = Σ_i δ_i [x_i, 1]ᵀ,   (δ_i)_r = 0 where W_r x_i + b_r < 0

    The gradient has the rank of the batch, and about half of every δ_i is zero, while mixtures of several have fewer zeros. The
    attack finds the δ_i as the sparsest vectors in the column space and divides. The certificate needs no truth: the activations of
    each x_i are the zeros of its δ_i, and no other vector has these zeros. Every x_i depends on all δ, so samples are
    certified only if all agree with their activations. Otherwise those that agree are shown without a certificate. What is missing is grey.

    Behind convolutions the layer's inputs come out as exactly, and :func:`feature_matching` finds images that have them, from a
    regression where there are similar images. Those images have no certificate: the convolutions may lose something.

    Each of at most ``rounds`` searches runs ``starts`` starts together. One local step works too: its factor −η cancels.

    Deviations: SPEAR draws subsets of rows until one holds only zeros of some δ_i, which takes exponentially many draws; here
    reweighted least squares searches for the sparse vectors.

    Ref: Dimitrov et al. 2024 — exact recovery of batches from the sparsity that a ReLU causes
    """
    for option, value in (("starts", starts), ("rounds", rounds)):
        if value < 1:
            raise BadInput(f"relu_batches needs at least one of {option}, got {value}")
    return ReluBatches(starts=starts, rounds=rounds)
