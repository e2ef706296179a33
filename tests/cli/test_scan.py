"""`leakgauge scan`: one's own model and data, the embedded default's parts, resuming after SIGKILL, mistakes in one sentence."""

from __future__ import annotations

import html
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from leakgauge.audit.case import Case
from leakgauge.audit.findings import read_findings
from leakgauge.audit.questions import split_records as store
from leakgauge.audit.questions.split import ScanRun
from leakgauge.audit.wording import statements
from leakgauge.integrations import timm
from leakgauge.integrations.setups import find

TWO = ("--cut", "features.relu1_1", "--cut", "head", "--epochs", 0)
SMALL = ("my_model.py:make", "--data", "data.npz", "--epochs", 0)
UNTRACEABLE = '''
from torch import nn

class Fickle(nn.Module):
    """Which layer runs depends on the data, and what it gives is not all that is needed."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(192, 3), nn.Linear(192, 3)

    def forward(self, x):
        flat = x.flatten(1)
        chosen = self.a if float(flat.sum()) > 0 else self.b
        return chosen(flat) + flat[:, :3]


def make():
    return Fickle()
'''


@pytest.fixture
def data(tmp_path):
    """Eighty pictures of three classes."""
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 3
    images = rng.integers(0, 120, (80, 8, 8, 3)) + 60 * labels[:, None, None, None]
    np.savez(tmp_path / "data.npz", images=images.astype(np.uint8), labels=labels)
    return "data.npz"


def test_ones_own_model_and_data(leakgauge, model, data, tmp_path):
    said = leakgauge("scan", f"{model}:make", "--data", data, "--epochs", 2, "--threshold", 0.05, "--out", "run")
    assert said.code == 0, said.err
    assert "report: run/report.html" in said.out
    plan, found = store.read_plan(tmp_path / "run"), store.read_conclusion(tmp_path / "run")
    assert plan.command == "leakgauge scan my_model.py:make --data data.npz --threshold 0.05 --epochs 2"
    assert (plan.auxiliary, plan.tested) == (65, 15)
    assert found is not None
    statement = statements(read_findings(tmp_path / "run"))[2]
    assert f"{statement.badge}: {statement.text}" in said.out
    assert statement.budget in said.out
    assert 'id="split-cuts"' in (tmp_path / "run/report.html").read_text()


def test_an_own_model_gets_a_time_budget(leakgauge, model, data, tmp_path, monkeypatch):
    monkeypatch.setattr(ScanRun, "__call__", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    said = leakgauge("scan", f"{model}:make", "--data", data, "--out", "run")
    assert said.code == 130
    resume = "leakgauge scan my_model.py:make --resume --out run"
    assert said.err == f"leakgauge: interrupted; finished work is kept, resume with: {resume}\n"
    plan = store.read_plan(tmp_path / "run")
    assert (plan.epochs, plan.budget) == (None, 600.0)


def test_the_embedded_model_leaks_less_with_depth(leakgauge, tmp_path):
    said = leakgauge("scan", *TWO, "--numbers", "int8", "--out", "run")
    assert said.code == 0, said.err
    first, last = (record.fvu for record in store.read(tmp_path / "run") if record.attack == store.RIDGE)
    assert last > 5 * first
    assert "Only the output: Only the model's output (head) keeps an FVU of 0.25" in said.out
    assert "features.relu1_1" in said.out
    assert store.read_plan(tmp_path / "run").cuts[0]["bytes"] == 16 * 28 * 28


def test_requirements_and_exit_code(leakgauge, model, data, tmp_path):
    wanted = ("--require", "fvu>=0.3", "--require", "bytes<=1KiB", "--require", "flops<=1G")
    met = leakgauge("scan", *SMALL, *wanted, "--out", "a")
    assert (met.code, "Only the output: Only the model's output (3)" in met.out) == (0, True), met.out
    unmet = leakgauge("scan", *SMALL, "--require", "fvu>=0.3", "--require", "flops<=1k", "--out", "b")
    assert unmet.code == 3
    assert "No cut of 3 keeps an FVU of 0.3 and meets fvu>=0.3, flops<=1k." in unmet.out
    assert leakgauge("scan", *SMALL, "--threshold", 0.9, "--out", "c").code == 0  # nothing was required


def test_resume_does_only_what_is_missing(leakgauge, model, data, tmp_path):
    assert leakgauge("scan", *SMALL, "--out", "run", "-q").code == 0
    lines = (tmp_path / "run" / store.FILE).read_bytes().splitlines(keepends=True)
    found = store.read_conclusion(tmp_path / "run")
    (tmp_path / "run" / store.FILE).write_bytes(lines[0] + lines[1][:50])
    (tmp_path / "run" / store.CONCLUSION).unlink()
    assert "not finished: 1 of 3 cuts" in report_of(leakgauge, tmp_path)
    said = leakgauge("scan", SMALL[0], "--resume", "--out", "run")
    assert said.code == 0, said.err
    assert said.out.count("ridge: FVU") == 2
    assert store.read_conclusion(tmp_path / "run") == found
    assert (tmp_path / "run" / store.FILE).read_bytes().startswith(lines[0])
    assert statements(read_findings(tmp_path / "run"))[2].sentences[0] in html.unescape(report_of(leakgauge, tmp_path))


def report_of(leakgauge, tmp_path) -> str:
    assert leakgauge("report", "run", "-q").code == 0
    return (tmp_path / "run/report.html").read_text().replace("<wbr>", "")


def test_a_scan_and_an_audit_share_a_folder_and_a_report(leakgauge, model, data, tmp_path):
    assert leakgauge("scan", *SMALL, "--out", "run", "-q").code == 0
    assert leakgauge("attack", "--option", "steps=2", "--out", "run", "-q").code == 0
    page = report_of(leakgauge, tmp_path)
    assert 'id="split-cuts"' in page
    assert 'id="case-1"' in page


def test_quiet_and_the_default_folder(leakgauge, model, data, tmp_path):
    for _ in range(2):  # the second replaces the first
        said = leakgauge("scan", *SMALL, "-q")
        assert (said.code, said.out, said.err) == (0, "", "")
    found = store.read(tmp_path / "leakgauge-runs/scan")
    assert len([record for record in found if record.attack == store.RIDGE]) == 3
    assert leakgauge("scan", *SMALL, "--out", "run", "-q").code == 0
    assert "already holds a scan" in leakgauge("scan", *SMALL, "--out", "run").sentence


def test_mistakes(leakgauge, model, data, photos):
    small = SMALL[:3]
    said = leakgauge("scan", "--cut", "features.pool9")
    assert "there is no cut 'features.pool9'" in said.sentence
    assert "features.pool" in said.sentence.partition(";")[2]
    assert "'speed<=1' is not a constraint" in leakgauge("scan", *small, "--require", "speed<=1").sentence
    assert "the threshold is an FVU" in leakgauge("scan", *small, "--threshold", 7).sentence
    assert "a positive time" in leakgauge("scan", *small, "--attack-budget", "soon").sentence
    assert "at least 50 images" in leakgauge("scan", f"{model}:make", "--data", photos).sentence
    assert "unknown defense 'hope'" in leakgauge("scan", *small, "--defense", "hope").sentence
    assert "holds no scan" in leakgauge("scan", "--resume", "--out", "nowhere").sentence


def test_a_model_that_cannot_be_cut(leakgauge, data, tmp_path):
    (tmp_path / "fickle.py").write_text(UNTRACEABLE)
    said = leakgauge("scan", "fickle.py:make", "--data", data)
    assert "fickle.py:make cannot be cut: no module's output alone determines the result" in said.sentence


def test_killed_and_resumed(model, data, tmp_path):
    """SIGKILL after the first cut: its line is whole, and the resumed scan begins with the second."""
    words = ["scan", *map(str, SMALL), "--out", "run"]
    command = [sys.executable, "-m", "leakgauge"]
    started = subprocess.Popen([*command, *words], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    file = tmp_path / "run" / store.FILE
    for _ in range(4800):
        if (file.exists() and file.read_bytes().count(b"\n") >= 1) or started.poll() is not None:
            break
        time.sleep(0.05)
    os.kill(started.pid, signal.SIGKILL)
    started.communicate()
    before = [json.loads(line)["cut"] for line in file.read_bytes().split(b"\n")[:-1]]
    assert before
    done = subprocess.run(
        [*command, "scan", SMALL[0], "--resume", "--out", "run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    cuts = [record.cut for record in store.read(tmp_path / "run") if record.attack == store.RIDGE]
    assert cuts[: len(before)] == before
    assert len(cuts) == len(set(cuts)) == 3
    assert done.stdout.count("ridge: FVU") == 3 - len(before)


def test_a_scan_is_resumed_by_the_same_command_and_not_by_another(leakgauge, model, data):
    words = ("scan", *SMALL, "--out", "run", "-q")
    assert leakgauge(*words).code == 0
    assert leakgauge(*words, "--resume").code == 0
    said = leakgauge(*words, "--resume", "--seed", "3")
    assert said.code == 2
    assert "continues the scan as it was planned (--seed was not given); leave that out" in said.sentence


def test_halves_at_the_cut_that_is_named_or_recommended(leakgauge, model, data, tmp_path):
    said = leakgauge("scan", *SMALL, "--cut", "2", "--out", "run", "--export", "halves")
    assert said.code == 0, said.err
    assert "halves at 2: halves (together they are the model" in said.out
    names = {"edge.pt2", "cloud.pt2", "edge.onnx", "cloud.onnx", "split.json"}
    assert {path.name for path in (tmp_path / "halves").iterdir()} == names
    assert json.loads((tmp_path / "halves" / "split.json").read_text())["cut"] == "2"
    assert "--export" not in store.read_plan(tmp_path / "run").command
    found = store.read_conclusion(tmp_path / "run")
    store.save_conclusion(tmp_path / "run", replace(found, recommended=None))
    again = leakgauge("scan", SMALL[0], "--resume", "--out", "run", "--export", "again")
    assert again.code == 0, again.err
    assert (tmp_path / "again" / "edge.onnx").is_file()


def test_no_halves_without_a_cut(leakgauge, model, data, tmp_path):
    said = leakgauge("scan", *SMALL, "--threshold", 1, "--out", "run", "--export", "halves")
    assert said.code == 2
    assert (
        "no cut is recommended, so no halves were written; to write a cut all the same, name it alone with --cut"
        in said.err
    )
    assert not (tmp_path / "halves").exists()
    assert (tmp_path / "run" / "report.html").is_file()
    (tmp_path / "file").write_text("")
    said = leakgauge("scan", *SMALL, "--out", "other", "--export", "file")
    assert said.code == 2
    assert "file is a file; name a folder for the halves" in said.err
    assert not (tmp_path / "other").exists()


def test_weights_and_size_of_a_timm_model(leakgauge, tmp_path):
    """A network of convolutions takes any size, a transformer is built for it; wrong names and shapes end in one sentence."""
    torch.manual_seed(1)
    made, _ = timm.load("test_resnet", classes=3)
    save_file(made.state_dict(), tmp_path / "w.safetensors")
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for i in range(70):
        Image.fromarray(rng.integers(0, 255, (32, 32, 3)).astype(np.uint8)).save(tmp_path / "photos" / f"{i}.png")
    common = ("--classes", 3, "--size", 32, "--data", "photos", "--epochs", 0, "--cut", "fc", "--seed", 4)
    said = leakgauge("scan", "timm:test_resnet", "--weights", "w.safetensors", *common, "--out", "run")
    assert said.code == 0, said.err
    case = store.read_plan(tmp_path / "run").case
    found = find(case).victim
    assert (case.weights, case.size, found.space.shape) == ("w.safetensors", 32, (3, 32, 32))
    assert all(torch.equal(value, made.state_dict()[name]) for name, value in found.model.state_dict().items())
    assert "--weights w.safetensors --classes 3 --size 32" in store.read_plan(tmp_path / "run").command
    for model, sentence in {
        "timm:test_vit": "which the model does not have",
        "timm:test_efficientnet": "which the model does not have",
        "timm32:vit_tiny_patch16_224": "--size is for models of timm",
        "cnn": "the embedded cnn takes images of 28×28; --size is for models of timm",
    }.items():
        said = leakgauge("scan", model, "--weights", "w.safetensors", *common, "--out", "no")
        assert said.code == 2, model
        assert sentence in said.err, model
        assert said.err.count("\n") == 1, said.err
    said = leakgauge(
        "scan", "timm:test_resnet", "--weights", "w.safetensors", "--classes", 4, "--size", 32, "--data", "photos"
    )
    assert said.code == 2
    assert "in w.safetensors has shape (3,), the model's has (4,)" in said.err
    assert find(Case(model="timm:test_vit", data="photographs", size=64, classes=3)).images.shape[1:] == (3, 64, 64)
