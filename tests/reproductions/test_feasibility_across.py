"""One vulnerable image on every model, with the adversary's settings and the oracle's side by side."""

import pytest

from leakgauge.audit import Case, embedded
from reproductions.practical_feasibility.across import as_markdown, tune_across, vulnerable_image

pytest.importorskip("optuna")


def test_one_image_across_models_with_both_choices_side_by_side(tmp_path):
    base = Case(attack="feasibility", options={"steps": 2}, reveal=("size", "labels"))
    search = {"images": (0, 4), "load": embedded, "folder": tmp_path, "trials": 2}
    rows = tune_across(["cnn", "vit"], reference=base, **search)
    first = vulnerable_image(base, **search)
    assert [row.model for row in rows] == ["cnn", "vit"]
    for row in rows:
        assert row.attacker.best.first == row.oracle.best.first == first
        assert not row.attacker.oracle
        assert row.oracle.oracle
    lines = as_markdown(rows).splitlines()
    assert "oracle (upper bound): SSIM" in lines[0]
    assert lines[2].startswith(f"| cnn | {first} | 2 + 2 |")
