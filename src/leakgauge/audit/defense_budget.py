"""How long trials of defenses take, from short ones, and how many steps fit into a time."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from leakgauge.audit.case import Case
from leakgauge.audit.defend import plan_trials, run_trials
from leakgauge.audit.defense_training import Training, classified
from leakgauge.audit.plan import LONGEST_TRIAL, MEASURABLE, SHORTEST_TRIAL, rounded_down, seconds_per_step
from leakgauge.audit.setup import Load, Setup
from leakgauge.errors import Inapplicable

FEWEST_TRAIN_STEPS, MOST_TRAIN_STEPS = 20, 200
"""Of one training; more steps than that would be a study of their own, and their time goes to the attack."""
TRAIN_SHARE = 0.45
"""Of the time, for training; the rest is the attack's."""
SAMPLED = ("prune:0.9", "gaussian_noise:relative=1.0")
"""A slow and a common defense; their mean errs to the long side."""


@dataclass(frozen=True)
class TrialCost:
    """Seconds: of one step of attack and training (None where there is none), of the rest of a trial, and once per run."""

    attack_step: float | None
    train_step: float | None
    rest: float
    once: float

    def seconds(self, trials: int, *, steps: int, train_steps: int) -> float:
        """What this many trials will take together."""
        moving = steps * (self.attack_step or 0.0) + train_steps * (self.train_step or 0.0)
        return self.once + trials * (self.rest + moving)

    def steps_within(self, seconds: float, trials: int) -> tuple[int, int]:
        """Steps of the attack and of the training that fit, rounded down to two digits, at least 50 and 20."""
        left = max(0.0, (seconds - self.once) / max(1, trials) - self.rest)
        train_steps = FEWEST_TRAIN_STEPS
        if self.train_step:
            share = left * (TRAIN_SHARE if self.attack_step else 1.0)
            train_steps = min(MOST_TRAIN_STEPS, rounded_down(share / self.train_step, fewest=FEWEST_TRAIN_STEPS))
            left -= train_steps * self.train_step
        steps = rounded_down(left / self.attack_step) if self.attack_step else rounded_down(0)
        return steps, train_steps


def cost_of_trials(setup: Setup, case: Case, *, load: Load) -> TrialCost:
    """Measures short trials of the case: one step of everything, then enough steps to tell what one costs."""
    short = plan_trials(setup, case, steps=1, train_steps=1, specs=SAMPLED)
    with TemporaryDirectory() as folder:
        first, *others = (record.seconds for record in run_trials(short, load=load, folder=Path(folder)))
    rest = sum(others) / len(others)
    attack_step = seconds_per_step(replace(case, name="", defenses=()), load)
    return TrialCost(attack_step, _train_step(setup, short[0].train_batch, case), rest, max(0.0, first - rest))


def _train_step(setup: Setup, batch: int, case: Case) -> float | None:
    """Seconds of one step, from the difference of a longer training and one of a single step."""

    def seconds(steps: int) -> float:
        began = time.perf_counter()
        classified(setup, (), Training(steps=steps, batch=batch, seed=case.seed))
        if setup.victim.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    try:
        alone, steps = seconds(1), SHORTEST_TRIAL
        while (taken := seconds(1 + steps)) < alone + MEASURABLE and steps < LONGEST_TRIAL:
            steps *= 4
    except Inapplicable:  # too little data: the trials say so, and take no time for it
        return None
    return max(taken - alone, 0.1 * taken) / steps
