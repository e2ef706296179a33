"""Fig. 4: how much of the image must be given? Starts from the target with a share p of its pixels replaced by noise.

    python -m reproductions.practical_feasibility.controlled --data FOLDER --weights FOLDER

All shares run as one batch of observations, each with a large and with a small learning rate, between which the adversary's objective
decides: a large one leaves a start that was nearly right. Beside each stands its null run: the same start with total variation alone.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor

from leakgauge.attacks import feasibility
from leakgauge.audit.scoring import score_images_in_order
from leakgauge.channels import Gradient
from leakgauge.core import Labels, NoisyCopy, Observation, Size, Victim, share
from leakgauge.errors import Inapplicable
from reproductions.april.drawing import Line, Panel, grid, svg
from reproductions.practical_feasibility import setting
from reproductions.practical_feasibility.attacking import AROUND, DEFAULTS, NULL_STEP, configured, released
from reproductions.practical_feasibility.ledger import Ledger, NoTimeLeft, Pictures, Row
from reproductions.practical_feasibility.networks import Network
from reproductions.practical_feasibility.rehearsal import Rehearsal
from reproductions.practical_feasibility.setting import Options, Plan

PAPER = {
    "maxvit_t": (0.52, 0.45, 0.40, 0.34, 0.30, 0.36, 0.19, 0.22, 0.14, 0.14, 0.07),
    "vit_b": (0.73, 0.65, 0.29, 0.38, 0.34, 0.45, 0.25, 0.23, 0.20, 0.12, 0.06),
    "convnext_t": (1.00, 0.78, 0.68, 0.59, 0.48, 0.32, 0.39, 0.17, 0.26, 0.17, 0.11),
    "swinv2_t": (1.0, 1.0, 1.0, 1.0, 0.99, 1.00, 0.99, 0.99, 0.99, 0.98, 1.00),
    "swin_t": (1.0, 1.0, 1.0, 1.0, 0.99, 1.00, 1.00, 1.00, 1.00, 1.00, 0.87),
}
PLAN: Plan = dict.fromkeys(reversed(PAPER), 48.0)
IMAGES = 2
SETTINGS = [DEFAULTS, {**DEFAULTS, "lr": DEFAULTS["lr"] / 10}]
LEAST, MOST = 400, 2400
"""Steps of a run."""


def run(options: Options, ledger: Ledger, plan: Plan) -> None:
    images = setting.cifar_test(options, IMAGES)
    shares = (0.0, 0.5, 1.0) if options.quick else tuple(i / 10 for i in range(11))
    for key in PLAN:
        if ledger.has(key) or (options.quick and key in ("swinv2_t", "vit_b")):
            continue
        options.require_time(key, plan[key])
        with ledger.attempt(key):
            measure(key, options, ledger, plan[key], images, shares)


def measure(
    key: str, options: Options, ledger: Ledger, seconds: float, images: setting.Images, shares: tuple[float, ...]
) -> None:
    began = time.perf_counter()
    released(options.device)
    reveals = [(p, i) for p in shares for i in range(IMAGES)]
    try:
        victim, is_trained, _ = setting.victim_of(Network(key), options, mode="train")
        x, y = (part.to(options.device) for part in setting.encoded(victim.space, images, slice(0, IMAGES)))
        seen = [observed(victim, x[i : i + 1], y[i : i + 1], p, seed=options.seed + i) for p, i in reveals]
        rehearsal = Rehearsal(feasibility(restarts=len(SETTINGS)), victim, seen, seed=options.seed)
    except Inapplicable as refusal:
        ledger.add(key, refused=str(refusal))
        return
    truths = torch.cat([x[i : i + 1] for _, i in reveals])
    steps = 4 if options.quick else planned(rehearsal, options, began + options.scale * seconds)
    blind = configured(feasibility, DEFAULTS, steps=steps, restarts=1).blind()
    starts = [victim.space.project(one.near) for one in seen if one.near is not None]
    runs = rehearsal.run(SETTINGS, steps, exactly=False)
    better = torch.stack([run.losses for run in runs]).argmin(0).tolist()
    made = {"start": starts, "attack": [runs[which].candidates[i] for i, which in enumerate(better)]}
    made["null"] = [one.x for one in blind.many(victim, seen, seed=options.seed)]
    found: dict[str, list[float]] = {}
    for kind, guesses in made.items():
        shown = victim.space.decode(torch.cat(guesses)).cpu()
        scores = score_images_in_order(shown, victim.space.decode(truths).cpu()).ssim
        found[kind] = [sum(scores[i : i + IMAGES]) / IMAGES for i in range(0, len(scores), IMAGES)]
        ledger.keep(f"{key}/{kind}", first_of_each(shown))
    ledger.add(
        key, trained=is_trained, data=images.name, images=IMAGES, shares=list(shares), paper=list(PAPER[key] if len(shares) == 11 else ()),
        steps=steps, rates=[SETTINGS[which]["lr"] for which in better], seconds=time.perf_counter() - began,
        notes=list(rehearsal.notes), **found,
    )  # fmt: skip


def observed(victim: Victim, x: Tensor, y: Tensor, noise: float, *, seed: int) -> Observation:
    return share(victim, Gradient(), x, y, reveal=[Size(), Labels(), NoisyCopy(noise)], seed=seed)


def planned(rehearsal: Rehearsal, options: Options, end: float) -> int:
    """How many steps of attack and null run fit until ``end``; fewer than the least would tell nothing, so those are taken anyway.

    Raises ``NoTimeLeft`` where these would be cut off.
    """
    per_step = rehearsal.seconds_per_step() + NULL_STEP
    now = time.perf_counter()
    steps = max(LEAST, min(MOST, int((min(end, options.until) - now - AROUND) / per_step)))
    if now + LEAST * per_step > options.until:
        raise NoTimeLeft(
            f"left for another call: it needs {LEAST * per_step:.0f} s more, {options.until - now:.0f} are left"
        )
    return steps


def first_of_each(shown: Tensor) -> Tensor:
    """The first image at every share."""
    return shown[::IMAGES]


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    rows = [row for row in rows if "attack" in row]
    panels = [
        Panel(
            row["case"] + ("" if row["trained"] else " (untrained)"), "share of pixels replaced by noise", "SSIM",
            [Line(kind, list(zip(row["shares"], row[kind], strict=True)), dashed=kind != "attack") for kind in ("start", "null", "attack")]
            + ([Line("paper", list(zip(row["shares"], row["paper"], strict=True)), dashed=True)] if row["paper"] else []),
            bounds=(0.0, 1.0),
        )
        for row in rows
    ]  # fmt: skip
    if panels:
        svg(out / "controlled.svg", panels, title="SSIM by the share of pixels that were replaced")
    kinds = [(row["case"], kind) for row in rows for kind in ("null", "attack")]
    lines = [(f"{case}, {kind}", pictures[f"{case}/{kind}"]) for case, kind in kinds if f"{case}/{kind}" in pictures]
    if lines:  # all networks start from the same images
        first = rows[0]
        heads = [f"{share:g}" for share in first["shares"]]
        grid(out / "controlled.png", [("start", pictures[f"{first['case']}/start"]), *lines], side=48, heads=heads)


def table(rows: list[Row]) -> str:
    shares = next((row["shares"] for row in rows if "shares" in row), [])
    lines = ["| network | SSIM of |" + "".join(f" {p:g} |" for p in shares), "|---|---|" + "---|" * len(shares)]
    for row in rows:
        if "refused" in row:
            lines.append(f"| {row['case']} | not run: {row['refused']} |" + " |" * len(shares))
            continue
        name = row["case"] + ("" if row["trained"] else " (untrained)")
        kinds = [kind for kind in ("paper", "start", "null", "attack") if row[kind]]
        lines += [f"| {name} | {kind} |" + "".join(f" {value:.2f} |" for value in row[kind]) for kind in kinds]
    return "\n".join(lines)


if __name__ == "__main__":
    setting.main("controlled", PLAN, run, draw, __doc__)
