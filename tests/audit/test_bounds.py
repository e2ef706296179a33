"""Bounds of a set-up: which mechanism has one, its values, what takes it away, and that every view shows it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from scipy.special import ndtr, ndtri

from leakgauge import testing
from leakgauge.attacks import imprint, linear
from leakgauge.audit import gate, records
from leakgauge.audit.bounds import Bound, Mechanism, Unbounded, bound_of, mechanism
from leakgauge.audit.evaluate import evaluate, observe
from leakgauge.audit.wording.bracket import NO_BOUND, bracket_rows, bracket_sentence, brackets
from leakgauge.channels import DPSGD, Aggregate, FedAvg, Gradient
from leakgauge.core import Buffers, Channel, Defense, Labels, NoisyCopy, Reveal, Size, Victim, share
from leakgauge.data.embedded import fashion
from leakgauge.defenses import Clip, GaussianNoise, LaplacianNoise, Prune
from leakgauge.measures.first_layer import from_scratch_psnr
from leakgauge.measures.reidentification import rank
from leakgauge.models import pretrained
from leakgauge.report.page import render
from leakgauge.servers import ImprintServer
from tests.made import record, verdict


@pytest.mark.parametrize(
    ("channel", "defenses", "found"),
    [
        (DPSGD(clip=0.5, noise=2.0), (), Mechanism(2.0, "sample")),
        (DPSGD(clip=0.5, noise=2.0), (Prune(0.9),), Mechanism(2.0, "sample")),
        (Aggregate(2, of=DPSGD(noise=0.7)), (), Mechanism(0.7, "sample")),
        (DPSGD(noise=0.0), (), Unbounded.NO_NOISE),
        (Gradient(), (), Unbounded.NO_NOISE),
        (Gradient(), (Prune(0.9),), Unbounded.NO_NOISE),
        (Gradient(), (GaussianNoise(std=0.0),), Unbounded.NO_NOISE),
        (Gradient(), (GaussianNoise(std=0.1),), Unbounded.NO_CLIPPING),
        (Gradient(), (GaussianNoise(std=0.1), Clip(1.0)), Unbounded.NO_CLIPPING),
        (Gradient(), (Clip(math.inf), GaussianNoise(std=0.1)), Unbounded.NO_CLIPPING),
        (Gradient(), (Clip(1.0), GaussianNoise(relative=1.0)), Unbounded.DATA_DEPENDENT),
        (Gradient(), (Clip(1.0), LaplacianNoise(std=0.1)), Unbounded.NOT_GAUSSIAN),
        (FedAvg(steps=3), (Clip(0.5), GaussianNoise(std=0.1), Prune(0.5)), Mechanism(0.2, "update")),
    ],
    ids=repr,
)
def test_which_noise_bounds_anything(
    channel: Channel, defenses: tuple[Defense, ...], found: Mechanism | Unbounded
) -> None:
    assert mechanism(channel, defenses) == found


def bounded(*reveal: Reveal, noise: float = 1.0, pool: int | None = 100) -> Bound | Unbounded:
    victim, x, y = testing.tiny_case("mlp")
    seen = share(victim, DPSGD(noise=noise), x, y, reveal=(Size(), *reveal))
    others = None if pool is None else torch.rand(pool, *victim.space.shape, generator=torch.Generator().manual_seed(0))
    return bound_of(victim, seen, (), x, pool=others)


def test_the_values_are_those_of_the_trade_off_function() -> None:
    found = bounded(noise=0.8)
    assert isinstance(found, Bound)
    assert found.candidates is not None
    assert found.prior is not None
    images = round(found.prior * found.candidates)
    assert found.candidates == 100 + images
    assert found.attribute == pytest.approx(float(ndtr(1 / 0.8)))
    assert found.membership == pytest.approx(float(ndtr(ndtri(0.01) + 1 / 0.8)))
    assert found.reconstruction == pytest.approx(float(ndtr(ndtri(found.prior) + 1 / 0.8)))


def test_what_the_adversary_is_given_takes_the_bound_away() -> None:
    assert bounded(NoisyCopy(0.5)) is Unbounded.NEAR_COPY
    known = bounded(Labels())
    assert isinstance(known, Bound)
    assert known.reconstruction is None
    assert isinstance(plain := bounded(pool=None), Bound)
    assert plain.reconstruction is None
    victim, x, y = testing.tiny_case("mlp")
    seen = share(victim, Gradient(), x, y, defenses=(Clip(1.0), GaussianNoise(std=1.0)), reveal=(Size(), Buffers()))
    assert bound_of(victim, seen, (Clip(1.0), GaussianNoise(std=1.0)), x) is Unbounded.STATISTICS
    assert bound_of(victim, share(victim, Gradient(), x, y), None, x) is Unbounded.UNKNOWN


def test_a_batch_of_guesses_names_at_most_one_candidate_each() -> None:
    """Whatever the guesses, the candidates that one of them is closest to are at most as many: the prior B / M."""
    rng = torch.Generator().manual_seed(0)
    candidates, guesses = torch.rand(30, 1, 6, 6, generator=rng), torch.rand(3, 1, 6, 6, generator=rng)
    named = sum(any(int(rank(g[None], c[None], candidates)) == 1 for g in guesses) for c in candidates)
    assert named <= len(guesses)


def test_an_evaluation_holds_its_bound_or_the_reason() -> None:
    victim, x, y = testing.tiny_case("mlp")
    plain = evaluate(victim, Gradient(), x, y, attack=linear())
    assert plain.bound is Unbounded.NO_NOISE
    noisy = evaluate(victim, DPSGD(noise=2.0), x, y, attack=linear())
    assert isinstance(noisy.bound, Bound)
    assert noisy.bound.noise == 2.0


MADE = Bound(1.0, "sample", 0.84, 0.09, 65, 4 / 65, 0.28, 12.34)


def test_records_keep_the_bound(tmp_path: Path) -> None:
    kept = [record(bound=MADE), record(unbounded=Unbounded.NO_NOISE)]
    for one in kept:
        assert records.from_json(json.loads(json.dumps(records.to_json(one)))) == one
    old = records.to_json(kept[0])
    del old["bound"], old["unbounded"]
    assert records.from_json(old).bound is None


def test_every_view_shows_the_bracket(tmp_path: Path) -> None:
    made = record(bound=MADE)
    records.append(tmp_path, made)
    said = bracket_sentence(made)
    assert "no attack can exceed 28 %" in said
    assert said in render(tmp_path)
    assert "PSNR of 12.3 dB" in render(tmp_path)
    (case,) = gate.summary([made], None)["cases"]
    assert case["bound"]["reconstruction"] == 0.28
    assert case["bracket"] == said
    assert "no attack can exceed 28 %" in gate.run_summary([made], None, limit=None).replace("\\", "")
    assert [row.most for row in bracket_rows(made)] == ["28 %", "84 %", "9.0 %"]


def test_without_noise_it_says_so(tmp_path: Path) -> None:
    made = record(unbounded=Unbounded.NO_NOISE)
    records.append(tmp_path, made)
    assert "No upper bound exists: what was sent has no noise" in render(tmp_path)
    assert set(NO_BOUND) == set(Unbounded)
    assert brackets([made, record(bound=MADE), record()])[-1].startswith("No upper bound exists for 1 set-up")
    assert bracket_sentence(record(None, unbounded=Unbounded.NO_NOISE)) == ""


def test_a_vacuous_bound_is_called_one() -> None:
    weak = Bound(0.1, "sample", 1.0, 1.0, 65, 4 / 65, 1.0)
    said = bracket_sentence(record(bound=weak, verdict=verdict("feasible")))
    assert "too small for a bound that rules anything out" in said
    assert "exceed" not in said
    assert bracket_rows(record(bound=weak)) == []


@pytest.mark.parametrize("noise", [0.005, 0.05])
def test_imprint_under_dpsgd_reaches_the_law(noise: float) -> None:
    """One image in four draws of the noise; benchmarks/bounds.py has five strengths and two models."""
    images = fashion("test")[0][:1]
    victim = fashion_cnn()
    x, y = victim.space.encode(images), torch.tensor([0])
    sent = ImprintServer(bins=64, gain=1e6)(victim)
    errors = []
    for seed in range(4):
        seen = observe(sent, DPSGD(noise=noise, seed=seed), x, y)
        found = imprint(norm=float(x.norm()))(sent, seen)
        errors.append(float((victim.space.decode(found.x) - images).square().mean()))
    law = from_scratch_psnr(images, noise * x.flatten(1).norm(dim=1)[:, None] * victim.space.std[0])  # pyright: ignore
    assert -10 * math.log10(sum(errors) / len(errors)) == pytest.approx(float(law), abs=0.3)


def fashion_cnn() -> Victim:
    from leakgauge.core import Pixels
    from leakgauge.data.embedded import MEAN, STD

    return Victim(pretrained("cnn"), Pixels((1, 28, 28), mean=MEAN, std=STD))
