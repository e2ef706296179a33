"""Every study of the APRIL paper runs with --quick, writes finite numbers and a figure, and fills its table."""

import json
import math
import runpy
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from PIL import Image

FOLDER = Path(__file__).parents[2] / "reproductions" / "april"
STUDIES = (
    "architecture_a", "batches", "closed_form_batches", "noise", "positions", "progress", "why", "why_batches",
    "why_table1", "width", "without_encoder",
)  # fmt: skip


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
    module = run_study(name, tmp_path, monkeypatch)
    facts, *rows = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text("utf-8").splitlines()]
    assert facts["complete"]
    assert facts["study"] == name
    assert len(rows) >= 2
    for row in rows:
        assert all(math.isfinite(n) for value in row.values() for n in numbers(value)), row
        for key in ("ssim", "best_ssim", "accuracy", "label_accuracy"):
            assert row.get(key) is None or -1 <= row[key] <= 1
        assert row.get("mse") is None or 0 <= row["mse"] <= 1
    figure = ET.parse(tmp_path / f"{name}.svg")
    assert figure.findall(".//{http://www.w3.org/2000/svg}polyline")
    grids = list(tmp_path.glob(f"{name}*.png"))
    assert grids
    assert all(min(Image.open(grid).size) > 100 for grid in grids)
    table = module["table"](rows).splitlines()
    assert table[0].count("|") == table[1].count("|") == table[2].count("|")
    assert not list(tmp_path.glob("*.part*"))


def test_the_closed_form_is_exact_only_where_it_should_be(tmp_path, monkeypatch):
    """Without noise and in a batch of one all comes back; with noise and in larger batches it does not."""
    run_study("noise", tmp_path, monkeypatch)
    noisy = [json.loads(line) for line in (tmp_path / "noise.jsonl").read_text("utf-8").splitlines()][1:]
    assert all((row["ssim"] > 0.999) == (row["factor"] == 0) for row in noisy)


def test_what_was_found_before_a_failure_is_kept(tmp_path, monkeypatch):
    from reproductions.april import study

    def fails(options, results):
        results.add(value=1.5)
        raise RuntimeError("the machine is gone")

    options = study.Options(True, torch.device("cpu"), 0, None, tmp_path, None)
    with pytest.raises(RuntimeError, match="gone"):
        study.recorded("broken", fails, options)
    facts, rows = study.read(tmp_path / "broken.jsonl")
    assert not facts["complete"]
    assert rows == [{"value": 1.5}]


def test_classes_take_turns():
    from reproductions.april import study

    assert study.taking_turns(torch.tensor([1, 1, 0, 2, 0])).tolist() == [2, 0, 3, 4, 1]


def test_the_papers_model_and_counts():
    """Table 2 of the paper, and its 6,533,002 parameters without one encoder's attention."""
    from reproductions.april import study

    images = study.Images("zeros", torch.zeros(1, 1, 28, 28), torch.zeros(1).long())
    sizes = {n: p.numel() for n, p in study.small_model(images, architecture="B", quick=False).named_parameters()}
    assert sum(sizes.values()) == 7_123_210
    assert sum(v for n, v in sizes.items() if n != "pos_embed") == 7_116_682
    assert sum(v for n, v in sizes.items() if not n.startswith("blocks.2.attn.")) == 6_533_002


def test_training_learns_and_leaves_frozen_parameters_alone():
    """Two models in one go on an easy task: dark against bright images."""
    from reproductions.april import study, training

    rng = torch.Generator().manual_seed(0)
    y = torch.arange(1000) % 2
    x = 0.2 * torch.rand(1000, 1, 8, 8, generator=rng) + 0.5 * y[:, None, None, None]
    images = study.Images("bright or dark", x, y)
    models = [study.small_model(images, architecture="B", quick=True, width=16, seed=s, classes=2) for s in range(2)]
    reached = training.accuracies(
        models, (x, y), (x, y), frozen=[(), ("pos_embed",)], epochs=10, device=torch.device("cpu"), lr=1e-2
    )
    assert min(reached) > 0.95


def test_a_frozen_parameter_has_no_gradient():
    from reproductions.april import training

    flags = training._moving(torch.ones(2, 3, 4), "pos_embed", [(), ("pos_embed",)])
    assert flags.flatten().tolist() == [1.0, 0.0]
    assert flags.shape == (2, 1, 1)


@pytest.mark.parametrize(("lost", "words"), [(0.1, "none"), (0.89, "does not reproduce")])
def test_the_verdict_on_twin_data_follows_the_numbers(lost, words):
    from reproductions.april import claims

    ssim = {"everything": 0.9, "without positions": lost, "without attention 1": 0.9}
    (verdict,) = claims.without_encoder([{"case": case, "ssim": value} for case, value in ssim.items()])
    assert verdict.holds == (words == "none")
    assert words in verdict.line()
    assert verdict.line().count("|") == claims.HEAD[0].count("|")


def batch_rows(steps: int = 600, rule: str = "less the chances on noise", **more) -> list[dict]:
    same = {
        "model": "ViT-Base",
        "rule": rule,
        "steps": steps,
        "mse": 0.2,
        "ssim": 0.1,
        "labels_read": 1.0,
        "relative_loss": 2e-3,
    }
    return [same | {"batch": size} | more for size in (4, 24)]


def test_a_shorter_run_is_not_called_a_contradiction():
    from reproductions.april import claims

    assert "shorter run | 600 and 600 steps of 5000" in claims.batches(batch_rows())[0].line()
    assert "shorter run" in claims.batches(batch_rows(model="CIFAR model", of_steps=1500))[0].line()
    assert "shorter run" not in claims.batches(batch_rows(model="CIFAR model", of_steps=600))[0].line()
    whole = claims.batches(batch_rows(steps=5000))[0].line()
    assert "does not reproduce" in whole
    assert "all labels are right, the loss ends at 2e-03 for 4" in whole
    assert "labels are right" not in claims.batches(batch_rows(steps=5000, labels_read=0.5))[0].line()


def test_batches_count_with_the_labels_read_as_they_are_now():
    from reproductions.april import batches, claims

    before, now = batch_rows(rule=batches.BY_BIAS), batch_rows(ssim=0.9)
    for rows in (before + now, now + before):
        assert "SSIM 0.90 for 4, 0.90 for 24" in claims.batches(rows)[0].line()
    assert "SSIM 0.90 for 4, 0.10 for 24" in claims.batches(before + now[:1])[0].line()
    assert "Not measured yet with labels less the chances on noise: ViT-Base 24." in batches.table(before + now[:1])
    assert "Not measured" not in batches.table(before + now)
    assert "| 600 of 5000 |" in batches.table(batch_rows(of_steps=5000))


def test_batches_go_on_where_they_stopped(tmp_path, monkeypatch, capsys):
    """In the midst of an attack too, whose row says after how many steps until it is done."""
    run_study("batches", tmp_path / "whole", monkeypatch)
    from reproductions.april import pieces, resumable

    class Brief(pieces.Clock):
        """Stops the last attack, that on ViT-Base, once."""

        looks = 0

        def allows(self, seconds):
            Brief.looks += seconds == 0
            return seconds > 0 or Brief.looks != 5

    monkeypatch.setattr(pieces.Clock, "within", lambda _: Brief())
    monkeypatch.setattr(resumable, "LOOK", 6)
    out = tmp_path / "stopped"
    run_study("batches", out, monkeypatch, "--within", "9")
    assert "ViT-Base, batch of 2, 6 of 12 steps: to go on later" in capsys.readouterr().out
    facts, *rows = [json.loads(line) for line in (out / "batches.jsonl").read_text("utf-8").splitlines()]
    assert not facts["complete"]
    assert [(row["steps"], row["of_steps"]) for row in rows] == [(12, 12), (12, 12), (6, 12)]
    run_study("batches", out, monkeypatch, "--within", "9")
    assert capsys.readouterr().out.count('"model"') == 1
    facts, *ours = [json.loads(line) for line in (out / "batches.jsonl").read_text("utf-8").splitlines()]
    theirs = [json.loads(line) for line in (tmp_path / "whole" / "batches.jsonl").read_text("utf-8").splitlines()][1:]
    assert facts["complete"]
    for key in ("steps", "each_mse", "labels_read", "loss"):
        assert [row[key] for row in ours] == [row[key] for row in theirs]
    assert not list(out.glob("*.pt"))


def test_a_batch_without_its_state_does_not_replace_a_row_of_more_steps(tmp_path, monkeypatch):
    from reproductions.april import batches, resumable, study

    class Brief(study.Clock):
        def allows(self, seconds):
            return seconds > 0

    monkeypatch.setattr(resumable, "LOOK", 6)
    options = study.Options(True, torch.device("cpu"), 0, None, tmp_path, None, Brief())
    case = batches.cases(options)[-1]
    for steps, kept in ((7, 7), (5, 6)):
        results = study.Results([case.key | {"steps": steps}])
        batches.attack(options, results, case)
        assert [row["steps"] for row in results.rows] == [kept]
        assert results.waiting == ["ViT-Base, batch of 2, 6 of 12 steps"]
        (tmp_path / "batches_vit-base_2.0.pt").unlink()


def test_without_time_no_batch_is_begun(tmp_path, monkeypatch, capsys):
    from reproductions.april import batches, study

    options = study.Options(True, torch.device("cpu"), 0, None, tmp_path, None, study.Clock.within(1))
    results = study.Results()
    batches.run(options, results)
    assert results.waiting == ["CIFAR model, batch of 2", "CIFAR model, batch of 3", "ViT-Base, batch of 2"]
    assert not results.rows


def test_the_largest_batch_can_wait(tmp_path, monkeypatch):
    run_study("batches", tmp_path, monkeypatch, "--first", "2")
    facts, *rows = [json.loads(line) for line in (tmp_path / "batches.jsonl").read_text("utf-8").splitlines()]
    assert not facts["complete"]
    assert [row["model"] for row in rows] == ["CIFAR model", "CIFAR model"]


def test_a_study_on_another_device_adds_to_what_is_there(tmp_path):
    from reproductions.april import study

    study.write(
        tmp_path / "it.jsonl",
        [{"quick": True, "seed": 0, "complete": True, "device": "abacus", "torch": "2", "seconds": 5.0}, {"n": 1}],
    )
    options = study.Options(True, torch.device("cpu"), 0, None, tmp_path, None)

    def more(options, results):
        if not results.has(n=1):
            results.add(n=1)
        results.add(n=2)

    study.recorded("it", more, options, study.earlier("it", options))
    facts, rows = study.read(tmp_path / "it.jsonl")
    assert rows == [{"n": 1}, {"n": 2}]
    assert facts["device"] == "abacus, cpu"
    assert facts["torch"] == f"2, {torch.__version__}"
    assert facts["seconds"] >= 5
    other = study.Options(True, torch.device("cpu"), 1, None, tmp_path, None)
    assert study.earlier("it", other).rows == []


def test_labels_are_compared_as_bags():
    from reproductions.april import batches

    assert batches.labels_read(torch.tensor([3, 1, 1]), torch.tensor([1, 3, 3])) == pytest.approx(2 / 3)


def test_tables_can_be_made_from_another_folder(tmp_path, monkeypatch):
    """To look at what a run has brought before it is taken over."""
    from reproductions.april import study

    monkeypatch.setattr(study, "RESULTS", study.RESULTS)  # the script sets it
    results, page = tmp_path / "results", tmp_path / "page.md"
    results.mkdir()
    facts = {"quick": False, "seed": 0, "complete": False, "device": "abacus", "torch": "2", "seconds": 5.0}
    found = batch_rows(model="CIFAR model", ssim=0.9, each_rank=[1, 1])
    study.write(results / "batches.jsonl", [facts, *batch_rows(of_steps=5000), *found])
    page.write_text(
        "<!-- claims -->\n<!-- end -->\n<!-- batches -->\n<!-- end -->\n<!-- width -->\n<!-- end -->\n", "utf-8"
    )
    monkeypatch.setattr(sys, "argv", ["make_tables", "--results", str(results), "--page", str(page)])
    runpy.run_path(str(FOLDER / "make_tables.py"), run_name="__main__")
    made = page.read_text("utf-8")
    assert (
        "SSIM 0.10 for 4, 0.10 for 24 | not reached in a shorter run" in made
    )  # told, although some steps are missing
    assert "SSIM 0.90 for 4, 0.90 for 24; most like their own image: 2 of 2 and 2 of 2 | none" in made
    assert "Measured on abacus" in made
    assert "Not measured at full size yet: table1, architecture_a, progress, width" in made


def test_the_tables_of_the_readme_are_those_of_the_results(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["make_tables", "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / "make_tables.py"), run_name="__main__")
    assert ended.value.code == 0
