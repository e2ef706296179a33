"""Nothing on one page excludes anything else on it: advice and answers over many generated findings."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from leakgauge.audit.advice import advise
from leakgauge.audit.findings import Defenses, Findings, Flip, Update, Updates
from leakgauge.audit.verdict import Outcome
from leakgauge.audit.wording import statements
from leakgauge.core import LABELS_GIVEN
from tests.made import defended, update

GENERATED = 4000
EVAL = "client computes its update in eval mode (real training uses train mode)"
EXCLUDE = (
    (
        r"Treat the labels of a batch of \d+ as known",
        r"cannot get this help: [^.]*labels",
        "labels that are known cannot be kept away",
    ),
    (
        r"Do not share plain updates",
        r"could not reconstruct private images from plain updates",
        "something was reconstructed",
    ),
    (r"Do not share plain updates", r"Nothing is known about plain updates", "something is known"),
    (r"Nothing is known about plain updates", r"held against these attacks", "what is not known has not held"),
    (r"Nothing is known about plain updates", r"Without it no set-up leaked", "what is not known cannot be relied on"),
    (
        r"Draw no conclusion from (\d+ set-ups?)",
        r"None of \d+ images? was reconstructed\. With 95 %",
        "no rate follows from too short a search",
    ),
    (r"Consider (\S+) on what you share", r"Do not rely on \1 at", "it holds or it does not"),
    (
        r"Consider \S+ on what you share",
        r"comparison of defenses as protection",
        "a defense earns something where the attack succeeds",
    ),
    (
        r"Do not use batches smaller than (\d+)",
        r"Do not share plain updates from (?:a batch of|batches of [\d, ]*(?:and )?)\s?\1\b",
        "a size is advised or it leaks",
    ),
    (r"Do not write that updates are safe", r"reconstructed private images", "something was reconstructed"),
    (r"makes it inconclusive", r".", "a change that leads to no evidence moves nothing"),
)
"""Two statements that cannot both be on a page, and why."""


def made_update(draw: random.Random, number: int) -> Update:
    outcome = draw.choice(list(Outcome))
    batch, mode = draw.choice((1, 4, 8)), draw.choice(("train", "eval"))
    given = draw.random() < 0.4
    diagnostic = (*((EVAL,) if mode == "eval" else ()), *((LABELS_GIVEN,) if given else ()))
    return update(
        number, f"set-up {number}", outcome, batch=batch, mode=mode, diagnostic=diagnostic, classes=10,
        steps=600 if outcome.conclusive else 150, labels=None if given else draw.choice((0.25, 1.0)), usual_steps=2000, enough_steps=200,
        ssim=draw.random(), psnr=12.0, null_ssim=0.1, null_psnr=9.0, defenses=draw.choice(((), (), ("prune:0.9",))),
        first=number, model="cnn", local_steps=draw.choice((1, 4)),
    )  # fmt: skip


def made_defenses(draw: random.Random) -> Defenses:
    base, row = (draw.choice(list(Outcome)) for _ in range(2))
    rows = (defended(2, "prune:0.9", row, ssim=0.1, auc=0.6, cost=draw.choice((0.5, 5.0)), front=True),)
    return Defenses(defended(1, "", base, ssim=0.8, auc=0.9, cost=0.0), rows, steps=600, train_steps=60, model="cnn")


def generated() -> Iterator[Findings]:
    draw = random.Random(22)
    for _ in range(GENERATED):
        every = [made_update(draw, number) for number in range(1, draw.randint(2, 5))]
        flips = [
            Flip("a change", one, other, other.outcome)
            for one in every
            for other in every
            if one.outcome and other.outcome and one.outcome.leaks and other.outcome is Outcome.INFEASIBLE
        ]
        yield Findings(
            updates=Updates(tuple(every), tuple(flips[:1])),
            defenses=made_defenses(draw) if draw.random() < 0.5 else None,
        )


@pytest.fixture(scope="module")
def pages() -> list[str]:
    return [
        "\n".join(
            [
                *(f"{a.title} {a.why}" for a in advise(found)),
                *(s.text for s in statements(found) if s.state == "answered"),
            ]
        )
        for found in generated()
    ]


@pytest.mark.parametrize(("one", "other", "why"), EXCLUDE, ids=[why for *_, why in EXCLUDE])
def test_no_page_says_both(one: str, other: str, why: str, pages: list[str]):
    for page in pages:
        for found in re.finditer(one, page):
            wanted = other.replace("\\1", re.escape(found.group(1))) if found.groups() else other
            assert not re.search(wanted, page), f"{why}:\n{page}"


def test_the_generated_pages_hold_what_they_are_searched_for(pages: list[str]):
    """A search that never finds its first half proves nothing."""
    every = "\n".join(pages)
    for one, _, why in EXCLUDE[:-1]:
        assert re.search(one, every), why


def test_labels_that_were_read_are_no_help_that_can_be_kept_away():
    """Labels were "known to the server" and the user was to "make sure that it cannot have them", on one page."""
    read = update(1, "plain", "infeasible_within_budget", batch=4, labels=1.0, classes=10)
    helped = replace(update(2, "helped", "partial", batch=4, ssim=0.3, classes=10), diagnostic=(LABELS_GIVEN,))
    rules = {one.rule for one in advise(Findings(updates=Updates((read, helped))))}
    assert "labels_read" in rules
    assert "only_upper_bound" not in rules
