"""What defenses buy: each defense and strength against the same attack, the same decoder and the same short training.

A trial measures three things of one defense: how well an attack that knows it still reconstructs (and how well it does without knowing
it), how well a decoder still separates who was in the batch, and what accuracy a short training loses. The decoder is not adapted to the
defense. Each trial leaves one line of ``defenses.jsonl``.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor

from leakgauge.audit.bounds import Mechanism, mechanism
from leakgauge.audit.case import Case, accepted_options, present_fields, protects, with_steps
from leakgauge.audit.cause import TruthTest
from leakgauge.audit.files import JsonLines, infinity_as_text, safe_command
from leakgauge.audit.migrate import migrated_defense
from leakgauge.audit.null import null_run
from leakgauge.audit.questions import Question
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
    told_apart,
    trained,
)
from leakgauge.audit.records import FORMAT, Status, with_infinity
from leakgauge.audit.run import attack_case, save_pictures, versions
from leakgauge.audit.scoring import Scores
from leakgauge.audit.session import Load, Setup, check_fits
from leakgauge.audit.timing import FEWEST_STEPS, Cost, cost_of, elapsed
from leakgauge.audit.typed import typed
from leakgauge.audit.verdict import Evidence, Outcome, Verdict
from leakgauge.channels import DPSGD
from leakgauge.core import Assumption, Blindable, Kind, PerSample, Reconstruction
from leakgauge.defenses import GaussianNoise, SVTPrivacy
from leakgauge.errors import BadInput, CannotWrite, Inapplicable, one_line, trace_without_values
from leakgauge.families import find_roles
from leakgauge.inversion.defended import useful
from leakgauge.measures.rdp import spent_epsilon

FILE = "defenses.jsonl"


@dataclass(frozen=True)
class Trial:
    """One defense to be tried: plain data. The case holds the defenses and the steps of the attack.

    The training takes ``train_steps`` steps of ``train_batch`` images; the decoder sees ``releases`` updates, each of a batch
    (of the case's size) drawn out of ``candidates`` images. Without training steps the accuracy stays unknown.
    """

    case: Case
    train_steps: int
    train_batch: int = 32
    candidates: int = 64
    releases: int = 128

    def __post_init__(self) -> None:
        for what, least in (("train_steps", 0), ("train_batch", 1), ("candidates", 1), ("releases", 1)):
            if getattr(self, what) < least:
                raise BadInput(f"a trial needs {what} of at least {least}, got {getattr(self, what)}")

    def key(self) -> str:
        """Identifies the trial in a run; resuming skips trials whose key has a record."""
        fields = {**asdict(self), "case": self.case.identity()}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:12]

    def undefended(self) -> Trial:
        """The trial without any defense that this one is compared with."""
        return replace(self, case=protected(self.case, ()))


def may_be_private(case: Case) -> bool:
    """Whether a step of DP-SGD can stand in the place of what the client sends."""
    return not case.shares_weights() and (not case.channel or protects(case.channel))


def protected(case: Case, protections: Sequence[str]) -> Case:
    """The case with these defenses and no others; one that is a channel takes the place of the plain one."""
    channels = [spec for spec in protections if protects(spec)]
    if len(channels) > 1 or (channels and not may_be_private(case)):
        raise BadInput(f"{' + '.join(protections)} cannot be tried here: a step is private once, and by itself")
    plain = "" if protects(case.channel) else case.channel
    defenses = tuple(spec for spec in protections if not protects(spec))
    reveal = (*unadapted(case).reveal, *((KNOWN,) if defenses else ()))
    return replace(case, name="", channel=channels[0] if channels else plain, defenses=defenses, reveal=reveal)


KNOWN = "defended"
"""What a case reveals to an adversary who knows the defense."""


def unadapted(case: Case) -> Case:
    """The case of an adversary who does not know the defense."""
    return replace(case, reveal=tuple(spec for spec in case.reveal if spec != KNOWN))


class Span(TypedDict):
    """A value with its interval."""

    value: float
    low: float
    high: float


class ToldApart(TypedDict):
    """What a decoder read out of the updates."""

    auc: Span
    tpr: Span
    candidates: int
    batch: int
    releases: int
    tensors: NotRequired[int]
    of: NotRequired[int]
    notes: NotRequired[Sequence[str]]
    unknown: NotRequired[str]


class Accuracy(Span):
    """What a short training came to; ``unknown`` says why its cost is not known."""

    images: int
    steps: int
    batch: int
    trained_on: int
    start: str
    optimizer: str
    right: str
    cost: NotRequired[Span | None]
    privacy: NotRequired[str]
    unknown: NotRequired[str]


class NotMeasured(TypedDict, total=False):
    """``unknown`` says why; nothing, where the trial did not come that far."""

    cost: Span | None
    unknown: str


@dataclass(frozen=True)
class Static:
    """What the same attack sees without knowing the defense."""

    verdict: Verdict
    ssim: float
    layout: float | None = None
    pieces_lead: float | None = None
    correlation: float | None = None


@dataclass(frozen=True)
class DefenseRecord:
    """Everything one trial of a defense produced. ``defenses`` is empty for the trial without any.

    ``adapted``: the attack knew the defense, which older versions did not try. ``static`` is what it sees otherwise; None where that was
    not tried, because nothing depends on it or the attack refused. ``epsilon`` is what one update spends at δ = 1e-5; None where the
    defense gives no guarantee.

    ``scores``, ``null`` and ``baseline`` are as in :class:`leakgauge.audit.records.Record`; where the attack refused
    (``status`` refused), they are None and ``reason`` says why, while the other two measurements may still be there. The attack without
    a defense is the positive control of those with one.

    ``leakage``: ``auc`` and ``tpr`` as ``{"value", "low", "high"}``, with ``candidates``, ``batch``, ``releases``, ``tensors``
    (read) ``of`` (all) and ``notes``. ``accuracy``: ``value``, ``low``, ``high`` on ``images`` held-out images, after ``steps``
    steps with ``batch`` images each, of ``trained_on`` different ones; ``right`` is 1 for each held-out image that was
    classified correctly; ``privacy``, of DP-SGD, the guarantee of that training; ``cost`` is the loss of accuracy against the
    same training without defense, ``{"value", "low", "high"}``, or None. Either of the two holds ``unknown``, a sentence,
    where something could not be measured; it is empty otherwise.
    """

    key: str
    status: Status
    trial: Trial
    defenses: tuple[str, ...]
    attack: str
    channel: str
    versions: Mapping[str, str]
    command: str
    seconds: float
    assumptions: tuple[Assumption, ...] = ()
    scores: Scores | None = None
    null: Scores | None = None
    baseline: Scores | None = None
    verdict: Verdict | None = None
    test: TruthTest | None = None
    leakage: Mapping[str, Any] = field(default_factory=dict)
    accuracy: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    notes: tuple[str, ...] = ()
    finished: str = ""
    question: Question = "defenses"
    format: int = FORMAT
    adapted: bool = True
    static: Static | None = None
    epsilon: float | None = None

    @property
    def name(self) -> str:
        """The defenses as they are written on the command line, or ``none``."""
        return " + ".join(self.defenses) or "none"

    @property
    def outcome(self) -> Outcome | None:
        return None if self.verdict is None else self.verdict.outcome

    def assumed(self, kind: Kind) -> tuple[str, ...]:
        """What was assumed of this kind."""
        return tuple(a.what for a in self.assumptions if a.kind == kind)

    @property
    def ssim(self) -> float | None:
        """Mean SSIM of the reconstructions, None where the attack gave none."""
        return None if self.scores is None else self.scores.mean("ssim")

    @property
    def layout(self) -> float | None:
        """Correlation of the layout of the image that shows most, since few of a batch may; None where not measured."""
        return None if self.scores is None else self.scores.best("layout")

    @property
    def pieces_lead(self) -> float | None:
        """As ``layout``, by how much the pieces fit the original better than any other image."""
        return None if self.scores is None else self.scores.best("pieces_lead")

    @property
    def correlation(self) -> float | None:
        """Mean correlation of series; None of anything else."""
        return None if self.scores is None else self.scores.mean("correlation")

    @property
    def evidence(self) -> Evidence:
        """The metric that shows what was seen."""
        return "ssim" if self.verdict is None or self.status != "done" else self.verdict.evidence

    @property
    def auc(self) -> float | None:
        """How well members are recognised among other candidates, None where it was not measured."""
        found = self.leakage.get("auc")
        return None if not found else float(found["value"])

    @property
    def cost(self) -> float | None:
        """Accuracy lost against the training without defense, None where it is unknown."""
        found = self.accuracy.get("cost")
        return None if not found else float(found["value"])


SCORED = ("scores", "null", "baseline")


def to_json(record: DefenseRecord) -> dict[str, Any]:
    """Plain fields. Infinite values (a perfect PSNR) become strings."""
    fields = asdict(record)
    for name in SCORED:
        scores: Scores | None = getattr(record, name)
        fields[name] = None if scores is None else scores.summary()
    return infinity_as_text(fields)


def from_json(fields: dict[str, Any]) -> DefenseRecord:
    """The record that was written down as these fields, in this format or an older one."""
    known = {"adapted": False, **with_infinity(migrated_defense(fields, FORMAT), SCORED)}
    trial = dict(typed(Mapping[str, Any], known.get("trial"), "trial"))
    record = typed(DefenseRecord, {**known, "trial": {**trial, "case": present_fields(trial.get("case"))}})
    typed(ToldApart if "auc" in record.leakage else NotMeasured, record.leakage, "leakage")
    typed(Accuracy if "value" in record.accuracy else NotMeasured, record.accuracy, "accuracy")
    return replace(record, command=safe_command(record.command))


STORE = JsonLines(
    FILE,
    encode=to_json,
    decode=from_json,
    missing="{folder} holds no trials of defenses: it has no {file}; make them with `leakgauge audit`",
)
append, exists, sort = STORE.append, STORE.exists, STORE.sort


def read(folder: Path) -> list[DefenseRecord]:
    """All whole records, in order; of two with one key the later one counts."""
    return list({record.key: record for record in STORE.read(folder)}.values())


def front(points: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Places of the points that no other beats, where less is better in both coordinates; those with NaN are left out.

    A point is beaten by another that is at most as large in both and smaller in one. Equal points stand together.

    >>> front([(0.0, 0.9), (0.1, 0.2), (0.2, 0.2), (0.3, 0.1)])
    (0, 1, 3)
    """
    known = [i for i, point in enumerate(points) if not any(math.isnan(v) for v in point)]
    kept: list[int] = []
    for i in sorted(known, key=lambda i: points[i]):  # by the first coordinate: only what came before can beat
        if not kept or points[i][1] < points[kept[-1]][1] or points[i] == points[kept[-1]]:
            kept.append(i)
    return tuple(sorted(kept))


def evidence(records: Sequence[DefenseRecord]) -> Evidence:
    """The metric that shows what the attack sees without defense, and hence what a defense takes from it."""
    plain = next((record for record in records if not record.defenses), None)
    return "ssim" if plain is None else plain.evidence


def worth_having(records: Sequence[DefenseRecord]) -> tuple[str, ...]:
    """Keys of the trials on the Pareto front of accuracy cost and what the attack sees; those without either are left out.

    None, where the attack fails without defense already: the differences between its failures are chance.
    """
    if any(not record.defenses and record.outcome is not None and not record.outcome.leaks for record in records):
        return ()
    what = evidence(records)
    points = [(_or_nan(record.cost), _or_nan(getattr(record, what))) for record in records]
    return tuple(records[i].key for i in front(points))


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


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
            batch=case.images,
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
        "epsilon": epsilon_of(case, sum(p.numel() for p in base.setup.victim.parameters().values())),
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
    """The attack without a defense is the positive control of all others."""
    plain = None if undefended is None or undefended.outcome is None else undefended.outcome.leaks
    try:
        found = attack_case(trial.case, base.setup, nothing=base.nothing, leaks_undefended=plain)
    except Inapplicable as refusal:
        return {"status": "refused", "reason": str(refusal)}
    return {
        "status": "done",
        "static": _static(trial, base, plain) if depends_on_defense(trial.case) else None,
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
    return spent_epsilon(noise=found.noise, rate=1.0, steps=1, delta=DELTA) if isinstance(found, Mechanism) else None


def depends_on_defense(case: Case) -> bool:
    """Whether an attack that knows the defenses does something else than one that does not."""
    return bool(useful(case.build_defenses()))


def _static(trial: Trial, base: Base, leaks_undefended: bool | None) -> Static:
    found = attack_case(unadapted(trial.case), base.setup, nothing=base.nothing, leaks_undefended=leaks_undefended)
    layout, pieces = (found.scores.best(name) for name in ("layout", "pieces_lead"))
    return Static(found.verdict, found.scores.mean("ssim"), layout, pieces, found.scores.mean("correlation"))


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
        told_apart(base.releases, (GaussianNoise(relative=1.0),), seed=case.seed)

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
