"""What the gate costs on a network in which closed forms find nothing to read.

    python -m benchmarks.gate [--out FILE]

ResNet18 for 32 × 32 images in train mode, processor time of one thread: a local round of 10 steps with 32 images each, and the gate's
closed forms on the update that it makes (no probe). The gate is timed five times; the median counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks.json_lines import append_lines
from leakgauge.channels import FedAvg
from leakgauge.core import Pixels, Victim
from leakgauge.integrations.gate import Gate
from reproductions.common.networks.resnet import ResNet18

STEPS, BATCH, LR = 10, 32, 0.01


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, default=Path("benchmarks/results/gate_cpu.jsonl"))
    asked = words.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, space = ResNet18(), Pixels((3, 32, 32))
    victim = Victim(model, space, mode="train")
    x, y = torch.rand(STEPS * BATCH, 3, 32, 32), torch.randint(10, (STEPS * BATCH,))
    model.train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    began = time.process_time()
    for rows in torch.arange(len(x)).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    round_seconds = time.process_time() - began
    update = {name: p.detach() - before[name] for name, p in model.named_parameters()}
    channel, taken = FedAvg(steps=STEPS, lr=LR, minibatch=BATCH), []
    found = Gate().check(victim, update, x, y, channel=channel)
    for _ in range(5):
        began = time.process_time()
        Gate().check(victim, update, x, y, channel=channel)
        taken.append(time.process_time() - began)
    seconds = statistics.median(taken)
    row = {
        "model": "resnet18", "steps": STEPS, "batch": BATCH, "round_seconds": round(round_seconds, 3),
        "gate_seconds": round(seconds, 4), "share": round(seconds / round_seconds, 5), "leaks": found.leaks,
        "refusals": dict(found.refusals),
    }  # fmt: skip
    append_lines(asked.out, row)
    print(row)


if __name__ == "__main__":
    main()
