"""Comparison of images and text with the truth: with ``share`` the only place where the truth is read. How sure a mean over restarts is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, overload

import torch
from torch import Tensor

from leakgauge.core import Reconstruction, Series, Space, Table, Tokens, as_images
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.running import refuse_samples
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked
from leakgauge.measures import baseline, image, reidentification, series, text
from leakgauge.measures.image import pair
from leakgauge.measures.layout import layout, layout_pairs, lead, pair_pieces, pieces

Perceptual = Callable[[Tensor, Tensor], Tensor]
LEAST_CANDIDATES = 20
"""From so many images on it says something that the true one is the most alike: by chance one in twenty is."""
ALIKE = 0.38
"""SSIM from which a guess shows its image: the verdict's first threshold (``verdict.RECONSTRUCTED``)."""


@dataclass(frozen=True)
class Scores:
    """One value per true image, in the order of the truth; None where a metric was not measured.

    ``reid`` is the rank of the true image among the pool (1 is best), ``layout_rank`` that by layout alone, where there are
    at least twenty candidates. ``pieces`` is the likeness in whatever order patches are put, ``pieces_lead`` by how much it
    exceeds that of any other candidate; both for models that cut images into patches. ``ssim_reduced`` and ``psnr_reduced`` are of
    images averaged down to at most 64 pixels a side, where they are larger. ``labels`` is 1.0 where the label is
    right: that of the image itself where the guess shows it, and as a multiset over all other images; targets that are no single
    label (class probabilities, several labels, a vector to regress on) are not compared. ``correlation`` and ``smape`` are of series, for
    which LPIPS, layout and reduced sizes are not measured.
    Guesses are paired with truths one to one, for pieces by their pieces.
    """

    mse: tuple[float, ...]
    psnr: tuple[float, ...]
    ssim: tuple[float, ...]
    lpips: tuple[float, ...] | None = None
    reid: tuple[float, ...] | None = None
    labels: tuple[float, ...] | None = None
    layout: tuple[float, ...] | None = None
    layout_rank: tuple[float, ...] | None = None
    pieces: tuple[float, ...] | None = None
    pieces_lead: tuple[float, ...] | None = None
    ssim_reduced: tuple[float, ...] | None = None
    psnr_reduced: tuple[float, ...] | None = None
    correlation: tuple[float, ...] | None = None
    smape: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        counts = {len(values) for field in fields(self) if (values := getattr(self, field.name)) is not None}
        if len(counts) != 1 or 0 in counts:
            raise BadInput(f"scores need a value of each metric for every image, got {sorted(counts)} values")

    @overload
    def mean(self, metric: Literal["mse", "psnr", "ssim"]) -> float: ...
    @overload
    def mean(self, metric: str) -> float | None: ...
    def mean(self, metric: str) -> float | None:
        """Mean over the images, None where the metric was not measured."""
        values: tuple[float, ...] | None = getattr(self, metric)
        return None if values is None else sum(values) / len(values)

    def best(self, metric: str) -> float | None:
        """The largest value of one image, None where the metric was not measured."""
        values: tuple[float, ...] | None = getattr(self, metric)
        return None if values is None else max(values)

    def summary(self) -> dict[str, Any]:
        """Mean, smallest, largest and every value of each metric, as a record keeps them."""
        return {field.name: _summary(getattr(self, field.name)) for field in fields(self)}

    def means(self) -> dict[str, float]:
        found = {field.name: self.mean(field.name) for field in fields(self)}
        return {name: mean for name, mean in found.items() if mean is not None}


def values_in(summary: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The fields of :class:`Scores` in what was written down as :meth:`Scores.summary`; None where there were none.

    Mean, smallest and largest value follow from the others and are not read.
    """
    if not summary:
        return None
    known = {field.name for field in fields(Scores)}
    return {name: None if one is None else one["per_image"] for name, one in summary.items() if name in known}


def _summary(values: tuple[float, ...] | None) -> dict[str, Any] | None:
    if values is None:
        return None
    return {"mean": sum(values) / len(values), "min": min(values), "max": max(values), "per_image": list(values)}


def require_images(space: Space) -> None:
    """Refuses to score text or tables as images."""
    if isinstance(space, Tokens):
        raise BadInput("token ids are no image; use evaluate_text, or compare them with score_text")
    if isinstance(space, Table):
        raise BadInput("rows of a table are no image; use evaluate_table, or compare them with score_table")


@checked
@plain_defaults()
def score(
    reconstruction: Reconstruction,
    x: Tensor,
    y: Tensor | None,
    *,
    space: Space,
    pool: Tensor | None = None,
    lpips: Perceptual | None = None,
    tile: int | None = None,
) -> Scores:
    """Metrics of the chosen reconstruction against the truth ``x, y`` (model space), paired one to one.

    ``pool`` holds other images (in [0, 1]) among which the true one must be re-identified; ``lpips`` is a loaded
    perceptual distance, ``tile`` the side of the model's patches. A perfect batch in any order scores SSIM 1, PSNR ∞, MSE 0.
    """
    require_images(space)
    refuse_samples(x, space.shape, who="score")
    if y is not None and y.dim() == 1 and len(y) != len(x):
        raise BadInput(f"score needs one label per sample, got {len(y)} for {len(x)}")
    guesses, truths = as_images(space, reconstruction.x), as_images(space, x)
    how: dict[str, Any] = {"pool": pool, "lpips": lpips, "tile": tile, "bounds": series_bounds(space)}
    return score_images(guesses, truths, labels=reconstruction.y, truth=y, **how)


Bounds = tuple[float, float]
"""The values that 0 and 1 stand for, where images are series one pixel high."""


def series_bounds(space: Space) -> Bounds | None:
    """The lowest and highest value of series; None for images."""
    return space.bounds if isinstance(space, Series) else None


@dataclass(frozen=True, eq=False)
class Paired:
    """``images`` are the guesses in the order of the truths that they were paired with: ``order[j]`` is the guess for truth j."""

    images: Tensor
    order: Tensor
    scores: Scores


def score_images(guesses: Tensor, truths: Tensor, **how: Any) -> Scores:
    """The scores of :func:`pair_images`, which takes the same."""
    return pair_images(guesses, truths, **how).scores


def pair_images(
    guesses: Tensor,
    truths: Tensor,
    *,
    labels: Tensor | None = None,
    truth: Tensor | None = None,
    pool: Tensor | None = None,
    lpips: Perceptual | None = None,
    tile: int | None = None,
    bounds: Bounds | None = None,
) -> Paired:
    """Guesses (images in [0, 1], as ``truths``) paired with truths one to one, and their scores; see :func:`score`. With ``bounds`` they
    are series, whose values these are.
    """
    if pool is not None:
        refuse_samples(pool, tuple(truths.shape[1:]), who="pool")
    guesses, truths = guesses.detach().cpu(), truths.detach().cpu()
    order = torch.argsort(pair(guesses, truths))  # order[j] is the guess paired with truth j
    guesses = guesses[order]
    right = None
    if labels is not None and truth is not None and labels.dim() == truth.dim() == 1:
        right = _right(labels.cpu()[order], truth.cpu(), guesses, truths)
    scores = replace(
        score_images_in_order(guesses, truths, lpips=lpips, bounds=bounds),
        reid=None if pool is None else _values(reidentification.rank(guesses, truths, pool)),
        labels=right,
    )
    others = pool if pool is not None and bounds is None and _enough(truths, pool) else None
    if others is not None:
        rank = reidentification.rank(guesses, truths, others, alike=layout_pairs)
        scores = replace(scores, layout_rank=_values(rank))
    if tile is not None and bounds is None:
        scrambled = guesses[pair_pieces(guesses, truths, side=tile)]
        ahead = None if others is None else _values(lead(scrambled, truths, others, side=tile))
        scores = replace(scores, pieces=_values(pieces(scrambled, truths, side=tile)), pieces_lead=ahead)
    return Paired(guesses, order, scores)


def _enough(truths: Tensor, pool: Tensor) -> bool:
    """Whether there are images enough to compare with."""
    apart = reidentification.rounding_error(truths)
    return len(reidentification.merge_candidates(truths.double(), pool.double(), apart=apart)[1]) >= LEAST_CANDIDATES


def trivial_baseline(truths: Tensor, *, lpips: Perceptual | None = None, bounds: Bounds | None = None) -> Scores:
    """The better, image by image and metric by metric, of the mean colour and the 4×4 blur of the truth itself. Of series with these
    ``bounds``: their mean, and the means of four pieces."""
    guesses = (baseline.mean_colour(truths), baseline.blur(truths))
    scored = [score_images_in_order(guess, truths, lpips=lpips, bounds=bounds) for guess in guesses]

    def best(metric: str) -> Any:
        columns = [values for one in scored if (values := getattr(one, metric)) is not None]
        choose = min if metric in ("mse", "lpips", "smape") else max
        return tuple(map(choose, zip(*columns, strict=True))) if columns else None

    return Scores(**{field.name: best(field.name) for field in fields(Scores)})


def score_images_in_order(
    guesses: Tensor, truths: Tensor, *, lpips: Perceptual | None = None, bounds: Bounds | None = None
) -> Scores:
    """Image i against truth i, without pairing; of series, which are images one pixel high, against the series itself."""
    plain = {name: _values(measure(guesses, truths)) for name, measure in _PLAIN.items()}
    if bounds is not None:
        low, high = bounds
        own, true = (low + (high - low) * one.double().squeeze(-2) for one in (guesses, truths))
        return Scores(
            **plain, correlation=_values(series.correlation(own, true)), smape=_values(series.smape(own, true))
        )
    return Scores(
        **plain,
        lpips=None if lpips is None else _values(lpips(guesses, truths)),
        layout=_values(layout(guesses, truths)),
        ssim_reduced=_reduced(image.ssim, guesses, truths),
        psnr_reduced=_reduced(image.psnr, guesses, truths),
    )


_PLAIN = {"mse": image.mse, "psnr": image.psnr, "ssim": image.ssim}


def _reduced(metric: Callable[[Tensor, Tensor], Tensor], guesses: Tensor, truths: Tensor) -> tuple[float, ...] | None:
    guess, truth = image.downscale(guesses), image.downscale(truths)
    return None if guess is None or truth is None else _values(metric(guess, truth))


def _right(labels: Tensor, truth: Tensor, guesses: Tensor, truths: Tensor) -> tuple[float, ...]:
    """1.0 where a label is right.

    Guesses that show no image are paired with truths by chance, and guesses that are the same image, as the mixture of a batch, are in
    no order: their labels are compared as a multiset.
    """
    small = [image.downscale(one) for one in (guesses, truths)]
    shown = image.ssim(*(guesses, truths) if small[0] is None or small[1] is None else (small[0], small[1])) >= ALIKE
    _, group = guesses.flatten(1).unique(dim=0, return_inverse=True)
    group = torch.where(shown, group + 1, 0)
    left = [labels[group == g].tolist() for g in range(int(group.max()) + 1)]
    right: list[float] = []
    for g, y in zip(group.tolist(), truth.tolist(), strict=True):
        right.append(float(y in left[g]))
        if right[-1]:
            left[g].remove(y)
    return tuple(right)


def _values(tensor: Tensor) -> tuple[float, ...]:
    return tuple(float(v) for v in tensor)


@dataclass(frozen=True)
class TextScores:
    """``tokens``, ``order`` and ``tau``: one value per true sentence, in the order of the truth.

    ``tokens`` is the share of right places, ``order`` that of neighbouring pairs kept, ``tau`` Kendall's for tokens that
    occur once. ``exact`` is 1.0 where the whole sentence is right; ``rouge1``, ``rouge2`` and ``rouge_l`` are F-measures of single tokens,
    neighbouring pairs and the longest common subsequence. ``precision`` and ``recall`` are of the sets of distinct tokens of the whole
    batch. ``labels`` is 1.0 where the label is right, None where it was not read.
    """

    tokens: tuple[float, ...]
    order: tuple[float, ...]
    tau: tuple[float, ...]
    precision: float
    recall: float
    exact: tuple[float, ...]
    rouge1: tuple[float, ...]
    rouge2: tuple[float, ...]
    rouge_l: tuple[float, ...]
    labels: tuple[float, ...] | None = None


@checked
def score_text(
    reconstruction: Reconstruction, x: Tensor, y: Tensor | None, *, padding: int | None = None
) -> TextScores:
    """Metrics of the chosen reconstruction against the true ids ``x`` (N, length) and labels ``y``, paired one to one.

    ``padding`` is the id that fills short sentences; ROUGE leaves it out.
    """
    guesses, truths = reconstruction.x.detach().cpu(), x.detach().cpu()
    order = torch.argsort(text.pair_sentences(guesses, truths))  # order[j] is the guess paired with truth j
    guesses = guesses[order]
    precision, recall = text.set_precision_recall(guesses, truths)
    right = None
    if reconstruction.y is not None and y is not None:
        right = tuple((reconstruction.y.cpu()[order] == y.cpu()).double().tolist())
    return TextScores(
        tokens=tuple(text.token_accuracy(guesses, truths).tolist()),
        order=tuple(text.adjacent_pairs(guesses, truths).tolist()),
        tau=tuple(text.kendall_tau(guesses, truths).tolist()),
        precision=precision,
        recall=recall,
        exact=tuple(text.exact_sentences(guesses, truths).tolist()),
        rouge1=tuple(text.rouge_n(guesses, truths, 1, padding=padding).tolist()),
        rouge2=tuple(text.rouge_n(guesses, truths, 2, padding=padding).tolist()),
        rouge_l=tuple(text.rouge_l(guesses, truths, padding=padding).tolist()),
        labels=right,
    )


@dataclass(frozen=True)
class Interval:
    """Mean of ``n`` restarts and the interval that holds the mean of all restarts with probability ``level``."""

    mean: float
    low: float
    high: float
    n: int
    level: float


ANYWHERE = (-math.inf, math.inf)
POSSIBLE = {"ssim": (-1.0, 1.0), "psnr": (0.0, math.inf), "lpips": (0.0, math.inf)}
"""Between what the means of metrics lie, whatever the images in [0, 1]."""


def interval(
    values: Sequence[float], *, level: float = 0.95, within: tuple[float, float] = ANYWHERE
) -> Interval | None:
    """Student's interval of the mean; None for fewer than two finite values, which say nothing about a spread.

        mean ± t_{(1+level)/2, n−1} · s / √n

    It is cut to ``within``, outside of which no mean can lie: of two restarts it would often reach beyond.

    >>> found = interval([0.1, 0.2, 0.3])
    >>> round(found.low, 3), round(found.high, 3)
    (-0.048, 0.448)
    """
    finite = [value for value in values if math.isfinite(value)]
    n = len(finite)
    if n < 2:
        return None
    mean = sum(finite) / n
    spread = math.sqrt(sum((value - mean) ** 2 for value in finite) / (n - 1))
    from scipy.special import stdtrit  # here, because scipy is slow to import

    half = float(stdtrit(n - 1, (1 + level) / 2)) * spread / math.sqrt(n)
    return Interval(mean, max(mean - half, within[0]), min(mean + half, within[1]), n, level)
