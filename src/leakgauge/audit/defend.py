"""What defenses buy: each defense and strength against the same attack, the same decoder and the same short training.

A trial measures three things of one defense: how well the ordinary attack still reconstructs, how well a decoder still tells
who was in the batch, and what accuracy a short training loses. Neither attack nor decoder is adapted to the defense.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakgauge.audit import defense_records as store
from leakgauge.audit.case import Case, accepted_options, protects
from leakgauge.audit.defense_leakage import Releases, draw_releases, told_apart
from leakgauge.audit.defense_records import DefenseRecord, Trial, may_be_private, protected
from leakgauge.audit.defense_training import Training, accuracy, classified, privacy_of
from leakgauge.audit.evaluate import null_run
from leakgauge.audit.run import attack_case, save_pictures, versions
from leakgauge.audit.session import Load, Setup, check_fits
from leakgauge.channels import DPSGD
from leakgauge.core import Blindable, PerSample, Reconstruction
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.families import find_roles

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

    The attack takes ``steps`` steps, where it takes any. Every defense is built once, so that a wrong one is refused here.
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
    on_record: Callable[[DefenseRecord], None] | None = None,
) -> list[DefenseRecord]:
    """Runs every trial that has no record yet and appends its record as soon as it is done.

    What trials have in common (the null run, the candidates' updates, the training without defense) is made once. A refusal is
    recorded as a refusal, a crash as an error; ``BadInput`` is the user's and is raised.
    """
    done = {r.key: r for r in store.read(folder)} if resume and store.exists(folder) else {}
    bases: dict[str, Base] = {}
    for trial in trials:
        if trial.key() in done:
            continue
        plain = trial.undefended()
        base = bases.setdefault(plain.key(), Base(plain, load))
        record = _run(trial, base, folder, done.get(plain.key()))
        store.append(folder, record)
        done[record.key] = record
        if on_record is not None:
            on_record(record)
    store.sort(folder, [trial.key() for trial in trials])
    return [done[trial.key()] for trial in trials]


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
        plain, case = self.plain, self.plain.case
        return draw_releases(
            self.setup,
            case.build_channel(),
            batch=case.batch_size,
            candidates=plain.candidates,
            releases=plain.releases,
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
    }
    try:
        found = {**_attack(trial, base, folder), "leakage": _leakage(trial, base)}
        found["accuracy"] = _accuracy(trial, base, undefended)
    except (BadInput, OSError):  # the user's to mend; without a record the trial can be resumed
        raise
    except Exception as crash:  # noqa: BLE001 - recorded with its traceback as an error, never as a score
        found = {"status": "error", "reason": f"{type(crash).__name__}: {crash}", "notes": (traceback.format_exc(),)}
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    return DefenseRecord(**about, **found, seconds=time.perf_counter() - began, finished=finished)


def _attack(trial: Trial, base: Base, folder: Path) -> dict[str, Any]:
    try:
        found = attack_case(trial.case, base.setup, nothing=base.nothing)
    except Inapplicable as refusal:
        return {"status": "refused", "reason": str(refusal)}
    return {
        "status": "done",
        "assumptions": found.assumptions,
        "scores": found.scores,
        "null": found.null,
        "baseline": found.baseline,
        "verdict": found.verdict,
        "notes": found.reconstruction.notes,
        "pictures": save_pictures(trial.case, found, folder),
    }


def _leakage(trial: Trial, base: Base) -> Mapping[str, Any]:
    try:
        drawn = replace(base.releases, channel=trial.case.build_channel())
        return told_apart(drawn, trial.case.build_defenses(), seed=trial.case.seed)
    except Inapplicable as refusal:
        return {"unknown": str(refusal)}


def _accuracy(trial: Trial, base: Base, undefended: DefenseRecord | None) -> Mapping[str, Any]:
    how = Training(steps=trial.train_steps, batch=trial.train_batch, seed=trial.case.seed)
    try:
        if not trial.train_steps:
            raise Inapplicable("no training was planned; there was no time for it, or none was asked for")
        private = _private(trial)
        right = classified(base.setup, trial.case.build_defenses(), how, private)
    except Inapplicable as refusal:
        return {"unknown": str(refusal)}
    without = _right(undefended) if trial.case.protections() else right
    found = accuracy(base.setup, right, without, how)
    return found if private is None else {**found, "privacy": privacy_of(base.setup, how, private)}


def _private(trial: Trial) -> DPSGD | None:
    channel = trial.case.build_channel()
    return channel if isinstance(channel, DPSGD) else None


def _right(record: DefenseRecord | None) -> Tensor | None:
    bits = "" if record is None else record.accuracy.get("right", "")
    return torch.tensor([bit == "1" for bit in bits]) if bits else None
