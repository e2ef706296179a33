"""Results that survive a stop: each row is on disk when it is made, says where it comes from, and is not made twice."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

Row = dict[str, Any]
ROOT = Path(__file__).parents[2]


def provenance(device: torch.device, *, seed: int, quick: bool) -> Row:
    """What every row says about its making: device, torch, seed, commit, and whether it was a quick trial."""
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"device": where, "torch": torch.__version__, "seed": seed, "commit": commit(), "quick": quick}


def commit() -> str:
    """Of the checkout, or of ``REPRODUCTION_COMMIT`` where the scripts were copied without their history."""
    given = os.environ.get("REPRODUCTION_COMMIT")
    if given:
        return given
    try:
        found = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True
        )
    except FileNotFoundError:
        return "unknown"
    return found.stdout.strip() or "unknown"


@dataclass
class Rows:
    """The rows of one part in ``FOLDER/NAME.jsonl``, one line each, with its pictures and weights in folders beside it.

    A row has a ``unit``; units that are there are not done again. Rows of a quick trial are dropped by a full run, never mixed.
    """

    folder: Path
    name: str
    facts: Row
    rows: list[Row] = field(default_factory=list)
    _began: float = field(default_factory=time.perf_counter)

    @classmethod
    def resumed(cls, folder: Path, name: str, *, device: torch.device, seed: int, quick: bool) -> Rows:
        made = cls(folder, name, provenance(device, seed=seed, quick=quick))
        folder.mkdir(parents=True, exist_ok=True)
        if made.path.is_file():
            made.rows = [row for row in read(made.path) if row["quick"] == quick]
            _replaced(made.path, "".join(map(_line, made.rows)))
        return made

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.jsonl"

    def has(self, unit: str, *, seed: int | None = None) -> bool:
        wanted = self.facts["seed"] if seed is None else seed
        return any(row["unit"] == unit and row["seed"] == wanted for row in self.rows)

    def add(self, unit: str, *rows: Row, pictures: dict[str, Tensor] | None = None) -> None:
        """Writes all rows of a unit; pictures (N, C, H, W) in [0, 1] go to ``FOLDER/pictures`` as bytes."""
        for name, images in (pictures or {}).items():
            self.keep(name, images)
        made = [{"unit": unit, **self.facts, **row} for row in rows]
        self.rows += made
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(map(_line, made)))
            file.flush()
            os.fsync(file.fileno())
        print(f"{self.name}: {unit} after {time.perf_counter() - self._began:.1f} s", flush=True)

    def keep(self, name: str, images: Tensor) -> None:
        path = self._file("pictures", name, "npy")
        np.save(path, (images.detach().cpu().clamp(0, 1) * 255).round().byte().numpy())

    def save(self, name: str, model: nn.Module, *, half: bool = False) -> Path:
        """Weights for later parts; in half precision where a large network has to travel."""
        return save_weights(self._file("weights", name, "safetensors"), model, half=half)

    def load(self, name: str, model: nn.Module) -> bool:
        """Fills the model, where these weights were saved before."""
        path = self._file("weights", name, "safetensors")
        if not path.is_file():
            return False
        like = model.state_dict()
        model.load_state_dict({n: t.to(like[n]) for n, t in load_file(path).items()})
        return True

    def _file(self, kind: str, name: str, ending: str) -> Path:
        safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
        path = self.folder / kind / self.name / f"{safe}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def save_weights(path: Path, model: nn.Module, *, half: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = {n: t.detach().cpu().contiguous().clone() for n, t in model.state_dict().items()}
    stored = {n: t.half() if half and t.is_floating_point() else t for n, t in stored.items()}
    save_file(stored, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)
    return path


def read(path: Path) -> list[Row]:
    """All rows of a file; a last line that a stop cut short is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def kept_pictures(folder: Path, name: str) -> dict[str, np.ndarray]:
    """Pictures of a part by file name; none in a fresh checkout, as they are not committed."""
    return {path.stem: np.load(path) for path in sorted((folder / "pictures" / name).glob("*.npy"))}


def rounded(values: Sequence[float]) -> list[float]:
    """Four digits that count."""
    return [float(f"{value:.4g}") for value in values]


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _replaced(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
