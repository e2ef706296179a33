"""What the terminal shows: the progress of an attack or an audit, and the verdicts at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from leakgauge.audit.phrasing import duration, plural
from leakgauge.audit.questions import QUESTIONS, Question
from leakgauge.audit.questions.answers import Answer
from leakgauge.audit.records import Record
from leakgauge.audit.whole import Watcher
from leakgauge.audit.wording import figures, result, server_of
from leakgauge.cli.terminal import shown

MARKS = {"answered": "[green]✓[/]", "refused": "[yellow]–[/]", "failed": "[red]✗[/]"}
UNITS: Mapping[Question, str] = {
    "updates": "case",
    "training": "step",
    "split": "cut",
    "defenses": "trial",
    "properties": "update",
}
LISTED = ("updates", "split", "defenses")
"""Questions with a line for each part where there is no terminal; a training has too many steps for that."""


class AuditView(Watcher):
    """A live table on a terminal, plain lines elsewhere, nothing in quiet."""

    def __init__(
        self, console: Console, questions: Sequence[Question], *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._console, self._questions, self._clock = console, tuple(questions), clock
        self._estimates: Mapping[str, float] = {}
        self._answers: dict[Question, Answer] = {}
        self._now: Question | None = None
        self._parts, self._done, self._said = 0, 0.0, ""
        self._began = clock()
        self._live: Live | None = None

    def __enter__(self) -> AuditView:
        if self._console.is_terminal and not self._console.quiet:
            self._live = Live(console=self._console, get_renderable=self.view, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    # what happens

    def planning(self, question: Question) -> None:
        """The time of a question is being measured."""
        self._said = f"planning: {question}"

    def planned(self, estimates: Mapping[str, float]) -> None:
        """Seconds that each question may take, as far as they are known."""
        self._estimates, self._said = dict(estimates), ""
        if estimates:
            each = ", ".join(f"{q} {duration(s)}" for q in self._questions if (s := estimates.get(q)) is not None)
            self._print(f"planned, about {duration(sum(estimates.values()))} in all: {each}")

    def started(self, question: Question, parts: int) -> None:
        self._now, self._parts, self._done, self._said = question, parts, 0.0, ""
        number = f"{self._questions.index(question) + 1} of {len(self._questions)}"
        about = self._estimates.get(question)
        length = "" if about is None else f", about {duration(about)}"
        self._print(f"{number} {question}: {QUESTIONS[question]} {plural(parts, UNITS[question])}{length}")

    def moved(self, question: Question, done: float, said: str) -> None:
        self._done = done
        if said:
            self._said = said
            if question in LISTED:
                self._print(f"  {said}")

    def ended(self, answer: Answer) -> None:
        self._answers[answer.question] = answer
        self._now, self._said = None, ""
        why = f": {answer.reason}" if answer.reason else ""
        self._print(f"  {answer.question} {answer.status} after {duration(answer.seconds)}{why}")

    # what it shows

    def view(self) -> RenderableType:
        """What a terminal shows now."""
        table = Table(box=None, show_header=False, padding=(0, 1))
        for question in self._questions:
            table.add_row(*self._row(question))
        spent = f"{duration(self._clock() - self._began)} so far"
        left = self._left()
        follows = "" if left is None else f", about {duration(left)} to go"
        return Group(table, Text(f"{spent}{follows}. Ctrl-C stops; --resume continues.", style="dim"))

    def _row(self, question: Question) -> tuple[str, str, str, str]:
        answer, about = self._answers.get(question), self._estimates.get(question)
        if answer is not None:
            return MARKS[answer.status], question, answer.status, shown(answer.reason or duration(answer.seconds))
        if question == self._now:
            count = f"{int(self._done)} of {plural(self._parts, UNITS[question])}"
            return "[bold]▶[/]", f"[bold]{question}[/]", count, shown(self._said)
        return "·", question, "" if about is None else f"about {duration(about)}", ""

    def _left(self) -> float | None:
        """Seconds to come by the plan's estimates; of the question that runs now by how far it is."""
        if not self._estimates:
            return None
        waiting = [q for q in self._questions if q not in self._answers and q != self._now]
        left = sum(self._estimates.get(q, 0.0) for q in waiting)
        if self._now is not None:
            part = min(1.0, self._done / max(1, self._parts))
            left += max(0.0, self._estimates.get(self._now, 0.0) * (1 - part))
        return left

    def _print(self, line: str) -> None:
        if self._live is None:
            self._console.print(shown(line), soft_wrap=True, highlight=False)


def attack_progress(screen: Console) -> Progress:
    """A bar for one attack, on a terminal only."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
        disable=screen.quiet or not screen.is_terminal,
    )


def verdict_table(found: Sequence[Record]) -> Table:
    """The verdicts of cases, each with its scores beside those of the null run."""
    table = Table(title=f"What {server_of(found)} could reconstruct")
    rows = list(map(figures, found))
    names = next(([name for name, _ in row] for row in rows if row), ("PSNR", "null", "SSIM"))
    for column in ("case", *names, "verdict"):
        table.add_column(column, overflow="fold")
    for record, row in zip(found, rows, strict=True):
        said = shown(result(record))
        if record.outcome is not None and row:
            said = f"[{record.outcome.colour}]{record.outcome.label}[/]"
        table.add_row(shown(record.case.name), *([value for _, value in row] or [""] * 3), said)
    return table
