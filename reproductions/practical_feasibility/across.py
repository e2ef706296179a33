"""One vulnerable image, found on a reference model, attacked on every model with settings tuned for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from leakgauge.audit.case import Case
from leakgauge.audit.session import Load
from leakgauge.audit.tune import Tuned, tune


@dataclass(frozen=True)
class SideBySide:
    """The adversary's search, and the oracle's that looks at the truth: an upper bound on it."""

    model: str
    attacker: Tuned
    oracle: Tuned


def tune_both(case: Case, *, load: Load, folder: Path, trials: int = 8, seed: int = 0) -> SideBySide:
    """Both searches on one case."""
    attacker, oracle = (
        tune(case, load=load, folder=folder, trials=trials, oracle=looks, seed=seed) for looks in (False, True)
    )
    return SideBySide(case.model, attacker, oracle)


def vulnerable_image(
    reference: Case, images: Sequence[int], *, load: Load, folder: Path, trials: int = 8, seed: int = 0
) -> int:
    """Index of the image, among ``images``, that an oracle reconstructs best on the reference: the paper's worst case.

    Ref: Valadi et al. 2026, appendix A.1 — selection of a vulnerable sample on a reference architecture
    """
    found = tune(reference, load=load, folder=folder, trials=trials, images=images, oracle=True, seed=seed)
    return found.best.first


def tune_across(
    models: Sequence[str],
    *,
    reference: Case,
    images: Sequence[int],
    load: Load,
    folder: Path,
    trials: int = 8,
    seed: int = 0,
) -> list[SideBySide]:
    """Both searches on every model, all on the one image that is most vulnerable on ``reference``.

    The image is chosen by the truth, since it stands for an unlucky client, not for something an adversary knows. Set the
    number of restarts in the reference's options; they run as one batch.

    Ref: Valadi et al. 2026, appendix A — the same sample across architectures
    """
    first = vulnerable_image(reference, images, load=load, folder=folder, trials=trials, seed=seed)
    return [
        tune_both(
            replace(reference, name="", model=model, first=first), load=load, folder=folder, trials=trials, seed=seed
        )
        for model in models
    ]


def as_markdown(rows: Sequence[SideBySide]) -> str:
    """A table of both choices; the oracle's columns are named as what they are."""
    lines = [
        "| model | image | trials | attacker: mismatch | attacker: SSIM | oracle (upper bound): SSIM | oracle's settings |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        seen, bound = row.attacker.best, row.oracle.best
        settings = ", ".join(f"{name}={value:.2g}" for name, value in bound.options.items())
        lines.append(
            f"| {row.model} | {seen.first} | {len(row.attacker.trials)} + {len(row.oracle.trials)} "
            f"| {seen.mismatch:.3f} | {seen.ssim:.3f} | {bound.best_ssim:.3f} | {settings} |"
        )
    return "\n".join(lines)
