"""Trials of defenses as plain data: what is tried, what came of it, one line of ``defenses.jsonl`` each, and the Pareto front.

The attack of a trial knows the defense; ``static`` is what the same attack sees without knowing it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from leakgauge.audit.case import Case, present_fields, protects
from leakgauge.audit.cause import TruthTest
from leakgauge.audit.files import JsonLines, infinity_as_text, safe_command
from leakgauge.audit.migrate import migrated_defense
from leakgauge.audit.questions import Question
from leakgauge.audit.records import FORMAT, Status, with_infinity, with_summaries
from leakgauge.audit.scoring import Scores
from leakgauge.audit.typed import typed
from leakgauge.audit.verdict import Evidence, Outcome, Verdict
from leakgauge.core import Adaptable, Assumption, Kind
from leakgauge.errors import BadInput

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
    found = replace(case, name="", channel=channels[0] if channels else plain, defenses=defenses)
    may_be_known = bool(defenses) or isinstance(found.build_channel(), Adaptable)
    return replace(found, name="", reveal=(*unadapted(case).reveal, *((KNOWN,) if may_be_known else ())))


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


class Membership(TypedDict):
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

    ``adapted``: the attack knew the defense, which older versions did not try. ``static`` is what it sees otherwise; None where that
    was not tried, because nothing depends on it or the attack refused. ``ignored``: an attack that ignores the defense showed more than
    one that replays it, so the scores and the verdict are its own. ``epsilon`` is what one update spends at δ = 1e-5; None where the
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
    ignored: bool = False
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
    return infinity_as_text(with_summaries(record, SCORED))


def from_json(fields: dict[str, Any]) -> DefenseRecord:
    """The record that was written down as these fields, in this format or an older one."""
    known = {"adapted": False, **with_infinity(migrated_defense(fields, FORMAT), SCORED)}
    trial = dict(typed(Mapping[str, Any], known.get("trial"), "trial"))
    record = typed(DefenseRecord, {**known, "trial": {**trial, "case": present_fields(trial.get("case"))}})
    typed(Membership if "auc" in record.leakage else NotMeasured, record.leakage, "leakage")
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
