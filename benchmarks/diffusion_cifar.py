"""A diffusion prior on CIFAR-10's residual networks, beside attacks without one.

python -m benchmarks.diffusion_cifar prior --data DIR --out FOLDER --seconds 240                          trains the prior
python -m benchmarks.diffusion_cifar choose --data DIR --out FOLDER [--depth 20] [--within 240]           tries settings
python -m benchmarks.diffusion_cifar measure --data DIR --out FOLDER [--depth 56] [--mode train --batch 4] [--noise 0.5]
python -m benchmarks.diffusion_cifar all --quick                 a minute on one core, no data needed: crops of photographs

DIR holds cifar10_train_a.zip, cifar10_train_b.zip, cifar10_test.zip and weights/cifar10_resnet20.safetensors (and 56). The prior learns
from the 50,000 training images (``--classes 5``: only from those of the first five classes). Settings are chosen on test images that
another seed draws than those that are measured; both draws leave out the 1,000 test images among which an attacked one must be recognised.
Labels are read from the gradient. Rows have SSIM, PSNR, 1 − cos at what was found, ranks by correlation, by the features of the other
network and (where its weights are found) by LPIPS, and seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from leakgauge.attacks import diffusion, diffusion_guided, inverting_gradients
from leakgauge.attacks.diffusion import Learning, WithDiffusion
from leakgauge.audit.scoring import score
from leakgauge.channels import Gradient
from leakgauge.core import Attack, Buffers, Defense, Observation, Pixels, Reconstruction, Size, Victim, share
from leakgauge.data.embedded import photographs
from leakgauge.defenses import GaussianNoise
from leakgauge.inversion import Annealing, BalancedCosine, Cosine, FixedLength, LayerCosine, Matching, Sampling
from leakgauge.inversion.terms import Term
from leakgauge.measures.lpips import load_lpips
from leakgauge.measures.reidentification import normalised_correlation, rank
from leakgauge.priors import fit_diffusion, sample
from reproductions.common.networks.cifar_resnet import CifarResNet, load_cifar_resnet
from reproductions.common.sheets import sheets

POOL, TUNED_ON = 1000, 8


@dataclass(frozen=True)
class Setting:
    """One way to search within the prior; ``power`` as in BalancedCosine (1: the plain cosine, None: LayerCosine).

    ``kind`` is ``anneal`` (the denoiser's input moves) or ``fixed`` (steps of fixed length).
    """

    power: float | None = 1.0
    kind: str = "anneal"
    rounds: int = 30
    moves: int = 10
    reach: float = 0.1
    restarts: int = 8
    select: float = 0.0

    def attack(self, prior: Path) -> WithDiffusion:
        steps = self.rounds * self.moves
        solver = (
            Sampling(guidance=FixedLength(self.reach), steps=steps)
            if self.kind == "fixed"
            else Annealing(rounds=self.rounds, moves=self.moves, reach=self.reach, select=self.select)
        )
        term: Term = LayerCosine() if self.power is None else BalancedCosine(self.power) if self.power < 1 else Cosine()
        plain = diffusion()
        matching = replace(plain.matching, objective=term, solver=solver, restarts=self.restarts)
        return replace(plain, matching=matching, learning=Learning(str(prior)))


ROUNDS: tuple[tuple[str, tuple[dict[str, object], ...]], ...] = (
    (
        "solver",
        (
            {"kind": "fixed", "reach": 2.0},
            {"kind": "fixed", "reach": 4.0},
            {"rounds": 15, "moves": 20},
            {"rounds": 15, "moves": 20, "reach": 0.2},
            {"rounds": 15, "moves": 20, "select": 0.25},
            {"rounds": 10, "moves": 50, "select": 0.5},
            {"rounds": 15, "moves": 20, "select": 0.25, "power": 0.5},
        ),
    ),
    ("effort", ({"restarts": 32}, {"moves": 50, "rounds": 20})),
)
"""Changes tried one after another; each round begins from the best of the one before, by mean SSIM."""


@dataclass(frozen=True, eq=False)
class Data:
    """What the prior learns from, what is attacked, and the others among which an attacked image must be recognised."""

    public: tuple[Tensor, Tensor]
    attacked: tuple[Tensor, Tensor]
    pool: Tensor


def data_of(given: argparse.Namespace, images: int, *, tuning: bool) -> Data:
    if given.quick:
        return crops(images)
    x, y = sheets(given.data / "cifar10_test.zip")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(given.seed))
    own = order[-images:] if tuning else order[:images]
    public, labels = x[:0], y[:0]
    if given.task in ("prior", "all"):
        halves = [sheets(given.data / f"cifar10_train_{half}.zip") for half in "ab"]
        public, labels = (torch.cat(part) for part in zip(*halves, strict=True))
        kept = labels < given.classes
        public, labels = public[kept], labels[kept]
    return Data((public, labels), (x[own], y[own]), x[order[1000 : 1000 + POOL]])


def crops(images: int) -> Data:
    """Crops of photographs in place of CIFAR-10, to see the script run."""
    tiles = photographs(224).unfold(2, 32, 32).unfold(3, 32, 32).permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, 32, 32)
    tiles = tiles[torch.randperm(len(tiles), generator=torch.Generator().manual_seed(0))]
    labels = torch.arange(len(tiles)) % 10
    return Data((tiles[images:], labels[images:]), (tiles[:images], labels[:images]), tiles[images : images + 50])


def network(given: argparse.Namespace, depth: int) -> tuple[CifarResNet, Pixels]:
    if given.quick:
        return CifarResNet(depth=8, width=4).eval(), Pixels((3, 32, 32))
    return load_cifar_resnet(given.data / "weights" / f"cifar10_resnet{depth}.safetensors")


def train(given: argparse.Namespace, device: torch.device, file: Path) -> None:
    """The prior, with as many steps as fit into ``--seconds``."""
    images, labels = (one.to(device) for one in data_of(given, 2, tuning=False).public)
    began = time.perf_counter()

    def fit(steps: int, stop: int | None = None) -> float:
        started = time.perf_counter()
        made = fit_diffusion(
            images, labels=labels, classes=10, width=given.width, steps=steps, stop=stop, batch=given.training_batch,
            lr=given.rate, ema=0.9995, seed=given.seed,
        )  # fmt: skip
        if stop is None:
            made.save(file)
            pictures = sample(made, 64, labels=torch.arange(64, device=device) % 10)
            torch.save((pictures.clamp(0, 1) * 255).byte().cpu(), file.with_name("samples.pt"))
            print(made, flush=True)
        return time.perf_counter() - started

    steps = 10
    if given.seconds:
        fit(10**6, 40)  # compiles
        short, long = fit(10**6, 41), fit(10**6, 241)
        steps = int((given.seconds - (time.perf_counter() - began) - 15) / max(1e-4, (long - short) / 200))
        print(f"{(long - short) / 200 * 1e3:.1f} ms a step: {steps} steps", flush=True)
    fit(steps)
    facts = {"steps": steps, "batch": given.training_batch, "width": given.width, "rate": given.rate}
    facts |= {"classes": given.classes, "seconds": round(time.perf_counter() - began, 1), **machine(device)}
    file.with_suffix(".json").write_text(json.dumps(facts) + "\n", "utf-8")
    print(json.dumps(facts), flush=True)


def machine(device: torch.device) -> dict[str, object]:
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    return {"torch": torch.__version__, "device": name}


@dataclass(frozen=True, eq=False)
class Scene:
    """A victim and the observations of some images, in batches; ``judge`` is another network, for its features."""

    victim: Victim
    batches: list[tuple[Observation, Tensor, Tensor]]
    pool: Tensor
    judge: CifarResNet

    @classmethod
    def of(cls, given: argparse.Namespace, device: torch.device, images: int, *, tuning: bool) -> Scene:
        model, space = network(given, given.depth)
        judge, _ = network(given, 56 if given.depth == 20 else 20)
        victim = Victim(model.to(device), space, mode=given.mode, name=f"resnet{given.depth}")
        data = data_of(given, images, tuning=tuning)
        defenses: tuple[Defense, ...] = (GaussianNoise(relative=given.noise),) if given.noise else ()
        reveal = (Size(), Buffers()) if given.mode == "train" else (Size(),)
        x, y = victim.to_input(space.encode(data.attacked[0])), data.attacked[1].to(device)
        batches: list[tuple[Observation, Tensor, Tensor]] = []
        for first in range(0, images, given.batch):
            rows = slice(first, first + given.batch)
            seen = share(victim, Gradient(), x[rows], y[rows], defenses=defenses, reveal=reveal, secret=first)
            batches.append((seen, x[rows], y[rows]))
        return cls(victim, batches, data.pool.to(device), judge.to(device))

    def run(self, attack: Attack, seed: int) -> tuple[list[Reconstruction], float]:
        began = time.perf_counter()
        if isinstance(attack, WithDiffusion | Matching):
            found = attack.many(self.victim, [seen for seen, _, _ in self.batches], seed=seed)
        else:
            found = [attack(self.victim, seen, seed=seed) for seen, _, _ in self.batches]
        if self.victim.device.type == "cuda":
            torch.cuda.synchronize()
        return found, time.perf_counter() - began

    def row(self, name: str, attack: Attack, seed: int, *, ranks: bool = True) -> tuple[dict[str, object], Tensor]:
        """The figures of one attack on all images, and what it made."""
        found, seconds = self.run(attack, seed)
        pairs = list(zip(found, self.batches, strict=True))
        qualities = [score(one, x, y, space=self.victim.space) for one, (_, x, y) in pairs]
        plain = diffusion()  # with the cosine as objective, along the output's gradient where that can be read
        made = torch.cat([self.victim.space.decode(self._paired(one.x, x)) for one, (_, x, _) in pairs])
        truth = torch.cat([self.victim.space.decode(x) for _, x, _ in self.batches])
        row: dict[str, object] = {
            "attack": name,
            "ssim": statistics.mean(s for q in qualities for s in q.ssim),
            "psnr": statistics.mean(p for q in qualities for p in q.psnr),
            "each_ssim": [round(s, 4) for q in qualities for s in q.ssim],
            "mismatch": [
                round(plain.objective_at(self.victim, seen, one.x, y if one.y is None else one.y), 5)
                for one, (seen, _, y) in pairs
            ],
            "seconds": round(seconds, 1),
            "notes": found[0].notes[-2:],
        }
        if ranks:
            places = {kind: rank(made, truth, self.pool, alike=alike).tolist() for kind, alike in self._kinds().items()}
            row |= {"rank_1": {kind: sum(r == 1 for r in each) for kind, each in places.items()}, "ranks": places}
        return row, made

    def _paired(self, made: Tensor, truth: Tensor) -> Tensor:
        from scipy.optimize import linear_sum_assignment

        apart = torch.cdist(made.flatten(1).float(), truth.flatten(1).float())
        return made[linear_sum_assignment(apart.T.cpu().numpy())[1]]

    def _kinds(self) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
        def features(images: Tensor) -> Tensor:
            with torch.no_grad():
                return self.judge.features(self.victim.space.encode(images.float()))

        def by_features(a: Tensor, b: Tensor) -> Tensor:
            return torch.nn.functional.normalize(features(a)) @ torch.nn.functional.normalize(features(b)).T

        kinds: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            "correlation": normalised_correlation,
            "features": by_features,
        }
        lpips = load_lpips()
        if lpips is not None:
            kinds["lpips"] = lambda a, b: torch.stack(
                [-lpips(one.float().expand_as(b).contiguous(), b.float()) for one in a]
            )
        return kinds


def choose(given: argparse.Namespace, device: torch.device, prior: Path, out: Path) -> Setting:
    """Round by round the change that gives the highest SSIM on images that are not reported."""
    scene = Scene.of(given, device, 2 if given.quick else TUNED_ON, tuning=True)
    until = time.perf_counter() + given.within
    best, height = Setting(), -1.0
    lines: list[dict[str, object]] = []
    for name, changes in ROUNDS:
        base = best
        for change in changes:
            setting = replace(base, **change)
            if given.quick:
                setting = replace(setting, rounds=2, moves=2, restarts=2)
            if time.perf_counter() > until:
                print("no time left", flush=True)
                break
            row, _ = scene.row(name, setting.attack(prior), given.seed, ranks=False)
            lines.append({**row, "setting": asdict(setting), "depth": given.depth})
            print(json.dumps(lines[-1]), flush=True)
            (out / f"diffusion_choice_{given.depth}.jsonl").write_text("".join(json.dumps(n) + "\n" for n in lines))
            ssim = float(str(row["ssim"]))
            if ssim > height:
                best, height = setting, ssim
    (out / f"chosen_{given.depth}.json").write_text(json.dumps(asdict(best)) + "\n")
    print("chosen:", best, flush=True)
    return best


def measure(given: argparse.Namespace, device: torch.device, prior: Path, out: Path) -> None:
    """The chosen setting on the reported images, beside the paper's attack and one without a prior given the same seconds."""
    scene = Scene.of(given, device, 2 * given.batch if given.quick else given.images, tuning=False)
    chosen = Setting(**json.loads((out / f"chosen_{given.chosen or given.depth}.json").read_text()))
    if given.restarts:
        chosen = replace(chosen, restarts=given.restarts)
    ours = chosen.attack(prior)
    steps = chosen.rounds * chosen.moves
    guided = replace(diffusion_guided(steps=steps, restarts=chosen.restarts, mixing=0.2), learning=Learning(str(prior)))
    facts = {**machine(device), "setting": asdict(chosen), "prior": json.loads(prior.with_suffix(".json").read_text())}
    about = {k: getattr(given, k) for k in ("depth", "mode", "batch", "noise", "classes", "seed")}
    lines: list[dict[str, object]] = [{**about, **facts}]
    pictures: dict[str, Tensor] = {"truth": torch.cat([scene.victim.space.decode(x) for _, x, _ in scene.batches])}

    def attempt(name: str, attack: Attack) -> float:
        row, made = scene.row(name, attack, given.seed)
        lines.append(row)
        pictures[name] = made
        print(json.dumps(row), flush=True)
        mark = "_".join(
            [f"resnet{given.depth}", given.mode, str(given.batch), *([f"{given.noise:g}"] * bool(given.noise))]
        )
        mark += "" if given.classes == 10 else f"_{given.classes}"
        (out / f"diffusion_{mark}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
        torch.save({k: (v.clamp(0, 1) * 255).byte().cpu() for k, v in pictures.items()}, out / f"pictures_{mark}.pt")
        return float(str(row["seconds"]))

    seconds = attempt("diffusion", ours)
    if given.few:
        attempt("prior alone", ours.blind())
        return
    attempt("prior alone", ours.blind())
    # equal seconds: its steps are timed on a short run
    tried = 20 if given.quick else 200
    short = scene.run(inverting_gradients(tv=0.01, steps=tried, restarts=chosen.restarts), given.seed)[1]
    longer = 40 if given.quick else max(tried, min(10_000, int(tried * seconds / max(short, 1e-3))))
    attempt(
        f"inverting_gradients, {longer} steps", inverting_gradients(tv=0.01, steps=longer, restarts=chosen.restarts)
    )
    if not given.without_paper:
        attempt("diffusion_guided", guided)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("prior", "choose", "measure", "all"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("diffusion-cifar"))
    parser.add_argument("--prior", type=Path, help="a trained prior; by default prior.safetensors in --out")
    parser.add_argument("--depth", type=int, default=20, choices=(20, 56))
    parser.add_argument("--chosen", type=int, help="depth of the network whose chosen setting is taken")
    parser.add_argument("--mode", default="eval", choices=("eval", "train"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--restarts", type=int, help="in place of those of the chosen setting")
    parser.add_argument("--noise", type=float, default=0.0, help="noise on the gradient, relative to its norm")
    parser.add_argument("--classes", type=int, default=10, help="of the images that the prior learns from")
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--seconds", type=float, default=240.0, help="for the training of the prior")
    parser.add_argument("--training-batch", type=int, default=512)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--within", type=float, default=240.0, help="seconds for trying settings")
    parser.add_argument("--few", action="store_true", help="only the prior's own attack and its null run")
    parser.add_argument("--without-paper", action="store_true", help="leave diffusion_guided out")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if given.quick:
        given.width, given.training_batch, given.seconds = 8, 16, 0.0
    elif given.data is None:
        parser.error("give --data DIR, or --quick")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    given.out.mkdir(parents=True, exist_ok=True)
    prior = given.prior or given.out / "prior.safetensors"
    if given.task in ("prior", "all"):
        train(given, device, prior)
    if given.task in ("choose", "all"):
        choose(given, device, prior, given.out)
    if given.task in ("measure", "all"):
        measure(given, device, prior, given.out)


if __name__ == "__main__":
    main()
