"""What the monitor reads where nothing leaks: null streams through the whole monitor, and how often its intervals hold the truth.

    python -m benchmarks.monitor_null [--streams 200] [--steps 512] [--quick] [--out FILE]

Kinds of streams: ``noise``, gradients that do not depend on anything; ``past``, gradients that depend strongly on all earlier batches
through the weights, but not on the step's own; ``constant``, the same gradient at every step, for which the critic scores all
batches alike. The truth is 1/16 for top-1. InfoNCE is a lower bound with a mean of at most 0 here: an interval above 0 is wrong.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from benchmarks.json_lines import write_lines
from leakgauge.monitor import Monitor

WIDTH, FEATURES, BATCH = 64, 16, 8


def stream(kind: str, *, steps: int, seed: int) -> dict[str, Any]:
    """One training of ``steps`` under the monitor."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(steps, BATCH, FEATURES, generator=rng)
    means, mix = x.mean(1), torch.randn(FEATURES, WIDTH, generator=rng)
    if kind == "noise":
        gradients = torch.randn(steps, WIDTH, generator=rng)
    elif kind == "past":
        before = torch.cat([torch.zeros(1, FEATURES), means[:-1]])
        gradients = (before.cumsum(0) + 3 * before) @ mix
    else:
        gradients = torch.ones(steps, WIDTH)
    monitor = Monitor(every=steps, seed=seed)
    for step in range(steps):
        monitor.update(x[step], None, {"weight": gradients[step]})
    found = monitor.compute()
    assert found.top1 is not None
    assert found.infonce is not None
    assert found.controls is not None
    return {
        "kind": kind, "seed": seed, "steps": steps, "scored": found.pairs,
        "top1": found.top1.value, "top1_low": found.top1.low, "top1_high": found.top1.high,
        "nats": found.infonce.value, "nats_low": found.infonce.low, "nats_high": found.infonce.high,
        "null_low": found.controls.null.low, "decoy_low": found.controls.decoy.low, "alarm_at": found.alarm_at,
    }  # fmt: skip


def table(rows: list[dict[str, Any]], *, choices: int = 16) -> str:
    """One line per kind, as Markdown."""
    lines = [
        "| stream | streams | mean top-1 (chance 0.0625) | largest | intervals that miss chance | InfoNCE intervals above 0 | "
        "null or decoy above 0.05 | false alarms (at most 5 %) |",
        "|" + "---|" * 8,
    ]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]

        def share(wrong: list[bool]) -> str:
            return f"{sum(wrong)} ({sum(wrong) / len(wrong):.1%})"

        missed = share([not row["top1_low"] <= 1 / choices <= row["top1_high"] for row in own])
        above = share([row["nats_low"] > 0 for row in own])
        controls = share([max(row["null_low"], row["decoy_low"]) > 0.05 for row in own])
        alarms = share([row["alarm_at"] is not None for row in own])
        top1 = [row["top1"] for row in own]
        lines.append(
            f"| {kind} | {len(own)} | {sum(top1) / len(top1):.4f} | {max(top1):.3f} | {missed} | {above} | {controls} | {alarms} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200, help="of each kind")
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--quick", action="store_true", help="10 streams of 160 steps")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    streams, steps = (10, 160) if options.quick else (options.streams, options.steps)
    rows = [stream(kind, steps=steps, seed=seed) for kind in ("noise", "past", "constant") for seed in range(streams)]
    write_lines(options.out, rows)
    print(table(rows))


if __name__ == "__main__":
    main()
