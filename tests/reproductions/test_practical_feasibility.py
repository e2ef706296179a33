"""Every part of the feasibility study runs with --quick, resumes, writes sensible rows and fills its table."""

import json
import math
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "reproductions" / "practical_feasibility"
PARTS = ("accuracy", "small", "large", "shared_statistics", "controlled", "detection", "freeze_thresholds")


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
def test_a_quick_part_gives_sensible_rows_and_a_table(name, tmp_path, monkeypatch, folder_on_path):
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
            assert len(row["trials"]) == len(row["restart_ssim"]) == 2
            assert sum(row["oracle"]["ssim"]) >= sum(row["attack"]["ssim"]) - 1e-4
            assert any(kind == "diagnostic" for _, kind in row["assumptions"])  # labels were given
    table = [line for line in module["table"](cases).splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table[:3]}) == 1
    assert not list(tmp_path.glob("*.part*"))
    drawn = [*tmp_path.glob("*.svg"), *tmp_path.glob("*.png")]
    assert drawn


def test_a_stopped_part_goes_on_where_it_was(tmp_path, monkeypatch, folder_on_path):
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


def test_weights_of_one_part_serve_another(tmp_path, monkeypatch, folder_on_path):
    run_part("accuracy", tmp_path, monkeypatch)
    run_part("controlled", tmp_path, monkeypatch)
    trained = {row["case"]: row["trained"] for row in lines_of(tmp_path / "controlled.jsonl") if "trained" in row}
    assert trained == {"convnext_t": True, "swin_t": False}  # quick runs train no Swin


@pytest.mark.parametrize("name", PARTS)
def test_the_plan_costs_nothing(name, tmp_path, monkeypatch, capsys, folder_on_path):
    run_part(name, tmp_path / "none", monkeypatch, "--plan", "--minutes", "2")
    assert capsys.readouterr().out.splitlines()[-1].endswith("120 s")
    assert not (tmp_path / "none").exists()


def test_a_case_that_would_be_cut_off_is_not_begun(tmp_path, monkeypatch, folder_on_path):
    with pytest.raises(SystemExit, match="is left for another call"):
        run_part("controlled", tmp_path, monkeypatch, "--within", "30")
    assert len(lines_of(tmp_path / "controlled.jsonl")) == 1  # the facts, no case, no end


def planned_seconds(name: str, monkeypatch, capsys) -> float:
    run_part(name, Path("none"), monkeypatch, "--plan")
    return float(capsys.readouterr().out.splitlines()[-1].split()[-2])


def test_the_attacks_fit_into_two_calls_of_four_lanes(monkeypatch, capsys, folder_on_path):
    """The lanes of gpu.sh; a case not begun at the end of the first call leaves at most its own seconds unused."""
    script = (FOLDER / "gpu.sh").read_text("utf-8")
    lanes = re.findall(r"^    lane (.+) &$", script, re.MULTILINE)
    assert sorted(name for lane in lanes for name in lane.split()) == sorted(set(PARTS) - {"accuracy"})
    for lane in lanes:
        assert sum(planned_seconds(name, monkeypatch, capsys) for name in lane.split()) < 2 * 555 - 160


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


def test_settings_start_with_the_defaults_and_stay_in_the_papers_space(folder_on_path):
    import attacking

    tried = []
    for number in range(6):
        options = attacking.propose(tried, seed=3)
        assert options == attacking.propose(tried, seed=3)
        tried.append((options, 1.0 - 0.1 * number))
    assert tried[0][0] == attacking.DEFAULTS
    drawn = [options for options, _ in tried[1:]] + [attacking._drawn(n) for n in range(20)]
    for options in drawn:
        assert 1e-6 <= options["tv"] <= 0.1
        assert 1e-4 <= options["lr"] <= 100
        assert options["statistics"] in (0.0, 1e-4, 1e-2)
    assert len({options["lr"] for options in drawn}) == len(drawn)


class AdamInTensors(torch.optim.Optimizer):
    """Adam with step and rate as tensors, as torch's capturable one keeps them, which it does on GPUs only."""

    def __init__(self, variables, lr):
        super().__init__(variables, {"lr": torch.tensor(lr)})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=torch.zeros(()), first=torch.zeros_like(p), second=torch.zeros_like(p))
                state["step"].add_(1)
                state["first"].mul_(0.9).add_(p.grad, alpha=0.1)
                state["second"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                one, two = (1 - torch.pow(torch.full((), beta), state["step"]) for beta in (0.9, 0.999))
                p.sub_(group["lr"] * (state["first"] / one) / ((state["second"] / two).sqrt() + 1e-8))


@pytest.mark.parametrize(("shared", "recorded"), [("buffers", True), ("auxiliary", False)])
def test_one_preparation_serves_every_setting(shared, recorded, monkeypatch, folder_on_path, recordable):
    """Each run is the library's attack with these settings, whatever ran before it, also where its step is recorded."""
    from attacking import configured
    from networks import Network
    from rehearsal import Rehearsal

    from leakgauge.attacks import feasibility
    from leakgauge.channels import Gradient
    from leakgauge.core import Auxiliary, Buffers, Labels, Size, Victim, share
    from leakgauge.data.embedded import photographs
    from leakgauge.inversion import solvers

    model, space, _ = Network("resnet18_pre").made(classes=10, seed=0, quick=True)
    victim, images = Victim(model, space, mode="train"), space.encode(photographs(32)[:6])
    known = Buffers() if shared == "buffers" else Auxiliary(images[2:])
    seen = share(victim, Gradient(), images[:2], torch.tensor([3, 5]), reveal=[Size(), Labels(), known])
    monkeypatch.setattr(solvers.Adam, "make", lambda self, variables: AdamInTensors(variables, self.lr))
    prepared = Rehearsal(feasibility(restarts=2), victim, [seen], seed=1)
    assert prepared.seconds_per_step() > 0
    if recorded:
        prepared.move._captured = recordable.PlayedBack(prepared.move._move)
        prepared.run({"tv": 1.0, "statistics": 1.0, "lr": 1.0}, 4)
        assert prepared.move._captured.operations
    for options in (
        {"tv": 0.01, "statistics": 0.1, "lr": 0.1},
        {"tv": 1e-4, "statistics": 0.0, "lr": 0.5},
        {"tv": 0.01, "statistics": 0.1, "lr": 0.1},
    ):
        ours = prepared.run(options, 5)
        theirs = configured(feasibility, options, steps=5, restarts=2)(victim, seen, seed=1)
        assert torch.allclose(ours.candidates, theirs.candidates, atol=1e-4)
        assert torch.allclose(ours.losses, theirs.losses, atol=1e-4)
        assert torch.equal(ours.x, ours.candidates[int(theirs.losses.argmin())])
    assert any("statistics" in note for note in prepared.notes)


def test_steps_are_planned_into_the_seconds_left(folder_on_path):
    from attacking import AROUND, LEAST_TRIAL, NULL_STEP, Effort

    effort = Effort(restarts=8, trials=8, seconds=60, quick=False)
    for per_step in (0.004, 0.008, 0.012):
        planned = effort.steps(per_step, spent=5.0)
        taken = per_step * (8 * planned.trial + 2 * planned.final) + NULL_STEP * planned.final + AROUND + 5.0
        assert planned.in_time
        assert 50 < taken <= 60
    slow = effort.steps(0.5, spent=5.0)
    assert (slow.trial, slow.final, slow.in_time) == (LEAST_TRIAL, effort.least, False)
    assert effort.steps(1e-5, spent=0.0).final == 4800


def test_the_mean_over_all_pairs_punishes_a_perfect_batch(folder_on_path):
    import attacking

    from leakgauge.data.embedded import photographs

    truths = photographs(32)[:4]
    assert attacking.all_pairs_ssim(truths, truths) < 0.5
    assert attacking.all_pairs_ssim(truths[:1], truths[:1]) == pytest.approx(1.0)


def test_thresholds_part_two_groups(folder_on_path):
    import freeze_thresholds

    assert freeze_thresholds.best_threshold([0.1, 0.2, 0.6, 0.8], [False, False, True, True]) == (
        pytest.approx(0.4),
        1.0,
    )
    at, agreement = freeze_thresholds.best_threshold([0.1, 0.5, 0.4, 0.9], [False, False, True, True])
    assert (at, agreement) == (pytest.approx(0.25), 0.5)
    assert freeze_thresholds.best_threshold([0.1, 0.2], [True, True])[1] == 0.0


def case_row(name: str, paper: str | None, ssim: float, psnr: float) -> dict:
    def scores(s, p, reid=None):
        return {"mse": [0.1], "psnr": [p], "ssim": [s], "lpips": None, "reid": reid, "labels": None}

    return {
        "case": name, "paper": paper, "trained": True, "assumptions": [["labels", "diagnostic"]],
        "attack": scores(ssim, psnr, [1.0]), "oracle": scores(1.0, 40.0, [1.0]), "null": scores(0.1, 8.0), "baseline": scores(0.3, 12.0),
    }  # fmt: skip


def test_verdicts_are_counted_against_the_paper(tmp_path, folder_on_path):
    import confusion

    rows = [
        case_row("clear", "Yes", 0.9, 25.0), case_row("noise", "No", 0.1, 8.0), case_row("missed", "Yes", 0.1, 8.0),
        case_row("not in the paper", None, 0.9, 25.0),
    ]  # fmt: skip
    (tmp_path / "small.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [{"quick": False}, *rows]), "utf-8")
    found, source = confusion.verdicts(tmp_path)
    assert source == "the library's thresholds"
    counts = confusion.confusion(found, "verdict")
    assert (
        counts["Yes", "feasible"]
        == counts["No", "infeasible_within_budget"]
        == counts["Yes", "infeasible_within_budget"]
        == 1
    )
    assert "2 of 3 agree" in confusion.table(tmp_path)
    (tmp_path / "thresholds.json").write_text(
        json.dumps({"ssim": 0.95, "ssim_above_null": 0.1, "psnr_above_null": 3.0}), "utf-8"
    )
    stricter, source = confusion.verdicts(tmp_path)
    assert "frozen" in source
    assert next(row["verdict"] for row in stricter) == "partial"


def test_claims_are_made_from_rows(folder_on_path):
    import claims

    rows = [
        {"case": "convnext_t", "accuracy": 0.88, "epochs": 9},
        {"case": "convnext_t_imagenet_stem", "accuracy": 0.7, "epochs": 9},
    ]
    found = claims.accuracy(rows)
    assert [claim.holds for claim in found] == [True, True]
    assert "+18.0 points" in found[1].line()
    assert "9 epochs each" in found[1].line()
    unequal = claims.accuracy([rows[0], {**rows[1], "epochs": 3}])
    assert not unequal[1].holds  # what other epochs bring is no gain of the stem
    assert not claims.accuracy([{"case": "swin_t", "accuracy": 0.5}])[0].holds
    assert claims.small([{"case": "swin_t, train mode", "refused": "no"}]) == []


def test_the_tables_of_the_page_are_those_of_the_results(folder_on_path):
    import make_tables

    text = make_tables.README.read_text("utf-8")
    assert make_tables.written(text, make_tables.RESULTS) == text


@pytest.mark.parametrize(("name", "millions"), [("swin_t", 28.3), ("convnext_t", 28.6), ("resnet18_post", 11.7)])
def test_canonical_networks_have_the_published_size(name, millions, folder_on_path):
    from networks import Network

    model, space, changes = Network(name, side=224, adapted=False).made(classes=1000, seed=0, quick=False)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)
    assert space.shape == (3, 224, 224)
    assert changes == "canonical"


def test_boxes_follow_their_images(folder_on_path):
    import detection

    targets = {
        "boxes": torch.arange(12.0).view(3, 4),
        "classes": torch.tensor([0, 1, 2]),
        "image": torch.tensor([0, 2, 2]),
    }
    found = detection.chosen(targets, torch.tensor([2, 1]))
    assert found["image"].tolist() == [0, 0]
    assert found["classes"].tolist() == [1, 2]
