"""Every part of the feasibility study runs with --quick, resumes, writes sensible rows and fills its table."""

import json
import math
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "reproductions" / "practical_feasibility"
PARTS = (
    "accuracy",
    "small",
    "large",
    "shared_statistics",
    "controlled",
    "detection",
    "freeze_thresholds",
    "freeze_layout",
)


def run_part(name: str, out: Path, monkeypatch, *more: str) -> dict:
    monkeypatch.setattr(sys, "argv", [name, "--quick", "--device", "cpu", "--out", str(out), *more])
    return runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def numbers(value) -> list[float]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return []
    if isinstance(value, dict):
        return numbers(list(value.values()))
    if isinstance(value, list):
        return [n for part in value for n in numbers(part)]
    return [float(value)]


@pytest.mark.parametrize("name", PARTS)
def test_a_quick_part_gives_sensible_rows_and_a_table(name, tmp_path, monkeypatch):
    module = run_part(name, tmp_path, monkeypatch)
    facts, *rows = lines_of(tmp_path / f"{name}.jsonl")
    assert facts["quick"]
    assert facts["study"] == name
    assert rows[-1]["case"] == "end"
    cases = [row for row in rows if row["case"] not in ("end", "image")]
    assert sum("refused" not in row for row in cases) >= 2
    for row in cases:
        assert all(math.isfinite(n) for n in numbers(row)), row["case"]
        for kind in ("attack", "oracle", "null", "baseline"):
            if isinstance(row.get(kind), dict):
                assert all(-1 <= value <= 1 for value in row[kind]["ssim"])
        if isinstance(row.get("attack"), dict):
            assert len(row["trials"]) == 4
            assert len(row["restart_ssim"]) == 2
            assert sum(row["oracle"]["ssim"]) >= sum(row["attack"]["ssim"]) - 1e-4
            assert any(kind == "diagnostic" for _, kind in row["assumptions"])  # labels were given
    table = [line for line in module["table"](cases).splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table[:3]}) == 1
    assert not list(tmp_path.glob("*.part*"))
    drawn = [*tmp_path.glob("*.svg"), *tmp_path.glob("*.png")]
    assert drawn


def test_a_stopped_part_goes_on_where_it_was(tmp_path, monkeypatch):
    """Of a killed run some lines are left, the last perhaps cut; what is whole is not measured again, the rest is."""
    run_part("controlled", tmp_path, monkeypatch)
    path = tmp_path / "controlled.jsonl"
    whole = lines_of(path)
    marked = {**whole[1], "kept": True}
    cut = json.dumps(whole[2])[:40]
    path.write_text("\n".join([json.dumps(whole[0]), json.dumps(marked), cut]), "utf-8")
    run_part("controlled", tmp_path, monkeypatch)
    again = lines_of(path)
    assert again[1] == marked
    assert "attack" in again[2]
    assert {**again[2], "seconds": 0} == {**whole[2], "seconds": 0}
    assert [row["case"] for row in again[1:]] == [row["case"] for row in whole[1:]]


def test_weights_of_one_part_serve_another(tmp_path, monkeypatch):
    run_part("accuracy", tmp_path, monkeypatch)
    run_part("controlled", tmp_path, monkeypatch)
    trained = {row["case"]: row["trained"] for row in lines_of(tmp_path / "controlled.jsonl") if "trained" in row}
    assert trained == {"convnext_t": True, "swin_t": False}  # quick runs train no Swin


@pytest.mark.parametrize("name", PARTS)
def test_the_plan_costs_nothing(name, tmp_path, monkeypatch, capsys):
    run_part(name, tmp_path / "none", monkeypatch, "--plan", "--minutes", "2")
    assert capsys.readouterr().out.splitlines()[-1].endswith("120 s")
    assert not (tmp_path / "none").exists()


def test_a_case_that_would_be_cut_off_is_not_begun(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="is left for another call"):
        run_part("controlled", tmp_path, monkeypatch, "--until", str(time.time() + 30))
    assert len(lines_of(tmp_path / "controlled.jsonl")) == 1  # the facts, no case, no end


def test_full_size_results_are_not_replaced(tmp_path, monkeypatch):
    """A quick run, or one with another seed, without a folder of its own would write over them."""
    from reproductions.practical_feasibility.ledger import Ledger

    Ledger(tmp_path, "controlled", {"quick": False, "seed": 0}).add("swin_t", trained=True)
    before = (tmp_path / "controlled.jsonl").read_text("utf-8")
    with pytest.raises(SystemExit, match=r"holds full-size results with seed 0.*--out"):
        run_part("controlled", tmp_path, monkeypatch)
    assert (tmp_path / "controlled.jsonl").read_text("utf-8") == before
    assert [row["case"] for row in Ledger(tmp_path, "controlled", {"quick": False, "seed": 0}).rows] == ["swin_t"]


def test_attacks_do_not_begin_without_trained_networks(tmp_path):
    """On a machine that has lost them, hours of attacks would be on untrained ones."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "accuracy.jsonl").write_text("{}")
    (kept / "large.jsonl").write_text("{}")
    found = subprocess.run(
        ["/bin/bash", str(FOLDER / "gpu.sh"), str(tmp_path / "out"), str(tmp_path), "large", "small"], capture_output=True, text=True,
        env={"PATH": "/usr/bin:/bin", "WORK": str(tmp_path / "work"), "KEPT": str(kept), "PYTHON": "/bin/false"}, check=False,
    )  # fmt: skip
    assert found.returncode == 1
    assert "run accuracy before small" in found.stderr
    # accuracies are not taken up: their weights are not there, so that the networks would have to be trained again
    assert {path.name for path in (tmp_path / "work").iterdir()} == {"thresholds.json", "large.jsonl"}


def planned_seconds(name: str, monkeypatch, capsys) -> float:
    run_part(name, Path("none"), monkeypatch, "--plan")
    return float(capsys.readouterr().out.splitlines()[-1].split()[-2])


def test_everything_fits_into_six_calls(monkeypatch, capsys):
    """A case not begun at the end of a call leaves at most its own seconds unused; accuracies and what needs them fit into three."""
    seconds = {name: planned_seconds(name, monkeypatch, capsys) for name in PARTS}
    script = (FOLDER / "gpu.sh").read_text("utf-8")
    named = re.search(r"set -- (.+)$", script, re.MULTILINE)
    assert named
    assert sorted(named[1].split()) == sorted(PARTS)
    assert sum(seconds[name] for name in ("accuracy", "small", "controlled")) < 3 * (555 - 30)
    assert sum(seconds.values()) < 6 * (555 - 30)


@pytest.mark.parametrize("works", [True, False])
def test_the_gpu_is_shared_where_that_works(works, tmp_path):
    """mps.sh with stand-ins: a daemon that notes its commands, and a Python that finds the GPU or does not."""
    for name, does in (
        ("nvidia-cuda-mps-control", f'echo "$* $(cat)" >>{tmp_path}/told'),
        ("py", f"exit {int(not works)}"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n", "utf-8")
        (tmp_path / name).chmod(0o755)
    commands = f'set -u; . {FOLDER.parent}/mps.sh; mps_start {tmp_path}/py; echo "${{CUDA_MPS_PIPE_DIRECTORY:-none}}"; mps_stop'
    found = subprocess.run(
        ["/bin/bash", "-c", commands],
        capture_output=True,
        text=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        check=True,
    )
    said, pipe = found.stdout.splitlines()
    assert said == ("MPS: on" if works else "MPS: does not work here, going on without it")
    assert pipe.startswith("/tmp/mps.") == works
    assert not Path(pipe).exists()
    assert [line.split() for line in (tmp_path / "told").read_text("utf-8").splitlines()] == [["-d"], ["quit"]]


def test_a_case_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    from reproductions.practical_feasibility import controlled, setting

    whole = controlled.measure

    def broken(key, *rest):
        if key == "swin_t":
            raise RuntimeError("out of something")
        whole(key, *rest)

    monkeypatch.setattr(controlled, "measure", broken)
    options = setting.Options(True, torch.device("cpu"), 0, None, tmp_path, tmp_path / "weights")
    with pytest.raises(SystemExit, match="failed and have no line: swin_t"):
        setting.recorded("controlled", controlled.PLAN, controlled.run, options)
    assert "RuntimeError: out of something" in capsys.readouterr().err
    names = [row["case"] for row in lines_of(tmp_path / "controlled.jsonl")[1:]]
    assert "convnext_t" in names
    assert not {"swin_t", "end"} & set(names)
    monkeypatch.setattr(controlled, "measure", whole)
    setting.recorded("controlled", controlled.PLAN, controlled.run, options)
    assert {row["case"] for row in lines_of(tmp_path / "controlled.jsonl")[1:]} >= {"swin_t", "end"}


def test_a_line_cut_off_anywhere_is_left_out(tmp_path):
    """Also behind a brace, where what is left looks whole."""
    from reproductions.practical_feasibility.ledger import Ledger, read

    ledger = Ledger(tmp_path, "part", {"quick": False, "seed": 0})
    ledger.add("first", value={"a": 1.0}, other={"b": 2.0})
    ledger.add("second", value={"a": 1.0}, other={"b": 2.0})
    text = ledger.path.read_text("utf-8")
    for end in range(text.index("second"), len(text) - 2):
        ledger.path.write_text(text[:end], "utf-8")
        assert [row["case"] for row in read(ledger.path)[1]] == ["first"]
    with pytest.raises(ValueError, match="not a number"):
        ledger.add("third", value=math.nan)


def test_quick_results_are_never_taken_for_real_ones(tmp_path, monkeypatch):
    """Neither their verdicts nor their thresholds, nor as a claim; and a real run does not go on with a quick one."""
    run_part("small", tmp_path, monkeypatch)
    run_part("freeze_thresholds", tmp_path, monkeypatch)
    from reproductions.practical_feasibility import confusion, freeze_thresholds, make_tables
    from reproductions.practical_feasibility.ledger import Ledger

    assert "quick run" in freeze_thresholds.checks(tmp_path / "thresholds.json")[2]
    assert confusion.verdicts(tmp_path)[0] == []
    assert "measured at full size yet" in make_tables.block("confusion", tmp_path)
    assert "measured at full size yet" in make_tables.block("claims", tmp_path)
    assert "A quick run" in make_tables.block("small", tmp_path)
    assert Ledger(tmp_path, "small", {"quick": False, "seed": 0}).rows == []


def test_pictures_of_imagenet_are_not_drawn_under_a_name_that_is_published(tmp_path):
    import numpy as np

    from reproductions.practical_feasibility import large

    pictures = {f"net/{kind}": np.zeros((2, 3, 8, 8), np.uint8) for kind in ("truth", "attack", "oracle", "null")}
    large.draw([{"case": "net", "data": "ImageNet"}], pictures, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["large.unpublished.png"]
    ignored = subprocess.run(
        ["git", "check-ignore", "-q", str(FOLDER / "results" / "large.unpublished.png")], cwd=FOLDER, check=False
    )
    assert ignored.returncode == 0
    large.draw([{"case": "net", "data": "photographs (embedded)"}], pictures, tmp_path)
    assert (tmp_path / "large.png").is_file()


@pytest.mark.parametrize(("name", "millions"), [("swin_t", 28.3), ("convnext_t", 28.6), ("resnet18_post", 11.7)])
def test_canonical_networks_have_the_published_size(name, millions):
    from reproductions.practical_feasibility.networks import Network

    model, space, changes = Network(name, side=224, adapted=False).made(classes=1000, seed=0, quick=False)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)
    assert space.shape == (3, 224, 224)
    assert changes == "canonical"


def test_boxes_follow_their_images():
    from reproductions.practical_feasibility import detection

    targets = {
        "boxes": torch.arange(12.0).view(3, 4),
        "classes": torch.tensor([0, 1, 2]),
        "image": torch.tensor([0, 2, 2]),
    }
    found = detection.chosen(targets, torch.tensor([2, 1]))
    assert found["image"].tolist() == [0, 0]
    assert found["classes"].tolist() == [1, 2]
