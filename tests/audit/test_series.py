"""Series from the private data to verdict, record and page."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from leakgauge import Series, Victim, evaluate, testing
from leakgauge.attacks import inverting_gradients, smooth_series
from leakgauge.audit import records
from leakgauge.audit.case import Case
from leakgauge.audit.cause import Cause
from leakgauge.audit.run import run_all
from leakgauge.audit.scoring import score_images, trivial_baseline
from leakgauge.audit.session import Session
from leakgauge.audit.verdict import Outcome, Verdict, judge_series
from leakgauge.audit.wording.bracket import reached
from leakgauge.audit.wording.causes import why
from leakgauge.channels import Gradient
from leakgauge.core import Observation, as_images, share
from leakgauge.errors import BadInput
from leakgauge.integrations.in_memory import hold
from leakgauge.integrations.setups import find
from leakgauge.inversion import Shift, Smoothness, Spectrum, TotalVariation
from leakgauge.inversion.priors import registered
from leakgauge.inversion.terms import Candidate
from leakgauge.report import page

PLAN = """
import torch
from torch import nn
from leakgauge import Series

def victim():
    model = nn.Sequential(nn.Conv1d(2, 8, 5, 2, 2), nn.GELU(), nn.Flatten(), nn.Linear(8 * 20, 3))
    return model, Series(2, 40, bounds=(-1.5, 1.5))

def data():
    t = torch.linspace(0, 6.28, 40)
    waves = torch.stack([torch.stack([torch.sin((1 + k % 3) * t + k), torch.cos((1 + k % 4) * t + k)]) for k in range(30)])
    return waves, torch.arange(30) % 3
"""


def test_decode_undoes_encode_and_images_are_one_pixel_high():
    space = Series(2, 5, bounds=(-4, 4), mean=(1.0, 0.0), std=(2.0, 0.5))
    values = torch.linspace(-4, 4, 10).view(1, 2, 5)
    assert torch.allclose(space.decode(space.encode(values)), values)
    assert as_images(space, space.encode(values)).shape == (1, 2, 1, 5)
    assert float(as_images(space, space.encode(values)).max()) == 1
    assert float(space.decode(torch.full((1, 2, 5), 99.0)).max()) == 4


@pytest.mark.parametrize(
    "options", [{"channels": 0}, {"length": 1}, {"bounds": (1, 1)}, {"std": (0.0,)}, {"mean": (0, 0, 0)}]
)
def test_impossible_series_are_refused(options):
    with pytest.raises(BadInput, match="Series needs"):
        Series(**{"channels": 2, "length": 8, **options})


def test_values_that_cannot_occur_are_refused():
    victim, x, y = testing.tiny_case("series")
    with pytest.raises(BadInput, match="give it other bounds"):
        share(victim, Gradient(), x + 9, y)


def test_priors_of_series_by_hand():
    victim = testing.tiny_victim("series")

    def at(values):
        return Candidate(torch.as_tensor(values, dtype=torch.float32), victim, None, 1)

    steps = [[[[0.0, 1, 3, 3], [9, 9, 9, 9]]]]
    assert float(TotalVariation()(at(steps))) == pytest.approx((1 + 2 + 0 + 0) / 6)  # never between channels
    assert float(Smoothness()(at(steps))) == pytest.approx((1 + 4) / 4)
    t = torch.arange(16) * (2 * torch.pi / 16)
    for frequency, expected in ((1, 1 / 8), (4, 4 / 8), (8, 1)):
        wave = torch.cos(frequency * t)[None, None, None]
        assert float(Spectrum()(at(wave))) == pytest.approx(expected, abs=1e-5)
        assert float(Spectrum(decay=2)(at(5 * wave))) == pytest.approx(expected**2, abs=1e-5)


def test_restarts_of_series_are_registered_along_time_only():
    one = torch.randn(1, 1, 1, 3, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(registered(Shift(), torch.cat([one.roll(2, -1), one], 1), one), one.expand(1, 2, 1, 3, 32))
    channels = one.roll(1, -2)  # the same channels in another order cannot be moved into place
    assert not torch.allclose(registered(Shift(), channels, one), one)


@pytest.mark.parametrize("name", ["series", "series_gru", "series_transformer"])
def test_the_truth_explains_what_was_sent_and_the_search_goes_downhill(name):
    victim, x, y = testing.tiny_case(name, count=2)
    seen = share(victim, Gradient(), x, y)
    attack = smooth_series(steps=6, restarts=2)
    plain = replace(attack, objective=attack.objective.parts()[0][1])
    assert plain.objective_at(victim, seen, x, y) == pytest.approx(0, abs=1e-5)
    found = plain(victim, seen)
    assert found.x.shape == x.shape
    assert found.loss < float(found.trace.losses[0].min())


def test_a_series_is_reconstructed_and_nothing_is_not():
    victim, x, y = testing.tiny_case("series")
    found = evaluate(victim, Gradient(), x, y, attack=inverting_gradients(steps=250, tv=0.01))
    assert found.outcome is Outcome.FEASIBLE
    assert found.verdict.unit == "series"
    assert found.scores.mean("correlation") > 0.95 > 0.5 > found.null.mean("correlation")
    assert "1 of 1 series passes every check" in str(found)
    assert "SSIM" not in str(found)
    blank = {name: torch.randn_like(g) for name, g in share(victim, Gradient(), x, y).signal.items()}
    from leakgauge.audit.evaluate import assess

    nothing = assess(smooth_series(steps=40), victim, Observation(blank, Gradient(), size=1), x, y)
    assert not nothing.outcome.leaks


def test_the_right_shape_counts_only_beside_null_and_baseline():
    space = Series(1, 64, bounds=(-2, 2))
    t = torch.linspace(0, 25, 64)
    truths = as_images(space, torch.sin(t)[None, None])
    near, far = (as_images(space, one[None, None]) for one in (torch.sin(t) + 0.05, torch.cos(t)))
    right, wrong = (score_images(one, truths, bounds=space.bounds) for one in (near, far))
    trivial = trivial_baseline(truths, bounds=space.bounds)
    assert judge_series(right, wrong, trivial).outcome is Outcome.FEASIBLE
    assert not judge_series(wrong, wrong, trivial).outcome.leaks
    assert not judge_series(right, right, trivial).outcome.leaks  # its null run shows as much
    assert right.smape[0] < wrong.smape[0]


def test_a_plan_file_with_series_gets_a_record_and_lines(tmp_path):
    (tmp_path / "audit.py").write_text(PLAN)
    spec = str(tmp_path / "audit.py")
    case = Case(model=f"{spec}:victim", data=f"{spec}:data", mode="eval", batch_size=2, options={"steps": 150})
    (tmp_path / "run").mkdir()
    (record,) = run_all([case], load=Session(find), folder=tmp_path / "run")
    assert record.outcome is Outcome.FEASIBLE
    (read,) = records.read(tmp_path / "run")
    assert read == record
    assert len(read.series.truth) == 2
    assert len(read.series.truth[0][0]) == 40
    t = torch.linspace(0, 6.28, 40)
    assert read.series.truth[0][0] == pytest.approx(torch.sin(t).tolist(), abs=1e-4)
    made = page.write(tmp_path / "run").read_text()
    assert "Series 2, channel 2 of 2" in made
    assert "private series" in made
    assert not read.pictures


def test_series_in_memory_and_their_mistakes():
    net = nn.Sequential(nn.Conv1d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 6, 2))
    victim = Victim(net, Series(1, 8, bounds=(-9, 9)))
    values, labels = np.random.default_rng(0).normal(size=(6, 8)), np.arange(6) % 2
    setup = hold(victim, (values, labels))
    assert setup.images.shape == (6, 1, 8)
    with pytest.raises(BadInput, match=r"series of shape \(6, 1, 8\); \(count, 1, 9\) is expected"):
        hold(Victim(net, Series(1, 9)), (values, labels))
    with pytest.raises(BadInput, match="give it other bounds"):
        hold(Victim(net, Series(1, 8, bounds=(-0.1, 0.1))), (values, labels))


def test_sentences_name_the_kind_of_sample():
    """Series, rows and sentences are no images; a series has no other plural."""
    for unit, several in (("series", "series"), ("row", "rows"), ("sentence", "sentences")):
        verdict = Verdict(Outcome.INFEASIBLE, "deployable", 4, cause=Cause.INFORMATION, unit=unit)
        assert why(verdict) == f"other {several} explain what was sent as well as the true ones"
        assert reached(verdict).startswith(f"0 of 4 {several} (")
