"""The page of a scan of a language model: what each cut gives away, and the prompts beside what was found of them."""

from __future__ import annotations

from datetime import datetime

from leakgauge.audit.prompt_record import PromptFacts, sent_as
from leakgauge.audit.text_record import MARKS
from leakgauge.audit.wording import on_prompts
from leakgauge.errors import harmless
from leakgauge.report.templating import environment, page_time


def render(facts: PromptFacts, *, made: datetime | None = None) -> str:
    """One HTML file that needs no network, no script and no other file; tokens are text in it, whatever they hold.

    ``made`` is the time to print (default: now).
    """
    rows = [
        {
            "cut": row.cut,
            "sent": sent_as(row.protection),
            "found": f"{row.rate:.0%}",
            "exact": f"{row.exact_prompts} of {row.prompts}",
            "genie": "–" if row.genie_rate is None else f"{row.genie_rate:.0%} of {row.asked}",
            "kept": f"{row.agreement:.0%}",
            "bytes": row.bytes,
            "flops": f"{row.flops / 1e6:.1f}",
            "chosen": row is facts.recommended,
        }
        for row in facts.rows
    ]
    text = (
        environment()
        .get_template("prompts.html.j2")
        .render(
            name=facts.name,
            made=page_time(made),
            sentence=on_prompts(facts.recommended),
            rows=rows,
            prompts=facts.prompts,
            marks=MARKS,
        )
    )
    return harmless(text)
