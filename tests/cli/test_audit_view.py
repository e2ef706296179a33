"""What an audit shows while it runs."""

from __future__ import annotations

import io

from rich.console import Console

from leakgauge.audit.questions.answers import Answer
from leakgauge.cli.screen import AuditView


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def story(console: Console) -> tuple[AuditView, str]:
    clock = Clock()
    view = AuditView(console, ("updates", "training", "split"), clock=clock)
    with view:
        view.planned({"updates": 60.0, "training": 10.0, "split": 30.0})
        view.started("updates", 4)
        view.moved("updates", 1, "cnn [bold]: feasible")
        clock.now = 15.0
        shown = Console(file=io.StringIO(), width=100)
        shown.print(view.view())
        middle = shown.file.getvalue()
        view.ended(Answer("updates", "answered", "", 75.0))
        view.started("training", 300)
        view.moved("training", 25, "step 25 of 300")
        view.ended(Answer("training", "failed", "RuntimeError: boom"))
        view.ended(Answer("split", "refused", "too few images"))
    return view, middle


def test_plain_lines_where_there_is_no_terminal():
    out = io.StringIO()
    story(Console(file=out, width=60))
    assert out.getvalue().splitlines() == [
        "planned, about 1 min 40 s in all: updates 1 min, training 10 s, split 30 s",
        "1 of 3 updates: What could be reconstructed from updates? 4 cases, about 1 min",
        "  cnn [bold]: feasible",
        "  updates answered after 1 min 15 s",
        "2 of 3 training: How does leakage move during training? 300 steps, about 10 s",
        "  training failed after 0 s: RuntimeError: boom",
        "  split refused after 0 s: too few images",
    ]


def test_the_view_says_what_is_done_what_runs_and_what_follows():
    view, middle = story(Console(file=io.StringIO(), quiet=True))
    running, *waiting, last = middle.splitlines()
    assert "▶" in running
    assert "1 of 4 cases" in running
    assert "cnn [bold]: feasible" in running
    assert ["about 10 s" in waiting[0], "about 30 s" in waiting[1]] == [True, True]
    assert last.startswith("15 s so far, about 1 min 25 s to go.")  # three quarters of 60, 10 and 30
    shown = Console(file=io.StringIO(), width=100)
    shown.print(view.view())
    end = shown.file.getvalue()
    assert [mark in end for mark in "✓✗–"] == [True, True, True]
    assert "too few images" in end


def test_quiet_prints_nothing():
    out = io.StringIO()
    story(Console(file=out, quiet=True))
    assert out.getvalue() == ""


def test_a_terminal_is_drawn_in_place():
    out = io.StringIO()
    story(Console(file=out, force_terminal=True, width=100))
    assert "planned, about" not in out.getvalue()
    assert "Ctrl-C stops; --resume continues." in out.getvalue()


def test_one_cut_is_not_one_cuts():
    said = Console(file=io.StringIO(), width=100)
    AuditView(said, ["split"]).started("split", 1)
    assert said.file.getvalue().endswith("Where may the network be cut? 1 cut\n")
