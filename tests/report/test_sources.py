"""The appendix: records as JSON, whole where they are short, bounded and saying so where they are long."""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import replace

import pytest

from leakgauge.audit.findings import training_of
from leakgauge.errors import BadInput
from leakgauge.report import sources
from leakgauge.report.sections.training import quoted


def read_back(text: str) -> object:
    return json.loads(html.unescape(re.sub(r"</?(b|span)[^>]*>", "", text)))


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1, "b": [], "c": {}, "d": None, "e": True, "f": "<&\"'"},
        {"long": {"key " * 30: "value " * 30, "é": [{"deep": ["x" * 200, [1, 2]]}]}},
        [[1.5, None, "inf"], [2, 3, "-inf"]],
        list(range(60)),
        {"1": [[0.1] * 30] * 3, "names": ["a" * 90, "b" * 90]},
    ],
)
def test_pretty_is_the_same_json(value):
    text = str(sources.pretty(value))
    assert read_back(text) == value
    assert "<" not in re.sub(r"</?(b|span)[^>]*>", "", text)


def test_long_lists_of_numbers_are_marked_with_their_count_for_paper():
    assert "data-count" not in str(sources.pretty([1] * 24))
    assert 'data-count="25"' in str(sources.pretty([1] * 25))
    assert 'data-count="60"' in str(sources.pretty([[1, 2, 3]] * 20))


def test_what_the_page_leaves_out_is_said():
    found = read_back(str(sources.pretty({"losses": [[0.5] * 10_000, [1.0]]})))
    assert found == {"losses": [[0.5] * sources.MOST_ENTRIES + ["… 9500 more are in the run folder"], [1.0]]}


def test_of_a_long_training_the_quoted_reports_are_kept_and_the_rest_is_counted(monitored):
    run = monitored(reports=200)
    looks = quoted(run.reports, training_of(run))
    steps = [look["step"] for look in looks]
    assert len(looks) <= 25
    assert steps == sorted(set(steps))
    assert {50, 5000} <= set(steps)  # the peak of the critic, and the last
    group = sources.of_training(run, looks)
    assert group.left_out == f"{200 - len(looks)} of 200 reports are not repeated here"
    assert [s.anchor for s in group.sources] == ["record-training", *(f"record-training-{step}" for step in steps)]
    assert {s.command for s in group.sources} == {"leakgauge monitor train.py"}
    assert sources.of_training(replace(run, reports=()), quoted((), None)).left_out == ""


def test_what_is_not_a_number_is_refused(one):
    with pytest.raises(BadInput, match="'k' holds a value that is not a number"):
        sources.of_cases([replace(one, seconds=math.nan)])
