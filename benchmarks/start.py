"""How long a user waits before anything happens: ``import leakgauge`` beyond torch, ``--help`` of every command.

Every kind of start runs once per round, so that a busy machine slows all of them alike. Shown is the processor time (user and
system) of a process of its own: the median over the rounds, and how many times a bare ``python -c pass`` that is. Exits
with 1 where a bound is missed.

    python -m benchmarks.start --rounds 7
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from statistics import median

BEYOND_TORCH, HELP = 0.3, 0.5
"""Seconds that the package may add to ``import torch``, and that help may take."""

IMPORTS = {
    "python": "pass",
    "import torch": "import torch",
    "import leakgauge": "import leakgauge",
    "leakgauge and its core": "import torch, leakgauge; leakgauge.share",
    "leakgauge, attacks, audit": "import torch, leakgauge.attacks, leakgauge.audit",
}


def seconds(command: Sequence[str]) -> float:
    """Processor time of a process that must end well."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description="Processor time of every way to start.")
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    from typer.main import get_command

    from leakgauge.cli import app

    names = list(getattr(get_command(app), "commands", {}))
    ways = {name: [sys.executable, "-c", code] for name, code in IMPORTS.items()}
    asked = {f"leakgauge {' '.join(words)}": words for words in (["--help"], *([name, "--help"] for name in names))}
    ways |= {name: [sys.executable, "-m", "leakgauge", *words] for name, words in asked.items()}
    for command in ways.values():  # files are read and compiled once before it counts
        seconds(command)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, command in ways.items():
            taken[name].append(seconds(command))
    middle = {name: median(values) for name, values in taken.items()}
    print(f"{'start':<28} {'median':>8} {'× python':>9}   ({rounds} rounds, user + system)")
    for name, value in middle.items():
        print(f"{name:<28} {value:>6.2f} s {value / max(middle['python'], 1e-3):>9.1f}")
    ours, wider = (
        median(a - b for a, b in zip(taken[name], taken["import torch"], strict=True))
        for name in ("leakgauge and its core", "leakgauge, attacks, audit")
    )
    slowest = max(asked, key=lambda name: middle[name])
    print(f"leakgauge beyond torch: {ours:.2f} s (at most {BEYOND_TORCH}); with attacks and audit {wider:.2f} s")
    print(f"slowest help: {slowest}, {middle[slowest]:.2f} s (at most {HELP})")
    return int(ours > BEYOND_TORCH or middle[slowest] > HELP)


if __name__ == "__main__":
    sys.exit(main())
