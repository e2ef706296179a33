"""Running cases: every end is written down as what it is, and what was written stays."""

from __future__ import annotations

import errno
import math

import numpy as np
import pytest
import torch
from PIL import Image

from leakgauge.attacks import ATTACKS, linear
from leakgauge.audit import files, records, scoring
from leakgauge.audit import run as running
from leakgauge.audit.case import Case
from leakgauge.audit.files import save_strip
from leakgauge.audit.null import null_run
from leakgauge.audit.records import Curve, VictimFacts
from leakgauge.audit.run import run_all, run_case
from leakgauge.audit.session import Setup
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.errors import BadInput, CannotWrite, Inapplicable
from leakgauge.models import MLP


def test_a_record_holds_everything(quick, load, tmp_path):
    case = quick(batch_size=2, options={"steps": 4, "restarts": 3}, defenses=("prune:0.1",), reveal=("size", "labels"))
    record = run_case(case, load=load, folder=tmp_path)
    assert record.status == "done"
    assert record.key == case.key()
    assert record.victim == VictimFacts("Sequential", "eval", 3 * 10 + 4 * 109, 4, (1, 6, 6), "cpu")
    assert (record.channel, record.defenses, record.case) == ("Gradient()", ("Prune(fraction=0.1)",), case)
    assert "steps=4" in record.attack
    assert [a.kind for a in record.assumptions] == ["deployable", "diagnostic"]
    assert record.verdict.kind == "diagnostic"
    for scores in (record.scores, record.null, record.baseline):
        assert len(scores.psnr) == 2
    assert record.scores.mean("labels") == 1.0  # they were given away
    assert len(record.restarts["ssim"]) == 3
    chosen = record.scores.mean("mse")
    assert any(value == pytest.approx(chosen) for value in record.restarts["mse"])
    assert record.curve.steps == (0, 1, 2, 3, 4)
    assert len(record.curve.losses) == 3
    assert {*record.versions} - {"commit"} == {"leakgauge", "python", "torch", "numpy"}  # a wheel knows no commit
    assert record.seconds > 0
    assert record.peak_bytes > 10**7
    assert record.command == case.command()
    for name in ("truth", "reconstruction", "null", "baseline"):
        assert np.asarray(Image.open(tmp_path / record.pictures[name])).shape == (6, 13)
    assert [frame.step for frame in record.progress][-1] == 4
    assert all((tmp_path / frame.picture).is_file() for frame in record.progress)
    records.append(tmp_path, record)
    assert records.read(tmp_path) == [record]


def test_the_strip_shows_the_truth(quick, load, tmp_path):
    record = run_case(quick(batch_size=2, first=3), load=load, folder=tmp_path)
    shown = np.asarray(Image.open(tmp_path / record.pictures["truth"])) / 255
    truth = load(quick()).images[3:5, 0].numpy()
    np.testing.assert_allclose(shown[:, :6], truth[0], atol=0.5 / 255 + 1e-6)
    np.testing.assert_allclose(shown[:, 7:], truth[1], atol=0.5 / 255 + 1e-6)
    assert (shown[:, 6] == 1).all()


def test_frames_lie_in_the_order_of_the_reconstruction(quick, load, tmp_path, monkeypatch):
    monkeypatch.setattr(scoring, "pair", lambda guesses, truths: torch.arange(len(truths)).flip(0))
    record = run_case(quick(batch_size=3), load=load, folder=tmp_path)
    last = np.asarray(Image.open(tmp_path / record.progress[-1].picture))
    reconstruction = np.asarray(Image.open(tmp_path / record.pictures["reconstruction"]))
    np.testing.assert_array_equal(last, reconstruction)
    assert (last[:, :6] != last[:, 14:20]).any()  # so that the order can be seen


def test_colour_strips(tmp_path):
    images = torch.rand(2, 3, 4, 5)
    path = tmp_path / save_strip(tmp_path, "c", images)
    assert np.asarray(Image.open(path)).shape == (4, 11, 3)


def test_the_same_case_gives_the_same_record(quick, load, tmp_path):
    first, again = (run_case(quick(), load=load, folder=tmp_path) for _ in range(2))
    for name in ("scores", "null", "baseline", "restarts", "verdict", "curve"):
        assert getattr(first, name) == getattr(again, name)


def test_an_attack_that_lacks_something_is_refused_not_scored(quick, load, tmp_path):
    record = run_case(quick(attack="idlg", batch_size=2), load=load, folder=tmp_path)
    assert (record.status, record.verdict, record.scores) == ("refused", None, None)
    assert "reads one label" in record.reason


def test_a_crash_is_an_error_not_a_score(quick, load, tmp_path, monkeypatch):
    class Crashes:
        def __call__(self, victim, seen, /, *, seed=0):
            return 1 / 0

    monkeypatch.setitem(ATTACKS, "crashes", Crashes)
    record = run_case(quick(attack="crashes", options={}), load=load, folder=tmp_path)
    assert (record.status, record.verdict, record.scores) == ("error", None, None)
    assert record.reason == "ZeroDivisionError: division by zero"
    assert "Traceback" in record.notes[0]
    assert record.victim.classes == 4


def test_a_users_mistake_is_raised(quick, load, tmp_path):
    with pytest.raises(BadInput, match="but the data holds 20"):
        run_case(quick(first=19, batch_size=4), load=load, folder=tmp_path)
    with pytest.raises(BadInput, match="unknown attack"):
        run_case(quick(attack="nothing"), load=load, folder=tmp_path)


def test_a_full_disk_is_raised_not_recorded(quick, load, tmp_path, monkeypatch):
    """The case did not fail; had it a record, a resumed run would leave it out."""

    def full(path, content):
        raise CannotWrite(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_whole", full)
    with pytest.raises(OSError, match="No space left"):
        run_all([quick()], load=load, folder=tmp_path)
    assert not (tmp_path / records.FILE).exists()


# --- many cases --------------------------------------------------------------------------------------------------------


def test_resume_runs_only_what_is_missing(quick, load, tmp_path):
    cases = [quick(), quick(batch_size=2), quick(first=3)]
    loaded: list[Case] = []

    def counting(case):
        loaded.append(case)
        return load(case)

    first = run_all(cases[:2], load=counting, folder=tmp_path)
    assert loaded == cases[:2]
    heard = []
    every = run_all(cases, load=counting, folder=tmp_path, resume=True, on_record=heard.append)
    assert loaded == cases
    assert every[:2] == first
    assert heard == every[2:]
    assert [r.key for r in records.read(tmp_path)] == [r.key for r in every]
    run_all(cases, load=counting, folder=tmp_path, resume=True)
    assert loaded == cases


def test_resume_where_nothing_was_done(quick, load, tmp_path):
    assert len(run_all([quick()], load=load, folder=tmp_path, resume=True)) == 1


def test_results_are_in_the_order_of_the_cases(quick, load, tmp_path):
    cases = [quick(first=i) for i in (2, 0, 1)]
    run_all(cases[1:], load=load, folder=tmp_path)
    assert [r.key for r in run_all(cases, load=load, folder=tmp_path, resume=True)] == [c.key() for c in cases]


@pytest.mark.parametrize("end", [KeyboardInterrupt(), BadInput("wrong")], ids=repr)
def test_earlier_records_are_kept_when_a_run_ends_early(end, quick, load, tmp_path):
    def stops(case):
        if case.first == 2:
            raise end
        return load(case)

    cases = [quick(first=i) for i in range(4)]
    with pytest.raises(type(end)):
        run_all(cases, load=stops, folder=tmp_path)
    assert [r.key for r in records.read(tmp_path)] == [c.key() for c in cases[:2]]
    assert not list(tmp_path.rglob("*.part"))


def test_an_error_or_a_refusal_does_not_stop_the_others(quick, load, tmp_path):
    def breaks(case):
        if case.first == 0:
            raise RuntimeError("lost the data")
        if case.first == 1:
            raise Inapplicable("no such role")
        return load(case)

    found = run_all([quick(first=i) for i in range(3)], load=breaks, folder=tmp_path)
    assert [r.status for r in found] == ["error", "refused", "done"]


def test_another_map_may_be_passed_in(quick, load, tmp_path):
    seen = []

    def backwards_map(run, cases):
        seen.extend(cases)
        return [run(case) for case in cases]

    cases = [quick(first=i) for i in range(2)]
    assert len(run_all(cases, load=load, folder=tmp_path, map=backwards_map)) == 2
    assert seen == cases


# --- null runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channel", [Gradient(), FedAvg(steps=2, lr=0.1)], ids=repr)
def test_the_null_run_of_a_closed_form_knows_nothing_of_the_target(channel):
    """It gets the signal of noise: the result is that noise, the same for every target."""
    space = Pixels((1, 6, 6), bounds=(-9.0, 9.0))
    victim = Victim(MLP(shape=(1, 6, 6)), space)
    results = []
    for label in (0, 7):
        x = torch.full((1, 1, 6, 6), 0.1 * label)
        seen = share(victim, channel, x, torch.tensor([label]))
        torch.testing.assert_close(linear()(victim, seen).x, x, atol=1e-3, rtol=1e-3)
        results.append(null_run(linear(), victim, seen, seed=3))
    assert torch.equal(results[0].x, results[1].x)
    noise = space.start(1, torch.Generator().manual_seed(3))
    torch.testing.assert_close(results[0].x, noise, atol=1e-3, rtol=1e-3)


def test_a_closed_form_is_judged_against_its_null_run(tmp_path, quick):
    images = torch.rand(4, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    setup = Setup(Victim(MLP(shape=(1, 12, 12)), Pixels((1, 12, 12))), images, torch.arange(4))
    record = run_case(quick(attack="linear", options={}), load=lambda _: setup, folder=tmp_path)
    assert record.outcome == "feasible"
    assert record.scores.mean("psnr") > 60
    assert record.null.mean("psnr") < 15
    assert record.curve == Curve()


def test_the_null_run_of_matching_does_not_know_the_labels(quick, load, tmp_path):
    """Over many cases its labels are right no more often than by chance, while the attack's are always right."""
    found = [run_case(quick(first=i, seed=i, options={"steps": 1}), load=load, folder=tmp_path) for i in range(16)]
    assert all(r.scores.mean("labels") == 1 for r in found)
    assert sum(r.null.mean("labels") for r in found) <= 10


def test_values_without_a_number_are_written_as_nothing():
    assert running._finite(torch.tensor([1.0, math.inf, math.nan])) == (1.0, None, None)


def test_a_batch_that_is_all_the_data_is_judged_without_re_identification(quick, victim_of, tmp_path):
    images, labels = torch.rand(4, 1, 6, 6), torch.arange(4)
    setup = Setup(victim_of(), images, labels)
    record = run_case(quick(batch_size=4, options={"steps": 2}), load=lambda case: setup, folder=tmp_path)
    assert record.status == "done"
    assert record.scores.reid is None
    assert run_case(quick(batch_size=3, options={"steps": 2}), load=lambda case: setup, folder=tmp_path).scores.reid


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_of_other_number_types(quick, victim_of, tiny, tmp_path, dtype):
    setup = Setup(victim_of(tiny(norm=False).to(dtype)), torch.rand(20, 1, 6, 6), torch.arange(20) % 4)
    case = quick(batch_size=2, options={"steps": 2, "restarts": 2}, reveal=("size", "auxiliary:8"))
    record = run_case(case, load=lambda case: setup, folder=tmp_path)
    assert (record.status, record.reason) == ("done", "")


def test_a_training_that_diverges_is_a_refusal_and_no_score(quick, load, tmp_path):
    record = run_case(quick(batch_size=2, local_steps=5, local_lr=1e38), load=load, folder=tmp_path)
    assert (record.status, record.verdict) == ("refused", None)
    assert "its training diverged" in record.reason
