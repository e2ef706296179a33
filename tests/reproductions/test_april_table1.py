"""Table 1 of the APRIL paper, in pieces: it goes on where it stopped, the pieces do not matter, and no piece begins too late."""

import json
import math
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parents[2] / "reproductions" / "april"
HELPERS = ("table1", "pieces", "study", "width", "drawing", "training")


@pytest.fixture
def run(monkeypatch):
    """Runs a script with --quick; the modules it imports by plain names must not stay behind for other tests."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def go(name: str, out: Path, *more: str) -> dict:
        monkeypatch.setattr(sys, "argv", [name, "--quick", "--device", "cpu", "--out", str(out), *more])
        return runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")

    yield go
    for name in HELPERS:
        sys.modules.pop(name, None)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


ONE_CELL = ("--datasets", "mnist", "--attacks", "april", "--images", "3")


def test_it_goes_on_where_it_stopped(tmp_path, run, capsys):
    run("table1", tmp_path, "--datasets", "mnist", "--attacks", "april")
    capsys.readouterr()
    module = run("table1", tmp_path, "--datasets", "mnist", "--attacks", "april,ig")
    assert capsys.readouterr().out.count("'attack': 'ig'") == 1
    facts, *rows = lines(tmp_path / "table1.jsonl")
    assert not facts["complete"]
    assert [row["attack"] for row in rows] == ["april", "ig"]
    found = [row[key] for row in rows for key in ("mse", "mse_sd", "ssim", "ssim_sd", "label_accuracy", "seconds")]
    assert all(math.isfinite(number) for number in found)
    assert "cifar10 april" in module["table"](rows)
    with np.load(tmp_path / "table1.npz") as kept:
        assert {name: kept[name].shape[0] for name in kept.files} == dict.fromkeys(kept.files, 2)
        assert set(kept.files) == {"mnist_truth", "mnist_april", "mnist_ig"}


@pytest.mark.parametrize("attack", ["april", "ig", "tag"])
def test_the_pieces_do_not_matter(attack, tmp_path, run):
    """An image's start depends on the seed alone, not on its company."""
    rows = {}
    for size in (1, 2, 3):
        out = tmp_path / str(size)
        run("table1", out, "--datasets", "mnist", "--attacks", attack, "--images", "3", "--piece", str(size))
        rows[size] = lines(out / "table1.jsonl")[1]
    assert [rows[size]["pieces"] for size in (1, 2, 3)] == [3, 2, 1]
    for size in (1, 2):
        for key in ("each_mse", "each_ssim", "mse", "mse_sd"):
            assert rows[size][key] == pytest.approx(rows[3][key], rel=1e-3, abs=1e-4), key
        assert rows[size]["label_accuracy"] == rows[3]["label_accuracy"]


def test_only_the_missing_piece_is_run_and_only_if_there_is_time(tmp_path, run, capsys):
    run("table1", tmp_path, *ONE_CELL, "--piece", "1")
    whole = lines(tmp_path / "table1.jsonl")[1]
    (tmp_path / "table1.jsonl").unlink()
    path = tmp_path / "table1_pieces.jsonl"
    kept = path.read_text("utf-8").splitlines(keepends=True)
    slow = [json.dumps(json.loads(line) | {"seconds": 1000.0}) + "\n" for line in kept]
    path.write_text("".join([*slow[:2], slow[3], slow[2][:40]]), "utf-8")  # the second piece was cut off by a kill
    capsys.readouterr()
    run("table1", tmp_path, *ONE_CELL, "--within", "600")
    assert "mnist april: no time for a piece" in capsys.readouterr().out
    assert not (tmp_path / "table1.jsonl").exists()
    path.write_text("".join([*kept[:2], kept[3]]), "utf-8")
    run("table1", tmp_path, *ONE_CELL, "--within", "600")
    assert [row.get("first") for row in lines(path)] == [None, 0, 2, 1]
    again = lines(tmp_path / "table1.jsonl")[1]
    assert again["each_mse"] == pytest.approx(whole["each_mse"], rel=1e-3)


def test_without_any_time_nothing_is_begun(tmp_path, run, capsys):
    run("table1", tmp_path, *ONE_CELL, "--within", "0")
    assert "no time for a tuning" in capsys.readouterr().out
    assert not (tmp_path / "table1_pieces.jsonl").exists()


def test_runs_of_other_seeds_are_not_mixed(tmp_path, run):
    run("table1", tmp_path, *ONE_CELL)
    with pytest.raises(SystemExit, match="another seed"):
        run("table1", tmp_path, *ONE_CELL, "--seed", "1")


def test_how_long_a_piece_may_take(run):
    from pieces import MARGIN, Clock, longest

    assert longest([], 10) == 0
    rows = [{"seconds": 100.0, "amount": 10}, {"seconds": 30.0, "amount": 5}]
    assert longest(rows, 20) == MARGIN * 200
    assert Clock().allows(1e9)
    assert Clock.within(60).allows(50)
    assert not Clock.within(60).allows(70)


def test_imagenet_comes_with_channels_first_or_last(tmp_path, run):
    import study
    import table1

    x = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    for name, given in (("last", x), ("first", x.transpose(0, 3, 1, 2))):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "imagenet.npz", x=given, y=np.arange(5))
    options = {n: study.Options(True, torch.device("cpu"), 0, tmp_path / n, tmp_path, None) for n in ("first", "last")}
    first, last = (table1.photographs_224(options[n], 4) for n in ("first", "last"))
    assert first.shape == (3, 8, 8)
    assert len(first.x) == 4
    assert torch.equal(first.x, last.x)
    assert torch.equal((first.x[2, 1] * 255).round(), torch.from_numpy(x[2, :, :, 1]).float())


def test_the_trained_network_is_trained_once(tmp_path, run, monkeypatch):
    run("table1", tmp_path, "--datasets", "cifar10_trained", "--attacks", "april")
    import study
    import table1

    monkeypatch.setattr(table1, "trained", lambda *_, **__: pytest.fail("trained again"))
    images = study.Images("zeros", torch.zeros(1, 3, 32, 32), torch.zeros(1).long())
    options = study.Options(True, torch.device("cpu"), 0, None, tmp_path, None)
    model = study.small_model(images, architecture="B", quick=True, seed=0)
    before = model.head.weight.clone()
    assert 0 <= table1.kept_training(model, options, epochs=1) <= 1
    assert not torch.equal(model.head.weight, before)


def test_the_study_of_widths_goes_on(tmp_path, run, capsys):
    run("width", tmp_path)
    facts, *rows = lines(tmp_path / "width.jsonl")
    left = [json.dumps(facts | {"complete": False}), *map(json.dumps, rows[:-1])]
    (tmp_path / "width.jsonl").write_text("\n".join(left) + "\n", "utf-8")
    capsys.readouterr()
    module = run("width", tmp_path)
    assert capsys.readouterr().out.count('"part"') == 1
    after, *again = lines(tmp_path / "width.jsonl")
    assert after["complete"]
    assert after["seconds"] > facts["seconds"]
    assert again == rows
    assert "not yet" in module["table"](rows[:-1])
