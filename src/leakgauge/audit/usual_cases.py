"""The cases that an audit runs where none are written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leakgauge.audit.case import Case


def default_cases(*, steps: int = 500, seed: int = 0, device: str = "cpu") -> list[Case]:
    """Eight cases on the embedded models that show each factor once: model, mode, batch size, noise."""
    options = {"steps": steps, "tv": 0.01}
    noise = ("gaussian_noise:relative=10.0",)

    def case(model: str, **changes: object) -> Case:
        return replace(Case(model=model, options=options, seed=seed, device=device), name="", **changes)

    return [
        case("cnn"),
        case("cnn", batch_size=4),
        case("cnn", mode="train"),
        case("cnn", mode="train", batch_size=4),
        case("cnn", defenses=noise),
        case("vit"),
        case("vit", batch_size=4),
        case("vit", defenses=noise),
    ]


def variants(base: Case, *, mode: str | None, batch_size: int | None, defenses: Sequence[str]) -> list[Case]:
    """The cases of a user's audit: both modes and batches of 1 and 4 unless fixed, undefended and with each defense."""
    modes = ("eval", "train") if mode is None else (mode,)
    least = base.batch_sizes().start
    sizes = sorted({max(least, size) for size in (1, 4)}) if batch_size is None else (batch_size,)
    guards: list[tuple[str, ...]] = [(), *[(spec,) for spec in defenses]]
    cases = [
        replace(base, name="", mode=m, batch_size=size, defenses=guard)
        for m in modes
        for size in sizes
        for guard in guards
    ]
    for case in cases:
        case.build_defenses()
    return cases
