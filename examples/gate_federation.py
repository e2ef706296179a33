"""A federation with a gate on every client: it refuses updates that leak, and lets those with differential privacy pass.

    python examples/gate_federation.py [--quick] [--out FOLDER]

No platform is needed: twenty clients with one image each send an update of a small network, first as it is, then with clipping and noise
(DP-SGD). The gate attacks each one on the client, which knows its own image. ``gate.jsonl`` says what it found. About 5 s on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

from leakgauge import Pixels, Victim
from leakgauge.channels import DPSGD, Gradient
from leakgauge.core import share
from leakgauge.data import MEAN, STD, fashion
from leakgauge.integrations.gate import Gate, Refused

SPACE = Pixels((1, 28, 28), mean=MEAN, std=STD)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="five clients, not twenty")
    parser.add_argument("--out", type=Path, default=Path("leakgauge-runs/example-gate_federation"), help="run folder")
    options = parser.parse_args()
    torch.manual_seed(0)
    victim = Victim(nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)), SPACE, mode="train")
    images, labels = fashion("test")
    clients = 5 if options.quick else 20
    others = (SPACE.encode(images[200:264]), labels[200:264])
    refused = {}
    for name, channel in (("plain", Gradient()), ("DP-SGD", DPSGD(clip=1.0, noise=1.0))):
        gate, count = Gate(others=others, record=options.out / "gate.jsonl"), 0
        for client in range(clients):
            x, y = SPACE.encode(images[client : client + 1]), labels[client : client + 1]
            update = share(victim, channel, x, y, seed=client).signal
            try:
                gate(victim, update, x, y)
            except Refused:
                count += 1
        refused[name] = count
    print(
        f"Finding: the gate refused {refused['plain']} of {clients} plain updates and {refused['DP-SGD']} of {clients} with DP-SGD."
    )


if __name__ == "__main__":
    main()
