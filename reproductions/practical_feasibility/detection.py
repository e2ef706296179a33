"""Fig. 5: a detector of the YOLOv8-nano kind, canonical, in pre-activation order, and with BasicBlocks in inference mode.

    python -m reproductions.practical_feasibility.detection --data FOLDER

On blood-cell images (``bccd_detection.zip``) at 256×256 in place of COCO: one image, boxes given. Each network is trained on the other
images for some seconds, so that its running statistics are those of data; without the images it is untrained, and the row says so.
"""

from __future__ import annotations

import io
import json
import time
import zipfile
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from leakgauge.core import Auxiliary, Buffers, Mode, Pixels, Victim
from leakgauge.data.embedded import photographs
from leakgauge.errors import Inapplicable
from reproductions.common.networks.detection_loss import DetectionLoss
from reproductions.common.networks.yolo import YOLO, Variant
from reproductions.common.runner import Pictures, Row, Rows
from reproductions.practical_feasibility import setting
from reproductions.practical_feasibility.attacking import attacked, layouts
from reproductions.practical_feasibility.figures import keep, side_by_side
from reproductions.practical_feasibility.setting import Options, Plan

CASES: dict[str, tuple[Variant, Mode, float | None, str | None]] = {
    "canonical, eval mode": ("canonical", "eval", 0.016, "No"),
    "basic_block, eval mode": ("basic_block", "eval", 0.299, "Yes"),
    "pre_activation, train mode": ("pre_activation", "train", 0.024, "No"),
    "canonical, train mode": ("canonical", "train", None, "No"),
    "basic_block, train mode": ("basic_block", "train", None, None),
}
"""Variant, mode, SSIM of Fig. 5 and entry of Table 1 (None where the paper has none)."""
TRAINING = 12.0
PLAN: Plan = dict.fromkeys(CASES, 80.0)
"""Training among them."""
LEAST = 200
"""Steps of a final run."""
KINDS = ("WBC", "RBC", "Platelets")


def cells(options: Options) -> tuple[str, Tensor, dict[str, Tensor]]:
    """Images in [0, 1] and their boxes; without data embedded photographs with two boxes each, made up."""
    path = None if options.data is None else options.data / "bccd_detection.zip"
    if path is None or not path.is_file():
        x = photographs(64 if options.quick else 256)
        side, count = float(x.shape[-1]), len(x)
        boxes = torch.tensor([[0.1, 0.1, 0.6, 0.7], [0.4, 0.3, 0.9, 0.8]]).repeat(count, 1) * side
        image = torch.arange(count).repeat_interleave(2)
        return "photographs with made-up boxes", x, {"boxes": boxes, "classes": image % 3, "image": image}
    return "BCCD", *read_cells(path, 256)


def read_cells(path: Path, side: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Images squeezed to ``side`` × ``side``, and their boxes in the pixels of that size."""
    pixels, boxes, classes, image = [], [], [], []
    with zipfile.ZipFile(path) as archive:
        for number, entry in enumerate(json.loads(archive.read("annotations.json"))):
            picture = Image.open(io.BytesIO(archive.read(entry["file"]))).convert("RGB")
            pixels.append(np.asarray(picture.resize((side, side), Image.Resampling.BILINEAR)))
            for kind, left, top, right, bottom in entry["boxes"]:
                across, down = side / entry["width"], side / entry["height"]
                boxes.append([left * across, top * down, right * across, bottom * down])
                classes.append(KINDS.index(kind))
                image.append(number)
    x = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255
    return x, {"boxes": torch.tensor(boxes), "classes": torch.tensor(classes), "image": torch.tensor(image)}


def chosen(targets: dict[str, Tensor], images: Tensor) -> dict[str, Tensor]:
    """Targets of some images, numbered anew."""
    new = torch.full((int(targets["image"].max()) + 1,), -1)
    new[images] = torch.arange(len(images))
    kept = new[targets["image"]] >= 0
    return {**{name: targets[name][kept] for name in ("boxes", "classes")}, "image": new[targets["image"]][kept]}


def train(
    model: YOLO, x: Tensor, targets: dict[str, Tensor], loss: DetectionLoss, options: Options, seconds: float
) -> list[float]:
    """Trains in place by AdamW on batches of 16 for so many seconds (two steps in quick runs); the mean losses of both halves."""
    rng = torch.Generator().manual_seed(options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    losses: list[float] = []
    x = x.to(options.device)
    began = time.perf_counter()
    model.train()
    while len(losses) < 2 or (not options.quick and time.perf_counter() - began < seconds):
        rows = torch.randperm(len(x), generator=rng)[: 4 if options.quick else 16]
        value = loss(model(x[rows.to(x.device)]), chosen(targets, rows))
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        losses.append(float(value.detach()))
    half = len(losses) // 2
    return [mean(losses[:half]), mean(losses[half:]), float(len(losses))]


def run(options: Options, ledger: Rows, plan: Plan) -> None:
    name, x, targets = cells(options)
    for key in CASES:
        if (
            key not in plan
            or ledger.has(key)
            or (options.quick and key not in ("canonical, train mode", "basic_block, eval mode"))
        ):
            continue
        options.require_time(key, plan[key])
        with ledger.attempt(key):
            measure(key, options, ledger, plan[key], (name, x, targets))


def measure(
    key: str, options: Options, ledger: Rows, seconds: float, data: tuple[str, Tensor, dict[str, Tensor]]
) -> None:
    variant, mode, paper_ssim, paper = CASES[key]
    name, x, targets = data
    own, rest = chosen(targets, torch.tensor([0])), chosen(targets, torch.arange(1, len(x)))
    model = YOLO(classes=3, width=4 if options.quick else 16, variant=variant, seed=options.seed)
    side = x.shape[-1]
    loss, real = DetectionLoss(side), name == "BCCD" or options.quick
    learned = train(model.to(options.device), x[1:], rest, loss, options, TRAINING * options.scale) if real else None
    victim = Victim(model.to(options.device), Pixels((3, side, side)), loss=loss, mode=mode, name=key)
    effort = options.effort(seconds - (TRAINING if real else 0.0), least=LEAST)
    reveal = [Buffers()] if mode == "train" else [Auxiliary(x[1:33])]
    try:
        numbers, pictures = attacked(victim, x[:1], own, effort=effort, pool=x[:100], reveal=reveal, seed=options.seed)
    except Inapplicable as refusal:
        ledger.add(key, refused=str(refusal), paper=paper)
        return
    keep(ledger, key, pictures)
    ledger.add(
        key, network=f"yolo {variant}", paper=paper, paper_ssim=paper_ssim, trained=learned is not None, training_loss=learned,
        data=name, boxes=len(own["boxes"]), parameters=sum(p.numel() for p in model.parameters()), **numbers,
    )  # fmt: skip


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    side_by_side(out / "detection.png", rows, pictures, side=112)


def table(rows: list[Row]) -> str:
    lines = [
        "| variant, mode | paper | SSIM (adversary's choice) | SSIM (oracle) | null run | mean colour or blur | layout (null run) "
        "| 1 − cos | steps |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "refused" in row:
            lines.append(f"| {row['unit']} | not run: {row['refused']} | | | | | | | |")
            continue
        four = " | ".join(f"{mean(row[kind]['ssim']):.3f}" for kind in ("attack", "oracle", "null", "baseline"))
        words = f"| {row['unit']} | {row['paper_ssim'] or ''} | {four} | {layouts(row)} "
        lines.append(f"{words}| {row['mismatch']:.3f} | {row['steps']} |")
    return "\n".join(lines)


if __name__ == "__main__":
    setting.main("detection", PLAN, run, draw, __doc__)
