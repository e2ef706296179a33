"""How long a case takes, found by running it with few steps; and how many steps fit into a time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from leakgauge.audit.case import Case, accepted_options
from leakgauge.audit.run import run_case
from leakgauge.audit.session import Load, check_fits, set_up
from leakgauge.audit.step_time import FEWEST_STEPS, LONGEST_TRIAL, MEASURABLE, SHORTEST_TRIAL
from leakgauge.errors import BadInput

SLOW = 1.0
"""Seconds of a run of one step, from which on a trial is as short as can be."""


@dataclass(frozen=True)
class Cost:
    """Seconds around the steps (loading, scoring, pictures) and of one step of attack and null run together."""

    fixed: float
    step: float


def rehearse(cases: Sequence[Case], *, load: Load) -> None:
    """Loads every case and shares its batch, so that what a user has to mend is told before anything runs."""
    for case in cases:
        setup = set_up(case, load)
        check_fits(setup)
        try:
            setup.observation(case)
        except BadInput:
            raise
        except Exception:  # noqa: BLE001 - a refusal or a crash: the run meets it again and records it
            continue


def costs(cases: Sequence[Case], *, load: Load) -> list[Cost | None]:
    """The cost of each case; None where the attack takes no steps or does not run. Cases that differ in defenses alone cost the same."""
    known: dict[str, Cost | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            alike = replace(case, name="", defenses=(), first=0).key()
            if alike not in known:
                known[alike] = _cost(case, load=load, folder=Path(folder), warm=bool(known))
    return [known[replace(case, name="", defenses=(), first=0).key()] for case in cases]


def _cost(case: Case, *, load: Load, folder: Path, warm: bool) -> Cost | None:
    if "steps" not in accepted_options(case):
        return None

    def seconds(steps: int) -> float | None:
        began = time.perf_counter()
        record = run_case(with_steps(case, steps), load=load, folder=folder)
        return time.perf_counter() - began if record.status == "done" else None

    if not warm:
        seconds(1)  # the first run of a process looks slower than a longer one
    alone = seconds(1)
    if alone is None:
        return None
    steps = SHORTEST_TRIAL if alone < SLOW else 1  # one step of a large model can be measured well enough
    while (taken := seconds(1 + steps)) is not None and taken < alone + MEASURABLE and steps < LONGEST_TRIAL:
        steps *= 4
    if taken is None:
        return None
    step = max(taken - alone, 0.1 * taken) / steps
    return Cost(max(0.0, alone - step), step)


def affordable(found: Sequence[Cost | None], seconds: float) -> int:
    """Steps that every case can take so that all together take ``seconds``; in tens, never below 50.

    All get the same number, so that two cases that differ in one thing can be compared.
    """
    known = [cost for cost in found if cost is not None]
    each = sum(cost.step for cost in known)
    steps = (seconds - sum(cost.fixed for cost in known)) / each if each > 0 else 0
    return max(FEWEST_STEPS, int(steps) // 10 * 10)


def seconds_of(found: Sequence[Cost | None], steps: int) -> float:
    """What the cases take together, with so many steps each."""
    return sum(cost.fixed + steps * cost.step for cost in found if cost is not None)


def with_steps(case: Case, steps: int) -> Case:
    """The case with so many steps, where its attack takes any."""
    if "steps" not in accepted_options(case):
        return case
    return replace(case, options={**case.options, "steps": steps})
