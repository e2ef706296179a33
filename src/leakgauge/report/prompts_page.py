"""The page of a scan of a language model: what each cut gives away, and the prompts beside what was found of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from leakgauge.audit.text_record import MARKS, Mark, marked_pair
from leakgauge.audit.wording import on_prompts
from leakgauge.errors import harmless
from leakgauge.report.templating import environment
from leakgauge.split.prompts import PromptRisk, Protection, recommend


def render(
    rows: Sequence[PromptRisk],
    prompts: Sequence[Tensor],
    *,
    name: str,
    tokens: Callable[[Tensor], list[str]] | None = None,
    made: datetime | None = None,
) -> str:
    """One HTML file that needs no network, no script and no other file; tokens are text in it, whatever they hold.

    ``tokens`` gives the pieces of text of one prompt; without it the ids are shown. ``made`` is the time to print (default: now).
    """
    best = recommend(rows)
    text = (
        environment()
        .get_template("prompts.html.j2")
        .render(
            name=name,
            made=(made or datetime.now(UTC)).astimezone(UTC).strftime("%d %B %Y, %H:%M UTC"),
            sentence=on_prompts(best),
            rows=[_figures(row, chosen=row is best) for row in rows],
            prompts=[_prompt(k, ids, rows, tokens) for k, ids in enumerate(prompts)],
            marks=MARKS,
        )
    )
    return harmless(text)


def said(protection: Protection) -> str:
    """How features are sent, in a word or two."""
    return f"noise {protection.noise:g}" if protection.noise else protection.sent


def _figures(row: PromptRisk, *, chosen: bool) -> dict[str, Any]:
    return {
        "cut": row.cut,
        "sent": said(row.protection),
        "found": f"{row.rate:.0%}",
        "exact": f"{row.exact_prompts} of {row.prompts}",
        "genie": "–" if row.genie_rate is None else f"{row.genie_rate:.0%} of {row.asked}",
        "kept": f"{row.agreement:.0%}",
        "bytes": row.bytes,
        "flops": f"{row.flops / 1e6:.1f}",
        "chosen": chosen,
    }


def _prompt(
    number: int, ids: Tensor, rows: Sequence[PromptRisk], tokens: Callable[[Tensor], list[str]] | None
) -> dict[str, Any]:
    """A prompt and what each row found of it; of rows that found the same, the first stands for all."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for row in rows:
        if row.recovered:
            groups.setdefault(row.recovered[number], []).append(f"{row.cut} {said(row.protection)}")
    found: list[tuple[str, list[tuple[str, Mark]]]] = []
    truth: list[tuple[str, Mark]] = []
    for one, where in groups.items():
        pair = marked_pair(ids, torch.tensor(one), tokens)
        truth = [(piece, "placed") for piece in pair.truth]
        found.append((", ".join(where), list(zip(pair.found, pair.found_marks, strict=True))))
    return {"number": number + 1, "truth": truth, "found": found}
