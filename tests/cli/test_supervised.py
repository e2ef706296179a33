"""An end without a verdict fails the gate, whatever ended the process, and signals reach the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

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


def _wait_for(path):
    for _ in range(1200):
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
    _, err = run.communicate(timeout=30)
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
    _, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert err.startswith("leakgauge: interrupted;")
    assert err.count("\n") == 1


def test_a_verdict_keeps_its_exit_code(odd):
    run = odd("print('hello')", "--option", "steps=2", "--fail-over", "infeasible", "-q")
    _, err = run.communicate(timeout=120)
    assert (run.returncode in (0, 3), err) == (True, "")
