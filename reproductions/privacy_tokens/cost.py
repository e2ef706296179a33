"""What each part should take on one H200: counts of steps are exact, the milliseconds of each kind of step are estimates.

Not measured here. Steps of attacks follow ``benchmarks/results/engine_h200.jsonl``: a small network takes 1 to 6 ms a step
for up to about 32 rows; L-BFGS is not recorded as a CUDA graph and keeps a history of 100, so it takes longer.
"""

from __future__ import annotations

from dataclasses import dataclass

from reproductions.privacy_tokens import noise_schedules
from reproductions.privacy_tokens.setups import SETUPS, Setup


@dataclass(frozen=True)
class Milliseconds:
    """One training step with its pair kept, one critic step on a tenth of the pairs, one step of each attack."""

    train: float
    critic: float
    attack: float
    single: float = 0.0


STEP = {
    "lenet": Milliseconds(4.0, 8.0, 3.0, 12.0),
    "alexnet": Milliseconds(7.0, 25.0, 18.0, 20.0),
    "cnn": Milliseconds(4.0, 5.0, 3.0),
    "mlp": Milliseconds(4.0, 5.0, 4.0),
}
BATCH, PROBE, PRIVATE = 5.0, 300.0, 15.0
"""One gradient of a listed batch, one decoder probe, one step of all privately trained models."""

LOAD = {"cifar10": 8000.0, "faces": 2000.0}
"""Start of Python and reading the pictures."""

Line = tuple[str, str, float]


def of_model(name: str, setup: Setup) -> list[Line]:
    at, plan = STEP[name], setup.schedule
    checks = len(plan.checkpoints)
    steps = plan.sub_epochs * plan.iterations + 2 * checks * plan.evaluation
    times = {"once": 2, "fresh": 2 * checks, "warm": plan.sub_epochs}  # warm critics have no null beside them
    critics = sum(times[reading] * setup.critic.steps for _, reading, _ in setup.runs)
    lines = [
        (name, "start and data", LOAD[setup.data]),
        (name, f"a training of {steps} steps, which all critics look on at", steps * at.train),
        (name, f"{critics} critic steps, real and null", critics * at.critic),
        (name, f"batch identified, {setup.candidates} batches × {checks}", checks * setup.candidates * BATCH),
        (name, f"decoder, {3 * setup.probes} probes × {checks}", checks * 3 * setup.probes * PROBE),
        (name, f"{setup.attack.name}, {setup.targets} targets", checks * setup.attack.solver.steps * at.attack),
    ]
    if setup.single is not None:
        inner = getattr(setup.single.solver, "iterations", 1)
        lines.append((name, "L-BFGS, one target", checks * setup.single.solver.steps * inner * at.single))
    batches = len(setup.batch_sizes)
    took = LOAD[setup.data] + batches * (steps * at.train + setup.critic.steps * at.critic)
    return [*lines, (f"batch_sizes_{name}", f"{batches} trainings of {steps} steps", took)]


def lines() -> list[Line]:
    found = [line for name, setup in SETUPS.items() for line in of_model(name, setup)]
    plan, cases, times = noise_schedules.FULL, 6, len(noise_schedules.FRACTIONS)
    return [
        *found,
        ("noise", f"{plan.steps} steps of {cases * 3} models together", plan.steps * PRIVATE),
        ("noise", f"decoder, {cases * 3 * times * 5} probes", cases * 3 * times * 5 * 60.0),
        ("noise", f"attack, {cases * times} × 400 steps", cases * times * 400 * 3.0),
    ]


def table() -> str:
    every = lines()
    out = ["| part | what | seconds, estimated |", "|---|---|---|"]
    for part in dict.fromkeys(part for part, *_ in every):
        mine = [(what, took / 1000) for of, what, took in every if of == part]
        out += [f"| {part} | {what} | {took:.0f} |" for what, took in mine]
        out.append(f"| **{part}** | all | **{sum(took for _, took in mine):.0f}** |")
    out.append(
        f"\n{sum(took for *_, took in every) / 1000:.0f} s one after another; `common/lanes.py` runs them side by side."
    )
    return "\n".join(out)
