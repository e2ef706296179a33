"""Train with Opacus, read epsilon, and attack what a private step sends beside what a plain step sends.

    python examples/opacus_training.py [--quick] [--out FOLDER]      needs: pip install 'leakgauge[opacus]'

A small network is trained twice, plainly and with DP-SGD (each sample's gradient clipped, Gaussian noise on their mean). Then one
image takes one step at the private weights in three ways (the worst case: nobody else is in the batch), and the same attack
reads the weight update each time. Look at clipping alone: it hides nothing. The picture strip shows the original and what
the attack made of each update. Quick: one epoch on a third of the images. Full: four epochs on all, four restarts. About 18 s,
quick 9 s, on one core.
"""

from __future__ import annotations

import argparse
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from leakgauge import Observation, Pixels, Signal, Victim
from leakgauge.attacks import inverting_gradients
from leakgauge.audit.evaluate import assess
from leakgauge.audit.files import save_strip
from leakgauge.channels import Gradient
from leakgauge.data import MEAN, STD, fashion
from leakgauge.errors import MissingExtra

SPACE = Pixels((1, 28, 28), mean=MEAN, std=STD)
CLIP, NOISE, DELTA = 1.0, 1.0, 1e-4


def network(weights: Signal | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 24, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(24, 24, 5, stride=2, padding=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(24 * 7 * 7, 10),
    )  # fmt: skip
    model.load_state_dict(weights or model.state_dict())
    return model


def private(model: nn.Module, data: TensorDataset, *, batch: int, lr: float, noise: float, poisson: bool) -> Any:
    """Opacus' own private model, optimizer, loader and accountant."""
    from opacus import PrivacyEngine

    engine = PrivacyEngine(accountant="rdp")
    made = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=lr), data_loader=DataLoader(data, batch_size=batch),
        noise_multiplier=noise, max_grad_norm=CLIP, poisson_sampling=poisson, noise_generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    return *made, engine


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[Any], *, epochs: int) -> None:
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def accuracy(model: nn.Module) -> float:
    images, labels = fashion("test")
    with torch.no_grad():
        return float((model(SPACE.encode(images)).argmax(1) == labels).float().mean())


def update(weights: Signal, x: Tensor, y: Tensor, *, noise: float | None) -> Signal:
    """Old minus new weights after one step of SGD at lr 1: the gradient as it was applied. Without ``noise`` a plain step."""
    model, data = network(weights), TensorDataset(x, y)
    if noise is None:
        fit(model, torch.optim.SGD(model.parameters(), lr=1.0), DataLoader(data), epochs=1)
    else:
        fit(*private(model, data, batch=1, lr=1.0, noise=noise, poisson=False)[:3], epochs=1)
    after = model.state_dict()
    return {name: before - after[name] for name, before in weights.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short training and fewer steps of the attack")
    parser.add_argument("--out", type=Path, default=Path("leakgauge-runs/example-opacus_training"), help="run folder")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if find_spec("opacus") is None:
        parser.exit(2, f"{MissingExtra('opacus', 'opacus')}\n")
    warnings.simplefilter("ignore")  # Opacus warns of its own hooks, and that its generator is not a secure one

    images, labels = (part[: 1000 if options.quick else 3000] for part in fashion("train"))
    data, epochs = TensorDataset(SPACE.encode(images), labels), 1 if options.quick else 4
    plain, dp = network(), network()
    fit(
        plain, torch.optim.SGD(plain.parameters(), lr=0.2), DataLoader(data, batch_size=50, shuffle=True), epochs=epochs
    )
    wrapped, optimizer, loader, engine = private(dp, data, batch=50, lr=0.5, noise=NOISE, poisson=True)
    fit(wrapped, optimizer, loader, epochs=epochs)
    epsilon = engine.get_epsilon(DELTA)
    print(
        f"accuracy {accuracy(plain):.1%} trained plainly, {accuracy(dp):.1%} with epsilon {epsilon:.1f} at delta {DELTA:g}"
    )

    weights = {name: value.clone() for name, value in dp.state_dict().items()}
    victim = Victim(network(weights), SPACE)
    attack = inverting_gradients(steps=200 if options.quick else 300, tv=0.01, restarts=1 if options.quick else 4)
    private_images, y = (part[:1] for part in fashion("test"))
    x = SPACE.encode(private_images)
    psnr, verdicts, strip = {}, {}, [private_images]
    for name, noise in (("plain", None), ("clipped alone", 0.0), ("clipped and noised", NOISE)):
        seen = Observation(signal=update(weights, x, y, noise=noise), channel=Gradient(), size=1)
        works = verdicts["plain"].leaks if verdicts else None  # the control of the attack: it reads the plain update
        result = assess(attack, victim, seen, x, y, leaks_undefended=works)
        psnr[name], verdicts[name] = result.scores.psnr[0], result.outcome
        strip.append(result.images["reconstruction"])
        without = result.null.psnr[0]
        print(f"{name}: PSNR {psnr[name]:.1f} dB, without the update {without:.1f} dB; {result.outcome.label}")
    print(f"picture: {options.out / save_strip(options.out, 'original-plain-clipped-noised', torch.cat(strip))}")
    said = ", ".join(f"{name} {value:.1f} dB ({verdicts[name].label})" for name, value in psnr.items())
    print(
        f"Finding: private training spent epsilon {epsilon:.1f}; of a step on one image the same attack reads: {said}."
    )


if __name__ == "__main__":
    main()
