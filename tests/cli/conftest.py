"""Runs the command line in this process, and makes what a user would have lying around."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image

from leakgauge import cli

MODEL = '''
from pathlib import Path

import torch
from torch import nn

from leakgauge.core import Pixels

torch.manual_seed(0)


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 12), nn.Sigmoid(), nn.Linear(12, 3))


def sized():
    return make(), Pixels((3, 8, 8))


def liar():
    return make(), Pixels((3, 9, 9))


def number():
    return 3


def broken():
    raise RuntimeError("no weights here")


class Poisoned(nn.Sequential):
    def forward(self, x):
        return super().forward(x) * torch.nan


def nan():
    return Poisoned(*make())


class Interrupting(nn.Sequential):
    """Ctrl-C is pressed in the middle of the second case."""

    calls = 0

    def forward(self, x):
        if len(x) == 4 and Path("run/records.jsonl").exists():
            raise KeyboardInterrupt
        return super().forward(x)


def interrupted():
    return Interrupting(*make())


class Impatient(nn.Sequential):
    """Ctrl-C is pressed while the plan is made, unless there is a file that says to go on."""

    def forward(self, x):
        if Path("run/plan.json").exists() and not Path("go_on").exists():
            raise KeyboardInterrupt
        return super().forward(x)


def impatient():
    return Impatient(*make()), Pixels((3, 8, 8))
'''


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """What a user's mistake must look like: one sentence on stderr, exit code 2, no traceback."""
        assert self.code == 2, self
        lines = self.err.strip().splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("leakgauge: ")
        assert "Traceback" not in self.err + self.out
        return lines[0]


@pytest.fixture
def leakgauge(monkeypatch, capsys, tmp_path):
    """``leakgauge("audit", "--seed", 3)`` with a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words) -> Said:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["leakgauge", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        return Said(left.value.code, said.out, said.err)

    return run


@pytest.fixture
def model(tmp_path):
    (tmp_path / "my_model.py").write_text(MODEL)
    return "my_model.py"


@pytest.fixture
def picture(tmp_path):
    """Draws a picture at a path."""

    def draw(path, *, size=(8, 8), seed: int = 0):
        path = tmp_path / path
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        return path

    return draw


@pytest.fixture
def photos(picture):
    """Six pictures of three classes."""
    for i in range(6):
        picture(f"photos/class{i % 3}/{i}.png", seed=i)
    return "photos"
