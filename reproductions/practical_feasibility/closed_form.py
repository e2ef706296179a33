"""Table 1, Fig. 1 and Fig. 4: ViT-B from the gradients of its patches and positions, which need no search.

    python -m reproductions.practical_feasibility.closed_form [--trained] --data FOLDER --out FOLDER

The paper's ViT-B/16 at 224 × 224 and its versions for 32 × 32. Patches enter a transformer as t_n = W p_n + b + E_n, so the gradient of
position n is that of token n, and ∂W = Σ_n (∂l/∂E_n) p_nᵀ is a linear system for the patches
(:func:`~leakgauge.attacks.patch_positions`). ``--trained`` attacks the networks that have weights under OUT/weights, as
``accuracy.py`` leaves them; that of 224 × 224 is trained here, on CIFAR-10 made larger, as ImageNet is not available.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.attacks import patch_positions
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Size, Victim, share
from leakgauge.data.embedded import photographs
from leakgauge.measures.image import ssim
from reproductions.common import gates, runner
from reproductions.common.runner import Part, Row, Rows, rounded, run_part, save_weights
from reproductions.practical_feasibility import control
from reproductions.practical_feasibility.control import CLASSES, IMAGES, RESULTS
from reproductions.practical_feasibility.networks import Network, fill, weights_file, weights_folder
from reproductions.practical_feasibility.training import ATTENTION, trained

NETWORKS = {
    "224, patches of 16": Network("vit_b", side=224),
    "32, patches of 4": Network("vit_b"),
    "32, patches of 8": Network("vit_b", patch=8),
    "32, patches of 16": Network("vit_b", patch=16),
}
SECONDS, EPOCHS = 75.0, 8
"""For training at 224 × 224, at most."""
LARGE = {"train": 12_500, "test": 2_000}
"""Images of CIFAR-10 that are made larger, kept on the device."""


@dataclass(frozen=True, kw_only=True)
class Options(runner.Options):
    trained: bool = False


def run(options: Options, results: Rows) -> None:
    for words, network in NETWORKS.items():
        unit = f"{words}, trained" if options.trained else words
        if results.has(unit):
            continue
        model, space, changes = network.made(classes=CLASSES, seed=options.seed, quick=options.quick)
        facts: Row = {"network": network.key, "side": network.side, "changes": changes, "trained": options.trained}
        if options.trained:
            if network.side == 224 and not weights_file(weights_folder(options), network).is_file():
                if not options.quick and not options.allows(SECONDS + 20):
                    results.wait(unit)
                    continue
                facts |= train(model, space, network, options)
            if not fill(model, weights_folder(options), network):
                if network.patch is None:  # the other sizes of patches are attacked where they happen to be trained
                    results.wait(f"{unit}: no weights in {weights_folder(options)}")
                continue
            facts |= accuracy(model.to(options.device), space, options)
        victim = Victim(model.eval().to(options.device), space, mode="train", name=network.key)
        results.add(unit, facts | attack(victim, *images(network, options), options, results, unit))


def train(model: torch.nn.Module, space: Pixels, network: Network, options: Options) -> Row:
    parts = [cifar_at(network.side, part, options) for part in LARGE]
    recipe = replace(ATTENTION, batch=32) if options.quick else ATTENTION
    done = trained(
        model, space, parts[0], parts[1], recipe=recipe, seconds=SECONDS, device=options.device, most_epochs=1 if options.quick else EPOCHS,
        seed=options.seed,
    )  # fmt: skip
    save_weights(weights_file(weights_folder(options), network), model, half=True)
    return {"epochs": done.epochs, "trained_on": done.images, "training_seconds": round(done.seconds, 1)}


def cifar_at(side: int, part: str, options: Options) -> tuple[Tensor, Tensor]:
    """Images of CIFAR-10 at the side of the network."""
    x, y = control.cifar(options, part)
    if side == x.shape[-1]:
        return x, y
    count = 64 if options.quick else LARGE[part]
    pieces = x[:count].split(1000)
    return torch.cat([F.interpolate(one.to(options.device), size=side, mode="bilinear") for one in pieces]), y[:count]


def accuracy(model: torch.nn.Module, space: Pixels, options: Options) -> Row:
    x, y = cifar_at(space.shape[-1], "test", options)
    balanced, error = gates.balanced_accuracy(model.eval(), (space.encode(x), y), CLASSES)
    return {"accuracy": balanced, "gates": [gates.above_chance(balanced, error, CLASSES).row()]}


def images(network: Network, options: Options) -> tuple[Tensor, Tensor]:
    """Photographs at 224 × 224, and the images of the control at 32 × 32."""
    count = 2 if options.quick else IMAGES
    if network.side == 224:
        return photographs(224)[:count], torch.arange(count) % CLASSES
    return control.targets(options, 0, count)


def attack(victim: Victim, pictures: Tensor, labels: Tensor, options: Options, results: Rows, unit: str) -> Row:
    """Every image alone; the adversary knows that it is one image and nothing else."""
    found: list[Tensor] = []
    alive: list[Row] = []
    certified, seconds = 0, 0.0
    x, y = victim.space.encode(pictures).to(victim.device), labels.to(victim.device)
    for i in range(len(x)):
        seen = share(victim, Gradient(), x[i : i + 1], y[i : i + 1], reveal=[Size()], seed=options.seed + i)
        alive.append(gates.gradients_alive(seen.signal).row())
        made = patch_positions()(victim, seen, seed=options.seed)
        found.append(victim.space.decode(made.x.to(victim.device)).cpu())
        certified += 0 if made.certified is None else int(made.certified.sum())
        seconds += made.seconds
    shown = torch.cat(found)
    results.keep(unit, shown)
    psnr = (-10 * (shown - pictures).square().mean((1, 2, 3)).clamp_min(1e-14).log10()).tolist()
    return {
        "images": len(x),
        "psnr": rounded(psnr),
        "ssim": rounded(ssim(shown, pictures).tolist()),
        "certified": certified,
        "alive": alive,
        "seconds": round(seconds, 2),
    }


def main() -> None:
    parser = runner.parser(__doc__, out=RESULTS)
    parser.add_argument("--trained", action="store_true", help="the networks that have weights under OUT/weights")
    given = parser.parse_args()
    run_part(Part("closed_form", run), Options.of(given, trained=given.trained))


if __name__ == "__main__":
    main()
