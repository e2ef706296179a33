"""The adversary's own generator: a network that makes images from few numbers, trained on images of that kind."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakgauge.core.randomness import private_randomness
from leakgauge.errors import BadInput
from leakgauge.measures.image import check_images
from leakgauge.priors.decoders import FEWEST, Decoder, History, OneCycle, Vector, train_decoder


@dataclass(frozen=True, eq=False)
class Generator:
    """``network`` maps latents (N, ``size``), about N(0, 1), to images (N, C, H, W) in [0, 1]; ``history`` records its training."""

    network: nn.Module
    size: int
    history: History

    def __call__(self, z: Tensor, /) -> Tensor:
        return self.network(z.float()).to(z.dtype)

    def __str__(self) -> str:
        learned = self.history
        return (
            f"generator of {self.size} latents, from {learned.trained_on + learned.held_out_on} images: {learned.held_out_fvu:.0%} of "
            "the variance of held-out ones stays unexplained"
        )


def fit_generator(
    images: Tensor, *, latents: int = 64, epochs: int = 30, decoder: Decoder | None = None, seed: int = 0
) -> Generator:
    """Learns to make images like ``images`` (N, C, H, W), in [0, 1] and the adversary's own, from ``latents`` numbers.

        z = S⁻¹ Vᵀ (x − mean),    G = argmin Σᵢ ‖G(zᵢ) − xᵢ‖²

    V are the first principal directions of the images and S their deviations along them, so latents are uncorrelated with
    variance 1. G is ``decoder``, a network from a vector to an image (:class:`Vector`), trained like any decoder: a tenth of the
    images is held out, and the best epoch on those is kept. There are fewer latents than images. V comes from all images, so
    the held-out error is slightly too small.

    Ref: Jolliffe 2002, chapter 2 — principal components, here scaled to unit variance
    """
    images = check_images(images).float()
    if len(images) < FEWEST:
        raise BadInput(f"a generator needs at least {FEWEST} images, got {len(images)}")
    if not isinstance(latents, int) or latents < 1:
        raise BadInput(f"a generator needs an integer number of latents of at least 1, got {latents!r}")
    size = min(latents, len(images) - 1)
    with private_randomness(seed, images.device):
        network = (decoder or Vector(width=16, activation="prelu"))((size,), tuple(images.shape[1:]))
    weights, history = train_decoder(
        network,
        whitened_components(images, size),
        images,
        recipe=OneCycle(epochs=epochs),
        device=images.device,
        seed=seed,
    )
    network.load_state_dict(weights)
    return Generator(network.to(images.device).eval().requires_grad_(False), size, history)


def whitened_components(images: Tensor, size: int) -> Tensor:
    """The first ``size`` principal components of images (N, ...), each with variance 1; arbitrary if the images do not differ."""
    centred = images.flatten(1) - images.flatten(1).mean(0)
    along, _, _ = torch.linalg.svd(centred, full_matrices=False)
    return along[:, :size] * len(images) ** 0.5
