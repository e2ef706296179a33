"""What ``leakgauge compare`` does and shows: two runs side by side, what got worse first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from leakgauge.audit.compare import FAILING, ORDER, CasePair, Comparison, Difference, compare, summary
from leakgauge.audit.files import write_whole
from leakgauge.audit.gate import EXIT_CODE, comparison_summary
from leakgauge.errors import BadInput
from leakgauge.report import compare_page

STYLES: Mapping[str, str] = {"worse": "bold red", "lost": "red", "better": "green", "same": "dim", "untold": "dim"}


def show(
    before: Path,
    after: Path,
    *,
    page: Path | None,
    json_to: Path | None,
    markdown_to: Path | None,
    fail_if_worse: bool,
    quiet: bool,
) -> int:
    """Compares two run folders, prints the result and writes what was asked for. Returns the exit code."""
    for path in (page, json_to, markdown_to):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise BadInput(f"cannot write {path}: it must be a file in a folder that exists")
    found = compare(before, after)
    screen = Console(quiet=quiet)
    _print(found, screen)
    if page is not None:
        write_whole(page, compare_page.render(found).encode())
        screen.print(f"page: {page}", soft_wrap=True)
    if json_to is not None:
        write_whole(json_to, json.dumps(summary(found), indent=1, ensure_ascii=False, allow_nan=False).encode())
    if markdown_to is not None:
        write_whole(markdown_to, comparison_summary(found).encode())
    return EXIT_CODE if fail_if_worse and found.is_worse else 0


def _print(found: Comparison, screen: Console) -> None:
    if found.cases:
        table = Table(
            title=f"What changed from {escape(found.before)} to {escape(found.after)}",
            caption="~ within the spread over restarts, ? a single restart: spread not known; higher figures leak more",
        )
        for column in ("change", "set-up", "verdict", "SSIM", "PSNR in dB"):
            table.add_column(column, overflow="fold")
        for pair in found.cases:
            figures = [_moved(difference) for difference in pair.differences]
            table.add_row(_word(pair.direction), escape(pair.name), _verdicts(pair), *figures)
        screen.print(table)
    if found.changes:
        table = Table(title="Training, split and defenses")
        for column in ("change", "what", "before", "after", "note"):
            table.add_column(column, overflow="fold")
        for change in found.changes:
            told = [escape(text) for text in (change.what, change.before, change.after)]
            table.add_row(_word(change.direction), *told, escape(change.note))
        screen.print(table)
    lines = [f"differs: {name}: {a} → {b}" for name, a, b in found.settings]
    lines += [f"only in {found.before}: {name}" for name in found.only_before]
    lines += [f"only in {found.after}: {name}" for name in found.only_after]
    for line in lines:
        screen.print(escape(line), soft_wrap=True, highlight=False)
    for warning in found.warnings:
        screen.print(f"[yellow]warning: {escape(warning)}[/]", soft_wrap=True, highlight=False)
    screen.print(
        escape(found.sentence), soft_wrap=True, highlight=False, style="bold red" if found.count(*FAILING) else None
    )


def _verdicts(pair: CasePair) -> str:
    before, after = (r.status if r.outcome is None else r.outcome.label for r in (pair.before, pair.after))
    return before if before == after else f"{before} → {after}"


def _word(direction: str) -> str:
    style = STYLES.get(direction)
    word = ORDER[direction]  # type: ignore[index]  # a Direction
    return word if style is None else f"[{style}]{word}[/]"


def _moved(difference: Difference) -> str:
    """What it was and is, and a mark where restarts differ as much, or where nobody knows."""
    if difference.before is None or difference.after is None:
        return ""
    places = 3 if difference.metric == "ssim" else 1
    before, after = (f"{v:.{places}f}".replace("inf", "∞") for v in (difference.before, difference.after))
    return f"{before} → {after}{ {True: '', False: ' ~', None: ' ?'}[difference.beyond] }"


__all__ = ["show"]
