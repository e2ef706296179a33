"""The report's section on a monitored training: sentences in plain words, figures, numbers beside their controls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from leakgauge.audit.monitor_records import MonitorRun
from leakgauge.audit.phrasing import duration, number, plural, thousands
from leakgauge.report.charts import Bar, Event, Level, Line, Panel, Values, bar_chart, between, heat_map, line_chart
from leakgauge.report.sources import training_anchor

_NAME = "privacy/"
_STEPS = "optimizer step"
_FEW = 8
"""Scored steps below which an estimate of the critic is too rough to be drawn."""
_MOST_LAYERS = 16
_ROWS = (
    ("whitebox/auc", "White-box AUC", "who was in the batch, for one with the weights and candidates; 0.5 is guessing"),
    ("whitebox/tpr_at_1pct_fpr", "White-box true positives", "members found while 1 % of the others are accused"),
    ("infonce_nats", "Critic (InfoNCE), nats", "which of the candidate batches it was; counts above its controls only"),
    ("top1", "Critic, first choice right", "share of steps"),
    ("control/null_nats", "Control null, nats", "shuffled pairs; must be about 0"),
    ("control/decoy_nats", "Control decoy, nats", "a wrong batch declared true; must not be above 0"),
    ("control/noise_1x_nats", "Control noise 1×, nats", "noise as long as the gradient; must fall"),
    ("control/noise_10x_nats", "Control noise 10×, nats", "noise ten times as long; must be about 0"),
    ("whitebox/upper_nats", "At most, nats", "about membership, by the noise on the gradient"),
    ("epsilon", "ε so far", "from the accountant"),
)


def section(run: MonitorRun, *, live: bool = False) -> dict[str, Any]:
    """All that the template shows of a monitored training; ``live`` is one that still runs."""
    reports = run.reports
    newest = reports[-1] if reports else {}
    return {
        "title": _title(run),
        "alarmed": newest.get("alarm_at") is not None,
        "badge": _badge(run),
        "sentences": _sentences(run),
        "ended": "" if live and not run.end else _ending(run),
        "figures": _figures(run) if reports else [],
        "numbers": _numbers(newest) if reports else [],
        "curve": _curve_table(reports),
        "notes": [*map(str, newest.get("notes", ())), *_skipped(newest)],
        "facts": _facts(run),
        "command": str(run.about.get("command") or ""),
        "sources": {} if live else {str(report["step"]): training_anchor(report["step"]) for report in quoted(reports)},
        "source": "" if live else training_anchor(),
        "stated": [(str(step), training_anchor(step)) for step in _stated(reports)],
    }


def _title(run: MonitorRun) -> str:
    about = run.about
    training = about.get("training")
    what = "Embedded training" if training == "embedded" else str(training or "Training")
    parts = [what, *[str(about[key]) for key in ("model", "optimizer") if about.get(key)]]
    return ", ".join(parts)


def _badge(run: MonitorRun) -> str:
    if not run.reports:
        return "No report yet"
    fired = run.reports[-1].get("alarm_at")
    return "Alarm silent" if fired is None else f"Alarm at step {fired}"


def _sentences(run: MonitorRun) -> list[str]:
    """What was found, in plain words; nothing is concluded from what was not measured."""
    if not run.reports:
        return ["Nothing was measured yet, so nothing can be said."]
    newest = run.reports[-1]
    said = [_members(run.reports), _alarm(newest)]
    peak = _peak(run.reports)
    value = _of(peak, "infonce_nats")
    if value is not None:
        controls = [_of(peak, f"control/{name}_nats") for name in ("null", "decoy")]
        beside = ", ".join(f"{n} {_number(v)}" for n, v in zip(("null", "decoy"), controls, strict=True))
        said.append(
            f"The critic read most at step {peak['step']}: {_number(value)} nats of at most "
            f"{_number(_of(peak, 'infonce_ceiling'))} ({beside} at that step)"
            + (f", and {_number(_of(newest, 'infonce_nats'))} at the last report." if peak is not newest else ".")
        )
    else:
        said.append("Too few steps were seen for the critic to be scored.")
    return said


def _peak(reports: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The report at which the critic read most, of those that rest on enough scored steps."""
    settled = [report for report in reports if _of(report, "pairs", 0.0) >= _FEW] or reports[-1:]
    return max(settled, key=lambda report: _of(report, "infonce_nats", -math.inf))


def quoted(reports: Sequence[Mapping[str, Any]], most: int = 24) -> list[Mapping[str, Any]]:
    """The reports whose numbers stand on the page: at most a page of them evenly spread, with the last and the peak."""
    every = max(1, -(-len(reports) // most))
    chosen = [*reports[::-every], _peak(reports)] if reports else []
    return sorted({report["step"]: report for report in chosen}.values(), key=lambda report: report["step"])


def _stated(reports: Sequence[Mapping[str, Any]]) -> list[int]:
    """The steps that the sentences speak of: the peak of the critic and the last report."""
    return sorted({_peak(reports)["step"], reports[-1]["step"]}) if reports else []


def _members(reports: Sequence[Mapping[str, Any]]) -> str:
    seen = [v for report in reports if (v := _of(report, "whitebox/auc")) is not None]
    if not seen:
        return "Whether members of a batch can be told was not measured: the white-box probe was off (see the notes)."
    newest = next(report for report in reversed(reports) if _of(report, "whitebox/auc") is not None)
    auc, low = _of(newest, "whitebox/auc"), _of(newest, "whitebox/auc_low", 0.0)
    spread = f"AUC {_number(auc)} at the last look, {_number(min(seen))} to {_number(max(seen))} over the run"
    if _number(min(seen)) == _number(max(seen)):
        spread = f"AUC {_number(auc)} at every look"
    who = "someone who holds the weights and a list of candidates"
    if low is not None and low > 0.5:
        how = (
            "could tell almost all members of a batch from others"
            if low > 0.8
            else "told members better than by guessing"
        )
        return f"From a gradient, {who} {how} ({spread})."
    return (
        f"At the last look {who} was not shown to do better than guessing ({spread}); that is no proof that one cannot."
    )


def _alarm(newest: Mapping[str, Any]) -> str:
    rate = f"{100 * float(newest.get('alpha') or 0.05):g} %"
    fired = newest.get("alarm_at")
    if fired is not None:
        return (
            f"The alarm fired at step {fired}: by then a critic had picked the true batches too often for chance. "
            f"Where nothing leaks it fires in at most {rate} of trainings, however long they are."
        )
    return f"The alarm did not fire in {plural(newest['step'], 'step')}. It errs on the side of silence: this is no evidence of safety."


def _ending(run: MonitorRun) -> str:
    how, step = run.end.get("how"), plural(int(run.end.get("step") or 0), "step")
    if how == "finished":
        return ""
    if how == "interrupted":
        return f"The training was interrupted after {step}; this is what was measured until then."
    if how:
        return f"The training broke off after {step} ({run.end.get('why') or 'no reason given'})."
    return "The end of the training is not on record: it still runs, or it was killed."


def _figures(run: MonitorRun) -> list[dict[str, Any]]:
    reports = run.reports
    steps = [report["step"] for report in reports]
    fired = reports[-1].get("alarm_at")
    event = None if fired is None else Event(int(fired), f"alarm, step {fired}")
    found = []
    if _any(reports, "whitebox/auc"):
        found.append(_probe_figure(reports, steps))
    if _any(reports, "infonce_nats"):
        found += _critic_figures(reports, steps, event)
    found += [*_paper_figure(run), _alarm_figure(reports, steps, event), *_layer_figures(reports, steps)]
    return [{"heading": heading, "svg": svg, "note": note} for heading, svg, note in found]


def _probe_figure(reports: Sequence[Mapping[str, Any]], steps: Sequence[int]) -> tuple[str, Markup, str]:
    svg = line_chart(
        steps,
        (
            _line(reports, "whitebox/tpr_at_1pct_fpr", "true positives", "second"),
            _line(reports, "whitebox/auc", "AUC", "main"),
        ),
        uid="monitor-whitebox",
        title="White-box probe over the training",
        across=_STEPS,
        up="share",
        levels=(Level(0.5, "guessing (AUC)"),),
        y=between(0.0, 1.02),
    )
    note = (
        "Nothing is trained here: the gradient is regressed on the candidates’ own gradients. True positives: members "
        "found while 1 % of the others are accused."
    )
    return "Who was in the batch", svg, note


def _critic_figures(
    reports: Sequence[Mapping[str, Any]], steps: Sequence[int], event: Event | None
) -> list[tuple[str, Markup, str]]:
    """The critic with its interval and the alarm; and the same line beside the controls."""
    value = _critic_line(reports, "infonce_nats", "critic", "main")
    ceiling = _of(reports[-1], "infonce_ceiling")
    levels = () if ceiling is None else (Level(ceiling, "most that can be told"),)
    near = 2 * max(v for v in value.values if v is not None) > (ceiling or math.inf)  # else it would flatten the curve
    alone = line_chart(
        steps,
        (value,),
        uid="monitor-critic",
        title="Leakage found by the critic",
        across=_STEPS,
        up="nats",
        event=event,
        levels=levels if near else (),
    )
    controls = (
        value,
        _critic_line(reports, "control/null_nats", "null", "null"),
        _critic_line(reports, "control/decoy_nats", "decoy", "decoy"),
        _critic_line(reports, "control/noise_1x_nats", "noise 1×", "noise1"),
        _critic_line(reports, "control/noise_10x_nats", "noise 10×", "noise10"),
    )
    beside = line_chart(
        steps, controls, uid="monitor-controls", title="The critic beside its controls", across=_STEPS, up="nats"
    )
    most = "" if ceiling is None else f" Its most is {ceiling:.2f} nats."
    return [
        (
            "Leakage curve with its interval",
            alone,
            f"A lower bound over the last scored steps, each scored before it is learned from; drawn from {_FEW} of them on.{most}",
        ),
        (
            "The critic beside its controls",
            beside,
            "Where the critic is not above null and decoy it has found nothing. Noise must bring it down.",
        ),
    ]


def _alarm_figure(
    reports: Sequence[Mapping[str, Any]], steps: Sequence[int], event: Event | None
) -> tuple[str, Markup, str]:
    svg = line_chart(
        steps,
        (_line(reports, "log_wealth", "evidence", "main"),),
        uid="monitor-alarm",
        title="Evidence of the alarm",
        across=_STEPS,
        up="log of the fortune",
        event=event,
        levels=(Level(-math.log(float(reports[-1].get("alpha") or 0.05)), "fires here"),),
    )
    note = "A fortune that bets on telling the true batch; where nothing leaks it does not grow in the mean."
    return "The alarm stayed silent" if event is None else "When the alarm fired", svg, note


def _layer_figures(reports: Sequence[Mapping[str, Any]], steps: Sequence[int]) -> list[tuple[str, Markup, str]]:
    newest = reports[-1].get("layers") or {}
    if not newest:
        return []
    over_time = [(str(name), [(report.get("layers") or {}).get(name) for report in reports]) for name in newest]
    return [
        (
            "Which layer tells",
            layer_chart(over_time, uid="monitor-layers"),
            "Nats of a critic that sees this layer’s gradient alone. Layers do not add up.",
        ),
        (
            "Which layer tells, over time",
            layer_map(steps, over_time, uid="monitor-map"),
            "The stronger a cell, the more this layer told by itself.",
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


def _paper_figure(run: MonitorRun) -> list[tuple[str, Markup, str]]:
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
        uid="monitor-paper",
        title="The published measure beside its controls",
        up="critic gap",
        across="sub-epoch",
        y=between(
            min([0.0, *drawn]) - 0.05, max([0.5, *drawn]) + 0.05
        ),  # at least half a nat, so that noise looks small
    )
    note = (
        "A critic gap, not mutual information. Decoy: features of other data. Where it follows the gap, the critic tells "
        "the time, not the data. "
        + f"At the last checkpoint the gap is {number(run.paper[-1].get('collected'))}, the decoy {number(run.paper[-1].get('decoy'))}."
    )
    return [("The privacy-token paper’s gap", svg, note)]


def _numbers(newest: Mapping[str, Any]) -> list[dict[str, str]]:
    rows = []
    for key, name, meaning in _ROWS:
        value = _of(newest, key)
        if value is None and key in ("whitebox/upper_nats", "epsilon"):
            continue
        low, high = _of(newest, f"{key}_low"), _of(newest, f"{key}_high")
        interval = "" if low is None or high is None else f"{_number(low)} to {_number(high)}"
        rows.append({"name": name, "meaning": meaning, "value": _number(value), "interval": interval})
    return rows


def _curve_table(reports: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Step, AUC, nats, null, decoy, noise 10× and evidence; the critic's numbers from where on they are drawn and count."""
    critic = ("infonce_nats", "control/null_nats", "control/decoy_nats", "control/noise_10x_nats")
    rows = []
    for report in quoted(reports):
        rough = _of(report, "pairs", 0.0) < _FEW
        nats = [None if rough else _of(report, key) for key in critic]
        numbers = [_of(report, "whitebox/auc"), *nats, _of(report, "log_wealth")]
        rows.append([str(report["step"]), *map(_number, numbers)])
    return rows


def _skipped(newest: Mapping[str, Any]) -> list[str]:
    return [f"{plural(int(count), 'step')} not scored: {what}" for what, count in (newest.get("skipped") or {}).items()]


def _facts(run: MonitorRun) -> list[tuple[str, str]]:
    about = run.about
    return [
        ("Training", _title(run)),
        ("Parameters", thousands(int(about["parameters"])) if about.get("parameters") else "–"),
        ("Loss", str(about.get("loss") or "not seen")),
        (
            "View",
            {"released": "released: what the optimizer applies"}.get(
                str(about.get("view")), str(about.get("view") or "–")
            ),
        ),
        ("Report every", plural(int(about["every"]), "step") if about.get("every") else "–"),
        ("Candidate batches", str(about.get("choices") or "–")),
        ("Seed", str(about.get("seed", "–"))),
        ("Steps", str(run.end.get("step") or (run.reports[-1]["step"] if run.reports else 0))),
        ("Time", duration(float(run.end["seconds"])) if run.end.get("seconds") is not None else "–"),
    ]


def _critic_line(reports: Sequence[Mapping[str, Any]], key: str, label: str, css: str) -> Line:
    """The line of a number that rests on scored steps; without those reports that had hardly any."""
    enough = [_of(report, "pairs", 0.0) >= _FEW for report in reports]
    bare = [report if ok else {"scalars": {}} for report, ok in zip(reports, enough, strict=True)]
    return _line(bare if any(enough) else reports, key, label, css)


def _line(reports: Sequence[Mapping[str, Any]], key: str, label: str, css: str) -> Line:
    values, low, high = ([_of(report, f"{key}{end}") for report in reports] for end in ("", "_low", "_high"))
    bounded = any(v is not None for v in low)
    return Line(label, f"line-{css}", values, low if bounded else (), high if bounded else ())


def _of(report: Mapping[str, Any], key: str, default: float | None = None) -> Any:
    value = report["scalars"].get(_NAME + key)
    return default if value is None else float(value)


def _any(reports: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(_of(report, key) is not None for report in reports)


def _number(value: float | None) -> str:
    return number(value, 3)
