"""Results of a part: one JSON line for each case, written as soon as it is there, and pictures beside them."""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.errors import BadInput

Row = dict[str, Any]
Pictures = dict[str, np.ndarray]
SHOWN = 112
"""Largest side of a kept picture."""


class NoTimeLeft(Exception):
    """A part stops: before a case, or in one that turns out to take longer than there is time."""


@dataclass
class Ledger:
    """``NAME.jsonl`` and ``NAME.npz`` in a folder. A case that has a line is not measured again."""

    folder: Path
    name: str
    facts: Row
    rows: list[Row] = field(default_factory=list)
    pictures: Pictures = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.path.is_file():
            before, rows = read(self.path)
            if all(before[key] == self.facts[key] for key in ("quick", "seed")):
                self.rows, self.pictures = rows, load(self.path.with_suffix(".npz"))
            elif not before["quick"] and rows:  # a run with other settings is no earlier part of this one
                raise BadInput(
                    f"{self.path} holds full-size results with seed {before['seed']}, which a run with other settings would replace; "
                    "give it another folder with --out"
                )
        part = self.path.with_suffix(".part")  # whoever is killed now has lost nothing
        part.write_text("".join(line(row) for row in [self.facts, *self.rows]), encoding="utf-8")
        part.replace(self.path)

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.jsonl"

    def has(self, case: str) -> bool:
        return any(row["case"] == case for row in self.rows)

    def add(self, case: str, **values: Any) -> None:
        row = _plain({"case": case, **values})
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line(row))
        shown = {key: value for key, value in row.items() if not isinstance(value, list | dict)}
        print(json.dumps(shown, ensure_ascii=False), flush=True)

    @contextmanager
    def attempt(self, case: str) -> Iterator[None]:
        """One case. What goes wrong in it is printed and remembered, and the cases after it still run; it gets no line."""
        try:
            yield
        except NoTimeLeft as stop:
            raise NoTimeLeft(f"{case} is {stop}") from stop
        except Exception:  # noqa: BLE001 - nobody watches: it is printed, the part exits with an error, the next call tries again
            traceback.print_exc()
            self.failed.append(case)

    def keep(self, name: str, images: Tensor) -> None:
        """Images (N, C, H, W) in [0, 1], averaged down where no figure shows them so large.

        To be called before ``add``: a case that has its line is not measured again, so its pictures must be there by then.
        """
        if images.shape[-1] > SHOWN:
            images = F.adaptive_avg_pool2d(images, (SHOWN, SHOWN))
        self.pictures[name] = (images.detach().cpu().clamp(0, 1) * 255).round().byte().numpy()
        part = self.path.with_suffix(".part.npz")
        np.savez_compressed(part, **self.pictures)  # pyright: ignore[reportArgumentType]
        part.replace(self.path.with_suffix(".npz"))


def line(row: Row) -> str:
    """A row as it stands in a results file."""
    return json.dumps(_plain(row), ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    """Five digits that count, tuples as lists, and infinity (the PSNR of a perfect copy) as a number JSON has."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError("a result is not a number; it must not be written down as one")
        return float(f"{value:.5g}") if math.isfinite(value) else math.copysign(999.0, value)
    return value


def read(path: Path) -> tuple[Row, list[Row]]:
    """What a results file says about its run, and its rows; a last line that was cut off by a kill is left out."""
    lines = path.read_text(encoding="utf-8").splitlines()
    whole = [json.loads(line) for line in lines[:-1]]
    try:
        whole.append(json.loads(lines[-1]))
    except json.JSONDecodeError:
        if not whole:
            raise
    return whole[0], whole[1:]


def load(path: Path) -> Pictures:
    if not path.is_file():
        return {}
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def device_facts(device: torch.device) -> Row:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"device": name, "torch": torch.__version__}


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def pieces(row: Row) -> str:
    """How well the patches fit in whatever order, and their lead where there were images enough; nothing without patches."""
    found, lead = row["attack"].get("pieces"), row["attack"].get("pieces_lead")
    return "" if not found else f"{mean(found):.2f}" + (f" ({mean(lead):+.2f})" if lead else "")


def layouts(row: Row) -> str:
    """Of the adversary's choice, and of the null run where it was measured."""
    null = row["null"].get("layout")
    return f"{mean(row['attack']['layout']):.2f}" + ("" if null is None else f" ({mean(null):.2f})")
