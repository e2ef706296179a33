"""Fig. 1, Fig. 3 and Table 1 at 224×224: canonical networks on an ImageNet image, and Swin-T with one image and with two.

    python -m reproductions.practical_feasibility.large --data FOLDER

Without checkpoints (see ``networks.fill``) the networks are untrained, and the rows say so; EfficientNet-Lite0, whose trained
weights are in a package, is the trained control. In quick runs the networks are tiny and the images 32×32.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from leakgauge.core import Auxiliary, Mode, Victim
from leakgauge.errors import Inapplicable
from reproductions.common.runner import Pictures, Row, Rows
from reproductions.practical_feasibility import setting
from reproductions.practical_feasibility.attacking import attacked
from reproductions.practical_feasibility.figures import keep, side_by_side
from reproductions.practical_feasibility.networks import Network, efficientnet_lite0
from reproductions.practical_feasibility.setting import Options, Plan
from reproductions.practical_feasibility.small import each_case, table

__all__ = ["table"]


@dataclass(frozen=True)
class LargeCase:
    """One row; ``paper`` is Table 1's entry. A network None is EfficientNet-Lite0."""

    name: str
    batch: int
    paper: str | None
    mode: Mode = "train"

    @property
    def key(self) -> str:
        return f"{self.name}, batch {self.batch}, {self.mode} mode"


CASES = {
    case.key: case
    for case in (
        LargeCase("swin_t", 1, "Yes"),
        LargeCase("swin_t", 2, "No"),
        LargeCase("efficientnet_lite0", 1, None, mode="eval"),
        LargeCase("vit_b", 1, "No"),
        LargeCase("convnext_t", 1, "No"),
        LargeCase("efficientnet_lite0", 1, None),
        LargeCase("swinv2_t", 1, "No"),
        LargeCase("maxvit_t", 1, "No"),
    )
}
"""Fig. 3 and the trained control first, then the others of Fig. 1."""
SECONDS = {("swin_t", 2): 90.0, ("efficientnet_lite0", 1): 50.0, ("convnext_t", 1): 75.0, ("maxvit_t", 1): 90.0}
PLAN: Plan = {"image": 14.0, **{key: SECONDS.get((case.name, case.batch), 62.0) for key, case in CASES.items()}}
LEAST = 200
"""Steps of a final run: half of those at 32×32, each several times as long."""
QUICK = (
    "swin_t, batch 1, train mode",
    "swin_t, batch 2, train mode",
    "vit_b, batch 1, train mode",
    "efficientnet_lite0, batch 1, eval mode",
)


def run(options: Options, ledger: Rows, plan: Plan) -> None:
    images = setting.imagenet(options, 20)
    reference = CASES["swin_t, batch 1, train mode"]
    each_case(CASES, QUICK, measure, lambda: _victim(reference, options, images), images, options, ledger, plan)


def measure(
    case: LargeCase, options: Options, ledger: Rows, seconds: float, images: setting.Images, first: int
) -> None:
    try:
        victim, is_trained = _victim(case, options, images)
        rows = [(first + i) % len(images.x) for i in range(case.batch)]
        x, y = setting.encoded(victim.space, images, rows)
        others = [i for i in range(len(images.x)) if i not in rows]
        reveal = [Auxiliary(victim.space.encode(images.x[others]))]
        effort = options.effort(seconds, least=LEAST)
        numbers, pictures = attacked(victim, x, y, effort=effort, pool=images.x, reveal=reveal, seed=options.seed)
    except Inapplicable as refusal:
        ledger.add(case.key, refused=str(refusal), paper=case.paper)
        return
    keep(ledger, case.key, pictures)
    ledger.add(case.key, network=case.name, paper=case.paper, trained=is_trained, data=images.name, **numbers)


def _victim(case: LargeCase, options: Options, images: setting.Images) -> tuple[Victim, bool]:
    if case.name == "efficientnet_lite0":
        model, space = efficientnet_lite0(options.data)
        return Victim(model.to(options.device), space, mode=case.mode, name=case.name), True
    net = Network(case.name, side=images.x.shape[-1], adapted=False)
    victim, is_trained, _ = setting.victim_of(net, options, mode=case.mode, classes=1000)
    return victim, is_trained


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    """Images of ImageNet are not ours to publish: a drawing that shows them gets a name that git ignores."""
    own = any(row.get("data") == "ImageNet" for row in rows)
    side_by_side(out / ("large.unpublished.png" if own else "large.png"), rows, pictures, side=112)


if __name__ == "__main__":
    setting.main("large", PLAN, run, draw, __doc__)
