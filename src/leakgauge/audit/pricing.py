"""What a set-up costs: its attack is tried for a moment, or its cost is estimated from one that was."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from leakgauge.audit.case import Case, accepted_options, with_steps
from leakgauge.audit.scoring import pair_images
from leakgauge.audit.session import Load, set_up
from leakgauge.audit.timing import MEASURABLE, Cost, cost_of_steps, elapsed
from leakgauge.core import Sampled, Tokens
from leakgauge.errors import BadInput


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
