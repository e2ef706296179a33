"""Charts are where their numbers are, stay readable whatever the numbers, and describe themselves."""

from __future__ import annotations

import math
import re

import pytest

from leakgauge.audit.phrasing import number
from leakgauge.report.charts import Bar, Event, Level, Line, Panel, bar_chart, between, line_chart
from leakgauge.report.sections.training import layer_chart, layer_map
from leakgauge.report.sections.updates import loss_chart


@pytest.mark.parametrize(
    ("losses", "scale"),
    [
        ([[1.0, 0.1, 0.01]], "log"),
        ([[1.0, 0.5, 0.0]], "log"),
        ([[3.0, None, 2.9], [3.0, math.inf, 2.95]], "log"),
        ([[0.0, 0.0, 0.0]], "linear"),
        ([[-1.0, -2.0, -3.0], [1.0, 0.5, 0.2]], "linear"),
        ([[1e-9, 1e-3, 1e5]], "log"),
    ],
)
def test_curve_draws_whatever_a_loss_can_be(losses: list, scale: str):
    svg = loss_chart([0, 10, 20], losses, uid="u")
    assert f"loss ({scale} scale)" in svg
    assert "nan" not in svg.replace("<title", "")
    assert svg.count('class="tick"') >= 4
    assert svg.count("<path") == len(losses)


def test_curve_marks_the_lowest_loss_and_stays_small():
    steps = list(range(20_000))
    lines = [[1.0 + r + 1 / (s + 1) for s in steps] for r in (3, 0, 5)]
    svg = loss_chart(steps, lines, uid="u")
    assert "The chosen restart, number 2," in svg
    assert svg.count('class="chosen"') == 2  # the line itself and its key
    assert len(svg) < 40_000


def test_bars_say_not_measured():
    rows = [Bar("Attack", math.inf, "∞ dB"), Bar("Null run", None, number(None))]
    svg = bar_chart([Panel("PSNR", 30.0, rows)], uid="b", title="t")
    assert "not measured" in svg
    assert "∞ dB" in svg
    assert svg.count("<rect") == 1


def test_a_curve_is_where_its_numbers_are():
    svg = line_chart(
        [0, 10], [Line("a", "line-main", [0.0, 1.0], [0.0, 0.5], [0.5, 1.0])], uid="c", title="t", across="x", up="y",
        levels=(Level(0.5, "half"),), event=Event(5, "here"), y=between(0.0, 1.0),
    )  # fmt: skip
    line = re.search(r'<path d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)" class="line-main"/>', svg)
    assert line
    left, bottom, right, top = map(float, line.groups())
    level = re.search(r'<line x1="[\d.]+" y1="([\d.]+)" x2="[\d.]+" y2="[\d.]+" class="level"/>', svg)
    event = re.search(r'<line x1="([\d.]+)" y1="[\d.]+" x2="[\d.]+" y2="[\d.]+" class="event"/>', svg)
    assert level
    assert event
    assert float(level[1]) == pytest.approx((top + bottom) / 2)
    assert float(event[1]) == pytest.approx((left + right) / 2)
    assert f"M{left:.1f} {(top + bottom) / 2:.1f}L{right:.1f} {top:.1f}L{right:.1f} {(top + bottom) / 2:.1f}" in svg
    assert "<desc" in svg
    assert "here, marked." in svg


def test_a_huge_early_interval_does_not_flatten_the_curve():
    steps, values = [1, 2, 3], [0.0, 1.0, 0.5]
    wild = Line("a", "line-main", values, [-500.0, 0.9, 0.4], [500.0, 1.1, 0.6])
    svg = line_chart(steps, [wild], uid="c", title="t", across="x", up="y")
    ticks = [float(v.replace("−", "-")) for v in re.findall(r'text-anchor="end" class="tick">([−\d.]+)<', svg)]
    assert max(ticks) <= 1.6
    assert min(ticks) >= -0.6


def test_the_axis_of_a_curve_begins_at_zero_or_below():
    svg = line_chart([1, 2], [Line("a", "line-main", [5.0, 6.0])], uid="c", title="t", across="x", up="y")
    assert 'class="tick">0</text>' in svg.split('class="axis"')[0]


def test_layers_darken_with_their_value_and_bars_show_now_and_highest():
    layers = [("a", [0.5, 1.0]), ("b", [None, -0.2])]
    svg = layer_map([10, 20], layers, uid="m")
    cells = re.findall(r'class="cell" fill-opacity="([\d.]+)"', svg)[:3]
    assert cells == ["0.50", "1.00", "0.00"]
    bars = layer_chart([("a", [1.0, 0.25]), ("b", [-0.5, -0.2])], uid="l")
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="15"', bars)]
    assert widths[1] == pytest.approx(widths[0] / 4, abs=0.1)
    assert widths[2:] == [0.0, 0.0]
    assert "b −0.200 (highest −0.200)" in bars


def test_of_many_layers_the_loudest_are_drawn_and_the_rest_is_counted():
    layers = [(f"layer{i}", [float(i)]) for i in range(20)]
    svg = layer_chart(layers, uid="l")
    assert "layer19" in svg
    assert "layer3<" not in svg
    assert "4 layers with lower values are not drawn." in svg
    assert svg.index("layer4<") < svg.index("layer19<")
