"""Table 1, rows at 32×32, with sections 4.5.2 and 4.5.3: trained networks, one image, labels given.

    python -m reproductions.practical_feasibility.small --data FOLDER --weights FOLDER

Run ``accuracy.py`` before: it makes the weights. A network without weights is attacked untrained, and its row says so.
The image is the one of five that the adapted Swin-T gives away best (by SSIM to the truth, as in the paper).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TypeVar

from leakgauge.core import Auxiliary, Buffers, Mode, Victim
from leakgauge.errors import Inapplicable
from reproductions.common.runner import Pictures, Row, Rows
from reproductions.practical_feasibility import setting
from reproductions.practical_feasibility.attacking import attacked, layouts, most_vulnerable, pieces
from reproductions.practical_feasibility.figures import keep, side_by_side
from reproductions.practical_feasibility.networks import Network
from reproductions.practical_feasibility.setting import Options, Plan


@dataclass(frozen=True)
class SmallCase:
    """One row; ``paper`` is the entry of Table 1, or None where the paper has none."""

    net: Network
    mode: Mode
    paper: str | None
    buffers: bool = False

    @property
    def key(self) -> str:
        return f"{self.net.key}, {self.mode} mode"


CASES = {
    case.key: case
    for case in (
        SmallCase(Network("swin_t"), "train", "Yes"),
        SmallCase(Network("resnet18_post"), "eval", "Yes"),
        SmallCase(Network("resnet18_post"), "train", "No", buffers=True),
        SmallCase(Network("resnet18_pre"), "train", "Yes", buffers=True),
        SmallCase(Network("convnext_t"), "train", "No"),
        SmallCase(Network("vit_b"), "train", "No"),
        SmallCase(Network("swinv2_t"), "train", "Yes"),
        SmallCase(Network("convnext_t", adapted=False), "train", None),
        SmallCase(Network("swin_t", adapted=False), "train", None),
        SmallCase(Network("vit_b", patch=8), "train", None),
        SmallCase(Network("vit_b", patch=16), "train", None),
        SmallCase(Network("maxvit_t"), "train", "No"),
    )
}
"""Table 1 and the stems first, the slowest last."""
PLAN: Plan = {"image": 12.0, **{key: 50.0 if case.paper else 38.0 for key, case in CASES.items()}}
QUICK = (
    "swin_t, train mode",
    "resnet18_post, eval mode",
    "resnet18_pre, train mode",
    "vit_b_patch8, train mode",
    "maxvit_t, train mode",
)
CANDIDATES = 5
CaseT = TypeVar("CaseT")


def run(options: Options, ledger: Rows, plan: Plan) -> None:
    images = setting.cifar_test(options, 40 if options.quick else 1000)
    each_case(
        CASES, QUICK, measure, lambda: setting.victim_of(Network("swin_t"), options, mode="train")[:2], images, options,
        ledger, plan,
    )  # fmt: skip


def each_case(
    cases: Mapping[str, CaseT],
    quick: Collection[str],
    measure: Callable[[CaseT, Options, Rows, float, setting.Images, int], None],
    reference: Callable[[], tuple[Victim, bool]],
    images: setting.Images,
    options: Options,
    ledger: Rows,
    plan: Plan,
) -> None:
    """Measures what is planned and missing, ``quick`` ones alone in quick runs, on the image that ``reference`` gives away best."""
    first = _chosen(reference, images, options, ledger, plan)
    for key, case in cases.items():
        if key not in plan or ledger.has(key) or (options.quick and key not in quick):
            continue
        options.require_time(key, plan[key])
        with ledger.attempt(key):
            measure(case, options, ledger, plan[key], images, first)


def measure(
    case: SmallCase, options: Options, ledger: Rows, seconds: float, images: setting.Images, first: int
) -> None:
    try:
        victim, is_trained, changes = setting.victim_of(case.net, options, mode=case.mode)
        x, y = setting.encoded(victim.space, images, [first])
        reveal = [Buffers()] if case.buffers else [Auxiliary(victim.space.encode(images.x[-32:]))]
        numbers, pictures = attacked(
            victim, x, y, effort=options.effort(seconds), pool=images.x[:200], reveal=reveal, seed=options.seed
        )
    except Inapplicable as refusal:
        ledger.add(case.key, refused=str(refusal), paper=case.paper)
        return
    keep(ledger, case.key, pictures)
    ledger.add(
        case.key,
        network=case.net.key,
        paper=case.paper,
        trained=is_trained,
        changes=changes,
        data=images.name,
        **numbers,
    )


def _chosen(
    reference: Callable[[], tuple[Victim, bool]], images: setting.Images, options: Options, ledger: Rows, plan: Plan
) -> int:
    """The most vulnerable of five images, chosen once; a resumed run takes the image it had."""
    key = "image"
    if not ledger.has(key):
        options.require_time(key, plan[key])
        victim, is_trained = reference()
        x, y = setting.encoded(victim.space, images, slice(0, CANDIDATES))
        first, scores = most_vulnerable(victim, x, y, effort=options.effort(1), seed=options.seed)
        ledger.add(key, first=first, candidate_ssim=scores, reference="swin_t", trained=is_trained)
    return int(next(row for row in ledger.rows if row["unit"] == key)["first"])


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    side_by_side(out / "small.png", rows, pictures, side=80)


def table(rows: list[Row]) -> str:
    lines = [
        "| network, mode | trained | SSIM (adversary's choice) | SSIM (oracle) | null run | mean colour or blur | layout (null run) "
        "| pieces (lead) | rank in the pool | 1 − cos | steps |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "refused" in row:
            lines.append(f"| {row['unit']} | not run: {row['refused']} | | | | | | | | | |")
        elif "attack" in row:
            four = [mean(row[kind]["ssim"]) for kind in ("attack", "oracle", "null", "baseline")]
            cells = " | ".join(f"{value:.3f}" for value in four) + f" | {layouts(row)} | {pieces(row)}"
            rank = max(row["attack"]["reid"])
            lines.append(
                f"| {row['unit']} | {'yes' if row['trained'] else 'no'} | {cells} | {rank:g} | {row['mismatch']:.3f} | {row['steps']} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    setting.main("small", PLAN, run, draw, __doc__)
