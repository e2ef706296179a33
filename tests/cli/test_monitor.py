"""``leakgauge monitor`` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from leakgauge.audit.questions import training

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
model, criterion = nn.Linear(6, 3), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    optimizer.zero_grad()
    criterion(model(torch.randn(8, 6)), torch.randint(0, 3, (8,))).backward()
    optimizer.step()
    {after}
"""


@pytest.fixture
def script(tmp_path):
    def write(after: str = "pass"):
        (tmp_path / "train.py").write_text(SCRIPT.format(after=after))
        return "train.py"

    return write


def test_the_embedded_training(leakgauge, tmp_path):
    said = leakgauge("monitor", "--steps", 120, "--every", 20, "--out", "run")
    assert said.code == 0, said.err
    assert "white-box AUC       1.000" in said.out
    assert "control decoy" in said.out
    assert "report: run/report.html" in said.out
    found = training.read(tmp_path / "run")
    assert [report["step"] for report in found.reports] == [20, 40, 60, 80, 100, 120]
    assert found.reports[-1]["alarm_at"] is not None  # from its initialisation on, LeNet leaks
    assert found.about["command"] == "leakgauge monitor --every 20 --steps 120"
    page = (tmp_path / "run/report.html").read_text("utf-8")
    assert "Embedded training, LeNet, Adam" in page
    assert f"The alarm fired at step {found.reports[-1]['alarm_at']}" in page


def test_the_page_can_be_written_again(leakgauge, tmp_path):
    assert leakgauge("monitor", "--steps", 5, "--out", "run", "-q").out == ""
    (tmp_path / "run/report.html").unlink()
    assert leakgauge("report", "run").code == 0
    assert 'id="training-run"' in (tmp_path / "run/report.html").read_text("utf-8")


def test_attacks_and_a_monitored_training_share_a_folder_and_a_page(leakgauge, tmp_path):
    assert leakgauge("attack", "--option", "steps=2", "--out", "run", "-q").code == 0
    assert leakgauge("monitor", "--steps", 30, "--out", "run", "-q").code == 0
    page = (tmp_path / "run/report.html").read_text("utf-8")
    assert 'id="verdict"' in page
    assert 'id="training-run"' in page


def test_a_script_of_ones_own(leakgauge, script, tmp_path):
    said = leakgauge("monitor", "--every", 15, "--out", "run", script("print('at', step) if step == 59 else None"))
    assert said.code == 0, said.err
    assert "at 59" in said.out
    found = training.read(tmp_path / "run")
    assert found.about["training"] == "train.py"
    assert [report["step"] for report in found.reports] == [15, 30, 45, 60]


def test_a_script_that_changes_the_working_directory(leakgauge, script, tmp_path):
    """As Hydra does: the run folder is where the command line said."""
    (tmp_path / "elsewhere").mkdir()
    said = leakgauge(
        "monitor", "--every", 15, "--out", "run", script("__import__('os').chdir('elsewhere') if step == 0 else None")
    )
    assert said.code == 0, said.err
    assert [report["step"] for report in training.read(tmp_path / "run").reports] == [15, 30, 45, 60]
    assert (tmp_path / "run/report.html").is_file()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_follows_the_script_is_its_own(leakgauge, tmp_path, script):
    script()
    text = (tmp_path / "train.py").read_text()
    (tmp_path / "train.py").write_text("import sys; assert sys.argv[1:] == ['--out', 'x', '-q']\n" + text)
    assert leakgauge("monitor", "--out", "run", "train.py", "--out", "x", "-q").code == 0
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["missing.py"], "there is no file missing.py; give a training script, or nothing"),
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--steps", "9", "train.py"], "--steps and --paper belong to the embedded training"),
        (["--every", "0"], "--every counts optimizer steps between reports, at least 1; got 0"),
        (["--view", "seen"], "--view must be one of raw, clipped, released; got 'seen'"),
        (["--watch", "--port", "70000"], "--port must be from 0 to 65535"),
        (["--out", "a_file"], "cannot make the output folder a_file"),
        (["none.py"], "none.py ended without a step of a torch optimizer"),
        (["raises.py"], "raises.py raised KeyError: 'x' in line 1"),
    ],
)
def test_one_sentence(leakgauge, script, tmp_path, words, sentence):
    script()
    (tmp_path / "a_file").write_text("I am a file")
    (tmp_path / "none.py").write_text("x = 1\n")
    (tmp_path / "raises.py").write_text("{}['x']\n")
    assert sentence in leakgauge("monitor", *words).sentence


def test_a_port_that_is_taken(leakgauge, tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = leakgauge("monitor", "--watch", "--port", port, "--out", "run")
    assert f"port {port} cannot be used" in said.sentence
    assert not (tmp_path / "run").exists()


def test_a_monitored_training_is_not_overwritten(leakgauge):
    assert leakgauge("monitor", "--steps", 5, "--out", "run", "-q").code == 0
    assert "already holds a monitored training" in leakgauge("monitor", "--steps", 5, "--out", "run").sentence


def test_the_default_folder_holds_the_last_run(leakgauge, tmp_path):
    for seed in (1, 2):
        assert leakgauge("monitor", "--steps", 5, "--seed", seed, "-q").code == 0
    assert training.read(tmp_path / "leakgauge-runs/monitor").about["seed"] == 2


def test_a_script_that_breaks_off_keeps_what_was_seen(leakgauge, script, tmp_path):
    said = leakgauge("monitor", "--every", 10, "--out", "run", script("if step == 33: raise RuntimeError('late')"))
    assert "train.py raised RuntimeError: late in line 12" in said.sentence
    found = training.read(tmp_path / "run")
    assert [report["step"] for report in found.reports] == [10, 20, 30, 34]
    assert found.end["how"] == "failed"
    assert "failed after 34 steps" in (tmp_path / "run/report.html").read_text("utf-8")


def test_ctrl_c_ends_with_what_was_measured(leakgauge, script, tmp_path):
    said = leakgauge("monitor", "--every", 10, "--out", "run", script("if step == 33: raise KeyboardInterrupt"))
    assert said.code == 130
    assert said.err == "leakgauge: interrupted; the measurements so far are in run\n"
    assert "InfoNCE" in said.out
    assert training.read(tmp_path / "run").end["how"] == "interrupted"
    assert "interrupted after 34 steps" in (tmp_path / "run/report.html").read_text("utf-8")


def test_ctrl_c_before_the_first_step(leakgauge, tmp_path):
    (tmp_path / "slow.py").write_text("raise KeyboardInterrupt\n")
    said = leakgauge("monitor", "--out", "run", "slow.py")
    assert (said.code, said.out, said.err) == (130, "", "leakgauge: interrupted; nothing was measured\n")


def test_a_failed_start_leaves_the_report_of_attacks_alone(leakgauge, tmp_path):
    (tmp_path / "none.py").write_text("x = 1\n")
    assert leakgauge("attack", "--option", "steps=2", "--out", "run", "-q").code == 0
    assert leakgauge("monitor", "--out", "run", "none.py").code == 2
    assert (tmp_path / "run/report.html").is_file()


def test_a_real_ctrl_c_while_the_page_is_served(tmp_path):
    words = ["monitor", "--watch", "--port", "0", "--steps", "100000", "--out", "run", "--every", "5"]
    process = subprocess.Popen(
        [sys.executable, "-m", "leakgauge", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        patience = time.monotonic() + 120
        while time.monotonic() < patience:
            file = tmp_path / "run" / training.FILE
            if file.exists() and len(file.read_text().splitlines()) > 4:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "live page: http://127.0.0.1:" in out
    assert "Traceback" not in out + err
    assert json.loads((tmp_path / "run" / training.FILE).read_text().splitlines()[-1])["how"] == "interrupted"
    assert (tmp_path / "run/report.html").is_file()


def test_quiet_prints_nothing_of_its_own(leakgauge, script):
    said = leakgauge("monitor", "-q", script())
    assert (said.code, said.out, said.err) == (0, "", "")


def test_a_script_that_ends_by_an_error_of_ours_keeps_what_was_seen(leakgauge, script, tmp_path):
    """Such as an attack of its own that does not apply."""
    ours = "if step == 33: raise __import__('leakgauge.errors').errors.Inapplicable('nothing to attack')"
    said = leakgauge("monitor", "--every", 10, "--out", "run", script(ours))
    assert (said.code, said.sentence) == (2, "leakgauge: nothing to attack")
    assert training.read(tmp_path / "run").end["how"] == "failed"
    assert "failed after 34 steps" in (tmp_path / "run/report.html").read_text("utf-8")
