"""What a hostile or unlucky user gives: never a wrong all-clear, never a file replaced that nobody named, never an escape obeyed."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
import threading
from xml.etree import ElementTree

import pytest
import torch

from leakgauge.audit import records, whole
from leakgauge.audit.files import LOCK, append_line, sole_writer, write_whole
from leakgauge.audit.run import run_all
from leakgauge.cli.terminal import shown
from leakgauge.errors import BadInput, harmless

FAST = ("--option", "steps=2")
LEAVES = """
import sys
from torch import nn
from leakgauge import Pixels

class Leaves(nn.Sequential):
    def forward(self, x):
        sys.exit({code})

def make():
    return Leaves(nn.Flatten(), nn.Linear(192, 3)), Pixels((3, 8, 8))
"""


@pytest.mark.parametrize("code", ["", "0", "5", "'bye'"])
@pytest.mark.parametrize("command", ["attack", "audit"])
def test_a_model_that_ends_the_program_never_passes_the_gate(leakgauge, tmp_path, photos, command, code):
    (tmp_path / "leaves.py").write_text(LEAVES.format(code=code))
    said = leakgauge(command, "leaves.py:make", "--data", photos, *FAST, "--fail-over", "partial", "--out", "run")
    assert said.code == 2
    assert "ended the program" in said.sentence


@pytest.mark.parametrize(
    "words",
    [
        ("audit", ""), ("attack", "cnn", "--data", ""), ("attack", "cnn", "--out", ""), ("attack", "cnn", "--out="),
        ("scan", "--require", ""), ("audit", "cnn", "--mode", ""), ("report", ""), ("monitor", "--out", ""), ("monitor", ""),
        ("compare", "a", ""), ("attack", "cnn", "--json", ""),
    ],
)  # fmt: skip
def test_an_empty_word_is_a_mistake(leakgauge, tmp_path, words):
    said = leakgauge(*words)
    assert said.code == 2
    assert "empty text" in said.sentence
    assert list(tmp_path.iterdir()) == []


def test_what_follows_a_script_is_its_own_affair(leakgauge, tmp_path):
    (tmp_path / "train.py").write_text("import sys\nassert sys.argv[1:] == ['--name', '']\n")
    assert "empty text" not in leakgauge("monitor", "train.py", "--name", "").err


def test_a_folder_name_is_not_markup(leakgauge, tmp_path):
    said = leakgauge("attack", "cnn", *FAST, "--out", "mk[/foo]")
    assert said.code == 0, said.err
    assert "report: mk[/foo]/report.html" in said.out


def test_a_name_cannot_obey_the_terminal(leakgauge):
    said = leakgauge("attack", "cnn", "--data", "\x1b]0;pwn\x07\x1b[2Jx")
    assert said.code == 2
    assert "\x1b" not in said.err
    assert "\\x1b[2Jx" in said.err


def test_control_characters_and_markup_are_shown():
    assert harmless("a\x1b[31mb\u202ec\td\n") == "a\\x1b[31mb\\u202ec\td\n"
    assert shown("[red]x") == "\\[red]x"
    assert harmless("\udcff") == "\\udcff"


def test_no_local_variable_is_printed_in_a_crash(tmp_path):
    script = "from leakgauge.cli.app import app\nassert app.pretty_exceptions_enable is False\n"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_link_is_not_followed_and_its_target_stays(leakgauge, tmp_path):
    (tmp_path / "real.json").write_text("mine")
    (tmp_path / "link.json").symlink_to("real.json")
    said = leakgauge("attack", "cnn", *FAST, "--json", "link.json", "--out", "run")
    assert said.code == 2
    assert "is a link" in said.sentence
    assert (tmp_path / "real.json").read_text() == "mine"
    assert (tmp_path / "link.json").is_symlink()
    for write in (lambda path: write_whole(path, b"x"), lambda path: append_line(path, "x\n")):
        with pytest.raises(BadInput, match="is a link"):
            write(tmp_path / "link.json")


def test_a_pipe_is_written_into(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"verdict")
    reader.join(5)
    assert read == [b"verdict"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_drafts_cannot_be_planted(tmp_path, monkeypatch):
    (tmp_path / "victim").write_text("mine")
    monkeypatch.setattr("leakgauge.audit.files.secrets.token_hex", lambda _: "known")
    (tmp_path / ".a.known.part").symlink_to("victim")
    with pytest.raises(OSError, match="exists"):
        write_whole(tmp_path / "a", b"x")
    assert (tmp_path / "victim").read_text() == "mine"


def test_one_writer_per_folder(leakgauge, tmp_path):
    with sole_writer(tmp_path / "run"):
        said = leakgauge("attack", "cnn", *FAST, "--out", "run")
        assert said.code == 2
        assert f"is being written by process {os.getpid()} since" in said.sentence
    assert not (tmp_path / "run" / LOCK).exists()
    assert leakgauge("attack", "cnn", *FAST, "--out", "run").code == 0


def test_a_lock_that_its_owner_just_removed_is_no_lock(tmp_path, monkeypatch):
    """Between opening the file and locking it, its owner may remove it, and a third process may hold a new one."""
    real, others = fcntl.flock, list[int]()

    def late(descriptor, how):
        monkeypatch.setattr(fcntl, "flock", real)
        (tmp_path / "run" / LOCK).unlink()
        others.append(os.open(tmp_path / "run" / LOCK, os.O_RDWR | os.O_CREAT))
        real(others[0], fcntl.LOCK_EX)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(BadInput, match="is being written by"), sole_writer(tmp_path / "run"):
        raise AssertionError("two writers")
    os.close(others[0])


def test_a_second_audit_leaves_the_files_of_the_first_alone(leakgauge, tmp_path):
    """The first has not planned yet, so nothing but its lock shows that it is there."""
    words = ("audit", "cnn", "--only", "updates", "--mode", "eval", "--batch-size", 1, *FAST, "--out", "run")
    with sole_writer(tmp_path / "run"):
        (tmp_path / "run" / "asked.json").write_text("of the first")
        assert "is being written by process" in leakgauge(*words).sentence
        assert "is being written by process" in leakgauge(*words, "--resume").sentence
        assert (tmp_path / "run" / "asked.json").read_text() == "of the first"


def test_a_record_is_not_withdrawn_while_its_run_goes_on(leakgauge, tmp_path):
    assert leakgauge("attack", "cnn", *FAST, "--out", "run").code == 0
    words = ("withdraw", "run", "1", "--author", "Ada", "--reason", "wrong weights")
    with sole_writer(tmp_path / "run"):
        assert "is being written by process" in leakgauge(*words).sentence
    file = tmp_path / "run" / "records.jsonl"
    record = json.loads(file.read_text())
    record["case"]["name"] = "\x1b[2Jname"
    file.write_text(json.dumps(record) + "\n")
    said = leakgauge(*words)
    assert said.code == 0, said.err
    assert "withdrawn: \\x1b[2Jname" in said.out


def test_a_run_that_was_put_aside_by_a_killed_process_comes_back(leakgauge, tmp_path):
    assert leakgauge("attack", "cnn", *FAST).code == 0
    folder = tmp_path / "leakgauge-runs" / "attack"
    old = (folder / "records.jsonl").read_bytes()
    (folder / ".replaced").mkdir()
    for name in ("records.jsonl", "report.html"):
        (folder / name).rename(folder / ".replaced" / name)
    assert leakgauge("attack", "cnn", "--option", "nonsense=1").code == 2
    assert leakgauge("attack", "cnn", "--data", "nowhere").code == 2
    assert (folder / "records.jsonl").read_bytes() == old


@pytest.mark.parametrize("command", ["attack", "audit"])
def test_the_files_for_machines_say_no_until_there_is_a_verdict(leakgauge, tmp_path, photos, command):
    """An earlier pass must not be taken for the answer of a run that ended without one."""
    (tmp_path / "leaves.py").write_text(LEAVES.format(code=0))
    for name in ("verdict.json", "verdict.xml", "verdict.md"):
        (tmp_path / name).write_text("an earlier pass")
    files = ("--json", "verdict.json", "--junit", "verdict.xml", "--markdown", "verdict.md")
    assert leakgauge(command, "leaves.py:make", "--data", photos, *FAST, *files, "--out", "run").code == 2
    assert json.loads((tmp_path / "verdict.json").read_text())["exit_code"] == 2
    suite = ElementTree.fromstring((tmp_path / "verdict.xml").read_text())
    assert (suite.get("errors"), suite.get("tests")) == ("1", "1")
    assert suite.find("testcase/error") is not None
    assert "**Gate failed**" in (tmp_path / "verdict.md").read_text()


def test_a_question_that_fails_half_way_gives_no_all_clear(leakgauge, tmp_path, monkeypatch):
    """The cases that have a verdict pass; those that have none must not be forgotten by the files for machines."""

    def fails_late(cases, **how):
        run_all(cases[:1], **how)
        raise EOFError("the fork server is gone")

    monkeypatch.setattr("leakgauge.audit.whole.run_all", fails_late)
    words = (
        "audit",
        "cnn",
        "--only",
        "updates",
        "--mode",
        "eval",
        *FAST,
        "--fail-over",
        "partial",
        "--out",
        "run",
        "-q",
    )
    files = ("--json", "verdict.json", "--junit", "verdict.xml", "--markdown", "verdict.md")
    said = leakgauge(*words, *files)
    assert said.code == 1
    assert "the question updates failed: EOFError: the fork server is gone" in said.err
    assert len(records.read(tmp_path / "run")) == 1
    assert json.loads((tmp_path / "verdict.json").read_text())["exit_code"] == 2
    assert ElementTree.fromstring((tmp_path / "verdict.xml").read_text()).get("errors") == "1"
    assert "**Gate failed**" in (tmp_path / "verdict.md").read_text()


def test_the_exit_code_in_the_file_is_the_exit_code(leakgauge, tmp_path, monkeypatch):
    def fails(run):
        raise RuntimeError("no training today")

    monkeypatch.setattr(whole, "_ANSWERS", {**whole._ANSWERS, "training": fails})
    words = ("audit", "cnn", "--only", "updates", "--only", "training", "--mode", "eval", "--batch-size", 1, *FAST)
    said = leakgauge(*words, "--training-steps", 5, "--json", "verdict.json", "--out", "run", "-q")
    assert "the question training failed: RuntimeError: no training today" in said.err
    assert (said.code, json.loads((tmp_path / "verdict.json").read_text())["exit_code"]) == (1, 1)


def test_a_crash_is_told_without_values(leakgauge, tmp_path, photos, monkeypatch):
    """Neither the traceback nor the record of a crash shows pixels or labels, whatever prints tracebacks otherwise."""
    monkeypatch.setattr("leakgauge.audit.run.attack_case", _crash)
    said = leakgauge("attack", "cnn", *FAST, "--out", "run", "--quiet")
    assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
    assert "strongest: ValueError: cannot use" in said.err
    record = (tmp_path / "run" / "records.jsonl").read_text()
    assert "test_hostile.py" in record
    assert "ValueError: cannot use … and … of shape [1, 1, 28, 28]" in record
    monkeypatch.setattr("leakgauge.audit.run.run_case", _crash)
    said = leakgauge("attack", "cnn", *FAST, "--out", "other")
    assert said.code == 1
    assert "ValueError: cannot use … and …" in said.err
    for text in (record, said.err):
        assert "0.123" not in text
        assert "7, 7" not in text


def _crash(*_, **__):
    pixels = torch.full((2, 2), 0.123)
    raise ValueError(f"cannot use {pixels} and {[7] * 9} of shape [1, 1, 28, 28]")


def test_a_run_is_for_its_owner_alone(leakgauge, tmp_path):
    old = os.umask(0o022)
    try:
        assert leakgauge("attack", "cnn", *FAST, "--out", "deep/run", "--json", "verdict.json").code == 0
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "deep/run").rglob("*")}
    assert stat.S_IMODE((tmp_path / "deep/run").stat().st_mode) == modes.pop("pictures") == 0o700
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "verdict.json").stat().st_mode) == 0o644  # for the machine that asked


MISSING_FILE = """
from torch import nn
from leakgauge import Pixels

class Reads(nn.Sequential):
    def forward(self, x):
        return super().forward(x) if len(x) < 2 or not self.training else open("/no/such/vocabulary")

def make():
    return Reads(nn.Flatten(), nn.Linear(192, 3)), Pixels((3, 8, 8))
"""


def test_a_file_that_the_model_misses_is_not_a_full_disk(leakgauge, tmp_path, photos):
    (tmp_path / "reads.py").write_text(MISSING_FILE)
    words = ("--mode", "train", "--batch-size", 2, *FAST, "--fail-over", "partial", "--out", "run")
    said = leakgauge("attack", "reads.py:make", "--data", photos, *words)
    assert said.code != 0
    assert "space" not in said.err
    assert "/no/such/vocabulary" in said.err


def test_a_model_file_that_changes_the_working_directory(leakgauge, tmp_path, model, photos):
    (tmp_path / "elsewhere").mkdir()
    with (tmp_path / model).open("a") as file:
        file.write("__import__('os').chdir('elsewhere')\n")
    assert leakgauge("attack", f"{model}:make", "--data", photos, *FAST, "--out", "run", "-q").code == 0
    assert len(records.read(tmp_path / "run")) == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_names_that_are_no_text(leakgauge, tmp_path, photos):
    name = os.fsdecode(b"\xff\xfedir")
    (tmp_path / photos).rename(tmp_path / name)
    words = ("--resize", *FAST, "--markdown", "s.md", "--junit", "s.xml", "--json", "s.json")
    said = leakgauge("attack", "cnn", "--data", name, *words, "--out", os.fsdecode(b"run\xff"))
    assert said.code == 0, said.err
    (found,) = records.read(tmp_path / os.fsdecode(b"run\xff"))
    assert found.case.data == name
    assert "\\udcff\\udcfedir" in (tmp_path / os.fsdecode(b"run\xff") / "report.html").read_text()
    assert leakgauge("report", os.fsdecode(b"run\xff")).code == 0
