"""An end without a verdict fails the gate, whatever ended the process, and signals reach the command."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from leakgauge.audit.questions import training

MODEL = """
import os, signal, sys, time
from pathlib import Path
from torch import nn
from leakgauge import Pixels

class Odd(nn.Sequential):
    def forward(self, x):
        {what}
        return super().forward(x)

def make():
    return Odd(nn.Flatten(), nn.Linear(192, 3)), Pixels((3, 8, 8))
"""
DEAF = """
        Path("pid").write_text(str(os.getpid()))
        while True:
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                Path("heard").touch()
"""


@pytest.fixture
def odd(tmp_path, photos):
    """Starts ``leakgauge`` on a model that does something odd in its forward pass."""

    def start(what, *words, command="attack"):
        (tmp_path / "odd.py").write_text(MODEL.format(what=what))
        words = [command, "odd.py:make", "--data", photos, *words]
        return subprocess.Popen(
            [sys.executable, "-m", "leakgauge", *words],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    return start


@pytest.mark.parametrize(
    ("what", "command", "code", "said"),
    [
        ("os._exit(0)", "attack", 2, "the model's code ended the process (exit code 0) before there was a verdict"),
        ("os._exit(5)", "inspect", 2, "the model's code ended the process (exit code 5) before there was a verdict"),
        ("os.fork() or time.sleep(5); os._exit(0)", "scan", 2, "ended the process (exit code 0)"),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            "attack",
            -signal.SIGKILL,
            "ended by SIGKILL before there was a verdict",
        ),
    ],
)
def test_an_end_without_a_verdict_is_never_a_pass(odd, what, command, code, said):
    done = odd(what, command=command)
    _, err = done.communicate(timeout=120)
    assert done.returncode == code
    assert said in err
    assert err.count("\n") == 1


SCRIPT = """
import atexit, os, signal, sys, time
from pathlib import Path
import torch
from torch import nn
{before}
model, criterion = nn.Linear(6, 3), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({steps}):
    optimizer.zero_grad()
    criterion(model(torch.randn(8, 6)), torch.randint(0, 3, (8,))).backward()
    optimizer.step()
    {after}
"""


@pytest.fixture
def script(tmp_path):
    """Starts ``leakgauge monitor`` on a training that does something odd."""

    def start(before="", after="pass", *, steps=30):
        (tmp_path / "train.py").write_text(SCRIPT.format(before=before, after=after, steps=steps))
        return subprocess.Popen(
            [sys.executable, "-m", "leakgauge", "monitor", "--out", "run", "--every", "5", "-q", "train.py"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


KEPT = "before the monitor could finish; what was measured is kept, and leakgauge report FOLDER shows it"


@pytest.mark.parametrize(
    ("after", "code", "said"),
    [
        ("if step == 20: os._exit(0)", 2, f"the script ended the process (exit code 0) {KEPT}; look for os._exit"),
        ("if step == 20: signal.raise_signal(9)", -9, f"the command was ended by SIGKILL {KEPT}"),
    ],
)
def test_a_script_that_ends_the_monitor_is_noticed_and_loses_nothing(script, leakgauge, tmp_path, after, code, said):
    done = script(after=after)
    _, err = done.communicate(timeout=120)
    assert (done.returncode, err) == (code, f"leakgauge: {said}\n")
    assert [report["step"] for report in training.read(tmp_path / "run").reports][:4] == [5, 10, 15, 20]
    assert leakgauge("report", "run").code == 0


def test_an_exit_handler_of_a_script_does_not_change_the_end(script):
    done = script(before="atexit.register(os._exit, 0)", after="if step == 20: sys.exit(7)")
    _, err = done.communicate(timeout=120)
    assert (done.returncode, err) == (2, "leakgauge: train.py ended with exit code 7\n")


def test_a_copy_of_the_process_does_not_speak_for_it(script):
    """A forked worker that leaves by ``sys.exit`` goes through the same end as the command itself."""
    done = script(after="if step == 20 and (os.fork() == 0 or time.sleep(3) or os._exit(0)): sys.exit(0)")
    _, err = done.communicate(timeout=120)
    assert done.returncode == 2
    assert f"the script ended the process (exit code 0) {KEPT}" in err


def test_signals_of_a_scheduler_reach_the_script(script, tmp_path):
    ready = "signal.signal(signal.SIGUSR1, lambda *_: Path('saved').touch()); Path('pid').write_text('1')"
    run = script(before=ready, after="time.sleep(0.1)\n    if Path('saved').exists(): break", steps=1000)
    _wait_for(tmp_path / "pid")
    run.send_signal(signal.SIGUSR1)
    _, err = run.communicate(timeout=120)
    assert (run.returncode, err) == (0, "")


def test_ctrl_c_at_a_terminal_reaches_a_script_once(script, tmp_path):
    """A script that stops at the first Ctrl-C, and gives up at the second, gets one; the live page is served meanwhile."""
    ready = "heard = []; signal.signal(signal.SIGINT, lambda *_: heard.append(1)); Path('pid').write_text('1')"
    after = "time.sleep(0.1)\n    if heard: time.sleep(1); Path('heard').write_text(str(len(heard))); break"
    (tmp_path / "train.py").write_text(SCRIPT.format(before=ready, after=after, steps=1000))
    words = ["-m", "leakgauge", "monitor", "--out", "run", "--watch", "--port", "0", "train.py"]
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, *words])
    try:
        _wait_for(tmp_path / "pid")
        page = _read_until(terminal, r"http://127\.0\.0\.1:\d+/")
        assert urllib.request.urlopen(page, timeout=10).status == 200
        os.write(terminal, b"\x03")
        _read_until(terminal, "report: run/report.html")
    finally:
        os.close(terminal)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (tmp_path / "heard").read_text() == "1"


def _read_until(terminal, pattern):
    text = ""
    while not (found := re.search(pattern, text)):
        text += os.read(terminal, 4096).decode()
    return found[0]


def _wait_for(path):
    for _ in range(4800):
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.05)
    raise AssertionError(f"{path} never came")


def _is_gone(pid):
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_command_is_ended(odd, tmp_path, number):
    run = odd(DEAF.strip())
    child = int(_wait_for(tmp_path / "pid"))
    assert child != run.pid
    run.send_signal(number)
    assert run.wait(30) == -number
    assert _is_gone(child)


def test_a_model_that_swallows_ctrl_c_is_ended(odd, tmp_path):
    run = odd(DEAF.strip())
    child = int(_wait_for(tmp_path / "pid"))
    for _ in range(3):
        run.send_signal(signal.SIGINT)
        time.sleep(0.7)
    _, err = run.communicate(timeout=240)
    assert run.returncode == 130
    assert "the model's code did not let go and was ended" in err
    assert (tmp_path / "heard").exists()
    assert _is_gone(child)


def test_an_interrupt_inside_eval_of_a_text_is_an_interrupt(odd, tmp_path):
    """Python marks such an interrupt as unhandled and ends itself by the signal, even after it was handled."""
    run = odd("Path('pid').write_text('1'); eval('time.sleep(60)')")
    _wait_for(tmp_path / "pid")
    time.sleep(0.5)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=240)
    assert run.returncode == 130
    assert err.startswith("leakgauge: interrupted;")
    assert err.count("\n") == 1


def test_a_verdict_keeps_its_exit_code(odd):
    run = odd("print('hello')", "--option", "steps=2", "--fail-over", "infeasible", "-q")
    _, err = run.communicate(timeout=120)
    assert (run.returncode in (0, 3), err) == (True, "")
