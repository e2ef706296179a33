"""What the parts of this folder share: options, data, victims, the plan of seconds, and how a part is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leakgauge.core import Mode, Space, Victim
from leakgauge.data.embedded import photographs
from reproductions.april.study import Images, taking_turns
from reproductions.common import runner
from reproductions.common.runner import NoTimeLeft, Part, Pictures, Row, Rows, draw_part, run_part
from reproductions.common.sheets import sheets
from reproductions.practical_feasibility.attacking import Effort
from reproductions.practical_feasibility.networks import Network, fill

HERE = Path(__file__).parent
RESULTS = HERE / "results"


@dataclass(frozen=True, kw_only=True)
class Options(runner.Options):
    """``weights`` is the folder of the trained networks; ``scale`` stretches the planned seconds."""

    weights: Path
    scale: float = 1.0
    restarts: int = 8

    def effort(self, seconds: float, *, least: int = 400) -> Effort:
        """8 restarts and two rounds of 4 trials; fewer in quick runs. ``least`` is the fewest steps of a final run."""
        restarts, rounds = (2, 1) if self.quick else (self.restarts, 2)
        return Effort(restarts, rounds, seconds * self.scale, self.quick, least=least, until=self.until)

    def require_time(self, case: str, seconds: float) -> None:
        """Raises ``NoTimeLeft`` where a case would be cut off in its middle; the next call begins with it."""
        if not self.quick and not self.allows(seconds * self.scale):
            raise NoTimeLeft(f"{case} needs {seconds * self.scale:.0f} s, {self.left():.0f} are left")


# --- data ------------------------------------------------------------------------------------------------------------


def cifar_test(options: Options, count: int) -> Images:
    """CIFAR-10 test images, classes taking turns; without a data folder the embedded photographs at 32×32."""
    if options.data is None:
        return _embedded(32, count)
    x, y = sheets(options.data / "cifar10_test.zip", 10_000)
    order = taking_turns(y)[:count]
    return Images("CIFAR-10", x[order], y[order])


def cifar_train(options: Options) -> Images:
    """CIFAR-10 training images of the archives that are there: two of 25,000, or one that was cut; 600 of each in quick runs."""
    if options.data is None:
        return _embedded(32, 64)
    first = 600 if options.quick else 25_000
    halves = [path for half in "ab" if (path := options.data / f"cifar10_train_{half}.zip").is_file()]
    parts = [sheets(path, first) for path in halves or [options.data / "cifar10_train.zip"]]
    return Images("CIFAR-10", torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))


def imagenet(options: Options, count: int) -> Images:
    """ImageNet images at 224×224 from ``imagenet.npz``; else embedded photographs (at 32×32 in quick runs)."""
    path = None if options.data is None else options.data / "imagenet.npz"
    if path is None or not path.is_file():
        return _embedded(32 if options.quick else 224, count)
    with np.load(path) as archive:
        x, y = torch.from_numpy(archive["x"][:count]).float() / 255, torch.from_numpy(archive["y"][:count]).long()
    return Images("ImageNet", x, y)


def _embedded(side: int, count: int) -> Images:
    """Every further round of the few photographs is darker, so no two images are equal."""
    x = photographs(side)
    times = -(-count // len(x))
    y = torch.arange(len(x)) % 10
    rounds = [x * (1 - k / (2 * times)) for k in range(times)]
    return Images("photographs (embedded)", torch.cat(rounds)[:count], y.repeat(times)[:count])


def victim_of(net: Network, options: Options, *, mode: Mode, classes: int = 10) -> tuple[Victim, bool, str]:
    """The network as a victim, whether it is trained, and what was changed in it."""
    model, space, changes = net.made(classes=classes, seed=options.seed, quick=options.quick)
    is_trained = fill(model, options.weights, net)
    return Victim(model.to(options.device), space, mode=mode, name=net.key), is_trained, changes


def encoded(space: Space, images: Images, rows: slice | list[int]) -> tuple[Tensor, Tensor]:
    return space.encode(images.x[rows]), images.y[rows]


# --- running ---------------------------------------------------------------------------------------------------------

Plan = Mapping[str, float]
"""Seconds each case is given on one GPU, by its key."""
Run = Callable[[Options, Rows, Plan], None]
Draw = Callable[[list[Row], Pictures, Path], None]


def main(name: str, plan: Plan, run: Run, draw: Draw, about: str | None) -> None:
    """Runs one part, or prints its plan (--plan), or draws its figures from earlier results (--draw)."""
    parser = runner.parser(about, out=RESULTS)
    parser.add_argument("--plan", action="store_true", help="only print what would be run and for how long")
    parser.add_argument("--draw", action="store_true", help="only draw the figures, from the results in --out")
    parser.add_argument("--weights", type=Path, help="folder for trained weights (default: OUT/weights)")
    parser.add_argument(
        "--longer",
        type=float,
        default=1.0,
        help="times the planned seconds; rows go to NAME_longer.jsonl (2 times) or NAME_longer_N.jsonl",
    )
    parser.add_argument("--restarts", type=int, default=8, help="a multiple of 4")
    parser.add_argument(
        "--case", action="append", choices=list(plan), help="only this one; may be given more than once"
    )
    given = parser.parse_args()
    wanted = {key: plan[key] for key in plan if given.case is None or key in given.case or key == "image"}
    planned, scale = sum(wanted.values()), given.longer

    def of_plan(options: Options, rows: Rows) -> None:
        run(options, rows, wanted)
        if wanted.keys() != plan.keys() and any(not rows.has(key) for key in plan):
            rows.wait("the other cases")

    suffix = "" if scale == 1.0 else "_longer" if scale == 2.0 else f"_longer_{scale:g}"
    part = Part(f"{name}{suffix}", of_plan, None if suffix else draw)
    if given.plan:
        for case, seconds in wanted.items():
            print(f"{name}: {case}: {scale * seconds:.0f} s")
        print(f"{name}: {len(wanted)} cases, {scale * planned:.0f} s")
    elif given.draw:
        draw_part(part, given.out)
    else:
        weights = given.weights or given.out / ("quick_weights" if given.quick else "weights")
        run_part(part, Options.of(given, weights=weights, scale=scale, restarts=given.restarts))
