"""Table 1 for one model: the published number with its controls, the calibrated measures and the attacks, at seven checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.monitor.paper import (
    AutoencoderToken,
    Checkpoint,
    CriticPlan,
    Gap,
    PaperResult,
    PaperSchedule,
    Token,
    TransformerToken,
    paper_modes,
)
from reproductions.common import gates, runner
from reproductions.common.runner import Row, Rows, rounded
from reproductions.privacy_tokens.attacked import attacked, lpips_from
from reproductions.privacy_tokens.leakage import NOISES, decoder, identification, watched
from reproductions.privacy_tokens.setups import BOTH, SETUPS, BucketSketch, Data, Run, Setup, data_for, quick

TOKENS: dict[str, Token] = {"autoencoder": AutoencoderToken(), "transformer": TransformerToken()}
MEMORY = 48 * 10**9
"""Bytes that pairs may take on the device: AlexNet's take 15e9 with controls at batch 20, as much without at batch 40."""


@dataclass(frozen=True, kw_only=True)
class Options(runner.Options):
    lpips: Path | None = None
    """Weights of LPIPS; without them it is not measured."""

    def setup(self, name: str) -> Setup:
        return quick(name) if self.quick else SETUPS[name]

    def images(self, setup: Setup) -> tuple[Data, Data]:
        """Training and held-out data on the device."""
        train, held = data_for(setup, self.data)
        return (train[0].to(self.device), train[1].to(self.device)), (held[0].to(self.device), held[1].to(self.device))


def measured(
    setup: Setup,
    options: Options,
    data: tuple[Data, Data],
    runs: Sequence[Run],
    *,
    seed: int,
    schedule: PaperSchedule | None = None,
    controls: bool = True,
    snapshots: dict[int, nn.Module] | None = None,
    on_result: Callable[[int, PaperResult], None] | None = None,
) -> list[PaperResult]:
    """Algorithm 1 on the setup's model, for all ``runs`` at once; ``snapshots`` receives the model at each checkpoint.

    Critics that are trained on through the training get no null critic, which would double the longest part.
    """
    kept: dict[int, nn.Module] = {} if snapshots is None else snapshots
    plans = [
        CriticPlan(
            token=TOKENS[token],
            reading=reading,
            shuffle=shuffle,
            training=setup.critic,
            null=controls and reading != "warm",
        )
        for token, reading, shuffle in runs
    ]
    return paper_modes(
        setup.make(seed).to(options.device),
        F.cross_entropy,
        data[0],
        plans,
        held_out=data[1],
        feature_layer=setup.feature_layer,
        gradient_layers=setup.gradient_layers,
        schedule=schedule or setup.schedule,
        sketch=BucketSketch() if setup.sketched else None,
        decoy=controls,
        memory=MEMORY,
        kept_on=options.device,
        on_checkpoint=kept.__setitem__,
        on_result=on_result,
        seed=seed,
    )


def unit_of(run: Run) -> str:
    return "paper " + " ".join(run)


def run(name: str, options: Options, results: Rows, *, critics_only: tuple[Run, ...] = ()) -> None:
    """All of one model; with ``critics_only`` these critics alone, without attacks and other measures."""
    setup = options.setup(name)
    data = options.images(setup)
    seed = _living_seed(setup, options, data, results)
    snapshots: dict[int, nn.Module] = {}
    repeated = options.seed > 0  # further seeds repeat what is cheap
    runs = critics_only or (BOTH if repeated else setup.runs)
    waiting = [run for run in runs if not results.has(unit_of(run))]
    kinds = () if critics_only else ("attack", "leakage") if repeated else ("attack", "leakage", "single")
    units = [f"{kind} {at}" for kind in kinds for at in setup.schedule.checkpoints]
    wanted = [unit for unit in units if not results.has(unit) and (setup.single or not unit.startswith("single"))]

    def written(number: int, found: PaperResult) -> None:
        results.add(unit_of(waiting[number]), *paper_rows(name, waiting[number][0], found, setup.notes))

    if waiting:
        measured(setup, options, data, waiting, seed=seed, snapshots=snapshots, on_result=written)
    elif wanted or not results.has("gates"):  # the run before stopped here: the same training again, without critics
        plain = replace(setup.schedule, evaluation=2)
        measured(setup, options, data, (), seed=seed, schedule=plain, controls=False, snapshots=snapshots)
    if not results.has("gates"):
        results.add("gates", *(_gates(at, model, setup, data) for at, model in snapshots.items()))
        _keep_weights(name, snapshots, results)
    train = data[0]
    targets = (train[0][: setup.targets], train[1][: setup.targets])
    lpips = lpips_from(options.lpips)
    for unit in wanted:
        kind, at = unit.split()
        model = snapshots[int(at)]
        shared: Row = {"kind": kind, "model": name, "sub_epoch": int(at)}
        if kind == "leakage":
            results.add(unit, shared | _leakage(model, setup, train, seed))
            continue
        many = kind == "attack"
        attack, given = (setup.attack, targets) if many else (setup.single, (targets[0][:1], targets[1][:1]))
        assert attack is not None
        row, guesses = attacked(model, attack, given, space=setup.space, lpips=lpips, seed=seed)
        results.add(unit, shared | row, pictures={unit: guesses, "truth": setup.space.decode(targets[0])})


TRIED = 6
"""Seeds that are tried until a network learns."""
EARLY = 30
"""Sub-epochs after which a network that has not left chance is given up."""


def _living_seed(setup: Setup, options: Options, data: tuple[Data, Data], results: Rows) -> int:
    """The seed itself, or where networks of this kind may die (``least_accuracy``) the first from it that learns early on.

    The other seeds are reported in the row; none is left out for what it leaks.
    """
    if not setup.least_accuracy:
        return options.seed
    for row in results.rows:
        if row["unit"] == "seed":
            return int(row["chosen"])
    last = min(EARLY, setup.schedule.sub_epochs)
    early = replace(setup.schedule, sub_epochs=last, checkpoints=(last,), evaluation=2)
    reached: dict[int, float] = {}
    chosen = options.seed
    for seed in range(options.seed, options.seed + TRIED):
        snapshots: dict[int, nn.Module] = {}
        measured(setup, options, data, (), seed=seed, schedule=early, controls=False, snapshots=snapshots)
        reached[seed], error = gates.balanced_accuracy(snapshots[last], data[1], setup.classes)
        if gates.above_chance(reached[seed], error, setup.classes).passed:
            chosen = seed
            break
    results.add("seed", {"kind": "seed", "chosen": chosen, "accuracy_early": {str(s): v for s, v in reached.items()}})
    return chosen


def _gates(at: int, model: nn.Module, setup: Setup, data: tuple[Data, Data]) -> Row:
    """What must hold for the rows of this checkpoint; before the training a network may be at chance."""
    train, held = data
    balanced, error = gates.balanced_accuracy(model, held, setup.classes)
    names = watched(model, setup)
    parameters = [dict(model.named_parameters())[name] for name in names]
    batch = slice(setup.schedule.batch)
    found = torch.autograd.grad(F.cross_entropy(model(train[0][batch]), train[1][batch]), parameters)
    checks = [gates.shuffled(train[1]), gates.all_classes(train[1], setup.classes, of="training set")]
    checks += [gates.all_classes(held[1], setup.classes), gates.gradients_alive(dict(zip(names, found, strict=True)))]
    if at == max(setup.schedule.checkpoints):
        checks.append(gates.above_chance(balanced, error, setup.classes))
        if setup.least_accuracy:
            enough = balanced >= setup.least_accuracy
            checks.append(gates.Gate("trained", enough, f"accuracy {balanced:.3f}, needed {setup.least_accuracy}"))
    row: Row = {
        "kind": "gates",
        "sub_epoch": at,
        "balanced_accuracy": round(balanced, 4),
        "balanced_error": round(error, 4),
    }
    return row | {"gates": [check.row() for check in checks]}


LARGEST = 20_000_000
"""Parameters of a network whose weights are still kept; AlexNet has 58 million."""


def _keep_weights(name: str, snapshots: dict[int, nn.Module], results: Rows) -> None:
    last = max(snapshots)
    for at, model in snapshots.items():
        size = sum(p.numel() for p in model.parameters())
        if size < 100_000 or (at == last and size < LARGEST and not results.facts["seed"]):
            results.save(f"{name}_{at}", model, half=size > 100_000)


def _leakage(model: nn.Module, setup: Setup, train: Data, seed: int) -> Row:
    names = watched(model, setup)
    members = setup.schedule.batch
    listed = members * (1 + setup.others)
    decoders = [
        decoder(model, names, train, noise=noise, probes=setup.probes, seed=seed, members=members, candidates=listed)
        for noise in NOISES
    ]
    return {"identification": identification(model, setup, train, seed=seed), "decoder": decoders}


def paper_rows(name: str, token: str, found: PaperResult, notes: tuple[str, ...]) -> list[Row]:
    """One row per checkpoint and one with the cost. The values of single batches are kept for Figs. 4 to 11 alone."""
    drawn = found.reading == "once" and found.shuffle == "sub_epoch" and found.seed == 0

    def row(at: Checkpoint) -> Row:
        return {
            "kind": "paper",
            "model": name,
            "token": token,
            "reading": _reading(found),
            "shuffle": found.shuffle,
            "model_seed": found.seed,
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
            "gap_error": error(at.paper),
        } | (_each(at.paper) if drawn else {})

    cost: Row = {"kind": "cost", "model": name, "token": token, "reading": _reading(found), "model_seed": found.seed}
    cost |= dataclasses.asdict(found.cost) | {"notes": list(notes)}
    return [*map(row, found.checkpoints), cost]


def _reading(found: PaperResult) -> str:
    return found.reading if found.shuffle == "all" else f"{found.reading}, within sub-epochs"


def error(value: Gap) -> float:
    """Standard error of the gap over the batches that were read."""
    apart = torch.tensor(value.each_matched) - torch.tensor(value.each_mismatched)
    return round(float(apart.std(correction=0)) / len(apart) ** 0.5, 6)


def _each(value: Gap) -> Row:
    return {"each_matched": rounded(value.each_matched), "each_mismatched": rounded(value.each_mismatched)}


def gap(value: Gap | None) -> float | None:
    return None if value is None else round(value.gap, 6)
