"""What a hostile or unlucky user gives: never a wrong all-clear, never a file replaced that nobody named, never an escape obeyed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading

import pytest

from leakgauge.audit.files import LOCK, append_line, sole_writer, write_whole
from leakgauge.cli.terminal import harmless, shown
from leakgauge.errors import BadInput

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
