"""``leakgauge scan`` on a language model: which tokens of a prompt leak after each block, and which noise hides them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from leakgauge.cli.terminal import shown
from leakgauge.errors import BadInput, Inapplicable

if TYPE_CHECKING:
    from leakgauge.audit.session import Setup
    from leakgauge.cli.scan import ScanOptions
    from leakgauge.split.prompts import PromptRisk

FILE = "prompts.jsonl"
ONLY_IMAGES = ("require", "threshold", "epochs", "attack_budget", "every_cut", "defense", "numbers", "resume")
MOST = 10
"""Prompts that are attacked."""
NOISE = (0.1, 0.3, 1.0, 3.0, 10.0)
GENIE = 16
"""Places of each prompt that the genie is asked for: all of a short one, or its rate is of other tokens than that of the attack."""


def scan_text(options: ScanOptions, setup: Setup) -> int:
    """Attacks the last fifth of the sentences at each cut; the others are the adversary's own."""
    from leakgauge.audit.files import write_whole
    from leakgauge.audit.prompt_record import prompt_facts, sent_as
    from leakgauge.audit.wording import on_prompts
    from leakgauge.cli.scan import exported
    from leakgauge.report.page import FILE as REPORT
    from leakgauge.report.prompts_page import render
    from leakgauge.split.decoder import DecoderBlocks
    from leakgauge.split.prompts import Protection, scan_prompts

    given = [f"--{name.replace('_', '-')}" for name in ONLY_IMAGES if name in options.given]
    if given:
        raise BadInput(
            f"{', '.join(given)} is for models of images; a scan of a language model takes --cut and --export"
        )
    if len(setup.images) < 2:
        raise BadInput("a scan needs at least 2 sentences: one to attack, and others for the adversary to learn from")
    screen = Console(quiet=options.quiet)
    padding = getattr(setup.victim.loss, "padding", None)
    test = max(1, min(MOST, len(setup.images) // 5))
    prompts = [ids[ids != padding] if padding is not None else ids for ids in setup.images[-test:]]
    try:
        blocks = DecoderBlocks(setup.victim)
    except Inapplicable as refusal:
        raise BadInput(f"this model cannot be scanned: {refusal}") from refusal
    protections = (
        Protection(),
        Protection("bfloat16"),
        Protection("int8"),
        *(Protection("noise", size) for size in NOISE),
    )

    def on_row(risk: PromptRisk) -> None:
        screen.print(
            shown(f"{blocks.cut_name(risk.cut)}, {sent_as(risk.protection)}: {risk.rate:.0%} of the tokens found"),
            highlight=False,
        )

    rows = scan_prompts(
        setup.victim, prompts, _cuts(options.cut, blocks.name, len(blocks)), protections,
        public=setup.images[:-test], genie=GENIE, seed=options.seed, on_row=on_row,
    )  # fmt: skip
    lines = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
    write_whole(options.folder / FILE, lines.encode())
    screen.print(_table(rows))
    facts = prompt_facts(rows, prompts, name=setup.victim.name, tokens=setup.tokens)
    best = facts.recommended
    screen.print(shown(on_prompts(best)), soft_wrap=True, highlight=False)
    write_whole(options.folder / REPORT, render(facts).encode())
    screen.print(f"report: {shown(options.folder / REPORT)}", soft_wrap=True)
    if options.export is not None:
        cut = blocks.cut_name(rows[0].cut if best is None else best.cut)
        screen.print(exported(setup.victim, cut, options.export), soft_wrap=True, highlight=False)
    return 0


def _cuts(named: Sequence[str], blocks: str, depth: int) -> list[int]:
    """Block numbers; without names 1, 2, 4, … and the last."""
    if not named:
        return sorted({min(2**k, depth) for k in range(depth.bit_length() + 1)})
    found = [name.removeprefix(f"{blocks}.") for name in named]
    wrong = [name for name in found if not name.isdecimal()]
    if wrong:
        raise BadInput(
            f"a cut of a language model is the number of blocks on the device, such as --cut 2; got {wrong[0]!r}"
        )
    return [int(one) + (one != name) for one, name in zip(found, named, strict=True)]


def _table(rows: Sequence[PromptRisk]) -> Table:
    table = Table(
        title="What the cloud could read of the prompts at each cut",
        caption="genie: knows all other tokens, a reference from above, no proven bound; kept: next tokens that the cloud still predicts",
    )
    for column in ("blocks", "sent", "tokens", "genie", "kept", "bytes", "MFLOP"):
        table.add_column(column, justify="right", no_wrap=True)
    from leakgauge.audit.prompt_record import sent_as

    for row in rows:
        genie = "" if row.genie_rate is None else f"{row.genie_rate:.0%}"
        table.add_row(
            str(row.cut),
            sent_as(row.protection),
            f"{row.rate:.0%}",
            genie,
            f"{row.agreement:.0%}",
            str(row.bytes),
            f"{row.flops / 1e6:.1f}",
        )
    return table
