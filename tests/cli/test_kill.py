"""An audit that is killed at random moments and resumed gives the same tables as one that is left alone."""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import signal
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import pytest

from leakgauge import cli
from leakgauge.audit import plan
from leakgauge.audit.questions import QUESTIONS, answers
from leakgauge.audit.request import Request

MODEL = """
import torch
from torch import nn
from leakgauge.core import Pixels

def make():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(64, 12), nn.ReLU(),
        nn.Linear(12, 3),
    )
    return model, Pixels((1, 8, 8))
"""
AUDIT = (
    "audit", "small.py:make", "--data", "data.npz", "--mode", "eval", "--batch-size", "1", "--option", "steps=6", "-q",
)  # fmt: skip
SHORT = ("--training-steps", "24", "--epochs", "2")
LONGER = ("--training-steps", "150", "--epochs", "8")
MAY_DIFFER = ("seconds", "peak_bytes", "finished", "started", "planning", "command", "commit")
FILES = (
    "plan.json", "records.jsonl", "monitor.jsonl", "scan.json", "scan.jsonl", "scan_conclusion.json", "defenses.jsonl",
    "questions.jsonl", "explanation.json",
)  # fmt: skip


@pytest.fixture
def place(tmp_path):
    """A folder with a model and 120 images of three classes."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 3
    images = rng.uniform(0, 0.5, (120, 1, 8, 8)) + 0.25 * labels[:, None, None, None] * rng.uniform(0, 1, (1, 1, 8, 8))
    np.savez(tmp_path / "data.npz", images=images.astype(np.float32), labels=labels)
    (tmp_path / "small.py").write_text(MODEL)
    return tmp_path


def started(words, place: Path) -> int:
    """Runs the command line in a process of its own, a copy of this one, which has torch already; returns its id."""
    importlib.import_module("torch.export._trace")  # seconds that every copy would spend
    child = os.fork()
    if child:
        return child
    try:
        os.chdir(place)
        with Path("said.txt").open("ab") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        sys.argv = ["leakgauge", *words]
        # a server of processes that an earlier test started is not a child of this copy
        forkserver._forkserver = forkserver.ForkServer()
        forkserver.ensure_running = forkserver._forkserver.ensure_running
        forkserver.connect_to_new_process = forkserver._forkserver.connect_to_new_process
        forkserver.set_forkserver_preload = forkserver._forkserver.set_forkserver_preload
        cli.main()
    except SystemExit as left:
        os._exit(left.code if isinstance(left.code, int) else 0)
    finally:
        os._exit(99)


def ended(child: int, *, within: float) -> int | None:
    """The exit code; None where the process still ran after so many seconds and was killed."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return None if code == -signal.SIGKILL else code


def tables(folder: Path) -> dict[str, object]:
    """All that the run holds but for seconds, memory, times of day and the commit; pictures as they are."""
    found: dict[str, object] = {p.name: p.read_bytes() for p in folder.glob("pictures/*")}
    for name in (name for name in FILES if (folder / name).exists()):
        text = (folder / name).read_text()
        found[name] = bare([json.loads(part) for part in (text.splitlines() if name.endswith("l") else [text])])
    return found


def bare(value: object) -> object:
    if isinstance(value, dict):
        return {k: bare(v) for k, v in value.items() if k not in MAY_DIFFER}
    if isinstance(value, list):
        return [bare(v) for v in value]
    return re.sub(r", \d+ s$", "", value) if isinstance(value, str) else value


def killed_and_resumed(place: Path, effort: tuple[str, ...], *, kills: int, seed: int) -> list[str]:
    """Kills audits until that was done so often; each of them, once it has ended, must equal the undisturbed one.

    Returns what was under way at each kill: the question, or that there was no plan yet.
    """
    began = time.monotonic()
    assert ended(started([*AUDIT, *effort, "--out", "whole"], place), within=600) == 0, (place / "said.txt").read_text()
    length = time.monotonic() - began
    expected = tables(place / "whole")
    moments, rng, run = list[str](), random.Random(seed), 0
    while len(moments) < kills:
        run += 1
        folder = place / f"cut{run}"
        code = None
        while code is None:
            map_ = effort[-2:] if "--workers" in effort else ()
            again = (
                ["audit", "small.py:make", "--resume", "-q", *map_]
                if (folder / "plan.json").exists()
                else [*AUDIT, *effort]
            )
            patience = rng.uniform(0, 0.5 * length) if len(moments) < kills else 600
            code = ended(started([*again, "--out", folder.name], place), within=patience)
            if code is None:
                moments.append(under_way(folder))
        assert code == 0, (place / "said.txt").read_text()
        found = tables(folder)
        assert found.keys() == expected.keys()
        for name, table in expected.items():
            assert found[name] == table, name
        assert not list(folder.rglob(".*"))  # nothing half-written is left
    return moments


def under_way(folder: Path) -> str:
    if not (folder / "plan.json").exists() or isinstance(plan.read(folder), Request):
        return "planning"
    done = answers.read(folder)
    return next((question for question in QUESTIONS if question not in done), "report")


def test_two_kills(place):
    assert len(killed_and_resumed(place, SHORT, kills=2, seed=1)) == 2


WORKERS = ("--only", "updates", "--option", "restarts=2", "--workers", "2")


def test_a_kill_with_two_workers(place):
    assert len(killed_and_resumed(place, WORKERS, kills=1, seed=3)) == 1


@pytest.mark.slow
def test_a_hundred_kills_with_two_workers(place):
    assert len(killed_and_resumed(place, WORKERS, kills=100, seed=4)) == 100


@pytest.mark.slow
def test_twenty_kills(place):
    moments = killed_and_resumed(place, LONGER, kills=20, seed=2)
    print({moment: moments.count(moment) for moment in moments})
    assert len(set(moments)) >= 3
