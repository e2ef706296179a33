"""Read heartbeats out of one shared gradient.

    python examples/series_ecg.py [--quick] [--out FOLDER]

The heartbeats are made up: five waves (P, Q, R, S, T) of Gaussian shape, whose heights, places and widths differ from beat to beat. A small
convolutional network tells two kinds of them apart, and a client shares the gradient of one batch. The report draws every beat with what
was found of it.
Full: a batch of 4, and one beat from a GRU. Quick: a batch of 2. About 13 s of CPU time, quick 4 s, on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from leakgauge import Series, Victim, evaluate, run_audit
from leakgauge.attacks import smooth_series
from leakgauge.channels import Gradient
from leakgauge.models.seeded import seeded

LENGTH = 128
WAVES = ((0.20, 0.025, 0.15), (0.36, 0.010, -0.15), (0.40, 0.012, 1.20), (0.44, 0.010, -0.25), (0.65, 0.040, 0.30))
"""Place, width and height of each wave, in beats and millivolts."""


def heartbeats(count: int) -> tuple[Tensor, Tensor]:
    rng, at = torch.Generator().manual_seed(0), torch.linspace(0, 1, LENGTH)
    kind, beats = torch.arange(count) % 2, torch.zeros(count, LENGTH)
    for place, width, height in WAVES:
        off = 0.02 * torch.randn(count, 3, 1, generator=rng)
        wave = torch.exp(-0.5 * ((at - place - off[:, 0]) / (width * (1 + 5 * off[:, 1]))) ** 2)
        beats += height * (1 + 5 * off[:, 2]) * wave
    return (beats + 0.15 * kind[:, None] * torch.sin(6.28 * at))[:, None], kind


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.GRU(1, 24, batch_first=True), nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x.transpose(1, 2))[0].mean(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small batch and few steps")
    parser.add_argument("--out", type=Path, default=Path("leakgauge-runs/example-series_ecg"), help="run folder")
    options = parser.parse_args()

    beats, kind = heartbeats(64)
    space = Series(1, LENGTH, bounds=(-1.5, 2.5))
    with seeded(0):
        network = nn.Sequential(
            nn.Conv1d(1, 16, 7, 2, 3), nn.GELU(), nn.Conv1d(16, 16, 5, 2, 2), nn.GELU(), nn.Flatten(), nn.Linear(512, 2)
        )
        recurrent = Recurrent()
    victim = Victim(network, space, name="heartbeats")
    run = run_audit(
        victim,
        (beats, kind),
        questions=("updates",),
        mode="eval",
        batch_size=2 if options.quick else 4,
        changes=False,
        options={"steps": 200 if options.quick else 500},
        budget=None,
        out=options.out,
        overwrite=True,
    )
    (record,) = run.records
    assert record.scores is not None
    assert record.null is not None
    said = [f"a batch of {record.case.images} comes back with a correlation of {record.scores.mean('correlation'):.2f}"]
    said += [f"the null run has {record.null.mean('correlation'):.2f}"]
    if not options.quick:
        search = smooth_series(steps=150)
        one = evaluate(Victim(recurrent, space), Gradient(), space.encode(beats[:1]), kind[:1], attack=search)
        said += [f"one beat from a GRU with {one.scores.mean('correlation'):.2f} ({one.outcome.label})"]
    print(f"Finding: {', '.join(said)}. Report: {run.folder / 'report.html'}")


if __name__ == "__main__":
    main()
