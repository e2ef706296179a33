"""What a scan of cuts leaves in its run folder: a plan, one line per cut and attack, and a conclusion.

The plan (``scan.json``) is written before the first cut, each line (``scan.jsonl``) as soon as its cut is done, the conclusion
(``scan_conclusion.json``) at the end. A process that is killed loses the cut it was at, and nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from leakgauge.audit.files import JsonLines, finite, write_whole
from leakgauge.audit.migrate import migrated_conclusion, migrated_scan
from leakgauge.audit.phrasing import plural
from leakgauge.errors import BadInput

PLAN, FILE, CONCLUSION = "scan.json", "scan.jsonl", "scan_conclusion.json"
RIDGE, DECODER = "ridge", "decoder"
T = TypeVar("T")


@dataclass(frozen=True)
class ScanPlan:
    """Everything that decides what the scan does; a resumed scan reads it instead of options.

    ``case`` names model, data and defenses. ``cuts`` holds one mapping per cut by depth: name, shape, bytes, edge_flops, edge_share.
    ``epochs`` is the full effort of a decoder: 0 is ridge alone, None is not decided yet and will be so that the decoders take
    ``budget`` seconds. ``labels`` are those of the images in the maps, ``truth`` is the strip of the
    ``shown`` originals. ``named`` cuts were asked for one by one, so none is left out for lack of time.
    ``audited``: the scan is part of an audit.
    """

    case: Mapping[str, Any]
    cuts: tuple[Mapping[str, Any], ...]
    threshold: float
    epochs: int | None
    budget: float | None
    require: str
    numbers: str
    raw_bytes: int
    jpeg_bytes: float | None
    auxiliary: int
    tested: int
    traced: str
    labels: tuple[int, ...]
    truth: str
    shown: int
    versions: Mapping[str, str]
    command: str
    notes: tuple[str, ...] = ()
    named: bool = False
    audited: bool = False


@dataclass(frozen=True)
class CutRecord:
    """One attack on one cut. ``risk`` holds the numbers by name, or a ``refusal``; ``map`` places of features in [0, 1]².

    ``epochs`` are those a decoder was trained for, ``allowed`` those it might have taken: it stops once it has shown that its cut leaks.
    None is the same number, as in records of 0.1.
    """

    cut: str
    attack: str
    epochs: int
    risk: Mapping[str, Any]
    picture: str = ""
    map: tuple[tuple[float, float], ...] = ()
    allowed: int | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        return self.cut, self.attack, self.epochs if self.allowed is None else self.allowed

    @property
    def fvu(self) -> float:
        """NaN where the attack refused."""
        value = self.risk.get("fvu")
        return math.nan if value is None else float(value)

    @property
    def stopped_early(self) -> bool:
        """A decoder stops once it has shown that its cut leaks."""
        return self.allowed is not None and self.epochs < self.allowed

    @property
    def effort(self) -> str:
        """How hard the cut was attacked."""
        return RIDGE if self.attack == RIDGE else f"{self.attack}, {plural(self.epochs, 'epoch')}"

    @property
    def said(self) -> str:
        """The record in a few words, for a line of progress."""
        came_to = "refused" if self.risk.get("refusal") else f"FVU {self.fvu:.3f}"
        return f"{self.effort}: {came_to} at {self.cut}"


@dataclass(frozen=True)
class Conclusion:
    """What the scan found. :mod:`leakgauge.audit.wording` says it in sentences.

    ``leaking`` is the deepest cut that was shown to leak. ``envelope`` and ``by_depth`` hold one FVU per cut: of the best attack
    on this or a deeper cut, and of a straight line from the first to the last, which is what counting layers would say.
    ``met`` is whether a cut meets the threshold and everything else that was required. ``epochs_spent`` are those of all decoders,
    ``epochs_of_all`` those of full decoders at every cut.
    """

    recommended: str | None
    leaking: str | None
    met: bool
    front: tuple[str, ...]
    envelope: tuple[float | None, ...]
    by_depth: tuple[float | None, ...]
    depth_choice: str | None
    class_mean: float | None
    epochs_spent: int
    epochs_of_all: int


def save_plan(folder: Path, plan: ScanPlan) -> None:
    write_whole(folder / PLAN, _pretty(plan))


def save_conclusion(folder: Path, conclusion: Conclusion) -> None:
    write_whole(folder / CONCLUSION, _pretty(conclusion))


def _decode(fields: dict[str, Any]) -> CutRecord:
    return CutRecord(**{**fields, "map": tuple((float(x), float(y)) for x, y in fields.get("map", ()))})


STORE = JsonLines(FILE, encode=lambda record: finite(asdict(record)), decode=_decode, missing="{folder} has no {file}")
append, read = STORE.append, STORE.read_if_there


def exists(folder: Path) -> bool:
    return (folder / PLAN).is_file()


def read_plan(folder: Path) -> ScanPlan:
    if not exists(folder):
        raise BadInput(
            f"{folder} holds no scan: it has no {PLAN}; give the folder that `leakgauge scan --out` wrote into"
        )
    fields = migrated_scan(_read(folder / PLAN))
    for name in ("cuts", "labels", "notes"):
        fields[name] = tuple(fields.get(name, ()))
    return _made(ScanPlan, fields, folder / PLAN)


def read_conclusion(folder: Path) -> Conclusion | None:
    """None where the scan has not come to its end."""
    path = folder / CONCLUSION
    if not path.is_file():
        return None
    fields = migrated_conclusion(_read(path))
    for name in ("front", "envelope", "by_depth"):
        fields[name] = tuple(fields.get(name, ()))
    return _made(Conclusion, fields, path)


def _pretty(thing: ScanPlan | Conclusion) -> bytes:
    return (json.dumps(finite(asdict(thing)), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadInput(f"{path} is damaged; scan again into another folder") from error
    if not isinstance(found, dict):
        raise BadInput(f"{path} is damaged; scan again into another folder")
    return found


def _made(kind: type[T], fields: dict[str, Any], path: Path) -> T:
    try:
        return kind(**fields)
    except TypeError as error:
        raise BadInput(f"{path} is of another version; scan again into another folder") from error
