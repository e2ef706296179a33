"""Fig. 2: batches of 16 in train mode, pre- against post-activation ResNet18, by what is known of the statistics.

    python -m reproductions.practical_feasibility.shared_statistics --data FOLDER --weights FOLDER

Beside the SSIM of images paired one to one stands the mean over all pairs, which the public code behind the paper reports for a
batch; what the originals themselves reach in it is its ceiling.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean

from leakgauge.attacks import feasibility, huang
from leakgauge.audit.tune import PAPER as PAPER_SPACE
from leakgauge.audit.tune import OneOf
from leakgauge.core import Auxiliary, Buffers
from leakgauge.errors import Inapplicable
from reproductions.common.drawing import grid
from reproductions.common.runner import Pictures, Row, Rows
from reproductions.practical_feasibility import setting
from reproductions.practical_feasibility.attacking import all_pairs_ssim, attacked, layouts
from reproductions.practical_feasibility.networks import Network
from reproductions.practical_feasibility.setting import Options, Plan

PAPER = {
    ("resnet18_pre", "shared"): 0.054, ("resnet18_pre", "not shared"): 0.040, ("resnet18_pre", "Huang"): 0.030,
    ("resnet18_post", "shared"): 0.041, ("resnet18_post", "not shared"): 0.024, ("resnet18_post", "Huang"): 0.013,
}  # fmt: skip
CASES = {f"{name}, {kind}": (name, kind) for name, kind in PAPER}
WEIGHTED = {**PAPER_SPACE, "statistics": OneOf((1e-4, 1e-2, 0.1))}
"""The paper's space without a weight of zero, which compares no statistics; whoever chooses by the gradient alone would take it."""
PLAN: Plan = dict.fromkeys(CASES, 80.0)
QUICK = ("resnet18_pre, shared", "resnet18_pre, not shared", "resnet18_post, Huang")


def run(options: Options, ledger: Rows, plan: Plan) -> None:
    images = setting.cifar_test(options, 40 if options.quick else 400)
    size = 2 if options.quick else 16
    for key, (name, kind) in CASES.items():
        if key not in plan or ledger.has(key) or (options.quick and key not in QUICK and len(plan) == len(PLAN)):
            continue
        options.require_time(key, plan[key])
        with ledger.attempt(key):
            measure(key, name, kind, options, ledger, plan[key], images, size)


def measure(
    key: str, name: str, kind: str, options: Options, ledger: Rows, seconds: float, images: setting.Images, size: int
) -> None:
    try:
        victim, is_trained, _ = setting.victim_of(Network(name), options, mode="train")
        x, y = setting.encoded(victim.space, images, slice(0, size))
        auxiliary = Auxiliary(victim.space.encode(images.x[max(size, len(images.x) - 16 * 12) :]))
        numbers, pictures = attacked(
            victim, x, y, effort=options.effort(seconds), pool=images.x[:200], reveal=[auxiliary if kind == "not shared" else Buffers()],
            space=WEIGHTED, make=huang if kind == "Huang" else feasibility, seed=options.seed,
        )  # fmt: skip
    except Inapplicable as refusal:
        ledger.add(key, refused=str(refusal))
        return
    ledger.keep("truth", pictures["truth"])
    ledger.keep(key, pictures["attack"])
    ledger.add(
        key, network=name, kind=kind, trained=is_trained, data=images.name, paper_ssim=PAPER[name, kind],
        all_pairs=all_pairs_ssim(pictures["attack"], pictures["truth"]),
        oracle_all_pairs=all_pairs_ssim(pictures["oracle"], pictures["truth"]),
        ceiling=all_pairs_ssim(pictures["truth"], pictures["truth"]), **numbers,
    )  # fmt: skip


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    if pictures:
        grid(out / "shared_statistics.png", list(pictures.items()), side=48)


def table(rows: list[Row]) -> str:
    lines = [
        "| network, statistics | trained | paper | over all pairs (oracle; ceiling) | SSIM, paired | oracle, paired | null run "
        "| mean colour or blur | layout (null run) | 1 − cos | steps |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: list(CASES).index(row["unit"])):
        if "refused" in row:
            lines.append(f"| {row['unit']} | not run: {row['refused']} |" + " |" * 9)
            continue
        paired = " | ".join(f"{mean(row[kind]['ssim']):.3f}" for kind in ("attack", "oracle", "null", "baseline"))
        pairs = f"{row['all_pairs']:.3f} ({row['oracle_all_pairs']:.3f}; {row['ceiling']:.3f})"
        words = f"| {row['unit']} | {'yes' if row['trained'] else 'no'} | {row['paper_ssim']} | {pairs} | {paired} "
        lines.append(f"{words}| {layouts(row)} | {row['mismatch']:.3f} | {row['steps']} |")
    return "\n".join(lines)


if __name__ == "__main__":
    setting.main("shared_statistics", PLAN, run, draw, __doc__)
