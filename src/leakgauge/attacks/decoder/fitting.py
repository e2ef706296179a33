"""The learned inverter: a network trained on public images to undo the edge half, then used like any other attack."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.channels.facts import require_shared
from leakgauge.core import Assumption, Channel, Defense, Observation, Pixels, Reconstruction, Victim, share
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.randomness import own_stream, private_randomness
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.inversion.labels import batch_size
from leakgauge.measures.image import SLACK
from leakgauge.priors.decoders.networks import ByShape, Decoder, Shape
from leakgauge.priors.decoders.recipes import OneCycle, Plateau, Recipe
from leakgauge.priors.decoders.training import CHUNK, History, ImageLoss, as_images, chosen, train_decoder

FEW = 500
"""Public images below which the result says that an attacker with more would do better."""

PublicData = Tensor | tuple[Tensor, Tensor]
"""Images (N, C, H, W) in [0, 1] that the adversary owns, or a pair of images and labels."""


@dataclass(frozen=True, eq=False, repr=False)
class Weights:
    """A network's state by name. Equal where all values are; printed as a digest, so a result names its decoder."""

    state: Mapping[str, Tensor]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weights) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())

    def __repr__(self) -> str:
        count = sum(value.numel() for value in self.state.values())
        return f"Weights({count} values, sha256 {self.digest()[:12]})"

    def digest(self) -> str:
        digest = hashlib.sha256()
        for name, value in sorted(self.state.items()):
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


@dataclass(frozen=True)
class FittedDecoder:
    """The attack made by :func:`fit_decoder`: ``decoder`` with trained ``weights``, for features of one shape.

    ``cut`` is the name under which the feature is sent; None takes the only tensor of the signal.
    """

    decoder: Decoder
    feature: Shape
    image: Shape
    weights: Weights
    history: History
    recipe: Recipe
    cut: str | None = None
    notes: tuple[str, ...] = ()

    def assumptions(self) -> tuple[Assumption, ...]:
        """What the adversary is taken to have beside the feature."""
        count = self.history.trained_on + self.history.held_out_on
        return (
            Assumption(f"adversary owns {count} images like the victim's", "deployable"),
            Assumption("adversary can run the edge half on images of its own", "deployable"),
        )

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        began = time.perf_counter()
        size = batch_size(seen)
        feature = self._feature(seen)
        if len(feature) != size:
            raise Inapplicable(f"the feature holds {len(feature)} samples, the batch is said to have {size}")
        x = _encoded(victim, self.decode(feature.to(victim.device))).to(victim.dtype)
        return Reconstruction.single(
            x,
            None,
            loss=self.history.held_out_mse,
            made_by=repr(self),
            began=began,
            notes=(*(f"assumes: {a.what}" for a in self.assumptions()), *self.notes),
        )

    @torch.no_grad()
    def decode(self, features: Tensor) -> Tensor:
        """Images (N, C, H, W) in [0, 1] of features (N, \\*feature), on the features' device, in bounded memory."""
        if tuple(features.shape[1:]) != self.feature:
            raise Inapplicable(
                f"this decoder reads features of shape {self.feature}, got {tuple(features.shape[1:])}; fit one for them"
            )
        network, device = self.network().to(features.device).eval(), features.device
        starts = range(0, len(features), CHUNK)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            made = [network(chosen(features, slice(start, start + CHUNK), device)).float() for start in starts]
        return torch.cat(made)

    def network(self) -> nn.Module:
        """The trained network, built again; it takes the stored tensors as they are."""
        with torch.device("meta"):
            network = self.decoder(self.feature, self.image)
        network.load_state_dict(dict(self.weights.state), assign=True)
        return network.eval()

    def _feature(self, seen: Observation) -> Tensor:
        feature = only_tensor(seen.signal) if self.cut is None else require_shared(seen.signal, self.cut)
        if not torch.isfinite(feature).all():
            raise Inapplicable("the feature holds NaN or infinity")
        return feature


def only_tensor(signal: Mapping[str, Tensor]) -> Tensor:
    """The one tensor of a signal; a cut that sends several has no decoder here."""
    if len(signal) != 1:
        raise Inapplicable(
            f"a decoder reads one tensor, this cut sends {len(signal)}: {', '.join(signal) or 'nothing'}"
        )
    return next(iter(signal.values()))


@checked
@plain_defaults()
def fit_decoder(
    victim: Victim,
    channel: Channel,
    public_data: PublicData,
    *,
    decoder: Decoder | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    batch: int | None = None,
    paper: bool = False,
    held_out: float = 0.1,
    patience: int | None = None,
    defenses: Sequence[Defense] = (),
    seed: int = 0,
) -> FittedDecoder:
    """Trains a decoder of what ``channel`` sends on images the adversary owns, and gives it back as an attack.

        g = argmin Σᵢ ‖g(defenses(channel(victim, xᵢ))) − xᵢ‖²

    The frozen edge half runs once; all epochs read the cached features. ``defenses`` are those the adversary knows of and
    trains through. ``decoder`` is one that fits the feature's shape unless given. Training is :class:`OneCycle`, or with
    ``paper`` the paper's :class:`Plateau`; ``epochs``, ``lr`` and ``batch`` change the recipe's own values. ``held_out``
    and ``patience`` act on a part of the public images. A training that diverges raises ``Inapplicable``.

    Ref: Liu and Zhu 2025, section 2.2 — g ≈ f_edge⁻¹ learned from auxiliary data
    """
    images, labels = public_data if isinstance(public_data, tuple) else (public_data, None)
    _check_public(victim, images, labels)
    features, cut = public_features(victim, channel, images, labels, defenses=defenses, seed=seed)
    fitted = fit_on(
        features, images, decoder=decoder, epochs=epochs, lr=lr, batch=batch, paper=paper, held_out=held_out,
        patience=patience, device=victim.device, seed=seed,
    )  # fmt: skip
    return replace(fitted, cut=cut, notes=(*fitted.notes, *_missing_classes(victim, labels)))


def fit_on(
    features: Tensor,
    images: Tensor,
    *,
    decoder: Decoder | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    batch: int | None = None,
    paper: bool = False,
    held_out: float | Tensor = 0.1,
    patience: int | None = None,
    enough: float | None = None,
    loss: ImageLoss = F.mse_loss,
    device: torch.device | None = None,
    seed: int = 0,
) -> FittedDecoder:
    """:func:`fit_decoder` from features (N, \\*feature) that are already there and their images, floats or bytes.

    Trains on ``device``, by default that of the features. With ``enough`` it stops as soon as the FVU on the images held out
    is below it: that a cut leaks so much is then shown.
    """
    if len(features) != len(images):
        raise BadInput(f"every feature needs its image, got {len(features)} features and {len(images)} images")
    if images.ndim != 4:
        raise BadInput(f"images must be a batch (N, C, H, W), got shape {tuple(images.shape)}")
    if not all(bool(torch.isfinite(piece).all()) for piece in features.split(CHUNK)):
        raise Inapplicable("the features hold NaN or infinity")
    if images.is_floating_point():
        low, high = (float(bound) for bound in images.aminmax())
        if not (low >= -SLACK and high <= 1 + SLACK):
            raise BadInput(f"images must be finite and in [0, 1], or bytes, got values from {low:g} to {high:g}")
    decoder = decoder or ByShape()
    device = device or features.device
    recipe = _recipe(paper, epochs=epochs, lr=lr, batch=batch)
    feature, image = tuple(features.shape[1:]), tuple(images.shape[1:])
    with private_randomness(seed, device):
        network = decoder(feature, image)
    state, history = train_decoder(
        network, features, images, recipe=recipe, held_out=held_out, patience=patience, enough=enough, loss=loss,
        device=device, seed=seed,
    )  # fmt: skip
    few = (f"only {len(features)} public images: an attacker with more would do better",) if len(features) < FEW else ()
    return FittedDecoder(decoder, feature, image, Weights(state), history, recipe, notes=few)


@dataclass(frozen=True)
class DecoderInverter:
    """A decoder as what a scan trains at every cut: features and images in, a function from features to images out."""

    decoder: Decoder = field(default_factory=ByShape)
    lr: float | None = None
    batch: int | None = None
    paper: bool = False
    enough: float | None = None

    def until(self, fvu: float, /) -> DecoderInverter:
        """The same, stopping as soon as its FVU on the images it holds out is below ``fvu``."""
        return replace(self, enough=fvu)

    def __call__(
        self, features: Tensor, images: Tensor, /, *, epochs: int = 12, seed: int = 0
    ) -> Callable[[Tensor], Tensor]:
        return fit_on(
            features,
            images,
            decoder=self.decoder,
            epochs=epochs,
            lr=self.lr,
            batch=self.batch,
            paper=self.paper,
            enough=self.enough,
            seed=seed,
        ).decode


@torch.no_grad()
def public_features(
    victim: Victim,
    channel: Channel,
    images: Tensor,
    labels: Tensor | None = None,
    *,
    defenses: Sequence[Defense] = (),
    seed: int = 0,
) -> tuple[Tensor, str]:
    """What the channel sends of ``images`` ([0, 1]) after ``defenses``, in one pass, and the name it is sent under."""
    pieces: list[Tensor] = []
    names: set[str] = set()
    for start in range(0, len(images), CHUNK):
        piece = images[start : start + CHUNK]
        y = torch.zeros(len(piece), dtype=torch.long) if labels is None else labels[start : start + CHUNK]
        seen = share(
            victim, channel, _encoded(victim, as_images(piece.to(victim.device))).to(victim.dtype), y.to(victim.device),
            defenses=defenses, secret=own_stream(seed + start, "public images"),  # the adversary's noise, not the client's
        )  # fmt: skip
        pieces.append(only_tensor(seen.signal))
        names |= set(seen.signal)
    return torch.cat(pieces), names.pop()


def _encoded(victim: Victim, images: Tensor) -> Tensor:
    """Images in [0, 1] as the model takes them."""
    space = victim.space
    if not isinstance(space, Pixels):
        raise Inapplicable(f"a decoder makes images, the victim takes {space!r}")
    low, high = space.bounds
    return space.project(space.encode(low + (high - low) * images))


def _check_public(victim: Victim, images: Tensor, labels: Tensor | None) -> None:
    if images.ndim != 4 or tuple(images.shape[1:]) != tuple(victim.space.shape):
        raise BadInput(
            f"public images must be a batch of shape (N, {', '.join(map(str, victim.space.shape))}), "
            f"got {tuple(images.shape)}; resize them first"
        )
    if images.is_floating_point() and len(images) and not (images.min() >= 0 and images.max() <= 1):
        raise BadInput("public images must be in [0, 1]; give them before mean and standard deviation are taken off")
    if labels is not None and len(labels) != len(images):
        raise BadInput(f"every public image needs its label, got {len(images)} images and {len(labels)} labels")


def _missing_classes(victim: Victim, labels: Tensor | None) -> tuple[str, ...]:
    if labels is None:
        return ()
    with torch.no_grad():
        blank = victim.space.encode(torch.zeros(1, *victim.space.shape)).to(victim.device, victim.dtype)
        out = victim(blank)
    if not isinstance(out, Tensor) or out.ndim != 2:
        return ()
    missing = sorted(set(range(out.shape[1])) - set(labels.tolist()))
    if not missing:
        return ()
    return (f"{len(missing)} of {out.shape[1]} classes have no public image: {', '.join(map(str, missing))}",)


def _recipe(paper: bool, *, epochs: int | None, lr: float | None, batch: int | None) -> OneCycle | Plateau:
    given = {"epochs": epochs, "lr": lr, "batch": batch}
    recipe = replace(Plateau() if paper else OneCycle(), **{k: v for k, v in given.items() if v is not None})
    if recipe.epochs < 1 or recipe.batch < 2 or not recipe.lr > 0:
        raise BadInput(f"a decoder needs at least 1 epoch, batches of at least 2 and a positive rate, got {recipe!r}")
    return recipe
