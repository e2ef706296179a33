"""What a run folder says about the four questions: every number that is derived from records, once.

Pages, terminal, gate, comparison and advice read findings; :mod:`leakgauge.audit.wording` makes sentences of them. A rule or a threshold
that decides what a number means (when a critic counts, when a control fails, when a defense is cheap) is a name in this file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from leakgauge.audit import records
from leakgauge.audit.bounds import Bound, Unbounded
from leakgauge.audit.case import Change, accepted_options, clients_of, enough_steps, same_protection
from leakgauge.audit.control import Control
from leakgauge.audit.questions import ON_REQUEST, QUESTIONS, Question, answers
from leakgauge.audit.questions import defenses as defense_records
from leakgauge.audit.questions import properties as property_records
from leakgauge.audit.questions import split as scan_records
from leakgauge.audit.questions import training as monitor_records
from leakgauge.audit.questions.answers import Waiting
from leakgauge.audit.questions.defenses import DefenseRecord, worth_having
from leakgauge.audit.questions.properties import PropertyRecord
from leakgauge.audit.questions.split import DECODER, Conclusion, CutRecord, ScanPlan
from leakgauge.audit.questions.training import MonitorRun
from leakgauge.audit.questions.updates import DISHONEST, flips
from leakgauge.audit.records import Captured, Record
from leakgauge.audit.verdict import GLIMPSED, OUTLINED, SCRAMBLED, Evidence, Outcome, Verdict
from leakgauge.data.facts import USUAL, DataFacts, facts_from
from leakgauge.split.envelope import kinks
from leakgauge.split.remedies import Remedy
from leakgauge.split.whitebox import LEAST_SQUARES

SETTLED = 8
"""Scored steps from which a number of the critic counts; with fewer its interval is most of its range."""
CONTROL_LIMIT = 0.05
"""Nats. A control must read about 0; where even its lower bound is above this, the critic learned something else than the data."""
NOISE_LIMIT = 0.1
"""Nats. Under noise with ten times the gradient's norm nothing is left to read; wider than the other controls, for it has no bound."""
ALMOST_ALL_MEMBERS = 0.8
"""Lower bound of the AUC from which almost all members are recognised; 0.5 is guessing."""
GUESSING = 0.5
"""The AUC of a guess."""
EARLY = 0.25
"""Share of the training in which a peak counts as early."""
EXPLAINED = 0.05
"""Mismatch up to which the true batch explains a captured update; beyond it noise was added, or the client did something else."""
MISFIT = 0.5
"""Mismatch of a reconstruction beyond which a captured update may have been replayed at other weights than the client's."""
MOST_POINTS = 2.0
"""Points of accuracy that a defense may cost and still be called cheap: a convention, which your own tolerance may replace."""


def _margin(checks: Iterable[Any], metric: str) -> float:
    return next(check.margin for check in checks if check.metric == metric and check.above == "null")


LEAST_DROP: Mapping[Evidence, float] = {
    "ssim": _margin(GLIMPSED, "ssim"),
    "layout": _margin(OUTLINED, "layout"),
    "pieces_lead": _margin(SCRAMBLED, "pieces_lead"),
}
"""By how much the evidence must fall for a defense to have done anything: by what an attack must beat its null run."""


@dataclass(frozen=True)
class Update:
    """One attacked set-up, numbered as in the report. ``verdict`` is None where it was refused or failed.

    ``change`` is the single change that sets it apart from the set-up it explains. ``diagnostic`` lists the assumptions that no ordinary
    server satisfies, ``malicious`` what a server does against the protocol. ``steps`` and ``usual_steps`` (the attack's own default) are
    None for an attack in closed form; after ``enough_steps`` a negative counts. ``raced`` names the attacks that ran where one tried
    several. ``labels`` is the share of labels that the attack found by itself, None where it was given them or where the data has none;
    ``label_accuracy`` is the share that it expected. ``first`` is the index of the first private image. The client took ``local_steps``
    in all, on ``batches`` different minibatches of ``batch`` images. ``captured`` is what is known of an update that a real client sent;
    None for a simulated one. ``control`` is how the same attack does where it must work. ``bound`` is what no attack can exceed; if there
    is none, ``unbounded`` says why.
    """

    number: int
    name: str
    verdict: Verdict | None
    status: str = "done"
    change: Change | None = None
    reason: str = ""
    setting: str = ""
    mode: str = "train"
    batch: int = 1
    batches: int = 1
    local_steps: int = 1
    defenses: tuple[str, ...] = ()
    diagnostic: tuple[str, ...] = ()
    deployable: tuple[str, ...] = ()
    malicious: tuple[str, ...] = ()
    attack: str = "strongest"
    raced: tuple[str, ...] = ()
    steps: int | None = None
    usual_steps: int | None = None
    enough_steps: int = 0
    restarts: int = 1
    seconds: float = 0.0
    ssim: float | None = None
    psnr: float | None = None
    null_ssim: float | None = None
    null_psnr: float | None = None
    layout: float | None = None
    null_layout: float | None = None
    pieces_lead: float | None = None
    null_pieces_lead: float | None = None
    labels: float | None = None
    label_accuracy: float | None = None
    classes: int | None = None
    first: int = 0
    model: str = ""
    captured: Captured | None = None
    data: DataFacts = USUAL
    control: Control | None = None
    bound: Bound | None = None
    unbounded: Unbounded | None = None

    @property
    def images(self) -> int:
        """Private images in the update."""
        return self.batch * self.batches

    @property
    def attacks(self) -> tuple[str, ...]:
        """Every attack that ran."""
        return self.raced or (self.attack,)

    @property
    def anchor(self) -> str:
        """Its place in the report."""
        return f"case-{self.number}"

    @property
    def outcome(self) -> Outcome | None:
        return None if self.verdict is None else self.verdict.outcome

    @property
    def evidence(self) -> Evidence:
        """The number that shows what was seen: by layout or pieces alone, SSIM and PSNR may be below those of the null run."""
        return "ssim" if self.verdict is None else self.verdict.evidence

    @property
    def leaks(self) -> bool:
        return self.outcome is not None and self.outcome.leaks

    @property
    def unscored(self) -> bool:
        """Attacked without the truth, with which a verdict compares."""
        return self.status == "done" and self.verdict is None and self.captured is not None

    @property
    def plain(self) -> bool:
        """Shared as it is, without a defense, with a server that keeps to the protocol."""
        return not self.defenses and not self.malicious

    @property
    def protocol_broken(self) -> bool:
        """Tried beside what was asked about: the same set-up with a server that does not keep to the protocol."""
        return self.change == DISHONEST


@dataclass(frozen=True)
class Flip:
    """Two set-ups that differ in one thing: ``leaking`` leaks more than ``holding``, which may still leak in part.

    ``change`` leads from one to the other; the outcome there is ``makes``.
    """

    change: str
    leaking: Update
    holding: Update
    makes: Outcome


@dataclass(frozen=True)
class Updates:
    """``every`` set-up in the order of the report, and the single changes that flip a verdict."""

    every: tuple[Update, ...]
    flips: tuple[Flip, ...] = ()

    @property
    def judged(self) -> tuple[Update, ...]:
        return tuple(update for update in self.every if update.verdict is not None)

    @property
    def dishonest(self) -> tuple[Update, ...]:
        """What a server gets that does not keep to the protocol, where that was not asked for: another threat model."""
        return tuple(update for update in self.judged if update.protocol_broken)

    @property
    def own(self) -> tuple[Update, ...]:
        """The judged set-ups that were asked about, without the single changes of a ladder."""
        return tuple(update for update in self.judged if update.change is None)

    @property
    def realistic(self) -> tuple[Update, ...]:
        """Set-ups that were asked about, undefended, with nothing that an ordinary server lacks."""
        return tuple(update for update in self.own if update.plain and not update.diagnostic)


@dataclass(frozen=True)
class Measured:
    """A number with its interval, where one was recorded, at a step of a training."""

    step: int
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Training:
    """A monitored training. ``peak`` and ``last`` are the critic's nats, None where too few steps were scored for a number to count.

    ``ceiling`` is the most the critic can read, ``auc`` how well a white-box adversary recognises members over all its
    looks, ``top1`` how often the critic picked the right one of ``choices`` batches. ``controls``
    holds for each control the most that it is sure to read; a clean one is about 0. ``layers`` are nats by layer, largest first.
    ``scored`` counts the steps that the newest numbers rest on, ``epsilon`` is the guarantee of DP-SGD. ``ended`` is how it ended,
    ``audited`` whether it is part of an audit, which can be resumed.
    """

    steps: int
    alarm_at: int | None = None
    alpha: float = 0.05
    view: str = "released"
    peak: Measured | None = None
    last: Measured | None = None
    ceiling: float | None = None
    auc: Measured | None = None
    top1: Measured | None = None
    choices: int = 16
    controls: tuple[tuple[str, float], ...] = ()
    layers: tuple[tuple[str, float], ...] = ()
    scored: int = 0
    epsilon: float | None = None
    seconds: float | None = None
    ended: str = "finished"
    audited: bool = True
    data: DataFacts = USUAL

    @property
    def failed_controls(self) -> tuple[tuple[str, float], ...]:
        """Controls that read more than chance explains; curve and alarm do not count then."""
        limits = {"null": CONTROL_LIMIT, "decoy": CONTROL_LIMIT}
        return tuple((name, value) for name, value in self.controls if value > limits.get(name, NOISE_LIMIT))

    @property
    def alarmed(self) -> bool:
        """The alarm fired, and its controls are clean."""
        return self.alarm_at is not None and not self.failed_controls

    @property
    def too_short(self) -> bool:
        return self.scored < SETTLED

    @property
    def exposes_members(self) -> bool:
        """Almost all members are recognised."""
        return self.auc is not None and self.auc.low is not None and self.auc.low >= ALMOST_ALL_MEMBERS

    @property
    def beats_guessing(self) -> bool:
        """Some members are recognised, beyond what chance explains. Without an interval the value itself counts."""
        return self.auc is not None and (self.auc.value if self.auc.low is None else self.auc.low) > GUESSING

    @property
    def loudest_layer(self) -> tuple[str, float] | None:
        """The layer that says most by itself, where that is more than a control may read."""
        return self.layers[0] if self.layers and self.layers[0][1] > CONTROL_LIMIT else None

    @property
    def steps_stated(self) -> tuple[int, ...]:
        """Steps with numbers that a statement about the training quotes."""
        quoted = {one.step for one in (self.peak, self.last, self.auc) if one is not None}
        return tuple(sorted(quoted))

    @property
    def peaks_early(self) -> bool:
        """The critic read most in the beginning, clearly more than at the end."""
        if self.peak is None or self.last is None or self.failed_controls:
            return False
        apart = self.peak.low is not None and self.last.high is not None and self.peak.low > self.last.high
        return apart and self.peak.step <= EARLY * self.steps


@dataclass(frozen=True)
class Split:
    """A scan of cuts. ``finished`` is whether it came to its conclusion; what follows from one is empty before.

    ``scanned`` of ``cuts`` were attacked at least once, ``decoded`` by decoders, which took ``decoder_epochs`` in all and ``epochs_here``
    at the recommended cut; ``decoders`` is whether any were planned. The cloud owns ``auxiliary`` images and attacks ``tested`` others.
    ``fvu`` and ``bytes`` are of the recommended cut; ``safest`` is the cut with the highest FVU of all. ``larger`` names the cuts that
    send more than the raw image, ``larger_than_jpeg`` those that send more than its JPEG. At ``weak`` cuts an attack on a deeper one did
    better; at ``stopped`` ones the decoder stopped once it had shown the leak. ``refused`` holds attack, cut and reason. ``notes`` are
    remarks of the plan. ``audited`` is whether it is part of an audit.

    ``best`` names the attack that did best at each cut, ``by`` the one at the recommended cut, where ``reidentified`` is the largest
    share of images that an attack named; at most ``recognised`` may be. ``computed`` cuts were attacked by least squares.
    ``candidate`` is the shallowest cut that no attack broke; if it is ``undertrained``, its decoder did worse than regression.
    ``blurred`` cuts keep the threshold, but their images are re-identified. ``remedy`` would protect where no cut does by itself.
    """

    threshold: float
    cuts: int
    scanned: int = 0
    finished: bool = True
    recommended: str | None = None
    fvu: float | None = None
    bytes: int | None = None
    raw_bytes: int | None = None
    jpeg_bytes: float | None = None
    numbers: str = "float32"
    edge_share: float | None = None
    decoders: bool = True
    decoded: int = 0
    decoder_epochs: int = 0
    epochs_here: int = 0
    auxiliary: int = 0
    tested: int = 0
    safest: str | None = None
    safest_fvu: float | None = None
    require: str = ""
    defenses: tuple[str, ...] = ()
    larger: tuple[str, ...] = ()
    larger_than_jpeg: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    refused: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()
    audited: bool = True
    best: tuple[tuple[str, str], ...] = ()
    by: str = ""
    reidentified: float | None = None
    recognised: float = 1.0
    computed: int = 0
    candidate: str | None = None
    undertrained: bool = False
    blurred: tuple[str, ...] = ()
    accuracy: float | None = None
    remedy: Remedy | None = None
    data: DataFacts = USUAL

    @property
    def larger_here(self) -> bool:
        """The recommended cut sends more than the raw image."""
        return (self.bytes_ratio or 0) > 1

    @property
    def bytes_ratio(self) -> float | None:
        """Bytes of the recommended cut for each byte of the raw image."""
        return None if self.bytes is None or not self.raw_bytes else self.bytes / self.raw_bytes

    @property
    def only_output(self) -> bool:
        """The recommended cut is the model's output: the device does all the work, and nothing is split."""
        return self.edge_share == 1


@dataclass(frozen=True)
class Unanswered:
    """A question without an answer: it was not asked (no reason), it was refused, or it ``failed`` unexpectedly.

    ``reached`` is False where it was asked, and the run was stopped before it came to it.
    """

    question: Question
    reason: str = ""
    failed: bool = False
    reached: bool = True


@dataclass(frozen=True)
class Defended:
    """One defense at one strength. ``cost`` is the accuracy lost, in points, against the same training without it.

    ``ssim`` is that of the attack, ``auc`` how well members of a batch are still recognised, with its lower bound. ``front`` is whether
    no other row is better at both the attack and the accuracy. ``layout`` and ``pieces_lead`` are those of the image that shows most.
    """

    number: int
    defenses: tuple[str, ...]
    verdict: Verdict | None
    status: str = "done"
    reason: str = ""
    ssim: float | None = None
    layout: float | None = None
    pieces_lead: float | None = None
    auc: float | None = None
    auc_low: float | None = None
    cost: float | None = None
    cost_low: float | None = None
    cost_high: float | None = None
    front: bool = False

    @property
    def anchor(self) -> str:
        return f"defense-{self.number}"

    @property
    def name(self) -> str:
        """The defenses as they are written on the command line, or ``none``."""
        return " + ".join(self.defenses) or "none"

    @property
    def outcome(self) -> Outcome | None:
        return None if self.verdict is None else self.verdict.outcome

    @property
    def leaks(self) -> bool:
        return self.outcome is not None and self.outcome.leaks

    @property
    def evidence(self) -> Evidence:
        return "ssim" if self.verdict is None else self.verdict.evidence

    @property
    def hides_members(self) -> bool:
        """Nobody was shown to recognise members better than by guessing."""
        return self.auc is not None and (self.auc if self.auc_low is None else self.auc_low) <= GUESSING

    @property
    def cheap(self) -> bool:
        return self.cost is not None and self.cost <= MOST_POINTS


@dataclass(frozen=True)
class Defenses:
    """``undefended`` is the row that all others are compared with; set-up, attack and training are the same for all rows.

    ``clients`` is the number of clients whose updates are added up before anyone sees them; one sends its own. ``broken`` pairs a row
    that held with a set-up of the same model that leaks under the same defense: after more steps, or on other images.
    """

    undefended: Defended
    rows: tuple[Defended, ...]
    setting: str = ""
    clients: int = 1
    steps: int | None = None
    train_steps: int | None = None
    seconds: float = 0.0
    diagnostic: tuple[str, ...] = ()
    deployable: tuple[str, ...] = ()
    model: str = ""
    broken: tuple[tuple[Defended, Update], ...] = ()

    @cached_property
    def held(self) -> tuple[Defended, ...]:
        return tuple(row for row in self.rows if row.outcome is Outcome.INFEASIBLE)

    @cached_property
    def holding(self) -> tuple[Defended, ...]:
        """Rows that earned it: the undefended attack leaks, the row stops it clearly, and nothing leaks under it elsewhere."""
        if not self.undefended.leaks:
            return ()
        broken = [row for row, _ in self.broken]
        return tuple(row for row in self.held if row not in broken and self._earned(row))

    @property
    def best(self) -> Defended | None:
        """The cheap one that holds: on the Pareto front, then the cheapest."""
        cheap = sorted((r for r in self.holding if r.cheap), key=lambda row: (not row.front, row.cost))
        return cheap[0] if cheap else None

    @property
    def none_is_cheap(self) -> bool:
        return self.undefended.leaks and bool(self.rows) and self.best is None

    @property
    def cost_unknown(self) -> bool:
        """Defenses hold, and not one of them has a known price."""
        return bool(self.holding) and all(row.cost is None for row in self.holding)

    def seen(self, row: Defended) -> float | None:
        """What the attack saw of a row, in the number that shows what it saw without a defense."""
        return getattr(row, self.undefended.evidence)

    def _earned(self, row: Defended) -> bool:
        """Whether clearly less is seen; where that was not scored the verdict alone counts."""
        before, after = self.seen(self.undefended), self.seen(row)
        return before is None or after is None or before - after >= LEAST_DROP[self.undefended.evidence]


@dataclass(frozen=True)
class Findings:
    """What is known of each question; None where it has no answer, and then ``unanswered`` says why.

    ``waiting`` holds questions that are answered in part, since the run was stopped; ``incomplete`` those that have records although
    they were refused or failed before the end.
    """

    updates: Updates | None = None
    training: Training | None = None
    split: Split | None = None
    defenses: Defenses | None = None
    properties: tuple[PropertyRecord, ...] | None = None
    unanswered: tuple[Unanswered, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    incomplete: tuple[Unanswered, ...] = ()

    def __post_init__(self) -> None:
        """Whether a defense held depends on the set-ups too: one that leaks under the same defense breaks it."""
        if self.defenses is not None and self.updates is not None:
            broken = _broken(self.defenses.rows, self.defenses.model, self.updates.own)
            object.__setattr__(self, "defenses", replace(self.defenses, broken=broken))


def read_findings(folder: Path) -> Findings:
    """Everything that the files in ``folder`` say. A question without records was not asked, or the audit says why."""
    said, late = answers.read(folder), answers.not_reached(folder)
    found = {
        "updates": _read_updates(folder),
        "training": _read_training(folder),
        "split": _read_split(folder),
        "defenses": _read_defenses(folder),
        "properties": _read_properties(folder),
    }
    missing: list[Unanswered] = []
    partly: list[Unanswered] = []
    for question in QUESTIONS:
        answer = found[question]
        if answer == Unanswered(question) and question in ON_REQUEST and question not in {*said, *late}:
            found[question] = None
            continue
        if answer == Unanswered(question) and (ended := said.get(question)):
            answer = Unanswered(question, ended.reason or ended.status, failed=ended.status == "failed")
        elif answer == Unanswered(question):
            answer = Unanswered(question, reached=question not in late)
        if isinstance(answer, Unanswered):
            missing.append(answer)
            found[question] = None
        elif (ended := said.get(question)) and ended.status != "answered":
            partly.append(Unanswered(question, ended.reason or ended.status, failed=ended.status == "failed"))
    return Findings(**found, unanswered=tuple(missing), waiting=answers.waiting(folder), incomplete=tuple(partly))


def _read_updates(folder: Path) -> Updates | Unanswered:
    return updates_of(records.read(folder)) if records.exists(folder) else Unanswered("updates")


def _read_training(folder: Path) -> Training | Unanswered:
    return training_of(monitor_records.read(folder)) if monitor_records.exists(folder) else Unanswered("training")


def _read_split(folder: Path) -> Split | Unanswered:
    if not scan_records.exists(folder):
        return Unanswered("split")
    return split_of(scan_records.read_plan(folder), scan_records.read(folder), scan_records.read_conclusion(folder))


def _read_defenses(folder: Path) -> Defenses | Unanswered:
    return defenses_of(defense_records.read(folder)) if defense_records.exists(folder) else Unanswered("defenses")


def _read_properties(folder: Path) -> tuple[PropertyRecord, ...] | Unanswered:
    return (property_records.read(folder) if property_records.exists(folder) else ()) or Unanswered("properties")


def updates_of(found: Sequence[Record]) -> Updates | Unanswered:
    """The set-ups in the order and with the numbers of the report: one that was run again counts once, as it ended last."""
    latest = records.latest(found)
    every = tuple(_update(number, record) for number, record in enumerate(latest, start=1))
    if not any(update.verdict or update.unscored for update in every):
        reasons = list(dict.fromkeys(update.reason for update in every if update.reason))
        broken = any(record.broken for record in latest)
        return Unanswered("updates", "; ".join(reasons) or "no set-up was judged", failed=broken)
    return Updates(every, tuple(_flips(latest, every)))


def _flips(latest: Sequence[Record], every: Sequence[Update]) -> Iterable[Flip]:
    by_key = {record.key: update for record, update in zip(latest, every, strict=True)}
    for flip in flips(latest):
        leaking, holding = by_key[flip.leaking.key], by_key[flip.holding.key]
        yield Flip(flip.change, leaking, holding, flip.makes)


def _update(number: int, record: Record) -> Update:
    case, done = record.case, record.status == "done"
    usual = accepted_options(case)
    steps = case.options.get("steps", usual.get("steps"))
    restarts = case.options.get("restarts", usual.get("restarts", 1))
    usual_steps = usual.get("steps")
    given = "labels" in {spec.partition(":")[0] for spec in case.reveal}
    scores, null = record.scores, record.null
    means: dict[str, float | None] = {
        **{name: None if scores is None else scores.mean(name) for name in ("ssim", "psnr", "layout", "pieces_lead")},
        **{f"null_{n}": None if null is None else null.mean(n) for n in ("ssim", "psnr", "layout", "pieces_lead")},
    }
    return Update(
        number=number,
        name=case.name,
        verdict=record.verdict if done else None,
        status=record.status,
        change=case.change,
        reason=record.reason,
        setting=f"{case.model}, {case.setting()}",
        mode=case.mode,
        batch=case.batch_size,
        batches=case.local_steps,
        local_steps=1 if record.local is None else record.local.steps,
        defenses=case.protections(),
        diagnostic=record.assumed("diagnostic"),
        deployable=record.assumed("deployable"),
        malicious=record.assumed("malicious"),
        attack=case.attack,
        raced=tuple(dict.fromkeys(one.name for one in record.raced if not one.refused)),
        steps=steps if isinstance(steps, int) else None,
        usual_steps=usual_steps if isinstance(usual_steps, int) else None,
        enough_steps=enough_steps(case),
        restarts=restarts if isinstance(restarts, int) else 1,
        seconds=record.seconds,
        **means,
        labels=None if given or scores is None else scores.mean("labels"),
        label_accuracy=record.label_accuracy,
        classes=record.victim.classes or None,
        first=case.first,
        model=case.model,
        captured=record.captured,
        data=record.data,
        control=record.control,
        bound=record.bound if done else None,
        unbounded=record.unbounded if done else None,
    )


def training_of(run: MonitorRun) -> Training | Unanswered:
    """The training as far as it was watched; the numbers of the critic from the reports that rest on enough steps."""
    if not run.reports:
        return Unanswered("training", str(run.end.get("why") or "no step was measured"), run.end.get("how") == "failed")
    newest = run.reports[-1]
    settled = [r for r in run.reports if scalar(r, "infonce_nats") is not None and is_settled(r)]
    top = max(settled, key=lambda r: scalar(r, "infonce_nats") or -math.inf, default=None)
    looks = [r for r in run.reports if scalar(r, "whitebox/auc") is not None]
    read = {str(n): float(v) for n, v in (newest.get("layers") or {}).items() if v is not None}
    layers = sorted(read.items(), key=lambda pair: -pair[1])
    seconds = run.end.get("seconds")
    return Training(
        steps=int(run.end.get("step") or newest["step"]),
        alarm_at=newest.get("alarm_at"),
        alpha=float(newest.get("alpha") or 0.05),
        view=str(newest.get("view") or run.about.get("view") or "released"),
        peak=None if top is None else _measured(top, "infonce_nats"),
        last=_measured(settled[-1], "infonce_nats") if settled else None,
        ceiling=scalar(newest, "infonce_ceiling"),
        auc=_members(looks[-1]) if looks else None,
        top1=_measured(settled[-1], "top1") if settled and scalar(settled[-1], "top1") is not None else None,
        choices=int(newest.get("choices") or 16),
        controls=() if top is None else _controls((top, settled[-1])),
        layers=tuple(layers),
        scored=int(scalar(newest, "pairs") or 0),
        epsilon=scalar(newest, "epsilon"),
        seconds=None if seconds is None else float(seconds),
        ended=str(run.end.get("how") or "not on record"),
        audited=bool(run.about.get("audited")),
        data=facts_from(run.about.get("data") or {}),
    )


def scalar(report: Mapping[str, Any], name: str) -> float | None:
    """A number of one report of a monitored training, None where it was not measured."""
    found = report["scalars"].get(f"privacy/{name}")
    return None if found is None else float(found)


def is_settled(report: Mapping[str, Any]) -> bool:
    """Whether enough steps were scored for the critic's numbers in this report to count."""
    return (scalar(report, "pairs") or 0.0) >= SETTLED


CRITIC = ("infonce_nats", "top1", *(f"control/{name}_nats" for name in ("null", "decoy", "noise_1x", "noise_10x")))
"""Numbers of the critic and of its controls."""


def counted(report: Mapping[str, Any], name: str, end: Literal["", "_low", "_high"] = "") -> float | None:
    """A number of one report, or an end of its interval; None where it was not measured or rests on too few steps to count."""
    return None if name in CRITIC and not is_settled(report) else scalar(report, name + end)


def _measured(report: Mapping[str, Any], name: str) -> Measured:
    """For reports that hold the number."""
    value = float(report["scalars"][f"privacy/{name}"])
    return Measured(int(report["step"]), value, scalar(report, f"{name}_low"), scalar(report, f"{name}_high"))


def _members(report: Mapping[str, Any]) -> Measured:
    """The AUC over all looks so far; of the last one in reports that do not pool them."""
    pooled = scalar(report, "whitebox/pooled_auc") is not None
    return _measured(report, "whitebox/pooled_auc" if pooled else "whitebox/auc")


def _controls(reports: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, float], ...]:
    """For each control the most that it is sure to read: the lower bound, or the value itself where noise has no bound."""
    names = {"null": "null_nats_low", "decoy": "decoy_nats_low", "noise 10×": "noise_10x_nats"}
    found = {}
    for shown, name in names.items():
        values = [value for report in reports if (value := scalar(report, f"control/{name}")) is not None]
        if values:
            found[shown] = max(values)
    return tuple(found.items())


def split_of(plan: ScanPlan, found: Sequence[CutRecord], end: Conclusion | None) -> Split | Unanswered:
    """The scan's own conclusion, with the numbers of the cut that it names."""
    refusals = [str(record.risk["refusal"]) for record in found if record.risk.get("refusal")]
    if found and len(refusals) == len(found):
        return Unanswered("split", "; ".join(dict.fromkeys(refusals)))
    names = [str(cut["name"]) for cut in plan.cuts]
    trained = [record for record in found if record.attack == DECODER]

    def larger_than(size: float) -> tuple[str, ...]:
        return tuple(str(cut["name"]) for cut in plan.cuts if cut["bytes"] > size)

    known = {
        "threshold": plan.threshold,
        "cuts": len(names),
        "scanned": len({record.cut for record in found}),
        "raw_bytes": plan.raw_bytes,
        "numbers": plan.numbers,
        "require": plan.require,
        "defenses": plan.case.defenses,
        "audited": plan.audited,
        "decoder_epochs": sum(record.epochs for record in trained),
        "decoded": len({record.cut for record in trained}),
        "decoders": plan.epochs != 0,
        "computed": len({record.cut for record in found if record.attack == LEAST_SQUARES}),
        "recognised": plan.recognised,
        "best": tuple((name, best.by) for name in names if (best := _best(found, name)) is not None),
        "accuracy": next((r.risk["accuracy"] for r in found if r.risk.get("accuracy") is not None), None),
        "auxiliary": plan.auxiliary,
        "tested": plan.tested,
        "jpeg_bytes": plan.jpeg_bytes,
        "larger": larger_than(plan.raw_bytes),
        "larger_than_jpeg": () if plan.jpeg_bytes is None else larger_than(plan.jpeg_bytes),
        "stopped": tuple(dict.fromkeys(r.cut for r in trained if r.stopped_early and r.fvu < plan.threshold)),
        "refused": tuple(
            dict.fromkeys((r.attack, r.cut, str(r.risk["refusal"])) for r in found if r.risk.get("refusal"))
        ),
        "notes": plan.notes,
        "data": plan.data,
    }
    if end is None:
        return Split(**known, finished=False)
    kept = dict(zip(names, end.envelope, strict=True))
    measured = {name: value for name, value in kept.items() if value is not None}
    safest = max(measured, key=measured.__getitem__, default=None)
    cut = {} if end.recommended is None else plan.cuts[names.index(end.recommended)]
    return Split(
        **known,
        recommended=end.recommended,
        fvu=None if end.recommended is None else kept[end.recommended],
        bytes=int(cut["bytes"]) if cut else None,
        edge_share=float(cut["edge_share"]) if cut else None,
        safest=safest,
        safest_fvu=None if safest is None else measured[safest],
        epochs_here=max((record.epochs for record in trained if record.cut == end.recommended), default=0),
        weak=_weak(names, found),
        by="" if (best := _best(found, end.recommended)) is None else best.by,
        reidentified=max(
            (r.reidentified for r in found if r.cut == end.recommended and not math.isnan(r.reidentified)), default=None
        ),
        candidate=end.candidate,
        undertrained=end.undertrained,
        blurred=tuple(
            name
            for name, value in measured.items()
            if value >= plan.threshold
            and any(r.reidentified > plan.recognised for r in found if r.cut == name and not math.isnan(r.reidentified))
        ),
        remedy=end.remedy,
    )


def _best(found: Sequence[CutRecord], cut: str | None) -> CutRecord | None:
    """The record of the lowest FVU at the cut; None if no attack ran."""
    return min((r for r in found if r.cut == cut and not math.isnan(r.fvu)), key=lambda r: r.fvu, default=None)


def _weak(names: Sequence[str], found: Sequence[CutRecord]) -> tuple[str, ...]:
    """Cuts at which every attack was beaten by one on a deeper cut, which the cloud can make of the same features."""
    best = {
        name: min((r.fvu for r in found if r.cut == name and not math.isnan(r.fvu)), default=None) for name in names
    }
    usable = [(name, value) for name, value in best.items() if value is not None]
    return kinks([name for name, _ in usable], [value for _, value in usable])


def defenses_of(found: Sequence[DefenseRecord]) -> Defenses | Unanswered:
    """The trials of one set-up: the first one without a defense, and all that are compared with it."""
    base = next((record for record in found if not record.defenses), None)
    if base is None:
        return Unanswered("defenses", "the trial without a defense is not on record", failed=True)
    best = worth_having(found)
    each = {record.key: _defended(number, record, record.key in best) for number, record in enumerate(found, start=1)}
    case = base.trial.case
    steps = case.options.get("steps")
    rows = tuple(each[record.key] for record in found if record.defenses)
    return Defenses(
        undefended=each[base.key],
        rows=rows,
        setting=", ".join(
            part for part in (case.model, f"{case.mode} mode", f"batch {case.batch_size}", case.channel) if part
        ),
        clients=clients_of(case.channel),
        steps=steps if isinstance(steps, int) else None,
        train_steps=base.trial.train_steps,
        seconds=sum(record.seconds for record in found),
        diagnostic=base.assumed("diagnostic"),
        deployable=base.assumed("deployable"),
        model=case.model,
    )


def _broken(rows: Sequence[Defended], model: str, own: Sequence[Update]) -> tuple[tuple[Defended, Update], ...]:
    """Rows that held, each with a set-up of the same model that leaks under the same defense."""
    leaks = {_protection(u.defenses): u for u in own if u.defenses and u.leaks and u.model == model}
    held = [row for row in rows if row.outcome is Outcome.INFEASIBLE]
    return tuple((row, leaks[key]) for row in held if (key := _protection(row.defenses)) in leaks)


def _protection(specs: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(same_protection, specs))


def _defended(number: int, record: DefenseRecord, front: bool) -> Defended:
    cost = record.accuracy.get("cost") or {}
    low, value, high = (
        None if (found := cost.get(end)) is None else 100 * float(found) for end in ("low", "value", "high")
    )
    return Defended(
        number=number,
        defenses=record.defenses,
        verdict=record.verdict if record.status == "done" else None,
        status=record.status,
        reason=record.reason,
        ssim=record.ssim,
        layout=record.layout,
        pieces_lead=record.pieces_lead,
        auc=record.auc,
        auc_low=(record.leakage.get("auc") or {}).get("low"),
        cost=value,
        cost_low=low,
        cost_high=high,
        front=front,
    )
