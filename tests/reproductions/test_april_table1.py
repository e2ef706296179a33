"""Table 1 of the APRIL paper, in pieces: it goes on where it stopped, and attacks are compared on the same images."""

import io
import json
import math
import os
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

FOLDER = Path(__file__).parents[2] / "reproductions" / "april"


@pytest.fixture
def run(monkeypatch):
    """Runs a script with --quick."""

    def go(name: str, out: Path, *more: str, only_out: bool = False) -> dict:
        how = [] if only_out else ["--quick", "--device", "cpu"]
        monkeypatch.setattr(sys, "argv", [name, *how, "--out", str(out), *more])
        return runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")

    return go


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
    figures = run("table1_figures", tmp_path, only_out=True)
    assert "MNIST" in (tmp_path / "table1.svg").read_text("utf-8")
    assert not (tmp_path / "table1_mnist.png").exists()  # two attacks are missing
    pictures = dict.fromkeys(
        ["mnist_truth", *(f"mnist_{a}" for a in ("dlg", "ig", "tag", "april"))], np.zeros((3, 1, 8, 8), "uint8")
    )
    figures["draw"](rows, pictures, tmp_path)
    assert Image.open(tmp_path / "table1_mnist.png").height > 5 * 84
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


def test_only_the_missing_piece_is_run(tmp_path, run):
    run("table1", tmp_path, *ONE_CELL, "--piece", "1")
    whole = lines(tmp_path / "table1.jsonl")[1]
    (tmp_path / "table1.jsonl").unlink()
    path = tmp_path / "table1_pieces.jsonl"
    kept = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join([*kept[:3], kept[4], kept[3][:40]]), "utf-8")  # the second piece was cut off by a kill
    run("table1", tmp_path, *ONE_CELL)
    found = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.endswith("}")]
    assert [row.get("first") for row in found] == [None, None, 0, 2, 1]
    again = lines(tmp_path / "table1.jsonl")[1]
    assert again["each_mse"] == pytest.approx(whole["each_mse"], rel=1e-3)


def test_the_attacks_take_turns_the_one_with_the_fewest_images_first(tmp_path, run):
    """Also after a stop in the midst of a turn: what is behind comes first."""
    some = ("--datasets", "mnist", "--images", "3", "--piece", "1")
    run("table1", tmp_path, *some, "--attacks", "ig,april")
    path = tmp_path / "table1_pieces.jsonl"
    assert [(row["attack"], row["first"]) for row in lines(path) if "first" in row] == [
        ("ig", 0), ("april", 0), ("ig", 1), ("april", 1), ("ig", 2), ("april", 2),
    ]  # fmt: skip
    kept = [row for row in lines(path) if row.get("first", 0) < 1 or (row["attack"], row["first"]) == ("ig", 1)]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept), "utf-8")
    (tmp_path / "table1.jsonl").unlink()
    run("table1", tmp_path, *some, "--attacks", "ig,april")
    again = [(row["attack"], row["first"]) for row in lines(path) if "first" in row][3:]
    assert again == [("april", 1), ("ig", 2), ("april", 2)]


def test_the_row_is_written_if_only_that_is_missing(tmp_path, run):
    run("table1", tmp_path, *ONE_CELL)
    whole = lines(tmp_path / "table1.jsonl")
    (tmp_path / "table1.jsonl").unlink()
    run("table1", tmp_path, *ONE_CELL)
    assert lines(tmp_path / "table1.jsonl") == whole


def test_a_piece_that_is_stopped_goes_on_in_the_next_call(tmp_path, run, monkeypatch, capsys):
    run("table1", tmp_path / "whole", *ONE_CELL)
    from reproductions.april import pieces, resumable

    class Brief(pieces.Clock):
        """Time enough for everything but the second look at a running attack."""

        looks = 0

        def allows(self, seconds):
            Brief.looks += seconds == 0
            return seconds > 0 or Brief.looks % 2 == 1

    monkeypatch.setattr(pieces.Clock, "within", lambda _: Brief())
    monkeypatch.setattr(resumable, "LOOK", 4)
    out = tmp_path / "pieces"
    said = []
    for state in (True, False):
        run("table1", out, *ONE_CELL, "--within", "100")
        said.append(capsys.readouterr().out)
        assert bool(list(out.glob("*.pt"))) == state
        assert (out / "table1.jsonl").is_file() != state
    assert "table1_mnist_april_0: 8 of 12 steps, to go on later" in said[0]
    ours, theirs = (lines(folder / "table1.jsonl")[1] for folder in (out, tmp_path / "whole"))
    assert ours["each_mse"] == theirs["each_mse"]
    assert ours["seconds"] > 0


def test_a_piece_that_was_stopped_goes_on_with_its_own_number_of_images(tmp_path, run, capsys):
    """A state of two images is there, and three are asked for: two come first, then the third."""
    run("table1", tmp_path, *ONE_CELL, "--piece", "2", "--within", "0")
    torch.save({"key": None, "at": [torch.zeros(2, 1, 1, 28, 28)]}, tmp_path / "table1_mnist_april_0.0.pt")
    run("table1", tmp_path, *ONE_CELL)
    assert "belongs to another run" in capsys.readouterr().out
    rows = [row for row in lines(tmp_path / "table1_pieces.jsonl") if row["part"] == "piece"]
    assert [(row["first"], row["amount"]) for row in rows] == [(0, 2), (2, 1)]


def test_without_any_time_nothing_is_begun(tmp_path, run, capsys):
    run("table1", tmp_path, *ONE_CELL, "--within", "0")
    assert "mnist april: no time for a setting" in capsys.readouterr().out
    assert not (tmp_path / "table1_pieces.jsonl").exists()


def test_a_setting_begins_only_if_it_would_be_done_in_time(tmp_path, run, capsys):
    run("table1", tmp_path, "--datasets", "mnist", "--attacks", "dlg", "--images", "3")
    path = tmp_path / "table1_pieces.jsonl"
    slow = [json.loads(line) | {"seconds": 1000.0} for line in path.read_text("utf-8").splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in slow), "utf-8")
    capsys.readouterr()
    run("table1", tmp_path, *ONE_CELL, "--within", "600")
    assert "mnist april: no time for a setting" in capsys.readouterr().out


def made_up_row(attack: str, images: list[int], wanted: int = 6) -> dict:
    """A row whose values are the numbers of its images, times ten for APRIL."""
    values = [float(i * (10 if attack == "april" else 1)) for i in images]
    return {
        "data_set": "imagenet", "attack": attack, "images": len(images), "wanted": wanted, "of": "ImageNet", "model": "untrained",
        "label_accuracy": 1.0, "which": images, "each_mse": values, "each_ssim": values, "each_right": [i != 1 for i in images],
    }  # fmt: skip


def test_attacks_are_compared_on_the_images_that_all_have(run):
    from reproductions.april import table1

    rows = [made_up_row("april", [0, 1, 2, 3]), made_up_row("ig", [0, 1, 4, 5]), made_up_row("tag", [0, 1, 2, 3, 4, 5])]
    text = table1.table(rows).splitlines()
    assert [line.split(" | ")[2] for line in text[2:5]] == ["2 of 6"] * 3
    assert [line.split(" | ")[3] for line in text[2:5]] == ["ig", "tag", "april"]
    assert [line.split(" | ")[5] for line in text[2:5]] == [*["5.00e-01 ± 7.1e-01"] * 2, "5.00e+00 ± 7.1e+00"]
    assert [line.split(" | ")[-1] for line in text[2:5]] == ["50% |"] * 3
    assert "imagenet dlg" in text[-1]
    assert "With all its images: imagenet april MSE 1.50e+01 ± 1.3e+01" in text[-1]
    assert "To go on: imagenet april (4 of 6 images), imagenet ig (4 of 6 images)." in text[-1]
    whole = table1.table([made_up_row(name, list(range(6))) for name in ("april", "ig")])
    assert "| 6 | april |" in whole
    assert "To go on" not in whole
    assert "With all its images" not in whole


def test_a_row_of_fewer_images_is_not_whole_and_is_replaced(tmp_path, run):
    from reproductions.april import cells

    kept = cells.Table(tmp_path, {"quick": True, "seed": 0}, [("imagenet", "april")])
    early = {"seconds": 1.0, "seconds_tuning": 0.5}
    kept.put(made_up_row("april", [0, 1]) | early)
    assert not kept.has("imagenet", "april")
    assert not lines(kept.path)[0]["complete"]
    kept.put(made_up_row("april", list(range(6))) | early)
    assert kept.has("imagenet", "april")
    facts, *rows = lines(kept.path)
    assert facts["complete"]
    assert [row["images"] for row in rows] == [6]


def test_runs_of_other_seeds_are_not_mixed(tmp_path, run):
    run("table1", tmp_path, *ONE_CELL)
    with pytest.raises(SystemExit, match="another seed"):
        run("table1", tmp_path, *ONE_CELL, "--seed", "1")


def test_how_long_a_piece_may_take(run):
    from reproductions.april.pieces import MARGIN, Clock, longest

    assert longest([], 10) == 0
    rows = [{"seconds": 100.0, "amount": 10}, {"seconds": 30.0, "amount": 5}]
    assert longest(rows, 20) == MARGIN * 200
    assert Clock().allows(1e9)
    assert Clock.within(60).allows(50)
    assert not Clock.within(60).allows(70)


def test_imagenet_comes_with_channels_first_or_last(tmp_path, run):
    from reproductions.april import study, table1

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


def test_the_packed_data_can_be_read(tmp_path, run, monkeypatch):
    """From archives like those that are packed: two sheets of CIFAR-10, two MNIST images, 40 small pictures in place of ImageNet's."""
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    rng = np.random.default_rng(0)
    digits = rng.integers(0, 256, (2, 28, 28), dtype=np.uint8)
    np.savez(source / "mnist.npz", x_train=digits, y_train=np.arange(2), x_test=digits, y_test=np.arange(2))

    def archive(name: str, files: dict) -> None:
        with zipfile.ZipFile(source / name, "w") as made:
            for file, value in files.items():
                buffer = io.BytesIO()
                if file.endswith(".npy"):
                    np.save(buffer, value)
                else:
                    Image.fromarray(value).save(buffer, "png")
                made.writestr(file, buffer.getvalue())

    sheet = rng.integers(0, 256, (320, 320, 3), dtype=np.uint8)
    cifar = {"labels.npy": np.arange(100) % 10, "sheet_0000.png": sheet}
    archive("cifar10_test.zip", cifar)
    archive("cifar10_train_a.zip", cifar)
    archive("imagenet_500_224.zip", {f"{2 * i:04}_n0_thing.jpg": sheet[:40, i : i + 40] for i in range(70)})
    monkeypatch.setattr(sys, "argv", ["pack_data", str(source), str(out)])
    runpy.run_path(str(FOLDER / "pack_data.py"), run_name="__main__")
    for file in (out / "second").iterdir():
        file.rename(out / "first" / file.name)
    from reproductions.april import study, table1

    options = study.Options(False, torch.device("cpu"), 0, out / "first", tmp_path, None)
    assert len(table1.photographs_224(options, 500).x) == 32
    assert table1.photographs_224(options, 3).y.tolist() == [0, 4, 8]
    assert torch.equal((study.digits(options, 1).x[0, 0] * 255).round(), torch.from_numpy(digits[0]).float())
    assert len(study.objects(options, 50, train=True).x) == len(study.objects(options, 50).x) == 50


def test_the_plan_shrinks_as_work_is_done(tmp_path, run, capsys, monkeypatch):
    from reproductions.april import plan, study

    def left() -> dict[str, float]:
        monkeypatch.setattr(sys, "argv", ["plan", "--work", str(tmp_path)])
        plan.main()
        parts = [*plan.cells(tmp_path), *plan.studies(tmp_path, 25_000)]
        told = capsys.readouterr().out
        assert all(part.name in told for part in parts)
        return {part.name: part.seconds for part in parts}

    before = left()
    facts = {"quick": False, "seed": 0, "complete": False}
    rows = [made_up_row("april", list(range(30)), wanted=30), made_up_row("tag", list(range(10)), wanted=30)]
    study.write(tmp_path / "table1.jsonl", [facts, *rows])
    run_facts = {"quick": False, "seed": 0, "data_set": "imagenet", "attack": "tag", "amount": 6}
    pieces = [run_facts | {"part": "piece", "first": first} for first in (0, 6)]
    pieces += [run_facts | {"part": "setting", "setting": repr(one)} for one in plan.SETTINGS["tag"]]
    (tmp_path / "table1_pieces.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pieces), "utf-8")
    study.write(
        tmp_path / "batches.jsonl", [facts, {"model": "ViT-Base", "batch": 4, "rule": plan.batches.RULE, "steps": 4000}]
    )
    after = left()
    assert "imagenet april" not in after
    assert after["imagenet tag"] == pytest.approx(6 + 5000 * 18 * plan.BASE_PACE["tag"] / 1000)
    together = 6 + 500 * 8 * plan.BASE_PACE["tag"] / 1000  # four settings on two images
    assert before["imagenet tag"] == pytest.approx(together + 2 * 6 + 5000 * 30 * plan.BASE_PACE["tag"] / 1000)
    assert after["imagenet ig"] == before["imagenet ig"]
    assert after["batches, ViT-Base 4"] == pytest.approx(6 + 1000 * plan.BATCH_STEP[4] / 1000)
    assert before["batches, ViT-Base 4"] == pytest.approx(6 + 5000 * plan.BATCH_STEP[4] / 1000)
    assert all(seconds > 0 for seconds in after.values())


def test_the_script_for_the_gpu_tells_its_plan(tmp_path):
    def script(*given: str) -> subprocess.CompletedProcess:
        settings = os.environ | {"PLAN": "1", "PYTHON": sys.executable, "WORK": str(tmp_path / "work")}
        command = ["bash", str(FOLDER / "gpu_table1.sh"), str(tmp_path / "out"), str(tmp_path), *given]
        return subprocess.run(command, env=settings, capture_output=True, text=True, check=False)

    told = script("all")
    assert told.returncode == 0, told.stderr
    assert "imagenet  together" in told.stdout
    wrong = script("large")
    assert wrong.returncode == 2
    assert "small, imagenet, rest or all, got large" in wrong.stderr


def test_the_trained_network_is_trained_once(tmp_path, run, monkeypatch):
    run("table1", tmp_path, "--datasets", "cifar10_trained", "--attacks", "april")
    from reproductions.april import study, table1

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
