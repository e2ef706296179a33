"""Search for the attack's strongest settings, so a failure is not due to a badly tuned attack.

The default search looks only at what an adversary sees: how well the reconstruction's own signal points where the observed
one does. The oracle's search looks at the truth (SSIM), as the paper's does; its results are an upper bound and labelled so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from leakgauge.audit.case import Case, accepted_options
from leakgauge.audit.files import make_private
from leakgauge.audit.scoring import score_images
from leakgauge.audit.session import Load, set_up
from leakgauge.channels.dropout import without_dropout
from leakgauge.errors import BadInput, Inapplicable, MissingExtra
from leakgauge.inversion.knowledge import gradient_alignment

FILE = "tuning.log"


@dataclass(frozen=True)
class LogUniform:
    """A positive number between ``low`` and ``high``, its logarithm uniform."""

    low: float
    high: float


@dataclass(frozen=True)
class OneOf:
    """One of the given values."""

    values: tuple[float, ...]


Space = Mapping[str, LogUniform | OneOf]

PAPER: Space = {"tv": LogUniform(1e-6, 1e-1), "statistics": OneOf((0.0, 1e-4, 1e-2)), "lr": LogUniform(1e-4, 1e2)}
"""λ_TV, λ_BN and η of the paper's appendix A.1; the image is a fourth choice where several are given."""


@dataclass(frozen=True)
class Trial:
    """One setting and what came of it.

    ``mismatch`` is 1 − cos between the reconstruction's signal, without dropout, and the observed one: what the adversary
    sees. ``ssim`` is that of the restart the adversary would keep, ``best_ssim`` that of the restart an oracle would. All
    are None for a trial that the attack refused; ``ended`` says how a trial ended: finished, pruned (after fewer steps) or
    the reason of the refusal.
    """

    options: Mapping[str, float]
    first: int
    mismatch: float | None
    ssim: float | None
    best_ssim: float | None
    ended: str


@dataclass(frozen=True)
class Tuned:
    """The best trial of a search and all of them. ``oracle`` says that the truth chose: an upper bound, no attack."""

    case: Case
    best: Trial
    trials: tuple[Trial, ...]
    oracle: bool


def tune(
    case: Case,
    *,
    load: Load,
    folder: Path,
    trials: int = 8,
    space: Space = PAPER,
    images: Sequence[int] = (),
    oracle: bool = False,
    rungs: Sequence[float] = (0.25, 1.0),
    startup: int = 4,
    seed: int = 0,
) -> Tuned:
    """Tries ``trials`` settings of the case's attack by Optuna's tree-structured Parzen estimator and keeps the best.

    ``images`` are indices of candidate first images: with several, the search also looks for the most vulnerable one.
    The first ``startup`` settings are drawn at random. Each is tried with a growing share (``rungs``) of the case's steps, and
    given up where it is worse than the median of earlier ones. Everything is kept in ``folder``: the same call resumes
    where it stopped, and ends as it would have without the stop, for each trial's random numbers come from ``seed`` and
    the number of trials before it.

    Ref: Valadi et al. 2026, appendix A — hyper-parameter search with TPE and selection of vulnerable samples
    """
    if trials < 1 or not rungs or list(rungs) != sorted(rungs) or not 0 < rungs[0] <= rungs[-1] == 1:
        raise BadInput(f"tuning needs at least 1 trial and rungs that grow to 1, got {trials} and {tuple(rungs)}")
    known = accepted_options(case)
    space = {name: choice for name, choice in space.items() if name in known}
    if not space or "steps" not in known:
        raise BadInput(f"the attack {case.attack} has none of the options to search; it takes {', '.join(known)}")
    optuna = _optuna()
    make_private(folder)
    with _quiet(optuna):
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / FILE))),
            study_name=_name(case, space, images, oracle, rungs, startup, seed),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=startup),
            load_if_exists=True,
        )
        states = optuna.trial.TrialState
        for left in study.get_trials(deepcopy=False, states=(states.RUNNING,)):  # its process was killed
            study.tell(left.number, state=states.FAIL)
        while (done := len(_ended(study))) < trials:
            study.sampler = optuna.samplers.TPESampler(seed=_number_of(seed, done), n_startup_trials=startup)
            _one(study.ask(), study, case, load, space, images, oracle, rungs, states)
        found = tuple(Trial(**trial.user_attrs["trial"]) for trial in _ended(study))
    judged = [trial for trial in found if trial.ended == "finished"]
    if not judged:
        raise Inapplicable(f"none of {len(found)} settings could be tried; the first: {found[0].ended}")
    return Tuned(case, min(judged, key=lambda trial: _value(trial, oracle)), found, oracle)


def _ended(study: Any) -> list[Any]:
    return [trial for trial in study.get_trials(deepcopy=False) if "trial" in trial.user_attrs]


def _one(
    trial: Any,
    study: Any,
    case: Case,
    load: Load,
    space: Space,
    images: Sequence[int],
    oracle: bool,
    rungs: Sequence[float],
    states: Any,
) -> None:
    options: dict[str, float] = {}
    for name, choice in space.items():
        if isinstance(choice, LogUniform):
            options[name] = trial.suggest_float(name, choice.low, choice.high, log=True)
        else:
            options[name] = trial.suggest_categorical(name, list(choice.values))
    first = trial.suggest_categorical("first", list(images)) if len(images) > 1 else [*images, case.first][0]
    chosen = replace(case, name="", first=first, options={**case.options, **options})
    result, value = None, None
    try:
        for rung, share_of_steps in enumerate(rungs):
            result = _tried(chosen, options, load, share_of_steps)
            value = _value(result, oracle)
            trial.report(value, rung)
            if share_of_steps < 1 and trial.should_prune():
                result = replace(result, ended="pruned")
                break
    except Inapplicable as refusal:  # a setting that the attack refuses has no score
        result = Trial(options, first, None, None, None, str(refusal))
    assert result is not None
    trial.set_user_attr("trial", asdict(result))
    if result.ended == "finished":
        study.tell(trial, value)
    else:
        study.tell(trial, state=states.PRUNED if result.ended == "pruned" else states.FAIL)


def _value(trial: Trial, oracle: bool) -> float:
    """What a search makes small."""
    value = trial.best_ssim if oracle else trial.mismatch
    assert value is not None
    return -value if oracle else value


def _tried(case: Case, options: Mapping[str, float], load: Load, share_of_steps: float) -> Trial:
    steps = max(1, round(share_of_steps * _steps(case)))
    setup = set_up(case, load)
    victim, (x, _) = setup.victim, setup.private(case)
    seen = setup.observation(case)
    attack = replace(case, options={**case.options, "steps": steps}).build_attack()
    result = attack(victim, seen, seed=case.seed)
    if result.y is None:
        raise Inapplicable(f"{case.attack} gives no labels, so its result cannot be sent through the channel again")
    steady = without_dropout(victim) if victim.mode == "train" else victim  # another mask each time would be chance
    truths = victim.space.decode(x)
    every = [score_images(victim.space.decode(guess), truths).means()["ssim"] for guess in result.candidates]
    return Trial(
        options=dict(options),
        first=case.first,
        mismatch=1 - float(gradient_alignment(steady, seen, result.x, result.y)),
        ssim=every[int(result.losses.argmin())],
        best_ssim=max(every),
        ended="finished",
    )


def _steps(case: Case) -> int:
    """Steps of the case's attack, its default where the case names none."""
    written = case.options.get("steps", accepted_options(case)["steps"])
    if not isinstance(written, int) or written < 1:
        raise BadInput(f"tuning needs a whole number of steps, got {written!r}")
    return written


def _number_of(*parts: object) -> int:
    """A number below 2³² made of the parts, the same in every process."""
    return int(hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8], 16)


def _name(case: Case, space: Space, *rest: object) -> str:
    described = [case.key(), {name: [type(c).__name__, asdict(c)] for name, c in space.items()}, *rest]
    return hashlib.sha256(json.dumps(described, default=list).encode()).hexdigest()[:16]


def _optuna() -> ModuleType:
    try:
        import optuna
        import optuna.storages.journal
    except ModuleNotFoundError as error:
        raise MissingExtra("optuna", "tune") from error
    return optuna


@contextmanager
def _quiet(optuna: ModuleType) -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
