"""What defenses buy: each defense and strength against the same attack, the same decoder and the same short training.

A trial measures three things of one defense: how well an attack that knows it still reconstructs (and how well it does without knowing
it), how well a decoder still separates who was in the batch, and what accuracy a short training loses. The decoder is not adapted to the
defense. Each trial leaves one line of ``defenses.jsonl``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakgauge.audit.bounds import Mechanism, mechanism
from leakgauge.audit.case import Case, accepted_options, protects, with_steps
from leakgauge.audit.evaluate import Result
from leakgauge.audit.null import null_run
from leakgauge.audit.questions.defense_measures import (
    DELTA,
    Releases,
    Training,
    accuracy,
    at_once,
    classified,
    draw_releases,
    held_out,
    judged,
    privacy_of,
    read_members,
    trained,
)
from leakgauge.audit.questions.defense_records import (
    DefenseRecord,
    Static,
    Trial,
    append,
    exists,
    may_be_private,
    protected,
    read,
    sort,
    unadapted,
)
from leakgauge.audit.run import attack_case, save_pictures, versions
from leakgauge.audit.session import Load, Setup, check_fits
from leakgauge.audit.timing import FEWEST_STEPS, Cost, cost_of, elapsed
from leakgauge.audit.verdict import Verdict
from leakgauge.channels import DPSGD
from leakgauge.core import Adaptable, Blindable, ChangesModel, PerSample, Protects, Reconstruction
from leakgauge.defenses import GaussianNoise, SVTPrivacy
from leakgauge.errors import BadInput, CannotWrite, Inapplicable, one_line, trace_without_values
from leakgauge.families import find_roles
from leakgauge.inversion.defended import useful
from leakgauge.measures.rdp import spent_epsilon

FEWEST_TRAIN_STEPS, MOST_TRAIN_STEPS = 20, 200
"""Of the training under a defense; more steps than that would be a study of their own, and their time goes to the attack."""
PRIVATE = 3.0
"""Time of a trial of DP-SGD in units of a plain one: 2 to 4 on the embedded models, batches of 1 to 16, one thread."""
TWICE = 1.7
"""Time of a trial whose attack runs with and without knowing the defense; training and decoding are done once."""
TRAIN_SHARE = 0.45
"""Of the time of a trial, for training; the rest is the attack's."""
STRONGEST = ("gaussian_noise:relative=10.0", "prune:0.99", "quantize:2", "dpsgd:clip=1.0,noise=1.0")
"""What is left of the grid where there is no time for all of it, beside what can be withheld."""
GRID = (
    "gaussian_noise:relative=0.1",
    "gaussian_noise:relative=1.0",
    "gaussian_noise:relative=10.0",
    "prune:0.5",
    "prune:0.9",
    "prune:0.99",
    "quantize:8",
    "quantize:4",
    "quantize:2",
    "dpsgd:clip=1.0,noise=0.1",
    "dpsgd:clip=1.0,noise=1.0",
)
"""Defenses and strengths that any model has; DP-SGD needs one that keeps samples apart, and is refused by any other.

Clipping alone is not among them: it changes the length of an update, which
neither the cosine distance of the attack nor Adam looks at."""
WITHHELD = ("head", "position_embedding")
"""Roles whose parameters are kept back, each in a trial of its own, where the model has them."""

LARGE, FEW_RELEASES = 2_000_000, 32
"""Models with more parameters than this are asked for fewer releases, which have to be made one by one."""

Spec = str | Sequence[str]
"""One defense as on the command line, or several that act one after another."""


def plan_trials(
    setup: Setup, case: Case, *, steps: int, train_steps: int, specs: Sequence[Spec] | None = None
) -> tuple[Trial, ...]:
    """No defense first, then each of ``specs`` (by default ``GRID``, what can be withheld, and the case's own defenses).

    The attack takes ``steps`` steps, where it takes any. Every defense is built once, so a wrong one is refused here.
    """
    if isinstance(case.build_channel(), PerSample):
        raise Inapplicable(
            f"defenses are compared on what a training shares, and {case.channel} is sent by inference; try them one by one "
            "with leakgauge scan --defense"
        )
    options = {**case.options, "steps": steps} if "steps" in accepted_options(case) else dict(case.options)
    base = replace(case, name="", options=options)
    grid = [spec for spec in GRID if not protects(spec) or may_be_private(base)]
    wanted = [*grid, *_withheld(setup), case.protections()] if specs is None else specs
    each = [(spec,) if isinstance(spec, str) else tuple(spec) for spec in wanted]
    size = sum(p.numel() for p in setup.victim.parameters().values())
    releases = Trial.releases if size <= LARGE else FEW_RELEASES
    trials = [
        Trial(protected(base, protections), train_steps, releases=releases)
        for protections in dict.fromkeys([(), *each])
    ]
    for trial in trials:
        trial.case.build_defenses()
        trial.case.build_channel()
    return tuple(trials)


def _withheld(setup: Setup) -> list[str]:
    roles = find_roles(setup.victim.model)
    return [f"withhold:{role}" for role in WITHHELD if getattr(roles, role) is not None]


def run_trials(
    trials: Sequence[Trial],
    *,
    load: Load,
    folder: Path,
    resume: bool = False,
    skip_pointless: bool = False,
    until: float = math.inf,
    on_record: Callable[[DefenseRecord], None] | None = None,
) -> list[DefenseRecord]:
    """Runs every trial that has no record yet and appends its record as soon as it is done.

    What trials have in common (the null run, the candidates' updates, the training without defense) is made once. With
    ``skip_pointless`` no defense is tried where the attack fails without one, and after the time ``until`` (perf_counter) no trial
    begins. A refusal is
    recorded as a refusal, a crash as an error; ``BadInput`` is the user's and is raised.
    """
    done = {r.key: r for r in read(folder)} if resume and exists(folder) else {}
    bases: dict[str, Base] = {}
    for trial in trials:
        if trial.key() in done:
            continue
        plain = trial.undefended()
        if skip_pointless and trial.case.protections() and pointless(done.get(plain.key())):
            continue
        if done and time.perf_counter() > until:
            break
        base = bases.setdefault(plain.key(), Base(plain, load))
        record = _run(trial, base, folder, done.get(plain.key()))
        append(folder, record)
        done[record.key] = record
        if on_record is not None:
            on_record(record)
    sort(folder, [trial.key() for trial in trials])
    return [done[trial.key()] for trial in trials if trial.key() in done]


def pointless(undefended: DefenseRecord | None) -> bool:
    """Whether no defense can show anything: the attack fails without one."""
    return undefended is not None and undefended.outcome is not None and not undefended.outcome.leaks


class Base:
    """What all trials of one set-up share; each part is made when it is first asked for."""

    def __init__(self, plain: Trial, load: Load) -> None:
        self.plain = plain
        self._load = load

    @cached_property
    def setup(self) -> Setup:
        setup = self._load(self.plain.case)
        check_fits(setup)
        return setup

    def of(self, case: Case) -> Setup:
        """The set-up with the model that a trial's channel needs."""
        return self.setup.sent(case)

    @cached_property
    def nothing(self) -> Reconstruction | None:
        """The null run, where it does not depend on what is sent; None where each trial needs its own."""
        case, victim = self.plain.case, self.setup.victim
        attack = case.build_attack()
        if not isinstance(attack, Blindable):
            return None
        return null_run(attack, victim, self.setup.observation(case), seed=case.seed)

    @cached_property
    def releases(self) -> Releases:
        return self._drawn(self.plain.case)

    def releases_of(self, case: Case) -> Releases:
        """Through the case's channel."""
        channel = case.build_channel()
        return self._drawn(case) if isinstance(channel, ChangesModel) else replace(self.releases, channel=channel)

    def _drawn(self, case: Case) -> Releases:
        return draw_releases(
            self.of(case),
            case.build_channel(),
            batch=case.images,
            candidates=self.plain.candidates,
            releases=self.plain.releases,
            seed=case.seed,
        )


def _run(trial: Trial, base: Base, folder: Path, undefended: DefenseRecord | None) -> DefenseRecord:
    began = time.perf_counter()
    case = trial.case
    about: dict[str, Any] = {
        "key": trial.key(),
        "trial": trial,
        "defenses": case.protections(),
        "attack": repr(case.build_attack()),
        "channel": repr(case.build_channel()),
        "versions": versions(),
        "command": case.command(),
        "epsilon": epsilon_of(case, sum(p.numel() for p in base.of(case).victim.parameters().values())),
    }
    try:
        found = {**_attack(trial, base, folder, undefended), "leakage": _leakage(trial, base)}
        found["accuracy"] = _accuracy(trial, base, undefended)
    except (BadInput, CannotWrite):  # for the user to fix; without a record the trial can be resumed
        raise
    except Exception as crash:  # noqa: BLE001 - recorded with its traceback as an error, never as a score
        found = {"status": "error", "reason": one_line(crash), "notes": (trace_without_values(crash),)}
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    return DefenseRecord(**about, **found, seconds=time.perf_counter() - began, finished=finished)


def _attack(trial: Trial, base: Base, folder: Path, undefended: DefenseRecord | None) -> dict[str, Any]:
    """The attack without a defense is the positive control of all others.

    An adversary who knows a defense may also ignore it, so where that shows more, it is what counts.
    """
    plain = None if undefended is None or undefended.outcome is None else undefended.outcome.leaks
    attacked = partial(attack_case, setup=base.of(trial.case), nothing=base.nothing, leaks_undefended=plain)
    try:
        found = attacked(trial.case)
    except Inapplicable as refusal:
        return {"status": "refused", "reason": str(refusal)}
    unaware = None
    if depends_on_defense(trial.case):
        with suppress(Inapplicable):
            unaware = attacked(unadapted(trial.case))
    ignored = unaware is not None and shows_more(unaware.verdict, found.verdict)
    if unaware is not None and ignored:
        found = replace(unaware, assumptions=found.assumptions)
    return {
        "status": "done",
        "static": None if unaware is None else _static(unaware),
        "ignored": ignored,
        "assumptions": found.assumptions,
        "scores": found.scores,
        "null": found.null,
        "baseline": found.baseline,
        "verdict": found.verdict,
        "test": found.test,
        "notes": found.reconstruction.notes,
        "pictures": save_pictures(trial.case, found.images, folder) if found.verdict.unit == "image" else {},
    }


def epsilon_of(case: Case, entries: int) -> float | None:
    """ε of one update of so many entries at δ = ``DELTA``, None without a guarantee. Filters with an accountant of their own have no δ."""
    defenses = case.build_defenses()
    own = [one.spent(entries) for one in defenses if isinstance(one, SVTPrivacy)]
    if own:
        return own[0]
    found = mechanism(case.build_channel(), defenses)
    return (
        spent_epsilon(noise=found.accounted, rate=1.0, steps=1, delta=DELTA) if isinstance(found, Mechanism) else None
    )


def depends_on_defense(case: Case) -> bool:
    """Whether an attack that knows the defenses does something else than one that does not."""
    return bool(useful(case.build_defenses())) or isinstance(case.build_channel(), Adaptable)


def shows_more(one: Verdict, other: Verdict) -> bool:
    """Whether ``one`` leaks, and more gravely than ``other``."""
    return one.outcome.leaks and one.outcome.severity > other.outcome.severity


def _static(found: Result) -> Static:
    layout, pieces = (found.scores.best(name) for name in ("layout", "pieces_lead"))
    return Static(found.verdict, found.scores.mean("ssim"), layout, pieces, found.scores.mean("correlation"))


def _leakage(trial: Trial, base: Base) -> Mapping[str, Any]:
    try:
        return read_members(base.releases_of(trial.case), trial.case.build_defenses(), seed=trial.case.seed)
    except Inapplicable as refusal:
        return {"unknown": str(refusal)}


def _accuracy(trial: Trial, base: Base, undefended: DefenseRecord | None) -> Mapping[str, Any]:
    how = Training(steps=trial.train_steps, batch=trial.train_batch, seed=trial.case.seed)
    try:
        if not trial.train_steps:
            raise Inapplicable("no training was planned; there was no time for it, or none was asked for")
        channel = trial.case.build_channel()
        private = channel if isinstance(channel, Protects) else None
        right = classified(base.of(trial.case), trial.case.build_defenses(), how, private)
    except Inapplicable as refusal:
        return {"unknown": str(refusal)}
    without = _right(undefended) if trial.case.protections() else right
    found = accuracy(base.setup, right, without, how)
    return {**found, "privacy": privacy_of(base.setup, how, private)} if isinstance(private, DPSGD) else found


def _right(record: DefenseRecord | None) -> Tensor | None:
    bits = "" if record is None else record.accuracy.get("right", "")
    return torch.tensor([bit == "1" for bit in bits]) if bits else None


@dataclass(frozen=True)
class TrialCost:
    """Of one trial: its attack with the decoder, and its training with the test of what was learned. ``once`` is for all of them."""

    attack: Cost
    training: Cost
    once: float = 0.0

    def seconds(self, trials: float, *, steps: int, train_steps: int) -> float:
        """What this many trials (see ``counted``) will take together."""
        trained = self.training.seconds(train_steps) if train_steps else 0.0
        return self.once + trials * (self.attack.seconds(steps) + trained)

    def steps_within(self, seconds: float, trials: float) -> tuple[int, int]:
        """Steps of the attack and of the training that fit, at least 50 and 20."""
        left = max(0.0, (seconds - self.once) / max(1, trials) - self.attack.fixed - self.training.fixed)
        attack, training = Cost(step=self.attack.step), Cost(step=self.training.step)
        share = min(left * TRAIN_SHARE, left - attack.seconds(FEWEST_STEPS)) if attack.step else left
        train_steps = training.affordable(share, fewest=FEWEST_TRAIN_STEPS, most=MOST_TRAIN_STEPS)
        return attack.affordable(left - training.seconds(train_steps)), train_steps


def fit_trials(
    setup: Setup, case: Case, seconds: float, *, cost: TrialCost, specs: Sequence[Spec] | None = None
) -> tuple[Trial, ...]:
    """Trials that take about ``seconds`` together.

    Where the fewest steps of the whole grid would take longer, only the strongest of each kind are tried; where that is still too
    long, nothing is trained and the accuracy stays unknown. The user's own ``specs`` are all kept.
    """

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
    return tuple(replace(trial, train_steps=0) for trial in trials) if taken > seconds else trials


def counted(trials: Sequence[Trial]) -> float:
    """How many plain trials take as long: a step that clips every sample by itself takes longer, and where it matters whether the attack
    knows the defense, it runs twice."""
    return sum(
        PRIVATE if protects(trial.case.channel) else TWICE if depends_on_defense(trial.case) else 1.0
        for trial in trials
    )


def cost_of_trials(setup: Setup, case: Case, *, load: Load) -> TrialCost:
    """Measures each part of a trial of the case on its own, in a run as short as can be. What is refused takes no time."""
    (trial,) = plan_trials(setup, case, steps=1, train_steps=0, specs=())
    base, steps = Base(trial, load), "steps" in accepted_options(case)

    def decode() -> None:
        read_members(base.releases, (GaussianNoise(relative=1.0),), seed=case.seed)

    def attack(steps: int) -> None:
        attack_case(with_steps(trial.case, steps), base.setup, nothing=base.nothing)

    try:
        first = elapsed(lambda: attack(1))
        cost = cost_of(attack, warm=True) if steps else Cost(elapsed(lambda: attack(1)))
    except Inapplicable:
        first, cost = 0.0, Cost()
    try:
        drawing, decoding = elapsed(lambda: base.releases), elapsed(decode)
    except Inapplicable:
        drawing, decoding = 0.0, 0.0
    training = _cost_of_training(setup, Training(steps=1, batch=trial.train_batch, seed=case.seed))
    return TrialCost(cost + Cost(decoding), training, max(0.0, first - cost.seconds(1)) + drawing)


def _cost_of_training(setup: Setup, how: Training) -> Cost:
    """Of one step, and of the test of what was learned."""
    try:
        rows = held_out(setup, how.seed)[1]
        step = cost_of(lambda steps: trained(setup, (), replace(how, steps=steps))).step
    except Inapplicable:  # too little data: the trials say so, and take no time for it
        return Cost()
    start, some = trained(setup, (), replace(how, steps=0)), rows[: at_once(setup.victim.space.shape)]
    return Cost(elapsed(lambda: judged(setup, start, some)) * len(rows) / len(some), step)
