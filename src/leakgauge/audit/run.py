"""Runs cases and writes one record each. A refusal is recorded as a refusal, a crash as an error; neither is a score.

An update that a real client sent (:func:`attack_captured`) has scores where the client gives the truth, and otherwise pictures and the
numbers that the adversary sees.
"""

from __future__ import annotations

import math
import platform
import resource
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy
import numpy as np
import torch
from torch import Tensor

import leakgauge
from leakgauge.audit import evidence, records
from leakgauge.audit.bounds import Bound
from leakgauge.audit.case import Case, tries_enough
from leakgauge.audit.control import Controls, Extent
from leakgauge.audit.evaluate import Result, assess, assumed, certified_samples
from leakgauge.audit.evaluate_text import TextResult, assess_text, evaluate_text
from leakgauge.audit.evidence import commit, now
from leakgauge.audit.files import save_strip
from leakgauge.audit.identifiability import CHEAP, identify
from leakgauge.audit.null import null_run
from leakgauge.audit.records import Captured, Curve, Frame, Record, Status, VictimFacts
from leakgauge.audit.scoring import ANYWHERE, POSSIBLE, Interval, interval
from leakgauge.audit.series_record import series_facts
from leakgauge.audit.session import Load, Setup, check_fits, set_up
from leakgauge.audit.table_record import table_facts
from leakgauge.audit.tables import TableResult, evaluate_table
from leakgauge.audit.text_record import text_facts, untrue_facts
from leakgauge.audit.verdict import judge_certified
from leakgauge.channels.dropout import without_dropout
from leakgauge.core import Observation, Pixels, Reconstruction, Series, Table, Tokens, Trace, Victim, as_images
from leakgauge.data.facts import USUAL, DataFacts
from leakgauge.errors import BadInput, CannotWrite, Inapplicable, one_line, trace_without_values
from leakgauge.inversion.knowledge import gradient_alignment
from leakgauge.measures.spectrum import MOST_PRODUCTS
from leakgauge.measures.table import pair_rows
from leakgauge.measures.text import pair_sentences

OnRecord = Callable[[Record], None]


class Runner(Protocol):
    """Runs one case; ``failed`` is the record of a case that could not be run to its end. It travels to other processes."""

    def __call__(self, case: Case, /) -> Record: ...
    def failed(self, case: Case, reason: str) -> Record: ...


class CaseMap(Protocol):
    """Runs every case, here or elsewhere, and gives the records in any order, each as soon as it is there."""

    def __call__(self, run: Runner, cases: Sequence[Case], /) -> Iterable[Record]: ...


def here(run: Runner, cases: Sequence[Case], /) -> Iterable[Record]:
    """One case after another, in this process."""
    return map(run, cases)


def run_all(
    cases: Sequence[Case],
    *,
    load: Load,
    folder: Path,
    resume: bool = False,
    map: CaseMap = here,
    on_record: OnRecord | None = None,
    controls: Extent = "full",
    directions: bool | None = None,
) -> list[Record]:
    """Runs every case that has no record yet, or whose record is of a crash or withdrawn, and appends its record as soon as it is done.

    ``map`` may run cases elsewhere (``Processes``, ``OnRay``); records are written here, as they come, and put into the
    order of the cases at the end, so the file does not depend on who was faster. A killed run loses what was under way.
    Without ``controls`` no negative is evidence, because nobody knows whether the attack works where it must. With
    ``directions`` records say which directions of the images are determined, which takes a derivative for each value of an image; unless it
    is given, records of negatives say so where that takes seconds.
    """
    done = {record.key: record for record in records.read(folder)} if resume and records.exists(folder) else {}
    todo = [case for case in cases if case.key() not in done or done[case.key()].broken]
    known = (record.control for record in done.values() if record.control is not None)
    ask = None if controls == "none" else Controls(known, starts=controls == "full")
    for record in map(_Runner(load, folder, ask, directions), todo):
        records.append(folder, record)
        done[record.key] = record
        if on_record is not None:
            on_record(record)
    records.sort(folder, [case.key() for case in cases])
    return [done[case.key()] for case in cases if case.key() in done]


@dataclass(frozen=True)
class Until:
    """A map for ``run_all`` that begins no case after the ``time`` (perf_counter); the first always runs."""

    time: float
    map: CaseMap = here

    def __call__(self, run: Runner, cases: Sequence[Case], /) -> Iterator[Record]:
        for record in self.map(run, cases):
            yield record
            if time.perf_counter() > self.time:
                return


@dataclass(frozen=True)
class _Runner:
    load: Load
    folder: Path
    controls: Controls | None
    directions: bool | None = None

    def __call__(self, case: Case) -> Record:
        return run_case(case, load=self.load, folder=self.folder, controls=self.controls, directions=self.directions)

    def failed(self, case: Case, reason: str) -> Record:
        return _record(case, "error", reason, began=time.perf_counter())


def run_case(
    case: Case, *, load: Load, folder: Path, controls: Controls | None = None, directions: bool | None = None
) -> Record:
    """Attacks one case, its null run, the trivial baseline and, where nothing was found, its control, and judges.

    ``BadInput`` is the user's and is raised.
    """
    began, victim, data = time.perf_counter(), VictimFacts(), USUAL
    try:
        setup = set_up(case, load)
        data = setup.facts
        if isinstance(setup.victim.space, Tokens):
            return _text_record(case, setup, folder, began=began)
        if isinstance(setup.victim.space, Table):
            return _table_record(case, setup, folder, setup.victim.space, began=began)
        victim = _facts_of(setup.victim, classes=check_fits(setup))
        attacked = attack_case(case, setup, controls=controls)
        judged = _judged(case, setup.victim, attacked, folder, began=began, facts=victim, data=data)
        explains = directions is None and judged.outcome is not None and not judged.outcome.leaks
        return _with_directions(judged, setup, folder, asked=bool(directions)) if directions or explains else judged
    except Exception as error:  # noqa: BLE001 - recorded as a refusal or an error, never as a score
        return _without_result(case, error, began=began, victim=victim, data=data)


def _text_record(case: Case, setup: Setup, folder: Path, *, began: float) -> Record:
    """Attacks a batch of sentences and judges it."""
    (x, y), victim, padding = setup.private(case), setup.victim, padding_of(setup.victim)
    how = {**_given(case, setup), "public": setup.pool(case), "padding": padding}
    found = evaluate_text(case.build_attack(), victim, case.build_channel(), x, y, **how)
    order = pair_sentences(found.reconstruction.x.cpu(), x.cpu()).argsort()
    text = text_facts(found, x, tokens=setup.tokens, padding=padding)
    return _of_samples(case, victim, found, folder, order, began=began, text=text)


def _table_record(case: Case, setup: Setup, folder: Path, space: Table, *, began: float) -> Record:
    """Attacks a batch of rows of a table and judges it; the other rows of the data are public."""
    (x, y), victim, public = setup.private(case), setup.victim, setup.pool(case)
    how = {**_given(case, setup), "public": None if public is None or len(public) < len(x) else public}
    found = evaluate_table(victim, case.build_channel(), x, y, attack=case.build_attack(), **how)
    order = pair_rows(space.decode(found.reconstruction.x).cpu(), found.rows["truth"], space.slack)
    return _of_samples(case, victim, found, folder, order, began=began, table=table_facts(found, space))


def _given(case: Case, setup: Setup) -> dict[str, Any]:
    return {"defenses": case.build_defenses(), "reveal": setup.reveal(case), "seed": case.seed}


def _of_samples(
    case: Case,
    victim: Victim,
    found: TextResult | TableResult,
    folder: Path,
    order: Tensor,
    *,
    began: float,
    **facts: Any,
) -> Record:
    """The record of what is no picture."""
    known: dict[str, Any] = {
        "victim": _facts_of(victim),
        "assumptions": found.assumptions,
        "verdict": found.verdict.plain(),
    }
    said = _said_by_attack(case, victim, found.reconstruction, folder, order=order)
    return _record(case, "done", began=began, **known, **facts, **said)


def padding_of(victim: Victim) -> int | None:
    """The id that fills short sentences, as the loss or the model of a text model names it."""
    named = (getattr(victim.loss, "padding", None), getattr(victim.model, "padding", None))
    return next((one for one in named if one is not None), None)


def _with_directions(record: Record, setup: Setup, folder: Path, *, asked: bool) -> Record:
    """The record with what is identifiable in it, and pictures of what is left and what is lost. Where that was ``asked`` for and cannot be
    measured, a note says why; otherwise it is measured only where that is cheap.
    """
    case = record.case
    x, y = setup.private(case)
    try:
        facts, left, lost = identify(
            setup.victim,
            case.build_channel(),
            x,
            y,
            defenses=case.build_defenses(),
            seed=case.seed,
            most=MOST_PRODUCTS if asked else CHEAP,
        )
    except Inapplicable as refusal:
        said = (f"directions were not measured: {refusal}",) if asked else ()
        return replace(record, notes=(*record.notes, *said))
    shown = {"kept": left, "lost": lost}
    pictures = save_pictures(case, {name: one.float().cpu() for name, one in shown.items() if one is not None}, folder)
    return replace(record, identifiable=facts, pictures={**record.pictures, **pictures})


def _judged(
    case: Case,
    victim: Victim,
    result: Result,
    folder: Path,
    *,
    began: float,
    facts: VictimFacts,
    data: DataFacts = USUAL,
) -> Record:
    """The record of a result, with its pictures."""
    return _record(
        case,
        "done",
        began=began,
        victim=facts,
        data=data,
        assumptions=result.assumptions,
        scores=result.scores,
        null=result.null,
        baseline=result.baseline,
        start=result.start,
        restarts=result.restarts,
        intervals=_intervals(result.restarts),
        verdict=result.verdict,
        test=result.test,
        control=result.control,
        bound=result.bound if isinstance(result.bound, Bound) else None,
        unbounded=None if isinstance(result.bound, Bound) else result.bound,
        pictures={}
        if isinstance(victim.space, Series)
        else save_pictures(case, {**result.images, **_by_prior(result.reconstruction)}, folder),
        series=series_facts(result.images, victim.space.bounds) if isinstance(victim.space, Series) else None,
        **_said_by_attack(case, victim, result.reconstruction, folder, order=result.order),
    )


def _said_by_attack(
    case: Case, victim: Victim, found: Reconstruction, folder: Path, *, order: Tensor | None = None
) -> dict[str, Any]:
    """What a record holds of the attack itself, whether or not it was scored."""
    certified, losses = certified_samples(found), tuple(_finite(row) for row in found.trace.losses.T)
    return {
        "notes": found.notes,
        "stated": found.stated,
        "label_accuracy": found.label_accuracy,
        "certified": tuple(certified[i] for i in order.tolist())
        if order is not None and certified
        else tuple(certified),
        "raced": found.raced,
        "learned": found.learned,
        "curve": Curve(tuple(found.trace.steps), losses),
        "progress": _progress(case, victim, found.trace, folder, order=order),
    }


def _by_prior(found: Reconstruction) -> dict[str, Tensor]:
    """What the adversary's prior makes by itself, as a picture to be saved."""
    return {} if found.gallery is None else {"prior": found.gallery}


def _without_result(case: Case, error: Exception, **known: Any) -> Record:
    """The record of a case that was refused or crashed. What the user has to fix is raised."""
    if isinstance(error, Inapplicable):
        return _record(case, "refused", str(error), **known)
    if isinstance(error, BadInput | CannotWrite):  # a full disk among them; without a record the case can be resumed
        raise error
    return _record(case, "error", one_line(error), notes=(trace_without_values(error),), **known)


def _record(case: Case, status: Status, reason: str = "", *, began: float, **found: Any) -> Record:
    return Record(
        key=case.key(),
        status=status,
        case=case,
        attack=repr(case.build_attack()),
        channel=repr(case.build_channel()),
        defenses=tuple(repr(d) for d in case.build_defenses()),
        versions=versions(),
        command=case.command(),
        reason=reason,
        seconds=time.perf_counter() - began,
        peak_bytes=_peak_bytes(),
        finished=now(),
        **found,
    )


def _facts_of(victim: Victim, *, classes: int = 0) -> VictimFacts:
    parameters = sum(p.numel() for p in victim.parameters().values())
    shape = tuple(victim.space.shape)
    return VictimFacts(victim.name, victim.mode, parameters, classes, shape, str(victim.device))


def attack_case(
    case: Case,
    setup: Setup,
    *,
    nothing: Reconstruction | None = None,
    controls: Controls | None = None,
    leaks_undefended: bool | None = None,
) -> Result:
    """Attacks the case and judges; ``nothing`` is its null run where that is known. The others are as in :func:`assess`."""
    (x, y), seen, pool = setup.truth(case), setup.observation(case), setup.pool(case)
    return assess(
        case.build_attack(),
        setup.victim,
        seen,
        x,
        y,
        seed=case.seed,
        pool=pool,
        nothing=nothing,
        enough=tries_enough(case),
        client=setup.client(case),
        control_of=None if controls is None else partial(controls, **setup.example(), seed=case.seed),
        leaks_undefended=leaks_undefended,
        defenses=case.build_defenses(),
    )


def save_pictures(case: Case, images: Mapping[str, Tensor], folder: Path) -> dict[str, str]:
    """Truth, reconstruction, null run and baseline as strips, by their names."""
    return {name: save_strip(folder, f"{case.key()}-{name}", batch) for name, batch in images.items()}


def _intervals(restarts: Mapping[str, Sequence[float]]) -> dict[str, Interval]:
    found = {name: interval(values, within=POSSIBLE.get(name, ANYWHERE)) for name, values in restarts.items()}
    return {name: one for name, one in found.items() if one is not None}


def _finite(losses: Tensor) -> tuple[float | None, ...]:
    return tuple(v if math.isfinite(v) else None for v in losses.tolist())


def _progress(case: Case, victim: Victim, trace: Trace, folder: Path, *, order: Tensor | None) -> tuple[Frame, ...]:
    """The candidate over the steps, each image at the place that it has in the end, to be laid over its original; none of series."""
    if not isinstance(victim.space, Pixels):
        return ()
    shown = [
        (step, as_images(victim.space, x).cpu()) for step, x in zip(trace.snapshot_steps, trace.snapshots, strict=True)
    ]
    return tuple(
        Frame(step, save_strip(folder, f"{case.key()}-step-{step:06d}", images if order is None else images[order]))
        for step, images in shown
    )


def versions() -> dict[str, str]:
    return {
        "leakgauge": leakgauge.__version__,
        **({"commit": commit()} if commit() else {}),
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


CAPTURED_IMAGES = "reconstruction.npz"


def attack_captured(
    case: Case,
    victim: Victim,
    seen: Observation,
    captured: Captured,
    *,
    folder: Path,
    truth: tuple[Tensor, Tensor] | None = None,
    tokens: Callable[[Tensor], list[str]] | None = None,
) -> Record:
    """Attacks a captured observation and writes its record, its pictures and the images (``reconstruction.npz``, in [0, 1]).

    ``truth`` are images in [0, 1] and labels, known to the client alone: they are compared with what the attack found, and the attack
    never sees them. Without them the verdict rests on what the attack certified, and there is none without a certificate. A client's
    dropout masks are its own, so a mismatch is measured without dropout, the mean of the masks. For a text model ``truth`` are ids and
    targets, the file holds ids, and ``tokens`` gives the pieces of text of one sentence.
    """
    began, facts = time.perf_counter(), _facts_of(victim)
    try:
        private = None
        if isinstance(victim.space, Tokens):
            made = _attack_captured_text(case, victim, seen, captured, truth, folder, began=began, tokens=tokens)
        else:
            if truth is not None:
                setup = Setup(victim, *truth)
                facts, private = _facts_of(setup.victim, classes=check_fits(setup)), setup.private(case)
            made = _attack_captured(case, victim, seen, captured, private, folder, began=began, facts=facts)
    except Exception as error:  # noqa: BLE001 - recorded as a refusal or an error, never as a score
        made = _without_result(case, error, began=began, victim=facts, captured=captured)
    made = replace(made, channel=repr(seen.channel), command=_captured_command(case, captured))
    records.append(folder, made)
    settings = {"cases": [asdict(case)], "update": evidence.hash_tensors(seen.signal.values())}
    evidence.keep(folder, case.model, victim.model, () if truth is None else truth, settings)
    return made


def _attack_captured_text(
    case: Case,
    victim: Victim,
    seen: Observation,
    captured: Captured,
    truth: tuple[Tensor, Tensor] | None,
    folder: Path,
    *,
    began: float,
    tokens: Callable[[Tensor], list[str]] | None,
) -> Record:
    attack, padding = case.build_attack(), padding_of(victim)
    if truth is not None:
        result = assess_text(attack, victim, seen, *truth, seed=case.seed, padding=padding)
        found, verdict, known = result.reconstruction, result.verdict.plain(), result.assumptions
        text = text_facts(result, truth[0], tokens=tokens, padding=padding)
        order = pair_sentences(found.x.cpu(), truth[0].cpu()).argsort()
    else:
        found, order = attack(victim, seen, seed=case.seed), None
        known = assumed(attack if found.by is None else found.by, seen)
        verdict = judge_certified(certified_samples(found), known, unit="sentence")
        text = untrue_facts(found, verdict, tokens=tokens, padding=padding)
    np.savez_compressed(folder / CAPTURED_IMAGES, ids=found.x.cpu().numpy())
    facts: dict[str, Any] = {"victim": _facts_of(victim), "assumptions": known, "verdict": verdict, "text": text}
    said = _said_by_attack(case, victim, found, folder, order=order)
    return _record(case, "done", began=began, captured=captured, **facts, **said)


def _attack_captured(
    case: Case,
    victim: Victim,
    seen: Observation,
    captured: Captured,
    private: tuple[Tensor, Tensor] | None,
    folder: Path,
    *,
    began: float,
    facts: VictimFacts,
) -> Record:
    attack, seed = case.build_attack(), case.seed
    if private is not None:
        x, y = private
        control_of = partial(Controls(), x=x[:1], y=y[:1], seed=seed)
        result = assess(attack, victim, seen, x, y, seed=seed, enough=tries_enough(case), control_of=control_of)
        found, nothing, images = result.reconstruction, result.nothing, result.images["reconstruction"]
        made = _judged(case, victim, result, folder, began=began, facts=facts)
    else:
        found = attack(victim, seen, seed=seed)
        attack = attack if found.by is None else found.by
        nothing = null_run(attack, victim, seen, seed=seed)
        images = as_images(victim.space, found.x).cpu()
        shown = {"reconstruction": images, "null": as_images(victim.space, nothing.x).cpu()}
        made = _record(
            case,
            "done",
            began=began,
            victim=facts,
            assumptions=assumed(attack, seen),
            verdict=judge_certified(certified_samples(found), assumed(attack, seen)),
            pictures=save_pictures(case, {**shown, **_by_prior(found)}, folder),
            **_said_by_attack(case, victim, found, folder),
        )
    np.savez_compressed(folder / CAPTURED_IMAGES, images=images.numpy())
    steady = without_dropout(victim) if victim.mode == "train" else victim
    explained = replace(
        captured,
        labels=None if found.y is None else tuple(int(label) for label in found.y),
        mismatch=_mismatch(steady, seen, found.x, found.y),
        null_mismatch=_mismatch(steady, seen, nothing.x, nothing.y),
        truth_mismatch=None if private is None else _mismatch(steady, seen, *private),
    )
    notes = (*made.notes, *(["mismatch measured without dropout"] if steady is not victim else []))
    return replace(made, captured=explained, notes=notes)


def _mismatch(victim: Victim, seen: Observation, x: Tensor, y: Tensor | None) -> float | None:
    return (
        None if y is None else max(0.0, 1 - float(gradient_alignment(victim, seen, x, y)))
    )  # a cosine may round to above 1


def _captured_command(case: Case, captured: Captured) -> str:
    """The command line that attacks the same files."""
    files = {"--update": captured.update, "--weights": captured.weights, "--truth": captured.truth}
    words = [word for flag, path in files.items() if path for word in (flag, path)]
    return shlex.join([*shlex.split(case.command()), *words, "--update-holds", captured.holds])
