"""TAG's distance with labels that are read: the objective by hand, a known image found again, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.attacks import april, tag, tag_read_labels
from leakgauge.audit import score
from leakgauge.channels import Gradient
from leakgauge.core import Labels, Observation, Pixels, Size, Victim, share
from leakgauge.data.embedded import fashion
from leakgauge.defenses import GaussianNoise, Withhold
from leakgauge.errors import Inapplicable
from leakgauge.inversion import infer_labels, read_labels
from leakgauge.models.vit import ViT

SPACE = Pixels((1, 14, 14))


def small_vit(loss=F.cross_entropy) -> Victim:
    """Untrained, positions of scale 1, four patches."""
    return Victim(ViT(side=14, patch=7, width=96, depth=1, position_std=1.0), SPACE, loss=loss)


def batch(*which: int):
    images, labels = fashion("test")
    return F.adaptive_avg_pool2d(images[list(which)], 14), labels[list(which)]


def seen_by(victim: Victim, *which: int, **options: object) -> Observation:
    return share(victim, Gradient(), *batch(*which), **options)


def test_the_first_loss_is_the_formula_by_hand():
    victim, (_, y) = small_vit(), batch(2)
    seen = seen_by(victim, 2)
    found = tag_read_labels(steps=1, alpha=0.3, decay=2.0)(victim, seen)
    start = found.trace.snapshots[0]
    weights = dict(victim.model.named_parameters())
    by_hand = torch.autograd.grad(F.cross_entropy(victim.model(start), y), list(weights.values()))
    total = 0.0
    for i, (name, gradient) in enumerate(zip(weights, by_hand, strict=True)):
        off = (gradient - seen.signal[name]).double()
        total += float(off.square().sum() + 0.3 * math.exp(-2.0 * i / len(weights)) * off.abs().sum())
    assert float(found.trace.losses[0, 0]) == pytest.approx(total, rel=1e-4)


def test_it_finds_a_vision_transformers_image_better_than_tag_and_april():
    """Same victim, steps and start; the image is known, so that the error is too."""
    victim, (x, y) = small_vit(), batch(2)
    seen = seen_by(victim, 2)
    ours, *others = (score(a(steps=200)(victim, seen), x, y, space=SPACE) for a in (tag_read_labels, tag, april))
    assert ours.psnr[0] >= 60
    assert ours.labels == (1.0,)
    assert ours.psnr[0] >= 20 + max(one.psnr[0] for one in others)


def test_it_reads_the_labels_of_a_batch_also_repeated_ones():
    victim, (_, y) = small_vit(), batch(3, 7, 13, 23)
    assert y.tolist() == [3, 7, 3, 3]
    found = tag_read_labels(steps=1)(victim, seen_by(victim, 3, 7, 13, 23))
    assert sorted(found.y.tolist()) == sorted(y.tolist())


def test_pixels_stay_in_their_range():
    victim = small_vit()
    found = tag_read_labels(steps=3)(victim, seen_by(victim, 5)).x
    assert found.min() >= 0
    assert found.max() <= 1


def test_noise_leaves_a_guess_of_the_label():
    victim = small_vit()
    found = tag_read_labels(steps=1)(victim, seen_by(victim, 4, defenses=(GaussianNoise(relative=0.5),)))
    assert found.y.tolist() == [4]


def test_it_refuses_a_withheld_head_where_tag_searches():
    victim = small_vit()
    seen = seen_by(victim, 2, defenses=(Withhold(("head",)),))
    with pytest.raises(Inapplicable, match=r"^not shared: head\.weight; not shared: head\.bias$"):
        tag_read_labels(steps=1)(victim, seen)
    assert tag(steps=1)(victim, seen).y is not None
    revealed = seen_by(victim, 2, defenses=(Withhold(("head",)),), reveal=(Size(), Labels()))
    assert tag_read_labels(steps=1)(victim, revealed).y.tolist() == [2]


def test_it_refuses_a_loss_whose_labels_cannot_be_read():
    victim = small_vit(nn.MultiMarginLoss())
    with pytest.raises(Inapplicable, match=r"^the label rules only hold for cross entropy without class weights$"):
        tag_read_labels(steps=1)(victim, seen_by(victim, 2))


def test_it_reads_smoothed_labels():
    victim = small_vit(nn.CrossEntropyLoss(label_smoothing=0.1))
    assert tag_read_labels(steps=1)(victim, seen_by(victim, 2)).y.tolist() == [2]


def test_it_refuses_an_unknown_batch_size():
    victim = small_vit()
    with pytest.raises(Inapplicable, match="not shared: batch size"):
        tag_read_labels(steps=1)(victim, seen_by(victim, 2, reveal=()))


def test_reading_is_inferring_without_the_search():
    assert infer_labels().rules[:-1] == read_labels().rules
    assert repr(tag_read_labels().objective) == repr(tag().objective)
