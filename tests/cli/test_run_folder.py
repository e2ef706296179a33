"""An old run is replaced by a new one, never by a mistake."""

import pytest

from leakgauge.audit.files import LOCK
from leakgauge.cli.options import ASKED
from leakgauge.cli.run_folder import claimed, refuse_changes, remember
from leakgauge.errors import BadInput

NAMES = ("records", "page", "pictures")


@pytest.fixture
def old(tmp_path):
    folder = tmp_path / "runs/attack"
    (folder / "pictures").mkdir(parents=True)
    for name in ("records", "page", "pictures/a.png", "of another command"):
        (folder / name).write_text("old")
    return folder


def held(folder):
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file() and p.name != LOCK}


def claim(folder, *, replace_old=True):
    return claimed(folder, NAMES, replace_old=replace_old, refusal="a run")


def fail(folder, after_writing, error):
    """A run that has written one file when it fails."""
    with claim(folder):
        file = folder / after_writing
        file.parent.mkdir(exist_ok=True)
        file.write_text("new")
        raise error


def test_a_new_run_takes_the_place_of_the_old(old):
    with claim(old):
        assert held(old).keys() - {".replaced/records", ".replaced/page", ".replaced/pictures/a.png"} == {
            "of another command"
        }
        (old / "records").write_text("new")
    assert held(old) == {"records": "new", "of another command": "old"}


def test_a_run_is_known_by_any_of_its_marks(old):
    (old / "records").unlink()
    with claimed(old, NAMES, replace_old=False, refusal="a run"):
        pass  # a page alone may be of another command
    marks = ("records", "page")
    with (
        pytest.raises(BadInput, match="already holds a run"),
        claimed(old, NAMES, replace_old=False, refusal="a run", marks=marks),
    ):
        pass
    with claimed(old, NAMES, replace_old=True, refusal="a run", marks=marks):
        assert not (old / "page").exists()


@pytest.mark.parametrize("error", [BadInput("a mistake"), KeyboardInterrupt(), OSError("full")])
def test_a_mistake_brings_the_old_run_back(old, error):
    before = held(old)
    with pytest.raises(type(error)):
        fail(old, "pictures/b.png", error)
    assert held(old) == before


def test_what_the_new_run_measured_is_kept(old):
    with pytest.raises(BadInput):
        fail(old, "records", BadInput("late"))
    assert held(old) == {"records": "new", "of another command": "old"}


def test_an_old_run_is_refused(old):
    before = held(old)
    with pytest.raises(BadInput, match="already holds a run"), claim(old, replace_old=False):
        raise AssertionError("not reached")
    assert held(old) == before


def test_files_of_other_commands_are_no_old_run(old):
    (old / "records").unlink()
    before = held(old)
    with claim(old, replace_old=False):
        assert held(old) == before


def test_folders_made_for_nothing_go(tmp_path):
    with pytest.raises(BadInput), claim(tmp_path / "runs/attack"):
        raise BadInput("a mistake")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        (["attack", "--option", "steps=2"], ["attack", "--first", 999999]),
        (["monitor", "--steps", 30, "--every", 15], ["monitor", "missing_optimizer.py"]),
    ],
)
def test_a_mistake_in_a_command_keeps_the_last_run(words, mistake, leakgauge, tmp_path):
    (tmp_path / "missing_optimizer.py").write_text("x = 1")
    assert leakgauge(*words, "-q").code == 0
    before = {p: p.read_bytes() for p in (tmp_path / "leakgauge-runs").rglob("*") if p.is_file()}
    assert len(before) >= 2
    assert leakgauge(*mistake).code == 2
    assert {p: p.read_bytes() for p in (tmp_path / "leakgauge-runs").rglob("*") if p.is_file()} == before


def test_a_run_goes_on_by_what_it_was_asked_and_by_nothing_else(tmp_path):
    refuse_changes(tmp_path, {"seed": "3"}, kind="scan")  # no run is here; going on with it says so
    remember(tmp_path, {"model": "cnn", "seed": "3"})
    for same in ({}, {"seed": "3"}, {"model": "cnn", "seed": "3"}):
        refuse_changes(tmp_path, same, kind="scan")
    with pytest.raises(BadInput, match=r"scan as it was planned \(--batch-size was not given, --seed was 3\)"):
        refuse_changes(tmp_path, {"seed": "4", "batch_size": "2"}, kind="scan")
    (tmp_path / ASKED).write_text("{")
    with pytest.raises(BadInput, match=r"asked\.json cannot be read"):
        refuse_changes(tmp_path, {}, kind="scan")


def test_an_audit_that_is_refused_leaves_no_folder(leakgauge, tmp_path, photos, model):
    words = ("audit", f"{model}:nan", "--data", photos, "--only", "updates", "--option", "steps=1", "--out", "deep/run")
    before = sorted(tmp_path.iterdir())
    assert leakgauge(*words, "--batch-size", 10**6).code == 2
    made = {path.name for path in tmp_path.iterdir()} - {path.name for path in before}
    assert made <= {"__pycache__"}  # of the model's file, where Python keeps what it has compiled


def test_a_question_that_fails_before_its_first_record_says_why(leakgauge, tmp_path, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("the fork server is gone")

    monkeypatch.setattr("leakgauge.audit.whole.run_all", fails)
    said = leakgauge("audit", "cnn", "--only", "updates", "--option", "steps=1", "--out", "run")
    assert said.code == 2
    assert "updates failed before anything was measured: RuntimeError: the fork server is gone" in said.sentence
