"""Attacks on single images at one checkpoint, and how good they are on the right scale and on the wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from leakgauge.attacks.diffusion import WithDiffusion
from leakgauge.audit.scoring import score
from leakgauge.channels import Gradient
from leakgauge.core import Defense, Pixels, Victim, share
from leakgauge.inversion import Matching
from leakgauge.measures.image import ssim
from leakgauge.measures.lpips import Lpips, load_lpips
from reproductions.common.runner import Row, rounded


def attacked(
    model: nn.Module,
    attack: Matching | WithDiffusion,
    targets: tuple[Tensor, Tensor],
    *,
    space: Pixels,
    lpips: Lpips | None,
    seed: int,
    defenses: Sequence[Defense] = (),
) -> tuple[Row, Tensor]:
    """The attack on every target (in the scale of ``space``) by itself, through the public interface, and the images it found.

    ``ssim_data_range_255`` is SSIM of images in [0, 1] with the constants for 0 … 255, and ``lpips_over_255`` LPIPS of images
    divided by 255 once more: two slips that turn any two images into near-equal ones.
    """
    victim = Victim(model.eval(), space)
    chosen = [(targets[0][i : i + 1], targets[1][i : i + 1]) for i in range(len(targets[0]))]
    seen = [share(victim, Gradient(), x, y, defenses=defenses, secret=seed + i) for i, (x, y) in enumerate(chosen)]
    found = attack.many(victim, seen, seed=seed)
    scores = [score(one, x, y, space=space) for one, (x, y) in zip(found, chosen, strict=True)]
    guesses = torch.cat([space.decode(one.x).detach().cpu() for one in found])
    truths = space.decode(targets[0]).cpu()
    row: Row = {
        "mse": rounded([s.mse[0] for s in scores]),
        "psnr": rounded([min(s.psnr[0], 100.0) for s in scores]),  # of a perfect copy it is infinite
        "ssim": rounded([s.ssim[0] for s in scores]),
        "ssim_data_range_255": [round(v, 6) for v in ssim(guesses / 255, truths / 255).tolist()],
        "attack": attack.effort()[0],
        "steps": attack.effort()[1],
        "seconds": round(sum(one.seconds for one in found), 2),
    }
    if lpips is not None:
        row["lpips"] = rounded(lpips(guesses, truths).tolist())
        row["lpips_over_255"] = rounded(lpips(guesses / 255, truths / 255).tolist())
    return row, guesses


def lpips_from(path: Path | None) -> Lpips | None:
    """LPIPS on the weights in that file; None without a path, even where other weights are installed: then it is not measured."""
    return None if path is None else load_lpips(path)
