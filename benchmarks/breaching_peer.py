"""CPU time of one restart-iteration against breaching 0.1.2, the peer that is closest to a plain loop.

    python -m benchmarks.breaching_peer [--quick] [--cases convnet,resnet18_pre] [--threads 2,1] [--out results.jsonl]

Both sides attack the same gradient of the same network (eval mode, one image, label given) with their own implementation
of Inverting Gradients: cosine distance, total variation 0.1, signed Adam, projection onto the box. One process, rounds in
alternating order; a ratio above 1 says how many times less CPU time leakgauge needs. An iteration is what lies between
two steps of Adam of one search; what is done once a search (loading, checks, scoring) is reported apart as ``once_ms``.
Before timing, the first objective and the first direction of both sides are compared. Needs the extra ``bench``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import os
import platform
import shlex
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.engine import CASES
from benchmarks.json_lines import write_lines
from leakgauge.attacks.inverting_gradients import inverting_gradients
from leakgauge.channels import Gradient
from leakgauge.core import Labels, Observation, Pixels, Reconstruction, Size, Victim, share
from leakgauge.integrations.torchvision_guest import invite_torchvision
from leakgauge.inversion import Cosine, Descent, FromSpace, Matching

TV = 0.1
STEPS = 4  # with fewer, breaching's schedule begins with a smaller step
AGREED = 1e-4
"""Largest accepted difference of the two sides' first objective, from the same start."""


@dataclass(frozen=True)
class OneByOne(Descent):
    """Descent that asks for no engine: the plain loop over explicit gradients."""

    @property
    def together(self) -> bool:
        return False


@dataclass(frozen=True)
class Task:
    """What both sides are given."""

    victim: Victim
    seen: Observation
    label: Tensor

    @classmethod
    def of(cls, case: str) -> Task:
        torch.manual_seed(0)
        space = Pixels((3, CASES[case].side, CASES[case].side), mean=(0.5,), std=(0.25,))
        victim = Victim(CASES[case].make(), space, mode="eval")
        rng = torch.Generator().manual_seed(0)
        x = space.encode(torch.rand(1, *space.shape, generator=rng))
        y = torch.randint(10, (1,), generator=rng)
        return cls(victim, share(victim, Gradient(), x, y, reveal=(Size(), Labels())), y)


def ours(task: Task, *, restarts: int, iterations: int, tv: float = TV, plain: bool = False) -> Reconstruction:
    attack = inverting_gradients(tv=tv, steps=iterations, restarts=restarts)
    if plain:
        attack = _plainly(attack)
    return attack(task.victim, task.seen, seed=1)


def _plainly(attack: Matching) -> Matching:
    solver = attack.solver
    assert isinstance(solver, Descent)
    return replace(
        attack, solver=OneByOne(solver.optimizer, solver.steps, solver.gradient, solver.schedule, solver.project)
    )


@functools.cache
def configured(restarts: int, iterations: int, tv: float) -> Any:
    """breaching's published settings of Inverting Gradients, silent, with our weight of the prior (its own is 0.2)."""
    import breaching

    with contextlib.redirect_stdout(io.StringIO()):
        return breaching.get_attack_config(
            "invertinggradients",
            overrides=[
                f"optim.max_iterations={iterations}",
                f"optim.callback={10**9}",
                f"restarts.num_trials={restarts}",
                f"regularization.total_variation.scale={tv}",
            ],
        )


def theirs(
    task: Task, *, restarts: int, iterations: int, tv: float = TV, start: Tensor | None = None
) -> tuple[Tensor, dict[str, list[float]]]:
    """The best image and the objective of every iteration, from breaching's own attacker."""
    import breaching

    config = configured(restarts, iterations, tv)
    victim, space = task.victim, task.victim.space
    assert isinstance(space, Pixels)
    setup = {"dtype": torch.float, "device": torch.device("cpu")}
    attacker: Any = breaching.attacks.prepare_attack(victim.model, nn.CrossEntropyLoss(), config, setup)
    channels = space.shape[0]
    about = SimpleNamespace(
        shape=space.shape, mean=list(space.mean) * channels, std=list(space.std) * channels, modality="vision"
    )
    payload = {
        "parameters": [p.detach() for p in victim.model.parameters()],
        "buffers": [b.detach() for b in victim.model.buffers()],  # given, so breaching attacks in eval mode
        "metadata": about,
    }
    update = {
        "gradients": list(task.seen.signal.values()),
        "buffers": None,
        "metadata": {"num_data_points": 1, "labels": task.label, "local_hyperparams": None},
    }
    # Without secrets ({}), not None: reconstruct() looks into them.
    found, stats = attacker.reconstruct([payload], [update], {}, initial_data=start)
    return found["data"], stats


def border(x: Tensor) -> Tensor:
    """By how much breaching's total variation of a batch of square images exceeds ours.

    breaching convolves with zero padding, so the last row and column are also compared with 0 (mid-grey here), and it
    divides by side² where ours divides by the side · (side − 1) differences there are.
    """
    side = x.shape[-1]
    inner = (x[..., 1:] - x[..., :-1]).abs().mean() + (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
    edge = (x[..., -1].abs().mean() + x[..., -1, :].abs().mean()) / side
    return edge - inner / side


def agreement(task: Task) -> dict[str, Any]:
    """Both sides judge the same first image, and (without the prior, which differs at the border) move it alike."""
    start = FromSpace()(task.victim.space, task.seen, 1, 1, rng=torch.Generator().manual_seed(1))[0]
    report: dict[str, Any] = {}
    for name, tv in (("cosine", 0.0), ("whole", TV)):
        mine = float(ours(task, restarts=1, iterations=1, tv=tv).trace.losses[0, 0])
        plain = float(ours(task, restarts=1, iterations=1, tv=tv, plain=True).trace.losses[0, 0])
        their = theirs(task, restarts=1, iterations=1, tv=tv, start=start)[1]["Trial_0_Val"][0]
        explained = tv * float(border(start))
        report[name] = {"ours": mine, "plain": plain, "breaching": their, "of_which_border": explained}
        if max(abs(mine + explained - their), abs(plain + explained - their)) > AGREED:
            raise SystemExit(f"the two sides do not minimise the same objective: {report}")
    moved = first_step(task, lambda: theirs(task, restarts=1, iterations=STEPS, tv=0.0, start=start))
    for name, plain in (("ours", False), ("plain", True)):
        stepped = first_step(task, lambda plain=plain: ours(task, restarts=1, iterations=STEPS, tv=0.0, plain=plain))
        alike = (stepped - moved).abs() < 1e-3
        report[f"same_first_step_{name}"] = round(float(alike.float().mean()), 4)
        if report[f"same_first_step_{name}"] < 0.98:  # signs of derivatives near zero are rounding
            raise SystemExit(f"the two sides do not take the same step: {report}")
    return report


def first_step(task: Task, call: Callable[[], object]) -> Tensor:
    """The candidate after the first step of Adam, caught in passing, inside the box, shape (1, *image)."""
    caught: list[Tensor] = []

    def catch(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        caught.append(optimizer.param_groups[0]["params"][0].detach().clone())

    handle = register_optimizer_step_post_hook(catch)
    try:
        call()
    finally:
        handle.remove()
    return task.victim.space.project(caught[0].reshape(1, *task.victim.space.shape))


@dataclass
class Clock:
    """CPU and wall time of the iterations inside one call: from the end of an Adam step to the end of the next."""

    marks: list[tuple[object, float, float]] = field(default_factory=list)

    def __call__(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        # The optimizer itself is kept, not its id, which the next restart's optimizer could be given again.
        self.marks.append((optimizer, time.process_time(), time.perf_counter()))

    def run(self, call: Callable[[], object], rows: int, iterations: int) -> dict[str, float]:
        """``rows`` is how many restarts one step moves."""
        self.marks.clear()
        handle = register_optimizer_step_post_hook(self)
        began = time.process_time()
        try:
            call()
        finally:
            handle.remove()
        whole = time.process_time() - began
        pairs = [(a, b) for a, b in zip(self.marks, self.marks[1:], strict=False) if a[0] is b[0]]
        searches = len({id(mark[0]) for mark in self.marks})
        if len(self.marks) != iterations * searches:
            raise SystemExit(f"{len(self.marks)} steps of Adam in {searches} searches of {iterations} iterations")
        cpu = sum(b[1] - a[1] for a, b in pairs) / len(pairs)
        wall = sum(b[2] - a[2] for a, b in pairs) / len(pairs)
        once = (whole - cpu * len(self.marks)) / searches
        self.marks.clear()
        return {"cpu": cpu / rows, "wall": wall / rows, "once": once}


@dataclass(frozen=True)
class Side:
    call: Callable[[int], object]
    """Runs one attack of so many iterations."""
    rows: int
    iterations: int


def measure(case: str, threads: int, *, restarts: int, iterations: int, single: int, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    task = Task.of(case)
    result: dict[str, Any] = {
        "case": case,
        "parameters": sum(p.numel() for p in task.victim.model.parameters()),
        "threads": threads,
        "rounds": rounds,
        "restarts": restarts,
        "iterations": {"one_restart": single, "many_restarts": iterations},
        "first_objective": agreement(task),
        "notes": {
            "ours_1": ours(task, restarts=1, iterations=1).notes,
            "plain_1": ours(task, restarts=1, iterations=1, plain=True).notes,
            "ours_many": ours(task, restarts=restarts, iterations=1).notes,
        },
    }
    sides = {
        "plain_1": Side(lambda n: ours(task, restarts=1, iterations=n, plain=True), 1, single),
        "breaching_1": Side(lambda n: theirs(task, restarts=1, iterations=n), 1, single),
        "ours_1": Side(lambda n: ours(task, restarts=1, iterations=n), 1, single),
        "breaching_many": Side(lambda n: theirs(task, restarts=restarts, iterations=n), 1, iterations),
        "ours_many": Side(lambda n: ours(task, restarts=restarts, iterations=n), restarts, iterations),
    }
    clock = Clock()
    for name in ("plain_1", "breaching_1", "ours_1", "ours_many"):  # TorchScript and the allocator settle
        sides[name].call(3)
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides) if number % 2 == 0 else list(sides)[::-1]:
            side = sides[name]
            taken[name].append(clock.run(lambda s=side: s.call(s.iterations), side.rows, side.iterations))
    for name, times in taken.items():
        result[name] = {
            "cpu_ms": round(1e3 * statistics.median(t["cpu"] for t in times), 3),
            "wall_ms": round(1e3 * statistics.median(t["wall"] for t in times), 3),
            "once_ms": round(1e3 * statistics.median(t["once"] for t in times), 1),
        }
    for name, (peer, own) in {
        "plain_1_vs_breaching": ("breaching_1", "plain_1"),
        "ours_1_vs_breaching": ("breaching_1", "ours_1"),
        "ours_many_vs_breaching": ("breaching_many", "ours_many"),
        "control_breaching_vs_itself": ("breaching_many", "breaching_1"),
    }.items():
        result[name] = {
            kind: spread([p[kind] / o[kind] for p, o in zip(taken[peer], taken[own], strict=True)])
            for kind in ("cpu", "wall")
        }
    return result


def spread(ratios: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(ratios), 3),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
    }


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    named = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{named}, {os.cpu_count()} cores"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a single round of few iterations; its ratios are rough")
    parser.add_argument("--cases", default="convnet,resnet18_pre")
    parser.add_argument("--threads", default="2,1")
    parser.add_argument("--restarts", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=10, help="of each attack with many restarts")
    parser.add_argument("--single", type=int, default=30, help="iterations of each attack with one restart")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.threads, options.iterations, options.single, options.rounds = "2", 3, 5, 1
    if min(options.iterations, options.single) < 2:
        parser.error("an iteration is timed from one step to the next, so at least 2 are needed")
    invite_torchvision()
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # torch.jit.script, which breaching uses
    warnings.filterwarnings("ignore", category=UserWarning, module="hydra|breaching")
    try:
        from importlib.metadata import version

        import breaching  # noqa: F401
    except ImportError as missing:
        raise SystemExit(f"{missing}; install it with: pip install -c constraints.txt -e '.[bench]'") from missing
    results: list[dict[str, Any]] = [
        {
            "command": shlex.join(["python", *sys.argv]),
            "cpu": processor(),
            "load_before": [round(load, 2) for load in os.getloadavg()],
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "breaching": version("breaching"),
            "objective": repr(Cosine() + TV * inverting_gradients().objective.parts()[1][1]),
            "ratio": "CPU (or wall) time of breaching / that of leakgauge, per restart and iteration",
        }
    ]
    print(json.dumps(results[0]), flush=True)
    for case in options.cases.split(","):
        for threads in options.threads.split(","):
            results.append(
                measure(
                    case,
                    int(threads),
                    restarts=options.restarts,
                    iterations=options.iterations,
                    single=options.single,
                    rounds=options.rounds,
                )
            )
            print(json.dumps(results[-1]), flush=True)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_lines(options.out, results)


if __name__ == "__main__":
    main()
