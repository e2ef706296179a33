"""``leakgauge compare``: two runs side by side, what got worse first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.console import Console
from rich.table import Table

from leakgauge.cli.options import Quiet, arg, opt, refuse_places
from leakgauge.cli.terminal import shown

if TYPE_CHECKING:
    from leakgauge.audit.compare import CasePair, Comparison, Difference

STYLES: Mapping[str, str] = {"worse": "bold red", "lost": "red", "better": "green", "same": "dim", "untold": "dim"}


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Quiet):
    PANEL: ClassVar[str] = "Options"
    EXAMPLES: ClassVar[Sequence[str]] = (
        "leakgauge compare runs/main runs/branch --fail-if-worse",
        "leakgauge compare runs/v1 runs/v2 --out changes.html --markdown changes.md",
    )

    before: Path = arg("RUN_A", "Folder of the earlier run.")
    after: Path = arg("RUN_B", "Folder of the later run.")
    out: Path | None = opt(None, "Write the comparison as a page to this .html file.")
    json: Path | None = opt(None, "Write the comparison as JSON to this file.", panel="CI")
    markdown: Path | None = opt(None, "Write a short summary for a pull request to this file.", panel="CI")
    fail_if_worse: bool = opt(
        False, "Exit with 3 if a verdict is worse or missing, or if nothing could be compared.", panel="CI"
    )


def compare(options: CompareOptions) -> int:
    """Show what changed between two runs, for example of two versions of a model: verdicts first, then figures with their spread.

    Cases are paired by mode, batch size, local steps, attack, defenses and knowledge, whatever the models are called.
    """
    from leakgauge.audit import compare as runs
    from leakgauge.audit.files import json_text, write_whole
    from leakgauge.audit.gate import EXIT_CODE, comparison_summary
    from leakgauge.report import compare_page

    refuse_places(options.out, options.json, options.markdown)
    found = runs.compare(options.before, options.after)
    screen = Console(quiet=options.quiet)
    _print(found, screen)
    if options.out is not None:
        write_whole(options.out, compare_page.render(found).encode())
        screen.print(f"page: {shown(options.out)}", soft_wrap=True)
    if options.json is not None:
        summary = runs.summary(found)
        write_whole(options.json, json_text(summary), private=False)
    if options.markdown is not None:
        write_whole(options.markdown, comparison_summary(found).encode(), private=False)
    return EXIT_CODE if options.fail_if_worse and found.is_worse else 0


def _print(found: Comparison, screen: Console) -> None:
    if found.cases:
        table = _table("change", "case", "verdict", "SSIM", "PSNR in dB")
        table.title = f"What changed from {shown(found.before)} to {shown(found.after)}"
        table.caption = "~ within the spread of restarts, ? a single restart: spread unknown; higher figures leak more"
        for pair in found.cases:
            figures = [_moved(difference) for difference in pair.differences]
            table.add_row(_word(pair.direction), shown(pair.name), _verdicts(pair), *figures)
        screen.print(table)
    if found.changes:
        table = _table("change", "what", "before", "after", "note")
        table.title = "Training, split and defenses"
        for change in found.changes:
            texts = (change.what, change.before, change.after, change.note)
            table.add_row(_word(change.direction), *map(shown, texts))
        screen.print(table)
    lines = [f"differs: {name}: {a} → {b}" for name, a, b in found.settings]
    lines += [f"only in {found.before}: {name}" for name in found.only_before]
    lines += [f"only in {found.after}: {name}" for name in found.only_after]
    for line in lines:
        screen.print(shown(line), soft_wrap=True, highlight=False)
    for warning in found.warnings:
        screen.print(f"[yellow]warning: {shown(warning)}[/]", soft_wrap=True, highlight=False)
    style = "bold red" if found.is_worse else None
    screen.print(shown(found.sentence), soft_wrap=True, highlight=False, style=style)


def _table(*columns: str) -> Table:
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _verdicts(pair: CasePair) -> str:
    before, after = (r.status if r.outcome is None else r.outcome.label for r in (pair.before, pair.after))
    return before if before == after else f"{before} → {after}"


def _word(direction: str) -> str:
    from leakgauge.audit.compare import ORDER

    style = STYLES.get(direction)
    word = ORDER[direction]  # type: ignore[index]  # a Direction
    return word if style is None else f"[{style}]{word}[/]"


def _moved(difference: Difference) -> str:
    """The values before and after, with a mark where restarts differ as much, or where the spread is unknown."""
    from leakgauge.audit.phrasing import metric

    if difference.before is None or difference.after is None:
        return ""
    before, after = (metric(difference.metric, v) for v in (difference.before, difference.after))
    return f"{before} → {after}{ {True: '', False: ' ~', None: ' ?'}[difference.beyond] }"
