"""A whole audit of the user's own model and photographs: the factory is called once in a process, each file read once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from leakgauge.audit import records

MODEL = """
import os
from pathlib import Path

from PIL import Image
from torch import nn

HERE, opened = Path(__file__).parent, Image.open


def note(name):
    with (HERE / name).open("a") as file:
        file.write(f"{os.getpid()}\\n")


def counted(source, *args, **options):
    if Path(source).is_relative_to(HERE / "photos"):  # the report opens pictures of its own
        note("decoded")
    return opened(source, *args, **options)


Image.open = counted


def make():
    note("made")
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(36, 4))
"""
PHOTOS = 80


@pytest.fixture
def audited(tmp_path):
    """Audits the model by the command line and tells how often each process called the factory and read a photograph."""
    rng = np.random.default_rng(0)
    for i in range(PHOTOS):
        path = tmp_path / "photos" / f"class{i % 4}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    (tmp_path / "model.py").write_text(MODEL)

    def run(*words):
        command = [
            sys.executable,
            "-m",
            "leakgauge",
            "audit",
            f"{tmp_path}/model.py:make",
            "--data",
            f"{tmp_path}/photos",
        ]
        command += ["--budget", "1s", "--option", "steps=2", "--training-steps", "16", "--epochs", "1", "-q", *words]
        done = subprocess.run(
            [*command, "--out", str(tmp_path / "run")],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return [Counter((tmp_path / name).read_text().split()) for name in ("made", "decoded")]

    return run


def test_an_audit_loads_once(audited, tmp_path):
    made, decoded = audited()
    assert list(made.values()) == [1]
    assert list(decoded.values()) == [PHOTOS]
    found = records.read(tmp_path / "run")
    assert {record.status for record in found} == {"done"}
    grid = [(record.case.mode, record.case.batch_size) for record in found if record.change is None]
    assert grid == [("train", 1), ("train", 4)]  # the model has no modes


def test_each_worker_loads_once(audited, tmp_path):
    made, decoded = audited("--workers", "2", "--only", "updates", "--mode", "eval", "--batch-size", "1")
    assert list(made.values()) == [1, 1, 1]  # planning, and two workers
    assert list(decoded.values()) == [PHOTOS] * 3
    assert len(records.read(tmp_path / "run")) > 2
