"""Table 1 at settings that its grid did not have: DLG at a rate of 0.3, and APRIL with its position term at other weights α.

    python -m reproductions.april.table1_settings [--data-set mnist] --data FOLDER

At α = 1 the term is about 1/‖g‖² of the objective and changes nothing. Here α takes 1, 100, 10,000, and ‖g‖² of each image, so both terms
weigh the same. DLG and iDLG (the same with the label read) run on all images of the table, the weights on the first 100.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakgauge.attacks.april import PositionEmbedding, april
from leakgauge.inversion import L2, Adam, Cosine, CosineDecay, Descent, Joint, Matching, Steady
from leakgauge.inversion.solvers import Schedule
from leakgauge.inversion.terms import Candidate, Term
from leakgauge.measures.image import mse, ssim
from reproductions.april import study, table1
from reproductions.april.study import Options
from reproductions.common import runner
from reproductions.common.runner import Part, Row, Rows, read, rounded, run_part

ALPHAS: tuple[float | Literal["‖g‖²"], ...] = (1.0, 1e2, 1e4, "‖g‖²")
SETS = ("mnist", "cifar10")
BEST: dict[str, tuple[float, Schedule]] = {"mnist": (0.1, Steady()), "cifar10": (0.3, CosineDecay())}
"""The rate that Table 1 chose for APRIL on each data set; the weights α are compared at that rate."""


@dataclass(frozen=True)
class Cell:
    """One attack on the first ``images`` of a data set."""

    attack: str
    images: int
    rate: float
    schedule: Schedule
    alpha: float | Literal["‖g‖²"] | None = None

    def unit(self, data_set: str) -> str:
        return f"{data_set} {self.attack}, rate {self.rate:g}" + ("" if self.alpha is None else f", α = {self.alpha}")

    def matching(self, steps: int) -> Matching:
        ours = april(steps=steps, alpha=self.alpha if isinstance(self.alpha, float) else 1.0)
        if self.alpha == "‖g‖²":
            ours = replace(ours, objective=L2() + TimesSquare(Cosine(weights=PositionEmbedding())))
        if self.alpha is None:
            ours = replace(ours, objective=L2(), name=self.attack)
        if self.attack == "dlg":
            ours = replace(ours, labels=Joint())
        return replace(ours, solver=Descent(Adam(self.rate), steps, schedule=self.schedule, project=False))


def cells(data_set: str, count: int) -> list[Cell]:
    rate, schedule = BEST[data_set]
    return [
        *(Cell(name, count, 0.3, Steady()) for name in ("dlg", "idlg")),
        *(Cell("april", min(100, count), rate, schedule, alpha) for alpha in ALPHAS),
    ]


@dataclass(frozen=True)
class TimesSquare(Term):
    """‖g‖² of the observed gradient times ``term``, for each image its own."""

    term: Term
    reads_signal: ClassVar[bool] = True

    def __call__(self, at: Candidate, /) -> Tensor:
        replay = at.require_replay()
        return replay.observed_square(dict.fromkeys(replay.names, 1.0)) * self.term(at)


def run(options: Options, results: Rows, *, sets: Sequence[str] = SETS) -> None:
    for data_set in sets:
        kind = table1.DATA_SETS[data_set]
        images, _ = table1.split(kind, options)
        victim, _ = table1.attacked(kind, images, options)
        for cell in cells(data_set, len(images.x)):
            unit, began = cell.unit(data_set), time.perf_counter()
            if results.has(unit):
                continue
            if not options.allows(table1.SET_UP):
                results.wait(unit)
                continue
            own = images.first(cell.images)
            pieces = [study.observed(victim, own)[i : i + kind.piece] for i in range(0, len(own.x), kind.piece)]
            steps = options.steps(kind.steps)
            found = [one for seen in pieces for one in cell.matching(steps).many(victim, seen, seed=options.seed)]
            guesses = table1.pictures_of(found, victim)
            errors, alike = mse(guesses, own.x), ssim(guesses, own.x)
            results.add(
                unit,
                data_set=data_set,
                attack=cell.attack,
                labels="optimised" if cell.attack == "dlg" else "read",
                alpha=cell.alpha,
                images=len(own.x),
                steps=steps,
                mse=float(errors.mean()),
                mse_median=float(errors.median()),
                ssim=float(alike.mean()),
                each_mse=rounded(errors.tolist()),
                each_ssim=rounded(alike.tolist()),
                seconds=round(time.perf_counter() - began, 1),
            )
    for data_set in SETS:
        missing = [c.unit(data_set) for c in cells(data_set, options.count(500)) if not results.has(c.unit(data_set))]
        if missing and data_set not in sets:
            results.wait(", ".join(missing))


def table(rows: list[Row]) -> str:
    """Beside each attack on how many images it is closer than one of Table 1, and each weight α than α = 1."""
    before = {(r["data_set"], r["attack"]): table1.errors_of(r) for r in read(study.RESULTS / "table1.jsonl")}
    lines = [
        "| data | attack | label | α | images | MSE | median | MSE on standardised images | SSIM | closer, by image |",
        "|---|" + "---|" * 9,
    ]
    for r in sorted(rows, key=lambda r: (SETS.index(r["data_set"]), r["alpha"] is not None)):
        own, data_set = torch.tensor(r["each_mse"]), r["data_set"]
        if r["alpha"] is None:
            others = {"than Inverting Gradients on": before[data_set, "ig"], "than TAG on": before[data_set, "tag"]}
        else:
            plain = next(o for o in rows if o["data_set"] == data_set and o["alpha"] == 1.0)
            others = {"than α = 1 on": torch.tensor(plain["each_mse"])} if r["alpha"] != 1.0 else {}
        words = "; ".join(f"{name} {table1.closer(own, other)}" for name, other in others.items())
        weight = r["alpha"] if isinstance(r["alpha"], str) else "–" if r["alpha"] is None else f"{r['alpha']:g}"
        lines.append(
            f"| {table1.OF[data_set]} | {r['unit'].split(' ', 1)[1].split(', α')[0]} | {r['labels']} | {weight} | {r['images']} "
            f"| {r['mse']:.1e} | {own.median():.1e} | {table1.standardised(data_set, own):.2g} | {r['ssim']:.4f} | {words} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = runner.parser(__doc__, out=study.RESULTS)
    parser.add_argument("--data-set", choices=SETS, help="only this one")
    parser.add_argument("--images", type=int, help="how many images, instead of those of the table")
    given = parser.parse_args()
    sets = (given.data_set,) if given.data_set else SETS
    part = Part[Options]("table1_settings", lambda options, results: run(options, results, sets=sets))
    run_part(part, Options.of(given, images=given.images))


if __name__ == "__main__":
    main()
