"""One pass for the features of all cuts, decoders on the cached features, and what they give away."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.attacks import FittedDecoder, fit_on
from leakgauge.attacks.decoder import Decoder
from leakgauge.measures.features import class_radii
from reproductions.common.networks.idle_biases import WithoutIdleBiases
from reproductions.common.runner import Row
from reproductions.golden_partition_zone.splits import Part, Splits, as_input, in_bfloat16

OUTPUT = "output"
"""Name under which the network's logits are kept beside the features of its cuts."""


@torch.no_grad()
def features_at(model: nn.Module, cuts: list[str], images: Tensor, *, exact: bool = False) -> dict[str, Tensor]:
    """What crosses every cut, in bfloat16, from one forward pass over the images; ``exact`` computes the logits in float32."""
    found: dict[str, list[Tensor]] = {name: [] for name in (*cuts, OUTPUT)}

    def keep(name: str) -> Any:
        return lambda _module, _inputs, out: found[name].append(out.detach().to(torch.bfloat16, copy=True))

    handles = [model.get_submodule(name).register_forward_hook(keep(name)) for name in cuts]
    try:
        for piece in images.split(512):
            with nullcontext() if exact else in_bfloat16(piece.device):
                found[OUTPUT].append(model.eval()(as_input(piece)).float())
    finally:
        for handle in handles:
            handle.remove()
    return {
        name: torch.cat(found.pop(name)) for name in list(found)
    }  # pieces go as they are joined: these are gigabytes


@dataclass(frozen=True)
class Leak:
    """Features of the auxiliary and of the test part at one cut."""

    known: Tensor
    sent: Tensor


def leaks(model: nn.Module, cuts: list[str], splits: Splits, *, exact: bool = False) -> dict[str, Leak]:
    known, sent = (features_at(model, cuts, part.images, exact=exact) for part in (splits.auxiliary, splits.test))
    return {name: Leak(known[name], sent[name]) for name in (*cuts, OUTPUT)}


@dataclass(frozen=True)
class Attempt:
    """A decoder and its budget."""

    name: str
    decoder: Decoder
    epochs: int
    paper: bool = True


SHOWN = 6
"""Reconstructions that are kept as pictures."""


def attacked(
    attempt: Attempt, leak: Leak, splits: Splits, *, seed: int, auxiliary: Part | None = None
) -> tuple[Row, Tensor]:
    """Trains the decoder on what the adversary owns and measures it on the test part; also its first reconstructions, as bytes."""
    began = time.perf_counter()
    owned = splits.auxiliary if auxiliary is None else auxiliary
    lean = WithoutIdleBiases(attempt.decoder)
    fitted = fit_on(leak.known, owned.images, decoder=lean, epochs=attempt.epochs, paper=attempt.paper, seed=seed)
    seconds = time.perf_counter() - began
    on_test = measured(fitted, leak.sent, splits.test.images)
    on_known = measured(fitted, leak.known, owned.images)
    baseline = mean_image_error(owned.images, splits.test.images)
    row = {
        "decoder": attempt.name,
        "decoder_parameters": sum(p.numel() for p in fitted.network().parameters()),
        "epochs": attempt.epochs,
        "recipe": "paper" if attempt.paper else "one-cycle",
        "best_epoch": fitted.history.best_epoch,
        "auxiliary_images": len(owned.images),
        **{f"test_{name}": value for name, value in on_test.items()},
        **{f"auxiliary_{name}": value for name, value in on_known.items()},
        "fvu": on_test["mse"] / baseline,
        "class_mean_fvu": class_mean_error(splits.test) / baseline,
        "mean_image_mse": baseline,
        "seconds": round(seconds, 2),
    }
    return row, (fitted.decode(leak.sent[:SHOWN]) * 255).round().to(torch.uint8).cpu()


@torch.no_grad()
def measured(fitted: FittedDecoder, features: Tensor, images: Tensor) -> dict[str, float]:
    """Errors of the reconstructions, with the paper's own numbers beside ours.

    ``mse_paper`` is summed over channels (three times ours for colour), ``psnr_batches`` the mean PSNR of batches of 128.
    ``mse_best_twentieth`` is the error of the 5 % of samples that leak most.
    """
    errors = torch.cat([
        (fitted.decode(z) - x.float() / 255).square().flatten(1).mean(1)
        for z, x in zip(features.split(2048), images.split(2048), strict=True)
    ]).double()  # fmt: skip
    batches = torch.stack([piece.mean() for piece in errors.split(128)])
    mse = float(errors.mean())
    return {
        "mse": mse,
        "mse_paper": mse * images.shape[1],
        "psnr_batches": float((-10 * batches.log10()).mean()),
        "mse_best_twentieth": float(errors.sort().values[: max(1, len(errors) // 20)].mean()),
    }


def mean_image_error(owned: Tensor, images: Tensor) -> float:
    """Squared error of always answering with the adversary's mean image."""
    mean = torch.stack([piece.float().sum(0) for piece in owned.split(2048)]).sum(0) / (255 * len(owned))
    return _error(images, [mean.expand(len(piece), -1, -1, -1) for piece in images.split(2048)])


def class_mean_error(part: Part) -> float:
    """Squared error of an oracle that knows the class and the mean of the test images of each class."""
    classes = int(part.labels.max()) + 1
    means = torch.stack([part.images[part.labels == c].float().mean(0) / 255 for c in range(classes)])
    return _error(part.images, [means[labels] for labels in part.labels.split(2048)])


def _error(images: Tensor, guesses: list[Tensor]) -> float:
    pieces = zip(images.split(2048), guesses, strict=True)
    return sum(float((x.float() / 255 - g).square().flatten(1).mean(1).sum()) for x, g in pieces) / len(images)


def radius_per_dimension(leak: Leak, part: Part) -> float:
    """Mean R_c² over the classes, divided by the dimension, on the first 2000 test features and true labels."""
    radii = class_radii(leak.sent[:2000], part.labels[:2000])
    return radii.mean / radii.dimensions
