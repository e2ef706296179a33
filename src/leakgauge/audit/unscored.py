"""An attack on an update whose data nobody here knows: pictures and numbers the adversary sees, but no score."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leakgauge.audit.assumed import assumed
from leakgauge.audit.case import Case
from leakgauge.audit.evaluate import null_run
from leakgauge.audit.files import write_whole
from leakgauge.audit.pictures import save_strip
from leakgauge.audit.run import versions
from leakgauge.channels.dropout import without_dropout
from leakgauge.core import Observation, Reconstruction, Victim
from leakgauge.inversion.knowledge import gradient_alignment

FILE, IMAGES = "result.json", "reconstruction.npz"


@dataclass(frozen=True)
class Unscored:
    """What can be said without the truth: how well reconstruction and null run explain the update (1 − cosine; 0 is fully)."""

    mismatch: float | None
    null_mismatch: float | None
    labels: list[int] | None
    pictures: dict[str, str]
    summary: dict[str, Any]


def attack_captured(case: Case, victim: Victim, seen: Observation, *, folder: Path) -> Unscored:
    """Runs the case's attack and its null run on a captured observation and writes pictures, images and ``result.json``.

    The images are also kept as ``reconstruction.npz`` in [0, 1]. There is no verdict: a verdict compares with the truth.
    A client's dropout masks are its own, so that the mismatch is measured without dropout, the mean of the masks.
    """
    attack = case.build_attack()
    result = attack(victim, seen, seed=case.seed)
    nothing = null_run(attack, victim, seen, seed=case.seed)
    images = victim.space.decode(result.x).cpu()
    pictures = {
        "reconstruction": save_strip(folder, "reconstruction", images),
        "null": save_strip(folder, "null", victim.space.decode(nothing.x).cpu()),
    }
    np.savez_compressed(folder / IMAGES, images=images.numpy())
    labels = None if result.y is None else [int(label) for label in result.y]
    steady = without_dropout(victim) if victim.mode == "train" else victim
    mismatch, null_mismatch = (_mismatch(steady, seen, one) for one in (result, nothing))
    summary = {
        "model": case.model,
        "attack": repr(attack),
        "channel": repr(seen.channel),
        "assumptions": [asdict(a) for a in assumed(attack, seen)],
        "mismatch": mismatch,
        "null_mismatch": null_mismatch,
        "labels": labels,
        "losses": result.losses.tolist(),
        "notes": [*result.notes, *(["mismatch measured without dropout"] if steady is not victim else [])],
        "stated": dict(result.stated),
        "pictures": pictures,
        "seconds": result.seconds,
        "versions": versions(),
        "verdict": None,
        "why_no_verdict": "the true data is not known here, so nothing could be scored",
    }
    write_whole(folder / FILE, json.dumps(summary, indent=1).encode())
    return Unscored(mismatch, null_mismatch, labels, pictures, summary)


def _mismatch(victim: Victim, seen: Observation, result: Reconstruction) -> float | None:
    if result.y is None:
        return None
    return 1 - float(gradient_alignment(victim, seen, result.x, result.y))
