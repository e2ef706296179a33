"""How one case of the feasibility study is attacked: its settings, one preparation for all runs, and its time."""

import math

import pytest
import torch


def test_settings_start_with_the_defaults_and_stay_in_the_papers_space():
    from reproductions.practical_feasibility import attacking

    tried = []
    for number in range(2):
        round_ = attacking.propose(tried, seed=3)
        assert round_ == attacking.propose(tried, seed=3)
        assert len(round_) == attacking.SIDE_BY_SIDE
        tried += [(options, 1.0 - 0.1 * number - 0.01 * i) for i, options in enumerate(round_)]
    assert tried[0][0] == attacking.DEFAULTS
    drawn = [options for options, _ in tried[1:]] + [attacking._drawn(n) for n in range(20)]
    for options in drawn:
        assert 1e-6 <= options["tv"] <= 0.1
        assert 1e-4 <= options["lr"] <= 100
        assert options["statistics"] in (0.0, 1e-4, 1e-2)
    assert len({options["lr"] for options in drawn}) == len(drawn)


@pytest.mark.parametrize(
    ("shared", "mode", "batch", "recorded"),
    [("buffers", "train", 2, True), ("auxiliary", "train", 2, False), ("auxiliary", "eval", 1, True), ("running", "train", 1, True)],
)  # fmt: skip
def test_one_preparation_serves_every_setting(shared, mode, batch, recorded, monkeypatch, recordable):
    """Each run is the library's attack with these settings, whatever ran before it, also where its step is recorded."""
    from leakgauge.attacks import feasibility, huang
    from leakgauge.channels import Gradient
    from leakgauge.core import Auxiliary, Buffers, Labels, Size, Victim, share
    from leakgauge.data.embedded import photographs
    from leakgauge.inversion import solvers
    from reproductions.practical_feasibility.attacking import configured
    from reproductions.practical_feasibility.networks import Network
    from reproductions.practical_feasibility.rehearsal import Rehearsal

    make = huang if shared == "running" else feasibility
    model, space, _ = Network("resnet18_pre").made(classes=10, seed=0, quick=True)
    victim, images = Victim(model, space, mode=mode), space.encode(photographs(32)[:6])
    known = Auxiliary(images[2:]) if shared == "auxiliary" else Buffers()
    reveal = [Size(), Labels(), known]
    seen = share(victim, Gradient(), images[:batch], torch.tensor([3, 5])[:batch], reveal=reveal)
    untouched = {name: value.clone() for name, value in model.state_dict().items()}
    monkeypatch.setattr(solvers.Adam, "make", lambda self, variables: recordable.AdamInTensors(variables, self.lr))
    prepared = Rehearsal(make(restarts=4), victim, [seen], seed=1)
    assert prepared.seconds_per_step() > 0
    if recorded:
        prepared.move._captured = recordable.PlayedBack(prepared.move._move)
        prepared.run([{"tv": 1.0, "statistics": 1.0, "lr": 1.0}], 4)
        assert prepared.move._captured.operations
    usual, other = {"tv": 0.01, "statistics": 0.1, "lr": 0.1}, {"tv": 1e-4, "statistics": 0.0, "lr": 0.5}
    two = [configured(make, options, steps=5, restarts=4)(victim, seen, seed=1) for options in (usual, other)]
    for settings, attacks in (([usual, other], two), ([usual], two[:1]), ([other, usual], two[::-1])):
        rows = 4 // len(settings)  # the first starts serve each of the settings
        for ours, theirs in zip(prepared.run(settings, 5), attacks, strict=True):
            assert torch.allclose(ours.candidates, theirs.candidates[:rows], atol=1e-4)
            assert torch.allclose(ours.losses, theirs.losses[:rows], rtol=2e-4)
            assert torch.equal(ours.x, ours.candidates[int(theirs.losses[:rows].argmin())])
    with pytest.raises(AssertionError, match="cannot be shared"):
        prepared.run([usual] * 3, 5)
    assert any("statistics" in note for note in prepared.notes)
    assert all(torch.equal(untouched[name], value) for name, value in model.state_dict().items())


def test_several_observations_share_one_preparation():
    """As in the study of controlled starts: each observation gets what it would get alone, in the first run and in the second."""
    from leakgauge.attacks import feasibility
    from leakgauge.channels import Gradient
    from leakgauge.core import Labels, NoisyCopy, Size, Victim, share
    from leakgauge.data.embedded import photographs
    from reproductions.practical_feasibility.attacking import DEFAULTS, configured
    from reproductions.practical_feasibility.networks import Network
    from reproductions.practical_feasibility.rehearsal import Rehearsal

    model, space, _ = Network("swin_t").made(classes=10, seed=0, quick=True)
    victim, images = Victim(model, space, mode="train"), space.encode(photographs(32)[:2])
    seen = [
        share(victim, Gradient(), images[i : i + 1], torch.tensor([i]), reveal=[Size(), Labels(), NoisyCopy(p)], seed=i)
        for p in (0.2, 0.5)  # not 0: at the truth the gradient's signs are those of rounding
        for i in range(2)
    ]
    prepared = Rehearsal(feasibility(restarts=2), victim, seen, seed=3)
    settings = [DEFAULTS, {**DEFAULTS, "lr": 0.01}]
    for _ in range(2):
        for options, found in zip(settings, prepared.run(settings, 5, exactly=False), strict=True):
            attack = configured(feasibility, options, steps=5, restarts=1).matching
            for own, loss, one in zip(found.candidates, found.losses, seen, strict=True):
                alone = attack(victim, one, seed=3)
                off = (own - alone.x).abs() > 1e-4  # a sign of almost nothing may turn in rounding
                assert float(off.float().mean()) < 1e-3
                assert float(loss) == pytest.approx(alone.loss, rel=2e-3)


def test_a_full_gpu_is_no_refusal(tmp_path, monkeypatch):
    """Other processes may have filled it: the case gets no line, so that the next call tries it again."""
    from leakgauge.inversion.search import Search
    from reproductions.practical_feasibility import setting, small

    monkeypatch.setattr(Search, "fitting", lambda self, x, logits: 1)
    options = setting.Options(True, torch.device("cpu"), 0, None, tmp_path, tmp_path / "weights")
    with pytest.raises(SystemExit, match="failed and have no line: swin_t, train mode"):
        setting.recorded("small", {**small.PLAN, "image": 0.0}, small.run, options)
    written = (tmp_path / "small.jsonl").read_text("utf-8")
    assert "do not fit" not in written
    assert '"swin_t, train mode"' not in written


def test_steps_are_planned_into_the_seconds_left():
    from reproductions.practical_feasibility.attacking import AROUND, LEAST_TRIAL, NULL_STEP, Effort

    effort = Effort(restarts=8, rounds=2, seconds=60, quick=False)
    for per_step in (0.008, 0.016, 0.024):
        planned = effort.steps(per_step, spent=5.0)
        taken = per_step * (2 * planned.trial + planned.final) + NULL_STEP * planned.final + AROUND + 5.0
        assert planned.in_time
        assert 50 < taken <= 60
    slow = effort.steps(0.5, spent=5.0)
    assert (slow.trial, slow.final, slow.in_time) == (LEAST_TRIAL, effort.least, False)
    assert effort.steps(1e-5, spent=0.0).final == 12_000


class SlowerAndSlower:
    """Stands for a rehearsal on a GPU that others begin to use: steps take three times as long as they did when they were timed."""

    notes = ()

    def __init__(self, attack, victim, seen, *, seed):
        self.attack, self.victim, self.seen, self.seed = attack, victim, seen, seed
        self.steps: list[int] = []

    def seconds_per_step(self):
        return 0.01

    def run(self, settings, steps, *, exactly=True):
        from reproductions.practical_feasibility.rehearsal import Run

        self.steps.append(steps)
        CLOCK[0] += 0.03 * steps
        x = torch.rand(2, 1, 3, 32, 32, generator=torch.Generator().manual_seed(steps))
        return [Run(x, torch.tensor([1.0, 2.0])) for _ in settings]


CLOCK = [0.0]


def slow_case(monkeypatch, until: float):
    """An attack of planned 100 seconds; its row, and the steps it took."""
    from leakgauge.core import Victim
    from leakgauge.data.embedded import photographs
    from reproductions.practical_feasibility import attacking
    from reproductions.practical_feasibility.networks import Network

    CLOCK[0] = 0.0
    made: list[SlowerAndSlower] = []
    monkeypatch.setattr(attacking, "Rehearsal", lambda *a, **k: made.append(SlowerAndSlower(*a, **k)) or made[-1])
    monkeypatch.setattr(attacking.time, "perf_counter", lambda: CLOCK[0])
    null = type("Null", (), {"x": torch.rand(1, 3, 32, 32)})()
    monkeypatch.setattr(
        attacking, "configured", lambda *a, **k: type("B", (), {"blind": lambda self: lambda *a, **k: null})()
    )
    model, space, _ = Network("resnet18_post").made(classes=10, seed=0, quick=True)
    x = photographs(32)[:8]
    effort = attacking.Effort(restarts=2, rounds=2, seconds=100.0, quick=False, least=100, until=until)
    row, _ = attacking.attacked(
        Victim(model, space, mode="train"), space.encode(x[:1]), torch.tensor([0]), effort=effort, pool=x
    )
    return row, made[0].steps


def test_a_gpu_that_becomes_slower_gets_fewer_final_steps(monkeypatch):
    row, steps = slow_case(monkeypatch, math.inf)
    trials, finals = steps[:2], steps[2:]
    assert CLOCK[0] == pytest.approx(100, abs=20)  # at the first pace the final run would have taken 190 seconds
    assert [row["steps"]] == finals
    assert finals[0] < 3000
    assert row["ms_per_step"] == pytest.approx(30)
    assert len(set(trials)) == 1


def test_a_case_that_cannot_be_done_in_time_is_left(monkeypatch):
    from reproductions.practical_feasibility.ledger import NoTimeLeft

    with pytest.raises(NoTimeLeft, match="left for another call"):
        slow_case(monkeypatch, 5.0)
    assert CLOCK[0] == 0.0  # known before the first trial
    with pytest.raises(NoTimeLeft, match="at the measured pace"):
        slow_case(monkeypatch, 35.0)
    assert CLOCK[0] < 35.0  # found out after the trials


def test_the_mean_over_all_pairs_punishes_a_perfect_batch():
    from leakgauge.data.embedded import photographs
    from reproductions.practical_feasibility import attacking

    truths = photographs(32)[:4]
    assert attacking.all_pairs_ssim(truths, truths) < 0.5
    assert attacking.all_pairs_ssim(truths[:1], truths[:1]) == pytest.approx(1.0)
