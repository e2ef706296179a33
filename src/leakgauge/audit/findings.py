"""What a run folder says about the four questions, read from its record files and its plan, and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakgauge.audit import answers, defense_records, monitor_records, records, scan_records, stopped
from leakgauge.audit.case import accepted_options, clients_of
from leakgauge.audit.defense_records import DefenseRecord, worth_having
from leakgauge.audit.explain import change_in
from leakgauge.audit.flips import case_of, flips
from leakgauge.audit.monitor_records import MonitorRun
from leakgauge.audit.questions import QUESTIONS
from leakgauge.audit.records import Record
from leakgauge.audit.scan_records import DECODER, Conclusion, CutRecord, ScanPlan
from leakgauge.audit.summaries import (
    Defended,
    Defenses,
    Measured,
    Split,
    Training,
    Unanswered,
    Update,
    Updates,
    Waiting,
)
from leakgauge.audit.verdict import told_by

SETTLED = 8
"""Scored steps from which on a number of the critic counts; with fewer its interval is most of its range."""


@dataclass(frozen=True)
class Findings:
    """What is known of each question; None where it has no answer, and then ``unanswered`` says why.

    ``waiting`` holds questions that are answered in part, since the run was stopped.
    """

    updates: Updates | None = None
    training: Training | None = None
    split: Split | None = None
    defenses: Defenses | None = None
    unanswered: tuple[Unanswered, ...] = ()
    waiting: tuple[Waiting, ...] = ()


def read_findings(folder: Path) -> Findings:
    """Everything that the files in ``folder`` say. A question without records was not asked, or the audit says why."""
    read = {
        "updates": _read_updates,
        "training": _read_training,
        "split": _read_split,
        "defenses": _read_defenses,
    }
    said, late = answers.read(folder), stopped.not_reached(folder)
    found: dict[str, Any] = {}
    missing: list[Unanswered] = []
    for question in QUESTIONS:
        answer = read[question](folder)
        if answer == Unanswered(question) and (told := said.get(question)):
            answer = Unanswered(question, told.reason or told.status, failed=told.status == "failed")
        elif answer == Unanswered(question):
            answer = Unanswered(question, reached=question not in late)
        if isinstance(answer, Unanswered):
            missing.append(answer)
        else:
            found[question] = answer
    return Findings(**found, unanswered=tuple(missing), waiting=stopped.waiting(folder))


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


def updates_of(found: Sequence[Record]) -> Updates | Unanswered:
    """The set-ups in the order and with the numbers of the report: one that was run again counts once, as it ended last."""
    latest = records.latest(found)
    every = tuple(_update(number, record) for number, record in enumerate(latest, start=1))
    if not any(update.outcome for update in every):
        reasons = list(dict.fromkeys(update.reason for update in every if update.reason))
        broken = any(update.status == "error" for update in every)
        return Unanswered("updates", "; ".join(reasons) or "no set-up was judged", failed=broken)
    return Updates(every, flips(latest, every))


def _update(number: int, record: Record) -> Update:
    case, done = record.case, record.status == "done"
    known = case_of(record)
    usual = {} if known is None else accepted_options(known)
    options = case.get("options") or {}
    steps, restarts = options.get("steps", usual.get("steps")), options.get("restarts", usual.get("restarts", 1))
    usual_steps = usual.get("steps")
    told = "labels" in {str(spec).partition(":")[0] for spec in case.get("reveal") or ()}
    return Update(
        anchor=f"case-{number}",
        name=str(case.get("name") or record.key),
        outcome=record.verdict if done else None,
        status=record.status,
        change=change_in(str(case.get("name") or "")),
        reason=record.reason,
        mode=str(case.get("mode") or record.victim.get("mode") or "train"),
        batch=int(case.get("batch_size") or 1),
        local_steps=int(case.get("local_steps") or 1),
        defenses=tuple(map(str, record.defenses)) if known is None else known.protections(),
        diagnostic=_assumed(record, "diagnostic"),
        deployable=_assumed(record, "deployable"),
        malicious=_assumed(record, "malicious"),
        attack=str(case.get("attack") or record.attack).partition(":")[0],
        steps=steps if isinstance(steps, int) else None,
        usual_steps=usual_steps if isinstance(usual_steps, int) else None,
        restarts=restarts if isinstance(restarts, int) else 1,
        seconds=record.seconds,
        which=record.rule.partition(";")[0] if done and record.verdict == "partial" else "",
        ssim=_mean(record.metrics, "ssim"),
        psnr=_mean(record.metrics, "psnr"),
        null_ssim=_mean(record.null, "ssim"),
        null_psnr=_mean(record.null, "psnr"),
        layout=_mean(record.metrics, "layout"),
        null_layout=_mean(record.null, "layout"),
        pieces_lead=_mean(record.metrics, "pieces_lead"),
        null_pieces_lead=_mean(record.null, "pieces_lead"),
        told_by=told_by(record.rule) if done else "ssim",
        labels=None if told else _mean(record.metrics, "labels"),
        classes=record.victim.get("classes"),
        first=int(case.get("first") or 0),
        model=str(case.get("model") or ""),
    )


def _assumed(record: Record | DefenseRecord, kind: str) -> tuple[str, ...]:
    return tuple(str(a.get("what", "")) for a in record.assumptions if a.get("kind") == kind)


def _mean(summary: Mapping[str, Any], metric: str) -> float | None:
    found = (summary.get(metric) or {}).get("mean")
    return None if found is None else float(found)


def training_of(run: MonitorRun) -> Training | Unanswered:
    """The training as far as it was watched; the numbers of the critic from the reports that rest on enough steps."""
    if not run.reports:
        return Unanswered("training", str(run.end.get("why") or "no step was measured"), run.end.get("how") == "failed")
    newest = run.reports[-1]
    measured = [r for r in run.reports if _scalar(r, "infonce_nats") is not None]
    settled = [r for r in measured if (_scalar(r, "pairs") or 0.0) >= SETTLED]
    top = max(settled, key=lambda r: _scalar(r, "infonce_nats") or -math.inf, default=None)
    looks = [r for r in run.reports if _scalar(r, "whitebox/auc") is not None]
    layers = sorted(((str(n), float(v)) for n, v in (newest.get("layers") or {}).items()), key=lambda pair: -pair[1])
    seconds = run.end.get("seconds")
    return Training(
        steps=int(run.end.get("step") or newest["step"]),
        alarm_at=newest.get("alarm_at"),
        alpha=float(newest.get("alpha") or 0.05),
        view=str(newest.get("view") or run.about.get("view") or "released"),
        peak=None if top is None else _measured(top, "infonce_nats"),
        last=_measured(settled[-1], "infonce_nats") if settled else None,
        ceiling=_scalar(newest, "infonce_ceiling"),
        auc=_measured(looks[-1], "whitebox/auc") if looks else None,
        controls=() if top is None else _controls((top, settled[-1])),
        layers=tuple(layers),
        scored=int(_scalar(newest, "pairs") or 0),
        epsilon=_scalar(newest, "epsilon"),
        seconds=None if seconds is None else float(seconds),
        ended=str(run.end.get("how") or "not on record"),
        audited=stopped.by_an_audit(str(run.about.get("command") or "")),
    )


def _scalar(report: Mapping[str, Any], name: str) -> float | None:
    found = report["scalars"].get(f"privacy/{name}")
    return None if found is None else float(found)


def _measured(report: Mapping[str, Any], name: str) -> Measured:
    """For reports that hold the number."""
    value = float(report["scalars"][f"privacy/{name}"])
    return Measured(int(report["step"]), value, _scalar(report, f"{name}_low"), _scalar(report, f"{name}_high"))


def _controls(reports: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, float], ...]:
    """For each control the most that it is sure to read: the lower bound, or the value itself where noise has no bound."""
    names = {"null": "null_nats_low", "decoy": "decoy_nats_low", "noise 10×": "noise_10x_nats"}
    found = {}
    for said, name in names.items():
        values = [value for report in reports if (value := _scalar(report, f"control/{name}")) is not None]
        if values:
            found[said] = max(values)
    return tuple(found.items())


def split_of(plan: ScanPlan, found: Sequence[CutRecord], end: Conclusion | None) -> Split | Unanswered:
    """The scan's own conclusion, with the numbers of the cut that it names."""
    refusals = [str(record.risk["refusal"]) for record in found if record.risk.get("refusal")]
    if found and len(refusals) == len(found):
        return Unanswered("split", "; ".join(dict.fromkeys(refusals)))
    names = [str(cut["name"]) for cut in plan.cuts]
    known = {
        "threshold": plan.threshold,
        "cuts": len(names),
        "raw_bytes": plan.raw_bytes,
        "numbers": plan.numbers,
        "require": plan.require,
        "defenses": tuple(map(str, plan.case.get("defenses") or ())),
        "audited": stopped.by_an_audit(plan.command),
        "decoder_epochs": sum(record.epochs for record in found if record.attack == DECODER),
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
        threat=end.threat,
        budget=end.budget,
    )


def defenses_of(found: Sequence[DefenseRecord]) -> Defenses | Unanswered:
    """The trials of one set-up: the first one without a defense, and all that are compared with it."""
    base = next((record for record in found if not record.defenses), None)
    if base is None:
        return Unanswered("defenses", "the trial without a defense is not on record", failed=True)
    best = worth_having(found)
    each = {record.key: _defended(number, record, record.key in best) for number, record in enumerate(found, start=1)}
    case = base.trial.get("case") or {}
    steps = (case.get("options") or {}).get("steps")
    return Defenses(
        undefended=each[base.key],
        rows=tuple(each[record.key] for record in found if record.defenses),
        setting=_setting(case),
        clients=clients_of(str(case.get("channel") or "")),
        steps=steps if isinstance(steps, int) else None,
        train_steps=base.trial.get("train_steps"),
        seconds=sum(record.seconds for record in found),
        diagnostic=_assumed(base, "diagnostic"),
        deployable=_assumed(base, "deployable"),
        model=str(case.get("model") or ""),
    )


def _setting(case: Mapping[str, Any]) -> str:
    if not case:
        return ""
    parts = [case.get("model"), f"{case.get('mode')} mode", f"batch {case.get('batch_size')}", case.get("channel")]
    return ", ".join(str(part) for part in parts if part)


def _defended(number: int, record: DefenseRecord, front: bool) -> Defended:
    cost = record.accuracy.get("cost") or {}
    low, value, high = (
        None if (found := cost.get(end)) is None else 100 * float(found) for end in ("low", "value", "high")
    )
    return Defended(
        anchor=f"defense-{number}",
        defense=record.name,
        outcome=record.verdict if record.status == "done" else None,
        status=record.status,
        reason=record.reason,
        ssim=record.ssim,
        layout=record.layout,
        pieces_lead=record.pieces_lead,
        told_by=record.told_by,
        auc=record.auc,
        cost=value,
        cost_low=low,
        cost_high=high,
        front=front,
    )
