"""Eight attacked set-ups made by hand, two of them without a result, with pictures that look like something."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from leakgauge.audit.case import Case
from leakgauge.audit.records import Curve, Frame, Record, VictimFacts, append
from leakgauge.audit.scoring import Scores
from leakgauge.audit.verdict import Outcome
from leakgauge.core import Assumption
from tests.made import verdict

SIZE = 32


def drawing(seed: int, size: int = SIZE) -> Image.Image:
    """A small scene that a person can recognise again in a blurred copy."""
    rng = np.random.default_rng(seed)
    big = Image.new("RGB", (128, 128), tuple(int(v) for v in rng.integers(90, 235, 3)))
    pen = ImageDraw.Draw(big)
    pen.rectangle((0, 84, 128, 128), fill=tuple(int(v) for v in rng.integers(40, 140, 3)))
    skin, dark = tuple(int(v) for v in rng.integers(150, 250, 3)), tuple(int(v) for v in rng.integers(10, 80, 3))
    if seed % 3 == 0:
        pen.ellipse((30, 18, 98, 106), fill=skin)
        pen.rectangle((28, 14, 100, 40), fill=dark)
        for x in (46, 72):
            pen.ellipse((x, 50, x + 11, 61), fill=dark)
        pen.arc((46, 62, 82, 92), 20, 160, fill=dark, width=5)
    elif seed % 3 == 1:
        pen.polygon(((20, 60), (64, 20), (108, 60)), fill=dark)
        pen.rectangle((30, 60, 98, 112), fill=skin)
        pen.rectangle((56, 78, 74, 112), fill=dark)
    else:
        pen.rectangle((58, 60, 70, 112), fill=(90, 60, 30))
        pen.ellipse((26, 14, 102, 78), fill=dark)
        pen.ellipse((88, 4, 120, 36), fill=(250, 220, 90))
    return big.resize((size, size), Image.Resampling.LANCZOS)


def worse(image: Image.Image, quality: float, seed: int) -> Image.Image:
    """The image blurred, greyed and with noise: quality 1 leaves it, quality 0 leaves nothing of it."""
    rng = np.random.default_rng(seed)
    soft = np.asarray(image.filter(ImageFilter.GaussianBlur(4 * (1 - quality))), dtype=float)
    noise = rng.normal(128, 60, soft.shape)
    return Image.fromarray((quality * soft + (1 - quality) * noise).clip(0, 255).astype(np.uint8))


def strip(images: list[Image.Image]) -> Image.Image:
    width, height = images[0].size
    whole = Image.new("RGB", (len(images) * (width + 1) - 1, height), "white")
    for place, image in enumerate(images):
        whole.paste(image, (place * (width + 1), 0))
    return whole


def curve(restarts: int, steps: int, floor: float, seed: int) -> Curve:
    rng = np.random.default_rng(seed)
    at = list(range(0, steps + 1, max(steps // 60, 1)))
    lines = []
    for _ in range(restarts):
        rate, level = rng.uniform(2, 7), floor * math.exp(rng.uniform(0, 1.6))
        lines.append(
            tuple(float(0.9 * math.exp(-rate * s / steps) + level * math.exp(rng.normal(0, 0.05))) for s in at)
        )
    return Curve(tuple(at), tuple(lines))


VERSIONS = {"leakgauge": "0.1.0", "torch": "2.6.0", "python": "3.11.9"}
SIZE_KNOWN = Assumption("batch size known", "deployable")
LABELS = Assumption("true labels given to the adversary", "diagnostic")
EVAL = Assumption("client computes its update in eval mode (real training uses train mode)", "diagnostic")


def make_record(
    folder: Path,
    key: str,
    *,
    name: str,
    outcome: Outcome | None = Outcome.FEASIBLE,
    status: str = "done",
    batch: int = 1,
    quality: float = 0.9,
    psnr: list[float] | None = None,
    lpips: bool = False,
    restarts: int = 8,
    steps: int = 4800,
    attack: str = "inverting_gradients",
    model: str = "lenet",
    mode: str = "train",
    local_steps: int = 1,
    defenses: tuple[str, ...] = (),
    assumptions: tuple[Assumption, ...] = (SIZE_KNOWN,),
    size: int = SIZE,
    reason: str = "",
    notes: tuple[str, ...] = (),
) -> Record:
    """One record, with its pictures written into ``folder``."""
    seed = sum(map(ord, key))
    rng = np.random.default_rng(seed)
    common = {
        "key": key,
        "status": status,
        "case": Case(
            name=name,
            model=model,
            data="embedded:scenes",
            mode=mode,
            batch_size=batch,
            local_epochs=local_steps,
            local_lr=0.1,
            attack=attack,
            options={"steps": steps, "tv": 1e-4},
            defenses=defenses,
            first=12,
        ),
        "attack": f"{attack}(steps={steps}, tv=0.0001, restarts={restarts})",
        "victim": VictimFacts(model, mode, 61706, 10, (3, size, size)),
        "channel": "Gradient()" if local_steps == 1 else f"FedAvg(steps={local_steps}, lr=0.1)",
        "defenses": defenses,
        "assumptions": assumptions,
        "versions": VERSIONS,
        "notes": notes,
        "reason": reason,
        "command": f"leakgauge attack {model} --attack {attack} --batch {batch} --mode {mode} --out runs/{key}",
    }
    if status != "done":
        return Record(**common, seconds=0.31, peak_bytes=0)
    truth = [drawing(seed + i, size) for i in range(batch)]
    shown = {
        "truth": truth,
        "reconstruction": [worse(t, quality, seed + i) for i, t in enumerate(truth)],
        "null": [worse(t, 0.04, seed + 50 + i) for i, t in enumerate(truth)],
        "baseline": [Image.new("RGB", (size, size), tuple(int(v) for v in np.asarray(t).mean((0, 1)))) for t in truth],
    }
    pictures = {}
    for kind, images in shown.items():
        pictures[kind] = f"{key}-{kind}.png"
        strip(images).save(folder / pictures[kind])
    progress = []
    for step in np.linspace(0, steps, 8).astype(int).tolist() if restarts else []:
        name_of = f"{key}-step{step}.png"
        strip([worse(t, quality * (step / steps) ** 0.5, step) for t in truth]).save(folder / name_of)
        progress.append(Frame(step, name_of))
    psnr = psnr or [float(8 + 20 * quality**2 + rng.normal(0, 1.2)) for _ in truth]
    ssim = [1.0 if math.isinf(p) else float(np.clip(quality**1.5 + rng.normal(0, 0.03), 0, 1)) for p in psnr]

    def scores(psnr: list[float], ssim: list[float], **more: tuple[float, ...] | None) -> Scores:
        return Scores(tuple(10 ** (-p / 10) for p in psnr), tuple(psnr), tuple(ssim), **more)

    def weak(level: float, structure: float) -> Scores:
        values = [float(level + rng.normal(0, 0.7)) for _ in truth]
        return scores(values, [float(structure + rng.uniform(0, 0.05)) for _ in truth])

    kind = "diagnostic" if any(a.kind == "diagnostic" for a in assumptions) else "deployable"
    perceptual = tuple(1 - s for s in ssim) if lpips else None
    return Record(
        **common,
        seconds=float(restarts * steps / 190 + 0.04),
        peak_bytes=int(1.4e9),
        scores=scores(psnr, ssim, lpips=perceptual, labels=(1.0,) * batch),
        null=weak(8.4, 0.02),
        baseline=weak(11.9, 0.16),
        verdict=None if outcome is None else verdict(outcome, images=batch, kind=kind),
        pictures=pictures,
        progress=tuple(progress),
        curve=curve(restarts, steps, 10 ** (-3 * quality), seed) if restarts else Curve(),
        restarts={"psnr": [psnr[0] - abs(rng.normal(0, 2)) for _ in range(restarts)]} if restarts > 1 else {},
    )


def build(folder: Path) -> list[Record]:
    """Eight set-ups: two feasible, two partial, two infeasible, one refused, one broken off."""
    return [
        make_record(
            folder,
            "a",
            name="LeNet, closed form",
            batch=1,
            quality=1.0,
            psnr=[math.inf],
            restarts=0,
            mode="eval",
            attack="april_closed_form",
            model="vit_a",
            assumptions=(SIZE_KNOWN,),
        ),
        make_record(
            folder,
            "b",
            name="LeNet, four images, labels given",
            batch=4,
            quality=0.86,
            mode="eval",
            lpips=True,
            assumptions=(SIZE_KNOWN, LABELS, EVAL),
            notes=("labels were given, not inferred", "TF32 off"),
        ),
        make_record(
            folder,
            "c",
            name="ResNet18, batch of sixteen",
            outcome=Outcome.PARTIAL,
            batch=16,
            quality=0.6,
            model="preact_resnet18",
        ),
        make_record(
            folder,
            "d",
            name="LeNet with gradient noise",
            outcome=Outcome.PARTIAL,
            batch=2,
            quality=0.5,
            defenses=("GaussianNoise(relative=0.1)",),
            restarts=1,
        ),
        make_record(
            folder,
            "e",
            name="LeNet, 90 % of the gradient pruned",
            outcome=Outcome.INFEASIBLE,
            batch=4,
            quality=0.12,
            defenses=("Prune(0.9)", "Quantize(8)"),
        ),
        make_record(
            folder,
            "f",
            name="resnet18-imagenet-fedavg-four-local-steps-with-a-very-long-unbroken-identifier_000017",
            outcome=Outcome.INFEASIBLE,
            batch=1,
            quality=0.15,
            size=128,
            local_steps=4,
            restarts=32,
            model="resnet18",
        ),
        make_record(
            folder,
            "g",
            name="ViT without position embedding",
            status="refused",
            outcome=None,
            model="vit_b",
            attack="april_optimised",
            reason="not shared: pos_embed",
            defenses=("Withhold(pos_embed)",),
        ),
        make_record(
            folder,
            "h",
            name="ResNet18 at 224 pixels",
            status="error",
            outcome=None,
            model="resnet18",
            batch=64,
            reason="OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 GiB",
            notes=(
                'Traceback (most recent call last):\n  File "run.py", line 7\nOutOfMemoryError: CUDA out of memory\n',
            ),
        ),
    ]


def store_eight(folder: Path) -> None:
    for record in build(folder):
        append(folder, record)
