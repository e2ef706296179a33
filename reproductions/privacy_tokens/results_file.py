"""Results that survive a stop: rows are written after every unit of work, and units that are there are not done again."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reproductions.common.runner import provenance, save_weights

Row = dict[str, Any]


@dataclass
class Results:
    """One part's rows (``NAME.jsonl``, first line: facts of the run) and pictures (``NAME.npz``), each row with its unit."""

    folder: Path
    name: str
    facts: Row
    rows: list[Row] = field(default_factory=list)
    pictures: dict[str, np.ndarray] = field(default_factory=dict)
    _began: float = field(default_factory=time.perf_counter)

    @classmethod
    def resumed(cls, folder: Path, name: str, *, seed: int, quick: bool, device: torch.device) -> Results:
        """Goes on with what is there from a run of the same seed and size; anything else is begun anew."""
        facts: Row = {"part": name, **provenance(device, seed=seed, quick=quick), "complete": False, "seconds": 0.0}
        folder.mkdir(parents=True, exist_ok=True)
        made = cls(folder, name, facts)
        if made.path.is_file():
            before, rows = read(made.path)
            if (before["seed"], before["quick"]) == (seed, quick):
                facts["seconds"] = before["seconds"]
                made.rows, made.pictures = rows, load(folder / f"{name}.npz")
        return made

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.jsonl"

    def has(self, unit: str) -> bool:
        return any(row["unit"] == unit for row in self.rows)

    def add(self, unit: str, *rows: Row, pictures: dict[str, Tensor] | None = None) -> None:
        """Adds all rows of a unit at once and writes everything; each row says where it was made."""
        made = {key: self.facts[key] for key in ("device", "torch", "seed", "commit")}
        self.rows += [{"unit": unit, **made, **row} for row in rows]
        for name, images in (pictures or {}).items():
            self.pictures[name] = (images.detach().cpu().clamp(0, 1) * 255).round().byte().numpy()
        self.write()
        print(f"{self.name}: {unit} after {time.perf_counter() - self._began:.1f} s", flush=True)

    def save(self, name: str, model: nn.Module, *, half: bool = False) -> None:
        """Weights of a network, for later measurements."""
        save_weights(self.folder / "weights" / self.name / f"{name}.safetensors", model, half=half)

    def finish(self) -> None:
        self.write(complete=True)

    def write(self, *, complete: bool = False) -> None:
        spent = self.facts["seconds"] + time.perf_counter() - self._began
        facts = self.facts | {"complete": complete, "seconds": round(spent, 1)}
        part = self.path.with_suffix(".part")
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in [facts, *self.rows])
        part.write_text(text, encoding="utf-8")
        part.replace(self.path)
        if self.pictures:
            part = self.folder / f"{self.name}.part.npz"
            np.savez_compressed(part, **self.pictures)  # pyright: ignore[reportArgumentType]
            part.replace(self.folder / f"{self.name}.npz")


def read(path: Path) -> tuple[Row, list[Row]]:
    """What a file says about its run, and its rows."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return lines[0], lines[1:]


def load(path: Path) -> dict[str, np.ndarray]:
    """The pictures of a part; none where the file is not there, as in a fresh checkout."""
    if not path.is_file():
        return {}
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def rounded(values: Sequence[float]) -> list[float]:
    """Four digits that count, so that committed files stay small."""
    return [float(f"{value:.4g}") for value in values]
