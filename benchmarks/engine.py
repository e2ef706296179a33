"""Speed of the engine: restart-iterations per second and peak memory, against a plain double-backward loop.

    python -m benchmarks.engine [--quick] [--cases convnet,vit] [--restarts 1,8,32] [--out results.jsonl]

Everything is measured in one process, alternating, median of rounds with its spread. Wall-clock time with device
synchronisation on a GPU, CPU time of the process on a CPU. A step is the whole step of an attack: replay, objective, sign,
Adam, projection, keep-best. Needs torch and numpy; ConvNeXt and Swin also need transformers, breaching the extra ``bench``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.json_lines import write_lines
from leakgauge.channels import Gradient
from leakgauge.core import Mode, Pixels, Victim, share
from leakgauge.engine import TF32, BFloat16, Exact, Observed, Precision
from leakgauge.inversion import L2, Adam, Cosine, Descent, Sign
from leakgauge.inversion.draws import Draws
from leakgauge.inversion.search import Problem, Search
from leakgauge.inversion.solvers import Mover, Moving
from leakgauge.inversion.terms import Term
from leakgauge.models.vit import ViT
from reproductions.common.networks.resnet import ResNet18

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PRECISIONS: dict[str, Precision] = {"fp32": Exact(), "tf32": TF32(), "bf16": BFloat16()}
DISTANCES: dict[str, Term] = {"cosine": Cosine(), "l2": L2()}


class ConvNet(nn.Module):
    """Four convolutions, 0.4 million parameters: the small net on which peers are usually timed."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for out, pooled in ((width, False), (2 * width, True), (2 * width, True), (2 * width, True)):
            layers += [nn.Conv2d(channels, out, 3, 1, 1), nn.BatchNorm2d(out), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if pooled else []
            channels = out
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(2 * width * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


def from_transformers(kind: str) -> nn.Module:
    from leakgauge.integrations.huggingface import load

    return load(kind, classes=10, seed=0)[0]


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    side: int
    batch: int = 1
    mode: Mode = "eval"


CASES = {
    "convnet": Case(ConvNet, 32),
    "resnet18_pre": Case(lambda: ResNet18(pre_activation=True), 32),
    "resnet18_pre_train_b4": Case(lambda: ResNet18(pre_activation=True), 32, batch=4, mode="train"),
    "vit": Case(lambda: ViT(in_channels=3, side=32, patch=4, width=384, depth=4, heads=6), 32),
    "resnet18_224": Case(lambda: ResNet18(stem="imagenet"), 224),
    "vit_b16_224": Case(lambda: ViT(in_channels=3, side=224, patch=16, width=768, depth=12, heads=12), 224),
    "convnext_t_224": Case(lambda: from_transformers("convnext"), 224),
    "swin_t_224": Case(lambda: from_transformers("swin"), 224),
}


def clock() -> float:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def prepared(case: Case) -> tuple[Victim, Tensor, Tensor, Observed]:
    space = Pixels((3, case.side, case.side), mean=(0.5,), std=(0.25,))
    victim = Victim(case.make().to(DEVICE), space, mode=case.mode)
    rng = torch.Generator().manual_seed(0)
    x = space.encode(torch.rand(case.batch, *space.shape, generator=rng)).to(DEVICE)
    y = torch.randint(10, (case.batch,), generator=rng).to(DEVICE)
    return victim, x, y, Observed.check(share(victim, Gradient(), x, y).signal, victim)


def plain_step(victim: Victim, observed: Observed, y: Tensor, distance: str) -> Callable[[], None]:
    """The loop that everybody writes: one restart, eager, double backward through every parameter."""
    model, space = victim.model, victim.space
    parameters = [p for p in model.parameters() if p.requires_grad]
    targets = list(observed.signal.values())
    x = space.start(len(y), torch.Generator().manual_seed(1)).to(DEVICE).requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.1)
    length = torch.stack([t.square().sum() for t in targets]).sum().sqrt()

    def step() -> None:
        optimizer.zero_grad()
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            loss = F.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, parameters, create_graph=True)
        if distance == "cosine":
            dot = sum((g * t).sum() for g, t in zip(grads, targets, strict=True))
            norm = sum(g.square().sum() for g in grads)
            objective = 1 - dot / (norm.sqrt() * length)  # pyright: ignore[reportAttributeAccessIssue]
        else:
            objective = sum((g - t).square().sum() for g, t in zip(grads, targets, strict=True))
        (slope,) = torch.autograd.grad(objective, x)  # pyright: ignore[reportCallIssue, reportArgumentType]
        x.grad = slope.sign()
        optimizer.step()
        with torch.no_grad():
            x.copy_(space.project(x))

    return step


@dataclass(frozen=True)
class Ours:
    """``move`` makes a whole step; ``eager`` the same replay and derivative without a recording, to be counted."""

    move: Mover
    eager: Callable[[], None]
    note: str


def our_search(victim: Victim, observed: Observed, y: Tensor, distance: str, rows: int, *, own: bool = False) -> Ours:
    """The engine's search over ``rows`` restarts; with ``own`` each row has an observation of its own."""
    rng = torch.Generator().manual_seed(1)
    x = torch.stack([victim.space.start(len(y), rng) for _ in range(rows)]).to(DEVICE).requires_grad_()
    target = Observed.stack([observed] * rows) if own else observed
    problem = Problem(DISTANCES[distance], victim, Gradient(), target, y.expand(rows, -1), Exact(), Draws.of(rows))
    search = Search(problem, x, None, together=True)
    solver = Descent(Adam(0.1), steps=10**6, gradient=(Sign(),))

    def eager() -> None:
        torch.autograd.grad(search.objective(x, None, slice(None)).sum(), x)

    given = Moving(x=x, losses=search.losses, space=victim.space, draws=problem.draws)
    return Ours(solver.begin(given), eager, "; ".join(search.notes))


def our_step(
    victim: Victim, observed: Observed, y: Tensor, distance: str, rows: int, *, own: bool = False
) -> tuple[Callable[[], None], str]:
    """The engine's step for ``rows`` restarts, warm, and how it runs."""
    ours = our_search(victim, observed, y, distance, rows, own=own)
    number = iter(range(10**6))
    for _ in range(5 if DEVICE.type == "cuda" else 1):
        ours.move(next(number))
    return lambda: ours.move(next(number)), f"{ours.note}; {ours.move.note}"


def rounds(steps: dict[str, Callable[[], None]], *, count: int, seconds: float) -> dict[str, list[float]]:
    """Seconds per step of each, ``count`` rounds, alternating; each round runs for about ``seconds``."""
    repeats = {}
    for name, step in steps.items():
        step()
        began = clock()
        step()
        repeats[name] = max(1, int(seconds / max(1e-6, clock() - began)))
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(count):
        for name, step in steps.items():
            began = clock()
            for _ in range(repeats[name]):
                step()
            taken[name].append((clock() - began) / repeats[name])
    return taken


def measure(
    name: str, distance: str, precision: str, restarts: list[int], *, count: int, seconds: float, own: bool
) -> list[dict[str, Any]]:
    victim, _, y, observed = prepared(CASES[name])
    results = []
    for rows in restarts:
        with PRECISIONS["fp32"].inside(DEVICE):
            plain = plain_step(victim, observed, y, distance)
            plain()
        base = torch.cuda.memory_allocated() if DEVICE.type == "cuda" else 0
        if DEVICE.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        try:
            with PRECISIONS[precision].inside(DEVICE):
                ours, note = our_step(victim, observed, y, distance, rows, own=own)
        except torch.OutOfMemoryError:
            results.append({"case": name, "restarts": rows, "precision": precision, "error": "out of memory"})
            torch.cuda.empty_cache()
            continue
        peak = torch.cuda.max_memory_allocated() - base if DEVICE.type == "cuda" else 0

        def guarded(step: Callable[[], None], how: str) -> Callable[[], None]:
            def run() -> None:
                with PRECISIONS[how].inside(DEVICE):
                    step()

            return run

        taken = rounds(
            {"plain": guarded(plain, "fp32"), "ours": guarded(ours, precision)}, count=count, seconds=seconds
        )
        ratios = sorted(p / (o / rows) for p, o in zip(taken["plain"], taken["ours"], strict=True))
        results.append(
            {
                "case": name,
                "distance": distance,
                "precision": precision,
                "restarts": rows,
                "own_observations": own,
                "speedup": round(statistics.median(ratios), 2),
                "lowest": round(ratios[0], 2),
                "highest": round(ratios[-1], 2),
                "plain_ms": round(1e3 * statistics.median(taken["plain"]), 4),
                "ours_ms_per_restart": round(1e3 * statistics.median(taken["ours"]) / rows, 4),
                "peak_mib": round(peak / 2**20),
                "note": note,
                "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU",
                "torch": str(torch.__version__),
            }
        )
        print(json.dumps(results[-1]), flush=True)
        del ours
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two small cases, two rounds")
    large = DEVICE.type == "cuda"  # on a CPU the 224×224 cases take hours
    parser.add_argument("--cases", default=",".join(CASES) if large else "convnet,resnet18_pre,vit")
    parser.add_argument("--restarts", default="1,8,32" if large else "1,8")
    parser.add_argument("--distances", default="cosine")
    parser.add_argument("--precisions", default="fp32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one round of one side")
    parser.add_argument("--own", action="store_true", help="each row has an observation of its own")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.cases, options.restarts, options.rounds, options.seconds = "convnet,vit", "1,4", 2, 0.1
    results = []
    for name in options.cases.split(","):
        for distance in options.distances.split(","):
            for precision in options.precisions.split(","):
                results += measure(
                    name,
                    distance,
                    precision,
                    [int(r) for r in options.restarts.split(",")],
                    count=options.rounds,
                    seconds=options.seconds,
                    own=options.own,
                )
    write_lines(options.out, results)


if __name__ == "__main__":
    main()
