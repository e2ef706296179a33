"""Disks that are full, for a while or for good: nothing dies without a word, and what can be kept is kept."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest
import torch
from torch import nn

from leakgauge.audit.questions import training
from leakgauge.audit.questions.training import Recording, Settings
from leakgauge.core import Pixels, Victim
from leakgauge.errors import CannotWrite
from leakgauge.split import cache

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def tiny(tmp_path):
    """A file system of half a MiB."""
    place = tmp_path / "tiny"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=512k", "leakgauge-test", str(place)]
    if os.geteuid() != 0 or subprocess.run(words, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a small file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def features(folder):
    victim = Victim(nn.Sequential(nn.Flatten(), nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 2)), Pixels((1, 8, 8)))
    return cache.cache_features(victim, torch.rand(200, 1, 8, 8), ["1"], folder=folder)


def test_features_that_do_not_fit_are_an_error_and_not_a_signal(tiny):
    with pytest.raises(CannotWrite, match="No space left"):
        features(tiny / "features")
    assert list((tiny / "features").iterdir()) == []


def test_the_room_for_features_is_taken_before_they_are_computed(tmp_path, monkeypatch):
    def full(*_):
        raise FULL

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(cache, "_fill", lambda *_: pytest.fail("computed first"))
    with pytest.raises(CannotWrite, match="No space left"):
        features(tmp_path / "features")


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A training of 12 steps with a report after each; writing fails from look ``first`` until ``last``."""

    def run(first: int, last: int) -> Recording:
        real, calls = training.STORE.append, []

        def append(self, folder, item):
            calls.append(item)
            if first <= len(calls) < last:
                raise CannotWrite(*FULL.args, "monitor.jsonl")
            real(folder, item)

        monkeypatch.setattr(type(training.STORE), "append", append)
        torch.manual_seed(0)
        model, settings = nn.Linear(4, 3), Settings(every=1, view="raw", seed=0, command="")
        optimizer, criterion = torch.optim.SGD(model.parameters(), 0.1), nn.CrossEntropyLoss()
        recording = Recording(tmp_path, settings)
        recording.attach(model, optimizer, criterion)
        for _ in range(12):
            optimizer.zero_grad()
            criterion(model(torch.rand(4, 4)), torch.randint(3, (4,))).backward()
            optimizer.step()
        return recording

    return run


def lines(folder) -> list[int]:
    return [report["step"] for report in training.read(folder).reports]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", [1, 4])
def test_a_monitor_keeps_what_it_could_not_write(tmp_path, recorded, first):
    undisturbed = recorded(0, 0)
    undisturbed.finish("finished")
    expected = lines(tmp_path)
    (tmp_path / training.FILE).unlink()
    recorded(first, first + 5).finish("finished")
    assert lines(tmp_path) == expected
    found = training.read(tmp_path)
    assert found.end["how"] == "finished"
    assert found.about["model"] == "Linear"


@pytest.mark.filterwarnings("ignore")
def test_a_disk_that_stays_full_is_told_at_the_end(tmp_path, recorded):
    recording = recorded(4, 10**6)
    with pytest.raises(CannotWrite, match="No space left"):
        recording.finish("finished")
    assert len(lines(tmp_path)) == 2  # what was there before
