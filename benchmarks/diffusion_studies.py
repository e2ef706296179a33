"""Attacks with a diffusion prior on CIFAR-10's residual networks, beside attacks without one at equal seconds.

    python -m benchmarks.diffusion_studies STUDY [STUDY …] --data DIR --priors FOLDER --out FOLDER [--within 300] [--images 16]
    python -m benchmarks.diffusion_studies plain-20 train-4 --quick --priors FOLDER --out FOLDER      a minute or two on one core

``DIR`` and the priors are those of ``benchmarks.diffusion_cifar``. Studies:

    plain-20            one image, eval mode: diffusion, its null run, the best attack without a prior
    without-56          ResNet-56: the attack without a prior, for the seconds that the other took
    paper-20            the same images by the paper's attack and by the plain normalised step
    published-20        the same images by inverting gradients as published: what 1 − cos is compared with
    train-4 …           train mode with shared statistics, batches of that size; eval-4 … the same in eval mode
    resnet18-post …     the feasibility paper's ResNet18 of that form, trained here: single images in eval mode, batches in train mode
    architectures       other networks of the feasibility paper, trained by its study (``--weights``)
    defenses            ResNet-20, one image: each defense, known to the adversary or not, with and without the prior
    null                what images of the prior have in common with the attacked ones, without any signal (a CPU does)
    all half other      ResNet-20, one image: a prior that learned from all classes, from half of them, and from other photographs

Labels are read from the gradient, or given with ``--labels``. Every row has SSIM, PSNR, 1 − cos at what was found, seconds and, for
images that were not found, why (``cause``). A study that fails is named in a row, the others go on, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from benchmarks.diffusion_cifar import KINDS, drawn, joined, machine, network
from leakgauge.attacks import diffusion, diffusion_guided, falling_variation, inverting_gradients
from leakgauge.attacks.diffusion import Learning, WithDiffusion
from leakgauge.attacks.falling_variation import SMOOTHER
from leakgauge.audit.cause import Client, explain
from leakgauge.audit.scoring import ALIKE, score
from leakgauge.channels import DPSGD, Gradient
from leakgauge.core import (
    Buffers,
    Channel,
    Defended,
    Defense,
    Labels,
    Observation,
    Pixels,
    Reconstruction,
    Size,
    Victim,
    share,
)
from leakgauge.defenses import GaussianNoise, Prune, Quantize, Withhold
from leakgauge.errors import Inapplicable
from leakgauge.inversion import (
    Annealing,
    Cosine,
    FixedLength,
    Guided,
    Matching,
    Sampling,
    Staged,
    Strongest,
    TotalVariation,
)
from leakgauge.inversion.progress import watching
from leakgauge.measures.image import ssim
from leakgauge.priors import load_diffusion, sample
from reproductions.common.networks.cifar_resnet import CifarResNet
from reproductions.common.runner import Options, Rows
from reproductions.practical_feasibility import networks as feasibility
from reproductions.practical_feasibility.control import victim_of

Form = Literal["post", "pre"]
Architecture = Literal["swin_t", "convnext_t", "vit_b", "swinv2_t", "maxvit_t"]
Network = int | Form | Architecture
"""A CIFAR ResNet of that depth, the ResNet18 of the feasibility study in that form, or another network of that study."""

DEFENSES: dict[str, tuple[Channel, tuple[Defense, ...]]] = {
    "noise 0.1": (Gradient(), (GaussianNoise(relative=0.1),)),
    "noise 1": (Gradient(), (GaussianNoise(relative=1.0),)),
    "pruned 90 %": (Gradient(), (Prune(0.9),)),
    "pruned 99 %": (Gradient(), (Prune(0.99),)),
    "4 bits": (Gradient(), (Quantize(4),)),
    "2 bits": (Gradient(), (Quantize(2),)),
    "head withheld": (Gradient(), (Withhold("head"),)),
    "DP-SGD, clip 1e-4, noise 0.001": (DPSGD(clip=1e-4, noise=0.001), ()),
    "DP-SGD, clip 1, noise 0.5": (DPSGD(clip=1.0, noise=0.5), ()),
}
"""Noise is relative to the norm of the gradient. The noise of DP-SGD has 0.52 times the length of the clip for a multiplier of 0.001; most
of the attacked images have gradients between 1e-6 and 1e-3."""


PLAIN_STEPS = 1500
"""Of an attack without a prior where its time is not measured: what the attack with a prior has, moves and steps on pixels together."""


@dataclass(frozen=True)
class Setting:
    """How :func:`diffusion` searches: ``rounds`` noise levels with ``moves`` moves each, then ``refine`` steps on pixels, as earlier runs
    chose on images that are not reported."""

    rounds: int = 10
    moves: int = 50
    reach: float = 0.1
    select: float = 0.5
    refine: int = 1000
    group: int = 8
    restarts: int = 16
    statistics: float = 0.1

    def attack(self, prior: Path) -> WithDiffusion:
        plain = diffusion()
        solver = Annealing(
            rounds=self.rounds, moves=self.moves, reach=self.reach, select=self.select, refine=self.refine, group=self.group
        )  # fmt: skip
        matching = replace(plain.matching, solver=solver, restarts=self.restarts)
        return replace(plain, matching=matching, learning=Learning(str(prior)), statistics=self.statistics)


@dataclass(frozen=True)
class Plain:
    """The best attack without a prior: :func:`falling_variation`; in train mode :func:`inverting_gradients` with the shared statistics, or
    with ``falling`` the former there too, without statistics."""

    tv: float = 0.01
    tv_in_train: float = 0.1
    restarts: int = 2
    statistics: float = 0.1
    falling: bool = False

    def named(self, mode: str) -> str:
        return "falling_variation" if mode == "eval" or self.falling else "inverting_gradients"

    def attack(self, steps: int, mode: str) -> Staged | Guided:
        if self.named(mode) == "falling_variation":  # with the plain cosine, which takes a tenth of the time on a GPU
            falling = falling_variation(tv=self.tv, steps=steps, restarts=self.restarts)
            weights = [multiple * self.tv for multiple in SMOOTHER][-len(falling.stages) :]
            return replace(
                falling,
                stages=tuple(
                    replace(stage, objective=Cosine() + weight * TotalVariation())
                    for stage, weight in zip(falling.stages, weights, strict=True)
                ),
            )
        matching = inverting_gradients(tv=self.tv_in_train, steps=steps, restarts=self.restarts, along=True)
        return Guided(matching, Strongest(), self.statistics)


@dataclass(frozen=True, eq=False)
class Scene:
    """A victim and what it shares of some images, in batches."""

    victim: Victim
    batches: list[tuple[Observation, Tensor, Tensor]]
    facts: dict[str, object]
    until: float = math.inf

    @classmethod
    def of(
        cls,
        run: Run,
        network: Network,
        images: int,
        *,
        tuning: bool = False,
        first: int = 0,
        mode: str = "eval",
        batch: int = 1,
        defense: str = "none",
        known: bool = False,
    ) -> Scene:
        victim = run.victim(network, mode)
        space = victim.space
        assert isinstance(space, Pixels)
        own = run.drawn.tuned_on if tuning else run.drawn.attacked
        own = (own[0][first:], own[1][first:])
        images = min(images, len(own[0])) // batch * batch
        channel, defenses = DEFENSES.get(defense, (Gradient(), ()))
        reveal = (Size(), *((Buffers(),) if mode == "train" else ()), *((Defended(),) if known else ()))
        reveal += (Labels(),) if run.given.labels else ()
        x, y = victim.to_input(space.encode(own[0][:images])), own[1][:images].to(run.device)
        batches: list[tuple[Observation, Tensor, Tensor]] = []
        for begin in range(0, images, batch):
            rows = slice(begin, begin + batch)
            sent = channel.reseed(begin) if isinstance(channel, DPSGD) else channel
            seen = share(victim, sent, x[rows], y[rows], defenses=defenses, reveal=reveal, secret=begin)
            batches.append((seen, x[rows], y[rows]))
        facts = {
            "labels": "given" if run.given.labels else "read",
            "depth": network,
            "mode": mode,
            "batch": batch,
            "images": images,
            "tuning": tuning,
        }
        return cls(victim, batches, {**facts, "defense": defense, "defense_known": known}, run.until)

    def attacked(
        self, attack: WithDiffusion | Matching | Staged | Guided, seed: int, most: float = math.inf
    ) -> tuple[list[Reconstruction], float]:
        """What the attack makes of every batch, all at once where it can, and the seconds it took; given up after ``most`` seconds."""
        began = time.perf_counter()
        until = min(began + most, self.until)

        def clock(done: int, total: int) -> None:
            if time.perf_counter() > until:
                raise Inapplicable(f"out of time at step {done} of {total}")

        with watching(clock):
            if isinstance(attack, Guided):
                found = [attack(self.victim, seen, seed=seed) for seen, _, _ in self.batches]
            else:
                found = attack.many(self.victim, [seen for seen, _, _ in self.batches], seed=seed)
        if self.victim.device.type == "cuda":
            torch.cuda.synchronize()
        return found, time.perf_counter() - began

    def images(self, found: Sequence[Reconstruction]) -> Tensor:
        """What was found as images in [0, 1], in the order of the truth."""
        decode = self.victim.space.decode
        return torch.cat([decode(_paired(one.x, x)) for one, (_, x, _) in zip(found, self.batches, strict=True)])

    def row(self, found: Sequence[Reconstruction], seconds: float) -> dict[str, object]:
        plain = Matching(Cosine(), along=True)  # along the output's gradient where that can be read
        pairs = list(zip(found, self.batches, strict=True))
        scores = [score(one, x, y, space=self.victim.space) for one, (_, x, y) in pairs]
        ssims = [s for each in scores for s in each.ssim]
        psnrs = [p for each in scores for p in each.psnr]
        mismatch = [
            plain.objective_at(self.victim, seen, one.x, y if one.y is None else one.y) for one, (seen, _, y) in pairs
        ]
        return {
            **self.facts,
            "ssim": statistics.mean(ssims),
            "psnr": statistics.mean(psnrs),
            "mismatch": statistics.mean(mismatch),
            "labels_right": statistics.mean(float(_same(one.y, y)) for one, (_, _, y) in pairs),
            "each_ssim": [round(s, 4) for s in ssims],
            "each_psnr": [round(p, 2) for p in psnrs],
            "each_mismatch": [round(m, 5) for m in mismatch],
            "seconds": round(seconds, 1),
            "notes": list(found[0].notes[-3:]),
        }  # fmt: skip

    def causes(
        self,
        attack: WithDiffusion | Matching | Staged | Guided,
        found: Sequence[Reconstruction],
        nothing: Sequence[Reconstruction],
    ) -> dict[str, int]:
        """Why batches were not found, counted. Beside a defense like is compared with like (:class:`leakgauge.audit.cause.Settled`)."""
        why: Counter[str] = Counter()
        for one, null, (seen, x, y) in zip(found, nothing, self.batches, strict=True):
            if score(one, x, y, space=self.victim.space).mean("ssim") >= ALIKE:
                why["found"] += 1
                continue
            client, thorough = Client(y, seen.channel, None), self.facts["defense"] != "none"

            def shows(z: Tensor, x: Tensor = x) -> bool:
                made, truth = (self.victim.space.decode(some) for some in (z, x))
                return float(ssim(made, truth).mean()) >= ALIKE

            how = {"nothing": null, "shows": shows, "thorough": thorough}
            why[explain(attack, self.victim, seen, one, x, client, **how).cause.value] += 1
        return dict(why)


def _same(found: Tensor | None, labels: Tensor) -> bool:
    return found is not None and torch.equal(found.sort().values, labels.sort().values)


def _paired(made: Tensor, truth: Tensor) -> Tensor:
    from scipy.optimize import linear_sum_assignment

    apart = torch.cdist(made.flatten(1).float(), truth.flatten(1).float())
    return made[linear_sum_assignment(apart.T.cpu().numpy())[1]]


class Run:
    """What all studies of a command share: data, network, the rows and pictures they write, and the time they have."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.until = given, time.perf_counter() + given.within
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.drawn = drawn(None if given.quick else given.data)
        self.rows: list[dict[str, object]] = []
        self.pictures: dict[str, np.ndarray] = {}
        self.failed = False

    def network(self, depth: int) -> tuple[CifarResNet, Pixels]:
        return network(depth, None if self.given.quick else self.given.data)

    def victim(self, network: Network, mode: str) -> Victim:
        """A CIFAR ResNet by its depth, or a ResNet18 by its form, trained as in the feasibility study (``reproductions``)."""
        how = "train" if mode == "train" else "eval"
        if isinstance(network, int):
            model, space = self.network(network)
            return Victim(model.to(self.device), space, mode=how, name=f"resnet{network}")
        if network not in get_args(Form):
            made = feasibility.Network(network)
            model, space, _ = made.made(classes=10, seed=0, quick=self.given.quick)
            if not self.given.quick:
                if self.given.weights is None:
                    raise SystemExit("architectures needs --weights FOLDER")
                if not feasibility.fill(model, self.given.weights, made):
                    raise SystemExit(f"{self.given.weights} holds no weights of {network}")
            return Victim(model.to(self.device), space, mode=how, name=network)
        data = None if self.given.quick else self.given.data
        options = Options(quick=self.given.quick, device=self.device, out=self.given.out / "resnet18", data=data)
        return victim_of(f"{network} trained", options, Rows.resume(options, "networks"), mode=how)

    def prior(self, kind: str = "all") -> Path:
        return joined(self.given.priors, kind, self.given.out)

    def setting(self, restarts: int) -> Setting:
        """Of the command line, or ``restarts`` and what earlier runs chose."""
        given = self.given
        if given.quick:
            return Setting(rounds=2, moves=2, restarts=4, refine=2)
        return Setting(moves=given.moves, refine=given.refine, restarts=given.restarts or restarts)

    def steps(self, steps: int) -> int:
        return 4 if self.given.quick else steps

    @property
    def late(self) -> bool:
        return time.perf_counter() > self.until

    def add(self, study: str, name: str, row: dict[str, object], images: Tensor | None = None) -> None:
        row = {"study": study, "attack": name, **row, "seed": self.given.seed}
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        out: Path = self.given.out
        (out / f"rows_{self.given.studies[0]}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in self.rows))
        if images is not None:
            known = " ".join(
                str(row[k]) for k in ("study", "depth", "mode", "batch", "defense", "defense_known", "attack")
            )
            self.pictures[known] = (images.clamp(0, 1) * 255).round().byte().cpu().numpy()
            file = out / f"pictures_{self.given.studies[0]}.npz"
            np.savez_compressed(out / "part.npz", allow_pickle=False, **self.pictures)
            (out / "part.npz").replace(file)

    def compared(self, study: str, scene: Scene, kind: str = "all", *, restarts: int = 16) -> None:
        """The prior's attack with its null run, and the best attack without a prior given the same seconds."""
        if self.given.without_prior:
            self.without_prior(study, scene, None)
            return
        setting = self.setting(restarts)
        ours, seed = setting.attack(self.prior(kind)), self.given.seed
        facts: dict[str, object] = {"prior": kind, "setting": asdict(setting)}
        found, seconds = scene.attacked(ours, seed)
        self.add(study, "diffusion", {**scene.row(found, seconds), **facts}, scene.images(found))
        nothing, took = scene.attacked(ours.blind(), seed)
        causes = scene.causes(ours, found, nothing)
        self.add(study, "prior alone", {**scene.row(nothing, took), **facts}, scene.images(nothing))
        self.add(study, "diffusion, causes", {**scene.facts, "prior": kind, "causes": causes})
        if kind == "all" and not self.late:
            self.without_prior(study, scene, seconds)

    def without_prior(self, study: str, scene: Scene, seconds: float | None) -> None:
        """The best attack without a prior, given as many ``seconds``, or where these are None or too few, its own steps."""
        plain, mode = Plain(falling=self.given.falling), str(scene.facts["mode"])
        steps, most = self.steps(PLAIN_STEPS), math.inf
        if seconds is not None:
            tried = 4 if self.given.quick else 40
            # the first call also compiles and tunes; what the two others take beyond each other are steps
            _, short, long = (
                scene.attacked(plain.attack(n, mode), self.given.seed)[1] for n in (tried, tried, 3 * tried)
            )
            each = max((long - short) / (2 * tried), 0.2 * long / (3 * tried))
            setting_up = short - tried * each
            if setting_up <= seconds / 2:  # else what is left would compare nothing
                steps = self.steps(max(tried, min(20_000, int((seconds - setting_up) / each))))
                most = 3 * seconds + 20
        attack = plain.attack(steps, mode)
        found, took = scene.attacked(attack, self.given.seed, most=most)
        name = plain.named(mode)
        given = "seconds" if math.isfinite(most) else "steps"
        facts: dict[str, object] = {"setting": {**asdict(plain), "steps": steps}, "equal": given}
        self.add(study, name, {**scene.row(found, took), **facts}, scene.images(found))
        nothing = scene.attacked(plain.attack(min(steps, 40), mode).blind(), self.given.seed)[0]
        self.add(study, f"{name}, causes", {**scene.facts, "causes": scene.causes(attack, found, nothing)})


def without_56(run: Run) -> None:
    """The attack without a prior alone: as many steps as the other had, or on a GPU for the seconds that it took."""
    scene = Scene.of(run, 56, run.given.images)
    if run.device.type == "cuda":
        run.without_prior("plain", scene, 70.0)
        return
    found, took = scene.attacked(Plain().attack(run.steps(PLAIN_STEPS), "eval"), run.given.seed)
    run.add(
        "plain", "falling_variation", {**scene.row(found, took), "setting": {"steps": PLAIN_STEPS}}, scene.images(found)
    )


def plain_20(run: Run) -> None:
    run.compared("plain", Scene.of(run, 20, run.given.images))


def paper_20(run: Run) -> None:
    """The paper's step, with its authors' mixing and without any, and the plain normalised step along the output's gradient."""
    scene, prior = Scene.of(run, 20, run.given.images), run.prior()
    steps, restarts = run.steps(300), 2 if run.given.quick else 16
    attacks = {
        f"diffusion_guided, mixing {m}": diffusion_guided(steps=steps, restarts=restarts, mixing=m) for m in (0.2, 1.0)
    }
    ours = diffusion()
    fixed = replace(ours.matching, solver=Sampling(guidance=FixedLength(1.0), steps=steps), restarts=restarts)
    attacks["step of fixed length"] = replace(ours, matching=fixed)
    for title, attack in attacks.items():
        found, took = scene.attacked(replace(attack, learning=Learning(str(prior))), run.given.seed)
        run.add("plain", title, scene.row(found, took), scene.images(found))


def published_20(run: Run) -> None:
    """Inverting gradients with its own objective and steps: the loss is replayed, not the gradient at the output."""
    scene = Scene.of(run, 20, run.given.images)
    attack = inverting_gradients(steps=run.steps(4800), restarts=8)
    found, seconds = scene.attacked(attack, run.given.seed)
    run.add("plain", "inverting_gradients, as published", scene.row(found, seconds), scene.images(found))


def batches(mode: str, batch: int) -> Callable[[Run], None]:
    def study(run: Run) -> None:
        images = run.given.images if mode == "eval" else min(run.given.images, 4 if batch == 1 else 16)
        run.compared(
            "batches",
            Scene.of(run, 20, max(batch, images), mode=mode, batch=batch, tuning=run.given.tuning),
            restarts=8,
        )

    return study


def resnet18(form: Form) -> Callable[[Run], None]:
    def study(run: Run) -> None:
        """Gradients of single images in eval mode, of batches in train mode."""
        for batch in run.given.batch:
            if not run.late:
                mode, images = "eval" if batch == 1 else "train", max(batch, min(run.given.images, 8))
                run.compared("feasibility", Scene.of(run, form, images, mode=mode, batch=batch), restarts=8)

    return study


def architectures(run: Run) -> None:
    """Single images and batches in eval mode. All but MaxViT-T have no batch statistics, so training mode is no other case."""
    for name, batch in itertools.product(run.given.network, run.given.batch):
        if not run.late:
            images = max(batch, min(run.given.images, 8))
            run.compared("feasibility", Scene.of(run, name, images, batch=batch), restarts=4)


def defenses(run: Run) -> None:
    setting = run.setting(8)
    ours = None if run.given.without_prior else setting.attack(run.prior())
    for known in (False, True):
        for name, (_, changes) in DEFENSES.items():
            if name not in (run.given.defense or DEFENSES):
                continue
            if known and not (changes and isinstance(changes[0], Prune | Quantize)):
                continue
            if run.late:
                return
            scene = Scene.of(run, 20, min(8, run.given.images), defense=name, known=known)
            attacks: dict[str, WithDiffusion | Staged | Guided] = {} if ours is None else {"diffusion": ours}
            attacks["falling_variation"] = Plain().attack(run.steps(PLAIN_STEPS), "eval")
            for title, attack in attacks.items():
                found, seconds = scene.attacked(attack, run.given.seed)
                facts = {"setting": asdict(setting)} if title == "diffusion" else {"setting": {"steps": PLAIN_STEPS}}
                run.add("defenses", title, {**scene.row(found, seconds), **facts}, scene.images(found))
                blind = (
                    ours.blind()
                    if ours is not None and attack is ours
                    else Plain().attack(run.steps(40), "eval").blind()
                )
                nothing, _ = scene.attacked(blind, run.given.seed)
                run.add("defenses", f"{title}, causes", {**scene.facts, "causes": scene.causes(attack, found, nothing)})


def prior_of(kind: str) -> Callable[[Run], None]:
    def study(run: Run) -> None:
        run.compared(f"prior {kind}", Scene.of(run, 20, run.given.images), kind, restarts=8)

    return study


def null(run: Run) -> None:
    """SSIM with the attacked images of what needs no signal: draws of the attack without guidance, of a plain sampler, and grey."""
    count, truth = 2 if run.given.quick else 12, run.drawn.attacked[0][: run.given.images]
    victim = Victim(run.network(20)[0], run.network(20)[1], name="resnet20")
    seen = share(victim, Gradient(), victim.space.encode(truth[:1]), run.drawn.attacked[1][:1], reveal=(Size(),))
    prior = load_diffusion(run.prior())
    drawn: dict[str, Tensor] = {"grey": torch.full((1, *truth.shape[1:]), 0.45)}
    for rounds in (2,) if run.given.quick else (10, 40):
        blind = Setting(rounds=rounds, moves=1, select=0.0, restarts=count).attack(run.prior()).blind()
        made = blind(victim, seen, seed=run.given.seed).candidates[:, 0]
        drawn[f"without guidance, {rounds} levels"] = victim.space.decode(made)
    drawn["plain sampler, 50 levels"] = sample(prior, count, steps=2 if run.given.quick else 50).clamp(0, 1)
    for name, images in drawn.items():
        each = [float(ssim(one.expand_as(truth).contiguous(), truth).mean()) for one in images.float()]
        run.add("null", name, {"ssim": statistics.mean(each), "each_draw": [round(one, 4) for one in each]})


STUDIES: dict[str, Callable[[Run], None]] = {
    "without-56": without_56,
    "plain-20": plain_20,
    "paper-20": paper_20,
    "published-20": published_20,
    **{f"{mode}-{batch}": batches(mode, batch) for mode in ("train", "eval") for batch in (1, 4, 8)},
    "resnet18-post": resnet18("post"),
    "resnet18-pre": resnet18("pre"),
    "architectures": architectures,
    "defenses": defenses,
    **{kind: prior_of(kind) for kind in KINDS},
    "null": null,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", choices=tuple(STUDIES))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--priors", type=Path, help="folder of the trained priors; by default --out")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--labels", action="store_true", help="the adversary is given the labels")
    parser.add_argument("--within", type=float, default=1e9, help="seconds after which no study is begun or goes on")
    parser.add_argument("--moves", type=int, default=50, help="at each of the ten noise levels")
    parser.add_argument("--refine", type=int, default=1000, help="last steps, on pixels")
    parser.add_argument(
        "--restarts", type=int, help="of the attack with a prior; by default what each study takes on a GPU"
    )
    parser.add_argument("--defense", nargs="+", choices=tuple(DEFENSES), help="these alone, in the study of defenses")
    parser.add_argument(
        "--without-prior", action="store_true", help="only the attack without a prior, with its own number of steps"
    )
    parser.add_argument("--falling", action="store_true", help="without a prior falling_variation in train mode too")
    parser.add_argument("--weights", type=Path, help="folder of the networks that the feasibility study has trained")
    parser.add_argument("--network", nargs="+", default=get_args(Architecture), choices=get_args(Architecture))
    parser.add_argument(
        "--batch", nargs="+", type=int, default=(1, 4), help="sizes of the batches through --network and ResNet18"
    )
    parser.add_argument("--tuning", action="store_true", help="batches of images that are not reported")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    given.priors = given.priors or given.out
    if given.quick:
        given.images = 2
    elif given.data is None:
        parser.error("give --data DIR, or --quick")
    given.out.mkdir(parents=True, exist_ok=True)
    run = Run(given)
    run.add("machine", "", dict(machine(run.device)))
    for name in given.studies:
        if run.late:
            print(f"no time left for {name}", flush=True)
            continue
        try:
            STUDIES[name](run)
        except (RuntimeError, ValueError, Inapplicable, AssertionError) as failure:
            traceback.print_exc()
            run.failed = True
            run.add(name, "failed", {"reason": f"{type(failure).__name__}: {failure}"[:500]})
    return int(run.failed)


if __name__ == "__main__":
    raise SystemExit(main())
