"""Table 1 for one model: the published number with its controls, the calibrated measures and the attacks, at seven checkpoints."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.monitor.paper import Schedule, paper_mode
from leakgauge.monitor.paper_result import Checkpoint, PaperResult, Reading
from leakgauge.monitor.token_critic import CriticTraining, Gap
from leakgauge.monitor.tokens import AutoencoderToken, Token, TransformerToken
from reproductions.privacy_tokens.attacked import attacked, lpips_from
from reproductions.privacy_tokens.leakage import NOISES, decoder, infonce, watched
from reproductions.privacy_tokens.results_file import Results, Row, rounded
from reproductions.privacy_tokens.setups import SETUPS, BucketSketch, Setup, data_for, quick

TOKENS: dict[str, Token] = {"autoencoder": AutoencoderToken(), "transformer": TransformerToken()}
MEMORY = 48 * 10**9
"""Bytes that pairs may take on the device: AlexNet's take 15e9 with controls at batch 20, as much without at batch 40."""


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    quick: bool
    device: torch.device
    data: Path | None
    lpips: Path | None
    seed: int
    reduced: bool = False

    def setup(self, name: str) -> Setup:
        return quick(name) if self.quick else SETUPS[name]

    def images(self, setup: Setup) -> tuple[Tensor, Tensor]:
        images, labels = data_for(setup, self.data)
        return images.to(self.device), labels.to(self.device)


def measured(
    setup: Setup,
    options: Options,
    data: tuple[Tensor, Tensor],
    token: str,
    reading: Reading,
    *,
    schedule: Schedule | None = None,
    critic: CriticTraining | None = None,
    controls: bool = True,
    snapshots: dict[int, nn.Module] | None = None,
) -> PaperResult:
    """Algorithm 1 on the setup's model; ``snapshots`` receives the model at each checkpoint."""
    kept: dict[int, nn.Module] = {} if snapshots is None else snapshots
    return paper_mode(
        setup.make(options.seed).to(options.device),
        F.cross_entropy,
        data,
        feature_layer=setup.feature_layer,
        gradient_layers=setup.gradient_layers,
        schedule=schedule or setup.schedule,
        reading=reading,
        token=TOKENS[token],
        training=critic or setup.critic,
        sketch=BucketSketch() if setup.sketched else None,
        controls=controls,
        memory=MEMORY,
        kept_on=options.device,
        on_checkpoint=kept.__setitem__,
        seed=options.seed,
    )


def run(name: str, options: Options, results: Results) -> None:
    setup = options.setup(name)
    data = options.images(setup)
    snapshots: dict[int, nn.Module] = {}

    def critics(runs: tuple[tuple[str, Reading], ...]) -> None:
        for token, reading in runs:
            unit = f"paper {token} {reading}"
            if not results.has(unit):
                found = measured(setup, options, data, token, reading, snapshots=snapshots)
                results.add(unit, *paper_rows(name, token, found, setup.notes))

    critics(setup.runs[:1])
    train = (data[0][: len(data[0]) * 4 // 5], data[1][: len(data[0]) * 4 // 5])  # what paper_mode trained on
    targets = (train[0][: setup.targets], train[1][: setup.targets])
    units = [f"{kind} {at}" for kind in ("leakage", "attack", "single") for at in setup.schedule.checkpoints]
    wanted = [unit for unit in units if not results.has(unit) and (setup.single or not unit.startswith("single"))]
    if wanted and not snapshots:  # the run before stopped after the training: the same training again, without critics
        plain = replace(setup.schedule, evaluation=2)
        measured(
            setup, options, data, "transformer", "once",
            schedule=plain, critic=CriticTraining(steps=1, fraction=0.01), controls=False, snapshots=snapshots,
        )  # fmt: skip
    lpips = lpips_from(options.lpips)
    for unit in wanted:
        kind, at = unit.split()
        model = snapshots[int(at)]
        shared: Row = {"kind": kind, "model": name, "sub_epoch": int(at), "seed": options.seed}
        if kind == "leakage":
            results.add(unit, shared | _leakage(model, setup, train, options.seed))
            continue
        many = kind == "attack"
        attack, given = (setup.attack, targets) if many else (setup.single, (targets[0][:1], targets[1][:1]))
        assert attack is not None
        row, guesses = attacked(model, attack, given, lpips=lpips, seed=options.seed)
        results.add(unit, shared | row, pictures={unit: guesses, "truth": targets[0]})
    critics(setup.runs[1:])
    results.finish()


def _leakage(model: nn.Module, setup: Setup, train: tuple[Tensor, Tensor], seed: int) -> Row:
    names = watched(model, setup)
    found = infonce(model, setup, train, seed=seed)
    members = setup.schedule.batch
    listed = members * (1 + setup.others)
    decoders = [
        decoder(model, names, train, noise=noise, probes=setup.probes, seed=seed, members=members, candidates=listed)
        for noise in NOISES
    ]
    return {f"infonce_{key}": value for key, value in found.items()} | {"decoder": decoders}


def paper_rows(name: str, token: str, found: PaperResult, notes: tuple[str, ...]) -> list[Row]:
    """One row per checkpoint and one with the cost."""

    def row(at: Checkpoint) -> Row:
        return {
            "kind": "paper",
            "model": name,
            "token": token,
            "reading": found.reading,
            "shuffle": found.shuffle,
            "seed": found.seed,
            "sub_epoch": at.sub_epoch,
            "accuracy": round(at.accuracy, 4),
            "matched": round(at.paper.matched, 6),
            "mismatched": round(at.paper.mismatched, 6),
            "gap": gap(at.paper),
            "held_out": gap(at.controls.held_out),
            "held_out_dv": round(at.controls.held_out.matched, 6),
            "collected": gap(at.collected),
            "decoy": gap(at.controls.decoy),
            "null": gap(at.controls.null),
            "each_matched": rounded(at.paper.each_matched),
            "each_mismatched": rounded(at.paper.each_mismatched),
        }

    cost: Row = {"kind": "cost", "model": name, "token": token, "reading": found.reading, "seed": found.seed}
    cost |= dataclasses.asdict(found.cost) | {"notes": list(notes)}
    return [*map(row, found.checkpoints), cost]


def gap(value: Gap | None) -> float | None:
    return None if value is None else round(value.gap, 6)
