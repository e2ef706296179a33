"""How long a step of an attack takes, and how a time is written and turned into steps."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import torch

from leakgauge.audit.case import Case
from leakgauge.audit.session import Load, check_fits, set_up
from leakgauge.errors import BadInput

FEWEST_STEPS = 50
SHORTEST_TRIAL, LONGEST_TRIAL = 8, 512
"""Steps of a trial; it grows until its steps, not the set-up around them, take most of a measurable time."""
MEASURABLE = 0.1
"""Seconds."""


def seconds_of(text: str) -> float:
    """A duration as people write it.

    >>> seconds_of("90s"), seconds_of("2m"), seconds_of("1h")
    (90.0, 120.0, 3600.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if found is None or float(found.group(1)) == 0:
        raise BadInput(f"a budget is a positive time such as 90s, 2m or 1h, got {text!r}")
    return float(found.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600}[found.group(2)]


def seconds_per_step(case: Case, load: Load) -> float | None:
    """Seconds of one step, from the difference of a trial and a run of one step; None where the attack does not run."""
    setup = set_up(case, load)
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
