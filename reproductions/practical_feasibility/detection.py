"""Fig. 5: a detector of the YOLOv8-nano kind, canonical, in pre-activation order, and with BasicBlocks in inference mode.

    python reproductions/practical_feasibility/detection.py --data FOLDER

On blood-cell images (``bccd.npz``, made by pack.py) at 256×256 in place of COCO: one image, boxes given. The networks are untrained, as in
the public example of the paper's authors.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import setting
import torch
from attacking import attacked
from drawing import grid
from ledger import Ledger, Pictures, Row, mean
from setting import Options, Plan
from torch import Tensor

from leakgauge.core import Auxiliary, Buffers, Mode, Pixels, Victim
from leakgauge.data.embedded import photographs
from leakgauge.models.detection_loss import DetectionLoss
from leakgauge.models.yolo import YOLO, Variant

CASES: dict[str, tuple[Variant, Mode, float | None, str | None]] = {
    "canonical, eval mode": ("canonical", "eval", 0.016, "No"),
    "canonical, train mode": ("canonical", "train", None, "No"),
    "pre_activation, train mode": ("pre_activation", "train", 0.024, "No"),
    "basic_block, eval mode": ("basic_block", "eval", 0.299, "Yes"),
    "basic_block, train mode": ("basic_block", "train", None, None),
}
"""Variant, mode, SSIM of Fig. 5 and entry of Table 1 (None where the paper has none)."""
PLAN: Plan = dict.fromkeys(CASES, 30.0)


def cells(options: Options) -> tuple[str, Tensor, dict[str, Tensor]]:
    """Images in [0, 1] and their boxes; without data embedded photographs with two boxes each, made up."""
    path = None if options.data is None else options.data / "bccd.npz"
    if path is None or not path.is_file():
        x = photographs(64 if options.quick else 256)
        side, count = float(x.shape[-1]), len(x)
        boxes = torch.tensor([[0.1, 0.1, 0.6, 0.7], [0.4, 0.3, 0.9, 0.8]]).repeat(count, 1) * side
        image = torch.arange(count).repeat_interleave(2)
        return "photographs with made-up boxes", x, {"boxes": boxes, "classes": image % 3, "image": image}
    with np.load(path) as archive:
        x = torch.from_numpy(archive["x"]).permute(0, 3, 1, 2).float() / 255
        boxes = torch.from_numpy(archive["boxes"]).float()
        classes, image = (torch.from_numpy(archive[name]).long() for name in ("classes", "image"))
    return "BCCD", x, {"boxes": boxes, "classes": classes, "image": image}


def run(options: Options, ledger: Ledger, plan: Plan) -> None:
    name, x, targets = cells(options)
    mine = targets["image"] == 0
    own = {key: value[mine] for key, value in targets.items()}
    for key, (variant, mode, paper_ssim, paper) in CASES.items():
        if ledger.has(key) or (options.quick and key not in ("canonical, train mode", "basic_block, eval mode")):
            continue
        model = YOLO(classes=3, width=4 if options.quick else 16, variant=variant, seed=options.seed)
        side = x.shape[-1]
        victim = Victim(model.to(options.device), Pixels((3, side, side)), loss=DetectionLoss(side), mode=mode, name=key)
        reveal = [Buffers()] if mode == "train" else [Auxiliary(x[1:])]
        numbers, pictures = attacked(
            victim, x[:1], own, effort=options.effort(plan[key]), pool=x, reveal=reveal, seed=options.seed
        )
        ledger.add(
            key, network=f"yolo {variant}", paper=paper, paper_ssim=paper_ssim, trained=False, data=name, boxes=len(own["boxes"]),
            parameters=sum(p.numel() for p in model.parameters()), **numbers,
        )  # fmt: skip
        ledger.keep("truth", pictures["truth"])
        ledger.keep(key, pictures["attack"])


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    if pictures:
        grid(out / "detection.png", list(pictures.items()), side=112)


def table(rows: list[Row]) -> str:
    lines = ["| variant, mode | paper | SSIM (adversary's choice) | SSIM (oracle) | null run | trivial picture |", "|---|---|---|---|---|---|"]
    for row in rows:
        four = " | ".join(f"{mean(row[kind]['ssim']):.3f}" for kind in ("attack", "oracle", "null", "baseline"))
        lines.append(f"| {row['case']} | {row['paper_ssim'] or ''} | {four} |")
    return "\n".join(lines)


if __name__ == "__main__":
    setting.main("detection", PLAN, run, draw, __doc__)
