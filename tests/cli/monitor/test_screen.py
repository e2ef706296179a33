"""The live view of a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from leakgauge.audit.findings import training_of
from leakgauge.audit.questions.training import MonitorRun
from leakgauge.audit.wording import alarm
from leakgauge.cli.monitor.live import Screen, sparkline, view
from leakgauge.cli.monitor.training import train


def printed(thing) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(thing)
    return console.file.getvalue()


def test_the_newest_numbers_are_beside_their_controls(recording):
    made, seen = recording()
    train(made, steps=100, seed=0)
    shown = printed(view(seen[-1]))
    assert "LeNet, Adam, view released, step 100" in shown
    for line in ("white-box AUC        1.000", "control null", "control decoy", "control noise 10x", "fc.weight"):
        assert line in shown
    assert "A value near 0 does not mean that nothing leaks." in shown
    assert alarm(training_of(seen[-1])) in shown  # as the report says it


def test_before_the_first_report():
    assert "waiting for the first report" in printed(view(MonitorRun(about={"model": "[bold]x"})))
    assert "[bold]x" in printed(view(MonitorRun(about={"model": "[bold]x"})))


def test_names_of_layers_are_not_read_as_markup(recording):
    made, seen = recording()
    train(made, steps=60, seed=0)
    run = seen[-1]
    report = {**run.reports[-1], "layers": {"[red]fc[/red]": 0.1}}
    assert "[red]fc[/red]" in printed(view(MonitorRun(about=run.about, reports=(report,))))


def test_a_layer_that_is_not_finite_is_left_out(recording):
    made, seen = recording()
    train(made, steps=60, seed=0)
    run = seen[-1]
    report = {**run.reports[-1], "layers": {"broken": None, "whole": 0.1}}
    shown = printed(view(MonitorRun(about=run.about, reports=(report,))))
    assert ("whole" in shown, "broken" in shown) == (True, False)


def test_without_a_terminal_nothing_is_drawn(recording):
    out = io.StringIO()
    with Screen(Console(file=out)) as screen:
        screen.show(MonitorRun(about={}))
    assert out.getvalue() == ""


def test_in_a_terminal_the_view_is_drawn_and_taken_away():
    out = io.StringIO()
    with Screen(Console(file=out, force_terminal=True, width=100)) as screen:
        screen.show(MonitorRun(about={"model": "LeNet"}))
    assert "waiting for the first report" in out.getvalue()


def test_a_long_curve_is_thinned_and_keeps_its_ends():
    line = sparkline([0.0, *[0.5] * 200, 1.0], 0.0, 1.0, width=10)
    assert len(line) == 10
    assert (line[0], line[-1]) == ("▁", "█")
