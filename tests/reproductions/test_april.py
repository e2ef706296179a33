"""The APRIL study: its page follows from its rows, and every study runs with --quick."""

import json
import math
import runpy
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from leakgauge.attacks.april import PositionEmbedding
from leakgauge.inversion import L2, Cosine, Steady
from reproductions.april import architecture_a, claims, positions, study, table1, table1_settings, training
from reproductions.common.runner import Rows, measured_on, read
from reproductions.common.verdicts import Word

FOLDER = Path(study.__file__).parent
CPU = torch.device("cpu")
STUDIES = (
    "architecture_a", "batches", "closed_form_batches", "noise", "positions", "progress", "table1", "why_batches", "width",
    "without_encoder", *(pytest.param(name, marks=pytest.mark.slow) for name in ("edges", "why", "why_table1")),
)  # fmt: skip


def test_a_quick_run_enters_no_claim(tmp_path):
    (tmp_path / "width.jsonl").write_text(json.dumps({"unit": "a", "quick": True}) + "\n")
    with pytest.raises(AssertionError, match="quick run"):
        claims.rows_of(tmp_path, "width")


def run_study(name: str, out: Path, monkeypatch, *more: str) -> dict:
    monkeypatch.setattr(sys, "argv", [name, "--quick", "--device", "cpu", "--out", str(out), *more])
    return runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


def numbers(value) -> list[float]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return []
    if isinstance(value, dict):
        return numbers(list(value.values()))
    if isinstance(value, list | tuple):
        return [n for part in value for n in numbers(part)]
    return [float(value)]


@pytest.mark.parametrize("name", STUDIES)
def test_a_quick_study_gives_sensible_rows_and_a_figure(name, tmp_path, monkeypatch):
    run_study(name, tmp_path, monkeypatch)
    rows = read(tmp_path / f"{name}.jsonl")
    assert "Stopped" not in measured_on(tmp_path / f"{name}.jsonl")
    assert len(rows) >= 2
    for row in rows:
        assert all(math.isfinite(n) for value in row.values() for n in numbers(value)), row
        assert row.get("ssim") is None or -1 <= row["ssim"] <= 1
    if name == "noise":
        assert all((row["ssim"] > 0.999) == (row["factor"] == 0) for row in rows)
    if name == "edges":  # the table says it all
        return
    assert ET.parse(tmp_path / f"{name}.svg").findall(".//{http://www.w3.org/2000/svg}polyline")
    for picture in tmp_path.glob(f"{name}*.png"):
        assert min(Image.open(picture).size) > 100


@pytest.mark.slow
def test_a_table_that_was_stopped_resumes_with_the_missing_images(tmp_path, monkeypatch):
    run_study("table1", tmp_path, monkeypatch, "--images", "3")
    whole = read(tmp_path / "table1.jsonl")
    assert [row["images"] for row in whole] == [3] * 8
    cut = [{**row} for row in whole[:-1]]
    for key in ("which", "each_mse", "each_ssim", "each_right"):  # as if the time had been out after the first image
        cut[0][key] = (cut[0][key] or [])[:1]
    cut[0]["images"] = 1
    (tmp_path / "table1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in cut), "utf-8")
    run_study("table1", tmp_path, monkeypatch, "--images", "3")
    again = read(tmp_path / "table1.jsonl")
    for one, other in zip(*(sorted(rows, key=lambda row: row["unit"]) for rows in (whole, again)), strict=True):
        assert one["which"] == other["which"]
        assert one["each_mse"] == pytest.approx(other["each_mse"], rel=1e-2)


def test_a_search_from_near_the_truth_stays_near_it(tmp_path, monkeypatch):
    run_study("near_truth", tmp_path, monkeypatch)
    rows = read(tmp_path / "near_truth.jsonl")
    assert [row["architecture"] for row in rows] == ["B", "B", "A", "A"]
    assert min(row["ssim"] for row in rows) > 0.5  # from noise it is near 0 after so few steps


def test_without_time_nothing_is_begun(tmp_path, monkeypatch, capsys):
    run_study("width", tmp_path, monkeypatch, "--within", "-1")
    assert "Stopped before its end" in measured_on(tmp_path / "width.jsonl")
    assert "no time for architecture B" in capsys.readouterr().out


def test_attacks_are_compared_on_the_images_that_all_have():
    rows = [{"images": 3, "each_mse": [1.0, 2.0, 3.0]}, {"images": 2, "which": [2, 0], "each_mse": [5.0, 4.0]}]
    assert table1.common(rows) == [0, 2]
    assert [table1.chosen(row, "each_mse", [0, 2]).tolist() for row in rows] == [[1.0, 3.0], [4.0, 5.0]]


def test_errors_are_compared_image_by_image_and_in_both_units():
    row = {"images": 3, "which": [2, 0, 1], "each_mse": [3.0, 1.0, 2.0]}
    assert table1.errors_of(row).tolist() == [1.0, 2.0, 3.0]
    assert table1.closer(torch.tensor([1.0, 2.0, 9.0, 9.0]), torch.tensor([1.0, 3.0, 1.0])) == "1 of 3, 1 ties"
    # the means of Table 1 against the paper's, if its images are standardised
    assert table1.standardised("mnist", torch.tensor([4.34e-3])) == pytest.approx(0.0457, abs=1e-4)


def test_a_weight_of_its_own_for_each_image_is_the_same_in_one_batch():
    options = study.Options(quick=True, device=CPU, out=Path(), images=2)
    kind = table1.DATA_SETS["cifar10"]
    images, _ = table1.split(kind, options)
    victim, _ = table1.attacked(kind, images, options)
    seen = study.observed(victim, images)
    attack = table1_settings.Cell("april", 2, 0.3, Steady(), "‖g‖²").matching(4)
    for one, found in zip(seen, attack.many(victim, seen), strict=True):
        square = sum(float(value.double().square().sum()) for value in one.signal.values())
        alone = replace(attack, objective=L2() + square * Cosine(weights=PositionEmbedding()))(victim, one)
        assert found.loss == pytest.approx(alone.loss, rel=1e-4)
        torch.testing.assert_close(found.x, alone.x, atol=1e-3, rtol=0)


def test_one_data_set_done_does_not_end_the_other(tmp_path, monkeypatch, capsys):
    """Lanes measure the data sets side by side; whoever ends first must not say that all is there."""
    monkeypatch.setattr(table1_settings, "ALPHAS", (1.0,))
    options = study.Options(quick=True, device=CPU, out=tmp_path, images=1)
    rows = Rows.resume(options, "part")
    rows.add("cifar10 dlg, rate 0.3", data_set="cifar10")
    table1_settings.run(options, rows, sets=("mnist",))
    assert rows.waiting == ["cifar10 idlg, rate 0.3, cifar10 april, rate 0.3, α = 1.0"]


@pytest.mark.parametrize(("study_of", "rows"), [(architecture_a, "architecture_a"), (positions, "positions")])
def test_a_figure_whose_pictures_are_not_here_stays_as_it_is(study_of, rows, tmp_path):
    shown = {"CIFAR-10/original": np.zeros((2, 3, 8, 8), np.uint8)}
    study_of.draw(read(study.RESULTS / f"{rows}.jsonl"), shown, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{rows}.svg"]


def test_the_papers_model_and_counts():
    """Table 2 of the paper, and its 6,533,002 parameters without one encoder's attention."""
    images = study.Images("zeros", torch.zeros(1, 1, 28, 28), torch.zeros(1).long())
    sizes = {n: p.numel() for n, p in study.small_model(images, architecture="B", quick=False).named_parameters()}
    assert sum(sizes.values()) == 7_123_210
    assert sum(v for n, v in sizes.items() if n != "pos_embed") == 7_116_682
    assert sum(v for n, v in sizes.items() if not n.startswith("blocks.2.attn.")) == 6_533_002


def test_training_learns_and_leaves_frozen_parameters_alone():
    """Two models in one go on an easy task: dark against bright images."""
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(1000) % 2
    x = 0.2 * torch.rand(1000, 1, 8, 8, generator=rng) + 0.5 * y[:, None, None, None]
    images = study.Images("bright or dark", x, y)
    models = [study.small_model(images, architecture="B", quick=True, width=16, seed=s, classes=2) for s in range(2)]
    reached = training.accuracies(models, (x, y), (x, y), frozen=[(), ("pos_embed",)], epochs=10, device=CPU, lr=1e-2)
    assert min(reached) > 0.95
    flags = training._moving(torch.ones(2, 3, 4), "pos_embed", [(), ("pos_embed",)])
    assert flags.flatten().tolist() == [1.0, 0.0]


def words(folder):
    return {(claim.where, claim.paper): claim.word for claim in claims.claims(folder)}


def test_a_failing_gate_removes_reproduces_and_a_failing_control_decides_nothing(faulty):
    before = words(study.RESULTS)
    cost = next(key for key in before if "cost accuracy" in key[1])
    assert before[cost] is Word.REPRODUCES
    folder = faulty(study.RESULTS, "width", lambda row: {"each": [0.59, 0.1]} if row.get("width") == 24 else {})
    assert words(folder)[cost] is Word.NOT_TESTED
    folder = faulty(folder, "without_encoder", lambda row: {"ssim": 0.3} if row.get("case") == "everything" else {})
    after = words(folder)
    for key in after:
        if key[0] == "Fig. 9" or "values of the positions public" in key[1]:
            assert (before[key], after[key]) == (Word.UNDECIDED, Word.NOT_REACHED)
