"""How much of an image the closed form on patches and positions reads from transformers of timm, wide and narrow, and under noise.

    python -m benchmarks.patch_positions [--out FILE]      five minutes on one core

Fresh weights (seed 0), one image to a gradient, eval mode. Four photographs that chose no setting; the others did. ``least`` is what the
gradients tell, with nothing in place of what they leave open; ``psnr`` and ``ssim`` are the attack's.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

from benchmarks.json_lines import write_lines
from leakgauge.attacks import patch_positions
from leakgauge.attacks.patch_positions import _System, patches_from_positions
from leakgauge.channels import Gradient
from leakgauge.core import Defense, Size, Victim, share
from leakgauge.data.embedded import photographs
from leakgauge.defenses import GaussianNoise, Quantize
from leakgauge.integrations import timm
from leakgauge.measures.image import ssim

MODELS = (
    "vit_base_patch16_224", "vit_base_patch32_224", "vit_base_patch16_siglip_224", "deit3_small_patch16_224", "vit_tiny_patch16_224",
    "cait_xxs24_224", "convit_tiny", "eva02_tiny_patch14_224", "vit_small_patch16_384",
)  # fmt: skip
NOISY = ("vit_base_patch16_224", "vit_tiny_patch16_224")
DEFENSES: dict[str, tuple[Defense, ...]] = {
    **{f"noise {relative:g}": (GaussianNoise(relative=relative),) for relative in (1e-4, 1e-3, 1e-2, 1e-1)},
    **{f"{bits} bits": (Quantize(bits),) for bits in (16, 8)},
}
REPORTED = (3, 5, 6, 7)


def measure(name: str, victim: Victim, defense: str = "none") -> dict[str, object]:
    images = photographs(victim.space.shape[-1])[list(REPORTED)]
    least, found, known, certified, seconds, shape = [], [], [], 0, 0.0, (0, 0)
    for i, image in enumerate(images):
        x, y = victim.space.encode(image[None]), torch.tensor([i])
        seen = share(victim, Gradient(), x, y, reveal=[Size()], defenses=DEFENSES.get(defense, ()))
        system = _System.of(victim, seen.signal, seed=0)
        rows, weight = system.gradients(seen.signal)
        span = float((victim.space.encode(torch.ones_like(image)) - victim.space.encode(torch.zeros_like(image))).max())
        patches, combinations, _ = patches_from_positions(rows, weight, span=span)
        known.append(len(combinations))
        shape = (len(rows), rows.shape[1])
        least.append(psnr(victim, system.grid.assemble(patches)[None].float(), image))
        began = time.perf_counter()
        made = patch_positions()(victim, seen)
        seconds += time.perf_counter() - began
        certified += 0 if made.certified is None else int(made.certified.sum())
        found.append((psnr(victim, made.x, image), float(ssim(victim.space.decode(made.x), image[None]))))
    return {
        "model": name, "defense": defense, "patches": shape[0], "width": shape[1], "known": known, "certified": certified,
        "least": [round(value, 1) for value in least], "psnr": [round(value, 1) for value, _ in found],
        "ssim": [round(value, 3) for _, value in found], "seconds": round(seconds / len(images), 1), "torch": torch.__version__,
    }  # fmt: skip


def psnr(victim: Victim, found: Tensor, image: Tensor) -> float:
    return float(-10 * (victim.space.decode(found)[0] - image).square().mean().log10())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, object]] = []
    print(
        "| model | defense | patches | width | known | certified | least, dB | PSNR | SSIM | seconds |\n"
        + "|---" * 10
        + "|"
    )
    for name in MODELS:
        model, space = timm.load(name, classes=10, seed=0)[:2]
        victim = Victim(model.eval(), space, mode="eval", name=name)
        for defense in ("none", *(DEFENSES if name in NOISY else ())):
            row = measure(name, victim, defense)
            rows.append(row)
            known, least, found, like = (mean(row[key]) for key in ("known", "least", "psnr", "ssim"))  # pyright: ignore[reportArgumentType]
            cells = (
                name,
                defense,
                row["patches"],
                row["width"],
                f"{known:.0f}",
                f"{row['certified']} of {len(REPORTED)}",
            )
            print(
                f"| {' | '.join(map(str, cells))} | {least:.1f} | {found:.1f} | {like:.3f} | {row['seconds']} |",
                flush=True,
            )
            write_lines(given.out, rows)


if __name__ == "__main__":
    main()
