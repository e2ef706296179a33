"""The section on a training: its statement, the curves behind it, and the numbers of the last report beside their controls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from markupsafe import Markup

from leakgauge.audit.findings import SETTLED, Training, counted, training_of
from leakgauge.audit.phrasing import MISSING, duration, number, plural, thousands
from leakgauge.audit.questions.training import MonitorRun
from leakgauge.audit.wording import Statement, training_ended
from leakgauge.report.charts import Bar, Event, Level, Line, Panel, Values, bar_chart, between, heat_map, line_chart
from leakgauge.report.sections import LOOKS
from leakgauge.report.sources import anchor, of_training

Report = Mapping[str, Any]
_STEPS = "optimizer step"
_MOST_LAYERS = 16
_ENDS: tuple[Literal["", "_low", "_high"], ...] = ("", "_low", "_high")
_ROWS = (
    ("whitebox/auc", "White-box AUC", "how well an attacker with weights and candidates recognises members; 0.5 is guessing"),
    ("whitebox/tpr_at_1pct_fpr", "White-box true positives", "members recognised when 1 % of non-members are accused"),
    ("infonce_nats", "Critic (InfoNCE), nats", "leakage estimate; counts only above its controls"),
    ("top1", "Critic, first choice right", "share of steps"),
    ("control/null_nats", "Control: null, nats", "shuffled pairs; should be about 0"),
    ("control/decoy_nats", "Control: decoy, nats", "a wrong batch presented as the true one; should not exceed 0"),
    ("control/noise_1x_nats", "Control: noise 1×, nats", "noise with the gradient's norm; should be lower"),
    ("control/noise_10x_nats", "Control: noise 10×, nats", "noise with 10× the gradient's norm; should be about 0"),
    ("whitebox/upper_nats", "Upper bound, nats", "on membership, from the noise on the gradient"),
    ("epsilon", "ε so far", "from the accountant"),
)  # fmt: skip
_OPTIONAL = ("whitebox/upper_nats", "epsilon")


def section(run: MonitorRun, statement: Statement, *, live: bool = False) -> dict[str, Any]:
    """All that the template shows of a monitored training; ``live`` is one that is still running."""
    reports = run.reports
    found = training_of(run)
    watched = found if isinstance(found, Training) else None
    looks = quoted(reports, watched)
    newest = reports[-1] if reports else {}
    return {
        "statement": statement,
        "looks": LOOKS[statement.tone],
        "waiting": live and not reports,
        "title": _title(run),
        "ended": "" if live and not run.end else training_ended(run),
        "figures": [] if watched is None else _figures(run, watched),
        "numbers": _numbers(newest) if reports else [],
        "curve": [_curve_row(report) for report in looks],
        "notes": [*map(str, newest.get("notes", ())), *_skipped(newest)],
        "facts": _facts(run),
        "command": str(run.about.get("command") or ""),
        "anchors": {} if live else {str(report["step"]): anchor("training", report["step"]) for report in looks},
        "source": "" if live else anchor("training"),
        "stated": [(str(step), anchor("training", step)) for step in (watched.steps_stated if watched else ())],
        "made_from": "a monitored training",
        "sources": of_training(run, looks),
        "versions": [run.about["versions"]] if run.about.get("versions") else [],
    }


def quoted(reports: Sequence[Report], found: Training | None, most: int = 24) -> list[Report]:
    """The reports with numbers on the page: at most so many, evenly spread, with the last and those that sentences speak of."""
    every = max(1, -(-len(reports) // most))
    stated = () if found is None else found.steps_stated
    chosen = [*reports[::-every], *(report for report in reports if report["step"] in stated)] if reports else []
    return sorted({report["step"]: report for report in chosen}.values(), key=lambda report: report["step"])


def _title(run: MonitorRun) -> str:
    about = run.about
    what = "Embedded training" if about.get("training") == "embedded" else str(about.get("training") or "Training")
    return ", ".join([what, *(str(about[key]) for key in ("model", "optimizer") if about.get(key))])


# -------------------------------------------------------------------------------------------------------------- charts


def _figures(run: MonitorRun, found: Training) -> list[dict[str, Any]]:
    reports = run.reports
    steps = [report["step"] for report in reports]
    event = None if found.alarm_at is None else Event(found.alarm_at, f"alarm, step {found.alarm_at}")
    drawn = [_probe_figure(reports, steps)] if found.auc is not None else []
    if found.peak is not None:
        drawn += [_critic_figure(reports, steps, event, found.ceiling), _control_figure(reports, steps)]
    drawn += [*_paper_figure(run), _alarm_figure(reports, steps, event, found.alpha)]
    if found.peak is not None:  # these are critics too
        drawn += _layer_figures(reports, steps)
    return [{"heading": heading, "svg": svg, "note": note} for heading, svg, note in drawn]


Figure = tuple[str, Markup, str]


def _probe_figure(reports: Sequence[Report], steps: Sequence[int]) -> Figure:
    svg = line_chart(
        steps,
        (
            _line(reports, "whitebox/tpr_at_1pct_fpr", "true positives", "second"),
            _line(reports, "whitebox/auc", "AUC", "main"),
        ),
        uid="training-probe",
        title="White-box probe over the training",
        across=_STEPS,
        up="share",
        levels=(Level(0.5, "guessing (AUC)"),),
        y=between(0.0, 1.02),
    )
    note = (
        "Nothing is trained here: the probe regresses the gradient on the candidates’ own gradients. True positives: members "
        "recognised when 1 % of non-members are accused."
    )
    return "Who was in the batch", svg, note


def _critic_figure(reports: Sequence[Report], steps: Sequence[int], event: Event | None, ceiling: float | None) -> Figure:  # fmt: skip
    value = _line(reports, "infonce_nats", "critic", "main")
    near = (
        ceiling is not None and 2 * max(v for v in value.values if v is not None) > ceiling
    )  # else it flattens the curve
    svg = line_chart(
        steps,
        (value,),
        uid="training-critic",
        title="Leakage estimated by the critic",
        across=_STEPS,
        up="nats",
        event=event,
        levels=(Level(ceiling, "most it can show"),) if near and ceiling is not None else (),
    )
    most = "" if ceiling is None else f" The most it can show is {number(ceiling, 2)} nats."
    note = (
        "A lower bound over the last scored steps. Each step is scored before the critic learns from it. The curve starts once "
        f"{SETTLED} steps are scored.{most}"
    )
    return "Leakage estimate with its interval", svg, note


def _control_figure(reports: Sequence[Report], steps: Sequence[int]) -> Figure:
    lines = (
        _line(reports, "infonce_nats", "critic", "main"),
        _line(reports, "control/null_nats", "null", "null"),
        _line(reports, "control/decoy_nats", "decoy", "decoy"),
        _line(reports, "control/noise_1x_nats", "noise 1×", "noise1"),
        _line(reports, "control/noise_10x_nats", "noise 10×", "noise10"),
    )
    title = "The critic and its controls"
    svg = line_chart(steps, lines, uid="training-controls", title=title, across=_STEPS, up="nats")
    return title, svg, "A critic that is not above null and decoy has found nothing. Noise should bring it down."


def _alarm_figure(reports: Sequence[Report], steps: Sequence[int], event: Event | None, alpha: float) -> Figure:
    svg = line_chart(
        steps,
        (_line(reports, "log_wealth", "evidence", "main"),),
        uid="training-alarm",
        title="Evidence of the alarm",
        across=_STEPS,
        up="log wealth",
        event=event,
        levels=(Level(-math.log(alpha), "fires here"),),
    )
    note = (
        "The alarm bets on recognising the true batch. If nothing leaks, its wealth does not grow on average, and it fires in at most "
        f"{100 * alpha:g} % of trainings, however long they are."
    )
    return "Evidence of the alarm", svg, note


def _layer_figures(reports: Sequence[Report], steps: Sequence[int]) -> list[Figure]:
    newest = reports[-1].get("layers") or {}
    if not newest:
        return []
    over_time = [(str(name), [(report.get("layers") or {}).get(name) for report in reports]) for name in newest]
    return [
        (
            "Leakage by layer",
            layer_chart(over_time, uid="training-layers"),
            "Nats of a critic that sees the gradient of this layer alone. Layers do not add up.",
        ),
        (
            "Leakage by layer over time",
            layer_map(steps, over_time, uid="training-map"),
            "The darker a cell, the more this layer leaked by itself.",
        ),
    ]


def layer_chart(layers: Sequence[tuple[str, Values]], *, uid: str) -> Markup:
    """One row per layer in the order of the network: its newest value, in front of a pale bar up to its highest one.

    A value at or below 0 has no bar, only its number.
    """
    chosen, left_out = _loudest(layers)
    rows = [Bar(name, values[-1], _number(values[-1]), behind=_highest(values)) for name, values in chosen]
    said = ", ".join(f"{row.label} {row.written} (highest {_number(row.behind)})" for row in rows)
    return bar_chart(
        [Panel("", max(row.behind or 0.0 for row in rows) or 1.0, rows, ticks=False)],
        uid=uid,
        title="Leakage by layer at the last report",
        desc=f"In nats: {said}. {left_out}".strip(),
        keys=(("last report", ("box bar-main",)), ("highest of the run", ("box bar-soft",))),
    )


def layer_map(steps: Sequence[int], layers: Sequence[tuple[str, Values]], *, uid: str) -> Markup:
    """Layers downwards, steps to the right."""
    chosen, left_out = _loudest(layers)
    said = ", ".join(f"{name} {_number(_highest(values))}" for name, values in chosen)
    return heat_map(
        steps,
        chosen,
        uid=uid,
        title="Leakage by layer over the training",
        desc=f"Highest value of each layer in nats: {said}. {left_out}".strip(),
        across=_STEPS,
        unit="nats",
    )


def _loudest(layers: Sequence[tuple[str, Values]]) -> tuple[list[tuple[str, Values]], str]:
    """The layers with the highest values, still in the network's order, and a sentence on those left out."""
    if len(layers) <= _MOST_LAYERS:
        return list(layers), ""
    peaks = [-math.inf if (peak := _highest(values)) is None else peak for _, values in layers]
    chosen = sorted(np.argsort(peaks, kind="stable")[::-1][:_MOST_LAYERS].tolist())
    return [layers[i] for i in chosen], f"{len(layers) - _MOST_LAYERS} layers with lower values are not drawn."


def _highest(values: Values) -> float | None:
    return max([v for v in values if v is not None], default=None)


def _paper_figure(run: MonitorRun) -> list[Figure]:
    """The privacy-token paper's number beside what the same recipe reads where nothing can have leaked."""
    if len(run.paper) < 2:
        return []
    lines = (
        ("collected", "paper’s gap", "main"),
        ("decoy", "decoy", "decoy"),
        ("null", "null", "null"),
        ("held_out", "held out", "noise10"),
    )
    drawn = [float(row[key]) for row in run.paper for key, _, _ in lines if row.get(key) is not None]
    svg = line_chart(
        [int(row["sub_epoch"]) for row in run.paper],
        [Line(label, f"line-{css}", [row.get(key) for row in run.paper]) for key, label, css in lines],
        uid="training-paper",
        title="The published measure and its controls",
        across="sub-epoch",
        up="critic gap",
        y=between(min([0.0, *drawn]) - 0.05, max([0.5, *drawn]) + 0.05),  # at least half a nat: noise must look small
    )
    gap, decoy = (number(run.paper[-1].get(key)) for key in ("collected", "decoy"))
    note = (
        "A critic gap, not mutual information. Decoy: features of other data. Where the decoy follows the gap, the critic "
        f"recognises the time, not the data. At the last checkpoint the gap is {gap}, the decoy {decoy}."
    )
    return [("The privacy-token paper’s gap", svg, note)]


def _line(reports: Sequence[Report], key: str, label: str, css: str) -> Line:
    values, low, high = ([counted(report, key, end) for report in reports] for end in _ENDS)
    bounded = any(v is not None for v in low)
    return Line(label, f"line-{css}", values, low if bounded else (), high if bounded else ())


# ------------------------------------------------------------------------------------------------------------- numbers


def _numbers(newest: Report) -> list[dict[str, str]]:
    rows = []
    for key, name, meaning in _ROWS:
        value, low, high = (counted(newest, key, end) for end in _ENDS)
        if value is not None or key not in _OPTIONAL:
            interval = "" if low is None or high is None else f"{_number(low)} to {_number(high)}"
            rows.append({"name": name, "meaning": meaning, "value": _number(value), "interval": interval})
    return rows


def _curve_row(report: Report) -> list[str]:
    """Step, AUC, critic, null, decoy, noise 10× and evidence."""
    keys = ("whitebox/auc", "infonce_nats", "control/null_nats", "control/decoy_nats", "control/noise_10x_nats")
    return [str(report["step"]), *(_number(counted(report, key)) for key in (*keys, "log_wealth"))]


def _number(value: float | None) -> str:
    return number(value, 3, missing=MISSING)


def _skipped(newest: Report) -> list[str]:
    return [f"{plural(int(count), 'step')} not scored: {what}" for what, count in (newest.get("skipped") or {}).items()]


def _facts(run: MonitorRun) -> list[tuple[str, str]]:
    about = run.about
    view = str(about.get("view") or "–")
    return [
        ("Training", _title(run)),
        ("Parameters", thousands(int(about["parameters"])) if about.get("parameters") else "–"),
        ("Loss", str(about.get("loss") or "not seen")),
        ("View", "released: what the optimizer applies" if view == "released" else view),
        ("Report every", plural(int(about["every"]), "step") if about.get("every") else "–"),
        ("Candidate batches", str(about.get("choices") or "–")),
        ("Seed", str(about.get("seed", "–"))),
        ("Steps", str(run.end.get("step") or (run.reports[-1]["step"] if run.reports else 0))),
        ("Time", duration(float(run.end["seconds"])) if run.end.get("seconds") is not None else "–"),
    ]
