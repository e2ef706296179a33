"""The scan of cuts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leakgauge.audit.questions.answers import Unanswered
from leakgauge.audit.questions.split_records import DECODER, Conclusion, CutRecord, ScanPlan, strongest
from leakgauge.data.facts import USUAL, DataFacts
from leakgauge.split.envelope import kinks
from leakgauge.split.remedies import Remedy
from leakgauge.split.whitebox import LEAST_SQUARES


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
    ``candidate`` is the shallowest cut that no attack broke; if it is ``undertrained``, its decoder did worse than regression, or was
    still ``learning``.
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
    learning: bool = False
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


def split_of(plan: ScanPlan, found: Sequence[CutRecord], end: Conclusion | None) -> Split | Unanswered:
    """The scan's own conclusion, with the numbers of the cut that it names."""
    refusals = [str(record.risk["refusal"]) for record in found if record.risk.get("refusal")]
    if found and len(refusals) == len(found):
        return Unanswered("split", "; ".join(dict.fromkeys(refusals)))
    names = plan.names
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
        "best": tuple((name, best.by) for name in names if (best := strongest(found, name)) is not None),
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
        by="" if (best := strongest(found, end.recommended)) is None else best.by,
        reidentified=max(
            (r.reidentified for r in found if r.cut == end.recommended and not math.isnan(r.reidentified)), default=None
        ),
        candidate=end.candidate,
        undertrained=end.undertrained,
        learning=end.learning,
        blurred=tuple(
            name
            for name, value in measured.items()
            if value >= plan.threshold
            and any(r.reidentified > plan.recognised for r in found if r.cut == name and not math.isnan(r.reidentified))
        ),
        remedy=end.remedy,
    )


def _weak(names: Sequence[str], found: Sequence[CutRecord]) -> tuple[str, ...]:
    """Cuts at which every attack was beaten by one on a deeper cut, which the cloud can make of the same features."""
    usable = [best for name in names if (best := strongest(found, name)) is not None]
    return kinks([best.cut for best in usable], [best.fvu for best in usable])
