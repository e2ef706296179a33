"""Runs cases and writes one record each. A refusal is recorded as a refusal, a crash as an error; neither is a score."""

from __future__ import annotations

import platform
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy
import torch
from torch import Tensor

import leakgauge
from leakgauge.audit import records
from leakgauge.audit.assumed import assumed
from leakgauge.audit.case import Case
from leakgauge.audit.intervals import ANYWHERE, POSSIBLE, Interval, interval
from leakgauge.audit.pictures import save_strip
from leakgauge.audit.records import Curve, Frame, Record, VictimFacts
from leakgauge.audit.scoring import Perceptual, Scores, score, score_images, score_images_in_order, trivial_baseline
from leakgauge.audit.session import Load, Setup, check_fits, set_up
from leakgauge.audit.verdict import judge
from leakgauge.core import Attack, Blindable, Observation, Reconstruction, Victim
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.families.patches import patch_side
from leakgauge.measures import baseline
from leakgauge.measures.lpips import load_lpips
from leakgauge.measures.pairing import pair

OnRecord = Callable[[Record], None]


class Runner(Protocol):
    """Runs one case; ``failed`` is the record of a case that could not be run to its end. It travels to other processes."""

    def __call__(self, case: Case, /) -> Record: ...
    def failed(self, case: Case, reason: str) -> Record: ...


class CaseMap(Protocol):
    """Runs every case, here or elsewhere, and gives the records in any order, each as soon as it is there."""

    def __call__(self, run: Runner, cases: Sequence[Case], /) -> Iterable[Record]: ...


def _here(run: Runner, cases: Sequence[Case]) -> Iterable[Record]:
    return map(run, cases)


def run_all(
    cases: Sequence[Case],
    *,
    load: Load,
    folder: Path,
    resume: bool = False,
    map: CaseMap = _here,
    on_record: OnRecord | None = None,
) -> list[Record]:
    """Runs every case that has no record yet and appends its record as soon as it is done.

    ``map`` may run cases elsewhere (``Processes``, ``OnRay``); records are written here, as they come, and put into the
    order of the cases at the end, so that the file does not tell who was faster. A killed run loses what was under way.
    """
    done = {record.key: record for record in records.read(folder)} if resume and records.exists(folder) else {}
    todo = [case for case in cases if case.key() not in done]
    for record in map(_Runner(load, folder), todo):
        records.append(folder, record)
        done[record.key] = record
        if on_record is not None:
            on_record(record)
    records.sort(folder, [case.key() for case in cases])
    return [done[case.key()] for case in cases]


@dataclass(frozen=True)
class _Runner:
    load: Load
    folder: Path

    def __call__(self, case: Case) -> Record:
        return run_case(case, load=self.load, folder=self.folder)

    def failed(self, case: Case, reason: str) -> Record:
        return _finished(_about(case), {"status": "error", "reason": reason}, began=time.perf_counter())


def run_case(case: Case, *, load: Load, folder: Path) -> Record:
    """Attacks one case, its null run and the trivial baseline, and judges. ``BadInput`` is the user's and is raised."""
    began = time.perf_counter()
    about = _about(case)
    try:
        setup = set_up(case, load)
        about["victim"] = _described(setup, check_fits(setup))
        found = attacked(case, setup, folder)
    except Inapplicable as refusal:
        found = {"status": "refused", "reason": str(refusal)}
    except (BadInput, OSError):  # the user's to mend, a full disk among them; without a record the case can be resumed
        raise
    except Exception as crash:  # noqa: BLE001 - recorded with its traceback as an error, never as a score
        found = {"status": "error", "reason": f"{type(crash).__name__}: {crash}", "notes": (traceback.format_exc(),)}
    return _finished(about, found, began=began)


def _finished(about: Mapping[str, Any], found: Mapping[str, Any], *, began: float) -> Record:
    return Record(
        **{**about, **found},
        seconds=time.perf_counter() - began,
        peak_bytes=_peak_bytes(),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _about(case: Case) -> dict[str, Any]:
    return {
        "key": case.key(),
        "case": case,
        "attack": repr(case.build_attack()),
        "channel": repr(case.build_channel()),
        "defenses": tuple(repr(d) for d in case.build_defenses()),
        "versions": versions(),
        "command": case.command(),
    }


def _described(setup: Setup, classes: int) -> VictimFacts:
    victim = setup.victim
    parameters = sum(p.numel() for p in victim.parameters().values())
    shape = tuple(victim.space.shape)
    return VictimFacts(victim.name, victim.mode, parameters, classes, shape, str(victim.device))


def attacked(case: Case, setup: Setup, folder: Path, *, nothing: Reconstruction | None = None) -> dict[str, Any]:
    """What the attack on the case makes of it, as fields of a record; ``nothing`` is its null run where that is known."""
    victim, attack = setup.victim, case.build_attack()
    x, y = setup.private(case)
    seen = setup.observation(case)
    result = attack(victim, seen, seed=case.seed)
    nothing = null_run(attack, victim, seen, seed=case.seed) if nothing is None else nothing
    truths, pool, lpips = victim.space.decode(x).cpu(), setup.pool(case), load_lpips()
    tile = patch_side(victim.model, victim.space.shape)
    scores = score(result, x, y, space=victim.space, pool=pool, lpips=lpips, tile=tile)
    null = score(nothing, x, y, space=victim.space, pool=pool, lpips=lpips, tile=tile)
    trivial = trivial_baseline(truths, lpips=lpips)
    known = assumed(attack, seen)
    verdict = judge(scores, null, trivial, known)
    spread = _spread(result, truths, victim, lpips)
    return {
        "status": "done",
        "assumptions": known,
        "scores": scores,
        "null": null,
        "baseline": trivial,
        "start": None if seen.near is None else _start_scores(seen.near, truths, victim),
        "restarts": spread,
        "intervals": _intervals(spread),
        "verdict": verdict,
        "notes": result.notes,
        "stated": result.stated,
        "curve": _curve(result),
        "pictures": _pictures(case, folder, truths, victim, result, nothing),
        "progress": _progress(case, folder, truths, victim, result),
    }


def null_run(attack: Attack, victim: Victim, seen: Observation, *, seed: int) -> Reconstruction:
    """The same attack without any information in the signal.

    An attack by matching runs on its priors alone, from the same starts. Any other is given the signal of pure noise.
    """
    if isinstance(attack, Blindable):
        return attack.blind()(victim, seen, seed=seed)
    rng = torch.Generator().manual_seed(seed)
    size = seen.size or 1
    noise = victim.to_input(victim.space.start(size, rng))
    with torch.no_grad():
        labels = victim(noise).argmin(-1)  # an unlikely class, so that the gradient does not vanish
    signal = {name: g for name, g in seen.channel(victim, noise, labels).items() if name in seen.signal}
    blank = Observation(signal=signal, channel=seen.channel, size=seen.size)
    return attack(victim, blank, seed=seed)


def _start_scores(near: Tensor, truths: Tensor, victim: Victim) -> Scores:
    return score_images_in_order(victim.space.decode(near).cpu(), truths)


def _spread(result: Reconstruction, truths: Tensor, victim: Victim, lpips: Perceptual | None) -> dict[str, list[float]]:
    every = [score_images(victim.space.decode(x), truths, lpips=lpips).means() for x in result.candidates]
    return {name: [means[name] for means in every] for name in every[0]}


def _intervals(spread: Mapping[str, list[float]]) -> dict[str, Interval]:
    found = {name: interval(values, within=POSSIBLE.get(name, ANYWHERE)) for name, values in spread.items()}
    return {name: one for name, one in found.items() if one is not None}


def _curve(result: Reconstruction) -> Curve:
    return Curve(tuple(result.trace.steps), tuple(_finite(row) for row in result.trace.losses.T))


def _finite(losses: Tensor) -> tuple[float | None, ...]:
    return tuple(v if abs(v) < float("inf") else None for v in losses.tolist())


def _pictures(
    case: Case, folder: Path, truths: Tensor, victim: Victim, result: Reconstruction, nothing: Reconstruction
) -> dict[str, str]:
    order = _paired(victim.space.decode(result.x).cpu(), truths)
    null_order = _paired(victim.space.decode(nothing.x).cpu(), truths)
    shown = {
        "truth": truths,
        "reconstruction": victim.space.decode(result.x).cpu()[order],
        "null": victim.space.decode(nothing.x).cpu()[null_order],
        "baseline": baseline.blur(truths),
    }
    return {name: save_strip(folder, f"{case.key()}-{name}", images) for name, images in shown.items()}


def _progress(case: Case, folder: Path, truths: Tensor, victim: Victim, result: Reconstruction) -> tuple[Frame, ...]:
    """The candidate over the steps, each image at the place that it has in the end, to be laid over its original."""
    order = _paired(victim.space.decode(result.x).cpu(), truths)
    return tuple(
        Frame(step, save_strip(folder, f"{case.key()}-step-{step:06d}", victim.space.decode(x).cpu()[order]))
        for step, x in zip(result.trace.snapshot_steps, result.trace.snapshots, strict=True)
    )


def _paired(guesses: Tensor, truths: Tensor) -> Tensor:
    return torch.argsort(pair(guesses, truths))


def versions() -> dict[str, str]:
    return {
        "leakgauge": leakgauge.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
    }


def _peak_bytes() -> int:
    """Highest memory so far: of the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
