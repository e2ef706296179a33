"""One case of the study: tune the attack, run it from several starts, and put its null run and the trivial picture beside it.

Settings are drawn from the paper's space (appendix A.1); what an adversary sees (how well a candidate's own gradient points where the
observed one does) chooses among them, and an oracle (SSIM, as in the paper) chooses beside it, labelled as an upper bound.
"""

from __future__ import annotations

import gc
import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from leakgauge.attacks import feasibility
from leakgauge.audit.scoring import Scores, score_images, trivial_baseline
from leakgauge.audit.tune import PAPER, LogUniform, Space
from leakgauge.channels import Gradient
from leakgauge.core import Labels, Observation, Reveal, Size, Targets, Victim, share
from leakgauge.engine import TF32
from leakgauge.errors import Inapplicable
from leakgauge.families.patches import patch_side
from leakgauge.inversion import Guided
from leakgauge.inversion.knowledge import gradient_alignment
from leakgauge.measures.image import pair, ssim
from reproductions.common.runner import NoTimeLeft, Row
from reproductions.practical_feasibility.rehearsal import Rehearsal

Make = Callable[..., Guided]
DEFAULTS = {"tv": 0.01, "statistics": 0.1, "lr": 0.1}
"""The library's own setting, tried before any draw."""


@dataclass(frozen=True)
class Effort:
    """How hard a case is tried. ``seconds`` is turned into steps before the first trial; ``least`` is the fewest of the final run.

    ``until`` (of ``time.time``) is when it has to be done, whatever it was given.
    """

    restarts: int
    rounds: int
    seconds: float
    quick: bool
    least: int = 400
    until: float = math.inf

    def steps(self, per_step: float, spent: float) -> Steps:
        """Of a round of trials and of the final run, when a step takes ``per_step`` seconds and the preparation has taken ``spent``.

        A fifth of what is left goes to the trials; the rest to the final run and the null run. Fewer steps than the least tell
        nothing, so those are taken even where they take longer than planned.
        """
        if self.quick:
            return Steps(2, 4, True)
        left = self.seconds - spent - AROUND
        trial = max(LEAST_TRIAL, min(MOST_TRIAL, int(left / 5 / (self.rounds * per_step))))
        final = self.final(per_step, left - trial * self.rounds * per_step)
        return Steps(trial, final, self.needed(per_step, trial, final) <= left)

    def final(self, per_step: float, left: float) -> int:
        """Steps of the final run, when ``left`` seconds are there for it and the null run."""
        return max(self.least, min(MOST, int(left / (per_step + NULL_STEP))))

    def needed(self, per_step: float, trial: int, final: int) -> float:
        """Seconds of all trials, the final run and the null run."""
        return trial * self.rounds * per_step + final * (per_step + NULL_STEP)

    def require_time(self, seconds: float) -> None:
        """Raises ``NoTimeLeft`` where a case would be cut off in its middle, which would leave nothing of it."""
        left = self.until - time.time()
        if left < seconds:
            raise NoTimeLeft(
                f"left for another call: at the measured pace it needs {seconds:.0f} s more, {left:.0f} are left"
            )


SIDE_BY_SIDE, FINALISTS = 4, 2
"""Settings in a round of trials, and in the final run, which gives each of them all restarts: the adversary's and the oracle's."""
LEAST_TRIAL, MOST_TRIAL, MOST = 60, 500, 12_000
"""Steps of a trial, at least and at most, and of the final run at most."""
AROUND, NULL_STEP = 8.0, 1e-3
"""Seconds of what is no step (the null run's preparation, judging, scores), and of a step of the null run, on an H200."""


@dataclass(frozen=True)
class Steps:
    """``in_time`` says whether they fit into the planned seconds."""

    trial: int
    final: int
    in_time: bool


def propose(tried: Sequence[tuple[Mapping[str, float], float]], *, seed: int, space: Space) -> list[dict[str, float]]:
    """The settings of the next round: the defaults and draws from ``space``; then Optuna's TPE draws where it is installed.

    They depend on what was tried and on the seed alone, so a search that was stopped resumes as it would have.
    """
    texts = [f"{seed}/{len(tried) + i}" for i in range(SIDE_BY_SIDE)]
    numbers = [int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) for text in texts]
    if not tried:
        return [dict(DEFAULTS), *(_drawn(number, space) for number in numbers[1:])]
    try:
        import optuna
    except ModuleNotFoundError:
        return [_drawn(number, space) for number in numbers]
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    floats, choice = optuna.distributions.FloatDistribution, optuna.distributions.CategoricalDistribution
    known: dict[str, Any] = {
        n: floats(c.low, c.high, log=True) if isinstance(c, LogUniform) else choice(c.values) for n, c in space.items()
    }
    found: list[dict[str, float]] = []
    for number in numbers:
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=number, n_startup_trials=SIDE_BY_SIDE - 1))
        for options, value in tried[1:]:  # the defaults are not in the space
            study.add_trial(optuna.trial.create_trial(params=dict(options), distributions=known, value=value))
        found.append(dict(study.ask(known).params))
    return found


def _drawn(number: int, space: Space) -> dict[str, float]:
    rng = torch.Generator().manual_seed(number)
    found: dict[str, float] = {}
    for name, choice in space.items():
        at = float(torch.rand((), generator=rng))
        if isinstance(choice, LogUniform):
            found[name] = math.exp(math.log(choice.low) + at * math.log(choice.high / choice.low))
        else:
            found[name] = choice.values[int(at * len(choice.values))]
    return found


def configured(make: Make, options: Mapping[str, float], *, steps: int, restarts: int) -> Guided:
    attack = make(**options, steps=steps, restarts=restarts)
    return replace(attack, matching=replace(attack.matching, precision=TF32()))


def mismatch(victim: Victim, seen: Observation, x: Tensor, y: Targets) -> float:
    """1 − cos of what the images ``x`` would have sent and what was observed."""
    return 1 - float(gradient_alignment(victim, seen, x, y))  # pyright: ignore[reportArgumentType]


def attacked(
    victim: Victim,
    x: Tensor,
    y: Targets,
    *,
    effort: Effort,
    pool: Tensor,
    reveal: Sequence[Reveal] = (),
    make: Make = feasibility,
    space: Space = PAPER,
    seed: int = 0,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Numbers of one case, and the pictures: truth, what the adversary would keep, what the oracle would, the null run, each
    reconstruction beside the image it is paired with.

    Labels and batch size are given, as in the paper. Settings come from ``space``. ``pool`` holds other images in [0, 1] for
    re-identification.
    The steps of the final run are planned anew after the trials, at the pace these had, which another process on the GPU may
    have changed. Raises ``NoTimeLeft`` where not even the fewest steps fit before ``effort.until``.
    """
    began = time.perf_counter()
    released(victim.device)
    x = x.to(victim.device)
    y = y.to(victim.device) if isinstance(y, Tensor) else {name: value.to(victim.device) for name, value in y.items()}
    seen = share(victim, Gradient(), x, y, reveal=[Size(), Labels(), *reveal], seed=seed)
    truths = victim.space.decode(x)

    rehearsal = Rehearsal(make(**DEFAULTS, restarts=FINALISTS * effort.restarts), victim, [seen], seed=seed)
    per_step = 0.0 if effort.quick else rehearsal.seconds_per_step()
    planned = effort.steps(per_step, time.perf_counter() - began)
    effort.require_time(AROUND / 2 + effort.needed(per_step, planned.trial, effort.least))
    running = 0.0
    tried: list[tuple[dict[str, float], float]] = []
    trials: list[dict[str, Any]] = []
    for _ in range(effort.rounds):
        settings = propose(tried, seed=seed, space=space)
        started = time.perf_counter()
        runs = rehearsal.run(settings, planned.trial, exactly=False)
        running += time.perf_counter() - started
        for options, run in zip(settings, runs, strict=True):
            if not torch.isfinite(run.losses).any():
                trials.append({**options, "refused": "its objective was never a number"})
                tried.append((options, 2.0))  # more than 1 − cos can be
                continue
            tried.append((options, mismatch(victim, seen, run.x, y)))
            best = max(_mean_ssim(victim, one, truths) for one in run.candidates)
            trials.append({**options, "mismatch": tried[-1][1], "best_ssim": best})
    judged = [trial for trial in trials if "best_ssim" in trial]
    if not judged:
        raise Inapplicable("the objective was never finite with any of the settings")
    if not effort.quick:
        now = time.perf_counter()
        per_step = running / (effort.rounds * planned.trial)
        left = min(effort.seconds - (now - began), effort.until - time.time()) - AROUND
        final = effort.final(per_step, left)
        planned = replace(planned, final=final, in_time=effort.needed(per_step, 0, final) <= left)
        effort.require_time(AROUND / 2 + effort.needed(per_step, 0, effort.least))
    seeing, second = (options for options, _ in sorted(tried, key=lambda one: one[1])[:2])
    oracle = max(judged, key=lambda trial: trial["best_ssim"])
    oracle = {name: oracle[name] for name in DEFAULTS}
    alike = oracle == seeing  # then the adversary's second choice gets the oracle's rows, and the adversary has both
    finalists = [seeing, second if alike else oracle]
    runs = rehearsal.run(finalists, planned.final)
    own = runs if alike else runs[:1]
    off = [mismatch(victim, seen, run.x, y) for run in own]
    found, seeing = own[off.index(min(off))], finalists[off.index(min(off))]
    blind = configured(make, seeing, steps=planned.final, restarts=effort.restarts).blind()
    null = blind(victim, seen, seed=seed)
    every = [_mean_ssim(victim, one, truths) for one in found.candidates]
    candidates = torch.cat([run.candidates for run in runs])
    upper = [_mean_ssim(victim, one, truths) for one in candidates]
    best = candidates[upper.index(max(upper))]
    show, tile = victim.space.decode, patch_side(victim.model, victim.space.shape)
    numbers = {
        "mode": victim.mode, "batch": len(x), "steps": planned.final, "trial_steps": planned.trial, "restarts": effort.restarts,
        "ms_per_step": 1000 * per_step, "planned_seconds": effort.seconds, "steps_fit": planned.in_time,
        "settings": seeing, "oracle_settings": oracle, "trials": trials,
        "mismatch": min(off),
        "attack": asdict(score_images(show(found.x), truths, pool=pool, tile=tile)),
        "oracle": asdict(score_images(show(best), truths, pool=pool, tile=tile)),
        "null": asdict(score_images(show(null.x), truths, pool=pool, tile=tile)),
        "baseline": asdict(trivial_baseline(truths.cpu())),
        "restart_ssim": every,
        "assumptions": [[a.what, a.kind] for a in seen.assumptions],
        "notes": list(rehearsal.notes), "seconds": time.perf_counter() - began,
    }  # fmt: skip
    made = {"attack": show(found.x), "oracle": show(best), "null": show(null.x)}
    paired = {name: value.detach()[pair(value.detach(), truths).argsort()] for name, value in made.items()}
    return numbers, {name: value.cpu() for name, value in {"truth": truths, **paired}.items()}


def released(device: torch.device) -> None:
    """Gives back what the case before has left: a recorded step and what it holds refer to each other, so only a collection ends them."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _mean_ssim(victim: Victim, guesses: Tensor, truths: Tensor) -> float:
    return score_images(victim.space.decode(guesses), truths).means()["ssim"]


def all_pairs_ssim(guesses: Tensor, truths: Tensor) -> float:
    """Mean SSIM over every pair of a reconstruction and an original: what the public code reports as the SSIM of a batch."""
    a, b = guesses.cpu(), truths.cpu()
    return float(torch.stack([ssim(a, b.roll(i, 0)) for i in range(len(b))]).mean())


def most_vulnerable(victim: Victim, x: Tensor, y: Tensor, *, effort: Effort, seed: int = 0) -> tuple[int, list[float]]:
    """Which of the candidate images (model space) is reconstructed best, and the SSIM of each: the paper's choice, by the truth."""
    steps = 4 if effort.quick else 200
    attack = replace(feasibility(steps=steps, restarts=1).matching, precision=TF32())
    x, y = x.to(victim.device), y.to(victim.device)
    seen = [share(victim, Gradient(), x[i : i + 1], y[i : i + 1], reveal=[Size(), Labels()]) for i in range(len(x))]
    found = attack.many(victim, seen, seed=seed)
    scores = [_mean_ssim(victim, one.x, victim.space.decode(x[i : i + 1])) for i, one in enumerate(found)]
    return scores.index(max(scores)), scores


def scores_of(row: Mapping[str, Any]) -> Scores:
    """Scores from a results file."""
    columns: dict[str, Any] = {name: None if values is None else tuple(values) for name, values in row.items()}
    return Scores(**columns)


def pieces(row: Row) -> str:
    """How well the patches fit in whatever order, and their lead where there were images enough; nothing without patches."""
    found, lead = row["attack"].get("pieces"), row["attack"].get("pieces_lead")
    return "" if not found else f"{mean(found):.2f}" + (f" ({mean(lead):+.2f})" if lead else "")


def layouts(row: Row) -> str:
    """Of the adversary's choice, and of the null run where it was measured."""
    null = row["null"].get("layout")
    return f"{mean(row['attack']['layout']):.2f}" + ("" if null is None else f" ({mean(null):.2f})")
