"""The cases of an audit, and how long a step of theirs takes."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from leakgauge.attacks import ATTACKS
from leakgauge.audit.case import Case
from leakgauge.audit.setup import Load, check_fits
from leakgauge.errors import BadInput

FILE = "plan.json"
FEWEST_STEPS = 50
SHORTEST_TRIAL, LONGEST_TRIAL = 8, 512
"""Steps of a trial; it grows until its steps, not the set-up around them, take most of a measurable time."""
MEASURABLE = 0.1
"""Seconds."""


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
    sizes = (1, 4) if batch_size is None else (batch_size,)
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


def seconds_of(text: str) -> float:
    """A duration as people write it.

    >>> seconds_of("90s"), seconds_of("2m"), seconds_of("1h")
    (90.0, 120.0, 3600.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if found is None or float(found.group(1)) == 0:
        raise BadInput(f"a budget is a positive time such as 90s, 2m or 1h, got {text!r}")
    return float(found.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600}[found.group(2)]


def accepted_options(case: Case) -> Mapping[str, object]:
    """The options that the case's attack takes, with their defaults; none for an attack that is not registered."""
    factory: Callable[..., object] | None = ATTACKS.get(case.attack.partition(":")[0])
    taken = {} if factory is None else inspect.signature(factory).parameters
    return {name: parameter.default for name, parameter in taken.items()}


def seconds_per_step(case: Case, load: Load) -> float | None:
    """Seconds of one step, from the difference of a trial and a run of one step; None where the attack does not run."""
    setup = load(case)
    check_fits(setup)
    try:
        seen = setup.observation(case)

        def seconds(steps: int) -> float:
            attack = replace(case, options={**case.options, "steps": steps}).build_attack()
            began = time.perf_counter()
            attack(setup.victim, seen, seed=case.seed)
            if setup.victim.device.type == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter() - began

        seconds(1)  # the first run warms up, and would look slower than a longer one
        alone, steps = seconds(1), SHORTEST_TRIAL
        while (taken := seconds(1 + steps)) < max(2 * alone, alone + MEASURABLE) and steps < LONGEST_TRIAL:
            steps *= 4
        return max(taken - alone, 0.1 * taken) / steps
    except BadInput:
        raise
    except Exception:  # noqa: BLE001 - a refusal or a crash: the run meets it again and records it
        return None


def rounded_down(steps: float, *, fewest: int = FEWEST_STEPS) -> int:
    """Steps with two significant digits, at least ``fewest``."""
    whole = max(fewest, int(steps))
    unit = 10 ** max(0, len(str(whole)) - 2)
    return whole // unit * unit


def restored(fields: dict[str, Any]) -> Case:
    """The case that was written down as these fields."""
    lists = {name: tuple(fields[name]) for name in ("defenses", "reveal")}
    return Case(**{**fields, **lists})
