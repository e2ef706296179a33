"""The paper's advice, "minimal or no noise late", tried: the same noise early and late, at one ε, with attack, decoder and accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from leakgauge.attacks import inverting_gradients
from leakgauge.defenses import Clip, GaussianNoise
from leakgauge.inversion import Joint
from reproductions.common.networks.privacy_tokens import TokenLeNet
from reproductions.common.runner import Rows
from reproductions.privacy_tokens.attacked import attacked, lpips_from
from reproductions.privacy_tokens.leakage import decoder
from reproductions.privacy_tokens.private_training import Parameters, Plan, constant_noise, epsilon, loaded, trained
from reproductions.privacy_tokens.table1 import Options

STRONG, WEAK = 2.0, 0.7
FRACTIONS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
FULL, QUICK = Plan(steps=2000, batch=256), Plan(steps=10, batch=16)
Halves = tuple[float, float]


def schedules(plan: Plan, samples: int) -> dict[str, Halves]:
    """Noise multipliers of the first and the second half, by name."""
    rate = plan.batch / samples
    half = plan.steps // 2
    budget = epsilon([(STRONG, half), (WEAK, plan.steps - half)], rate=rate, delta=plan.delta)
    steady = constant_noise(budget, steps=plan.steps, rate=rate, delta=plan.delta)
    return {
        "no noise": (0.0, 0.0),
        "strong early, weak late (advice)": (STRONG, WEAK),
        "weak early, strong late": (WEAK, STRONG),
        "constant, same ε": (steady, steady),
        "early only (advice to the letter)": (STRONG, 0.0),
        "late only": (0.0, STRONG),
    }


def run(options: Options, results: Rows) -> None:
    plan, seeds, targets = (QUICK, 1, 2) if options.quick else (FULL, 3, 8)
    results.facts["training"] = f"{plan.steps} steps, batches of {plan.batch}, {seeds} seed{'s' * (seeds > 1)}"
    setup = options.setup("lenet")
    train, held = options.images(setup)
    cut = len(train[0])
    chosen = schedules(plan, cut)
    cases = [(name, seed) for name in chosen for seed in range(options.seed, options.seed + seeds)]
    models = [TokenLeNet(in_channels=setup.shape[0], side=setup.shape[1], seed=seed) for _, seed in cases]
    steps = [round(f * plan.steps) for f in FRACTIONS]
    units = {(name, seed): f"trained {name} {seed}" for name, seed in cases}
    kept: dict[int, list[Parameters]] = {}

    def keep(step: int, parameters: list[Parameters]) -> None:
        if step in steps:
            kept[step] = [{n: t.detach().clone() for n, t in one.items()} for one in parameters]

    wanted_attacks = [f"attack {name} {f}" for name in chosen for f in FRACTIONS]
    if all(map(results.has, [*units.values(), *wanted_attacks])):
        return
    trained(models, [_in_time(chosen[name]) for name, _ in cases], train, plan, seed=options.seed, on_step=keep)
    rate = plan.batch / cut
    members = min(plan.batch, 128)
    for place, (name, seed) in enumerate(cases):
        if results.has(units[name, seed]):
            continue
        rows = []
        for fraction, step in zip(FRACTIONS, steps, strict=True):
            model = loaded(models[place], kept[step][place]).eval()
            noise = _in_time(chosen[name])(fraction)
            spent = epsilon(_history(chosen[name], step, plan), rate=rate, delta=plan.delta)
            found = decoder(
                model, tuple(n for n, _ in model.named_parameters()), train,
                noise=noise, probes=setup.probes, seed=options.seed, clip=plan.clip, members=members, candidates=2 * members,
            )  # fmt: skip
            rows.append(
                {
                    "kind": "noise",
                    "schedule": name,
                    "model_seed": seed,
                    "fraction": fraction,
                    "step": step,
                    "noise": noise,
                }
                | {"accuracy": accuracy(model, held), "epsilon": spent if math.isfinite(spent) else None}
                | {"decoder": found, "rate": rate, "delta": plan.delta, "members": members}
            )
        results.add(units[name, seed], *rows)
    attack = replace(inverting_gradients(steps=4 if options.quick else 400, tv=0.01), labels=Joint())
    lpips = lpips_from(options.lpips)
    for name, seed in cases:
        for fraction, step in zip(FRACTIONS, steps, strict=True):
            unit = f"attack {name} {fraction}"
            if seed != options.seed or results.has(unit):
                continue
            place = cases.index((name, seed))
            noise = _in_time(chosen[name])(fraction)
            defenses = (Clip(plan.clip), *([GaussianNoise(std=noise * plan.clip)] if noise else []))
            row, guesses = attacked(
                loaded(models[place], kept[step][place]), attack, (train[0][:targets], train[1][:targets]),
                space=setup.space, lpips=lpips, seed=options.seed, defenses=defenses,
            )  # fmt: skip
            shared = {
                "kind": "noise attack",
                "schedule": name,
                "model_seed": seed,
                "fraction": fraction,
                "noise": noise,
            }
            results.add(unit, shared | row, pictures={unit: guesses, "truth": train[0][:targets]})


def _in_time(halves: Halves) -> Callable[[float], float]:
    return lambda progress: halves[0] if progress < 0.5 else halves[1]


def _history(halves: Halves, step: int, plan: Plan) -> list[tuple[float, int]]:
    """Noise and number of the steps taken so far."""
    early = sum(at / plan.steps < 0.5 for at in range(step))
    return [(halves[0], early), (halves[1], step - early)]


def accuracy(model: torch.nn.Module, data: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        right = [
            (model(x).argmax(1) == y).float() for x, y in zip(data[0].split(1000), data[1].split(1000), strict=True)
        ]
    return round(float(torch.cat(right).mean()), 4)
