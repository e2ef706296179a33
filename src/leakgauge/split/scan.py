"""Attacks a model at every cut and compares risk and cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from leakgauge.channels import Features
from leakgauge.core import Defense, Victim
from leakgauge.core.randomness import draw_indices
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.graphs import find_point, trace_of
from leakgauge.inversion.progress import also_watching
from leakgauge.measures.baseline import class_mean_images, mean_image, most_exposed, mse_per_pixel, psnr_of_batches
from leakgauge.measures.features import (
    class_radii,
    covariance_spectrum,
    decision_entropy,
    effective_rank,
    feature_entropy,
)
from leakgauge.measures.image import brighter, mse, ssim
from leakgauge.measures.intervals import ratio_interval
from leakgauge.measures.probe import attribute_auc
from leakgauge.measures.reidentification import rank
from leakgauge.split.cache import IN_MEMORY, cache_features, feature_bytes
from leakgauge.split.cuts import Cut
from leakgauge.split.envelope import envelope, kinks
from leakgauge.split.inverters import Inverter, Named, RidgeInverter

FEWEST_AUXILIARY = 50
SPECTRUM_FROM = 500
"""Most samples for estimating the effective rank, drawn at random."""
DOES_NOTHING = {"dropout", "identity", "clone", "alias"}
"""Operations that pass on their input in eval mode; their cuts repeat the one before."""


@dataclass(frozen=True, eq=False)
class Images:
    """Images (N, C, H, W) in [0, 1] and, if known, their labels (N,)."""

    images: Tensor
    labels: Tensor | None = None


@dataclass(frozen=True)
class CutRisk:
    """What an attack reconstructed at one cut, on images that it was not fitted on.

    ``fvu`` is relative to the mean auxiliary image. ``fvu_of_class_mean`` is the FVU of the class-mean image of the true class, the
    score of an attack that learned only the class. ``worst_mse`` is the mean over the 5 % of samples reconstructed best.
    ``mse_per_pixel`` and ``psnr_of_batches`` are in the units of the split-inference paper. ``accuracy`` is the model's on what was
    really sent. ``within``, ``radius``, ``effective_rank`` and the entropies describe the features of the test images; the
    entropies are trend indicators, not guarantees. ``epochs`` are those that the attack reported (0 for a closed form). A cut where
    the attack refused has a ``refusal`` and no scores. ``by`` names the attack where an inverter chose among several; ``tested``
    counts the attacked images. ``attribute_auc`` is how well a linear probe of what one image sends tells whether the image is brighter
    than the median of its class, with its interval; None where the images are too few.
    """

    cut: str
    fvu: float = float("nan")
    fvu_low: float = float("nan")
    fvu_high: float = float("nan")
    fvu_of_class_mean: float | None = None
    mse: float = float("nan")
    psnr: float = float("nan")
    ssim: float = float("nan")
    mse_per_pixel: float = float("nan")
    psnr_of_batches: float = float("nan")
    worst_mse: float = float("nan")
    reidentified: float = float("nan")
    accuracy: float | None = None
    radius: float | None = None
    within: float | None = None
    effective_rank: float = float("nan")
    feature_entropy_per_dimension: float | None = None
    decision_entropy_per_dimension: float | None = None
    epochs: int = 0
    seconds: float = 0.0
    refusal: str = ""
    by: str = ""
    tested: int = 0
    attribute_auc: float | None = None
    attribute_low: float | None = None
    attribute_high: float | None = None


@dataclass(frozen=True)
class Scan:
    """Rows by depth, shallowest first. ``attack`` and the counts state the effort; ``envelope`` is the FVU of the best attack on this
    or any deeper cut, without the cuts where the attack refused, because a refusal recommends nothing; ``kinks`` are the cuts
    where the attack does worse than that.
    """

    rows: tuple[CutRisk, ...]
    attack: str
    auxiliary: int
    tested: int
    defenses: tuple[str, ...]
    envelope: Mapping[str, float] = field(default_factory=dict)
    kinks: tuple[str, ...] = ()


def scan(
    victim: Victim,
    auxiliary: Images,
    test: Images,
    cuts: Sequence[Cut | str],
    *,
    inverter: Inverter | None = None,
    epochs: int = 1,
    defenses: Sequence[Defense] = (),
    folder: Path | None = None,
    in_memory: int = IN_MEMORY,
    known: Mapping[str, CutRisk] | None = None,
    on_cut: Callable[[CutRisk, Tensor | None], None] | None = None,
    seed: int = 0,
) -> Scan:
    """Fits ``inverter`` (default: ridge) at every cut on ``auxiliary`` images and scores it on ``test`` images.

    Features are computed in as few forward passes as memory allows, or once into ``folder``. Rows in ``known`` (from an earlier,
    interrupted scan) are reused; ``on_cut`` gets each new row immediately, with the reconstructed test images (None if the attack
    refused). A cut where the attack refuses is a row with its reason; the others continue. A cut after an operation that does nothing
    in eval mode is left out if the one before is scanned.
    """
    _check(auxiliary, test)
    inverter = inverter or RidgeInverter()
    names = list(distinct_cuts(victim, cuts))
    found = {name: row for name, row in (known or {}).items() if name in names}
    todo = [name for name in names if name not in found]
    per_image = [feature_bytes(victim, [name], 1) for name in todo]
    count = len(auxiliary.images) + len(test.images)
    for group in _groups(todo, per_image, count, in_memory if folder is None else None):
        sent = [
            cache_features(victim, part.images, group, defenses=defenses, folder=folder, in_memory=in_memory, seed=s)
            for part, s in ((auxiliary, seed), (test, seed + 1))
        ]
        for name in group:
            row, made = _row(victim, name, sent[0][name], sent[1][name], auxiliary, test, inverter, epochs, seed)
            found[name] = row
            if on_cut is not None:
                on_cut(row, made)
    rows = tuple(found[name] for name in names)
    errors = [row.fvu for row in rows]
    return Scan(
        rows=rows,
        attack=f"{inverter!r}, {epochs} epochs" if not isinstance(inverter, RidgeInverter) else repr(inverter),
        auxiliary=len(auxiliary.images),
        tested=len(test.images),
        defenses=tuple(repr(defense) for defense in defenses),
        envelope={row.cut: least for row, least in zip(rows, envelope(errors), strict=True) if not row.refusal},
        kinks=kinks(names, errors),
    )


def distinct_cuts(victim: Victim, cuts: Sequence[Cut | str]) -> tuple[str, ...]:
    """Names of the cuts by depth, without those that send the same numbers as the cut before, if that is included too."""
    traced = trace_of(victim)
    asked = {find_point(traced, cut if isinstance(cut, str) else cut.name).name for cut in cuts}
    if not asked:
        raise BadInput("a scan needs at least one cut; list them with leakgauge.split.cuts")
    points = list(traced.points.values())
    repeats = {
        point.name
        for before, point in pairwise(points)
        if point.operation in DOES_NOTHING
        and before.name in asked
        and [spec.shape for spec in before.tensors] == [spec.shape for spec in point.tensors]
    }
    return tuple(point.name for point in points if point.name in asked and point.name not in repeats)


def _groups(names: list[str], sizes: list[int], count: int, limit: int | None) -> Iterator[list[str]]:
    """Cuts with features that fit into memory together; all of them if they go to disk."""
    group: list[str] = []
    used = 0
    for name, size in zip(names, sizes, strict=True):
        if group and limit is not None and used + size * count > limit:
            yield group
            group, used = [], 0
        group.append(name)
        used += size * count
    if group:
        yield group


def _check(auxiliary: Images, test: Images) -> None:
    if len(auxiliary.images) < FEWEST_AUXILIARY:
        raise BadInput(
            f"a scan needs at least {FEWEST_AUXILIARY} auxiliary images to fit an attack, got {len(auxiliary.images)}; "
            "an attack on fewer would look weaker than a real one"
        )
    if len(test.images) < 2:
        raise BadInput(f"a scan needs at least 2 test images, got {len(test.images)}")
    for part in (auxiliary, test):
        if part.labels is not None and part.labels.shape != (len(part.images),):
            raise BadInput(f"a scan needs one label per image, got {tuple(part.labels.shape)} for {len(part.images)}")
    if bool((test.images == test.images[:1]).all()):
        raise BadInput("the test images are all equal, so there is nothing to reconstruct; give different ones")
    if auxiliary.labels is not None and test.labels is not None:
        missing = sorted(set(test.labels.tolist()) - set(auxiliary.labels.tolist()))
        if missing:
            raise BadInput(f"the auxiliary images lack class {missing[0]} of the test images; give some of every class")


def _row(
    victim: Victim,
    name: str,
    features: Tensor,
    sent: Tensor,
    auxiliary: Images,
    test: Images,
    inverter: Inverter,
    epochs: int,
    seed: int,
) -> tuple[CutRisk, Tensor | None]:
    began, trained = time.perf_counter(), 0

    def reported(done: int, _total: int) -> None:
        nonlocal trained
        trained = done

    try:
        if not all(bool(torch.isfinite(rows).all()) for part in (sent, features) for rows in part.split(1024)):
            raise Inapplicable("the features hold NaN or infinity")
        features, sent = (_near(part, victim) for part in (features, sent))
        with also_watching(reported):
            decode = inverter(features, auxiliary.images, epochs=epochs, seed=seed)
        made = decode(sent).detach().cpu().double().clamp(0, 1)
        if not bool(torch.isfinite(made).all()):
            raise Inapplicable("the decoder diverged: its images hold NaN")
    except Inapplicable as refusal:
        return CutRisk(name, refusal=str(refusal), epochs=trained, seconds=time.perf_counter() - began), None
    radii = None if test.labels is None else class_radii(sent, test.labels)
    own = (auxiliary.images, auxiliary.labels)
    told = attribute_auc(features, brighter(*own), sent, brighter(test.images, test.labels, than=own), seed=seed)
    row = replace(
        score_images(name, made, auxiliary, test, seed=seed),
        by=decode.name if isinstance(decode, Named) else "",
        accuracy=_accuracy(victim, name, sent, test.labels),
        radius=None if radii is None else radii.mean,
        within=None if radii is None else radii.within,
        effective_rank=effective_rank(covariance_spectrum(sent[draw_indices(len(sent), SPECTRUM_FROM)])),
        feature_entropy_per_dimension=None if radii is None else feature_entropy(radii).nats_per_dimension,
        decision_entropy_per_dimension=None if radii is None else decision_entropy(radii).nats_per_dimension,
        attribute_auc=None if told is None else told.value,
        attribute_low=None if told is None else told.low,
        attribute_high=None if told is None else told.high,
        epochs=trained,
        seconds=time.perf_counter() - began,
    )
    return row, made


def score_images(cut: str, made: Tensor, auxiliary: Images, test: Images, *, seed: int) -> CutRisk:
    """How near ``made`` images are to the first of the ``test`` images; re-identification looks among all of these."""
    pool = test.images.cpu().double()
    made, truths = made.cpu().double(), pool[: len(made)]
    guess = mean_image(auxiliary.images.cpu())
    errors, baseline = mse(made, truths), mse(guess.expand_as(truths), truths)
    fvu = ratio_interval(errors, baseline, seed=seed)
    attacked = Images(test.images[: len(made)], None if test.labels is None else test.labels[: len(made)])
    return CutRisk(
        cut=cut,
        fvu=fvu.value,
        fvu_low=fvu.low,
        fvu_high=fvu.high,
        fvu_of_class_mean=_class_mean_fvu(auxiliary, attacked, baseline),
        mse=float(errors.mean()),
        psnr=float((-10 * torch.log10(errors)).mean()),
        ssim=float(ssim(made, truths).mean()),
        mse_per_pixel=float(mse_per_pixel(made, truths).mean()),
        psnr_of_batches=psnr_of_batches(made, truths),
        worst_mse=most_exposed(errors),
        reidentified=float((rank(made, truths, pool) == 1).double().mean()),
        tested=len(made),
    )


def _near(features: Tensor, victim: Victim) -> Tensor:
    """Moves features to the victim's GPU if it has enough free memory: a fit takes a fraction of the time there."""
    if victim.device.type != "cuda":
        return features
    free, _ = torch.cuda.mem_get_info(victim.device)
    return features.to(victim.device) if features.numel() * features.element_size() < free // 8 else features


def _class_mean_fvu(auxiliary: Images, test: Images, baseline: Tensor) -> float | None:
    if auxiliary.labels is None or test.labels is None:
        return None
    means = class_mean_images(auxiliary.images.cpu(), auxiliary.labels.cpu(), of=test.labels.cpu())
    return float(mse(means, test.images.cpu()).sum() / baseline.sum())


@torch.no_grad()
def _accuracy(victim: Victim, name: str, sent: Tensor, labels: Tensor | None) -> float | None:
    """Accuracy of the cloud on the tensors that were sent; None without labels or class scores."""
    channel = Features(name)
    if labels is None or len(channel.like(victim, 1)) != 1:
        return None
    right = 0
    for start in range(0, len(sent), 256):
        rows = sent[start : start + 256].to(victim.device, victim.dtype)
        scores = channel.resume(victim, {name: rows})
        if not isinstance(scores, Tensor) or scores.dim() != 2:
            return None
        right += int((scores.argmax(1).cpu() == labels[start : start + 256].cpu()).sum())
    return right / len(sent)
