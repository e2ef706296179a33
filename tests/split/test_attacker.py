"""What counts as held: every attack, re-identification, and the cuts behind; and what would help where nothing held."""

from __future__ import annotations

import math

import pytest
import torch

from leakgauge.split.attacker import Attacker
from leakgauge.split.envelope import envelope
from leakgauge.split.inverters import LinearInverter
from leakgauge.split.remedies import find_remedy, linear_width
from leakgauge.split.scan import scan
from leakgauge.split.whitebox import WhiteBox
from leakgauge.split.zone import advance, find_zone, kept

NAMES = list("abcdefgh")


def test_named_images_count_below_the_threshold():
    for reidentified in (0.21, 0.5, 1.0):
        assert kept(0.9, reidentified, threshold=0.25, recognised=0.2) < 0.25
    assert kept(0.9, 0.2, threshold=0.25, recognised=0.2) == 0.9
    assert kept(0.01, 1.0, threshold=0.25, recognised=0.2) == 0.01
    assert kept(0.9, math.nan, threshold=0.25, recognised=0.2) == 0.9
    assert math.isnan(kept(math.nan, math.nan, threshold=0.25, recognised=0.2))


@pytest.mark.parametrize("holds_from", range(len(NAMES) + 1))
def test_the_shallowest_cut_that_is_not_computed_back_is_found(holds_from):
    cheap = [0.3 + 0.05 * i for i in range(len(NAMES))]
    asked: list[str] = []

    def compute(name: str) -> float:
        asked.append(name)
        return 0.8 if NAMES.index(name) >= holds_from else 0.01

    curve = advance(NAMES, cheap, compute, threshold=0.25)
    broken = [value < 0.25 for value in envelope(curve)]
    assert broken == [i < holds_from for i in range(len(NAMES))]
    assert len(asked) == len(set(asked)) <= 5


def test_a_refusal_breaks_nothing():
    assert advance(NAMES, [0.5] * 8, lambda name: math.nan, threshold=0.25) == [0.5] * 8


def test_what_is_computed_back_needs_no_decoder(victim, some):
    def never(*_: object, **__: object) -> None:
        raise AssertionError("no decoder is needed here")

    cut = "features.conv1_1"
    attacker = Attacker(victim, some(160), some(40, seed=1), never, enough=0.25, whitebox=WhiteBox())
    attempt = attacker(cut, 5)
    assert (attempt.epochs, attempt.stops) == (0, True)
    assert attempt.fvu < 0.02
    assert attacker(cut, 9) == attempt
    assert list(attacker.computed) == [cut]


def test_no_cut_is_safer_than_one_behind_it(victim, some):
    """The law of the envelope, with all attacks at every cut."""
    names = ["features.conv1_1", "features.relu1_2", "features.pool2", "head"]
    parts = some(160), some(40, seed=1)
    rows = scan(victim, *parts, names, inverter=LinearInverter()).rows
    attacker = Attacker(victim, *parts, None, enough=0.1, cheap={r.cut: r.fvu for r in rows}, whitebox=WhiteBox())
    best = [attacker(name, 1).fvu for name in names]
    curve = envelope(best)
    assert list(curve) == sorted(curve)
    assert all(value <= row.fvu for value, row in zip(curve, rows, strict=True))
    zone = find_zone(names, best, attacker, threshold=0.1, epochs=1)
    if zone.recommended is not None:
        assert curve[names.index(zone.recommended)] >= 0.1


def test_noise_and_width_that_would_protect(victim, some):
    parts = some(160), some(40, seed=1)
    found = find_remedy(victim, *parts, "features.conv1_1", threshold=0.25, recognised=0.9)
    assert found.noise is not None
    assert found.fvu is not None
    assert found.fvu >= 0.25
    none = find_remedy(victim, *parts, "features.conv1_1", threshold=0.25, recognised=0.9, levels=[1e-3])
    assert none.noise is None


def test_the_width_is_that_of_the_components():
    rng = torch.Generator().manual_seed(0)
    images = (torch.randn(400, 4, generator=rng) * torch.tensor([4.0, 2.0, 1.0, 0.0])).view(400, 1, 2, 2)
    assert linear_width(images, 0.5) == 0  # the first alone explains 16 of 21
    assert linear_width(images, 0.1) == 1
    assert linear_width(images, 0.01) == 2
