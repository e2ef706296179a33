"""The monitor's results in plain text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from leakgauge.measures.membership import Rate
from leakgauge.monitor.leakage import Leakage

ROWS = 12
LAYERS = 8


def summary(leakage: Leakage, records: Sequence[dict[str, Any]]) -> str:
    """At most about forty lines, with controls next to every estimate."""
    said = conclusion(
        steps=leakage.step,
        choices=leakage.choices,
        members=leakage.members,
        top1=leakage.top1 if leakage.settled else None,
        alarm_at=leakage.alarm_at,
        trusted=leakage.trusted,
    )
    lines = [f"leakgauge monitor, {leakage.step} steps, view {leakage.view}", *textwrap.wrap(said, 110), ""]
    lines += [*_whitebox(leakage), *_critic(leakage), *_alarm(leakage)]
    if leakage.told is not None:
        lines += [
            f"share of a property AUC {leakage.told:.2f}: updates with more samples that have it than usual (0.5 is guessing)",
            "  no interval: samples recur after an epoch, and labels that go with the property may explain it",
        ]
    if leakage.epsilon is not None:
        lines.append(f"epsilon so far      {leakage.epsilon:.3f} (from the accountant)")
    newest = [leakage.record()] if leakage.step else []  # steps may have been scored since the last of the records
    lines += ["", *_curve([*(r for r in records if r["step"] != leakage.step), *newest]), *_layers(leakage)]
    lines += [f"not scored: {count} steps, {what}" for what, count in leakage.skipped.items()]
    lines += [f"note: {note}" for note in leakage.notes]
    return "\n".join(lines).rstrip() + "\n"


def conclusion(
    *, steps: int, choices: int, members: Rate | None, top1: Rate | None, alarm_at: int | None, trusted: bool = True
) -> str:
    """What a training showed, in one sentence. ``members`` is the AUC over all probes, ``top1`` the rate of right batches.

    The critic and its alarm count only if ``trusted``: their controls are clean.

    >>> conclusion(steps=400, choices=16, members=Rate(0.8, 0.72, 0.87), top1=Rate(0.07, 0.04, 0.11), alarm_at=None)
    'The training leaks: an attacker with the weights and candidate images can tell which were in a batch (right in \
80 % of pairs, AUC 0.80, 95 % CI 0.72 to 0.87; 0.5 is guessing); pictures were not attacked.'
    """
    if not trusted:
        top1 = alarm_at = None
    if members is None and not trusted:
        return (
            f"Nothing can be said after {steps} steps: the critic's controls failed, and membership was not measured."
        )
    if members is None and top1 is None and alarm_at is None:
        return f"Nothing can be said after {steps} steps: too few were scored, and membership was not measured."
    picked = "" if top1 is None else f"the right one of {choices} batches in {_percent(top1.value)} of steps"
    chance = f"guessing {_percent(1 / choices)}"
    leaks: list[str] = []
    if members is not None and members.low > 0.5:
        leaks.append(
            "an attacker with the weights and candidate images can tell which were in a batch "
            f"(right in {_percent(members.value)} of pairs, {_auc(members)})"
        )
    if alarm_at is not None:
        now = "" if top1 is None else f"; lately {picked}, {chance}"
        leaks.append(f"the gradients alone point to their batch (alarm at step {alarm_at}{now})")
    if leaks:
        return f"The training leaks: {', and '.join(leaks)}; pictures were not attacked."
    seen = ["membership was not measured"]
    if members is not None:
        seen = [f"members are recognised in {_percent(members.value)} of pairs ({_auc(members)})"]
    if top1 is not None:
        seen.append(f"the critic picked {picked} (95 % CI {100 * top1.low:.0f} to {_percent(top1.high)}, {chance})")
    lead = f"No leak was shown in {steps} steps, which proves nothing"
    if top1 is not None and top1.low > 1 / choices:
        lead = "There are signs of a leak, but the alarm is silent"
    return f"{lead}: {', and '.join(seen)}; pictures were not attacked."


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _auc(rate: Rate) -> str:
    return f"AUC {rate.value:.2f}, 95 % CI {rate.low:.2f} to {rate.high:.2f}; 0.5 is guessing"


def _whitebox(leakage: Leakage) -> list[str]:
    found = leakage.whitebox
    if found is None:
        return ["white-box AUC       -"]
    lines = [
        f"white-box AUC       {_rate(found.auc)}   step {found.step}, {found.members} members, {found.others} others",
        f"  TPR at 1% FPR     {_rate(found.tpr)}",
    ]
    if leakage.members is not None and leakage.probes > 1:
        lines.insert(1, f"  all looks         {_rate(leakage.members)}   {leakage.probes} probes together")
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
        f"  control null      {_rate(controls.null)}   must not be above 0",
        f"  control decoy     {_rate(controls.decoy)}   must not be above 0",
        f"  control noise     {noise}   at 1 and 10 times the gradient, must fall",
        "  a value near 0 does not say that nothing leaks: see the white-box probe",
    ]


def _alarm(leakage: Leakage) -> list[str]:
    rate = f"false alarms at most {leakage.alpha:g} over any length"
    if leakage.alarm_at is not None:
        return [f"alarm               FIRED at step {leakage.alarm_at} ({rate})"]
    needed = -math.log(leakage.alpha)
    return [f"alarm               silent, evidence {leakage.peak_wealth:.2f} of {needed:.2f} needed ({rate})"]


def _curve(records: Sequence[dict[str, Any]]) -> list[str]:
    if not records:
        return []
    every = max(1, -(-len(records) // ROWS))
    shown = [*records[::-every][::-1]]
    head = f"{'step':>8} {'AUC':>6} {'nats':>7} {'top-1':>6} {'null':>7} {'decoy':>7} {'noise10':>8} {'evidence':>8}"
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
        values = [record["scalars"].get(f"privacy/{name}") for name in (*names, "log_wealth_peak")]
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
        "layers that leak most (nats by themselves)",
        *[f"  {name:<{width}} {value:+.3f}" for name, value in ranked],
        "",
    ]


def _rate(rate: Rate) -> str:
    return f"{rate.value:.3f} [{rate.low:.3f}, {rate.high:.3f}]"
