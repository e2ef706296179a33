"""A diffusion prior on CIFAR-10's residual networks, beside attacks without one.

python -m benchmarks.diffusion_cifar --data DIR --out FILE [--depth 20] [--mode eval] [--batch 1] [--noise 0.5]     for a GPU
python -m benchmarks.diffusion_cifar --quick                 a minute on one core, no data needed: crops of the embedded photographs

DIR holds cifar10_train_a.zip, cifar10_train_b.zip, cifar10_test.zip and weights/cifar10_resnet20.safetensors (and 56). The prior learns
from the 50,000 training images; ``--classes 5`` leaves it only those of the first five classes, another distribution than that of the
attacked images. These are drawn from the test images by the seed; 1,000 others are the pool of re-identification. Labels are read from
the gradient. Rows have SSIM, PSNR, the objective found, ranks by correlation and (where its weights are found) by LPIPS, and seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakgauge.attacks import diffusion, diffusion_guided, inverting_gradients
from leakgauge.attacks.diffusion import Learning, WithDiffusion
from leakgauge.audit.null import null_run
from leakgauge.audit.scoring import score
from leakgauge.channels import Gradient
from leakgauge.core import Attack, Buffers, Defense, Observation, Pixels, Size, Victim, share
from leakgauge.data.embedded import photographs
from leakgauge.defenses import GaussianNoise
from leakgauge.measures.lpips import load_lpips
from leakgauge.measures.reidentification import rank
from leakgauge.priors import fit_diffusion
from reproductions.common.networks.cifar_resnet import CifarResNet, load_cifar_resnet
from reproductions.common.sheets import sheets

POOL = 1000


@dataclass(frozen=True, eq=False)
class Data:
    """What the prior learns from, what is attacked, and the others among which an attacked image must be recognised."""

    public: tuple[Tensor, Tensor]
    attacked: tuple[Tensor, Tensor]
    pool: Tensor


def cifar(folder: Path, images: int, classes: int, seed: int) -> Data:
    x, y = sheets(folder / "cifar10_test.zip")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    halves = [sheets(folder / f"cifar10_train_{half}.zip") for half in "ab"]
    public, labels = (torch.cat(part) for part in zip(*halves, strict=True))
    kept = labels < classes
    own = order[:images]
    return Data((public[kept], labels[kept]), (x[own], y[own]), x[order[images : images + POOL]])


def crops(images: int) -> Data:
    """Crops of photographs in place of CIFAR-10, to see the script run."""
    tiles = photographs(224).unfold(2, 32, 32).unfold(3, 32, 32).permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, 32, 32)
    tiles = tiles[torch.randperm(len(tiles), generator=torch.Generator().manual_seed(0))]
    labels = torch.arange(len(tiles)) % 10
    own = slice(0, images)
    return Data((tiles[images:], labels[images:]), (tiles[own], labels[own]), tiles[images : images + 50])


def victim_of(given: argparse.Namespace, device: torch.device) -> Victim:
    if given.quick:
        model, space = CifarResNet(depth=8, width=4), Pixels((3, 32, 32))
    else:
        model, space = load_cifar_resnet(given.data / "weights" / f"cifar10_resnet{given.depth}.safetensors")
    return Victim(model.to(device), space, mode=given.mode, name=f"resnet{given.depth}")


def with_prior(attack: WithDiffusion, file: Path) -> WithDiffusion:
    return replace(attack, learning=Learning(str(file)))


def row(
    name: str, run: Callable[[], Sequence[tuple[object, Tensor, Tensor]]], victim: Victim, pool: Tensor
) -> dict[str, object]:
    """The figures of one attack on all images; ``run`` gives (reconstruction, x, y) of each batch."""
    began = time.perf_counter()
    found = run()
    seconds = time.perf_counter() - began
    qualities = [score(one, x, y, space=victim.space) for one, x, y in found]  # pyright: ignore[reportArgumentType]
    made = torch.cat([victim.space.decode(one.x) for one, _, _ in found])  # pyright: ignore[reportAttributeAccessIssue]
    truth = torch.cat([victim.space.decode(x) for _, x, _ in found])
    lpips = load_lpips()
    ranks = {"correlation": rank(made.cpu(), truth.cpu(), pool).tolist()}
    if lpips is not None:
        lens = lpips

        def alike(a: Tensor, b: Tensor) -> Tensor:
            return torch.stack([-lens(one.expand_as(b), b) for one in a])

        ranks["lpips"] = rank(made.cpu(), truth.cpu(), pool, alike=alike).tolist()
    return {
        "attack": name,
        "ssim": statistics.mean(s for q in qualities for s in q.ssim),
        "psnr": statistics.mean(p for q in qualities for p in q.psnr),
        "each_ssim": [round(s, 4) for q in qualities for s in q.ssim],
        "objective": [round(one.loss, 5) for one, _, _ in found],  # pyright: ignore[reportAttributeAccessIssue]
        "rank_1": {kind: sum(r == 1 for r in each) for kind, each in ranks.items()},
        "ranks": ranks,
        "seconds": round(seconds, 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--depth", type=int, default=20, choices=(20, 56))
    parser.add_argument("--mode", default="eval", choices=("eval", "train"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--noise", type=float, default=0.0, help="noise on the gradient, relative to its norm")
    parser.add_argument("--classes", type=int, default=10, help="of the images that the prior learns from")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--restarts", type=int, default=8)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--training", type=int, default=12_000, help="steps of the prior")
    parser.add_argument("--training-batch", type=int, default=512)
    parser.add_argument("--cache", type=Path, default=Path("diffusion-cifar-cache"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    if given.quick:
        given.images, given.steps, given.restarts, given.width = 2 * given.batch, 20, 2, 8
        given.training, given.training_batch = 10, 16
    elif given.data is None:
        parser.error("give --data DIR, or --quick")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = crops(given.images) if given.quick else cifar(given.data, given.images, given.classes, given.seed)
    victim = victim_of(given, device)
    began = time.perf_counter()
    images, labels = (one.to(device) for one in data.public)
    prior = fit_diffusion(
        images, labels=labels, classes=10, width=given.width, steps=given.training, batch=given.training_batch, cache=given.cache,
        seed=given.seed,
    )  # fmt: skip
    fitting = time.perf_counter() - began
    file = given.cache / "prior.safetensors"
    prior.save(file)
    print(prior, f"({fitting:.0f} s)", flush=True)

    defenses: tuple[Defense, ...] = (GaussianNoise(relative=given.noise),) if given.noise else ()
    reveal = (Size(), Buffers()) if given.mode == "train" else (Size(),)
    x, y = victim.to_input(victim.space.encode(data.attacked[0])), data.attacked[1].to(device)
    batches: list[tuple[Observation, Tensor, Tensor]] = []
    for first in range(0, given.images, given.batch):
        rows = slice(first, first + given.batch)
        seen = share(victim, Gradient(), x[rows], y[rows], defenses=defenses, reveal=reveal, secret=first)
        batches.append((seen, x[rows], y[rows]))
    sized: dict[str, Any] = {"steps": given.steps, "restarts": given.restarts}
    ours = with_prior(diffusion(**sized), file)
    attacks: dict[str, Attack] = {
        "inverting_gradients": inverting_gradients(tv=0.01, **sized),
        "diffusion": ours,
        "diffusion_guided": with_prior(diffusion_guided(**sized), file),
    }
    facts = {
        "torch": torch.__version__, "device": str(torch.cuda.get_device_name() if device.type == "cuda" else "cpu"),
        **{name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()},
        "prior": str(prior), "prior_seconds": round(fitting, 1),
    }  # fmt: skip
    lines: list[dict[str, object]] = [facts]
    for name, attack in attacks.items():
        made = row(
            name, lambda a=attack: [(a(victim, s, seed=given.seed), u, v) for s, u, v in batches], victim, data.pool
        )
        lines.append(made)
        print(json.dumps(made), flush=True)
        _write(given.out, lines)
    blind = row(
        "prior alone",
        lambda: [(null_run(ours, victim, s, seed=given.seed), u, v) for s, u, v in batches],
        victim,
        data.pool,
    )
    lines.append(blind)
    print(json.dumps(blind), flush=True)
    _write(given.out, lines)


def _write(out: Path | None, lines: Sequence[dict[str, object]]) -> None:
    if out is not None:
        out.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main()
