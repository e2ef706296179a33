"""What the monitor costs: CPU time of a watched iteration against a plain one, in alternating rounds of one process.

    python -m benchmarks.monitor [--rounds 30] [--only lenet] [--out FILE]

Cases: ResNet18 (11 million parameters, batch 20, 32 × 32) with the default monitor; LeNet with a white-box probe every
50 steps, once from its first step on and once in the long run (from step 512 on every fourth step is scored). Each round
times both loops one after the other, in an order that alternates; the figure is the median of the rounds' ratios with
the 95 % interval of that median (order statistics), and the ratio of the sums.

Beside it, on the paper's LeNet, the three readings of the paper's own recipe (``--only "paper network"``, two minutes): a run of
150 steps with N_MINE = 200 critic steps at a time and without our controls, against as many plain steps timed before and after.
A training of the paper's length pays a single reading once for 10,000 steps, but each of its critic steps then takes 1000 pairs, not 15.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from scipy.stats import binom
from torch import nn

from benchmarks.json_lines import write_lines
from leakgauge.models.lenet import LeNet
from leakgauge.monitor import Monitor, watch
from leakgauge.monitor.paper import PaperSchedule, Reading, paper_mode
from reproductions.common.networks.privacy_tokens import TokenLeNet
from reproductions.common.networks.resnet import ResNet18

BATCH, SIDE, CLASSES = 20, 32, 10


@dataclass(frozen=True)
class Case:
    """A model, how it is watched, how many steps go before, and how many make a round."""

    name: str
    model: Callable[[], nn.Module]
    probe: bool
    before: int
    steps: int


CASES = (
    Case("resnet18, default monitor", ResNet18, probe=False, before=0, steps=2),
    Case("lenet, probe every 50 steps, from the first step", LeNet, probe=True, before=0, steps=50),
    Case("lenet, probe every 50 steps, long run", LeNet, probe=True, before=550, steps=50),
    Case("paper network, default monitor, probe every 50 steps", TokenLeNet, probe=True, before=0, steps=50),
)
READINGS: tuple[Reading, ...] = ("once", "fresh", "warm")
SHORT = PaperSchedule(sub_epochs=3, iterations=50, batch=BATCH, checkpoints=(0, 1, 3), evaluation=8)


def images(rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2000, 3, SIDE, SIDE, generator=rng), torch.randint(CLASSES, (2000,), generator=rng)


def training(model: nn.Module, *, watched: bool, probe: bool) -> tuple[Callable[[int], None], Monitor | None]:
    """A loop of plain steps on random images, and the monitor that watches it."""
    rng = torch.Generator().manual_seed(0)
    x, y = images(rng)
    optimizer, criterion = torch.optim.Adam(model.parameters(), lr=9e-4), nn.CrossEntropyLoss()
    monitor = watch(model, optimizer, loss=criterion if probe else None, every=50, strict=True) if watched else None

    def run(steps: int) -> None:
        for _ in range(steps):
            index = torch.randint(len(x), (BATCH,), generator=rng)
            optimizer.zero_grad()
            criterion(model(x[index]), y[index]).backward()
            optimizer.step()

    return run, monitor


def timed(run: Callable[[int], None], steps: int) -> float:
    began = time.process_time()
    run(steps)
    return time.process_time() - began


def measure(case: Case, rounds: int) -> dict[str, object]:
    plain, _ = training(case.model(), watched=False, probe=case.probe)
    watched, monitor = training(case.model(), watched=True, probe=case.probe)
    assert monitor is not None
    plain(2)
    watched(case.before)
    times: list[tuple[float, float]] = []
    for number in range(rounds):
        first, second = (plain, watched) if number % 2 == 0 else (watched, plain)
        a, b = timed(first, case.steps), timed(second, case.steps)
        times.append((a, b) if number % 2 == 0 else (b, a))
    ratios = sorted(b / a for a, b in times)
    half = int(binom.ppf(0.025, rounds, 0.5))  # order statistics that enclose the median
    return {
        "case": case.name,
        "median_ratio": round(ratios[rounds // 2], 3),
        "low": round(ratios[max(half - 1, 0)], 3),
        "high": round(ratios[min(rounds - half, rounds - 1)], 3),
        "ratio_of_sums": round(sum(b for _, b in times) / sum(a for a, _ in times), 3),
        "plain_ms": round(1e3 * sorted(a for a, _ in times)[rounds // 2] / case.steps, 3),
        "rounds": rounds,
        "steps_a_round": case.steps,
        "steps_seen": monitor.step,
        "state_bytes": monitor.state_bytes(),
        "parameters": sum(p.numel() for p in case.model().parameters()),
        **surroundings(),
    }


def measure_paper(reading: Reading) -> dict[str, object]:
    """One run of paper mode against plain steps of the same network; CPU time of all it does, its critic included."""
    plain, _ = training(TokenLeNet(), watched=False, probe=False)
    plain(20)
    steps = SHORT.sub_epochs * SHORT.iterations
    before = timed(plain, steps)
    began = time.process_time()
    cost = paper_mode(
        TokenLeNet(),
        nn.functional.cross_entropy,
        images(torch.Generator().manual_seed(0)),
        feature_layer=TokenLeNet.feature_layer,
        gradient_layers=TokenLeNet.gradient_layers,
        schedule=SHORT,
        reading=reading,
        controls=False,
    ).cost
    spent = time.process_time() - began
    bare = (before + timed(plain, steps)) / 2
    return {
        "case": f"paper network, paper mode, reading {reading}",
        "ratio": round(spent / bare, 1),
        "plain_ms": round(1e3 * bare / steps, 3),
        "steps_seen": steps,
        "critic_steps": cost.critic_steps,
        "critic_share_of_time": round(cost.seconds_critic / (cost.seconds_critic + cost.seconds_model), 3),
        "critic_parameters": cost.critic_parameters,
        "stored_bytes": cost.stored,
        "parameters": sum(p.numel() for p in TokenLeNet().parameters()),
        **surroundings(),
    }


def surroundings() -> dict[str, object]:
    return {"threads": torch.get_num_threads(), "torch": torch.__version__, "machine": platform.machine()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default="", help="run the cases whose name starts with this")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = []
    for case in CASES:
        if case.name.startswith(options.only):
            lines.append(measure(case, options.rounds))
            print(json.dumps(lines[-1]), flush=True)
    for reading in READINGS:
        if f"paper network, paper mode, reading {reading}".startswith(options.only):
            lines.append(measure_paper(reading))
            print(json.dumps(lines[-1]), flush=True)
    write_lines(options.out, lines)


if __name__ == "__main__":
    main()
