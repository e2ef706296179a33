"""A record is one line of JSON per audited case. The report, the gate and the advice are made of records and of nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from leakgauge.audit import evidence
from leakgauge.audit.case import Case, Change, restored
from leakgauge.audit.files import JsonLines, infinity_as_text, infinity_from_text
from leakgauge.audit.migrate import migrated
from leakgauge.audit.questions import Question
from leakgauge.audit.scoring import Interval, Scores, scores_from
from leakgauge.audit.verdict import Outcome, Verdict, verdict_from
from leakgauge.core import Assumption, Kind

FORMAT = 3
"""Of a line. Format 3 holds the verdict as facts; records of 0.1 hold sentences and are converted as they are read."""
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


@dataclass(frozen=True)
class Record:
    """Everything one case produced.

    ``scores``, ``null`` and ``baseline`` are of the attack, its null run and the trivial baseline, ``start`` is of the start that was
    revealed; None where there is none. ``restarts`` maps a metric to its value for each restart (mean over the batch), ``intervals`` to
    the mean over restarts where there are several. ``pictures`` maps truth / reconstruction / null / baseline to a PNG strip (images
    side by side, 1 pixel gap) relative to the run folder. ``stated`` is what the attack said could be recovered before it solved
    anything. ``finished`` is the time (UTC, ISO 8601) at which the case was done. On disk each score is
    ``{"mean", "min", "max", "per_image": [...]}``.
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
    assumptions: tuple[Assumption, ...] = ()
    scores: Scores | None = None
    null: Scores | None = None
    baseline: Scores | None = None
    start: Scores | None = None
    restarts: Mapping[str, Sequence[float]] = field(default_factory=dict)
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    verdict: Verdict | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()
    stated: tuple[tuple[str, str], ...] = ()
    curve: Curve = Curve()
    pictures: Mapping[str, str] = field(default_factory=dict)
    progress: tuple[Frame, ...] = ()
    command: str = ""
    finished: str = ""
    question: Question = "updates"
    format: int = FORMAT

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

    def assumed(self, kind: Kind) -> tuple[str, ...]:
        """What was assumed of this kind."""
        return tuple(a.what for a in self.assumptions if a.kind == kind)


SCORED = ("scores", "null", "baseline", "start")


def to_json(record: Record) -> dict[str, Any]:
    """Plain fields. Infinite values (a perfect PSNR) become the strings "inf" and "-inf"."""
    fields = asdict(record)
    for name in SCORED:
        scores: Scores | None = getattr(record, name)
        fields[name] = None if scores is None else scores.summary()
    return infinity_as_text(fields)


def from_json(fields: dict[str, Any]) -> Record:
    """The record that was written down as these fields, in this format or an older one."""
    known = infinity_from_text(migrated(fields, FORMAT))
    verdict = known["verdict"]
    return Record(
        **{
            **known,
            **{name: scores_from(known[name] or {}) for name in SCORED},
            "case": restored(known["case"]),
            "victim": VictimFacts(**{**known["victim"], "shape": tuple(known["victim"].get("shape", ()))}),
            "assumptions": assumptions_from(known["assumptions"]),
            "intervals": {name: Interval(**one) for name, one in known["intervals"].items()},
            "verdict": None if verdict is None else verdict_from(verdict),
            "stated": tuple((str(question), str(answer)) for question, answer in known["stated"]),
            "curve": Curve(tuple(known["curve"]["steps"]), tuple(map(tuple, known["curve"]["losses"]))),
            "progress": tuple(Frame(**frame) for frame in known["progress"]),
            **{name: tuple(known[name]) for name in ("defenses", "notes")},
        }
    )


def assumptions_from(fields: Sequence[Mapping[str, Any]]) -> tuple[Assumption, ...]:
    return tuple(Assumption(**one) for one in fields)


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
    if edit is None or (record.finished and datetime.fromisoformat(record.finished) > datetime.fromisoformat(edit.at)):
        return record  # it was run again since
    reason = f"withdrawn by {edit.author}: {edit.reason}"
    return replace(
        record, status="withdrawn", reason=reason, verdict=None, scores=None, null=None, baseline=None, start=None
    )


def latest(found: Sequence[Record]) -> list[Record]:
    """The last record of every set-up: one that was run again counts once, as it ended last."""
    return list({record.key: record for record in found}.values())
