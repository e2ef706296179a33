"""The short monitored training of any victim."""

from __future__ import annotations

import copy
import json

import pytest
import torch

from leakgauge.audit.questions import training
from leakgauge.audit.questions.training import plan_training, train, trained
from leakgauge.audit.session import Setup
from leakgauge.errors import BadInput


@pytest.fixture
def setup(victim_of, batch_of):
    images, labels = batch_of(70)
    return Setup(victim_of(mode="eval", dropout=0.3), images, labels)


def lines(folder) -> list[dict]:
    """All that was written, without what may differ between two runs."""
    found = [json.loads(line) for line in (folder / training.FILE).read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("started", "seconds")} for line in found]


def test_it_trains_a_copy_and_records_as_the_monitor_does(setup, quick, tmp_path):
    before = copy.deepcopy(setup.victim.model.state_dict())
    plan = plan_training(setup, quick(), steps=48, command="leakgauge audit")
    assert (plan.batch, plan.every) == (4, 4)
    told = []
    train(setup, plan, tmp_path, seed=1, on_step=lambda done, total: told.append((done, total)))
    assert told == [(i, 48) for i in range(1, 49)]
    run = training.read(tmp_path)
    assert run.end["how"] == "finished"
    assert run.about["optimizer"] == "Adam"
    assert run.about["command"] == "leakgauge audit"
    assert [report["step"] for report in run.reports] == list(range(4, 49, 4))
    assert any(report["scalars"].get("privacy/whitebox/auc") is not None for report in run.reports)
    assert all(torch.equal(before[name], value) for name, value in setup.victim.model.state_dict().items())
    assert not setup.victim.model.training
    assert all(p.grad is None for p in setup.victim.model.parameters())


def test_an_unfinished_training_starts_anew_and_gives_the_same_numbers(setup, quick, tmp_path):
    plan = plan_training(setup, quick(), steps=24)
    (tmp_path / "whole").mkdir()
    train(setup, plan, tmp_path / "whole", seed=1)

    class Killed(BaseException):
        pass

    def kill(done: int, total: int) -> None:
        if done == 15:
            raise Killed

    torch.manual_seed(5)  # nothing of the process's own randomness matters
    (tmp_path / "cut").mkdir()
    with pytest.raises(Killed):
        train(setup, plan, tmp_path / "cut", seed=1, on_step=kill)
    assert lines(tmp_path / "cut")
    assert not trained(tmp_path / "cut")
    train(setup, plan, tmp_path / "cut", seed=1)
    assert trained(tmp_path / "cut")
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    train(setup, plan, tmp_path / "cut", seed=2)
    assert lines(tmp_path / "cut") != lines(tmp_path / "whole")


def test_the_losses_fall(setup, quick, tmp_path, monkeypatch):
    """The victim's own loss is what is trained on, also where it is a plain function."""
    losses = []

    def loss(output, target):
        value = torch.nn.functional.cross_entropy(output, target)
        if value.grad_fn is not None and value.dim() == 0 and output.requires_grad and len(output) > 1:
            losses.append(float(value))
        return value

    object.__setattr__(setup.victim, "loss", loss)
    monkeypatch.setattr(training, "RATE", 0.05)
    labels = (setup.images.mean((1, 2, 3)) > setup.images.mean()).long()  # something that can be learned
    train(Setup(setup.victim, setup.images, labels), plan_training(setup, quick(), steps=150), tmp_path, seed=0)
    assert sum(losses[-20:]) < 0.9 * sum(losses[:20])
    assert training.read(tmp_path).about["loss"] == "VictimLoss"


def test_too_few_images(setup, quick):
    few = Setup(setup.victim, setup.images[:31], setup.labels[:31])
    with pytest.raises(BadInput, match="needs at least 32 images"):
        plan_training(few, quick(), steps=10)


@pytest.mark.parametrize(
    ("pace", "warming", "looks"),
    [(0.01, 0.0, 6), (0.01, 3.0, 2), (1.0, 0.0, 2), (4.0, 0.0, 1)],
    ids=["fast", "slow only at first", "slow", "very slow"],
)
def test_a_trial_tells_the_parts_apart(pace, warming, looks, setup, quick, tmp_path, monkeypatch):
    """A clock of its own: the start takes 2, a step 0.1, a look 0.7 more, and the first look ``warming`` seconds besides.

    What warms up once must not count for every look: it would take the time of all other questions.
    """
    seen = []
    now = [0.0]

    class Clock:
        @staticmethod
        def perf_counter() -> float:
            return now[0]

    def played(setup, plan, folder, *, seed, on_step):
        now[0] += 2.0 * pace
        for done in range(1, plan.steps + 1):
            now[0] += pace * (0.1 + 0.7 * (done % plan.every == 0)) + warming * (done == plan.every)
            seen.append(done % plan.every == 0)
            on_step(done, plan.steps)

    monkeypatch.setattr(training, "time", Clock)
    monkeypatch.setattr(training, "train", played)
    found = training.trial_cost(setup, plan_training(setup, quick(), steps=10), tmp_path, seed=0)
    assert (found.fixed, found.step) == pytest.approx((2.1 * pace + training.REPORTS * 0.7 * pace, 0.1 * pace))
    assert sum(seen) == looks
