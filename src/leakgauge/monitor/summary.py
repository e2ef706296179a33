"""The monitor's results in plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leakgauge.measures.membership import Rate
from leakgauge.monitor.leakage import Leakage

ROWS = 12
LAYERS = 8


def summary(leakage: Leakage, records: Sequence[dict[str, Any]]) -> str:
    """At most about forty lines, with controls next to every estimate."""
    lines = [f"leakgauge monitor, {leakage.step} steps, view {leakage.view}", ""]
    lines += [*_whitebox(leakage), *_critic(leakage), *_alarm(leakage)]
    if leakage.epsilon is not None:
        lines.append(f"epsilon so far      {leakage.epsilon:.3f} (from the accountant)")
    lines += ["", *_curve(records), *_layers(leakage)]
    lines += [f"not scored: {count} steps, {what}" for what, count in leakage.skipped.items()]
    lines += [f"note: {note}" for note in leakage.notes]
    return "\n".join(lines).rstrip() + "\n"


def _whitebox(leakage: Leakage) -> list[str]:
    found = leakage.whitebox
    if found is None:
        return ["white-box AUC       -"]
    lines = [
        f"white-box AUC       {_rate(found.auc)}   step {found.step}, {found.members} members, {found.others} others",
        f"  TPR at 1% FPR     {_rate(found.tpr)}",
    ]
    if found.upper_nats is not None:
        lines.append(f"  at most           {found.upper_nats:.2f} nats about membership, by the noise on the gradient")
    return lines


def _critic(leakage: Leakage) -> list[str]:
    if leakage.infonce is None or leakage.top1 is None or leakage.controls is None:
        return ["InfoNCE             - (too few pairs yet)", "  controls          - (too few pairs yet)"]
    controls = leakage.controls
    noise = ", ".join(f"{value:+.3f}" for value in controls.noise)
    return [
        f"InfoNCE             {_rate(leakage.infonce)} nats of at most {leakage.ceiling:.2f}, over {leakage.pairs} steps",
        f"  top-1 of {leakage.choices:<9}{_rate(leakage.top1)}   by chance {1 / leakage.choices:.3f}",
        f"  control null      {_rate(controls.null)}   must be about 0",
        f"  control decoy     {_rate(controls.decoy)}   must not be above 0",
        f"  control noise     {noise}   at 1 and 10 times the gradient, must fall",
        "  a value near 0 does not say that nothing leaks: see the white-box probe",
    ]


def _alarm(leakage: Leakage) -> list[str]:
    rate = f"false alarms at most {leakage.alpha:g} over any length"
    if leakage.alarm_at is not None:
        return [f"alarm               FIRED at step {leakage.alarm_at} ({rate})"]
    return [f"alarm               silent, log wealth {leakage.log_wealth:+.2f} ({rate})"]


def _curve(records: Sequence[dict[str, Any]]) -> list[str]:
    if not records:
        return []
    every = max(1, -(-len(records) // ROWS))
    shown = [*records[::-every][::-1]]
    head = f"{'step':>8} {'AUC':>6} {'nats':>7} {'top-1':>6} {'null':>7} {'decoy':>7} {'noise10':>8} {'wealth':>8}"
    names = (
        "whitebox/auc",
        "infonce_nats",
        "top1",
        "control/null_nats",
        "control/decoy_nats",
        "control/noise_10x_nats",
    )
    lines = [head]
    for record in shown:
        values = [record["scalars"].get(f"privacy/{name}") for name in (*names, "log_wealth")]
        widths = (6, 7, 6, 7, 7, 8, 8)
        cells = " ".join(f"{'-':>{w}}" if v is None else f"{v:>{w}.3f}" for v, w in zip(values, widths, strict=True))
        lines.append(f"{record['step']:>8} {cells}")
    return [*lines, ""]


def _layers(leakage: Leakage) -> list[str]:
    ranked = sorted(leakage.layers.items(), key=lambda item: -item[1])[:LAYERS]
    if not ranked:
        return []
    width = max(len(name) for name, _ in ranked)
    return [
        "layers that tell most (nats by themselves)",
        *[f"  {name:<{width}} {value:+.3f}" for name, value in ranked],
        "",
    ]


def _rate(rate: Rate) -> str:
    return f"{rate.value:.3f} [{rate.low:.3f}, {rate.high:.3f}]"
