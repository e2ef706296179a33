"""Records of trials of defenses: read back as written, resumable, and the front against every pair."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.audit.questions import defense_records as store
from leakgauge.audit.questions.defense_records import DefenseRecord, front, worth_having
from leakgauge.audit.verdict import Way
from leakgauge.errors import BadInput
from tests.made import rate, scores, tried, verdict


def record(key: str = "a", *, ssim: float | None = 0.5, cost: float | None = 0.1, **changes) -> DefenseRecord:
    price = None if cost is None else {"value": cost, "low": 0.0, "high": 1.0}
    known = {
        "key": key,
        "scores": None if ssim is None else scores(ssim, math.inf),
        "accuracy": {"cost": price, "unknown": ""},
        "leakage": {
            "auc": rate(0.75),
            "tpr": rate(0.5),
            "candidates": 64,
            "batch": 1,
            "releases": 9,
            "notes": ["n"],
            "unknown": "",
        },
        "notes": ("x",),
    }
    return tried("prune:0.9", changes.pop("outcome", None), **{**known, **changes})


def test_everything_is_read_back(tmp_path):
    first, second = record(), record("b", status="refused", ssim=None, cost=None, leakage={}, defenses=())
    store.append(tmp_path, first)
    store.append(tmp_path, second)
    assert store.read(tmp_path) == [first, second]
    assert (first.name, first.ssim, first.auc, first.cost) == ("prune:0.9", 0.5, 0.75, 0.1)
    assert (second.name, second.ssim, second.auc, second.cost) == ("none", None, None, None)
    assert record(defenses=("clip:1.0", "prune:0.5")).name == "clip:1.0 + prune:0.5"


def test_half_a_line_never_counts_and_the_later_of_two_does(tmp_path):
    store.append(tmp_path, record())
    with (tmp_path / store.FILE).open("ab") as file:
        file.write(b'{"key": "b", "sta')
    assert [r.key for r in store.read(tmp_path)] == ["a"]
    store.append(tmp_path, record("b"))
    store.append(tmp_path, record("a", ssim=0.25))
    assert [(r.key, r.ssim) for r in store.read(tmp_path)] == [("a", 0.25), ("b", 0.5)]


def test_lines_are_put_into_order(tmp_path):
    for key in ("c", "x", "a", "b"):
        store.append(tmp_path, record(key))
    store.sort(tmp_path, ["a", "b", "c"])
    assert [r.key for r in store.read(tmp_path)] == ["a", "b", "c", "x"]
    store.sort(tmp_path / "nowhere", ["a"])


def test_damage_is_named(tmp_path):
    with pytest.raises(BadInput, match="holds no trials"):
        store.read(tmp_path)
    for line in ("{\n", '{"key": "a"}\n', "[]\n"):
        (tmp_path / store.FILE).write_text(line)
        with pytest.raises(BadInput, match="line 1 of"):
            store.read(tmp_path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.append(tmp_path, record(ssim=math.nan))


few = st.sampled_from([-0.5, 0.0, 0.25, 0.5, 1.0, math.inf, math.nan])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(few, few), max_size=9))
def test_the_front_is_what_no_point_beats(points):
    def beats(a, b):
        return a[0] <= b[0] and a[1] <= b[1] and a != b

    known = [p for p in points if not any(map(math.isnan, p))]
    expected = tuple(i for i, p in enumerate(points) if p in known and not any(beats(other, p) for other in known))
    assert front(points) == expected


def test_what_is_worth_having_needs_both_measurements():
    records = [
        record("none", ssim=0.9, cost=0.0),
        record("good", ssim=0.2, cost=0.05),
        record("worse", ssim=0.3, cost=0.06),
        record("no attack", ssim=None, cost=0.0),
        record("no accuracy", ssim=0.0, cost=None),
    ]
    assert worth_having(records) == ("none", "good")
    failing = record("none", ssim=0.1, cost=0.0, defenses=(), outcome="infeasible_within_budget")
    assert worth_having([failing, *records[1:]]) == ()


def test_where_the_attack_sees_the_layout_alone_that_is_what_a_defense_must_hide():
    def seen(key, layout, ssim, cost, **more):
        return record(key, cost=cost, **{"scores": scores(ssim, layout=layout), **more})

    by_layout = verdict("partial", glimpsed={Way.LAYOUT: 1})
    plain = seen("none", 0.8, 0.05, 0.0, defenses=(), verdict=by_layout)
    hides, blurs = seen("hides", 0.1, 0.3, 0.02), seen("blurs", 0.7, 0.01, 0.02)
    assert worth_having([plain, hides, blurs]) == ("none", "hides")
    assert worth_having([replace(plain, verdict=verdict("partial")), hides, blurs]) == ("none", "blurs")
