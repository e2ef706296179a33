"""A real local Ray cluster: the same records as here, and a killed worker costs its case alone."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from leakgauge.audit import Case, embedded, run_all
from leakgauge.errors import BadInput
from leakgauge.integrations.ray import OnRay
from tests.comparing import table

ray = pytest.importorskip("ray")

CASES = [Case(first=i, options={"steps": 2}) for i in range(3)]


@pytest.fixture(scope="module")
def cluster():
    """One cluster for all tests of this file: starting it takes seconds. It believes that it has a GPU."""
    ray.init(num_cpus=2, num_gpus=1, log_to_driver=False, logging_level="error", include_dashboard=False)
    yield
    ray.shutdown()


def dies(case: Case):
    if case.first == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return embedded(case)


def mistaken(case: Case):
    raise BadInput("a user's mistake")


def looking(case: Case):
    raise BadInput(f"sees GPU {os.environ.get('CUDA_VISIBLE_DEVICES')!r}")


@pytest.mark.parametrize(("device", "gpus", "seen"), [("cuda", None, "'0'"), ("cpu", None, "''"), ("cpu", 1, "'0'")])
def test_a_case_on_a_gpu_is_given_one(device, gpus, seen, cluster, tmp_path, monkeypatch):
    """A task that asks for no GPU sees none, and ``--ray --device cuda`` could not run."""
    monkeypatch.setattr(looking, "__module__", "__main__")
    with pytest.raises(BadInput, match=f"sees GPU {seen}"):
        run_all([Case(device=device)], load=looking, folder=tmp_path, map=OnRay(gpus=gpus))


def test_on_a_real_cluster(cluster, tmp_path):
    for name in ("here", "there", "dying"):
        (tmp_path / name).mkdir()
    here = run_all(CASES, load=embedded, folder=tmp_path / "here")
    there = run_all(CASES, load=embedded, folder=tmp_path / "there", map=OnRay())
    assert table(there) == table(here)
    assert (tmp_path / "there" / there[0].pictures["truth"]).is_file()
    assert ray.is_initialized()  # a cluster that was there stays

    local = pytest.MonkeyPatch()
    with local.context() as patch:
        patch.setattr(dies, "__module__", "__main__")  # carried by value: workers cannot import a test
        patch.setattr(mistaken, "__module__", "__main__")
        found = run_all(CASES, load=dies, folder=tmp_path / "dying", map=OnRay(retries=0))
        assert [r.status for r in found] == ["done", "error", "done"]
        assert "its worker died" in found[1].reason
        assert found[1].verdict is None
        with pytest.raises(BadInput, match="a user's mistake"):
            run_all([replace(CASES[0], name="", first=9)], load=mistaken, folder=tmp_path, map=OnRay())


def test_what_is_refused():
    with pytest.raises(BadInput, match="not negative"):
        OnRay(cpus=-1)
