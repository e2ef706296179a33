"""A cell of Table 1, one attack on the images of one data set: settings are tried, images attacked in pieces, what is done is kept."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from leakgauge.attacks import april, inverting_gradients, tag
from leakgauge.core import Reconstruction, Victim
from leakgauge.engine import Precision
from leakgauge.inversion import L2, Adam, AdamW, CosineDecay, Descent, Joint, Matching, Steady
from leakgauge.inversion.solvers import Schedule
from leakgauge.measures.image import downscale, mse, ssim
from reproductions.april import study
from reproductions.april.pieces import Clock, Pieces, alone, longest
from reproductions.april.resumable import Resumable
from reproductions.april.side_by_side import RowPaces
from reproductions.april.study import Images, Options, Row

SHOWN = 10
SET_UP = 20.0
"""Seconds that must be left for a piece to begin: a process loads, the replay is proven and recorded. The piece itself goes on later."""


@dataclass(frozen=True)
class DataSet:
    """Where a row's images come from, how many, for how many steps, against which model.

    ``piece`` images are attacked at once. Settings are tried on ``tried`` other images with a ``shorter``th of the steps.
    """

    images: Callable[[Options, int], Images]
    count: int
    steps: int
    model: study.Make
    precision: Precision
    epochs: int = 0
    piece: int = 250
    tried: int = 8
    shorter: int = 4


@dataclass(frozen=True)
class Setting:
    """What is chosen for an attack: the learning rate and how it falls; the weight of the total variation (IG alone)."""

    lr: float
    schedule: Schedule = field(default_factory=Steady)
    tv: float = 0.0


SETTINGS: dict[str, list[Setting]] = {"ig": [Setting(0.1, tv=tv) for tv in (0.1, 0.01, 0.001)]} | {
    name: [Setting(0.1), *(Setting(lr, CosineDecay()) for lr in (0.03, 0.1, 0.3))] for name in ("dlg", "tag", "april")
}


def attack_of(name: str, steps: int, setting: Setting) -> Matching:
    """The four attacks of the table. DLG with Adam, as the paper says, not with its own L-BFGS."""
    if name == "ig":
        return inverting_gradients(steps=steps, lr=setting.lr, tv=setting.tv)
    ours = april(steps=steps)
    recipe = {
        "april": ours,
        "dlg": replace(ours, objective=L2(), labels=Joint(), name="dlg with Adam"),
        "tag": tag(steps=steps),
    }[name]
    optimizer = AdamW(setting.lr) if name == "tag" else Adam(setting.lr)
    return replace(recipe, solver=Descent(optimizer, steps, schedule=setting.schedule, project=False))


def pictures(found: Sequence[Reconstruction], victim: Victim) -> Tensor:
    return victim.space.decode(torch.cat([one.x for one in found])).cpu()


@dataclass(frozen=True)
class Cell:
    """What one attack on one data set needs, and where its parts are kept."""

    data_set: str
    attack: str
    kind: DataSet
    victim: Victim
    table: Images
    own: Images
    options: Options
    pieces: Pieces
    clock: Clock

    @property
    def key(self) -> Row:
        return {"data_set": self.data_set, "attack": self.attack, "of_images": len(self.table.x)}

    @property
    def steps(self) -> int:
        return self.options.steps(self.kind.steps)

    def matching(self, steps: int, setting: Setting) -> Matching:
        return replace(attack_of(self.attack, steps, setting), precision=self.kind.precision)

    def late(self, part: str, seconds: float) -> bool:
        """Whether there are fewer seconds left, which is said."""
        if self.clock.allows(seconds):
            return False
        print(f"{self.data_set} {self.attack}: no time for a {part}", flush=True)
        return True

    def tuned(self) -> list[Row] | None:
        """Mean error of every setting on images of the adversary's own, with fewer steps; None where there was no time for all."""
        settings = SETTINGS[self.attack][: 2 if self.options.quick else None]
        before = self.pieces.done(part="setting", data_set=self.data_set)
        own = {row["setting"]: row for row in before if row["attack"] == self.attack and self._is_mine(row)}
        missing = [setting for setting in settings if repr(setting) not in own]
        together = self.attack != "ig"  # IG's settings differ in what is minimised
        for group in filter(None, [missing] if together else [[one] for one in missing]):
            amount = len(group) * len(self.own.x)
            if self.late("setting", max(SET_UP, longest(list(own.values()) or before, amount))):
                return None
            began = time.perf_counter()
            errors = self.tried(group)
            seconds = (time.perf_counter() - began) / len(group)
            for setting, error in zip(group, errors, strict=True):
                own[repr(setting)] = self.pieces.add(
                    part="setting", setting=repr(setting), mse=float(f"{error:.4g}"), amount=len(self.own.x),
                    seconds=round(seconds, 1), **self.key,
                )  # fmt: skip
        return [own[repr(setting)] for setting in settings]

    def tried(self, settings: Sequence[Setting]) -> list[float]:
        """The mean error of each setting; several learn side by side, from the same starts."""
        attack = self.matching(max(1, self.steps // self.kind.shorter), settings[0])
        seen = study.observed(self.victim, self.own)
        if len(settings) > 1:
            assert isinstance(attack.solver, Descent)
            assert isinstance(attack.solver.optimizer, Adam | AdamW)
            paces = RowPaces(attack.solver.optimizer, [(s.lr, s.schedule) for s in settings for _ in seen])
            attack = replace(attack, solver=replace(attack.solver, optimizer=paces, schedule=paces))
        found = attack.many(self.victim, [one for _ in settings for one in seen], seed=self.options.seed)
        errors = mse(pictures(found, self.victim), self.own.x.repeat(len(settings), 1, 1, 1))
        return errors.view(len(settings), -1).mean(1).tolist()

    def _is_mine(self, row: Row) -> bool:
        return all(row.get(key) == value for key, value in self.key.items())

    def piece(self, first: int, images: Images, setting: Setting) -> Tensor | None:
        """Attacks some of the images and keeps what was found about each of them; returns the pictures, or None if time ran out."""
        attack = self.matching(self.steps, setting)
        assert isinstance(attack.solver, Descent)
        name = self.name(first)
        key = self.pieces.run | self.key | {"first": first, "setting": repr(setting), "steps": self.steps}
        solver = Resumable(attack.solver, self.options.out / name, self.clock, key)
        began = time.perf_counter()
        seen = study.observed(self.victim, images)
        found = replace(attack, solver=solver).many(self.victim, seen, seed=self.options.seed)
        seconds = solver.seconds_before + time.perf_counter() - began
        if solver.reached < solver.steps:
            print(f"{name}: {solver.reached} of {solver.steps} steps, to go on later", flush=True)
            return None
        guesses = pictures(found, self.victim)
        right = [int(one.y[0]) == int(y) for one, y in zip(found, images.y, strict=True) if one.y is not None]
        self.pieces.add(
            part="piece", first=first, amount=len(images.x), seconds=round(seconds, 2), right=right, notes=found[0].notes,
            each_mse=digits_that_count(mse(guesses, images.x)), each_ssim=digits_that_count(ssim(guesses, images.x)),
            each_ssim_reduced=at_reduced_size(guesses, images.x),
            attack_settings=f"{attack.objective!r}; {attack.solver!r}", device=study.device_name(self.options.device),
            **self.key,
        )  # fmt: skip
        solver.forget()
        return guesses

    def done(self) -> dict[int, tuple[Row, int]]:
        """For each image that has been attacked the piece that tells about it, and where in it."""
        parts = sorted(self.pieces.done(part="piece", **self.key), key=lambda row: row["first"])
        return {part["first"] + n: (part, n) for part in parts for n in range(part["amount"])}

    def missing(self) -> list[int]:
        done = self.done()
        return [i for i in range(len(self.table.x)) if i not in done]

    def advance(self, size: int) -> tuple[int, Tensor] | None:
        """One more piece, after the settings were tried: its first image and its pictures, or None if nothing was done."""
        missing = self.missing()
        if not missing:
            return None
        tried = self.tuned()
        if tried is None or self.late("piece", SET_UP):
            return None
        best = min(range(len(tried)), key=lambda i: tried[i]["mse"])
        first = missing[0]
        size = self.begun(first) or size
        last = next((i for i in range(first, first + size) if i not in missing), first + size)
        images = replace(self.table, x=self.table.x[first:last], y=self.table.y[first:last])
        found = self.piece(first, images, SETTINGS[self.attack][best])
        return None if found is None else (first, found)

    def begun(self, first: int) -> int | None:
        """How many images the piece has that was stopped here, if one was: it goes on as it began."""
        state = self.options.out / f"{self.name(first)}.0.pt"
        if not state.is_file():
            return None
        return len(torch.load(state, map_location="cpu", weights_only=True)["at"][0])

    def name(self, first: int) -> str:
        return f"table1_{self.data_set}_{self.attack}_{first}"

    def row(self) -> Row:
        """The cell's row from the pieces that are done: ``images`` of the ``wanted`` ones, which ``which`` names."""
        tried, done = self.tuned(), self.done()
        assert tried is not None
        which = sorted(done)
        each = [done[i] for i in which]
        parts = list({part["first"]: part for part, _ in each}.values())
        errors, alike = (torch.tensor([part[key][n] for part, n in each]) for key in ("each_mse", "each_ssim"))
        right = [part["right"][n] for part, n in each if part["right"]]
        smaller = [(part.get("each_ssim_reduced") or {n: None})[n] for part, n in each]
        return {
            "data_set": self.data_set, "attack": self.attack, "images": len(each), "wanted": len(self.table.x),
            "of": self.table.name, "steps": self.steps, "model": "trained" if self.kind.epochs else "untrained",
            "mse": float(errors.mean()), "mse_sd": spread(errors), "mse_median": float(errors.median()),
            "ssim": float(alike.mean()), "ssim_sd": spread(alike), "ssim_median": float(alike.median()),
            "label_accuracy": sum(right) / len(right) if right else None,
            "attack_settings": parts[0]["attack_settings"],
            "tried": [{key: one[key] for key in ("setting", "mse")} for one in tried], "notes": parts[0]["notes"],
            "pieces": len(parts), "seconds": round(sum(part["seconds"] for part in parts), 1),
            "seconds_tuning": round(sum(one["seconds"] for one in tried), 1),
            "device": ", ".join(sorted({part["device"] for part in parts})), "which": which,
            "each_mse": study.rounded(errors.tolist()), "each_ssim": study.rounded(alike.tolist()),
            "each_right": right or None, "each_ssim_reduced": smaller if None not in smaller else None,
        }  # fmt: skip


def spread(values: Tensor) -> float:
    """Standard deviation; of a single value 0."""
    return float(values.std()) if len(values) > 1 else 0.0


def digits_that_count(values: Tensor) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]


def at_reduced_size(guesses: Tensor, truths: Tensor) -> list[float] | None:
    """SSIM of images averaged down to at most 64 pixels a side, where they are larger."""
    guess, truth = downscale(guesses), downscale(truths)
    return None if guess is None or truth is None else digits_that_count(ssim(guess, truth))


def whole(row: Row) -> bool:
    """Whether a row tells of all images that it should; those of early runs always do."""
    return row["images"] == row.get("wanted", row["images"])


@dataclass(frozen=True)
class Table:
    """``table1.jsonl`` and ``table1.npz`` in a folder, to which several processes may add. ``cells`` are those of a complete table."""

    folder: Path
    facts: Row
    cells: Sequence[tuple[str, str]]

    @property
    def path(self) -> Path:
        return self.folder / "table1.jsonl"

    def rows(self) -> list[Row]:
        if not self.path.is_file():
            return []
        before, rows = study.read(self.path)
        if any(before[key] != self.facts[key] for key in ("quick", "seed")):
            sys.exit(f"{self.path} comes from a run with another seed or size; give another folder with --out")
        return rows

    def has(self, data_set: str, attack: str) -> bool:
        return any((row["data_set"], row["attack"]) == (data_set, attack) and whole(row) for row in self.rows())

    def put(self, row: Row) -> None:
        """Adds the row, or puts it in the place of one that told of fewer images."""
        with alone(self.folder / "table1.lock"):
            cell = (row["data_set"], row["attack"])
            rows = [*(old for old in self.rows() if (old["data_set"], old["attack"]) != cell), row]
            done = {(row["data_set"], row["attack"]) for row in rows if whole(row)}
            seconds = round(sum(row["seconds"] + row["seconds_tuning"] for row in rows), 1)
            complete = all(cell in done for cell in self.cells)
            study.write(self.path, [self.facts | {"complete": complete, "seconds": seconds}, *rows])

    def keep(self, name: str, first: int, images: Tensor) -> None:
        """The first pictures of a cell; the others are not shown."""
        if first == 0:
            with alone(self.folder / "table1.lock"):
                shown = (images[:SHOWN].clamp(0, 1) * 255).round().byte().numpy()
                study.save(self.folder / "table1.npz", study.load(self.folder / "table1.npz") | {name: shown})
