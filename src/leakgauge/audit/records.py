"""A record is one line of JSON per audited case. The report, the gate and the advice are made of records and of nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from leakgauge.audit import evidence
from leakgauge.audit.bounds import Bound, Unbounded
from leakgauge.audit.case import Case, Change, present_fields
from leakgauge.audit.cause import TruthTest
from leakgauge.audit.control import Control
from leakgauge.audit.files import JsonLines, infinity_as_text, infinity_from_text, picture_in, safe_command
from leakgauge.audit.identifiability import Identifiable
from leakgauge.audit.migrate import migrated
from leakgauge.audit.questions import Question
from leakgauge.audit.scoring import Interval, Scores, values_in
from leakgauge.audit.series_record import SeriesFacts
from leakgauge.audit.table_record import TableFacts
from leakgauge.audit.text_record import TextFacts
from leakgauge.audit.typed import Misfit, typed
from leakgauge.audit.verdict import Outcome, Verdict
from leakgauge.channels.facts import LocalTraining
from leakgauge.core import Assumption, Kind, Learned, Raced
from leakgauge.data.facts import USUAL, DataFacts
from leakgauge.errors import BadInput

FORMAT = 5
"""Of a line. Format 5 says why an attack failed and how its control did, format 4 what raced, format 3 holds the verdict as facts;
records of 0.1 hold sentences. All are converted as they are read."""
FILE = "records.jsonl"
Status = Literal["done", "refused", "error", "withdrawn"]


@dataclass(frozen=True)
class VictimFacts:
    """What is public about the attacked model. ``classes`` is 0 and ``shape`` is empty where the model was never run."""

    name: str = ""
    mode: str = ""
    parameters: int = 0
    classes: int = 0
    shape: tuple[int, ...] = ()
    device: str = ""


@dataclass(frozen=True)
class Curve:
    """The objective at each recorded step, one row per restart; None where it was not finite."""

    steps: tuple[int, ...] = ()
    losses: tuple[tuple[float | None, ...], ...] = ()


@dataclass(frozen=True)
class Frame:
    """The candidate at one step, as a picture relative to the run folder."""

    step: int
    picture: str


Start = Literal["file", "fixed", "random"]
"""Where the weights came from at which a captured update is replayed: a file, the model's own, or the model's own drawn at random."""


@dataclass(frozen=True)
class Captured:
    """An update that a real client sent, and how well it is explained.

    ``update``, ``weights`` and ``truth`` are the files, ``holds`` is what the update is; empty where there is none. ``start`` says where
    the weights before the update came from. ``statistics``: running statistics that a batch had changed came with it. ``labels`` are those
    the attack read. A mismatch is 1 − cosine between the captured update and the one that the reconstruction, the null run or the true
    batch would make (0: the same direction); None where it cannot be replayed.
    """

    update: str
    holds: str = "delta"
    weights: str = ""
    start: Start = "file"
    truth: str = ""
    statistics: bool = False
    labels: tuple[int, ...] | None = None
    mismatch: float | None = None
    null_mismatch: float | None = None
    truth_mismatch: float | None = None


@dataclass(frozen=True)
class Record:
    """Everything one case produced.

    ``scores``, ``null`` and ``baseline`` are of the attack, its null run and the trivial baseline, ``start`` is of the start that was
    revealed; None where there is none. ``restarts`` maps a metric to its value for each restart (mean over the batch), ``intervals`` to
    the mean over restarts where there are several. ``test`` says how well truth and result explain what was sent, ``control`` how the
    same attack does where it must work; None where that was not tried. ``pictures`` maps truth / reconstruction / null / baseline to a
    PNG strip (images side by side, 1 pixel gap) relative to the run folder. ``stated`` is what the attack said could be recovered before
    it solved anything, ``label_accuracy`` the share of its labels that it expects to be right, in any order, ``raced`` what an attack
    that tries several others tried. ``finished`` is the time (UTC, ISO 8601) at which the case was done. ``captured`` is None for a
    simulated client; of a captured update without the truth there are pictures, but neither scores nor a verdict. ``bound`` is what no
    attack can exceed; if there is none, ``unbounded`` says why, where that is known. ``certified`` says of each image, in the order of
    the pictures, whether the attack certified it exact without the truth; it is empty where the attack has no certificates.
    ``identifiable`` says which directions of the images what was shared determines, where that was measured. ``text`` is what was found
    of sentences, ``table`` of rows; such a record has no scores of images. ``series`` holds the values of series, which have no pictures.
    ``learned`` is what a prior of the adversary learned and cannot make, where the attack has one; what it makes by itself is the picture
    ``prior``. On disk each score is ``{"mean", "min", "max", "per_image": [...]}``, and ``local`` is the local training that the case
    describes.
    """

    key: str
    status: Status
    case: Case
    attack: str
    channel: str
    defenses: tuple[str, ...]
    versions: Mapping[str, str]
    seconds: float
    peak_bytes: int
    victim: VictimFacts = VictimFacts()
    data: DataFacts = USUAL
    assumptions: tuple[Assumption, ...] = ()
    scores: Scores | None = None
    null: Scores | None = None
    baseline: Scores | None = None
    start: Scores | None = None
    restarts: Mapping[str, Sequence[float]] = field(default_factory=dict)
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    verdict: Verdict | None = None
    test: TruthTest | None = None
    control: Control | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()
    stated: tuple[tuple[str, str], ...] = ()
    label_accuracy: float | None = None
    raced: tuple[Raced, ...] = ()
    curve: Curve = Curve()
    pictures: Mapping[str, str] = field(default_factory=dict)
    progress: tuple[Frame, ...] = ()
    command: str = ""
    finished: str = ""
    captured: Captured | None = None
    question: Question = "updates"
    bound: Bound | None = None
    unbounded: Unbounded | None = None
    certified: tuple[bool, ...] = ()
    identifiable: Identifiable | None = None
    text: TextFacts | None = None
    series: SeriesFacts | None = None
    table: TableFacts | None = None
    learned: Learned | None = None
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.finished:
            evidence.moment(self.finished)

    @property
    def broken(self) -> bool:
        """Whether the case still has to be run: it crashed, or its record was withdrawn."""
        return self.status in ("error", "withdrawn")

    @property
    def outcome(self) -> Outcome | None:
        """None where the case was refused or failed."""
        return None if self.verdict is None else self.verdict.outcome

    @property
    def change(self) -> Change | None:
        """The single change that sets the case apart from the set-up it explains."""
        return self.case.change

    @property
    def local(self) -> LocalTraining | None:
        """The local training of each client; None where it sent a gradient, or by a channel that only another version knows."""
        try:
            return self.case.local_training()
        except BadInput:
            return None

    def assumed(self, kind: Kind) -> tuple[str, ...]:
        """What was assumed of this kind."""
        return tuple(a.what for a in self.assumptions if a.kind == kind)


SCORED = ("scores", "null", "baseline", "start")


def to_json(record: Record) -> dict[str, Any]:
    """Plain fields. Infinite values (a perfect PSNR) become the strings "inf" and "-inf"."""
    fields = with_summaries(record, SCORED)
    fields["local"] = None if record.local is None else asdict(record.local)
    return infinity_as_text(fields)


def from_json(fields: dict[str, Any]) -> Record:
    """The record that was written down as these fields, in this format or an older one."""
    known = with_infinity(migrated(fields, FORMAT), SCORED)
    known.pop("local", None)  # follows from the case
    record = typed(Record, {**known, "case": present_fields(known.get("case"))})
    for name in SCORED:
        scores: Scores | None = getattr(record, name)
        if scores is not None and len(scores.ssim) != record.case.images:
            raise Misfit(f"{name} should hold a value for each of the {record.case.images} images of the case")
    return replace(record, command=safe_command(record.command))


def with_summaries(record: Any, scored: Sequence[str]) -> dict[str, Any]:
    """The fields of a record, with a summary in place of each of its :class:`Scores`."""
    scores: dict[str, Scores | None] = {name: getattr(record, name) for name in scored}
    return {**asdict(record), **{name: None if one is None else one.summary() for name, one in scores.items()}}


BY_METRIC = ("restarts", "intervals")
"""Fields, beside the scores, that hold something for each metric."""


def with_infinity(fields: Mapping[str, Any], scored: Sequence[str]) -> dict[str, Any]:
    """Fields of a record with scores as :class:`Scores` holds them, and infinity as a number where there may be one."""
    scores = {name: values_in(fields.get(name)) for name in scored}
    return {**fields, **{name: _unbounded(one) for name, one in scores.items()}, **_restored(fields)}


def _restored(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _unbounded(fields[name]) for name in BY_METRIC if name in fields}


def _unbounded(by_metric: Any) -> Any:
    """Only the PSNR of a perfect reconstruction is infinite."""
    if not isinstance(by_metric, Mapping):
        return by_metric
    return {name: infinity_from_text(v) if name.startswith("psnr") else v for name, v in by_metric.items()}


STORE = JsonLines(
    FILE,
    encode=to_json,
    decode=from_json,
    missing="{folder} is not a run folder: it has no {file}; give the folder that `leakgauge audit --out` wrote",
)
append, exists, sort = STORE.append, STORE.exists, STORE.sort


def read(folder: Path) -> list[Record]:
    """Every record of the run; one that was withdrawn after it was written has no result any more, only the reason."""
    withdrawn = {edit.key: edit for edit in evidence.edits(folder)}
    return [_counted(record, withdrawn.get(record.key)) for record in STORE.read(folder)]


def _counted(record: Record, edit: evidence.Edit | None) -> Record:
    if edit is None or (record.finished and evidence.moment(record.finished) > evidence.moment(edit.at)):
        return record  # it was run again since
    reason = f"withdrawn by {edit.author}: {edit.reason}"
    return replace(
        record, status="withdrawn", reason=reason, verdict=None, scores=None, null=None, baseline=None, start=None,
        test=None, control=None, text=None, series=None, table=None,
    )  # fmt: skip


def drop(folder: Path, record: Record) -> None:
    """Removes a record that another one of the same set-up, with other steps, takes the place of; its pictures go too."""
    STORE.drop(folder, record.key)
    for name in (*record.pictures.values(), *(frame.picture for frame in record.progress)):
        if (path := picture_in(folder, name)) is not None:
            path.unlink(missing_ok=True)


def latest(found: Sequence[Record]) -> list[Record]:
    """The last record of every set-up: one that was run again counts once, as it ended last."""
    return list({record.key: record for record in found}.values())
