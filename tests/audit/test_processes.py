"""Cases in other processes: the same records, and a killed worker or driver costs no more than the case under way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from leakgauge.audit import Case, embedded, plan, records, run_all
from leakgauge.audit.processes import PRELOADED, Processes, _portable
from leakgauge.errors import BadInput
from leakgauge.integrations.setups import find
from tests.comparing import table

CASES = [Case(first=i, options={"steps": 2}) for i in range(3)]

HELPERS = """
import os, signal
from pathlib import Path
from leakgauge.audit import embedded
from leakgauge.errors import BadInput

MARK = Path(__file__).with_name("died")


def dies_once(case):
    if case.first == 1 and not MARK.exists():
        MARK.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return embedded(case)


def dies_always(case):
    if case.first == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return embedded(case)


def crashes(case):
    if case.first == 1:
        raise RuntimeError("lost the data")
    return embedded(case)


def refuses(case):
    raise BadInput("a user's mistake")


def asks_the_environment(case):
    raise RuntimeError(os.environ.get("ASKED_BY_A_WORKER", "nothing"))
"""


@pytest.fixture
def loads(tmp_path, monkeypatch):
    """Loads that workers can import by name."""
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "loads_of_workers.py").write_text(HELPERS)
    monkeypatch.syspath_prepend(str(tmp_path / "helpers"))
    import loads_of_workers

    yield loads_of_workers
    del sys.modules["loads_of_workers"]


@pytest.fixture
def here(tmp_path):
    (tmp_path / "here").mkdir()
    return run_all(CASES, load=embedded, folder=tmp_path / "here")


def test_the_same_records_as_here(here, tmp_path):
    (tmp_path / "there").mkdir()
    found = run_all(CASES, load=embedded, folder=tmp_path / "there", map=Processes(2))
    assert table(found) == table(here)
    assert [r.key for r in records.read(tmp_path / "there")] == [c.key() for c in CASES]


def test_a_killed_worker_is_replaced_and_its_case_run_again(here, loads, tmp_path):
    (tmp_path / "there").mkdir()
    found = run_all(CASES, load=loads.dies_once, folder=tmp_path / "there", map=Processes(1))
    assert loads.MARK.exists()
    assert table(found) == table(here)


def test_a_case_that_always_kills_its_worker_is_an_error_record(here, loads, tmp_path):
    (tmp_path / "there").mkdir()
    found = run_all(CASES, load=loads.dies_always, folder=tmp_path / "there", map=Processes(1))
    assert [r.status for r in found] == ["done", "error", "done"]
    assert found[1].reason == "its process died 2 times (exit code -9)"
    assert (found[1].verdict, found[1].scores) == (None, None)
    assert table([found[0], found[2]]) == table([here[0], here[2]])


def test_a_crash_is_an_error_record_and_a_mistake_is_raised(loads, tmp_path):
    found = run_all(CASES, load=loads.crashes, folder=tmp_path, map=Processes(2))
    assert [r.status for r in found] == ["done", "error", "done"]
    assert found[1].reason == "RuntimeError: lost the data"
    with pytest.raises(BadInput, match="a user's mistake"):
        run_all([Case(first=7)], load=loads.refuses, folder=tmp_path, map=Processes(1))


def test_records_in_any_order_are_put_into_the_cases_order(quick, load, tmp_path):
    cases = [quick(first=i) for i in range(3)]

    def backwards(run, todo):
        return (run(case) for case in reversed(list(todo)))

    found = run_all(cases, load=load, folder=tmp_path, map=backwards)
    assert [r.key for r in found] == [c.key() for c in cases]
    assert [r.key for r in records.read(tmp_path)] == [c.key() for c in cases]


def test_no_workers_are_refused():
    with pytest.raises(BadInput, match="at least 1 worker"):
        Processes(0)


def test_a_killed_driver_can_be_resumed_and_gives_the_same_table(tmp_path):
    """SIGKILL to the driver while its workers are at work; what had a record stays, the rest is done by resuming."""
    words = ["audit", "cnn", "--mode", "eval", "--seed", "3", "--option", "steps=20", "--defense", "prune:0.5", "-q"]
    words += ["--only", "updates"]
    driver = subprocess.Popen(
        [sys.executable, "-m", "leakgauge", *words, "--workers", "2", "--out", "cut"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    path, patience = tmp_path / "cut" / records.FILE, time.monotonic() + 120
    while not (path.exists() and path.stat().st_size) and time.monotonic() < patience and driver.poll() is None:
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    cases = plan.read(tmp_path / "cut").every_case
    assert 1 <= len(records.read(tmp_path / "cut")) < len(cases)
    resumed = run_all(cases, load=find, folder=tmp_path / "cut", resume=True)
    (tmp_path / "whole").mkdir()
    whole = run_all(cases, load=find, folder=tmp_path / "whole")
    assert table(resumed) == table(whole)
    assert table(records.read(tmp_path / "cut")) == table(records.read(tmp_path / "whole"))


def test_a_worker_has_the_environment_of_its_start(loads, tmp_path, monkeypatch):
    for said in ("first", "second"):  # the server of the workers is the same, and older than the second
        monkeypatch.setenv("ASKED_BY_A_WORKER", said)
        (tmp_path / said).mkdir()
        (record,) = run_all(CASES[:1], load=loads.asks_the_environment, folder=tmp_path / said, map=Processes(1))
        assert record.status == "error"
        assert said in record.reason


def test_what_workers_are_forked_from_never_touched_a_gpu():
    """A process that was forked after CUDA was asked for anything cannot use it."""
    script = (
        "import sys, torch\n"
        "def touched(*_): raise SystemExit('a GPU was asked for on import')\n"
        "torch.cuda.is_available = torch.cuda.device_count = torch.cuda.init = torch.cuda._lazy_init = touched\n"
        "for name in sys.argv[1:]: __import__(name)\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *PRELOADED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


class Unpicklable(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} {code}")


def test_an_error_that_cannot_travel_keeps_its_words():
    mistake = BadInput("a mistake")
    assert _portable(mistake) is mistake
    assert str(_portable(Unpicklable(3, "lost"))) == "Unpicklable: lost 3"
