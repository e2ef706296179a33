"""What the trials of defenses leave in the run folder: one line of JSON per trial, and which of them are worth having."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from leakgauge.audit.files import append_line, infinity_as_text, infinity_from_text, line_of, sort_lines, whole_lines
from leakgauge.audit.records import Status
from leakgauge.audit.verdict import ToldBy
from leakgauge.audit.verdict import told_by as _told_by
from leakgauge.errors import BadInput

FILE = "defenses.jsonl"


@dataclass(frozen=True)
class DefenseRecord:
    """Everything one trial of a defense produced. ``defenses`` is empty for the trial without any.

    ``metrics``, ``null`` and ``baseline`` are as in :class:`leakgauge.audit.records.Record`; where the attack refused
    (``status`` refused), they are empty and ``reason`` says why, while the other two measurements may still be there.

    ``leakage``: ``auc`` and ``tpr`` as ``{"value", "low", "high"}``, with ``candidates``, ``batch``, ``releases``, ``tensors``
    (read) ``of`` (all) and ``notes``. ``accuracy``: ``value``, ``low``, ``high`` on ``images`` held-out images, after ``steps``
    steps with ``batch`` images each, of ``trained_on`` different ones; ``right`` is 1 for each held-out image that was
    classified rightly; ``privacy``, of DP-SGD, the guarantee of that training; ``cost`` is the loss of accuracy against the
    same training without defense, ``{"value", "low", "high"}``, or None. Either of the two holds ``unknown``, a sentence,
    where something could not be measured; it is empty otherwise.
    """

    key: str
    status: Status
    trial: Mapping[str, Any]
    defenses: tuple[str, ...]
    attack: str
    channel: str
    versions: Mapping[str, str]
    command: str
    seconds: float
    assumptions: tuple[Mapping[str, str], ...] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    null: Mapping[str, Any] = field(default_factory=dict)
    baseline: Mapping[str, Any] = field(default_factory=dict)
    verdict: str | None = None
    rule: str = ""
    leakage: Mapping[str, Any] = field(default_factory=dict)
    accuracy: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    notes: tuple[str, ...] = ()
    finished: str = ""

    @property
    def name(self) -> str:
        """The defenses as they are written on the command line, or ``none``."""
        return " + ".join(self.defenses) or "none"

    @property
    def ssim(self) -> float | None:
        """Mean SSIM of the reconstructions, None where the attack gave none."""
        found = self.metrics.get("ssim")
        return None if not found else float(found["mean"])

    @property
    def layout(self) -> float | None:
        """Correlation of the layout of the image that it is plainest in, since few of a batch may be; None where not measured."""
        return self._plainest("layout")

    @property
    def pieces_lead(self) -> float | None:
        """As ``layout``, by how much the pieces fit the original better than any other image."""
        return self._plainest("pieces_lead")

    def _plainest(self, metric: str) -> float | None:
        found = self.metrics.get(metric)
        return None if not found else float(found["max"])

    @property
    def told_by(self) -> ToldBy:
        """The metric that says what was seen."""
        return _told_by(self.rule) if self.status == "done" else "ssim"

    @property
    def auc(self) -> float | None:
        """How well members are told from other candidates, None where it was not measured."""
        found = self.leakage.get("auc")
        return None if not found else float(found["value"])

    @property
    def cost(self) -> float | None:
        """Accuracy lost against the training without defense, None where it is unknown."""
        found = self.accuracy.get("cost")
        return None if not found else float(found["value"])


def in_words(spec: str) -> tuple[str, str]:
    """The defense and its strength for people; what is not known keeps its own name and options.

    >>> in_words("gaussian_noise:relative=10.0"), in_words("prune:0.9"), in_words("withhold:position_embedding")
    (('Gaussian noise', '10 × gradient length'), ('Pruning', '90 % of entries'), ('Withheld', 'position embedding'))
    >>> in_words("dpsgd:clip=1.0,noise=0.5")
    ('DP-SGD', 'clip 1, noise 0.5')
    """
    name, _, options = spec.partition(":")
    first, *more = [part.strip() for part in options.split(",")]
    key, _, value = first.rpartition("=")
    known = _WORDS.get((name, key)) if not more else None
    if name == "dpsgd":
        pairs = [part.partition("=") for part in (first, *more)]
        return _NAMES[name], ", ".join(f"{k.strip()} {_shortest(v)}" if v else _shortest(k) for k, _, v in pairs)
    if known is None:
        return (_NAMES.get(name) or name.replace("_", " ").capitalize()), options.replace("_", " ")
    number = _number(value)
    strength = known.format(value.replace("_", " ") if number is None else f"{number * (100 if '%' in known else 1):g}")
    return _NAMES[name], strength


_NAMES = {
    "gaussian_noise": "Gaussian noise",
    "laplacian_noise": "Laplacian noise",
    "clip": "Clipping",
    "prune": "Pruning",
    "quantize": "Quantisation",
    "dpsgd": "DP-SGD",
    "withhold": "Withheld",
}
_WORDS = {
    **{(noise, "relative"): "{} × gradient length" for noise in ("gaussian_noise", "laplacian_noise")},
    **{(noise, "std"): "deviation {}" for noise in ("gaussian_noise", "laplacian_noise")},
    **{("clip", key): "to length {}" for key in ("", "norm")},
    **{("prune", key): "{} % of entries" for key in ("", "fraction")},
    **{("quantize", key): "{} bits" for key in ("", "bits")},
    **{("withhold", key): "{}" for key in ("", "roles")},
}
"""By name and option; a bare value has none."""


def _shortest(text: str) -> str:
    number = _number(text)
    return text.strip() if number is None else f"{number:g}"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def to_line(record: DefenseRecord) -> str:
    """One JSON line. Infinite values (a perfect PSNR) are written as strings; NaN is refused."""
    return line_of(infinity_as_text(asdict(record)))


def append(folder: Path, record: DefenseRecord) -> None:
    """Adds the record to the run, whole or not at all."""
    append_line(folder / FILE, to_line(record))


def exists(folder: Path) -> bool:
    return (folder / FILE).is_file()


def read(folder: Path) -> list[DefenseRecord]:
    """All whole records, in order; of two with one key the later one counts."""
    path = folder / FILE
    if not exists(folder):
        raise BadInput(f"{folder} holds no trials of defenses: it has no {FILE}; make them with `leakgauge audit`")
    found: dict[str, DefenseRecord] = {}
    for number, line in whole_lines(path):
        try:
            fields = infinity_from_text(json.loads(line))
            for name in ("defenses", "assumptions", "notes"):
                fields[name] = tuple(fields[name])
            record = DefenseRecord(**fields)
        except (ValueError, TypeError, KeyError) as error:
            raise BadInput(
                f"line {number} of {path} is not a record of this version; move the file away or delete that line"
            ) from error
        found[record.key] = record
    return list(found.values())


def sort(folder: Path, keys: Sequence[str]) -> None:
    """Puts the lines into the order of ``keys``, those of other keys last; whole or not at all."""
    if exists(folder):
        sort_lines(folder / FILE, keys)


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


SEEN: Mapping[ToldBy, str] = {
    "ssim": "SSIM",
    "layout": "correlation of the layout",
    "pieces_lead": "lead of the pieces",
}
"""What says what was seen, inside a sentence."""


def told_by(records: Sequence[DefenseRecord]) -> ToldBy:
    """The metric that says what the attack sees without defense, and hence what a defense takes from it."""
    plain = next((record for record in records if not record.defenses), None)
    return "ssim" if plain is None else plain.told_by


def worth_having(records: Sequence[DefenseRecord]) -> tuple[str, ...]:
    """Keys of the trials on the Pareto front of accuracy cost and what the attack sees; those without either are left out.

    None, where the attack fails without defense already: the differences between its failures are chance.
    """
    if any(not record.defenses and record.verdict == "infeasible_within_budget" for record in records):
        return ()
    what = told_by(records)
    points = [(_or_nan(record.cost), _or_nan(getattr(record, what))) for record in records]
    return tuple(records[i].key for i in front(points))


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
