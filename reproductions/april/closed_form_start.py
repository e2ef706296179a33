"""Does the closed form's guess help the optimisation on a standard vision transformer, where the theorem does not hold?

    python -m reproductions.april.closed_form_start [--quick] [--steps 800] [--device cuda]

The paper's small model (architecture B: 28×28, patch 7, width 384, 4 blocks, 4 heads, untrained) with positions of scale 1 and
0.02, five Fashion-MNIST images of five classes, ``april`` from four starts: N(0, 1) (the paper's), grey, the closed form solved
although its condition fails, and the same with a ridge. Start and end are compared with the truth here, outside the attack.
``--quick``: one image, 20 steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from leakgauge.attacks import april, april_closed_form
from leakgauge.audit.scoring import score
from leakgauge.channels import Gradient
from leakgauge.core import Observation, Pixels, Victim, share
from leakgauge.data.embedded import fashion
from leakgauge.inversion import Constant, Given, Matching, Normal
from leakgauge.models.vit import ViT
from reproductions.common import runner
from reproductions.common.runner import Part, Row, Rows, read, run_part

RESULTS = Path(__file__).parent / "results"
SPACE = Pixels((1, 28, 28))
SPREAD = 0.1
"""Deviation of the noise added to the closed form's picture, as ``april_from_closed_form`` adds it."""


def small_model(position_std: float) -> ViT:
    return ViT(
        side=28, patch=7, width=384, depth=4, heads=4, qkv_bias=False, final_norm=False, position_std=position_std
    )


def begun(name: str, attack: Matching, victim: Victim, seen: Observation) -> Matching:
    """The attack with the named start."""
    if name == "normal":
        return replace(attack, start=Normal())
    if name == "grey":
        return replace(attack, start=Constant(0.5))
    guess = april_closed_form(ridge="auto" if name == "closed form, ridge" else None, force=True)(victim, seen)
    return replace(attack, start=Given(guess.x[0].cpu(), SPREAD))


STARTS = ("normal", "grey", "closed form", "closed form, ridge")


@dataclass(frozen=True, kw_only=True)
class Options(runner.Options):
    steps: int = 800
    positions: tuple[float, ...] = (1.0, 0.02)


def run(options: Options, results: Rows) -> None:
    steps = 20 if options.quick else options.steps
    pictures, labels = fashion("test")
    for position_std, number in ((std, i) for std in options.positions for i in range(1 if options.quick else 5)):
        victim = Victim(small_model(position_std).to(options.device), SPACE)
        x, y = (t[number : number + 1].to(options.device) for t in (pictures, labels))
        seen = share(victim, Gradient(), x, y)
        for name in STARTS:
            unit = f"positions {position_std:g}, image {number}, {name}"
            if results.has(unit):
                continue
            result = begun(name, april(steps=steps), victim, seen)(victim, seen, seed=options.seed)
            row: Row = {"position_std": position_std, "image": number, "start": name}
            for when, picture in (("start", result.trace.snapshots[0].to(options.device)), ("end", result.x)):
                scores = score(replace(result, x=picture), x, y, space=SPACE)
                row[f"{when}_mse"], row[f"{when}_ssim"] = round(scores.mse[0], 6), round(scores.ssim[0], 4)
            results.add(unit, {**row, "steps": steps, "loss": result.loss})


def table(rows: Sequence[Row]) -> Iterator[str]:
    columns = ("start_mse", "start_ssim", "end_mse", "end_ssim")
    for position_std in dict.fromkeys(row["position_std"] for row in rows):
        for name in STARTS:
            own = [r for r in rows if (r["position_std"], r["start"]) == (position_std, name)]
            mean = {c: round(sum(r[c] for r in own) / len(own), 4) for c in columns}
            yield f"positions {position_std:g}, {name} ({len(own)} runs): {mean}"


def main() -> None:
    parser = runner.parser(__doc__, out=RESULTS)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--positions", type=float, nargs="+", default=[1.0, 0.02], help="scales of the positions")
    given = parser.parse_args()
    options = Options.of(given, steps=given.steps, positions=tuple(given.positions))
    print("\n".join(table(read(run_part(Part("closed_form_start", run), options).path))))


if __name__ == "__main__":
    main()
