"""Settings beyond those of Table 1, pictures of a batch that are told apart, and runs that are told to stop."""

import json
import os
import runpy
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parents[2] / "reproductions" / "april"


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_every_attack_is_tried_beyond_and_what_is_there_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["edges", "--quick", "--device", "cpu", "--out", str(tmp_path)])
    module = runpy.run_path(str(FOLDER / "edges.py"), run_name="__main__")
    facts, *rows = lines(tmp_path / "edges.jsonl")
    assert facts["complete"]
    cells = {(row["part"], row["data_set"], row["attack"]) for row in rows}
    assert cells == {
        (part, data, attack)
        for part in ("setting", "whole")
        for data in ("mnist", "cifar10")
        for attack in ("dlg", "ig", "tag", "april")
    }
    tried = [row for row in rows if row["part"] == "setting"]
    assert all(len(row["settings"]) == len(row["each_mse"]) == len(module["BEYOND"][row["attack"]]) for row in tried)
    assert all(np.isfinite(row["each_mse"]).all() for row in tried)
    capsys.readouterr()
    runpy.run_path(str(FOLDER / "edges.py"), run_name="__main__")
    assert '"part"' not in capsys.readouterr().out


def test_no_setting_is_tried_twice_and_each_has_a_name_of_its_own():
    from reproductions.april import cells, edges

    for attack, settings in cells.SETTINGS.items():
        every = [*settings, *edges.BEYOND[attack]]
        assert len({edges.told(one, attack) for one in every}) == len(every)


def test_the_table_names_the_best_of_all_settings(monkeypatch):
    from reproductions.april import edges

    monkeypatch.setattr(edges, "inner", lambda: {("mnist", "ig"): {"total variation 0.1": 0.5}})
    monkeypatch.setattr(edges, "of_table", lambda: {("mnist", "ig"): {"images": 3, "each_mse": [0.5, 0.7, 9.0]}})
    row = {"part": "setting", "data_set": "mnist", "attack": "ig", "of": "MNIST", "images": 8, "steps": 200}
    better = row | {"settings": ["total variation 1", "total variation 0"], "each_mse": [0.6, 0.4]}
    assert edges.table([better]).splitlines()[2].endswith("| total variation 0 (beyond) |")
    worse = row | {"settings": ["total variation 1"], "each_mse": [0.6]}
    assert edges.table([worse]).splitlines()[2].endswith("| total variation 0.1 |")
    whole = row | {"part": "whole", "setting": "total variation 0", "images": 2, "mse": 0.25, "ssim": 0.5}
    assert edges.table([whole]).splitlines()[-1].endswith("| 2, 200 | 0.6 | 0.25 | 0.500 |")


def test_pictures_are_told_apart_by_likeness_and_noise_is_not():
    from reproductions.april import batches

    rng = np.random.default_rng(0)
    originals = rng.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    grain = rng.normal(0, 120, originals.shape)
    shuffled = np.clip(originals[::-1] + grain, 0, 255).astype(np.uint8)
    pictures = {"M 6 original": originals, "M 6 found": shuffled}
    found = batches.told_apart(pictures, "M", 6)
    assert found["each_rank"] == [1] * 6
    assert set(found["noise_rank"]) != {1}
    assert batches.first(found, "each_rank") == "6 of 6"
    assert batches.first({}, "each_rank") == "–"


@pytest.mark.parametrize(("ranks", "holds"), [([1] * 4, True), ([1, 1, 2, 1], False), (None, False)])
def test_a_batch_is_recognisable_where_every_picture_is_told_apart(ranks, holds):
    from reproductions.april import claims

    same = {"model": "ViT-Base", "rule": "less the chances on noise", "steps": 5000, "ssim": 0.1, "labels_read": 1.0}
    rows = [same | {"relative_loss": 1e-3, "batch": size} | ({"each_rank": ranks} if ranks else {}) for size in (4, 24)]
    assert claims.batches(rows)[0].holds == holds


def test_a_run_that_is_told_twice_to_stop_keeps_what_it_found(tmp_path, monkeypatch):
    """As ``timeout`` does where it is itself told to stop: its own signal, and the one of the group."""
    from reproductions.april import study

    def stopped(options, results):
        results.add(value=1.5)
        os.kill(os.getpid(), signal.SIGTERM)

    write = study.write

    def told_again(path, rows):
        os.kill(os.getpid(), signal.SIGTERM)
        write(path, rows)

    monkeypatch.setattr(study, "write", told_again)
    options = study.Options(True, torch.device("cpu"), 0, None, tmp_path, None)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit, match="stopped before the end"):
            study.recorded("told", stopped, options)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert lines(tmp_path / "told.jsonl")[1:] == [{"value": 1.5}]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            ["setting", "whole"],
            "all steps: TAG 2.0e-01 < APRIL 3.0e-01 < Inverting Gradients 4.0e-01 < DLG 5.0e-01 (2 images",
        ),
        (["setting"], "less error in a shorter run: Inverting Gradients 5 times"),
        ([], ""),
    ],
)
def test_a_claim_tells_what_other_settings_change(parts, words, tmp_path, monkeypatch):
    """Whole runs count where they are better than the table's on the same images, as for Inverting Gradients here but not for APRIL."""
    from reproductions.april import edges, study

    monkeypatch.setattr(edges.study, "RESULTS", tmp_path)
    table = {"dlg": 0.5, "ig": 0.9, "tag": 0.2, "april": 0.3}
    cells = {("mnist", name): {"images": 3, "each_mse": [error, error, 9.0]} for name, error in table.items()}
    monkeypatch.setattr(edges, "of_table", lambda: cells)
    monkeypatch.setattr(edges, "inner", lambda: {("mnist", name): {"inside": 0.1} for name in table})
    tried = [{"attack": name, "each_mse": [0.02 if name == "ig" else 0.2, 0.3]} for name in table]
    whole = [{"attack": name, "images": 2, "mse": mse} for name, mse in (("ig", 0.4), ("april", 0.8))]
    every = [{"part": "setting"} | row for row in tried] + [{"part": "whole"} | row for row in whole]
    rows = [{"data_set": "mnist"} | row for row in every if row["part"] in parts]
    study.write(tmp_path / "edges.jsonl", [{"quick": False}, *rows])
    found = edges.in_words("mnist")
    assert (words in found) if words else found == ""
