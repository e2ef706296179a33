"""One sample of DP-SGD: a step of several restarts by layer rules, through vmap, and by the reference one restart after another.

    python -m benchmarks.clipped [--cases convnet,vit] [--restarts 8] [--out results.jsonl]

A step is the replay and the derivative of the cosine, with the gradient shortened to a tenth of its length. Measured in one process,
alternating, median of rounds with the range of the ratios; seconds are of the process on a CPU, of the clock on a GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from benchmarks.engine import CASES, DEVICE, prepared, rounds
from benchmarks.json_lines import append_lines, print_and_append
from leakgauge.channels import DPSGD
from leakgauge.engine import Observed, Reference, Replayer, VmapReplay
from leakgauge.engine.clipped import Clipped


def stepping(replayer: Replayer, observed: Observed, x: Tensor, y: Tensor) -> Callable[[], None]:
    weights = dict.fromkeys(observed.signal, 1.0)

    def step() -> None:
        replay = replayer(x, y)
        cosine = replay.dot(weights) / (replay.square(weights) * replay.observed_square(weights)).sqrt()
        torch.autograd.grad(cosine.sum(), x)

    return step


def measured(name: str, restarts: int, *, count: int, seconds: float) -> dict[str, object]:
    victim, _, y, plain = prepared(CASES[name])
    length = float(plain.square(dict.fromkeys(plain.signal, 1.0))) ** 0.5
    channel = DPSGD(clip=0.1 * length, noise=0.0)
    observed = Observed({n: 0.1 * t for n, t in plain.signal.items()})
    rng = torch.Generator().manual_seed(1)
    x = torch.stack([victim.space.start(1, rng) for _ in range(restarts)]).to(DEVICE).requires_grad_()
    paths: dict[str, Replayer] = {
        "rules": Clipped(victim, observed, clip=channel.clip),
        "vmap": VmapReplay(victim, channel, observed),
        "reference": Reference(victim, channel, observed),
    }
    targets = y.expand(restarts, -1)
    steps = {path: stepping(replayer, observed, x, targets) for path, replayer in paths.items()}
    taken = rounds(steps, count=count, seconds=seconds)
    row: dict[str, object] = {"case": name, "restarts": restarts, "rounds": count}
    row |= {f"{path}_ms": round(1e3 * median(each), 2) for path, each in taken.items()}
    for other in ("vmap", "reference"):
        ratios = [slow / fast for slow, fast in zip(taken[other], taken["rules"], strict=True)]
        row[f"times_{other}"] = [round(one, 2) for one in (median(ratios), min(ratios), max(ratios))]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="convnet,vit,resnet18_pre")
    parser.add_argument("--restarts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one round of one path")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"
    append_lines(options.out, {"torch": str(torch.__version__), "device": device, "threads": torch.get_num_threads()})
    for name in options.cases.split(","):
        row = measured(name, options.restarts, count=options.rounds, seconds=options.seconds)
        print_and_append(options.out, row)


if __name__ == "__main__":
    main()
