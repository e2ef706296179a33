"""Finds the input of a differentiable map from its output: Gauss-Newton steps, each solved by conjugate gradients without any matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jvp, vjp

Map = Callable[[Tensor], Tensor]
"""From a batch (N, C, H, W) to values (N, D), each row of its own sample."""

EXACT = 1e-8
"""Relative squared residual below which the input is found."""
HALVINGS = 6
NEAR = 1e-2
"""Largest change of a value when a derivative is taken by differences."""
TINY = 1e-30


@dataclass(frozen=True)
class LeastSquares:
    """x̂ = argmin_x ‖f(x) − z‖² + λ‖S⁻¹(x − x₀)‖², from a start x₀, for a batch at once.

    Each of ``steps`` linearises f at x and solves for the step with ``inner`` iterations of conjugate gradients, which need
    only products with f's Jacobian and its transpose; a step that does not lower the objective is halved. One step is exact
    where f is affine: copies, paddings, flips, permutations and every full-rank linear map or convolution are undone. There S is 1,
    because well-conditioned maps then converge at once. Where f is not affine, or z is not met, S divides the image's spectrum by
    the frequency, as in natural images, so what z leaves open stays smooth. λ is ``penalty`` times ‖SᵀJᵀJS‖.

    Ref: Golub and Van Loan 2013, section 11.3 — conjugate gradients, here on the normal equations of each Gauss-Newton step
    """

    steps: int = 5
    inner: int = 15
    penalty: float = 1e-6

    def __call__(self, f: Map, z: Tensor, start: Tensor) -> Tensor:
        """Inputs like ``start`` with outputs near ``z``."""
        if is_affine(f, start):
            found = self._search(f, z, start, smooth=False, steps=1)
            with torch.no_grad():
                short = (z - f(found)).square().sum(1)
            if bool((short <= EXACT * z.square().sum(1)).all()):
                return found
        return self._search(f, z, start, smooth=True, steps=self.steps)

    def _search(self, f: Map, z: Tensor, start: Tensor, *, smooth: bool, steps: int) -> Tensor:
        prior = _smoother(start) if smooth else _unchanged
        w, scale = torch.zeros_like(start), torch.zeros(len(start), 1, 1, 1).to(start)
        for number in range(steps):
            x = start + prior(w)
            value, pull, *_ = vjp(f, x)
            if smooth and number == 0:
                scale = self.penalty * _largest(f, pull, prior, x)
            short = z - value
            step = self._step(f, pull, prior, x, prior(pull(short)[0]) - scale * w, scale)
            w = self._move(f, z, start, prior, w, step, scale, short.square().sum(1))
        return start + prior(w)

    def _step(
        self, f: Map, pull: Callable[[Tensor], tuple[Tensor, ...]], prior: Map, x: Tensor, wanted: Tensor, scale: Tensor
    ) -> Tensor:
        """Conjugate gradients for (SᵀJᵀJS + λ) step = wanted, each sample on its own."""
        step, rest, along = torch.zeros_like(wanted), wanted.clone(), wanted.clone()
        left = first = _dot(rest, rest)
        for _ in range(self.inner):
            moved = _push(f, x, prior(along))
            image = prior(pull(moved)[0]) + scale * along
            far = left / _dot(along, image).clamp_min(TINY)
            step, rest = step + far * along, rest - far * image
            now = _dot(rest, rest)
            along, left = rest + now / left.clamp_min(TINY) * along, now
            if bool((left <= 1e-14 * first).all()):
                break
        return step

    def _move(
        self, f: Map, z: Tensor, start: Tensor, prior: Map, w: Tensor, step: Tensor, scale: Tensor, before: Tensor
    ) -> Tensor:
        before = before.view(-1, 1, 1, 1) + scale * _dot(w, w)
        share = torch.ones_like(before)
        with torch.no_grad():
            for _ in range(HALVINGS):
                tried = w + share * step
                after = (z - f(start + prior(tried))).square().sum(1).view(-1, 1, 1, 1) + scale * _dot(tried, tried)
                better = after <= before
                if bool(better.all()):
                    return tried
                share = torch.where(better, share, share / 2)
        return w + torch.where(share > 2.0**-HALVINGS, share, 0) * step


def is_affine(f: Map, x: Tensor) -> bool:
    """Whether f bends nowhere between x and two points far from it."""
    far = torch.rand(x.shape[1:], generator=torch.Generator().manual_seed(0)).to(x).expand_as(x)
    with torch.no_grad():
        here, there, between = f(x), f(far), f((x + far) / 2)
    bend = (here + there - 2 * between).square().sum(1)
    return bool((bend <= 1e-9 * (here - there).square().sum(1)).all())


def _push(f: Map, x: Tensor, along: Tensor) -> Tensor:
    """J·along; by differences where an operation of f has no forward derivative."""
    try:
        return jvp(f, (x,), (along,))[1]
    except NotImplementedError:
        far = NEAR / along.abs().amax((1, 2, 3), keepdim=True).clamp_min(TINY)
        with torch.no_grad():
            return (f(x + far * along) - f(x - far * along)) / (2 * far.flatten(1))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((1, 2, 3), keepdim=True)


def _unchanged(w: Tensor) -> Tensor:
    return w


def _smoother(like: Tensor) -> Map:
    """S: divides the spectrum of an image by its frequency; symmetric."""
    height, width = like.shape[-2:]
    down, across = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None]
    lowest = 1 / max(height, width)
    share = (lowest / ((down**2 + across**2).sqrt() + lowest)).to(like)

    def smooth(w: Tensor) -> Tensor:
        return torch.fft.irfft2(torch.fft.rfft2(w) * share, s=(height, width))

    return smooth


def _largest(f: Map, pull: Callable[[Tensor], tuple[Tensor, ...]], prior: Map, x: Tensor) -> Tensor:
    """About the largest eigenvalue of SᵀJᵀJS per sample, by three power iterations."""
    g = torch.randn(x.shape[1:], generator=torch.Generator().manual_seed(0)).to(x).expand_as(x)
    size = _dot(g, g).sqrt()
    for _ in range(3):
        g = g / size.clamp_min(TINY)
        moved = _push(f, x, prior(g))
        g = prior(pull(moved)[0])
        size = _dot(g, g).sqrt()
    return size
