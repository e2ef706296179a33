"""Reports go to the file as they come; those who show them get a history of bounded length."""

from __future__ import annotations

import errno

import pytest
import torch
from torch import nn

from leakgauge.audit.questions import training
from leakgauge.cli.monitor.training import read_paper, train
from leakgauge.errors import CannotWrite
from leakgauge.monitor.paper import PaperSchedule


def steps_of(folder) -> list[int]:
    return [report["step"] for report in training.read(folder).reports]


def test_every_report_is_on_disk_before_the_next_step(recording):
    made, seen = recording(every=5)
    train(made, steps=23, seed=0)
    assert steps_of(made.folder) == [5, 10, 15, 20]  # although nobody has finished it
    assert training.read(made.folder).end == {}
    assert [len(run.reports) for run in seen] == [0, 1, 2, 3, 4]
    made.finish("finished")
    assert steps_of(made.folder) == [5, 10, 15, 20, 23]
    assert made.text.startswith("leakgauge monitor, 23 steps")


def test_a_seed_makes_the_same_run(recording, tmp_path):
    found = []
    for _ in range(2):
        made, _ = recording()
        train(made, steps=40, seed=3)
        made.finish("finished")
        found.append(training.read(made.folder).reports)
        (made.folder / training.FILE).unlink()
    assert found[0] == found[1]


def test_a_training_shorter_than_a_report_has_one(recording):
    made, _ = recording(every=50)
    train(made, steps=3, seed=0)
    made.finish("finished")
    assert steps_of(made.folder) == [3]


def test_a_full_disk_does_not_end_the_training_but_is_told(recording, monkeypatch):
    made, seen = recording(every=5)
    model, criterion = nn.Linear(4, 2), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made.attach(model, optimizer, criterion)

    def full(*_):
        raise CannotWrite(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(type(training.STORE), "append", full)
    rng = torch.Generator().manual_seed(0)
    for _ in range(20):
        optimizer.zero_grad()
        criterion(model(torch.randn(6, 4, generator=rng)), torch.tensor([0, 1] * 3)).backward()
        optimizer.step()
    assert len(seen[-1].reports) == 4
    with pytest.raises(OSError, match="No space left"):
        made.finish("finished")


def test_nothing_is_written_where_nothing_was_attached(recording):
    made, seen = recording()
    made.finish("failed", "no step")
    assert not training.exists(made.folder)
    assert seen == []


def test_the_papers_measure_is_recorded_with_its_controls(recording):
    made, seen = recording()
    train(made, steps=12, seed=0)
    quick = PaperSchedule(sub_epochs=1, iterations=4, batch=8, checkpoints=(0, 1), evaluation=2)
    read_paper(made, seed=0, schedule=quick)
    made.finish("finished")
    first, second = training.read(made.folder).paper
    assert (first["sub_epoch"], second["sub_epoch"], second["reading"]) == (0, 1, "once")
    assert first["collected"] is None  # nothing was collected before the first step
    assert all(isinstance(second[key], float) for key in ("paper", "collected", "decoy", "null", "held_out"))
    assert seen[-1].paper == (first, second)
    assert len(seen[-1].reports) == 2
