"""Fig. 4: how much of the image must be given? Searches start from the target with a share p of its pixels replaced by noise.

    python -m reproductions.practical_feasibility.starts --data FOLDER --out FOLDER

Networks adapted to 32 × 32, untrained. Settings are chosen for each network on two images of their own, from starts of which half and
all is noise, by mean SSIM; then three other images are attacked from eleven starts. Of every search two images are scored: the one
with the lowest objective, which an adversary keeps, and the last, which may have drifted from a good start.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.channels import Gradient
from leakgauge.core import Labels, NoisyCopy, Size, Victim, share
from leakgauge.engine import Exact
from leakgauge.errors import Inapplicable
from leakgauge.inversion.terms import Candidate, Term
from leakgauge.measures.image import ssim
from reproductions.common import gates, runner
from reproductions.common.runner import Part, Row, Rows, rounded, run_part
from reproductions.practical_feasibility import control
from reproductions.practical_feasibility.control import RESULTS, Continued, Setting, mismatch
from reproductions.practical_feasibility.networks import Network, fill, weights_folder

PAPER = {
    "swin_t": (1.0, 1.0, 1.0, 1.0, 0.99, 1.00, 1.00, 1.00, 1.00, 1.00, 0.87),
    "swinv2_t": (1.0, 1.0, 1.0, 1.0, 0.99, 1.00, 0.99, 0.99, 0.99, 0.98, 1.00),
    "vit_b": (0.73, 0.65, 0.29, 0.38, 0.34, 0.45, 0.25, 0.23, 0.20, 0.12, 0.06),
    "convnext_t": (1.00, 0.78, 0.68, 0.59, 0.48, 0.32, 0.39, 0.17, 0.26, 0.17, 0.11),
    "maxvit_t": (0.52, 0.45, 0.40, 0.34, 0.30, 0.36, 0.19, 0.22, 0.14, 0.14, 0.07),
}
SETTINGS = (
    Setting(tv=1e-4, lr=0.03),
    Setting(tv=1e-3, lr=0.1),
    Setting(tv=1e-2, lr=0.1),
    Setting(tv=1e-5, lr=0.01, signed=False, decay="cosine"),
    Setting(power=0.5, tv=1e-3, lr=0.03),
)
BEST = (SETTINGS[1], SETTINGS[4])
TRAINED_SETTINGS = tuple(replace(one, along=True) for one in (*BEST, replace(BEST[1], tv=1e-2)))
"""What was best on untrained networks, along the gradient at the output, which solved the positive control; and smoother."""
SHARES, TRIAL_SHARES = tuple(i / 10 for i in range(11)), (0.5, 1.0)
TRIAL, FINAL, IMAGES = 400, 2500, 3


@dataclass(frozen=True, eq=False)
class Last(Term):
    """Weighs nothing; copies the candidate it is shown, so after a search it holds the last one."""

    seen: Tensor

    def __call__(self, at: Candidate, /) -> Tensor:
        if at.x.shape == self.seen.shape:
            self.seen.copy_(at.x.detach())
        return at.x.new_zeros(len(at.x))


def searched(
    victim: Victim, images: tuple[Tensor, Tensor], setting: Setting, shares: tuple[float, ...], *, steps: int, seed: int
) -> tuple[Row, dict[str, Tensor]]:
    """One search for each image and share; scores by share, each a list over images."""
    began = time.perf_counter()
    x, y = victim.space.encode(images[0]).to(victim.device), images[1].to(victim.device)
    cases = [(p, i) for p in shares for i in range(len(x))]
    seen = [
        share(victim, Gradient(), x[i : i + 1], y[i : i + 1], reveal=[Size(), Labels(), NoisyCopy(p)], seed=seed + i)
        for p, i in cases
    ]
    near = {id(one): victim.space.project(one.near)[None].cpu() for one in seen if one.near is not None}
    attack = setting.attack(steps, 1)
    last = torch.zeros(len(seen), *x[:1].shape, device=victim.device)
    attack = replace(attack, objective=attack.objective + Last(last), start=Continued(near), precision=Exact())
    found = attack.many(victim, seen, seed=seed)
    truths = victim.space.decode(torch.cat([x[i : i + 1] for _, i in cases])).cpu()
    made = {
        "start": torch.cat([near[id(one)][0] for one in seen]),
        "best": torch.cat([one.x for one in found]),
        "last": last[:, 0],
    }
    shown = {name: victim.space.decode(one.to(victim.device)).cpu() for name, one in made.items()}
    n = len(x)
    scores = {name: rounded(ssim(one, truths).tolist()) for name, one in shown.items()}
    off = [mismatch(victim, one, each.x, y[i : i + 1]) for one, each, (_, i) in zip(seen, found, cases, strict=True)]
    row: Row = {
        "setting": setting.key,
        "steps": steps,
        "shares": list(shares),
        "mismatch": rounded(off),
        "alive": gates.gradients_alive(seen[0].signal).row(),
        "seconds": round(time.perf_counter() - began, 2),
    }
    row |= {name: [values[k : k + n] for k in range(0, len(values), n)] for name, values in scores.items()}
    return row, shown


@dataclass(frozen=True, kw_only=True)
class Options(runner.Options):
    """``networks`` to attack, as initialised or with the weights that ``accuracy.py`` or ``stems.py`` has left under OUT/weights."""

    networks: tuple[str, ...] = tuple(PAPER)
    trained: bool = False


def run(options: Options, results: Rows) -> None:
    for name in options.networks:
        attack(name, options, results)
    for name in (name for name in PAPER if name not in options.networks):  # perhaps another lane is at it
        if not (results.has(f"final {name}") or results.has(f"refused {name}")):
            results.wait(f"final {name}")


def attack(name: str, options: Options, results: Rows) -> None:
    """Trials of the settings on two images, then the best one on three others from eleven starts."""
    images, others = control.targets(options, 0, IMAGES), control.targets(options, 1, 2)
    unit = f"{name} trained" if options.trained else name
    if results.has(f"final {unit}") or results.has(f"refused {unit}"):
        return
    network = Network(name)
    facts: Row = {"network": name, "trained": options.trained}
    try:
        model, space, changes = network.made(classes=10, seed=options.seed, quick=options.quick)
    except Inapplicable as refusal:
        results.add(f"refused {unit}", facts | {"kind": "refused", "why": str(refusal)})
        return
    if options.trained:
        weights = weights_folder(options)
        if not fill(model, weights, network):
            raise SystemExit(f"no weights of {name} in {weights}; run accuracy.py or stems.py first")
        x, y = control.cifar(options, "test")
        balanced, error = gates.balanced_accuracy(model.to(options.device), (space.encode(x), y), control.CLASSES)
        facts |= {"accuracy": balanced, "gates": [gates.above_chance(balanced, error, control.CLASSES).row()]}
    victim = Victim(model.eval().to(options.device), space, mode="train", name=name)
    settings = TRAINED_SETTINGS if options.trained else SETTINGS
    shares = (0.0, 0.5, 1.0) if options.quick else SHARES
    results.keep("truth", images[0])
    trials_and_final(
        unit, victim, images, others, settings, shares=shares, trial_shares=TRIAL_SHARES, least=FINAL / 4, facts=facts,
        of_final={"changes": changes, "paper": list(PAPER[name])}, options=options, results=results,
    )  # fmt: skip


def trials_and_final(
    unit: str,
    victim: Victim,
    images: control.Images,
    others: control.Images,
    settings: Sequence[Setting],
    *,
    shares: tuple[float, ...],
    trial_shares: tuple[float, ...],
    least: float,
    facts: Row,
    of_final: Row | None = None,
    options: runner.Options,
    results: Rows,
) -> None:
    """Each setting (two in quick runs) on ``others``, then the best by mean SSIM on ``images``.

    The final search waits where fewer than ``least`` steps fit. Its row has ``of_final`` beside the ``facts`` of all rows.
    """
    for setting in settings[:2] if options.quick else settings:
        trial = f"trial {unit} {setting.key}"
        if not results.has(trial):
            steps = 3 if options.quick else TRIAL
            row, _ = searched(victim, others, setting, trial_shares, steps=steps, seed=options.seed)
            results.add(trial, {"kind": "trial", **facts, **row})
    tried = {s: results.done[u]["best"] for s in settings if results.has(u := f"trial {unit} {s.key}")}
    chosen = max(tried, key=lambda one: sum(map(sum, tried[one])))

    def timed(steps: int) -> float:
        return searched(victim, images, chosen, shares, steps=steps, seed=options.seed)[0]["seconds"]

    steps = 4 if options.quick else min(FINAL, control.steps_within(options, timed))
    if steps < least and not options.quick:
        results.wait(f"final {unit}")
        return
    row, shown = searched(victim, images, chosen, shares, steps=steps, seed=options.seed)
    pictures = {f"{unit} {kind}": one for kind, one in shown.items()}
    results.add(f"final {unit}", {"kind": "final", **facts, **(of_final or {}), **row}, pictures=pictures)


def main() -> None:
    parser = runner.parser(__doc__, out=RESULTS)
    parser.add_argument(
        "--network", action="append", choices=list(PAPER), help="may be given more than once; all if not given"
    )
    parser.add_argument("--trained", action="store_true", help="networks as accuracy.py or stems.py has trained them")
    given = parser.parse_args()
    networks = tuple(given.network or (("swin_t", "convnext_t") if given.quick else PAPER))
    run_part(Part("starts", run), Options.of(given, networks=networks, trained=given.trained))


if __name__ == "__main__":
    main()
