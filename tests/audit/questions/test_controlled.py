"""Controlled starts: the same image and noise for every model, and smoothing is not credited to the gradient."""

from __future__ import annotations

import pytest

from leakgauge.audit import embedded, run_all
from leakgauge.audit.questions.updates import PROBABILITIES, Row, as_markdown, controlled_cases, controlled_table
from leakgauge.errors import BadInput


def test_the_cases(quick):
    cases = controlled_cases(["cnn", "vit"], base=quick(attack="feasibility", first=2))
    assert len(cases) == 2 * 11
    assert PROBABILITIES == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    assert {c.model for c in cases} == {"cnn", "vit"}
    assert {c.first for c in cases} == {2}
    assert [repr(c.build_reveal()[2]) for c in cases[:2]] == ["NoisyCopy(p=0.0)", "NoisyCopy(p=0.1)"]
    assert len({c.key() for c in cases}) == 22
    with pytest.raises(BadInput, match="does not start at a revealed copy"):
        controlled_cases(["cnn"], base=quick(attack="dlg"))


def test_the_table_of_a_run(quick, load, tmp_path):
    cases = controlled_cases(
        ["a", "b"], probabilities=(0.0, 0.5, 1.0), base=quick(attack="feasibility", options={"steps": 2, "lr": 1e-6})
    )
    rows = controlled_table(run_all(cases, load=load, folder=tmp_path))
    assert [(r.model, r.p) for r in rows] == [(m, p) for m in "ab" for p in (0.0, 0.5, 1.0)]
    for model in "ab":
        starts = [r.start for r in rows if r.model == model]
        assert starts[0] == pytest.approx(1)  # nothing replaced
        assert starts[0] > starts[1] > starts[2]
    assert rows[0].start == rows[3].start  # the same image and noise for both
    for row in rows:  # with steps of a millionth nothing moves: the null run ends where the attack ends
        assert row.null == pytest.approx(row.start, abs=1e-3)
        assert row.gained == pytest.approx(0, abs=1e-3)


def test_the_share_of_noise_may_be_written_with_its_name(quick, load, tmp_path):
    case = quick(attack="feasibility", reveal=("size", "labels", "noisy_copy:p=0.25"))
    assert [row.p for row in controlled_table(run_all([case], load=load, folder=tmp_path))] == [0.25]


def test_errors_have_no_row(quick, load, tmp_path):
    def breaks(case):
        raise RuntimeError("lost")

    base = quick(attack="feasibility")
    assert controlled_table(run_all([base], load=load, folder=tmp_path)) == []
    broken = run_all(controlled_cases(["a"], probabilities=[0.5], base=base), load=breaks, folder=tmp_path)
    assert broken[0].status == "error"
    assert controlled_table(broken) == []


def test_the_page():
    rows = [Row("cnn", 0.5, 0.1, 0.2, 0.9), Row("cnn", 0.0, 1.0, 0.8, 0.95), Row("vit", 0.5, 0.1, 0.2, 0.3)]
    assert as_markdown(rows).splitlines() == [
        "| model | SSIM of | 0 | 0.5 |",
        "|---|---|---|---|",
        "| cnn | start | 1.00 | 0.10 |",
        "| cnn | null | 0.80 | 0.20 |",
        "| cnn | attack | 0.95 | 0.90 |",
        "| vit | start |  | 0.10 |",
        "| vit | null |  | 0.20 |",
        "| vit | attack |  | 0.30 |",
    ]


def test_the_gradient_gains_on_smoothing_on_the_embedded_cnn(quick, tmp_path):
    base = quick(attack="feasibility", data="fashion", options={"steps": 80, "statistics": 0.0})
    (row,) = controlled_table(
        run_all(controlled_cases(["cnn"], probabilities=[0.5], base=base), load=embedded, folder=tmp_path)
    )
    assert row.attack > row.start + 0.1
    assert row.gained > 0.1
