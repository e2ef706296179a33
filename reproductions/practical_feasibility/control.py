"""The positive control: one CIFAR-10 image, inference mode, ResNet18 in both forms, trained and untrained.

    python -m reproductions.practical_feasibility.control --data FOLDER --out FOLDER

This is the case gradient inversion is known for (Geiping et al. 2020). A search that cannot solve it says nothing about harder ones.

Settings are chosen on other images than the ones reported. Each setting attacks the second test image of four classes, and the one
with the best mean PSNR wins: an adversary can do the same with images of its own, on the model it was sent. The winner then attacks the
first test image of eight classes, with more steps and restarts, and only those scores count. Among restarts the lowest objective is
kept, as an adversary would; the best by PSNR is noted beside it.

Searches may run in stages, each from where the last one ended: on coarse blocks of pixels first (``blocks``), on a softened
network first (``smooth``), or with more total variation first (``falling``). Replays
use TF32; the winner of a search and its mismatch are computed in float32.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from leakgauge.channels import Gradient
from leakgauge.core import Labels, Mode, Observation, Pixels, Reconstruction, Size, Space, Victim, share
from leakgauge.data.embedded import photographs
from leakgauge.engine import TF32
from leakgauge.inversion import (
    Adam,
    BalancedCosine,
    CosineDecay,
    Descent,
    FromSpace,
    Latent,
    LayerCosine,
    Matching,
    Sign,
    StepDecay,
    TotalVariation,
)
from leakgauge.inversion.starts import Start
from leakgauge.measures.image import ssim
from reproductions.common import gates, runner
from reproductions.common.networks.resnet import ResNet18
from reproductions.common.runner import Options, Part, Row, Rows, rounded, run_part
from reproductions.common.sheets import CIFAR_SPACE, sheets
from reproductions.practical_feasibility.image_network import ImageNetwork
from reproductions.practical_feasibility.training import RESIDUAL, Recipe, trained

RESULTS = Path(__file__).parent / "results"
CASES = ("post untrained", "pre untrained", "post trained", "pre trained")
IMAGES, TUNED_ON, CLASSES = 8, 4, 10
Images = tuple[Tensor, Tensor]
"""Pictures and their labels."""


@dataclass(frozen=True)
class Blocks:
    """Moves pixels in squares of ``size``: each gets the mean gradient of its square."""

    size: int

    def __call__(self, gradient: Tensor, /) -> Tensor:
        rows = gradient.flatten(0, 1)
        coarse = nn.functional.avg_pool2d(rows, self.size)
        return coarse.repeat_interleave(self.size, -1).repeat_interleave(self.size, -2).unflatten(0, gradient.shape[:2])


@dataclass(frozen=True)
class BlockNoise:
    """N(0, 1) in model space, one draw for each square of ``size`` pixels."""

    size: int

    def __call__(self, space: Space, seen: Observation, rows: int, size: int, *, rng: torch.Generator) -> Tensor:
        channels, height, width = space.shape
        drawn = torch.randn(rows, size, channels, height // self.size, width // self.size, generator=rng)
        return drawn.repeat_interleave(self.size, -1).repeat_interleave(self.size, -2)


@dataclass(frozen=True)
class Setting:
    """``power`` as in :class:`~leakgauge.inversion.BalancedCosine` ("layers" for :class:`~leakgauge.inversion.LayerCosine`).

    ``blocks`` are the sizes of the squares of the first stages, ``smooth`` the softplus sharpnesses of the next, ``falling`` the total
    variation of those after them; the last stage moves single pixels on the true network with ``tv``. Stages share the steps equally.
    ``along`` replays the gradient at the output in place of the loss. With ``network`` the search moves the weights of an untrained
    network of that width that paints the image (:class:`ImageNetwork`), and in the last share ``pixels`` of the steps the pixels.
    """

    power: float | str = 1.0
    tv: float = 1e-2
    lr: float = 0.1
    signed: bool = True
    decay: str = "step"
    blocks: tuple[int, ...] = ()
    smooth: tuple[float, ...] = ()
    falling: tuple[float, ...] = ()
    along: bool = False
    network: int = 0
    pixels: float = 0.0

    @property
    def key(self) -> str:
        words = [
            f"power={self.power}",
            f"tv={self.tv:g}",
            f"lr={self.lr:g}",
            "signed" if self.signed else "plain",
            self.decay,
        ]
        words += [f"blocks={'/'.join(map(str, self.blocks))}"] if self.blocks else []
        words += [f"smooth={'/'.join(f'{s:g}' for s in self.smooth)}"] if self.smooth else []
        words += [f"falling={'/'.join(f'{tv:g}' for tv in self.falling)}"] if self.falling else []
        words += ["along"] if self.along else []
        words += [f"network={self.network}"] if self.network else []
        words += [f"pixels={self.pixels:g}"] if self.pixels else []
        return " ".join(words)

    def attack(self, steps: int, restarts: int, *, block: int = 1) -> Matching:
        term = LayerCosine() if self.power == "layers" else BalancedCosine(float(self.power))
        maps = ((Blocks(block),) if block > 1 else ()) + ((Sign(),) if self.signed else ())
        schedule = StepDecay() if self.decay == "step" else CosineDecay()
        solver = Descent(Adam(self.lr), steps, gradient=maps, schedule=schedule, project=True)
        return Matching(
            term + self.tv * TotalVariation(),
            solver=self.painting(solver) if self.network else solver,
            restarts=restarts,
            precision=TF32(),
            name="control",
            along=self.along,
        )

    def painting(self, descent: Descent) -> Latent:
        made, last = ImageNetwork(self.network), round(self.pixels * descent.steps)
        near = Descent(Adam(AFTER), last, gradient=(Sign(),), schedule=StepDecay(), project=True) if last else None
        return Latent(made, made.size, replace(descent, steps=descent.steps - last), weight=0.0, pixels=near)


AFTER = 0.01
"""Learning rate of pixels that continue from a network's image."""
COARSE, SMOOTH = (8, 4, 2), (5.0, 20.0, 100.0)
BY_LAYER = Setting(power="layers")
UNTRAINED = (
    Setting(),
    BY_LAYER,
    replace(BY_LAYER, blocks=COARSE),
    replace(BY_LAYER, tv=1e-1),
    replace(BY_LAYER, smooth=SMOOTH),
    Setting(tv=1e-4),
    Setting(tv=3e-2),
    Setting(tv=3e-3),
)
TRAINED = (
    Setting(),
    BY_LAYER,
    replace(BY_LAYER, blocks=COARSE),
    replace(BY_LAYER, tv=1e-1),
    replace(BY_LAYER, smooth=SMOOTH),
    Setting(tv=1e-1),
    replace(BY_LAYER, tv=3e-1),
    Setting(tv=3e-2),
    Setting(power=0.5, tv=1e-1),
    replace(BY_LAYER, tv=1e-1, lr=0.03, decay="cosine"),
)
TRIAL, FINALISTS = 1000, 2
FINAL = {"untrained": (3000, 2), "trained": (5000, 3)}
"""Steps, at least half of them where time is short, and restarts."""
TRIALS_TAKE = 0.4
"""Share of the time after which trials stop."""
LATER = 0.6
"""Factor on the learning rate from one stage to the next."""


@dataclass(frozen=True)
class Continued:
    """Starts where earlier results ended, one batch for each observation; ``found`` by the observation's identity."""

    found: dict[int, Tensor]

    def __call__(self, space: Space, seen: Observation, rows: int, size: int, *, rng: torch.Generator) -> Tensor:
        return self.found[id(seen)]


def smoothed(model: nn.Module, sharpness: float) -> nn.Module:
    """The network with log(1 + exp(βx))/β for max(x, 0): slopes change with the input, which a search can follow."""
    made = copy.deepcopy(model)
    for parent in list(made.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.ReLU):
                setattr(parent, name, nn.Softplus(beta=sharpness))
    return made


def attacked(
    victim: Victim, seen: Sequence[Observation], setting: Setting, *, steps: int, restarts: int, seed: int
) -> list[Tensor]:
    """Candidates (restarts, 1, C, H, W) of every observation, best first."""
    stages: list[tuple[int, float | None, float]] = [(block, None, setting.tv) for block in setting.blocks]
    stages += [(1, sharp, setting.tv) for sharp in setting.smooth]
    stages += [(1, None, tv) for tv in (*setting.falling, setting.tv)]
    each_stage = max(1, steps // len(stages))
    start: Start = BlockNoise(setting.blocks[0]) if setting.blocks else FromSpace()
    found: list[Reconstruction] = []
    for number, (block, sharp, tv) in enumerate(stages):
        model = victim.model if sharp is None else smoothed(victim.model, sharp)
        attack = replace(setting, lr=setting.lr * LATER**number, tv=tv).attack(each_stage, restarts, block=block)
        of = Victim(model, victim.space, mode=victim.mode)
        found = replace(attack, start=start).many(of, seen, seed=seed)
        start = Continued({id(one): each.candidates.detach().cpu() for one, each in zip(seen, found, strict=True)})
    return [each.candidates[each.losses.argsort()].detach() for each in found]


def mismatch(victim: Victim, seen: Observation, x: Tensor, y: Tensor) -> float:
    """1 − cos of the gradient of ``x`` and the observed one, in float32 sums of float64."""
    own = share(victim, Gradient(), x, y).signal
    dot, one, other = (
        sum(float((a[n].double() * b[n].double()).sum()) for n in own)
        for a, b in ((own, seen.signal), (own, own), (seen.signal, seen.signal))
    )
    return 1 - dot / (one * other) ** 0.5


def measure(
    victim: Victim, images: Images, setting: Setting, *, steps: int, restarts: int, seed: int, batch: int = 1
) -> tuple[Row, Tensor]:
    """One setting on all images, ``batch`` to a gradient: the candidate with the lowest objective, and the best by the truth.

    The labels of a batch are known and all different, so its images are compared in order.
    """
    began = time.perf_counter()
    x, y = victim.space.encode(images[0]).to(victim.device), images[1].to(victim.device)
    rows = list(zip(x.split(batch), y.split(batch), strict=True))
    seen = [share(victim, Gradient(), one, label, reveal=[Size(), Labels()], seed=seed) for one, label in rows]
    found = attacked(victim, seen, setting, steps=steps, restarts=restarts, seed=seed)
    truths = victim.space.decode(x)
    shown = torch.cat([victim.space.decode(each) for each in found], 1)  # (restarts, images, C, H, W)
    psnr = [[_psnr(one, truth) for one in each] for each, truth in zip(shown.transpose(0, 1), truths, strict=True)]
    kept = shown[0]
    off = [mismatch(victim, one, each[0], label) for one, each, (_, label) in zip(seen, found, rows, strict=True)]
    row: Row = {
        **asdict(setting), "setting": setting.key, "steps": steps, "restarts": restarts, "batch": batch, "mode": victim.mode,
        "psnr": rounded([each[0] for each in psnr]), "best_psnr": rounded([max(each) for each in psnr]),
        "ssim": rounded(ssim(kept.cpu(), truths.cpu()).tolist()), "mismatch": rounded(off),
        "alive": [gates.gradients_alive(one.signal).row() for one in seen],
        "seconds": round(time.perf_counter() - began, 2),
    }  # fmt: skip
    row["mean_psnr"], row["mean_best_psnr"] = (sum(row[k]) / len(x) for k in ("psnr", "best_psnr"))
    return row, kept


def _psnr(a: Tensor, b: Tensor) -> float:
    return float(-10 * (a - b).square().mean().clamp_min(1e-10).log10())


def victim_of(case: str, options: Options, results: Rows, *, mode: Mode = "eval") -> Victim:
    form, kind = case.split()
    model = ResNet18(width=8 if options.quick else 64, pre_activation=form == "pre", seed=options.seed)
    space = Pixels((3, 32, 32), **CIFAR_SPACE)
    if kind == "trained":
        epochs = 1 if options.quick else 24
        load_or_train(form, model, space, options, results, recipe=RESIDUAL, seconds=40, epochs=epochs)
    return Victim(model.eval().to(options.device), space, mode=mode, name=f"resnet18_{form}")


def load_or_train(
    name: str,
    model: nn.Module,
    space: Pixels,
    options: Options,
    results: Rows,
    *,
    recipe: Recipe,
    seconds: float,
    epochs: int,
    facts: Row | None = None,
) -> bool:
    """Fills the model with weights that an earlier call has left, or trains it on CIFAR-10; returns whether it was trained now.

    The row of a training begins with ``facts``. Weights are kept in half precision; the rounded ones are attacked, here and later.
    """
    if results.load(name, model):
        return False
    train, test = (cifar(options, part) for part in ("train", "test"))
    done = trained(
        model, space, train, test, recipe=replace(recipe, batch=32) if options.quick else recipe, seconds=seconds,
        device=options.device, epochs=epochs, seed=options.seed,
    )  # fmt: skip
    balanced, error = gates.balanced_accuracy(model.eval(), (space.encode(test[0]), test[1]), CLASSES)
    checks = [
        gates.above_chance(balanced, error, CLASSES),
        gates.all_classes(test[1], CLASSES),
        gates.shuffled(train[1]),
    ]
    results.save(name, model, half=True)
    results.load(name, model)
    row: Row = {
        **(facts or {}), "accuracy": done.accuracy, "train_accuracy": done.train_accuracy, "epochs": done.epochs,
        "images": done.images, "seconds": round(done.seconds, 1), "gates": [check.row() for check in checks],
    }  # fmt: skip
    if not results.has(unit := f"trained {name}"):  # a row without its weights is trained again, for the attacks
        results.add(unit, row)
    return True


def cifar(options: Options, part: str) -> tuple[Tensor, Tensor]:
    if options.data is None:
        x = photographs(32)
        return torch.cat([x, x.flip(-1)]).repeat(4, 1, 1, 1), (torch.arange(len(x)) % CLASSES).repeat(8)
    return sheets(options.data / f"cifar10_{part}.zip")


def targets(options: Options, place: int, count: int) -> tuple[Tensor, Tensor]:
    """The test image at ``place`` of each of the first ``count`` classes."""
    x, y = cifar(options, "test")
    rows = [int((y == k).nonzero()[place]) for k in range(count)]
    return x[rows], y[rows]


def run(options: Options, results: Rows) -> None:
    images = targets(options, 0, 2 if options.quick else IMAGES)
    others = targets(options, 1, 1 if options.quick else TUNED_ON)
    results.keep("truth", images[0])
    victims = {case: victim_of(case, options, results) for case in CASES}
    began = time.time()
    trials(options, results, victims, others, until=began + TRIALS_TAKE * options.left())
    for place in range(FINALISTS):
        for case, victim in victims.items():
            setting = chosen(results, case, place)
            unit = f"final {case} {setting.key}"
            if results.has(unit):
                continue
            wanted, restarts = (6, 2) if options.quick else FINAL[case.split()[1]]
            steps = min(wanted, affordable(options, victim, images, setting, restarts=restarts))
            if steps < wanted / 2:
                results.wait(unit)
                continue
            row, kept = measure(victim, images, setting, steps=steps, restarts=restarts, seed=options.seed)
            check = gates.control(row["psnr"])
            results.add(unit, {"kind": "final", "case": case, **row, "gates": [check.row()]}, pictures={unit: kept})


def settings_for(case: str) -> tuple[Setting, ...]:
    return TRAINED if case.endswith(" trained") else UNTRAINED


def chosen(results: Rows, case: str, place: int) -> Setting:
    """The setting whose trial came out at ``place`` among those of the case."""
    tried = [row for row in results.rows if row.get("kind") == "trial" and row["case"] == case]
    key = sorted(tried, key=lambda row: -row["mean_psnr"])[place]["setting"]
    return next(setting for setting in settings_for(case) if setting.key == key)


def trials(options: Options, results: Rows, victims: dict[str, Victim], images: Images, *, until: float) -> None:
    """One setting on all cases, then the next: a stop leaves no case without trials."""
    count = 3 if options.quick else max(len(UNTRAINED), len(TRAINED))
    for number in range(count):
        for case, victim in victims.items():
            setting = next(iter(settings_for(case)[number : number + 1]), None)
            if setting is None or results.has(f"trial {case} {setting.key}"):
                continue
            if time.time() > until:
                results.wait(f"trial {case} {setting.key}")
                return
            unit = f"trial {case} {setting.key}"
            steps = 4 if options.quick else TRIAL
            row, kept = measure(victim, images, setting, steps=steps, restarts=1, seed=options.seed)
            results.add(unit, {"kind": "trial", "case": case, **row}, pictures={unit: kept})


def affordable(
    options: Options, victim: Victim, images: Images, setting: Setting, *, restarts: int, batch: int = 1
) -> int:
    """Steps that fit into the time left."""
    if options.quick or options.left() == float("inf"):
        return 10**6

    def timed(steps: int) -> float:
        row, _ = measure(victim, images, setting, steps=steps, restarts=restarts, seed=options.seed, batch=batch)
        return row["seconds"]

    return steps_within(options, timed)


def steps_within(options: Options, timed: Callable[[int], float]) -> int:
    """Steps that take nine tenths of the time left, after two short runs: one shows what a step takes, both what the start does."""
    few, more = 60, 180
    short, longer = timed(few), timed(more)
    each = max((longer - short) / (more - few), longer / (10 * more))
    return int((0.9 * options.left() - max(0.0, longer - more * each)) / each)


if __name__ == "__main__":
    run_part(Part("control", run), Options.of(runner.parser(__doc__, out=RESULTS).parse_args()))
