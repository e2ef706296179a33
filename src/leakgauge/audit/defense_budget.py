"""How long trials of defenses take, from short runs of their parts, and which trials fit into a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from leakgauge.audit.case import Case, protects
from leakgauge.audit.defend import GRID, Base, Spec, plan_trials
from leakgauge.audit.defense_leakage import told_apart
from leakgauge.audit.defense_records import Trial
from leakgauge.audit.defense_training import Training, at_once, held_out, judged, trained
from leakgauge.audit.run import attacked
from leakgauge.audit.session import Load, Setup
from leakgauge.audit.step_time import (
    FEWEST_STEPS,
    LONGEST_TRIAL,
    MEASURABLE,
    SHORTEST_TRIAL,
    rounded_down,
    seconds_per_step,
)
from leakgauge.defenses import GaussianNoise
from leakgauge.errors import Inapplicable

FEWEST_TRAIN_STEPS, MOST_TRAIN_STEPS = 20, 200
"""Of one training; more steps than that would be a study of their own, and their time goes to the attack."""
PRIVATE = 3.0
"""Time of a trial of DP-SGD in units of a plain one: 2 to 4 on the embedded models, batches of 1 to 16, one thread."""
TRAIN_SHARE = 0.45
"""Of the time, for training; the rest is the attack's."""
STRONGEST = ("gaussian_noise:relative=10.0", "prune:0.99", "quantize:2", "dpsgd:clip=1.0,noise=1.0")
"""What is left of the grid where there is no time for all of it, beside what can be withheld."""


@dataclass(frozen=True)
class TrialCost:
    """Seconds: of one step of attack and training (None where there is none), of the rest of a trial, and once per run.

    ``rest`` includes ``evaluation``, which a trial without training does not need.
    """

    attack_step: float | None
    train_step: float | None
    rest: float
    once: float
    evaluation: float = 0.0

    def seconds(self, trials: float, *, steps: int, train_steps: int) -> float:
        """What this many trials (see ``counted``) will take together."""
        moving = steps * (self.attack_step or 0.0) + train_steps * (self.train_step or 0.0)
        return self.once + trials * (self.rest + moving - (0.0 if train_steps else self.evaluation))

    def steps_within(self, seconds: float, trials: float) -> tuple[int, int]:
        """Steps of the attack and of the training that fit, rounded down to two digits, at least 50 and 20."""
        left = max(0.0, (seconds - self.once) / max(1, trials) - self.rest)
        train_steps = FEWEST_TRAIN_STEPS
        if self.train_step:
            attack = self.attack_step or 0.0
            share = min(left * TRAIN_SHARE, left - FEWEST_STEPS * attack) if attack else left
            train_steps = min(MOST_TRAIN_STEPS, rounded_down(share / self.train_step, fewest=FEWEST_TRAIN_STEPS))
            left -= train_steps * self.train_step
        steps = rounded_down(left / self.attack_step) if self.attack_step else rounded_down(0)
        return steps, train_steps


def fit_trials(
    setup: Setup,
    case: Case,
    seconds: float,
    *,
    load: Load,
    specs: Sequence[Spec] | None = None,
    cost: TrialCost | None = None,
) -> tuple[Trial, ...]:
    """Trials that take about ``seconds`` together, with steps from measured costs; ``cost`` is given where it is known already.

    Where the fewest steps of the whole grid would take longer, only the strongest of each kind are tried; where that is still too
    long, nothing is trained and the accuracy stays unknown. The user's own ``specs`` are all kept.
    """
    cost = cost_of_trials(setup, case, load=load) if cost is None else cost

    def planned(wanted: Sequence[Spec] | None) -> tuple[tuple[Trial, ...], float]:
        count = counted(plan_trials(setup, case, steps=1, train_steps=0, specs=wanted))
        steps, train_steps = cost.steps_within(seconds, count)
        trials = plan_trials(setup, case, steps=steps, train_steps=train_steps, specs=wanted)
        return trials, cost.seconds(count, steps=steps, train_steps=train_steps)

    trials, taken = planned(specs)
    if taken > seconds and specs is None:
        beyond = [p for t in trials[1:] if (p := t.case.protections()) not in [(spec,) for spec in GRID]]
        planned_before = {t.case.protections() for t in trials}
        trials, taken = planned([*(spec for spec in STRONGEST if (spec,) in planned_before), *beyond])
    if taken > seconds:
        trials = tuple(replace(trial, train_steps=0) for trial in trials)
    return trials


def counted(trials: Sequence[Trial]) -> float:
    """How many plain trials take as long: a step that clips every sample by itself takes longer."""
    return sum(PRIVATE if protects(trial.case.channel) else 1.0 for trial in trials)


def cost_of_trials(setup: Setup, case: Case, *, load: Load) -> TrialCost:
    """Measures each part of a trial of the case on its own, in a run as short as can be."""
    (trial,) = plan_trials(setup, case, steps=1, train_steps=0, specs=())
    base = Base(trial, load)
    attack_step = seconds_per_step(trial.case, load)
    with TemporaryDirectory() as folder:
        first = _seconds(lambda: attacked(trial.case, base.setup, Path(folder), nothing=base.nothing))
        attack = _seconds(lambda: attacked(trial.case, base.setup, Path(folder), nothing=base.nothing))
    drawing = _seconds(lambda: base.releases)
    decoding = _seconds(lambda: told_apart(base.releases, (GaussianNoise(relative=1.0),), seed=case.seed))
    train_step, evaluation = _of_training(setup, Training(steps=1, batch=trial.train_batch, seed=case.seed))
    return TrialCost(
        attack_step, train_step, attack + decoding + evaluation, max(0.0, first - attack) + drawing, evaluation
    )


def _of_training(setup: Setup, how: Training) -> tuple[float | None, float]:
    """Seconds of one step, from the difference of a longer training and one of a single step, and of judging it."""
    try:
        rows = held_out(setup, how.seed)[1]
    except Inapplicable:  # too little data: the trials say so, and take no time for it
        return None, 0.0

    def seconds(steps: int) -> float:
        return _seconds(lambda: trained(setup, (), replace(how, steps=steps)))

    seconds(1)  # warms up
    alone, steps = seconds(1), SHORTEST_TRIAL
    while (taken := seconds(1 + steps)) < alone + MEASURABLE and steps < LONGEST_TRIAL:
        steps *= 4
    start, some = trained(setup, (), replace(how, steps=0)), rows[: at_once(setup.victim.space.shape)]
    evaluation = _seconds(lambda: judged(setup, start, some)) * len(rows) / len(some)
    return max(taken - alone, 0.1 * taken) / steps, evaluation


def _seconds(run: Callable[[], object]) -> float:
    """How long it takes; a refusal ends it early, as it will end the trial's."""
    began = time.perf_counter()
    try:
        run()
    except Inapplicable:
        return time.perf_counter() - began
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began
