"""A first pass within a time: which cuts it can afford, and what a scan says of those it leaves out. The clock is ours."""

import pytest
import torch
from torch import nn

from leakgauge.audit.case import Case
from leakgauge.audit.questions import split, split_records
from leakgauge.audit.questions.split import Asked, ScanRun, plan_scan
from leakgauge.audit.questions.split_records import RIDGE
from leakgauge.audit.session import Setup
from leakgauge.core import Pixels, Victim
from leakgauge.split.inverters import LinearInverter

EACH = 10.0
"""Seconds that ridge takes at a cut, by our clock."""


@pytest.fixture
def setup():
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Conv2d(1, 1, 3, padding=1), nn.Tanh())]
    images = torch.rand(90, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 3))
    return Setup(Victim(model, Pixels((1, 8, 8)), name="deep"), images, torch.arange(90) % 3)


@pytest.fixture
def clock(monkeypatch):
    """Time passes only while the first regression at a cut is fitted."""
    now = [0.0]

    class Slow(LinearInverter):
        def __call__(self, *args, **options):
            now[0] += EACH
            return super().__call__(*args, **options)

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr(split, "LinearInverter", Slow)


class Mean:
    def __call__(self, features, images, /, *, epochs, seed):
        return lambda sent: images.mean(0).expand(len(sent), -1, -1, -1)


def scanned(setup, folder, **asked):
    folder.mkdir()
    plan = plan_scan(setup, Case(model="vgg"), Asked(threshold=0.4, **asked), folder, command="leakgauge scan")
    run = ScanRun(setup, plan, folder, inverter=Mean())
    return plan, run, run()


def test_a_scan_without_enough_time_names_the_cuts_it_left_out(setup, clock, tmp_path):
    plan, run, found = scanned(setup, tmp_path / "short", budget=10 * EACH)
    every = [cut["name"] for cut in plan.cuts]
    assert len(every) == 9
    attacked = [r.cut for r in split_records.read(tmp_path / "short") if r.attack == RIDGE]
    assert sorted(attacked, key=every.index) == run.names
    assert len(run.names) == 5, "half of the budget is five cuts"
    assert (run.names[0], run.names[-1]) == (every[0], every[-1])
    left_out = [name for name in every if name not in run.names]
    (note,) = [note for note in run.plan.notes if "lack of time" in note]
    assert note.startswith(f"4 of 9 cuts were not attacked for lack of time: {', '.join(left_out)};")
    assert len(found.envelope) == len(run.names)
    pictures = [r.picture for r in split_records.read(tmp_path / "short") if r.attack == RIDGE]
    assert len(set(pictures)) == len(pictures), "no cut's picture takes the place of another's"


def test_with_time_enough_nothing_is_left_out(setup, clock, tmp_path):
    plan, run, _ = scanned(setup, tmp_path / "long", budget=18 * EACH)
    assert len(run.names) == len(plan.cuts)
    assert not any("lack of time" in note for note in run.plan.notes)
    _, run, _ = scanned(setup, tmp_path / "unlimited", epochs=0)
    assert len(run.names) == len(plan.cuts)


def test_cuts_that_were_named_are_never_left_out(setup, clock, tmp_path):
    names = ("1", "3", "5", "7", "9", "11")
    _, run, _ = scanned(setup, tmp_path / "named", budget=EACH, names=names)
    assert tuple(run.names) == names
    assert not any("lack of time" in note for note in run.plan.notes)


def test_a_thinned_scan_that_is_resumed_keeps_its_cuts(setup, clock, tmp_path):
    folder = tmp_path / "killed"
    folder.mkdir()
    plan = plan_scan(setup, Case(model="vgg"), Asked(threshold=0.4, budget=10 * EACH), folder, command="leakgauge scan")
    done = []

    def killed(record):
        done.append(record.cut)
        if len(done) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ScanRun(setup, plan, folder, on_record=killed, inverter=Mean())()
    thinned = split_records.read_plan(folder)
    assert len(thinned.cuts) == 5
    run = ScanRun(setup, thinned, folder, inverter=Mean())
    run()
    assert run.plan.cuts == thinned.cuts
    assert sum("lack of time" in note for note in run.plan.notes) == 1
