"""Reads the images from the gradient of an imprint block that a malicious server put in front of the model."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.found_images import batch_of
from leakgauge.channels import DPSGD
from leakgauge.channels.facts import require_gradients, require_shared
from leakgauge.core import Assumption, Observation, Reconstruction, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.examples import example
from leakgauge.engine import Observed
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.inversion.labels import batch_size
from leakgauge.servers.imprint import ImprintBlock, ImprintServer

ROUNDING = 64.0
"""A bin is empty below this many rounding errors of the largest row."""


@dataclass(frozen=True)
class ImprintAttack:
    """The attack made by :func:`imprint`."""

    norm: float | None

    def assumptions(self) -> tuple[Assumption, ...]:
        return () if self.norm is None else (Assumption("norm of the image known", "diagnostic"),)

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        began, size = time.perf_counter(), batch_size(seen)
        name = next((n for n, m in victim.model.named_modules() if isinstance(m, ImprintBlock)), None)
        if name is None:
            raise Inapplicable("the model has no imprint block; a malicious server must add it (--server imprint)")
        require_gradients(seen.channel)
        signal = Observed.check(seen.signal, victim).signal
        weight, bias = (require_shared(signal, f"{name}.measure.{part}") for part in ("weight", "bias"))
        if self.norm is not None:
            channel = seen.channel
            if size != 1 or not isinstance(channel, DPSGD):
                raise Inapplicable("reading with the norm of the image needs an update of one image under DP-SGD")
            x, last = image_under_noise(weight, bias, clip=channel.clip, norm=self.norm)
            block = victim.model.get_submodule(name)
            assert isinstance(block, ImprintBlock)
            cut, measured = -block.measure.bias.double(), block.measure.weight[0].double() @ x.to(weight.device)
            bright = cut[last : last + 2].mean()  # the image is between the last row that holds it and the next
            x = x if (measured - bright).abs() <= (measured + bright).abs() else -x
            read = victim.space.project(x.view(1, *victim.space.shape).to(victim.device, victim.dtype))
            return Reconstruction.single(read, None, made_by=repr(self), began=began)
        found, strength = images_in_bins(weight, bias)
        best = strength.abs().argsort(descending=True, stable=True)[:size]
        x = found[best].view(-1, *victim.space.shape).to(victim.dtype)
        note = f"{len(found)} of {len(bias)} bins are filled, for {size} images"
        return Reconstruction.single(
            batch_of(victim.space.project(x), size, victim), None, made_by=repr(self), began=began, notes=(note,)
        )


def images_in_bins(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The content of each filled bin (n, d), and its Σ δ (n,).

    Row k of ``weight`` and ``bias`` sums δ_i x_i and δ_i over the images above cut k, so for the bin between cuts k and k + 1

        x = (∂W_k − ∂W_{k+1}) / (∂b_k − ∂b_{k+1})

    which is the image itself if the bin holds one, and a mean weighted by δ if it holds several. The last bin is open.

    Ref: Fowl et al. 2022 — difference of neighbouring rows
    """
    weight, bias = weight.double(), bias.double()
    own, alone = weight.clone(), bias.clone()
    own[:-1] -= weight[1:]
    alone[:-1] -= bias[1:]
    held = alone.abs() > ROUNDING * torch.finfo(torch.float32).eps * bias.abs().max()
    return own[held] / alone[held, None], alone[held]


def image_under_noise(weight: Tensor, bias: Tensor, *, clip: float, norm: float) -> tuple[Tensor, int]:
    """The one image x (d,), up to its sign, and the last row that holds it: all noisy, rows hold C/(√K·‖[x, 1]‖) · [x, 1] up to the cut
    and nothing above it.

    K, the rows up to the cut, is where ‖Σ_{k ≤ K} row_k‖² / K is largest, and their mean divided by the factor is the least-squares
    estimate of x: with noise σC on each entry its error is σ‖[x, 1]‖, that of :func:`~leakgauge.measures.first_layer.from_scratch_mse`.
    ``clip`` = C is what the whole gradient was clipped to; ``norm`` = ‖x‖, which the noise hides, must be known.

    Ref: Riess et al. 2024 — reconstruction from scratch with the norm of the image known
    """
    sums = torch.cat([weight, bias[:, None]], 1).double().cumsum(0)
    counts = torch.arange(1, len(sums) + 1, dtype=torch.float64, device=sums.device)
    last = int((sums.square().sum(1) / counts).argmax())
    rows = float(counts[last])
    return sums[last, :-1] / rows * (rows**0.5 * (norm**2 + 1) ** 0.5 / clip), last


@example("cnn", server=ImprintServer())
@checked
def imprint(*, norm: float | None = None) -> ImprintAttack:
    """Fowl et al. 2022: reads single images from the update of a model sent by :class:`leakgauge.servers.ImprintServer`.

    An image alone in its bin comes back up to rounding, for any network after the block, in any batch and through secure
    aggregation. If fewer bins are filled than there are images, the missing ones are grey. Labels are not read.

    ``norm`` is the norm of the image in model space, if the server knows it: then one image is read from an update under DP-SGD as well
    as without a prior it can be (:func:`image_under_noise`).

    Deviations: if noise fills more bins than there are images, those with the largest bias are used.

    Ref: Fowl et al. 2022 — images read off the imprint module
    """
    if norm is not None and not norm > 0:
        raise BadInput(f"imprint needs a positive norm, got {norm}")
    return ImprintAttack(norm)
