"""Table 1's attack rows for the networks on faces with diffusion models: the paper's own attack, and ours.

The prior learns from all faces but the attacked ones, which the paper's did not either; others of the victim's training images are among
them. The first half of ``SHARE`` of the time that is left trains it. Of each checkpoint all targets are attacked at once.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from leakgauge.attacks import diffusion, diffusion_guided
from leakgauge.attacks.diffusion import Learning, WithDiffusion
from leakgauge.inversion import Annealing
from leakgauge.priors import Diffusion, fit_diffusion, sample
from leakgauge.priors.fit import nearest
from reproductions.common.runner import Row, Rows
from reproductions.privacy_tokens.attacked import attacked, lpips_from
from reproductions.privacy_tokens.setups import Data, Setup
from reproductions.privacy_tokens.table1 import Options, measured

NAMES = ("cnn", "mlp")
SECONDS, WIDTH, BATCH = 110.0, 96, 256
"""Of training the prior on a GPU; channels of its network; images of a step."""
RESTARTS = 4


def attacks(prior: Path, *, quick: bool) -> dict[str, WithDiffusion]:
    """The paper's attack, and ours with ten levels of 50 moves (chosen on CIFAR-10)."""
    steps, restarts = (4, 2) if quick else (250, RESTARTS)
    guided, ours = diffusion_guided(steps=steps, restarts=restarts), diffusion(restarts=restarts)
    solver = Annealing(rounds=2 if quick else 10, moves=2 if quick else 50, select=0.5)
    learning = Learning(str(prior))
    return {
        "diffusion_guided": replace(guided, learning=learning),
        "diffusion": replace(ours, matching=replace(ours.matching, solver=solver), learning=learning),
    }


def run(options: Options, results: Rows) -> None:
    """Trains the prior, where there is none in ``--out`` yet, then attacks every checkpoint of both networks."""
    file, pictures = options.out / "prior_faces.safetensors", _Pictures(options.out / "pictures_faces.npz")
    lpips = lpips_from(options.lpips)
    for name in NAMES:
        setup = options.setup(name)
        data = options.images(setup)
        train, held = data
        targets = (train[0][: setup.targets], train[1][: setup.targets])
        if not file.is_file():
            prior = _prior(setup, (train, held), options)
            prior.save(file, half=True)
            facts = _facts(prior, setup, targets, options)
            pictures.keep("samples", sample(prior, 24))
            results.add("prior", {"kind": "prior", **facts, "says": str(prior)})
        units = [f"{name} {at}" for at in setup.schedule.checkpoints]
        if all(results.has(unit) for unit in units):
            continue
        snapshots: dict[int, nn.Module] = {}
        plain = replace(setup.schedule, evaluation=2)
        measured(setup, options, data, (), seed=options.seed, schedule=plain, controls=False, snapshots=snapshots)
        pictures.keep("truth", setup.space.decode(targets[0]))
        for at, model in snapshots.items():
            if results.has(f"{name} {at}"):
                continue
            rows: list[Row] = []
            tried = attacks(file, quick=options.quick)
            if at == min(snapshots):
                tried["prior alone"] = tried["diffusion"].blind()
            for title, attack in tried.items():
                row, guesses = attacked(model, attack, targets, space=setup.space, lpips=lpips, seed=options.seed)
                rows.append({"kind": "attack", "model": name, "sub_epoch": at, **row, "attack": title})
                pictures.keep(f"{name} {at} {title}", guesses)
            results.add(f"{name} {at}", *rows)


def _prior(setup: Setup, data: tuple[Data, Data], options: Options) -> Diffusion:
    train, held = data
    images = torch.cat((train[0][setup.targets :], held[0]))
    labels = torch.cat((train[1][setup.targets :], held[1]))
    public = setup.space.decode(images)
    width, batch = (8, 16) if options.quick else (WIDTH, BATCH)
    began = time.perf_counter()

    def fit(steps: int, stop: int | None = None) -> Diffusion:
        return fit_diffusion(
            public, labels=labels, classes=setup.classes, width=width, batch=batch, steps=steps, stop=stop, lr=1e-3, mirrored=True,
            seed=options.seed,
        )  # fmt: skip

    if options.quick:
        return fit(6)
    fit(10**6, 40)  # compiles
    marks = [time.perf_counter()]
    for stop in (41, 141):
        fit(10**6, stop)
        marks.append(time.perf_counter())
    each = max(1e-4, (marks[2] - marks[1] - (marks[1] - marks[0])) / 100)
    return fit(max(200, int((SECONDS - (time.perf_counter() - began) - 5) / each)))


def _facts(prior: Diffusion, setup: Setup, targets: Data, options: Options) -> Row:
    trained = prior.trained
    facts: Row = {
        "images": trained.images,
        "steps": trained.steps,
        "batch": trained.batch,
        "width": prior.network.width,
    }
    facts |= {"unexplained": list(trained.unexplained), "copies": trained.copies}
    train, held = options.images(setup)
    others = setup.space.decode(torch.cat((train[0][setup.targets :], held[0])))
    facts["nearest_public_image"] = nearest(setup.space.decode(targets[0]), others)[0].tolist()
    return facts


class _Pictures:
    """Pictures by name in one archive. Faces are not for the repository."""

    def __init__(self, file: Path) -> None:
        self.file, self.kept = file, dict(np.load(file)) if file.is_file() else {}

    def keep(self, name: str, images: Tensor) -> None:
        self.kept[name] = (images.detach().cpu().clamp(0, 1) * 255).round().byte().numpy()
        np.savez_compressed(self.file, **self.kept)
