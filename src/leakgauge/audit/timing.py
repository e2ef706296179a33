"""How long things take, measured by short runs: steps of anything, and cases. What was not tried is estimated from what was."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial

import torch

from leakgauge.audit.case import Case, accepted_options, with_steps
from leakgauge.audit.scoring import pair_images
from leakgauge.audit.session import Load, set_up
from leakgauge.core import Sampled, Tokens
from leakgauge.errors import BadInput
from leakgauge.inversion import watching

FEWEST_STEPS = 50
SHORTEST_TRIAL, LONGEST_TRIAL = 8, 512
"""Steps of a trial; it grows until they take a measurable time."""
MEASURABLE = 0.1
"""Seconds."""
SLOW = 1.0
"""Seconds of a run of one step. From there on a second step is trial enough."""


def seconds_of(text: str) -> float:
    """A duration as people write it.

    >>> seconds_of("90s"), seconds_of("2m"), seconds_of("1h")
    (90.0, 120.0, 3600.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if found is None or float(found.group(1)) == 0:
        raise BadInput(f"a budget is a positive time such as 90s, 2m or 1h, got {text!r}")
    return float(found.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600}[found.group(2)]


@dataclass(frozen=True)
class Cost:
    """Seconds of one step and of what surrounds the steps; two costs add up to that of doing both."""

    fixed: float = 0.0
    step: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.fixed + other.fixed, self.step + other.step)

    def seconds(self, steps: int) -> float:
        return self.fixed + steps * self.step

    def affordable(self, seconds: float, *, fewest: int = FEWEST_STEPS, most: int | None = None) -> int:
        """Steps for which there is time, rounded down to two digits, within ``fewest`` and ``most``.

        >>> Cost(fixed=2.0, step=0.04).affordable(42.3), Cost(step=0.04).affordable(1.0)
        (1000, 50)
        """
        steps = max(fewest, int((seconds - self.fixed) / self.step) if self.step > 0 else 0)
        unit = 10 ** max(0, len(str(steps)) - 2)
        return min(steps // unit * unit, steps if most is None else most)


def elapsed(run: Callable[[], object]) -> float:
    """Seconds of a call, with the work that it leaves to a GPU."""
    began = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def cost_of(run: Callable[[int], object], *, warm: bool = False) -> Cost:
    """The cost of ``run(steps)``, from a run of one step and a longer one. ``warm``: something like it has run before."""
    if not warm:
        run(1)  # the first run of a process looks slower than a longer one
    alone = elapsed(partial(run, 1))
    steps = SHORTEST_TRIAL if alone < SLOW else 1
    while (taken := elapsed(partial(run, 1 + steps))) < alone + MEASURABLE and steps < LONGEST_TRIAL:
        steps *= 4
    step = max(taken - alone, 0.1 * taken) / steps
    return Cost(max(0.0, alone - step), step)


class _Enough(Exception):
    """Ends a run that has been watched long enough."""


def cost_of_steps(run: Callable[[int], object]) -> Cost:
    """As :func:`cost_of`, from one run that is stopped as soon as its steps have taken a measurable time.

    The run reports its steps to :func:`~leakgauge.inversion.watching`; one that does not is timed by :func:`cost_of`. The first step
    warms up and does not count, and a run that is quick is made twice, because the first of a process also warms up what is around
    the steps.
    """
    found, taken = _watched(run)
    if found is not None and taken < SLOW:
        found, _ = _watched(run)
    return cost_of(run, warm=True) if found is None else found


def _watched(run: Callable[[int], object]) -> tuple[Cost | None, float]:
    """The cost, None where fewer than two steps were reported, and the seconds that it took to find it."""
    times: list[float] = []

    def on_step(done: int, total: int) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter())
        if len(times) > 1 and times[-1] - times[0] > MEASURABLE:
            raise _Enough

    began = time.perf_counter()
    with suppress(_Enough), watching(on_step):
        run(LONGEST_TRIAL)
    taken = time.perf_counter() - began
    if len(times) < 2:
        return None, taken
    step = (times[-1] - times[0]) / (len(times) - 1)
    return Cost(max(0.0, times[0] - began - step), step), taken


def costs(cases: Sequence[Case], *, load: Load, until: float = math.inf) -> list[Cost]:
    """The cost of each case; nothing where the attack takes no steps or does not run. Defenses make no difference.

    After the time ``until`` (perf_counter) none is tried: the first is then estimated from the time that it takes to share its update,
    the others from those before.
    """
    known: dict[str, Cost] = {}
    tried: list[Case] = []
    scoring = cache(lambda batch: _scoring(replace(cases[0], name="", batch_size=batch), load))
    for case in cases:
        key = alike(case)
        if key in known:
            continue
        if "steps" not in accepted_options(case):  # a closed form takes little beside its scores
            late = tried and time.perf_counter() > until
            sharing = estimated(case, tried, known).step if late else _sharing(case, load)
            known[key] = Cost(scoring(case.batch_size) + SHARING * sharing)
        elif tried and time.perf_counter() > until:
            known[key] = estimated(case, tried, known)
        else:
            shared = _sharing(case, load)
            slow = time.perf_counter() + TRIAL * shared > until
            found = Cost(shared, REPLAY * shared) if slow else _cost(case, load=load)
            besides = scoring(case.batch_size) + READING * found.step
            known[key] = found + Cost(besides) if found.step else found
            tried.append(case)
    return [known[alike(case)] for case in cases]


def estimated(case: Case, tried: Sequence[Case], known: Mapping[str, Cost]) -> Cost:
    """From the tried case that is most like it, by the images that go through the model in one replay.

    Fewer local steps take as much less time, being taken one after the other; smaller batches do not, and are assumed to save the square
    root only.
    """
    near = max(
        tried, key=lambda one: (one.model == case.model, one.mode == case.mode, -abs(_images(one) - _images(case)))
    )
    found, batches = known[alike(near)], case.batch_size / near.batch_size
    ratio = _replayed(case) / _replayed(near) * (batches if batches > 1 else math.sqrt(batches))
    return Cost(found.fixed * min(1.0, ratio), found.step * ratio)


def _images(case: Case) -> int:
    return case.batch_size * _replayed(case)


def _replayed(case: Case) -> int:
    """Local steps of one replay."""
    return case.local_steps * case.local_epochs


def alike(case: Case) -> str:
    """The same for cases that cost the same."""
    return replace(with_steps(case, 1), name="", defenses=(), first=0, change=None).key()


def attack_once(case: Case, load: Load) -> None:
    """Runs the case's attack; one of its searches, where it makes several. Labels are given, for reading them is no part of a step."""
    setup, attack = set_up(case, load), case.build_attack()
    single = attack.sample()[0] if isinstance(attack, Sampled) else attack
    _, labels = setup.private(case)
    single(setup.victim, replace(setup.observation(case), labels=labels), seed=case.seed)


def _cost(case: Case, *, load: Load) -> Cost:
    """Of the attack alone: null run and scores take little beside it. Nothing where it is refused or fails; the run meets that again."""
    try:
        found = cost_of_steps(lambda steps: attack_once(with_steps(case, steps), load))
    except BadInput:
        raise
    except Exception:  # noqa: BLE001 - a refusal or a crash: the run meets it again and records it
        return Cost()
    attack = case.build_attack()
    runs = attack.sample()[1] if isinstance(attack, Sampled) else 1
    return Cost(
        found.fixed + (runs - 1) * found.step, found.step
    )  # the batch is shared once; each search judges its last image


REPLAY = 3
"""Times of sharing an update that a step of a search takes: the update is made again, and differentiated."""
TRIAL = 12
"""Times of sharing an update that a trial of a search takes: it is set up and takes three steps."""
READING = 40
"""Replays that reading the labels, comparing the candidates, the null run and the truth test of a case take together."""
SHARING = 8
"""Times of sharing an update that a closed form takes: the model is sent, an update shared, read and compared, and the truth tested."""


def _sharing(case: Case, load: Load) -> float:
    """Seconds of setting the case up and sharing its update, or until that was refused or failed."""
    began = time.perf_counter()
    try:
        set_up(case, load).observation(case)
    except BadInput:
        raise
    except Exception:  # noqa: BLE001 - the run meets it again and records it
        pass
    return time.perf_counter() - began


SCORED = 24
"""Other images with which the time of scoring is measured; with fewer some scores are not computed."""


def _scoring(case: Case, load: Load) -> float:
    """Seconds of scoring a reconstruction and a null run. Where that takes long, from one image and a few others."""
    setup = load(case)
    if isinstance(setup.victim.space, Tokens):
        return 0.0  # ROUGE of a few sentences
    truths, others = setup.pictures(setup.images[case.first : case.first + case.batch_size]), setup.pool(case)
    one, some = truths[:1], None if others is None else others[:SCORED]
    short = min(elapsed(lambda: pair_images(one, one, pool=some)) for _ in range(2))  # the first of a process warms up
    if some is None or others is None or short < MEASURABLE:
        return 2 * elapsed(lambda: pair_images(truths, truths, pool=others))
    return 2 * short * len(truths) * (len(truths) + len(others)) / (1 + len(some))
